/** Step 3: a claim begins one attempt or says precisely why not; a lease is renewed by its holder only; an attempt is read back. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { attemptPrefix } from '../../src/pipeline/attachment.ts';
import type { Attempt } from '../../src/pipeline/job.ts';
import { budgets, fail, release, resultOf, settle, startStore } from '../support/store.ts';
import { until } from '../support/until.ts';

const taking = { limit: 10, window: 10, takenMs: 10_000 };
const near = (actual: number | null, expected: number) =>
  assert.ok(actual !== null && Math.abs(actual - expected) < 5, `expected about ${expected} s, received ${actual}`);
const prefixOf = (attempt: Attempt) =>
  attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);

describe('claim', () => {
  it('of a queued job begins attempt 1 under fence 1, and the attachment is processing', async (t) => {
    const s = await startStore(t);
    const { id, jobId, upload } = await s.accept({ traceparent: 'tp' });
    s.told.length = 0;
    const attemptId = randomUUID();
    assert.deepEqual(await s.claimed(jobId, { attemptId, worker: 'w7' }), {
      attempt: { jobId, attachmentId: id, version: 1, fence: 1, attemptId },
      kind: 'image',
      contentType: 'image/jpeg',
      size: 4_321,
      sha256: upload.sha256,
      stagingKey: `staging/${id}`,
      originalKey: null,
      failures: 0,
      crashes: 0,
      traceparent: 'tp',
    });
    const row = await s.jobRow(jobId);
    assert.deepEqual(
      [row.state, row.fence, row.attempts, row.crashes, row.attempt_id, row.worker, row.rung_at],
      ['processing', 1, 1, 0, attemptId, 'w7', null],
    );
    near(await s.secondsTo(jobId, 'lease_until'), 45);
    near(await s.secondsTo(jobId, 'ring_at'), 47);
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.state, attachment?.attempts], ['processing', 1]);
    assert.deepEqual(s.told, [`changed ${id}`]);
    assert.deepEqual(await s.cleanups(), []);
  });

  it('remembers how long the ring waited, and nothing where none was rung', async (t) => {
    const s = await startStore(t);
    const rung = await s.accept();
    await s.store.takeDue(taking);
    await s.pool.query(`update jobs set rung_at = now() - interval '3 seconds'`);
    const { rung_at: rungAt } = await s.jobRow(rung.jobId);
    await s.claimed(rung.jobId);
    const { waited_ms: waitedMs, claimed_at: claimedAt } = await s.jobRow(rung.jobId);
    const ms = Number(claimedAt) - Number(rungAt);
    assert.ok(ms >= 3_000 && Math.abs(Number(waitedMs) - ms) <= 1, `${waitedMs} of ${ms} ms`);
    const unrung = await s.accept();
    await s.claimed(unrung.jobId);
    assert.equal((await s.jobRow(unrung.jobId)).waited_ms, null);
  });

  it('is refused as leased while the lease runs, and writes nothing', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await s.claimed(jobId);
    // The bell may ring early: it decides nothing.
    await s.dueBell(jobId);
    const before = await s.everything();
    assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'leased' });
    assert.equal(await s.everything(), before);
  });

  it('is refused as not_yet before a retry is due, whatever the bell says, and given after', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await fail(s.store, (await s.claimed(jobId)).attempt);
    await s.dueBell(jobId);
    const before = await s.everything();
    assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'not_yet' });
    assert.equal(await s.everything(), before);
    await s.endWait(jobId);
    const { attempt, failures } = await s.claimed(jobId);
    assert.deepEqual([attempt.fence, failures], [2, 1]);
  });

  it('is refused as finished for a job that succeeded, failed, was cancelled, or never was', async (t) => {
    const s = await startStore(t);
    const done = await s.ready();
    const failed = await s.accept();
    await fail(s.store, (await s.claimed(failed.jobId)).attempt, 'corrupt_image');
    const deleted = await s.accept();
    await s.store.deleteAttachment(s.owner, deleted.id, { graceMs: 1 });
    const before = await s.everything();
    for (const jobId of [done.jobId, failed.jobId, deleted.jobId, newId()]) {
      assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'finished' });
    }
    assert.equal(await s.everything(), before);
  });

  it('of one job by many at once is given to one', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const results = await Promise.all(Array.from({ length: 8 }, () => s.claim(jobId)));
    assert.equal(results.filter((result) => result.kind === 'claimed').length, 1);
    assert.equal(results.filter((result) => result.kind === 'refused' && result.reason === 'leased').length, 7);
    assert.equal((await s.jobRow(jobId)).attempts, 1);
  });

  it('after a lease that ended counts a crash, fences the dead attempt off and cleans its folder later, twice', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    const { attempt: dead } = await s.claimed(jobId);
    await s.endLease(jobId);
    s.told.length = 0;
    const claim = await s.claimed(jobId, { worker: 'w2' });
    assert.deepEqual([claim.attempt.fence, claim.crashes], [2, 1]);
    assert.notEqual(claim.attempt.attemptId, dead.attemptId);
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.state, row.attempts, row.crashes, row.failures], ['processing', 2, 1, 0]);
    assert.deepEqual(await s.cleanups(), [{ key: prefixOf(dead), passes: 1, reason: 'crashed', seconds: 60 }]);
    assert.equal((await s.store.attachmentFor(s.owner, id))?.state, 'processing');
    assert.deepEqual(s.told, [], 'nothing that a reader sees has changed');
  });

  it('that finds the crash budget spent fails job and attachment with worker_lost, and begins nothing', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    const dead: Attempt[] = [];
    for (let crash = 0; crash < budgets.crashesMax; crash += 1) {
      dead.push((await s.claimed(jobId)).attempt);
      await s.endLease(jobId);
    }
    s.told.length = 0;
    assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'exhausted' });
    const row = await s.jobRow(jobId);
    assert.deepEqual(
      [row.state, row.fence, row.attempts, row.crashes, row.error_code, row.ring_at, row.lease_until],
      ['failed', 3, 3, 3, 'worker_lost', null, null],
    );
    assert.ok(row.finished_at);
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.state, attachment?.errorCode], ['failed', 'worker_lost']);
    assert.equal((await s.attachmentRow(id)).staging_gone_at, null, 'staging is kept for a replay');
    assert.deepEqual(
      (await s.cleanups()).map(({ key }) => key),
      dead.map(prefixOf),
    );
    assert.deepEqual(s.told, [`changed ${id}`]);
    assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'finished' });
  });

  it('of a newer version leaves a ready attachment ready, through claim, crash and the end of the budget', async (t) => {
    const s = await startStore(t);
    const { id, result } = await s.ready();
    const jobId = await s.addJob(id, 2);
    s.told.length = 0;
    const claim = await s.claimed(jobId);
    assert.equal(claim.originalKey, result.originalKey);
    for (let crash = 1; crash < budgets.crashesMax; crash += 1) {
      await s.endLease(jobId);
      await s.claimed(jobId);
    }
    await s.endLease(jobId);
    assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'exhausted' });
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.state, attachment?.errorCode, attachment?.pipelineVersion], ['ready', null, 1]);
    assert.equal((await s.jobRow(jobId)).state, 'failed');
    assert.deepEqual(s.told, []);
  });

  it('without the recipe spends nothing, gives the place in the window back and rings later', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept({ version: 3 });
    await s.store.takeDue(taking);
    const events = (await s.store.job(jobId))?.events.length;
    assert.deepEqual(await s.claim(jobId, { versions: [1, 2] }), { kind: 'refused', reason: 'unsupported' });
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.state, row.fence, row.attempts, row.rung_at], ['queued', 0, 0, null]);
    near(await s.secondsTo(jobId, 'ring_at'), 90);
    assert.equal((await s.store.job(jobId))?.events.length, events);
    await s.claimed(jobId, { versions: [1, 2, 3] });
  });

  it('without the recipe leaves a dead attempt to a build that has it', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept({ version: 3 });
    await s.claimed(jobId);
    await s.endLease(jobId);
    assert.deepEqual(await s.claim(jobId, { versions: [1] }), { kind: 'refused', reason: 'unsupported' });
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.state, row.crashes], ['processing', 0]);
    assert.deepEqual(await s.cleanups(), []);
  });

  it('locks the attachment before the job, so that a deletion behind it waits instead of deadlocking', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    const waiting = (count: number) =>
      until(`${count} wait for locks`, async () => {
        const { rows } = await s.pool.query(
          `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        );
        return rows.length === count;
      });
    const blocker = await s.pool.connect();
    await blocker.query('begin');
    await blocker.query('select from jobs where id = $1 for no key update', [jobId]);
    const claim = s.claim(jobId);
    await waiting(1);
    const deleted = s.store.deleteAttachment(s.owner, id, { graceMs: 1 });
    await waiting(2);
    await blocker.query('rollback');
    blocker.release();
    assert.equal((await claim).kind, 'claimed');
    assert.equal(await deleted, true);
    assert.equal((await s.jobRow(jobId)).state, 'cancelled');
  });

  it('and a deletion at once leave the job cancelled, whoever is first', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    const deletion = s.store.deleteAttachment(s.owner, id, { graceMs: 1 });
    const [deleted, claim] = await Promise.all([deletion, s.claim(jobId)]);
    assert.equal(deleted, true);
    assert.equal((await s.jobRow(jobId)).state, 'cancelled');
    assert.ok(claim.kind === 'claimed' || claim.reason === 'finished');
  });
});

describe('renew', () => {
  const longer = { leaseMs: 200_000, marginMs: 3_000 };

  it('prolongs lease and bell of its holder', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    assert.equal(await s.store.renew(attempt, longer), true);
    near(await s.secondsTo(jobId, 'lease_until'), 200);
    near(await s.secondsTo(jobId, 'ring_at'), 203);
  });

  it('takes a bell back that the relay took meanwhile', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    await s.endLease(jobId);
    await s.store.takeDue(taking);
    assert.equal(await s.store.renew(attempt, longer), true);
    assert.equal((await s.jobRow(jobId)).rung_at, null);
    assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'leased' });
  });

  const zombies: [title: string, change: (attempt: Attempt) => Attempt][] = [
    ['an older fence', (attempt) => ({ ...attempt, fence: attempt.fence - 1 })],
    ['another attempt id under the same fence', (attempt) => ({ ...attempt, attemptId: randomUUID() })],
  ];
  for (const [title, change] of zombies) {
    it(`with ${title} changes no row`, async (t) => {
      const s = await startStore(t);
      const { jobId } = await s.accept();
      await s.claimed(jobId);
      await s.endLease(jobId);
      const { attempt } = await s.claimed(jobId);
      const before = await s.everything();
      assert.equal(await s.store.renew(change(attempt), longer), false);
      assert.equal(await s.everything(), before);
    });
  }

  it('of an attempt that ended changes no row', async (t) => {
    const s = await startStore(t);
    const { attempt: settled } = await s.ready();
    const released = (await s.claimed((await s.accept()).jobId)).attempt;
    await release(s.store, released, 5_000);
    const deleted = (await s.claimed((await s.accept()).jobId)).attempt;
    await s.store.deleteAttachment(s.owner, deleted.attachmentId, { graceMs: 1 });
    const before = await s.everything();
    for (const attempt of [settled, released, deleted]) assert.equal(await s.store.renew(attempt, longer), false);
    assert.equal(await s.everything(), before);
  });
});

describe('readAttempt', () => {
  it('tells a running attempt with its claim, so that a lost answer to a claim loses nothing', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const claim = await s.claimed(jobId);
    assert.deepEqual(await s.store.readAttempt(jobId, claim.attempt.attemptId), { kind: 'running', claim });
  });

  it('tells how the attempt ended', async (t) => {
    const s = await startStore(t);
    const trace = (attempt: Attempt) => s.store.readAttempt(attempt.jobId, attempt.attemptId);
    const begun = async () => (await s.claimed((await s.accept()).jobId)).attempt;
    const settled = await begun();
    await settle(s.store, settled);
    assert.deepEqual(await trace(settled), { kind: 'ended', jobState: 'succeeded' });
    const failed = await begun();
    await fail(s.store, failed, 'corrupt_image');
    assert.deepEqual(await trace(failed), { kind: 'ended', jobState: 'failed' });
    const retried = await begun();
    await fail(s.store, retried);
    assert.deepEqual(await trace(retried), { kind: 'ended', jobState: 'queued' });
    const deleted = await begun();
    await s.store.deleteAttachment(s.owner, deleted.attachmentId, { graceMs: 1 });
    assert.deepEqual(await trace(deleted), { kind: 'ended', jobState: 'cancelled' });
  });

  it('tells lost for an attempt that another came after, or that never was', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    assert.deepEqual(await s.store.readAttempt(jobId, randomUUID()), { kind: 'lost' });
    const { attempt } = await s.claimed(jobId);
    await s.endLease(jobId);
    await s.claimed(jobId);
    assert.deepEqual(await s.store.readAttempt(jobId, attempt.attemptId), { kind: 'lost' });
    assert.deepEqual(await s.store.readAttempt(newId(), attempt.attemptId), { kind: 'lost' });
  });

  it('after a repeated settle tells succeeded', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    assert.equal(await settle(s.store, attempt, resultOf(attempt)), 'ready');
    assert.equal(await settle(s.store, attempt, resultOf(attempt)), 'lost');
    assert.deepEqual(await s.store.readAttempt(jobId, attempt.attemptId), { kind: 'ended', jobState: 'succeeded' });
  });
});
