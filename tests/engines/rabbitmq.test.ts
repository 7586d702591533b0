/** The broker `amqp:` passes the suite of every driver on a real server; then what else may happen to server, queue and line. */
import test from 'node:test';
import { brokerContract } from '../contract/broker.ts';
import { available, installCommand, startRabbit } from '../support/engines/rabbitmq.ts';
import { createRabbitHarness } from '../support/engines/rabbitmq-harness.ts';

const traits = { visibilityMs: 800, countsDeliveries: true, fencesAcks: true, dropsDuplicates: false };

if (available()) await suite();
else test('the broker suite runs on a real RabbitMQ', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startRabbit(test);
  brokerContract('broker rabbitmq', traits, () => createRabbitHarness(server));
}
