/** What operators ask for, on a real store: replays of many with their bounds, reprocessing, and attempts read out of a history. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import type { Code } from '../../src/errors.ts';
import { newId } from '../../src/ids.ts';
import { attemptsOf, createOperate } from '../../src/pipeline/operate.ts';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import type { FailedFilter, JobEvent, Reprocessing } from '../../src/pipeline/registry.ts';
import { silent } from '../support/ports-fake.ts';
import { addUser, fail, settle, startStore } from '../support/store.ts';

const anyFailed: FailedFilter = { errorCode: null, ownerId: null, olderThanMs: null, youngerThanMs: null };
const who = 'operator ada';

async function start(t: TestContext, { pipelineVersion = 0 } = {}) {
  const world = await startStore(t);
  const deps = { store: world.store, clock: createSystemClock(), log: silent };
  const operate = createOperate(deps, { pipelineVersion, spacingMs: 1000 });
  const failed = async (code: Code = 'corrupt_image', change: Parameters<typeof world.accept>[0] = {}) => {
    const upload = await world.accept(change);
    assert.equal(await fail(world.store, (await world.claimed(upload.jobId)).attempt, code), 'failed');
    return upload;
  };
  const states = async (...ids: readonly string[]) =>
    await Promise.all(ids.map(async (id) => (await world.jobRow(id)).state));
  return { ...world, operate, failed, states };
}

describe('a replay', () => {
  it('answers what it did and how the job stands, and a second one says that nothing was changed', async (t) => {
    const { operate, failed } = await start(t);
    const { jobId } = await failed();
    const first = await operate.replay(jobId, who);
    assert.deepEqual([first.replay, first.job?.state, first.job?.generation], ['replayed', 'queued', 2]);
    const second = await operate.replay(jobId, who);
    assert.deepEqual([second.replay, second.job?.state, second.job?.generation], ['job_unfinished', 'queued', 2]);
    assert.deepEqual(await operate.replay(newId(), who), { replay: 'not_found', job: null });
  });
});

describe('a replay of many', () => {
  it('takes what the filter names, and leaves the rest failed', async (t) => {
    const { operate, failed, states, pool, owner } = await start(t);
    const other = await addUser(pool, 'other');
    const [corrupt, large, others] = [
      await failed(),
      await failed('too_many_pixels'),
      await failed('corrupt_image', { ownerId: other }),
    ];
    const filter = { ...anyFailed, errorCode: 'corrupt_image', ownerId: owner } as const;
    const answer = await operate.replayMany(filter, { limit: 100, dryRun: false, who });
    assert.deepEqual(answer, { matched: 1, replayed: 1, skipped: {} });
    assert.deepEqual(await states(corrupt.jobId, large.jobId, others.jobId), ['queued', 'failed', 'failed']);
  });

  it('only counts in a dry run', async (t) => {
    const { operate, failed, everything } = await start(t);
    await failed();
    await failed();
    const before = await everything();
    const answer = await operate.replayMany(anyFailed, { limit: 1, dryRun: true, who });
    assert.deepEqual(answer, { matched: 2, replayed: 0, skipped: {} });
    assert.equal(await everything(), before);
  });

  it('looks at no more than its limit, the oldest failure first', async (t) => {
    const { operate, failed, states } = await start(t);
    const [first, second, third] = [await failed(), await failed(), await failed()];
    const answer = await operate.replayMany(anyFailed, { limit: 2, dryRun: false, who });
    assert.deepEqual(answer, { matched: 3, replayed: 2, skipped: {} });
    assert.deepEqual(await states(first.jobId, second.jobId, third.jobId), ['queued', 'queued', 'failed']);
  });

  it('counts by reason what cannot be replayed, and gets past it', async (t) => {
    const { operate, failed, states, pool } = await start(t);
    const made = [];
    for (let at = 0; at < 3; at += 1) made.push(await failed());
    const last = await failed();
    await pool.query(`update attachments set staging_gone_at = now() where id = any($1)`, [made.map(({ id }) => id)]);
    let told = 0;
    const answer = await operate.replayMany(anyFailed, {
      limit: 50,
      dryRun: false,
      who,
      onProgress: (n) => (told = n),
    });
    assert.deepEqual(answer, { matched: 4, replayed: 1, skipped: { staging_gone: 3 } });
    assert.equal(told, 4);
    assert.deepEqual(await states(last.jobId), ['queued']);
  });

  it('goes through more than one question holds, each job once', async (t) => {
    const { operate, store } = await start(t);
    const ids = Array.from({ length: 250 }, () => newId());
    const replayed: string[] = [];
    // Those that were skipped stay first in every answer, as they do in the database.
    const skips = new Set(ids.slice(0, 60));
    const fake = {
      ...store,
      countFailed: async () => ids.length,
      failedJobs: async (_filter: FailedFilter, limit: number) =>
        ids.filter((id) => skips.has(id) || !replayed.includes(id)).slice(0, limit),
      replay: async (id: string) => {
        if (skips.has(id)) return 'staging_gone' as const;
        replayed.push(id);
        return 'replayed' as const;
      },
      job: async () => null,
    };
    assert.equal(operate.version, newestVersion);
    const many = createOperate(
      { store: fake, clock: createSystemClock(), log: silent },
      { pipelineVersion: 0, spacingMs: 0 },
    );
    // Those that were replayed are failed no more, so the next question has as many new ones: the limit holds all the same.
    const some = await many.replayMany(anyFailed, { limit: 150, dryRun: false, who });
    assert.deepEqual(some, { matched: 250, replayed: 90, skipped: { staging_gone: 60 } });
    const answer = await many.replayMany(anyFailed, { limit: 1000, dryRun: false, who });
    assert.deepEqual(answer, { matched: 250, replayed: 100, skipped: { staging_gone: 60 } });
    assert.equal(new Set(replayed).size, 190);
  });
});

describe('reprocessing', () => {
  it('of one foresees what it would do, makes one job, and says when there is nothing to do', async (t) => {
    const { operate, ready, accept } = await start(t, { pipelineVersion: 2 });
    const { id } = await ready();
    assert.equal(await operate.foresee(id), 'made');
    assert.equal(await operate.reprocessOne(id, who), 'made');
    assert.equal(await operate.reprocessOne(id, who), 'exists');
    const waiting = await accept();
    assert.equal(await operate.foresee(waiting.id), 'not_ready');
    assert.equal(await operate.foresee(newId()), 'not_found');
  });

  it('of what has the version already changes nothing', async (t) => {
    const { operate, ready } = await start(t, { pipelineVersion: 1 });
    const { id } = await ready();
    assert.equal(await operate.foresee(id), 'current');
    assert.equal(await operate.reprocessOne(id, who), 'current');
  });

  it('of all writes a wish that can be followed to its end; a dry run writes none', async (t) => {
    const { operate, ready, store, pool, claimed } = await start(t, { pipelineVersion: 2 });
    await ready();
    assert.deepEqual(await operate.reprocessAll({ retryFailed: false, dryRun: true, who }), {
      version: 2,
      matching: 1,
      wish: null,
    });
    const asked = await operate.reprocessAll({ retryFailed: false, dryRun: false, who });
    assert.deepEqual([asked.version, asked.matching, asked.wish?.askedBy], [2, 1, who]);
    const told: Reprocessing[] = [];
    const followed = operate.follow(5, (wish) => told.push(wish), t.signal);
    // Once for its job, and once to find that there is nothing more.
    await store.feedReprocessing({ window: 10, limit: 10 });
    await store.feedReprocessing({ window: 10, limit: 10 });
    const { rows } = await pool.query(`select id from jobs where state = 'queued'`);
    await settle(store, (await claimed(rows[0].id)).attempt);
    const last = await followed;
    assert.deepEqual([last?.succeeded, last?.unfinished, last?.remaining], [1, 0, 0]);
    assert.ok(told.length > 0);
  });
});

describe('attemptsOf', () => {
  const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second));
  const event = (second: number, to: JobEvent['to'], reason: string, change: Partial<JobEvent> = {}): JobEvent => ({
    at: at(second),
    from: null,
    to,
    fence: second,
    who: 'w',
    reason,
    code: null,
    detail: null,
    ...change,
  });

  it('has none before the first claim, nor after an end without one', () => {
    assert.deepEqual(attemptsOf([event(0, 'queued', 'accepted')], 1), []);
    assert.deepEqual(attemptsOf([event(0, 'queued', 'accepted'), event(1, 'cancelled', 'cancelled')], 1), []);
  });

  it('ends the last attempt of a spent crash budget as crashed, with the code of the job', () => {
    const [attempt, ...others] = attemptsOf(
      [
        event(0, 'queued', 'accepted'),
        event(1, 'processing', 'claimed'),
        event(2, 'failed', 'exhausted', { code: 'worker_lost' }),
      ],
      1,
    );
    assert.deepEqual(others, []);
    assert.equal(attempt?.outcome, 'crashed');
    assert.equal(attempt?.code, 'worker_lost');
    assert.deepEqual(attempt?.endedAt, at(2));
  });

  it('does not end an attempt a second time', () => {
    const attempts = attemptsOf(
      [event(1, 'processing', 'claimed'), event(2, 'queued', 'released'), event(3, 'cancelled', 'cancelled')],
      1,
    );
    assert.deepEqual(
      attempts.map((attempt) => [attempt.outcome, attempt.endedAt]),
      [['released', at(2)]],
    );
  });

  it('tells the generation of each, also when the oldest events are gone', () => {
    const events = [
      event(1, 'processing', 'claimed'),
      event(2, 'failed', 'failed'),
      event(2, 'queued', 'replayed'),
      event(3, 'processing', 'claimed'),
      event(4, 'succeeded', 'settled'),
      event(4, 'queued', 'rebuilding'),
      event(5, 'processing', 'claimed'),
    ];
    const generations = (history: readonly JobEvent[]) => attemptsOf(history, 3).map((attempt) => attempt.generation);
    assert.deepEqual(generations(events), [1, 2, 3]);
    assert.deepEqual(generations(events.slice(3)), [2, 3]);
  });
});
