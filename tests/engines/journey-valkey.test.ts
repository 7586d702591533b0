/** The journeys with the bell on a real Valkey server, and objects in files. */
import { test } from 'node:test';
import { bellOn, journeys } from '../contract/journeys.ts';
import { available, installCommand, startValkey } from '../support/engines/valkey.ts';

if (available()) {
  const server = await startValkey(test);
  journeys('Valkey', bellOn(server.url));
} else test('the journeys run on a real Valkey server', (context) => context.skip(installCommand));
