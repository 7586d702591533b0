/** The journeys with the bell on a real JetStream server, and objects in files. */
import { test } from 'node:test';
import { bellOn, journeys } from '../contract/journeys.ts';
import { available, installCommand, startNats } from '../support/engines/nats.ts';

if (available()) {
  const server = await startNats(test);
  journeys('JetStream', bellOn(server.url));
} else test('the journeys run on a real JetStream server', (context) => context.skip(installCommand));
