/**
 * Cases that broke other systems by one fault after another, or by half a write: what was lost comes back by itself, and what
 * is half is never shown. `docs/cases.md` lists all cases with their tests.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { BlobError } from '../../src/pipeline/ports.ts';
import { openPostgresBroker } from '../support/broker-sql.ts';
import { register } from '../support/client.ts';
import { openJourney } from '../support/journey.ts';
import { onEnd } from '../support/on-end.ts';
import { createPipeline } from '../support/pipeline.ts';
import type { Plan } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

const photograph = await readFile(join(import.meta.dirname, '../fixtures/orientation/small_6.jpg'));

test('a lost publish, a broker that forgot everything and a worker killed in its work, one after the other: ready by itself', async (t) => {
  const j = await openJourney(t);
  const api = await j.start(['api', 'janitor']);
  const user = await register(() => api.url);
  const dying = await j.start(['relay'], { 'relay.taken': 'kill' });
  const { id } = await user.upload(photograph);
  assert.equal((await dying.ended).signal, 'SIGKILL');
  const { id: jobId, rings } = await j.job(id);
  assert.equal(rings, 1);

  const relay = await j.start(['relay']);
  const broker = await openPostgresBroker(j.databaseUrl);
  onEnd(t, () => broker.close());
  await until('its message is in the broker', async () => ((await broker.depth())?.waiting ?? 0) > 0);
  await j.pool.query('drop schema skrepka_broker cascade');
  assert.equal((await j.job(id)).state, 'queued');

  const killed = await j.start(['worker'], { 'worker.downloaded': 'kill' });
  assert.equal((await killed.ended).signal, 'SIGKILL');
  const worker = await j.start(['worker']);
  await user.assertWhole(await user.until(id, 'ready'), photograph);
  const job = await j.job(id);
  assert.deepEqual([job.id, job.attempts, job.crashes, job.failures], [jobId, 2, 1, 0]);
  assert.deepEqual([await j.count('jobs'), await j.count('variants')], [1, 3]);
  await j.assertTidy();
  for (const role of [worker, relay]) assert.equal(await role.stop(), 0);
});

const broken: Plan = { before: () => new BlobError('broken', 'bad sector') };
const through: Plan = { first: async () => {} };
const faults: Readonly<Record<string, ['put' | 'copy', ...Plan[]]>> = {
  'the put of the second variant': ['put', through, broken],
  'the put of the last variant': ['put', through, through, broken],
  'the copy of the original': ['copy', broken],
  'the copy of the original, which was made all the same,': [
    'copy',
    { after: () => new BlobError('broken', 'bad sector') },
  ],
};

for (const [what, [verb, ...plans]] of Object.entries(faults)) {
  test(`${what} fails: never ready by half, tried again, then complete, and nothing is left of the first attempt`, async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    p.blobs.plan(verb, ...plans);
    p.startRelay();
    // The retry is held where nothing is written yet: what the failed attempt published would be seen.
    const first = p.points.hold('worker.claimed');
    p.startWorker();
    await first.reached;
    const second = p.points.hold('worker.claimed');
    first.pass();
    await second.reached;
    const between = await p.attachment(attachment.id);
    assert.deepEqual([between.state, between.variants, between.originalKey], ['processing', [], null]);
    const written = await p.keys('attachments/');
    // The original is copied beside the rendering: where that fails nothing else was stored.
    if (what === 'the copy of the original') assert.deepEqual(written, []);
    else assert.ok(written.length > 0, 'the failed attempt did write');
    second.pass();

    const ready = await p.untilState(attachment.id, 'ready');
    const { attempts, failures, crashes } = await p.jobOf(attachment.id);
    assert.deepEqual([attempts, failures, crashes], [2, 1, 0]);
    p.startJanitor();
    const named = [ready.originalKey, ...ready.variants.map(({ key }) => key)].sort();
    await until('the storage has what the row names', async () => {
      return JSON.stringify((await p.keys()).sort()) === JSON.stringify(named);
    });
    assert.equal(ready.variants.length, 3);
  });
}
