/** The journeys with objects in a real S3 store, and the queue in PostgreSQL. */
import { test } from 'node:test';
import { journeys } from '../contract/journeys.ts';
import { available, installCommand, startCeph } from '../support/engines/ceph.ts';
import { environmentOf, makeBucket } from '../support/engines/s3-buckets.ts';
import { onEnd } from '../support/on-end.ts';

if (available()) await suite();
else test('the journeys run on a real S3 server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startCeph(test);
  journeys('postgres: and S3', async (t) => {
    const bucket = await makeBucket(server);
    onEnd(t, bucket.close);
    return { settings: environmentOf(bucket.settings), blobs: bucket.blobs };
  });
}
