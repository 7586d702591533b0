/** Step 8, clean: what nobody names goes, what somebody names stays. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../../src/ids.ts';
import { attemptPrefix, stagingKey } from '../../src/pipeline/attachment.ts';
import { BlobError, BrokerError } from '../../src/pipeline/ports.ts';
import { deadClaim } from '../support/attempts.ts';
import { chunks, createPipeline } from '../support/pipeline.ts';
import { createPainter } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

type Pipeline = Awaited<ReturnType<typeof createPipeline>>;
const quiet = (p: Pipeline) =>
  until('no clean-up is left', async () => (await p.pool.query('select 1 from cleanups')).rowCount === 0);

async function named(p: Pipeline): Promise<string[]> {
  const { rows } = await p.pool.query(
    'select key from variants union all select original_key from attachments where original_key is not null and deleted_at is null',
  );
  return rows.map((row) => row.key as string).sort();
}

test('once quiet, the objects of ready attachments are those that rows name', async (t) => {
  const p = await createPipeline(t);
  p.startRelay();
  p.startWorker();
  p.startJanitor();
  const uploads = await Promise.all([1, 2, 3].map((n) => p.upload(`IMG ${n}`)));
  for (const { attachment } of uploads) await p.untilState(attachment.id, 'ready');
  await quiet(p);
  const keys = await p.keys();
  assert.deepEqual([...keys].sort(), await named(p));
  assert.equal(keys.length, 12);
});

test('objects of a failed attempt go, the staging of the job that is tried again stays', async (t) => {
  let fail = true;
  const p = await createPipeline(t, {}, createPainter());
  p.startRelay();
  p.startJanitor();
  p.blobs.plan('copy', {
    first: async () => {
      if (fail) throw new BlobError('broken', 'bad sector');
    },
  });
  const { attachment } = await p.upload('IMG 1');
  p.startWorker();
  await p.untilState(attachment.id, 'ready');
  fail = false;
  await quiet(p);
  assert.deepEqual([...(await p.keys())].sort(), await named(p));
  assert.equal((await p.jobOf(attachment.id)).failures, 1);
});

test('a copy of the original that fails, or whose answer is lost, leaves nothing half: tried again, then ready and complete', async (t) => {
  const p = await createPipeline(t);
  p.startRelay();
  p.startJanitor();
  const { attachment } = await p.upload('IMG 1');
  const asked: string[] = [];
  const state = async () => (await p.attachment(attachment.id)).state;
  p.blobs.plan(
    'copy',
    {
      first: async () => {
        asked.push(await state());
        throw new BlobError('broken', 'bad sector');
      },
    },
    { after: () => new BlobError('broken', 'the answer was lost') },
    { first: async () => void asked.push(await state()) },
  );
  p.startWorker();
  await p.untilState(attachment.id, 'ready');
  assert.deepEqual(asked, ['processing', 'processing']);
  const { rows } = await p.pool.query('select reason from job_events order by id');
  const reasons = ['accepted', 'claimed', 'retried', 'claimed', 'retried', 'claimed', 'settled'];
  assert.deepEqual(
    rows.map(({ reason }) => reason),
    reasons,
  );
  await quiet(p);
  assert.deepEqual([...(await p.keys())].sort(), await named(p));
  assert.equal((await p.keys()).length, 4);
});

test('a dead worker, a broker that loses everything and a lost publish together: ready by itself, in one job', async (t) => {
  const p = await createPipeline(t);
  p.broker.plan(
    'publish',
    { before: () => new BrokerError('unavailable', 'the line is down') },
    { before: () => new BrokerError('unknown', 'no confirmation came') },
  );
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  await until('the job was announced', async () => (await p.memory.depth()).waiting === 1);
  const { id: jobId } = await p.jobOf(attachment.id);
  const dead = await p.store.port.claim(deadClaim(jobId, 700));
  assert.equal(dead.kind, 'claimed');
  p.memory.wipe();
  p.startWorker();
  p.startJanitor();
  const ready = await p.untilState(attachment.id, 'ready');
  assert.equal(ready.variants.length, 3);
  const { rows } = await p.pool.query('select attempts, crashes, generation from jobs');
  assert.deepEqual(rows, [{ attempts: 2, crashes: 1, generation: 1 }]);
  await quiet(p);
  assert.deepEqual([...(await p.keys())].sort(), await named(p));
});

test('a deleted attachment leaves no object behind, in whatever state it was', async (t) => {
  const p = await createPipeline(t);
  const { attachment: queued } = await p.upload('IMG 1');
  assert.equal(await p.store.port.deleteAttachment(p.user, queued.id, { graceMs: p.settings.graceMs }), true);
  p.startRelay();
  p.startJanitor();
  let painted = () => {};
  const hold = new Promise<void>((resolve) => {
    painted = resolve;
  });
  p.startWorker({ images: createPainter(() => hold) });
  const { attachment: processing } = await p.upload('IMG 2');
  await p.untilState(processing.id, 'processing');
  assert.equal(await p.store.port.deleteAttachment(p.user, processing.id, { graceMs: p.settings.graceMs }), true);
  painted();
  const { attachment: ready } = await p.upload('IMG 3');
  await p.untilState(ready.id, 'ready');
  assert.equal(await p.store.port.deleteAttachment(p.user, ready.id, { graceMs: p.settings.graceMs }), true);
  await quiet(p);
  await until('nothing is left', async () => (await p.keys()).length === 0);
  for (const { id } of [queued, processing, ready])
    assert.equal((await p.jobOf(id)).state === 'succeeded', id === ready.id);
});

test('an object that lands late under a dead attempt goes in the second pass', async (t) => {
  // Passes come when the test says so.
  const graceMs = 3_600_000;
  const p = await createPipeline(t, { graceMs });
  const passNow = () => p.pool.query('update cleanups set not_before = now()');
  const { attachment } = await p.upload('IMG 1');
  await p.store.port.deleteAttachment(p.user, attachment.id, { graceMs });
  p.startJanitor();
  await passNow();
  await until('a first pass is over, and another is to come', async () => {
    const { rows } = await p.pool.query<{ later: boolean }>('select not_before > now() as later from cleanups');
    return rows.length === 1 && rows[0]?.later && (await p.keys()).length === 0;
  });
  const late = `${attemptPrefix(attachment.id, 1, 1, newId())}thumbnail.jpg`;
  await p.blobs.port.put(late, chunks('late'));
  await passNow();
  await quiet(p);
  assert.deepEqual(await p.keys(), []);
});

test('a clean-up that names what a row still names deletes nothing', async (t) => {
  const p = await createPipeline(t);
  p.startRelay();
  p.startWorker();
  const { attachment } = await p.upload('IMG 1');
  const { originalKey, variants } = await p.untilState(attachment.id, 'ready');
  await p.pool.query(`insert into cleanups (key, reason) values ($1, 'test'), ($2, 'test'), ($3, 'test')`, [
    originalKey,
    variants[0]?.key,
    `attachments/${attachment.id}/`,
  ]);
  p.startJanitor();
  await quiet(p);
  assert.deepEqual([...(await p.keys())].sort(), await named(p));
  assert.equal((await p.keys()).length, 4);
});

test('a staging object without a row goes when it is old enough, one with a row stays', async (t) => {
  const p = await createPipeline(t, { orphanMs: 500 });
  const { attachment } = await p.upload('IMG 1');
  const orphan = stagingKey(newId());
  await p.blobs.port.put(orphan, chunks('x'));
  p.startJanitor();
  await until('the orphan is gone', async () => !(await p.keys()).includes(orphan));
  const lists = p.blobs.calls('list');
  await until('searched twice more', () => p.blobs.calls('list') >= lists + 2);
  assert.deepEqual(await p.keys(), [stagingKey(attachment.id)]);
});

test('a young staging object without a row stays: its upload may still be on its way', async (t) => {
  const p = await createPipeline(t);
  const young = stagingKey(newId());
  await p.blobs.port.put(young, chunks('x'));
  p.startJanitor();
  await until('searched twice', () => p.blobs.calls('list') >= 3);
  assert.deepEqual(await p.keys(), [young]);
});

test('a storage that is away keeps the clean-ups for later', async (t) => {
  const p = await createPipeline(t);
  const { attachment } = await p.upload('IMG 1');
  await p.store.port.deleteAttachment(p.user, attachment.id, { graceMs: 0 });
  p.blobs.plan(
    'deleteMany',
    { before: () => new BlobError('unavailable', 'away') },
    { before: () => new BlobError('unavailable', 'away') },
  );
  p.startJanitor();
  await quiet(p);
  assert.deepEqual(await p.keys(), []);
});

test('of several janitors one works at a time, and another goes on when it ends', async (t) => {
  const p = await createPipeline(t);
  const endFirst = p.startJanitor();
  await until('the first leads', () => p.store.calls('dueCleanups') >= 1);
  p.startJanitor();
  await until('the second asked in vain', () => p.store.calls('lead') >= 3);
  await endFirst();
  const { attachment } = await p.upload('IMG 1');
  await p.store.port.deleteAttachment(p.user, attachment.id, { graceMs: 0 });
  await quiet(p);
  assert.deepEqual(await p.keys(), []);
});

test('an object that cannot be deleted does not keep the others from going', async (t) => {
  const p = await createPipeline(t, { janitorMs: 60_000 });
  for (let i = 0; i < 3; i += 1) {
    const { attachment } = await p.upload(`IMG ${i}`);
    await p.store.port.deleteAttachment(p.user, attachment.id, { graceMs: 60_000 });
  }
  // All at once, and then the first of those that go one by one.
  const broken = { before: () => new BlobError('broken', 'bad sector') };
  p.blobs.plan('deleteMany', broken, broken);
  const end = p.startJanitor();
  await until('one is left after the round', async () => (await p.keys()).length === 1);
  await end();
  assert.equal(p.meter.counted('janitor_faults_total'), 1);
});
