/** The history explains every row, also after a storm of all verbs on the same few jobs. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Attempt } from '../../src/pipeline/job.ts';
import { replayHistory } from '../../src/postgres/history.ts';
import { budgets, byOperator, fail, release, resultOf, settle, startStore } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

describe('the history', () => {
  const agrees = async (s: Fixture, jobId: string) => {
    const found = await s.store.job(jobId);
    assert.ok(found);
    const { state, generation, fence, attempts, failures, crashes, releases } = found.job;
    assert.deepEqual(replayHistory(found.events), {
      state,
      generation,
      fence,
      attempts,
      failures,
      crashes,
      releases,
    });
    return found.events.map((event) => event.reason);
  };

  it('of every kind of transition adds up to the row', async (t) => {
    const s = await startStore(t);
    const long = await s.accept();
    await release(s.store, (await s.claimed(long.jobId)).attempt);
    await fail(s.store, (await s.claimed(long.jobId)).attempt);
    await s.endWait(long.jobId);
    await s.claimed(long.jobId);
    await s.endLease(long.jobId);
    await settle(s.store, (await s.claimed(long.jobId)).attempt);
    assert.deepEqual(await agrees(s, long.jobId), [
      'accepted',
      'claimed',
      'released',
      'claimed',
      'retried',
      'claimed',
      'crashed',
      'settled',
    ]);
    const exhausted = await s.accept();
    for (let crash = 0; crash < budgets.crashesMax; crash += 1) {
      await s.claimed(exhausted.jobId);
      await s.endLease(exhausted.jobId);
    }
    await s.claim(exhausted.jobId);
    assert.equal((await agrees(s, exhausted.jobId)).at(-1), 'exhausted');
    const failed = await s.accept();
    await fail(s.store, (await s.claimed(failed.jobId)).attempt, 'corrupt_image');
    assert.equal((await agrees(s, failed.jobId)).at(-1), 'failed');
    for (const running of [false, true]) {
      const deleted = await s.accept();
      if (running) await s.claimed(deleted.jobId);
      await s.store.deleteAttachment(s.owner, deleted.id, { graceMs: 1 });
      assert.equal((await agrees(s, deleted.jobId)).at(-1), 'cancelled');
    }
    const older = await s.claimed(await s.addJob(long.id, 2));
    const newer = await s.claimed(await s.addJob(long.id, 3));
    await settle(s.store, newer.attempt, resultOf(newer.attempt, { withOriginal: false }));
    await settle(s.store, older.attempt, resultOf(older.attempt, { withOriginal: false }));
    assert.equal((await agrees(s, older.attempt.jobId)).at(-1), 'superseded');
  });

  it('of every kind of new generation adds up to the row, with counters from zero and a fence that goes on', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    await release(s.store, (await s.claimed(jobId)).attempt);
    await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    await s.store.replay(jobId, byOperator);
    await agrees(s, jobId);
    await settle(s.store, (await s.claimed(jobId)).attempt);
    const rebuild = async () => {
      const keys = (await s.store.audited(id))?.variants.map((one) => one.key) ?? [];
      assert.equal(await s.store.rebuild(id, { keys, who: 'doctor' }), 'rebuilding');
      await agrees(s, jobId);
      return (await s.claimed(jobId)).attempt;
    };
    await fail(s.store, await rebuild(), 'staging_corrupt');
    const attempt = await rebuild();
    await settle(s.store, attempt, resultOf(attempt, { withOriginal: false }));
    const events = ['accepted', 'claimed', 'released', 'claimed', 'failed', 'replayed', 'claimed', 'settled'];
    const later = ['rebuilding', 'claimed', 'failed', 'rebuilding', 'claimed', 'settled'];
    assert.deepEqual(await agrees(s, jobId), [...events, ...later]);
    assert.equal(await s.store.reprocess(id, { version: 2, who: 'operator' }), 'made');
    const { rows } = await s.pool.query<{ id: string }>('select id from jobs where version = 2');
    assert.deepEqual(await agrees(s, rows[0]?.id ?? ''), ['reprocessed']);
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.generation, row.fence, row.attempts, row.failures, row.releases], [4, 5, 5, 0, 0]);
  });

  it('throws where an event does not follow', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.ready();
    const events = (await s.store.job(jobId))?.events ?? [];
    assert.throws(() => replayHistory(events.slice(1)), /Expected claimed to follow from null/);
    assert.throws(() => replayHistory([...events, ...events.slice(-1)]), /to follow from succeeded/);
    assert.throws(() => replayHistory(events.map((event) => ({ ...event, fence: 7 }))), /Expected fence 0/);
    assert.throws(() => replayHistory(events.map((event) => ({ ...event, reason: 'magic' }))), /received magic/);
  });

  it('explains every row after claims, ends, relays, deletions and operators at once, and nothing deadlocks', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const wanted = ['claimed', 'crashed', 'retried', 'failed', 'released', 'settled', 'cancelled'];
    wanted.push('replayed', 'rebuilding', 'reprocessed');
    let missing = wanted;
    // Which transitions ten clients come to is chance: it goes on, with other numbers, until each was among them. Every storm has
    // uploads of its own, for one may leave all of its jobs ended, and then there is nothing that the next could claim.
    for (let seed = 7; missing.length > 0 && seed < 17; seed += 1) {
      const jobs = await Promise.all(Array.from({ length: 4 }, () => s.accept()));
      // Never settled, so that its deletion finds an unfinished job for certain.
      await hammer(s, jobs, jobs[3]?.id ?? '', seed);
      const ids = (await s.pool.query<{ id: string }>('select id from jobs')).rows.map((row) => row.id);
      const reasons = new Set((await Promise.all(ids.map((id) => agrees(s, id)))).flat());
      missing = wanted.filter((reason) => !reasons.has(reason));
    }
    assert.deepEqual(missing, [], 'the storms reached every transition');
    const published = await s.pool.query<{ wrong: number }>(
      `select count(*) as wrong
       from variants
       join attachments on attachments.id = variants.attachment_id
       where variants.pipeline_version <> attachments.pipeline_version
          or attachments.deleted_at is not null`,
    );
    assert.equal(published.rows[0]?.wrong, 0);
  });
});

/** Ten clients at once, each doing 90 random things to the same few jobs with claims that are over as soon as they begin. */
async function hammer(
  s: Fixture,
  made: readonly { id: string; jobId: string }[],
  spared: string,
  firstSeed: number,
): Promise<void> {
  // A lease of nothing: every claim of a processing job is a crash, and zombies are everywhere.
  const leases = { leaseMs: 0, marginMs: 0, budgets: { attemptsMax: 1_000, crashesMax: 1_000 } };
  const { store } = s;
  let seed = firstSeed;
  const pick = (below: number) => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  const jobIds = made.map((one) => one.jobId);
  const attempts: Attempt[] = [];
  const fails = (attempt: Attempt, code: 'internal' | 'corrupt_image') =>
    store.fail(attempt, { code, detail: 'x', retryMs: 0 }, { budgets: leases.budgets, graceMs: 0, who: 'w' });
  const verbs: ((attempt: Attempt, round: number) => Promise<unknown>)[] = [
    (attempt) => store.renew(attempt, { leaseMs: 0, marginMs: 0 }),
    async (attempt, round) => round > 20 && attempt.attachmentId !== spared && settle(store, attempt),
    (attempt) => fails(attempt, 'internal'),
    async (attempt) => attempt.attachmentId !== spared && fails(attempt, 'corrupt_image'),
    (attempt) => release(store, attempt),
    async () => {
      const rings = await store.takeDue({ limit: 3, window: 3, takenMs: 0 });
      for (const ring of rings) await store.markRung(ring, { baseMs: 0, capMs: 0, jitter: 1 });
    },
    () => store.ringAgain(3),
    ({ jobId }) => store.replay(jobId, { who: 'operator', spacingMs: 1 }),
    async ({ attachmentId }) => {
      const keys = (await store.audited(attachmentId))?.variants.map((one) => one.key) ?? [];
      await store.rebuild(attachmentId, { keys, who: 'doctor' });
    },
    ({ attachmentId }, round) => store.reprocess(attachmentId, { version: 2 + (round % 2), who: 'operator' }),
    async (_, round) => {
      await store.askReprocessing({ version: 2 + (round % 2), retryFailed: true, who: 'operator' });
      await store.feedReprocessing({ window: 3, limit: 2 });
      const { rows } = await s.pool.query<{ id: string }>('select id from jobs');
      jobIds.splice(0, jobIds.length, ...rows.map((row) => row.id));
    },
  ];
  const client = async (first: boolean) => {
    for (let round = 0; round < 90; round += 1) {
      if (first && round === 70) await store.deleteAttachment(s.owner, spared, { graceMs: 0 });
      const claim = await s.claim(jobIds[pick(jobIds.length)] ?? '', leases);
      if (claim.kind === 'claimed') attempts.push(claim.claim.attempt);
      const attempt = pick(2) === 0 ? attempts.at(-1) : attempts[pick(attempts.length)];
      if (attempt) await verbs[pick(verbs.length)]?.(attempt, round);
    }
  };
  await Promise.all(Array.from({ length: 10 }, (_, index) => client(index === 0)));
}
