/** Retention: what is kept for a time only goes after it, never under somebody who still needs it. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { replayHistory } from '../../src/postgres/history.ts';
import type { Db } from '../../src/postgres/pool.ts';
import { byOperator, fail, settle, startStore } from '../support/store.ts';
import { until } from '../support/until.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

const day = 86_400_000;
const keeping = { failedMs: 7 * day, historyMs: 90 * day, limit: 100 };
const nothing = { staging: 0, histories: 0 };

/** A failed upload, as if it had failed that long ago. */
async function failed(s: Fixture, ago: string) {
  const accepted = await s.accept();
  await fail(s.store, (await s.claimed(accepted.jobId)).attempt, 'corrupt_image');
  await age(s, accepted.jobId, ago);
  return accepted;
}

/** Makes a job, its attachment and its end that much older. */
async function age(s: Fixture, jobId: string, ago: string) {
  await s.pool.query(
    `with job as (
       update jobs set finished_at = finished_at - $2::interval, created_at = created_at - $2::interval
       where id = $1
       returning attachment_id
     )
     update attachments set created_at = created_at - $2::interval
     from job
     where attachments.id = job.attachment_id`,
    [jobId, ago],
  );
}

const events = async (s: Fixture, jobId: string) => (await s.store.job(jobId))?.events.map((event) => event.reason);
const isGone = async (s: Fixture, id: string) => (await s.attachmentRow(id)).staging_gone_at !== null;

/** Holds a row of a table as another transaction does while `work` runs, which gets the word to let it go. */
async function locked(
  s: Fixture,
  table: 'jobs' | 'attachments',
  id: string,
  work: (end: () => Promise<void>, client: Db) => Promise<void>,
) {
  const client = await s.pool.connect();
  try {
    await client.query('begin');
    await client.query(`select from ${table} where id = $1 for no key update`, [id]);
    await work(async () => void (await client.query('commit')), client);
  } finally {
    client.release(true);
  }
}

describe('the staging of a failed upload', () => {
  it('is given up after its time, together with the clean-up of its object, and no replay begins any more', async (t) => {
    const s = await startStore(t);
    const { id, jobId, upload } = await failed(s, '7 days 1 minute');
    const before = (await s.cleanups()).length;
    assert.deepEqual(await s.store.retire(keeping), { staging: 1, histories: 0 });
    assert.ok(await isGone(s, id));
    assert.deepEqual((await s.cleanups()).slice(before), [
      { key: upload.stagingKey, passes: 0, reason: 'retired', seconds: 0 },
    ]);
    assert.deepEqual(await s.store.namedAmong([upload.stagingKey]), new Set(), 'the janitor may delete it');
    assert.equal(await s.store.replay(jobId, byOperator), 'staging_gone');
    assert.equal((await s.store.attachmentFor(s.owner, id))?.errorCode, 'corrupt_image', 'its owner still sees why');
    assert.equal((await s.store.load()).stagingBytes, 0);
    assert.deepEqual(await s.store.retire(keeping), nothing);
  });

  it('is kept before that, and for whatever is not failed or was published', async (t) => {
    const s = await startStore(t);
    const young = await failed(s, '6 days 23 hours');
    const long = '30 days';
    const waiting = await s.accept();
    const running = await s.accept();
    await s.claimed(running.jobId);
    for (const { jobId } of [waiting, running]) await age(s, jobId, long);
    const published = await s.ready();
    const newer = await s.addJob(published.id, 2);
    await fail(s.store, (await s.claimed(newer)).attempt, 'corrupt_image');
    await age(s, newer, long);
    const deleted = await failed(s, long);
    await s.store.deleteAttachment(s.owner, deleted.id, { graceMs: 1 });
    const before = await s.everything();
    assert.deepEqual(await s.store.retire(keeping), nothing);
    assert.equal(await s.everything(), before);
    for (const { id } of [young, waiting, running]) assert.equal(await isGone(s, id), false);
  });

  it('counts from the last failure: a replay that failed again has its whole time', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await failed(s, '30 days');
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    assert.deepEqual(await s.store.retire(keeping), nothing);
    await age(s, jobId, '8 days');
    assert.deepEqual(await s.store.retire(keeping), { staging: 1, histories: 0 });
    assert.ok(await isGone(s, id));
  });

  it('goes in batches, longest kept first', async (t) => {
    const s = await startStore(t);
    const uploads = [];
    for (const days of [10, 30, 20, 40, 50]) uploads.push({ days, ...(await failed(s, `${days} days`)) });
    const oldest = uploads.sort((one, other) => other.days - one.days).map(({ id }) => id);
    const goneNow = async () => (await Promise.all(oldest.map((id) => isGone(s, id)))).filter(Boolean).length;
    for (const [took, gone] of [
      [2, 2],
      [2, 4],
      [1, 5],
      [0, 5],
    ]) {
      assert.equal((await s.store.retire({ ...keeping, limit: 2 })).staging, took);
      assert.equal(await goneNow(), gone);
      if (gone === 2) assert.deepEqual(await Promise.all(oldest.slice(0, 2).map((id) => isGone(s, id))), [true, true]);
    }
    assert.equal((await s.cleanups()).filter(({ reason }) => reason === 'retired').length, 5);
  });

  it('is not held up by older uploads that failed again of late, or that still wait', async (t) => {
    const s = await startStore(t);
    const again = await failed(s, '50 days');
    await s.store.replay(again.jobId, byOperator);
    await fail(s.store, (await s.claimed(again.jobId)).attempt, 'corrupt_image');
    const waiting = await s.accept();
    await age(s, waiting.jobId, '40 days');
    const { id } = await failed(s, '30 days');
    assert.equal((await s.store.retire({ ...keeping, limit: 1 })).staging, 1);
    assert.ok(await isGone(s, id));
  });

  it('stays for a replay that is first, also when that has not committed yet', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await failed(s, '30 days');
    await locked(s, 'attachments', id, async (end) => {
      assert.deepEqual(await s.store.retire(keeping), nothing, 'it is passed over, not waited for');
      await end();
    });
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    assert.deepEqual(await s.store.retire(keeping), nothing);
    assert.equal(await isGone(s, id), false);
    await settle(s.store, (await s.claimed(jobId)).attempt);
  });

  it('stays where its job, once its lock is had, turns out to have failed just now', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await failed(s, '30 days');
    await locked(s, 'jobs', jobId, async (end, client) => {
      const retiring = s.store.retire(keeping);
      await until('the retirement waits for the job', async () => {
        const { rowCount } = await s.pool.query(
          `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        );
        return rowCount === 1;
      });
      await client.query('update jobs set finished_at = now() where id = $1', [jobId]);
      await end();
      assert.deepEqual(await retiring, nothing);
    });
    assert.equal(await isGone(s, id), false);
    assert.ok((await s.cleanups()).every(({ reason }) => reason !== 'retired'));
  });

  it('goes or is replayed, never both, whoever comes first', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const uploads = [];
    for (let count = 0; count < 30; count += 1) uploads.push(await failed(s, '30 days'));
    const retiring = async () => {
      let staging = 0;
      for (let round = 0; round < 20; round += 1) staging += (await s.store.retire({ ...keeping, limit: 2 })).staging;
      return staging;
    };
    const replaying = Promise.all(
      [...uploads].reverse().map(async ({ id, jobId }) => [id, await s.store.replay(jobId, byOperator)] as const),
    );
    const [retired, alsoRetired, replays] = await Promise.all([retiring(), retiring(), replaying]);
    for (const [id, replay] of replays) {
      assert.equal(replay, (await isGone(s, id)) ? 'staging_gone' : 'replayed');
    }
    assert.equal(replays.filter(([, replay]) => replay === 'staging_gone').length, retired + alsoRetired);
    assert.equal((await s.cleanups()).filter(({ reason }) => reason === 'retired').length, retired + alsoRetired);
  });
});

describe('the history of a finished job', () => {
  it('goes after its time, and the row says so', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.ready();
    await age(s, jobId, '91 days');
    const young = await s.ready();
    assert.deepEqual(await s.store.retire(keeping), { staging: 0, histories: 1 });
    const found = await s.store.job(jobId);
    assert.deepEqual([found?.events, found?.job.state], [[], 'succeeded']);
    assert.ok(found?.job.historyGoneAt instanceof Date);
    assert.deepEqual(await events(s, young.jobId), ['accepted', 'claimed', 'settled']);
    assert.equal((await s.store.job(young.jobId))?.job.historyGoneAt, null);
    assert.deepEqual(await s.store.retire(keeping), nothing);
  });

  it('goes whatever the end was, and never of a job that is unfinished', async (t) => {
    const s = await startStore(t);
    const { jobId: failedJob } = await failed(s, '100 days');
    const cancelled = await s.accept();
    await s.store.deleteAttachment(s.owner, cancelled.id, { graceMs: 1 });
    await age(s, cancelled.jobId, '100 days');
    const waiting = await s.accept();
    const running = await s.accept();
    await s.claimed(running.jobId);
    await s.pool.query(
      `update jobs set created_at = now() - interval '1 year', updated_at = now() - interval '1 year'`,
    );
    assert.equal((await s.store.retire(keeping)).histories, 2);
    for (const jobId of [failedJob, cancelled.jobId]) assert.deepEqual(await events(s, jobId), []);
    assert.deepEqual(await events(s, waiting.jobId), ['accepted']);
    assert.deepEqual(await events(s, running.jobId), ['accepted', 'claimed']);
  });

  it('goes in batches of jobs, longest finished first', async (t) => {
    const s = await startStore(t);
    const jobs = [];
    for (const days of [100, 300, 200]) {
      const { jobId } = await s.ready();
      await age(s, jobId, `${days} days`);
      jobs.push(jobId);
    }
    const [late = '', early = '', middle = ''] = jobs;
    assert.equal((await s.store.retire({ ...keeping, limit: 2 })).histories, 2);
    for (const jobId of [early, middle]) assert.deepEqual(await events(s, jobId), []);
    assert.equal((await events(s, late))?.length, 3);
    assert.equal((await s.store.retire({ ...keeping, limit: 2 })).histories, 1);
    assert.equal((await s.store.retire({ ...keeping, limit: 2 })).histories, 0);
  });

  it('begins again with a replay: what comes after it is explained, and goes in its own time', async (t) => {
    const s = await startStore(t);
    const published = await s.ready();
    const jobId = await s.addJob(published.id, 2);
    await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    await age(s, jobId, '91 days');
    assert.equal((await s.store.retire(keeping)).histories, 1);
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    await fail(s.store, (await s.claimed(jobId)).attempt);
    const found = await s.store.job(jobId);
    assert.ok(found);
    const { state, generation, fence, attempts, failures, crashes, releases } = found.job;
    const told = replayHistory(found.events, { gone: true });
    assert.deepEqual(told, { ...told, state, fence, failures, crashes, releases });
    assert.deepEqual(
      [generation - told.generation, attempts - told.attempts],
      [0, 1],
      'one attempt went with the rest',
    );
    assert.throws(() => replayHistory(found.events), /Expected replayed to follow from null/);
    await s.endWait(jobId);
    await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    assert.equal((await s.store.retire(keeping)).histories, 0, 'its new end is young');
    await age(s, jobId, '91 days');
    await s.pool.query(`update jobs set history_gone_at = history_gone_at - interval '92 days' where id = $1`, [jobId]);
    assert.equal((await s.store.retire(keeping)).histories, 1);
    assert.deepEqual(await events(s, jobId), []);
    assert.equal((await s.store.retire(keeping)).histories, 0);
  });

  it('must begin with a new generation where earlier events are gone', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.ready();
    const all = (await s.store.job(jobId))?.events ?? [];
    assert.throws(() => replayHistory(all.slice(1), { gone: true }), /Expected a new generation first/);
    assert.equal(replayHistory([], { gone: true }).state, null);
  });

  it('is passed over while somebody holds the job, and kept when that was a replay', async (t) => {
    const s = await startStore(t);
    const { jobId } = await failed(s, '100 days');
    const later = { ...keeping, failedMs: 1_000 * day };
    await locked(s, 'jobs', jobId, async (end) => {
      assert.deepEqual(await s.store.retire(later), nothing);
      await end();
    });
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    assert.deepEqual(await s.store.retire(later), nothing);
    assert.deepEqual(await events(s, jobId), ['accepted', 'claimed', 'failed', 'replayed']);
  });
});

describe('addCleanups', () => {
  it('sends keys to the clean-ups, due after their time, and nothing for none', async (t) => {
    const s = await startStore(t);
    await s.store.addCleanups([], { afterMs: 0, passes: 0, reason: 'stray' });
    assert.deepEqual(await s.cleanups(), []);
    await s.store.addCleanups(['a', 'b/'], { afterMs: 60_000, passes: 1, reason: 'stray' });
    assert.deepEqual(
      await s.cleanups(),
      ['a', 'b/'].map((key) => ({ key, passes: 1, reason: 'stray', seconds: 60 })),
    );
    assert.deepEqual(await s.store.dueCleanups(10), []);
    await s.store.addCleanups(['c'], { afterMs: 0, passes: 0, reason: 'stray' });
    assert.deepEqual(
      (await s.store.dueCleanups(10)).map(({ key }) => key),
      ['c'],
    );
  });
});
