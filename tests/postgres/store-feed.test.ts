/** The feed of a wish: jobs of reprocessing made little by little, never more than its window together. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { end, feedAll, jobsOf, to2, wide, wish } from '../support/reprocess.ts';
import { byOperator, startStore } from '../support/store.ts';

describe('the feed of a wish', () => {
  it('stops at the window, and goes on when jobs finish', async (t) => {
    const s = await startStore(t);
    for (let count = 0; count < 5; count += 1) await s.ready();
    await s.store.askReprocessing(wish);
    const narrow = { window: 2, limit: 10 };
    assert.equal(await s.store.feedReprocessing(narrow), 2);
    assert.equal(await s.store.feedReprocessing(narrow), 0);
    assert.equal((await s.store.reprocessing(2))?.doneAt, null);
    const [one] = await jobsOf(s, 2);
    await end(s, one?.id ?? '', 'failed');
    assert.equal(await s.store.feedReprocessing(narrow), 1);
    assert.equal(await s.store.feedReprocessing({ window: 1, limit: 10 }), 0);
  });

  it('counts jobs of other versions and those that were asked for by name, and never uploads', async (t) => {
    const s = await startStore(t);
    const named = await s.ready();
    for (let count = 0; count < 3; count += 1) await s.ready();
    for (let count = 0; count < 3; count += 1) await s.accept();
    await s.store.reprocess(named.id, { version: 3, who: 'operator' });
    await s.store.askReprocessing(wish);
    assert.equal(await s.store.feedReprocessing({ window: 3, limit: 10 }), 2);
  });

  it('by six at once never passes the window, and makes no job twice', async (t) => {
    const s = await startStore(t, { poolMax: 14 });
    const ready = await Promise.all(Array.from({ length: 20 }, () => s.ready()));
    await s.store.askReprocessing(wish);
    const narrow = { window: 7, limit: 5 };
    const feeders = () => Promise.all(Array.from({ length: 6 }, () => s.store.feedReprocessing(narrow)));
    assert.equal(
      (await feeders()).reduce((sum, made) => sum + made, 0),
      7,
    );
    for (let round = 0; round < 10 && (await s.store.reprocessing(2))?.doneAt === null; round += 1) {
      for (const job of await jobsOf(s, 2)) if (job.state === 'queued') await end(s, job.id, 'ready');
      await feeders();
      assert.ok(((await s.store.reprocessing(2))?.unfinished ?? 99) <= 7);
    }
    const jobs = await jobsOf(s, 2);
    assert.deepEqual(
      jobs.map((job) => job.attachment_id),
      ready.map(({ id }) => id).sort(),
    );
    assert.ok(jobs.every((job) => job.generation === 1));
  });

  it('passes over what is deleted while it waits for the lock, and its cursor goes on', async (t) => {
    const s = await startStore(t);
    const [deleted, other] = [await s.ready(), await s.ready()];
    await s.store.askReprocessing(wish);
    const client = await s.pool.connect();
    try {
      await client.query('begin');
      await client.query('update attachments set deleted_at = now() where id = $1', [deleted.id]);
      const fed = s.store.feedReprocessing(wide);
      await s.untilLocked();
      await client.query('commit');
      assert.equal(await fed, 1);
    } finally {
      client.release();
    }
    assert.deepEqual(
      (await jobsOf(s, 2)).map((job) => job.attachment_id),
      [other.id],
    );
    assert.equal(await feedAll(s), 0);
  });

  it('leaves alone what was replayed while it waits for the lock', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const jobId = await s.addJob(id, 2);
    await end(s, jobId, 'failed');
    await s.store.askReprocessing({ ...wish, retryFailed: true });
    const client = await s.pool.connect();
    try {
      await client.query('begin');
      await client.query('select from attachments where id = $1 for no key update', [id]);
      const fed = s.store.feedReprocessing(wide);
      await s.untilLocked();
      await client.query(
        `update jobs set state = 'queued', generation = 2, ring_at = now(), finished_at = null where id = $1`,
        [jobId],
      );
      await client.query('commit');
      assert.equal(await fed, 0);
    } finally {
      client.release();
    }
    assert.equal((await s.jobRow(jobId)).generation, 2);
  });

  it('meets those who ask by name, replay and settle at once, and each attachment gets one job', async (t) => {
    const s = await startStore(t, { poolMax: 14 });
    const ready = await Promise.all(Array.from({ length: 10 }, () => s.ready()));
    const failing = ready.slice(0, 3);
    for (const { id } of failing) await end(s, await s.addJob(id, 2), 'failed');
    const failedJobs = (await jobsOf(s, 2)).map((job) => job.id);
    await s.store.askReprocessing({ ...wish, retryFailed: true });
    await Promise.all([
      ...ready.map(({ id }) => s.store.reprocess(id, to2)),
      s.store.feedReprocessing(wide),
      ...failedJobs.map((jobId) => s.store.replay(jobId, byOperator)),
      s.store.feedReprocessing(wide),
    ]);
    const jobs = await jobsOf(s, 2);
    assert.equal(jobs.length, 10);
    for (const { id, generation } of jobs) assert.equal(generation, failedJobs.includes(id) ? 2 : 1);
  });
});
