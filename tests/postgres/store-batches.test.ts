/**
 * What is asked at once is done by one statement, and each part of it is as if it had been asked alone: every guard holds row by
 * row, and nobody's answer depends on who came along.
 */
import assert from 'node:assert/strict';
import { describe, it, type TestContext, test } from 'node:test';
import type { Attempt } from '../../src/pipeline/job.ts';
import type { ClaimResult, TakenRing } from '../../src/pipeline/store.ts';
import { createPool, type Pool, single, transaction } from '../../src/postgres/pool.ts';
import { publishFirst } from '../../src/postgres/publication.ts';
import { createStore } from '../../src/postgres/store.ts';
import { onEnd } from '../support/on-end.ts';
import { fail, resultOf, settle, startStore } from '../support/store.ts';

const marking = { baseMs: 30_000, capMs: 1_800_000, jitter: 1 };

async function start(t: TestContext) {
  const s = await startStore(t);
  const sent: string[] = [];
  const counted = {
    async connect() {
      const client = await s.pool.connect();
      return {
        query: (...args: Parameters<typeof client.query>) => {
          const [asked] = args as unknown as [string | { text: string }];
          sent.push(typeof asked === 'string' ? asked : asked.text);
          return client.query(...args);
        },
        release: (broken?: boolean) => client.release(broken),
      };
    },
  } as unknown as Pool;
  /** Another session holds the row until the answer is called. */
  const lock = async (table: 'attachments' | 'jobs', id: string) => {
    const other = await s.pool.connect();
    await other.query('begin');
    await other.query(`select from ${table} where id = $1 for no key update`, [id]);
    return async () => {
      await other.query('rollback');
      other.release();
    };
  };
  const accepted = (count: number) => Promise.all(Array.from({ length: count }, () => s.accept()));
  return { ...s, store: createStore({ pool: counted, signals: s.signals }), sent, lock, accepted };
}

const kindOf = (result: ClaimResult) => (result.kind === 'refused' ? result.reason : result.kind);

describe('marks at once', () => {
  it('are one statement, and each looks at its own bell', async (t) => {
    const s = await start(t);
    const jobs = await s.accepted(5);
    const rings = await s.store.takeDue({ limit: 64, window: 64, takenMs: 10_000 });
    const [good, taken, claimed, hastened, held] = jobs.map(({ jobId }) => jobId) as [string, ...string[]];
    const ringOf = (id: string | undefined): TakenRing => rings.find(({ jobId }) => jobId === id) ?? assert.fail();
    await s.pool.query('update jobs set rings = rings + 1 where id = $1', [taken]);
    await s.claimed(String(claimed));
    await s.dueBell(String(hastened));
    const free = await s.lock('jobs', String(held));
    const before = await Promise.all(jobs.map(({ jobId }) => s.jobRow(jobId)));
    s.sent.length = 0;
    const marked = await Promise.all(jobs.map(({ jobId }) => s.store.markRung(ringOf(jobId), marking)));
    await free();
    assert.equal(s.sent.length, 1);
    assert.deepEqual(marked, [true, false, false, false, false]);
    for (const [at, { jobId }] of jobs.entries()) {
      if (jobId !== good) assert.deepEqual(await s.jobRow(jobId), before[at]);
    }
    assert.ok(Number(await s.secondsTo(good, 'ring_at')) > 25);
  });

  it('have each their own time', async (t) => {
    const s = await start(t);
    await s.accepted(3);
    const rings = await s.store.takeDue({ limit: 64, window: 64, takenMs: 10_000 });
    await Promise.all(rings.map((ring, at) => s.store.markRung(ring, { ...marking, baseMs: 100_000 * (at + 1) })));
    for (const [at, { jobId }] of rings.entries()) {
      assert.equal(Math.round(Number(await s.secondsTo(jobId, 'ring_at')) / 100), at + 1);
    }
  });
});

test('a mark leaves its session as it was: what comes after it is flushed', async (t) => {
  const s = await startStore(t);
  const pool = createPool({ url: s.url, max: 1, name: 'one session' });
  onEnd(t, () => pool.end());
  const store = createStore({ pool, signals: s.signals });
  // The server of the tests has it off.
  await pool.query('set synchronous_commit = on');
  await s.accept();
  const [ring] = await store.takeDue({ limit: 1, window: 1, takenMs: 10_000 });
  assert.equal(await store.markRung(ring ?? assert.fail(), marking), true);
  const { rows } = await pool.query('show synchronous_commit');
  assert.deepEqual(rows, [{ synchronous_commit: 'on' }]);
});

describe('claims at once', () => {
  it('are one statement, in which each job is looked at by itself', async (t) => {
    const s = await start(t);
    const jobs = await s.accepted(6);
    const ids = jobs.map(({ jobId }) => jobId) as [string, string, string, string, string, string];
    const [one, other, early, taken, foreign, gone] = ids;
    await s.pool.query(`update jobs set not_before = now() + interval '1 hour' where id = $1`, [early]);
    await s.claimed(taken);
    await s.pool.query('update jobs set version = 9 where id = $1', [foreign]);
    await s.store.deleteAttachment(s.owner, jobs[5]?.id ?? '', { graceMs: 1 });
    s.sent.length = 0;
    const results = await Promise.all(ids.map((id) => s.store.claim({ ...request, jobId: id, attemptId: id })));
    assert.deepEqual(results.map(kindOf), ['claimed', 'claimed', 'not_yet', 'leased', 'unsupported', 'finished']);
    assert.equal(s.sent.filter((text) => text.includes('asked')).length, 1);
    for (const [at, id] of [one, other].entries()) {
      const result = results[at];
      assert.ok(
        result?.kind === 'claimed' && result.claim.attempt.jobId === id && result.claim.attempt.attemptId === id,
      );
      assert.equal(result.claim.attempt.attachmentId, jobs[at]?.id);
      assert.equal(result.claim.stagingKey, jobs[at]?.upload.stagingKey);
      assert.deepEqual(await reasons(s, id), ['accepted', 'claimed']);
    }
    for (const id of [early, foreign, gone]) assert.equal((await s.jobRow(id)).attempts, 0);
  });

  it('take each their own worker, lease and versions along', async (t) => {
    const s = await start(t);
    const [first, second] = (await s.accepted(2)).map(({ jobId }) => jobId) as [string, string];
    const change = [
      { jobId: first, attemptId: first, worker: 'a', leaseMs: 100_000, versions: [1] },
      { jobId: second, attemptId: second, worker: 'b', leaseMs: 200_000, versions: [2] },
    ];
    const results = await Promise.all(change.map((one) => s.store.claim({ ...request, ...one })));
    assert.deepEqual(results.map(kindOf), ['claimed', 'unsupported']);
    assert.equal((await s.jobRow(first)).worker, 'a');
    const { lease_until: until, claimed_at: since } = await s.jobRow(first);
    assert.equal(Number(until) - Number(since), 100_000);
  });

  it('of which one cannot be read fail in that one alone, because the others are committed by then', async (t) => {
    const s = await start(t);
    const [odd, good] = await s.accepted(2);
    await s.pool.query('alter table attachments drop constraint attachments_kind_check');
    await s.pool.query(`update attachments set kind = 'odd' where id = $1`, [odd?.id]);
    const ids = [odd?.jobId ?? '', good?.jobId ?? ''];
    const [first, second] = await Promise.allSettled(
      ids.map((id) => s.store.claim({ ...request, jobId: id, attemptId: id })),
    );
    assert.equal(first?.status, 'rejected');
    assert.equal(second?.status === 'fulfilled' && kindOf(second.value), 'claimed');
  });

  it('do not wait for one whose attachment is locked', async (t) => {
    const s = await start(t);
    const [held, free] = await s.accepted(2);
    const release = await s.lock('attachments', held?.id ?? '');
    const waiting = s.store.claim({ ...request, jobId: held?.jobId ?? '', attemptId: held?.jobId ?? '' });
    const result = await s.store.claim({ ...request, jobId: free?.jobId ?? '', attemptId: free?.jobId ?? '' });
    assert.equal(result.kind, 'claimed');
    await s.untilLocked();
    await release();
    assert.equal((await waiting).kind, 'claimed');
  });
});

describe('first settles at once', () => {
  it('are one statement, in which each attempt is looked at by itself', async (t) => {
    const s = await start(t);
    const jobs = await s.accepted(7);
    const attempts: Attempt[] = [];
    for (const { jobId } of jobs) attempts.push((await s.claimed(jobId)).attempt);
    const [one, other, older, foreign, failed, gone, replaced] = attempts as [Attempt, ...Attempt[]];
    await s.pool.query('update jobs set fence = fence + 1 where id = $1', [older?.jobId]);
    await s.pool.query('update jobs set attempt_id = gen_random_uuid() where id = $1', [foreign?.jobId]);
    await fail(s.store, failed ?? assert.fail());
    await s.store.deleteAttachment(s.owner, gone?.attachmentId ?? '', { graceMs: 1 });
    await s.pool.query(
      `update attachments set state = 'ready', pipeline_version = 2, original_key = 'x', ready_at = now() where id = $1`,
      [replaced?.attachmentId],
    );
    s.sent.length = 0;
    const kinds = await Promise.all(attempts.map((attempt) => settle(s.store, attempt)));
    assert.deepEqual(kinds, ['ready', 'ready', 'lost', 'lost', 'lost', 'cancelled', 'superseded']);
    assert.equal(s.sent.filter((text) => text.includes('asked')).length, 1);
    for (const attempt of [one, other] as [Attempt, Attempt]) {
      const shown = await s.store.attachmentFor(s.owner, attempt.attachmentId);
      assert.deepEqual(
        shown?.variants.map(({ key }) => key),
        resultOf(attempt).variants.map(({ key }) => key),
      );
      assert.equal(shown?.originalKey, resultOf(attempt).originalKey);
      assert.deepEqual(await reasons(s, attempt.jobId), ['accepted', 'claimed', 'settled']);
    }
    const { rows } = await s.pool.query<{ count: number }>('select count(*)::int as count from variants');
    assert.equal(rows[0]?.count, 6);
    assert.equal((await s.cleanups()).filter(({ reason }) => reason === 'published').length, 2);
  });

  it('of two versions that have no variants publish one after the other', async (t) => {
    const s = await start(t);
    for (let round = 0; round < 10; round += 1) {
      const { id, jobId } = await s.accept({ kind: 'file' });
      const newer = (await s.claimed(await s.addJob(id, 2))).attempt;
      const older = (await s.claimed(jobId)).attempt;
      const order = round % 2 === 0 ? [older, newer] : [newer, older];
      const kinds = await Promise.all(
        order.map((attempt) => settle(s.store, attempt, { ...resultOf(attempt), variants: [] })),
      );
      assert.ok(kinds.includes('ready'));
      assert.equal((await s.attachmentRow(id)).pipeline_version, 2);
      const first = kinds[order.indexOf(older)] === 'ready' ? older : newer;
      assert.equal((await s.attachmentRow(id)).original_key, resultOf(first).originalKey);
    }
  });

  it('of two versions of one attachment are one, by whatever plan', async (t) => {
    const s = await start(t);
    for (const plan of ['nestloop', 'hashjoin']) {
      const { id, jobId } = await s.accept({ kind: 'file' });
      const attempts = [(await s.claimed(jobId)).attempt, (await s.claimed(await s.addJob(id, 2))).attempt];
      const asked = attempts.map((attempt) => ({ attempt, result: { ...resultOf(attempt), variants: [] }, who: 'w' }));
      const published = await transaction(s.pool, async (db) => {
        await db.query(`set local enable_${plan} = off`);
        return await publishFirst(db, asked);
      });
      const states = await Promise.all(attempts.map(async (attempt) => (await s.jobRow(attempt.jobId)).state));
      assert.deepEqual(states.sort(), ['processing', 'succeeded']);
      assert.equal(published.filter(Boolean).length, 1);
    }
  });

  it('with one that PostgreSQL refuses leave that one unsettled, and settle the others', async (t) => {
    const s = await start(t);
    const attempts: Attempt[] = [];
    for (const { jobId } of await s.accepted(3)) attempts.push((await s.claimed(jobId)).attempt);
    const results = attempts.map((attempt, at) => {
      const result = resultOf(attempt);
      return at === 1 ? { ...result, placeholder: 'nul \0' } : result;
    });
    const settled = await Promise.allSettled(attempts.map((attempt, at) => settle(s.store, attempt, results[at])));
    assert.deepEqual(
      settled.map((one) => (one.status === 'fulfilled' ? one.value : (one.reason as { code: string }).code)),
      ['ready', '22021', 'ready'],
    );
    assert.equal((await s.jobRow(attempts[1]?.jobId ?? '')).state, 'processing');
  });
});

describe('passes at once', () => {
  it('are one statement, and each counts by itself', async (t) => {
    const s = await start(t);
    await s.pool.query(
      `insert into cleanups (key, passes, reason) values ('last', 0, 'x'), ('first', 1, 'x'), ('said', 2, 'x'), ('other', 0, 'x')`,
    );
    const due = await s.store.dueCleanups(10);
    await s.pool.query(`update cleanups set passes = 1 where key = 'said'`);
    s.sent.length = 0;
    const asked = due.filter(({ key }) => key !== 'other');
    await Promise.all(asked.map((cleanup) => s.store.passedCleanup(cleanup, 60_000)));
    assert.equal(s.sent.length, 1);
    const { rows } = await single(
      s.pool,
      `select key, passes, not_before > now() as later from cleanups order by key`,
      [],
      { writes: false },
    );
    assert.deepEqual(rows, [
      { key: 'first', passes: 0, later: true },
      { key: 'other', passes: 0, later: false },
      { key: 'said', passes: 1, later: false },
    ]);
  });
});

const request = {
  worker: 'worker-1',
  leaseMs: 45_000,
  marginMs: 2_000,
  versions: [1, 2, 3],
  budgets: { attemptsMax: 5, crashesMax: 3 },
  graceMs: 60_000,
  unsupportedMs: 90_000,
};

async function reasons(s: Awaited<ReturnType<typeof start>>, jobId: string): Promise<string[]> {
  return (await s.store.job(jobId))?.events.map(({ reason }) => reason) ?? assert.fail();
}
