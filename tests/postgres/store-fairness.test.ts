/** Turns: who of those who wait gets the next place, however much one of them has brought. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { createStore } from '../../src/postgres/store.ts';
import { poolOf } from '../support/plans.ts';
import { addUser, byOperator, fail, newUpload, release, startStore } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

const minute = 60;
/** Ids of the jobs that get the next places. */
const places = async (s: Fixture, limit: number) =>
  (await s.store.takeDue({ limit, window: 100_000, takenMs: 60_000 })).map((ring) => ring.jobId);
/** Uploads of one user, one after the other. */
async function uploads(s: Fixture, ownerId: string, count: number): Promise<string[]> {
  const jobs: string[] = [];
  for (let one = 0; one < count; one += 1) jobs.push((await s.accept({ ownerId })).jobId);
  return jobs;
}
/** As if that much time had passed: everything that there is becomes older. */
const pass = (s: Fixture, seconds: number) =>
  s.pool.query(
    `update jobs
     set turn = turn - $1 * interval '1 second',
         not_before = not_before - $1 * interval '1 second',
         ring_at = case when rung_at is null then ring_at - $1 * interval '1 second' else ring_at end,
         created_at = created_at - $1 * interval '1 second'`,
    [seconds],
  );
const turnOf = async (s: Fixture, jobId: string) => ((await s.jobRow(jobId)).turn as Date).getTime();
const acceptedAt = async (s: Fixture, jobId: string) => ((await s.jobRow(jobId)).created_at as Date).getTime();

/** A user's many uploads, made in the database: what a thousand calls of `accept` leave behind, in a second. */
async function flood(s: Fixture, ownerId: string, count: number): Promise<void> {
  const { id, jobId } = await s.accept({ ownerId });
  await s.pool.query(
    `with attachment as (
       insert into attachments (id, owner_id, state, kind, file_name, content_type, size, sha256, staging_key)
       select gen_random_uuid(), owner_id, state, kind, file_name, content_type, size, sha256, staging_key
       from attachments
       cross join generate_series(2, $3)
       where id = $1
       returning id
     )
     insert into jobs (id, attachment_id, owner_id, version, state, ring_at, turn)
     select gen_random_uuid(), attachment.id, jobs.owner_id, 1, 'queued', now(),
       jobs.turn + row_number() over () * interval '1 second'
     from attachment
     join jobs on jobs.id = $2`,
    [id, jobId, count],
  );
}

describe('the turn of an upload', () => {
  it('is now for the first of a user, and a step after the last for each that follows', async (t) => {
    const s = await startStore(t);
    const [first = '', second = '', third = ''] = await uploads(s, s.owner, 3);
    const turns = await Promise.all([first, second, third].map((jobId) => turnOf(s, jobId)));
    assert.equal(turns[0], await acceptedAt(s, first));
    assert.deepEqual([(turns[1] ?? 0) - (turns[0] ?? 0), (turns[2] ?? 0) - (turns[0] ?? 0)], [1_000, 2_000]);
    const wide = await s.accept({ spacingMs: 60_000 });
    assert.equal((await turnOf(s, wide.jobId)) - (turns[2] ?? 0), 60_000);
    const { jobId } = await s.accept({ ownerId: await addUser(s.pool, 'other') });
    assert.ok((await turnOf(s, jobId)) < (turns[1] ?? 0), 'what others wait for moves nobody back');
  });

  it('counts what is unfinished only: who has waited and was served stands in front again', async (t) => {
    const s = await startStore(t);
    for (const jobId of await uploads(s, s.owner, 5)) {
      await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    }
    const { jobId } = await s.accept();
    assert.equal(await turnOf(s, jobId), await acceptedAt(s, jobId));
  });

  it('is not moved back by the reprocessing of the user’s own', async (t) => {
    const s = await startStore(t);
    const again = await s.addJob((await s.ready()).id, 2);
    await s.pool.query(`update jobs set turn = now() + interval '1 hour' where id = $1`, [again]);
    const { jobId } = await s.accept();
    assert.equal(await turnOf(s, jobId), await acceptedAt(s, jobId));
  });
});

describe('places', () => {
  it('are first come, first served within a user', async (t) => {
    const s = await startStore(t);
    const jobs = await uploads(s, s.owner, 12);
    assert.deepEqual([...(await places(s, 5)), ...(await places(s, 100))], jobs);
  });

  it('go to another user’s one at once, although a thousand of one user were there before', async (t) => {
    const s = await startStore(t);
    await flood(s, s.owner, 1_000);
    await places(s, 32);
    const { jobId } = await s.accept({ ownerId: await addUser(s.pool, 'newcomer') });
    assert.ok((await places(s, 2)).includes(jobId));
  });

  it('go to a newcomer behind one job of each user who floods, also when the service is slow', async (t) => {
    const s = await startStore(t);
    for (const handle of ['a', 'b', 'c']) await flood(s, await addUser(s.pool, handle), 200);
    await places(s, 32);
    // Five minutes in which nothing was done: the turns of all 600 are over, and a plain clock would be behind all of them.
    await pass(s, 5 * minute);
    const { jobId } = await s.accept({ ownerId: await addUser(s.pool, 'newcomer') });
    assert.ok((await places(s, 4)).includes(jobId));
  });

  it('are shared by turns among those who have many', async (t) => {
    const s = await startStore(t);
    const [one, two] = [s.owner, await addUser(s.pool, 'two')];
    await flood(s, one, 200);
    await places(s, 50);
    await pass(s, 2 * minute);
    const late = await uploads(s, two, 20);
    const taken = await places(s, 20);
    const theirs = taken.filter((jobId) => late.includes(jobId));
    assert.ok(theirs.length >= 9 && theirs.length <= 11, `${theirs.length} of 20`);
    assert.deepEqual(theirs, late.slice(0, theirs.length));
  });

  it('reach everybody: ten minutes after a turn nobody who comes new stands in front of it', async (t) => {
    const s = await startStore(t);
    const stuck = await s.accept();
    const [, waiting = ''] = await uploads(s, await addUser(s.pool, 'waiting'), 2);
    await pass(s, 9 * minute);
    const early = await s.accept({ ownerId: await addUser(s.pool, 'early') });
    assert.ok((await turnOf(s, early.jobId)) < (await turnOf(s, waiting)));
    await pass(s, 2 * minute);
    const late = await s.accept({ ownerId: await addUser(s.pool, 'late') });
    assert.ok((await turnOf(s, late.jobId)) > (await turnOf(s, waiting)));
    assert.equal((await places(s, 1))[0], stuck.jobId);
  });

  it('go to uploads before reprocessing, however long that waits', async (t) => {
    const s = await startStore(t);
    const again = await s.addJob((await s.ready()).id, 2);
    await pass(s, 60 * minute);
    const jobs = await uploads(s, s.owner, 3);
    assert.deepEqual(await places(s, 3), jobs);
    assert.deepEqual(await places(s, 3), [again]);
  });

  it('are kept in order by a job that was retried or released: its turn stays', async (t) => {
    const s = await startStore(t);
    const [first = '', second = '', third = ''] = await uploads(s, s.owner, 3);
    const turn = await turnOf(s, second);
    await fail(s.store, (await s.claimed(second)).attempt);
    assert.equal(await turnOf(s, second), turn);
    assert.deepEqual(await places(s, 1), [first]);
    await s.endWait(second);
    await release(s.store, (await s.claimed(second)).attempt);
    assert.equal(await turnOf(s, second), turn);
    assert.deepEqual(await places(s, 10), [second, third]);
  });

  it('are not held up by a job whose time has not come, nor given to it', async (t) => {
    const s = await startStore(t);
    const [first = ''] = await uploads(s, s.owner, 1);
    await fail(s.store, (await s.claimed(first)).attempt, 'internal', 3_600_000);
    await pass(s, 30);
    const { jobId } = await s.accept({ ownerId: await addUser(s.pool, 'other') });
    assert.ok((await turnOf(s, jobId)) > Date.now() - 5_000, 'it is no front either');
    assert.deepEqual(await places(s, 10), [jobId]);
  });

  it('come to replayed jobs in the same way: a thousand replays of one user are a step apart', async (t) => {
    const s = await startStore(t);
    const jobs = await uploads(s, s.owner, 3);
    for (const jobId of jobs) await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    for (const jobId of jobs)
      assert.equal(await s.store.replay(jobId, { ...byOperator, spacingMs: 1_000 }), 'replayed');
    const { jobId } = await s.accept({ ownerId: await addUser(s.pool, 'other') });
    const taken = await places(s, 10);
    assert.deepEqual(
      taken.filter((one) => one !== jobId),
      jobs,
    );
    assert.ok(taken.indexOf(jobId) <= 1);
  });

  it('are given in one order to uploads that are accepted at the same moment', async (t) => {
    const s = await startStore(t, { poolMax: 10 });
    const users = await Promise.all(['a', 'b', 'c', 'd'].map((handle) => addUser(s.pool, handle)));
    const accepted = await Promise.all(users.flatMap((user) => [1, 2, 3].map(() => s.store.accept(newUpload(user)))));
    assert.ok(accepted.every(({ kind }) => kind === 'accepted'));
    assert.equal(new Set([...(await places(s, 5)), ...(await places(s, 100))]).size, 12);
  });
});

describe('arrive', () => {
  it('tells the database’s time, and what of this user’s uploads is unfinished or recent', async (t) => {
    const s = await startStore(t);
    assert.deepEqual({ ...(await s.store.arrive(s.owner)), startedAt: '' }, { startedAt: '', pending: 0, lately: 0 });
    const other = await addUser(s.pool, 'other');
    await uploads(s, other, 2);
    await s.addJob((await s.ready()).id, 2);
    const [running = '', failed = '', old = ''] = await uploads(s, s.owner, 4);
    await s.claimed(running);
    await fail(s.store, (await s.claimed(failed)).attempt, 'corrupt_image');
    await s.pool.query(`update jobs set created_at = now() - interval '61 seconds' where id = $1`, [old]);
    const arrival = await s.store.arrive(s.owner);
    assert.deepEqual([arrival.pending, arrival.lately], [3, 4]);
    const { rows } = await s.pool.query<{ apart: number }>(
      'select extract(epoch from now() - $1::timestamptz)::float8 as apart',
      [arrival.startedAt],
    );
    assert.ok(Math.abs(rows[0]?.apart ?? 99) < 5);
    assert.equal((await s.store.arrive(other)).pending, 2);
  });

  it('counts what another process accepted whose clock is minutes off', async (t) => {
    const s = await startStore(t);
    const idAt = (ms: number) =>
      `${ms
        .toString(16)
        .padStart(12, '0')
        .replace(/^(.{8})/, '$1-')}-7000-8000-000000000000`;
    await s.accept({ jobId: idAt(Date.now() - 8 * 60_000) });
    await s.accept({ jobId: idAt(Date.now() + 8 * 60_000) });
    assert.equal((await s.store.arrive(s.owner)).lately, 2);
  });
});

describe('load', () => {
  it('is the backlog of uploads, what they hold in staging without those that failed, and how fast jobs end', async (t) => {
    const s = await startStore(t);
    assert.deepEqual(await s.store.load(), { queued: 0, stagingBytes: 0, finishedPerSecond: 0 });
    await s.addJob((await s.ready({ size: 1_000 })).id, 2);
    const [running = '', failed = ''] = await uploads(s, s.owner, 4);
    await s.claimed(running);
    await fail(s.store, (await s.claimed(failed)).attempt, 'corrupt_image');
    const deleted = await s.accept();
    await s.store.deleteAttachment(s.owner, deleted.id, { graceMs: 1 });
    await s.store.takeDue({ limit: 1, window: 1, takenMs: 1_000 });
    const { size } = deleted.upload;
    assert.deepEqual(await s.store.load(), { queued: 2, stagingBytes: 3 * size, finishedPerSecond: 3 / 10 });
  });

  it('tells the pace of the last ten seconds, so that work after a rest is not slow for a minute, or that of the minute', async (t) => {
    const s = await startStore(t);
    const jobs = await uploads(s, s.owner, 3);
    const agoSeconds = async (ago: readonly number[]) => {
      const client = await s.pool.connect();
      try {
        // In one transaction now() stands still.
        await client.query('begin');
        for (const [index, seconds] of ago.entries()) {
          await client.query(
            `update jobs
             set state = 'failed', ring_at = null, rung_at = null, error_code = 'corrupt_image',
               finished_at = now() - $2::int * interval '1 second'
             where id = $1`,
            [jobs[index], seconds],
          );
        }
        const store = createStore({ pool: poolOf(client), signals: s.signals });
        return (await store.load()).finishedPerSecond;
      } finally {
        await client.query('rollback');
        client.release();
      }
    };
    assert.equal(await agoSeconds([1, 8, 30]), 2 / 10);
    assert.equal(await agoSeconds([11, 12, 59]), 3 / 60);
    assert.equal(await agoSeconds([11, 12, 61]), 2 / 60);
  });

  it('tells nothing of what was finished more than a minute ago', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    await s.pool.query(`update jobs set finished_at = now() - interval '61 seconds' where attachment_id = $1`, [id]);
    assert.equal((await s.store.load()).finishedPerSecond, 0);
  });
});
