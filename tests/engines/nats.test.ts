/** The broker `nats:` passes the suite of every driver on a real server; then what else the fate of servers may do. */
import test from 'node:test';
import { brokerContract } from '../contract/broker.ts';
import { available, installCommand, startNats } from '../support/engines/nats.ts';
import { createNatsHarness } from '../support/engines/nats-harness.ts';

const traits = { visibilityMs: 800, countsDeliveries: true, fencesAcks: false, dropsDuplicates: true };

if (available()) await suite();
else test('the broker suite runs on a real NATS server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startNats(test);
  brokerContract('broker nats', traits, () => createNatsHarness(server));
}
