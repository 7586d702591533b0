/** Step 2: due bells are taken once, marked only while they are the relay's, and counted against the window. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Attempt } from '../../src/pipeline/job.ts';
import { fail, release, settle, startStore } from '../support/store.ts';

const takenMs = 10_000;
const all = { limit: 100, window: 100, takenMs };
const marking = { baseMs: 30_000, capMs: 1_800_000, jitter: 1 };

type Fixture = Awaited<ReturnType<typeof startStore>>;
const take = async (s: Fixture, change: Partial<typeof all> = {}) => s.store.takeDue({ ...all, ...change });
const takenJobs = async (s: Fixture, change: Partial<typeof all> = {}) =>
  (await take(s, change)).map((ring) => ring.jobId);
const near = (actual: number | null, expected: number) =>
  assert.ok(actual !== null && Math.abs(actual - expected) < 5, `expected about ${expected} s, received ${actual}`);

describe('takeDue', () => {
  it('takes a new job once: ring 1, the bell ten seconds later, its trace along', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept({ traceparent: 'tp' });
    assert.deepEqual(await take(s), [{ jobId, ring: 1, traceparent: 'tp', again: false }]);
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.rings, row.confirmed, row.state], [1, 0, 'queued']);
    assert.ok(row.rung_at instanceof Date);
    near(await s.secondsTo(jobId, 'ring_at'), 10);
    assert.deepEqual(await take(s), []);
  });

  it('takes it again with the next number when nothing was marked in time', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await take(s);
    await s.dueBell(jobId);
    assert.deepEqual(await take(s), [{ jobId, ring: 2, traceparent: null, again: false }]);
  });

  it('takes no finished job and none whose time has not come', async (t) => {
    const s = await startStore(t);
    await s.ready();
    const waiting = await s.accept();
    const { attempt } = await s.claimed(waiting.jobId);
    assert.equal(await fail(s.store, attempt), 'retried');
    const running = await s.accept();
    await s.claimed(running.jobId);
    assert.deepEqual(await take(s), []);
  });

  it('takes a retry when its time has come, and the bell of a lease that ended', async (t) => {
    const s = await startStore(t);
    const waiting = await s.accept();
    await fail(s.store, (await s.claimed(waiting.jobId)).attempt);
    await s.endWait(waiting.jobId);
    const running = await s.accept();
    await s.claimed(running.jobId);
    await s.endLease(running.jobId);
    assert.deepEqual((await takenJobs(s)).sort(), [waiting.jobId, running.jobId].sort());
  });

  it('gives uploads before reprocessing, the oldest first', async (t) => {
    const s = await startStore(t);
    const published = await s.ready();
    const again = await s.addJob(published.id, 2);
    const first = await s.accept();
    const second = await s.accept();
    assert.deepEqual(await takenJobs(s, { limit: 2 }), [first.jobId, second.jobId]);
    assert.deepEqual(await takenJobs(s), [again]);
  });

  it('gives new places only as far as the window has them', async (t) => {
    const s = await startStore(t);
    const jobs = [];
    for (let count = 0; count < 5; count += 1) jobs.push((await s.accept()).jobId);
    assert.deepEqual(await takenJobs(s, { window: 3 }), jobs.slice(0, 3));
    assert.equal(await s.store.countAnnounced(), 3);
    assert.deepEqual(await takenJobs(s, { window: 3 }), []);
    await s.claimed(jobs[0] ?? '');
    assert.deepEqual(await takenJobs(s, { window: 3 }), [jobs[3]]);
  });

  it('rings repeated bells and ended leases again without a new place', async (t) => {
    const s = await startStore(t);
    const announced = await s.accept();
    await take(s);
    const running = await s.accept();
    await s.claimed(running.jobId);
    await s.endLease(running.jobId);
    await s.dueBell(announced.jobId);
    await s.accept();
    assert.deepEqual((await takenJobs(s, { window: 1 })).sort(), [announced.jobId, running.jobId].sort());
    assert.deepEqual(await takenJobs(s, { window: 0 }), []);
  });

  it('does not hand the places of overdue repeated rings out twice', async (t) => {
    const s = await startStore(t);
    const announced = [await s.accept(), await s.accept()];
    await take(s, { window: 2 });
    await s.accept();
    for (const { jobId } of announced) await s.dueBell(jobId);
    assert.deepEqual(
      await takenJobs(s, { window: 2, limit: 10 }),
      announced.map(({ jobId }) => jobId),
    );
    assert.equal(await s.store.countAnnounced(), 2);
  });

  it('keeps to its limit over both kinds together', async (t) => {
    const s = await startStore(t);
    const announced = await s.accept();
    await take(s);
    await s.dueBell(announced.jobId);
    const fresh = await s.accept();
    await s.accept();
    assert.deepEqual(await takenJobs(s, { limit: 2 }), [announced.jobId, fresh.jobId]);
  });

  it('by many relays at once takes every bell exactly once', async (t) => {
    const s = await startStore(t);
    const jobs = await Promise.all(Array.from({ length: 40 }, async () => (await s.accept()).jobId));
    const taken: string[] = [];
    while (taken.length < 40) {
      const rounds = await Promise.all(Array.from({ length: 4 }, () => takenJobs(s, { limit: 5 })));
      assert.ok(
        rounds.some((round) => round.length > 0),
        'a round takes something while something is due',
      );
      taken.push(...rounds.flat());
    }
    assert.deepEqual(taken.sort(), jobs.sort());
  });

  it('passes over a row that somebody has locked', async (t) => {
    const s = await startStore(t);
    const held = await s.accept();
    const free = await s.accept();
    const client = await s.pool.connect();
    try {
      await client.query('begin');
      await client.query('select from jobs where id = $1 for no key update', [held.jobId]);
      assert.deepEqual(await takenJobs(s), [free.jobId]);
    } finally {
      await client.query('rollback');
      client.release();
    }
    assert.deepEqual(await takenJobs(s), [held.jobId]);
  });
});

describe('markRung', () => {
  it('doubles the wait with each confirmed ring since the claim, up to the cap, times the jitter', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    for (const [jitter, seconds] of [
      [1, 30],
      [1, 60],
      [0.5, 60],
      [1, 240],
      [1, 300],
    ] as const) {
      const [ring] = await take(s);
      assert.ok(ring);
      assert.equal(await s.store.markRung(ring, { baseMs: 30_000, capMs: 300_000, jitter }), true);
      near(await s.secondsTo(jobId, 'ring_at'), seconds);
      await s.dueBell(jobId);
    }
    assert.equal((await s.jobRow(jobId)).confirmed, 5);
    assert.ok((await s.jobRow(jobId)).rung_at, 'a marked bell keeps its place');
    const { attempt } = await s.claimed(jobId);
    assert.equal((await s.jobRow(jobId)).confirmed, 0);
    await release(s.store, attempt);
    const [ring] = await take(s);
    assert.ok(ring);
    await s.store.markRung(ring, marking);
    near(await s.secondsTo(jobId, 'ring_at'), 30);
  });

  it('stays finite after a thousand rings', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await s.pool.query('update jobs set confirmed = 100000 where id = $1', [jobId]);
    const [ring] = await take(s);
    assert.ok(ring);
    await s.store.markRung(ring, marking);
    near(await s.secondsTo(jobId, 'ring_at'), 1_800);
  });

  it('changes nothing after another relay took the bell again', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const [first] = await take(s);
    await s.dueBell(jobId);
    await take(s);
    const before = await s.everything();
    assert.ok(first);
    assert.equal(await s.store.markRung(first, marking), false);
    assert.equal(await s.everything(), before);
  });

  it('leaves a bell that was hastened since to ring at once', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const [ring] = await take(s);
    assert.ok(ring);
    assert.equal(await s.store.ringAgain(1), 1);
    const before = await s.everything();
    assert.equal(await s.store.markRung(ring, marking), false);
    assert.equal(await s.everything(), before);
    assert.deepEqual(await takenJobs(s, { window: 0 }), [jobId]);
  });

  it('waits for nobody: a bell whose row somebody writes is left to them, and rings once more at worst', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const [ring] = await take(s);
    assert.ok(ring);
    const client = await s.pool.connect();
    try {
      await client.query('begin');
      await client.query('update jobs set ring_at = clock_timestamp() where id = $1', [jobId]);
      assert.equal(await s.store.markRung(ring, marking), false);
      await client.query('commit');
    } finally {
      client.release();
    }
    assert.deepEqual(await takenJobs(s, { window: 0 }), [jobId]);
  });

  const others: [title: string, write: (s: Fixture, jobId: string) => Promise<unknown>][] = [
    ['a claim', (s, jobId) => s.claimed(jobId)],
    ['a renewal', async (s, jobId) => s.store.renew((await s.claimed(jobId)).attempt, { leaseMs: 9_000, marginMs: 1 })],
    ['a retry', async (s, jobId) => fail(s.store, (await s.claimed(jobId)).attempt)],
    ['a release', async (s, jobId) => release(s.store, (await s.claimed(jobId)).attempt, 7_000)],
    ['an end', async (s, jobId) => fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image')],
    ['a worker without the recipe', (s, jobId) => s.claim(jobId, { versions: [] })],
    [
      'a deletion',
      async (s, jobId) =>
        s.store.deleteAttachment(s.owner, String((await s.jobRow(jobId)).attachment_id), { graceMs: 1 }),
    ],
  ];
  for (const [title, write] of others) {
    it(`comes too late after ${title}: the bell stays as that set it`, async (t) => {
      const s = await startStore(t);
      const { jobId } = await s.accept();
      const [ring] = await take(s);
      assert.ok(ring);
      await write(s, jobId);
      const before = await s.everything();
      assert.equal((await s.jobRow(jobId)).rung_at, null);
      assert.equal(await s.store.markRung(ring, marking), false);
      assert.equal(await s.everything(), before);
    });
  }

  const holders: [title: string, write: (s: Fixture, attempt: Attempt) => Promise<unknown>][] = [
    ['a renewal', (s, attempt) => s.store.renew(attempt, { leaseMs: 9_000, marginMs: 1 })],
    ['a retry', (s, attempt) => fail(s.store, attempt)],
    ['a release', (s, attempt) => release(s.store, attempt, 7_000)],
    ['a settle', (s, attempt) => settle(s.store, attempt)],
    ['the next claim', (s, attempt) => s.claimed(attempt.jobId)],
    ['a deletion', (s, attempt) => s.store.deleteAttachment(s.owner, attempt.attachmentId, { graceMs: 1 })],
  ];
  for (const [title, write] of holders) {
    it(`of a lease bell comes too late after ${title}`, async (t) => {
      const s = await startStore(t);
      const { attempt } = await s.claimed((await s.accept()).jobId);
      await s.endLease(attempt.jobId);
      const [ring] = await take(s);
      assert.ok(ring);
      await write(s, attempt);
      assert.equal((await s.jobRow(attempt.jobId)).rung_at, null);
      const before = await s.everything();
      assert.equal(await s.store.markRung(ring, marking), false);
      assert.equal(await s.everything(), before);
    });
  }

  it('of a lease bell moves the next ring of the processing job only', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await s.claimed(jobId);
    await s.endLease(jobId);
    const [ring] = await take(s);
    assert.ok(ring);
    assert.equal(await s.store.markRung(ring, marking), true);
    near(await s.secondsTo(jobId, 'ring_at'), 30);
    near(await s.secondsTo(jobId, 'lease_until'), -1);
  });
});

describe('ringAgain', () => {
  it('makes announced jobs due, oldest announcement first, and they keep their place', async (t) => {
    const s = await startStore(t);
    const jobs = [];
    for (let count = 0; count < 3; count += 1) {
      jobs.push((await s.accept()).jobId);
      await take(s);
    }
    assert.equal(await s.store.ringAgain(2), 2);
    assert.equal(await s.store.countAnnounced(), 3);
    assert.deepEqual(await takenJobs(s, { window: 0 }), jobs.slice(0, 2));
  });

  it('makes jobs of dead attempts due as well: the broker may have lost the message that tells of their end', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await s.claimed(jobId);
    await s.endLease(jobId);
    const [ring] = await take(s);
    assert.ok(ring);
    assert.equal(await s.store.markRung(ring, marking), true);
    assert.equal(await s.store.countAnnounced(), 1);
    assert.equal(await s.store.ringAgain(1), 1);
    assert.deepEqual(await takenJobs(s, { window: 0 }), [jobId]);
  });

  it('leaves the running, the waiting and the finished alone', async (t) => {
    const s = await startStore(t);
    await s.ready();
    await s.claimed((await s.accept()).jobId);
    await fail(s.store, (await s.claimed((await s.accept()).jobId)).attempt);
    await s.accept();
    const before = await s.everything();
    assert.equal(await s.store.ringAgain(100), 0);
    assert.equal(await s.everything(), before);
  });
});

describe('untilDueMs', () => {
  it('is the cap when nothing is unfinished, 0 when a bell is due, else the time to the next', async (t) => {
    const s = await startStore(t);
    assert.equal(await s.store.untilDueMs(777), 777);
    const { jobId } = await s.accept();
    assert.equal(await s.store.untilDueMs(60_000), 0);
    await take(s);
    const untilMs = await s.store.untilDueMs(60_000);
    assert.ok(untilMs > 5_000 && untilMs <= 10_000, String(untilMs));
    assert.equal(await s.store.untilDueMs(1_000), 1_000);
    await s.claimed(jobId);
    const leaseBellMs = await s.store.untilDueMs(60_000);
    assert.ok(leaseBellMs > 40_000 && leaseBellMs <= 47_000, String(leaseBellMs));
  });

  it('sees the bells of reprocessing', async (t) => {
    const s = await startStore(t);
    await s.addJob((await s.ready()).id, 2);
    assert.equal(await s.store.untilDueMs(60_000), 0);
  });
});

describe('recentPace', () => {
  it('is 0 without claims, and the mean between ring and claim of those that answered a ring', async (t) => {
    const s = await startStore(t);
    assert.equal((await s.store.recentPace()).waitMs, 0);
    for (const seconds of [2, 4]) {
      const { jobId } = await s.accept();
      await take(s);
      await s.pool.query(`update jobs set rung_at = now() - $2 * interval '1 second' where id = $1`, [jobId, seconds]);
      await s.claimed(jobId);
    }
    await s.claimed((await s.accept()).jobId);
    const waitMs = (await s.store.recentPace()).waitMs;
    const rung = await s.pool.query<{ waited_ms: number }>('select waited_ms from jobs where waited_ms is not null');
    assert.equal(rung.rowCount, 2);
    assert.equal(waitMs, rung.rows.reduce((sum, row) => sum + row.waited_ms, 0) / 2);
    assert.ok(waitMs >= 3_000, String(waitMs));
    await s.pool.query(`update jobs set claimed_at = now() - interval '6 minutes'`);
    assert.equal((await s.store.recentPace()).waitMs, 0);
  });
});
