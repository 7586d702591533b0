/** The row `recovery` counts what is lost and what is doubled, and rates of a kill, as it says; the crowded table is what its header says. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { openBacklog, ratesOf } from '../../bench/backlog.ts';
import { fillTable } from '../../bench/crowded-table.ts';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import { onEnd } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { resultOf, settle, startStore } from '../support/store.ts';

async function startBacklog(t: TestContext) {
  const s = await startStore(t);
  const dataDir = await mkdtemp(path.join(tmpdir(), 'skrepka-test-'));
  onEnd(t, () => rm(dataDir, { recursive: true, force: true }));
  const blobs = createFileBlobs({ dir: path.join(dataDir, 'blobs') });
  const picture = { name: 'a.jpg', contentType: 'image/jpeg', bytes: Buffer.alloc(77, 1) } as const;
  const backlog = await openBacklog(t, { databaseUrl: s.url, dataDir }, [picture]);
  await backlog.accept(2);
  const { rows } = await s.pool.query<{ id: string; attachment_id: string }>('select id, attachment_id from jobs');
  const keys: string[] = [];
  for (const { id, attachment_id } of rows) {
    const { attempt } = await s.claimed(id);
    const result = resultOf(attempt);
    await blobs.copy(`staging/${attachment_id}`, result.originalKey ?? '');
    for (const { key, size } of result.variants) await blobs.put(key, one(Buffer.alloc(size)));
    keys.push(...result.variants.map(({ key }) => key));
    assert.equal(await settle(s.store, attempt, result), 'ready');
  }
  return { ...s, backlog, blobs, keys, jobs: rows };
}

async function* one(bytes: Uint8Array) {
  yield bytes;
}

describe('a backlog that is all ready', () => {
  it('has lost and doubled nothing, with its staging still to be cleaned', async (t) => {
    const { backlog } = await startBacklog(t);
    assert.equal(await backlog.countReady(), 2);
    assert.equal((await backlog.untilAllReady({ deadlineMs: 1_000 })).length, 2);
    assert.deepEqual(await backlog.examine(), { lost: 0, doubled: 0 });
  });

  it('has lost what misses an object, and what has one of another size', async (t) => {
    const { backlog, blobs, keys } = await startBacklog(t);
    await blobs.deleteMany([keys[0] ?? '']);
    assert.deepEqual(await backlog.examine(), { lost: 1, doubled: 0 });
    await blobs.put(keys[3] ?? '', one(Buffer.alloc(1)));
    assert.deepEqual(await backlog.examine(), { lost: 2, doubled: 0 });
  });

  it('has doubled an object that no row names, and a job that was settled twice', async (t) => {
    const { backlog, blobs, keys, jobs, pool } = await startBacklog(t);
    await blobs.put(`${path.posix.dirname(keys[0] ?? '')}/again.jpg`, one(Buffer.alloc(1)));
    assert.deepEqual(await backlog.examine(), { lost: 0, doubled: 1 });
    await pool.query(
      `insert into job_events (job_id, from_state, to_state, fence, who, reason)
       values ($1, 'processing', 'succeeded', 2, 'test', 'settled')`,
      [jobs[0]?.id],
    );
    assert.deepEqual(await backlog.examine(), { lost: 0, doubled: 2 });
  });
});

describe('the rates around a kill', () => {
  it('count the time from the kill on, and leave the warm-up out', () => {
    const at = (readyAt: number, crashes = 0) => ({ readyAt, crashes });
    const before = [at(5_000), at(9_000), at(10_000), at(11_000), at(12_000)];
    const after = [at(14_000), at(15_000), at(16_000, 1)];
    const rates = ratesOf([...after, ...before], 12_000, 2);
    assert.deepEqual(
      [rates.steadyPerSecond, rates.drainPerSecond, rates.drainPercent, rates.firstReadyMs],
      [1, 0.75, 75, 2_000],
    );
    assert.deepEqual([rates.crashed, rates.crashedReadyMs], [1, 4_000]);
  });
});

describe('a crowded table', () => {
  it('holds as many jobs as asked for, each owner with five that wait and a page that is ready', async (t) => {
    const { pool } = await freshDatabase(t);
    const owners = await fillTable(pool, 1_000, () => {});
    assert.equal(owners.length, 20);
    const { rows } = await pool.query(
      `select count(*)::int as jobs,
         count(*) filter (where state = 'queued')::int as queued,
         count(*) filter (where state = 'succeeded')::int as succeeded
       from jobs
       group by owner_id`,
    );
    assert.equal(rows.length, 20);
    for (const row of rows) assert.ok(row.jobs === 50 && row.queued === 5 && row.succeeded >= 31, JSON.stringify(row));
  });

  it('holds no row that the product could not have left', async (t) => {
    const { pool } = await freshDatabase(t);
    await fillTable(pool, 1_000, () => {});
    const { rows } = await pool.query(
      `select
         (select count(*) from jobs left join attachments on attachments.id = attachment_id where attachments.id is null)::int as orphans,
         (
           select count(*)
           from attachments
           where (select count(*) from variants where attachment_id = attachments.id) <> case when state = 'ready' then 3 else 0 end
         )::int as wrong_variants,
         (
           select count(*)
           from jobs
           where (select to_state from job_events where job_id = jobs.id order by id desc limit 1) is distinct from state
         )::int as wrong_histories`,
    );
    assert.deepEqual(rows[0], { orphans: 0, wrong_variants: 0, wrong_histories: 0 });
  });
});
