/** Step 3, figures: what a worker tells of its attempts and its slots, each by the event that it stands for. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { SkrepkaError } from '../../src/errors.ts';
import { newId } from '../../src/ids.ts';
import { createBreaker } from '../../src/pipeline/breaker.ts';
import { giveUp } from '../../src/pipeline/outcome.ts';
import { BlobError, type Log } from '../../src/pipeline/ports.ts';
import { away, deadClaim, failing, ring, waiting } from '../support/attempts.ts';
import { createPipeline, quick } from '../support/pipeline.ts';
import { createPainter, createTally, takes } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

/** Leases that nobody renews in the time of a test. */
const longLease = { leaseMs: 60_000, renewMs: 15_000, visibilityMs: 90_000 };

describe('an attempt', () => {
  test('that publishes tells how long each of its steps took, once', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    await takes(120);
    p.startRelay();
    p.startWorker();
    await p.untilState(attachment.id, 'ready');
    await until('it is told', () => p.meter.observed('ready_seconds').length === 1);
    const once = (name: string) => {
      const [seconds, ...more] = p.meter.observed(name);
      assert.ok(seconds !== undefined && more.length === 0, name);
      return seconds;
    };
    const steps = ['download_seconds', 'render_seconds', 'store_seconds', 'settle_seconds'].map(once);
    for (const seconds of steps) assert.ok(seconds >= 0);
    const [wait, attempt, ready] = [once('claim_wait_seconds'), once('attempt_seconds'), once('ready_seconds')];
    assert.ok(wait >= 0.12, `waited ${wait} s`);
    assert.ok(attempt >= steps.reduce((sum, seconds) => sum + seconds, 0));
    assert.ok(Math.abs(ready - wait - attempt) < 0.05, `${ready} s is not ${wait} + ${attempt}`);
    assert.equal(p.meter.counted('attempts_total', { outcome: 'ready' }), 1);
  });

  test('of a file that is never decoded tells its download, and no rendering', async (t) => {
    const p = await createPipeline(t);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('%PDF-1.7');
    await p.untilState(attachment.id, 'ready');
    const told = ['download_seconds', 'render_seconds', 'store_seconds'].map((name) => p.meter.observed(name).length);
    assert.deepEqual(told, [1, 0, 1]);
  });

  test('that waits for its retry is told by the time since it was due, not since it failed', async (t) => {
    const p = await createPipeline(t, { floorMs: 600, baseMs: 1, capMs: 1 }, failing('internal'));
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await until('claimed twice', () => p.meter.observed('claim_wait_seconds').length >= 2);
    const [, second = 1] = p.meter.observed('claim_wait_seconds');
    const { events } = (await p.store.port.job((await p.jobOf(attachment.id)).id)) ?? { events: [] };
    const atMs = (reason: string) => events.filter((event) => event.reason === reason).map(({ at }) => Number(at));
    const sinceFailure = ((atMs('claimed')[1] ?? Number.NaN) - (atMs('retried')[0] ?? Number.NaN)) / 1000;
    assert.ok(second <= sinceFailure - 0.59, `${second} s of ${sinceFailure} s since the failure`);
  });

  test('that fails is counted by its code and what became of the job, and a spent crash budget as well', async (t) => {
    const p = await createPipeline(t, { attemptsMax: 2, crashesMax: 1 }, failing('internal'));
    const { attachment } = await p.upload('IMG 1');
    const { attachment: crashed } = await p.upload('IMG 2');
    assert.equal((await p.store.port.claim(deadClaim((await p.jobOf(crashed.id)).id, 1))).kind, 'claimed');
    p.startRelay();
    p.startWorker();
    await p.untilState(attachment.id, 'failed');
    await p.untilState(crashed.id, 'failed');
    const counted = (code: string, outcome: string) => p.meter.counted('attempt_failures_total', { code, outcome });
    await until('all are counted', () => p.meter.counted('attempt_failures_total') === 3);
    assert.deepEqual([counted('internal', 'retried'), counted('internal', 'failed')], [1, 1]);
    assert.equal(counted('worker_lost', 'failed'), 1);
  });

  test('that is given back is counted by what was away', async (t) => {
    const p = await createPipeline(t);
    p.blobs.plan('open', { before: () => new BlobError('unavailable', 'away') });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    assert.deepEqual(
      [p.meter.counted('releases_total', { why: 'storage' }), p.meter.counted('releases_total')],
      [1, 1],
    );
    assert.deepEqual(p.meter.gauged('breaker_open', { dependency: 'storage' }), [0, 1, 0]);
  });

  test('whose lease is lost is counted as that', async (t) => {
    const { painter } = waiting();
    const p = await createPipeline(t, { starvedMs: 60_000 }, painter);
    const { attachment } = await p.upload('IMG 1');
    await ring(p, attachment.id);
    p.startWorker();
    await p.untilState(attachment.id, 'processing');
    await p.pool.query('update jobs set fence = fence + 1');
    await until('it is lost', () => p.meter.counted('leases_broken_total', { why: 'lost' }) === 1);
    await until('it has ended', () => p.meter.counted('attempts_total', { outcome: 'lost' }) === 1);
  });
});

describe('a deletion under an attempt that stores', () => {
  test('is no failure: the attempt counts as cancelled', async (t) => {
    const p = await createPipeline(t, longLease);
    const { reached, pass } = p.points.hold('worker.storing');
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await reached;
    await p.store.port.deleteAttachment(p.user, attachment.id, { graceMs: 50 });
    await p.blobs.port.deleteMany([`staging/${attachment.id}`]);
    pass();
    await until('it has ended', () => p.meter.counted('attempts_total', { outcome: 'cancelled' }) === 1);
    assert.equal(p.meter.counted('attempt_failures_total'), 0);
  });

  test('is told as what it is, and no louder than other news', async () => {
    const lines: string[] = [];
    const at = (level: string) => (_fields: object, text: string) => void lines.push(`${level}: ${text}`);
    const log: Log = { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
    const clock = { monotonicMs: () => 0, wallMs: () => 0, random: () => 0, newId, sleep: async () => {} };
    const meter = createTally();
    const breaker = createBreaker('store', async () => {}, { clock, log, meter }, quick);
    const fail = async () => 'cancelled';
    const deps = {
      store: { fail },
      clock,
      log,
      meter,
      breakers: { store: breaker, storage: breaker, disk: breaker },
      who: 'w',
    };
    const attempt = { jobId: newId(), attachmentId: newId(), version: 1, fence: 1, attemptId: newId() };
    const error = new SkrepkaError('storage_unavailable', { log: 'no object' });
    const given = [{ attempt, failures: 0 }, error, deps, quick, new AbortController().signal];
    const outcome = await giveUp(...(given as unknown as Parameters<typeof giveUp>));
    assert.equal(outcome, 'cancelled');
    assert.deepEqual(lines, ['info: worker: the attachment was deleted under the attempt']);
  });
});

describe('slots', () => {
  test('are told, and how many of them are busy', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, { renderConcurrency: 2 }, painter);
    p.startRelay();
    p.startWorker();
    for (let i = 0; i < 3; i += 1) await p.upload(`IMG ${i}`);
    await until('both are busy', () => p.meter.gauged('worker_slots_busy').at(-1) === 2);
    go();
    await until('none is busy', () => p.meter.gauged('worker_slots_busy').at(-1) === 0);
    assert.deepEqual(p.meter.gauged('worker_slots'), [2]);
    assert.equal(Math.max(...p.meter.gauged('worker_slots_busy')), 2);
  });
});

/** Invariant I23: whoever could work and gets nothing of what waits says so, whatever it is that stands between. */
describe('a starved worker', () => {
  const short = { starvedMs: 100, reringMs: 60_000, reringCapMs: 60_000 };
  type Pipeline = Awaited<ReturnType<typeof createPipeline>>;
  const starved = (p: Pipeline) => p.meter.gauged('worker_starved_seconds');
  const untilTold = (p: Pipeline, times: number) => {
    const before = starved(p).length;
    return until(`told ${times} times more`, () => starved(p).length >= before + times);
  };

  test('tells for how long, while the broker swallows what it confirms, and 0 as soon as it has work', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, short, painter);
    p.memory.misbehave({ drop: 6 });
    const { attachment } = await p.upload('IMG 1');
    p.startRelay();
    p.startWorker();
    await until('it starves', () => (starved(p).at(-1) ?? 0) >= 0.3);
    const due = await p.store.port.queue();
    assert.ok((due.oldestDueSeconds ?? 0) >= 0.3 && due.announced === 1);
    await p.untilState(attachment.id, 'processing');
    await until('it is told', () => starved(p).at(-1) === 0);
    go();
    const values = starved(p);
    assert.ok(Math.max(...values) < 30, 'seconds, not milliseconds');
    await p.untilState(attachment.id, 'ready');
    // And the re-rings that saved it are told apart from the first ring, each a moment after its confirmation.
    await until('the re-rings are marked', () => p.meter.counted('bells_rung_total', { again: 'true' }) >= 6);
    assert.equal(p.meter.counted('bells_rung_total', { again: 'false' }), 1);
    assert.ok(p.meter.counted('bells_hastened_total', { reason: 'starved' }) >= 6);
  });

  test('tells it when no relay announces anything', async (t) => {
    const p = await createPipeline(t, short);
    await p.upload('IMG 1');
    p.startWorker();
    await until('it starves', () => (starved(p).at(-1) ?? 0) >= 0.3);
    assert.equal((await p.store.port.queue()).announced, 0);
    assert.equal(p.meter.counted('bells_hastened_total'), 0);
  });

  test('tells it when its broker cannot be reached, or its own disk not be used', async (t) => {
    for (const fault of ['broker', 'disk'] as const) {
      const p = await createPipeline(t, short);
      if (fault === 'broker') p.memory.stop();
      const full = { before: () => new Error('no space left') };
      if (fault === 'disk') p.scratch.plan('sweep', ...Array.from({ length: 20 }, () => full));
      await p.upload('IMG 1');
      p.startRelay();
      p.startWorker();
      await until(`it starves without its ${fault}`, () => (starved(p).at(-1) ?? 0) >= 0.3);
    }
  });

  test('tells it of a job whose dead attempt nobody takes over', async (t) => {
    const p = await createPipeline(t, short);
    const { attachment } = await p.upload('IMG 1');
    assert.equal((await p.store.port.claim(deadClaim((await p.jobOf(attachment.id)).id, 1))).kind, 'claimed');
    p.startWorker();
    await until('it starves', () => (starved(p).at(-1) ?? 0) >= 0.3);
  });

  test('is none that gets one job after the other, however long another one has waited', async (t) => {
    const p = await createPipeline(t, short);
    const { attachment: old } = await p.upload('IMG 0');
    // Due for an hour, and announced to a broker that has lost it.
    await p.pool.query(
      `update jobs
       set not_before = now() - interval '1 hour', rung_at = now(), confirmed = 1, ring_at = now() + interval '1 hour'
       where attachment_id = $1`,
      [old.id],
    );
    p.store.plan('ringAgain', ...Array.from({ length: 1000 }, () => ({ before: away })));
    p.startRelay();
    p.startWorker();
    let longestMs = 0;
    // However slow the machine is: long enough that the whole time is told from the longest pause in it.
    for (const startMs = performance.now(); performance.now() - startMs < 1000 + 4 * longestMs; ) {
      const beganMs = performance.now();
      const { attachment } = await p.upload('IMG 1');
      await p.untilState(attachment.id, 'ready');
      longestMs = Math.max(longestMs, performance.now() - beganMs);
    }
    const most = Math.max(...starved(p));
    assert.ok(most < (2 * longestMs) / 1000 + 0.3, `${most} s, with pauses of ${longestMs} ms`);
  });

  test('is none that is full', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, { ...short, renderConcurrency: 1 }, painter);
    p.startRelay();
    p.startWorker();
    for (let i = 0; i < 2; i += 1) await p.upload(`IMG ${i}`);
    await until('it is full', () => p.meter.gauged('worker_slots_busy').at(-1) === 1);
    const before = starved(p).length;
    await untilTold(p, 6);
    // The first is told by the claim itself.
    assert.deepEqual([...new Set(starved(p).slice(before + 1))], [0]);
    go();
  });

  test('is none that has nothing to do', async (t) => {
    const p = await createPipeline(t, short);
    p.startRelay();
    p.startWorker();
    await untilTold(p, 5);
    assert.deepEqual([...new Set(starved(p))], [0]);
  });

  test('is none that does not ask because a dependency is away', async (t) => {
    const p = await createPipeline(t, short);
    p.store.plan('claim', { before: away });
    p.store.plan('health', ...Array.from({ length: 1000 }, () => ({ before: away })));
    await p.upload('IMG 1');
    p.startRelay();
    p.startWorker();
    await until('the store is away', () => p.meter.gauged('breaker_open', { dependency: 'store' }).at(-1) === 1);
    // A round that had begun before may still end.
    await untilTold(p, 2);
    const before = starved(p).length;
    await untilTold(p, 4);
    assert.deepEqual([...new Set(starved(p).slice(before))], [0]);
  });
});

describe('the relay', () => {
  test('tells a first announcement of a retry from a repeated one', async (t) => {
    let fails = true;
    const painter = createPainter(async () => {
      if (!fails) return;
      fails = false;
      throw new Error('bug');
    });
    const p = await createPipeline(t, { reringMs: 60_000, reringCapMs: 60_000 }, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    const rung = (again: string) => p.meter.counted('bells_rung_total', { again });
    // A ring is marked, and counted, a moment after its confirmation.
    await until('both rings are marked', () => rung('false') + rung('true') >= 2);
    assert.deepEqual([rung('false'), rung('true')], [2, 0]);
  });
});
