/** Step 3, slots: what a worker takes, with whom it runs, how it ends, and two of them on one job. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { deadClaim, drained, ring, settles, waiting } from '../support/attempts.ts';
import { createPipeline } from '../support/pipeline.ts';
import { createPainter, takes } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

describe('slots', () => {
  test('come first: a worker holds no more deliveries than it has slots', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, { renderConcurrency: 2, reringMs: 60_000, reringCapMs: 60_000 }, painter);
    for (let i = 0; i < 6; i += 1) await p.upload(`IMG ${i}`);
    p.startRelay();
    p.startWorker();
    await until('all are announced and both slots busy', async () => {
      const { waiting: w, inFlight } = await p.memory.depth();
      return w === 4 && inFlight === 2;
    });
    go();
    await until(
      'all are ready',
      async () => (await p.pool.query(`select 1 from attachments where state = 'ready'`)).rowCount === 6,
    );
  });

  test('of which two are taken by jobs that crashed before: one runs alone, the other goes back unspent, and both are done', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, { renderConcurrency: 2, leaseMs: 60_000, renewMs: 15_000 }, painter);
    const jobs: string[] = [];
    for (const name of ['IMG 1', 'IMG 2']) {
      const { attachment } = await p.upload(name);
      const { id } = await p.jobOf(attachment.id);
      assert.equal((await p.store.port.claim(deadClaim(id, 1))).kind, 'claimed');
      jobs.push(attachment.id);
    }
    // Both are claimed before either knows of the other.
    const both = Promise.withResolvers<void>();
    let claims = 0;
    const together = async () => {
      claims += 1;
      if (claims === 2) both.resolve();
      await both.promise;
    };
    p.store.plan('claim', { first: together }, { first: together });
    for (const id of jobs) await ring(p, id);
    p.startWorker();
    await until('one is given back', () => p.meter.counted('releases_total', { why: 'alone' }) === 1);
    await until('the other is rendered', () => painter.renders === 1);
    go();
    p.startRelay();
    for (const id of jobs) await p.untilState(id, 'ready');
    const crashes = await Promise.all(jobs.map(async (id) => (await p.jobOf(id)).crashes));
    assert.deepEqual([crashes, p.meter.counted('releases_total')], [[1, 1], 1]);
  });

  test('are all empty around a job that crashed before: it runs alone', async (t) => {
    let now = 0;
    let most = 0;
    let mostWithCrash = 0;
    const suspects = new Set<string>();
    const p = await createPipeline(
      t,
      { renderConcurrency: 3, leaseMs: 2000, visibilityMs: 3000 },
      {
        async render(task, signal) {
          now += 1;
          most = Math.max(most, now);
          const suspect = suspects.has((await import('node:fs')).readFileSync(task.sourcePath, 'latin1'));
          await takes(30);
          if (suspect) mostWithCrash = Math.max(mostWithCrash, now);
          try {
            return await createPainter().render(task, signal);
          } finally {
            now -= 1;
          }
        },
        async close() {},
      },
    );
    for (let i = 0; i < 12; i += 1) {
      const { attachment } = await p.upload(`IMG ${i}`);
      if (i % 4 === 1) {
        suspects.add(`IMG ${i}`);
        const job = await p.jobOf(attachment.id);
        const request = deadClaim(job.id, 1);
        assert.equal((await p.store.port.claim(request)).kind, 'claimed');
      }
    }
    p.startRelay();
    p.startWorker();
    await until(
      'all are ready',
      async () => (await p.pool.query(`select 1 from attachments where state = 'ready'`)).rowCount === 12,
    );
    assert.equal(mostWithCrash, 1);
    assert.ok(most > 1, 'the others ran side by side');
  });

  test('that stay free while jobs are announced make them ring again', async (t) => {
    const p = await createPipeline(t, { reringMs: 60_000, reringCapMs: 60_000, starvedMs: 100 });
    p.memory.misbehave({ drop: 1 });
    const { attachment } = await p.upload('IMG 1');
    p.startRelay();
    p.startWorker();
    await p.untilState(attachment.id, 'ready');
    assert.ok(p.meter.counted('bells_hastened_total') >= 1);
  });
});

describe('a drain', () => {
  test('finishes what runs and takes nothing more', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, { renderConcurrency: 1 }, painter);
    const { attachment } = await p.upload('IMG 1');
    const { attachment: other } = await p.upload('IMG 2');
    p.startRelay();
    const { drain } = p.startWorker();
    await until(
      'one runs',
      async () => (await p.pool.query(`select 1 from jobs where state = 'processing'`)).rowCount === 1,
    );
    const over = drain();
    go();
    await over;
    const states = [(await p.attachment(attachment.id)).state, (await p.attachment(other.id)).state].sort();
    assert.deepEqual(states, ['queued', 'ready']);
  });

  test('whose grace is over gives its claims back, spends nothing, and another worker goes on at once', async (t) => {
    const { painter } = waiting();
    const p = await createPipeline(t, { leaseMs: 60_000, renewMs: 10_000, visibilityMs: 90_000 }, painter);
    const { attachment } = await p.upload('IMG 1');
    p.startRelay();
    const first = p.startWorker();
    await p.untilState(attachment.id, 'processing');
    const over = first.drain();
    first.abort();
    await over;
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.state, job.failures, job.crashes, job.releases], ['queued', 0, 0, 1]);
    p.startWorker({ images: createPainter(), who: 'worker-2' });
    await p.untilState(attachment.id, 'ready');
  });

  const hanging = [
    { verb: 'open', nth: 1, what: 'the source' },
    { verb: 'copy', nth: 1, what: 'the copy of the original, beside a rendering' },
    { verb: 'open', nth: 2, what: 'the look at that copy' },
  ] as const;
  for (const { verb, nth, what } of hanging) {
    test(`does not wait for a storage that hangs: ${what}`, async (t) => {
      const { painter } = waiting();
      const p = await createPipeline(t, { leaseMs: 60_000, renewMs: 10_000, visibilityMs: 90_000 }, painter);
      if (nth === 2) p.blobs.plan(verb, { first: async () => {} });
      p.blobs.plan(verb, { hang: true });
      const { attachment } = await p.upload('IMG 1');
      p.startRelay();
      const worker = p.startWorker();
      await until('it hangs', () => p.blobs.calls(verb) === nth);
      const over = worker.drain();
      worker.abort();
      await over;
      const job = await p.jobOf(attachment.id);
      assert.deepEqual([job.state, job.failures, job.crashes, job.releases], ['queued', 0, 0, 1]);
    });
  }
});

test('two workers on one job make one set: the loser changes nothing', async (t) => {
  const p = await createPipeline(t, { renderConcurrency: 1, starvedMs: 60_000 });
  const { attachment } = await p.upload('IMG 1');
  const { reached, pass } = p.points.hold('worker.stored');
  await ring(p, attachment.id);
  p.startWorker({ who: 'slow', leaseMs: 60_000, renewMs: 15_000, visibilityMs: 90_000 });
  await reached;
  // Its lease ends behind its back: as when the process was paused.
  await p.pool.query('update jobs set lease_until = now(), ring_at = now()');
  p.startRelay();
  p.startWorker({ who: 'quick' });
  const ready = await p.untilState(attachment.id, 'ready');
  pass();
  await until('the slow one ended', () => p.meter.counted('attempts_total') >= 2);
  assert.deepEqual(await p.attachment(attachment.id), ready);
  assert.equal(await settles(p), 1);
  for (const variant of ready.variants) assert.match(variant.key, /\/v1\.2-/);
});

test('a build without the recipe of a job’s version leaves it to another and spends nothing', async (t) => {
  const p = await createPipeline(t);
  const { attachment } = await p.upload('IMG 1');
  await ring(p, attachment.id);
  p.startWorker({ versions: [99] });
  await until('refused', () => p.meter.counted('claims_refused_total') === 1);
  const job = await p.jobOf(attachment.id);
  assert.deepEqual([job.state, job.attempts, job.rung_at], ['queued', 0, null]);
  assert.ok(job.ring_at.getTime() > Date.now() + 10_000);
});

test('a delete while a job runs ends it: no variant is ever published', async (t) => {
  const { painter, go } = waiting();
  const p = await createPipeline(t, {}, painter);
  p.startRelay();
  p.startWorker();
  const { attachment } = await p.upload('IMG 1');
  await p.untilState(attachment.id, 'processing');
  await p.store.port.deleteAttachment(p.user, attachment.id, { graceMs: 50 });
  go();
  await drained(p);
  assert.equal((await p.jobOf(attachment.id)).state, 'cancelled');
  assert.equal((await p.pool.query('select 1 from variants')).rowCount, 0);
});
