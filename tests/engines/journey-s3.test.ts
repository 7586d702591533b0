/** The journeys with objects in a real S3 store, and the queue in PostgreSQL; and an outage of that store on the way. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type JourneyEngines, journeys, photograph, scene } from '../contract/journeys.ts';
import { register } from '../support/client.ts';
import { available, type CephServer, installCommand, startCeph } from '../support/engines/ceph.ts';
import { environmentOf, makeBucket } from '../support/engines/s3-buckets.ts';
import { onEnd } from '../support/on-end.ts';
import { until } from '../support/until.ts';

if (available()) await suite();
else test('the journeys run on a real S3 server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startCeph(test);
  const open = async (t: TestContext): Promise<JourneyEngines> => {
    const bucket = await makeBucket(server);
    onEnd(t, bucket.close);
    return { settings: environmentOf(bucket.settings), blobs: bucket.blobs };
  };
  journeys('postgres: and S3', open);
  outage(server, open);
}

function outage(server: CephServer, open: (t: TestContext) => Promise<JourneyEngines>): void {
  test('S3 that is killed under a job costs it nothing, is told by health and refusals, and work goes on by itself', async (t) => {
    const s = await scene(t, open);
    const api = await s.start(['api', 'relay', 'janitor']);
    const user = await register(() => api.url);
    const worker = await s.start(['worker']);
    const early = await user.until((await user.upload(photograph)).id, 'ready');
    await worker.arm('worker.claimed', 'wait');
    const { id } = await user.upload(photograph);
    await worker.reached('worker.claimed');
    await server.killGateway();
    await worker.disarm('worker.claimed');
    await worker.resume('worker.claimed');
    await until('the claim was given back', async () => (await s.job(id)).releases > 0);

    const code = async (answer: Response) => ((await answer.json()) as { code: string }).code;
    const refused = await user.send(photograph);
    assert.deepEqual([refused.status, await code(refused)], [503, 'storage_unavailable']);
    assert.match(refused.headers.get('retry-after') ?? '', /^[1-9]/);
    const content = await user.ask(early.content_url);
    assert.deepEqual([content.status, await code(content)], [503, 'storage_unavailable']);
    const health = await fetch(`${api.url}/health/ready`);
    assert.equal(health.status, 503);
    assert.match(await health.text(), /"storage":"down"/);
    assert.equal((await user.ask(`/v1/attachments/${id}`)).status, 200, 'what needs no object goes on');
    assert.equal(await s.count('attachments'), 2);

    await server.startGateway();
    const ready = await user.until(id, 'ready');
    await user.assertWhole(ready, photograph);
    const job = await s.job(id);
    assert.deepEqual([job.crashes, job.failures], [0, 0]);
    assert.equal((await fetch(`${api.url}/health/ready`)).status, 200);
    await s.assertTidy();
  });
}
