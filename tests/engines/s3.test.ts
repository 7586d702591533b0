/** The `s3:` driver on a real server: the suite of the port, and what only a store behind a network can get wrong. */
import { test } from 'node:test';
import { blobsContract } from '../contract/blobs.ts';
import { available, installCommand, startCeph } from '../support/engines/ceph.ts';
import { openHarness } from '../support/engines/s3-buckets.ts';

if (available()) await suite();
else test('the blobs suite runs on a real S3 server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startCeph(test);
  blobsContract('s3', () => openHarness(server));
}
