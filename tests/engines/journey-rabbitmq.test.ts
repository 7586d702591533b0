/** The journeys with the bell on a real RabbitMQ server, and objects in files. */
import { test } from 'node:test';
import { bellOn, journeys } from '../contract/journeys.ts';
import { available, installCommand, startRabbit } from '../support/engines/rabbitmq.ts';

if (available()) {
  const server = await startRabbit(test);
  journeys('RabbitMQ', bellOn(server.url));
} else test('the journeys run on a real RabbitMQ server', (context) => context.skip(installCommand));
