/** The broker `valkey:` passes the suite of every driver on a real server; then what else the fate of its server may do. */
import test from 'node:test';
import { brokerContract } from '../contract/broker.ts';
import { available, installCommand, startValkey } from '../support/engines/valkey.ts';
import { createValkeyHarness } from '../support/engines/valkey-harness.ts';

const traits = { visibilityMs: 800, countsDeliveries: true, fencesAcks: true, dropsDuplicates: false };

if (available()) await suite();
else test('the broker suite runs on a real Valkey server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startValkey(test);
  brokerContract('broker valkey', traits, () => createValkeyHarness(server));
}
