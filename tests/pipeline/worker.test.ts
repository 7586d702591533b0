/** Steps 3 to 7: claims, leases, results. One settle a job, silence of those that lost, nothing spent on outages. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type Code, SkrepkaError } from '../../src/errors.ts';
import { newId } from '../../src/ids.ts';
import { encodeRing, ringId } from '../../src/pipeline/job.ts';
import { BlobError } from '../../src/pipeline/ports.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { createPipeline, quick } from '../support/pipeline.ts';
import { createPainter, eventually } from '../support/ports-fake.ts';

type Pipeline = Awaited<ReturnType<typeof createPipeline>>;

const lost = () => new StoreError('unknown', 'the connection broke');
const away = () => new StoreError('unavailable', 'away');
const failing = (code: Code) =>
  createPainter(async () => {
    throw new SkrepkaError(code);
  });
/** A painter that waits for `go` or the signal. */
function waiting() {
  let go = () => {};
  const gate = new Promise<void>((resolve) => {
    go = resolve;
  });
  const painter = createPainter((signal) =>
    Promise.race([
      gate,
      new Promise<void>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true })),
    ]),
  );
  return { painter, go };
}

async function ring(p: Pipeline, attachmentId: string, times = 1) {
  const job = await p.jobOf(attachmentId);
  for (let i = 1; i <= times; i += 1) {
    const message = { jobId: job.id as string, ring: 1000 + i, traceparent: null };
    await p.memory.publish(ringId(message), encodeRing(message), { timeoutMs: 1000 });
  }
  return job;
}

const settles = async (p: Pipeline) =>
  (await p.pool.query(`select 1 from job_events where to_state = 'succeeded'`)).rowCount;
const drained = (p: Pipeline) =>
  eventually('the broker holds nothing', async () => {
    const { waiting: w, inFlight } = await p.memory.depth();
    return w + inFlight === 0;
  });

describe('a job', () => {
  test('becomes ready with its original and exactly the declared variants', async (t) => {
    const p = await createPipeline(t);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    const ready = await p.untilState(attachment.id, 'ready');
    assert.deepEqual(ready.variants.map((variant) => variant.name).sort(), ['crop', 'optimized', 'thumbnail']);
    assert.equal(ready.pipelineVersion, 1);
    assert.deepEqual([ready.width, ready.height, ready.frames, ready.placeholder], [40, 30, 1, 'AAAA']);
    const { body } = await p.blobs.port.open(ready.originalKey ?? '');
    assert.equal((await body.toArray()).join(''), 'IMG 1');
    for (const variant of ready.variants) {
      assert.equal((await p.blobs.port.head(variant.key))?.size, variant.size);
      assert.match(variant.key, new RegExp(`^attachments/${attachment.id}/v1\\.1-[0-9a-f-]{36}/`));
    }
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.state, job.attempts, job.failures, job.crashes, job.releases], ['succeeded', 1, 0, 0, 0]);
    await drained(p);
  });

  test('of a file that is no picture is published without variants and never painted', async (t) => {
    const painter = createPainter();
    const p = await createPipeline(t, {}, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('%PDF-1.7');
    const ready = await p.untilState(attachment.id, 'ready');
    assert.deepEqual(ready.variants, []);
    assert.equal(painter.renders, 0);
    assert.match(ready.originalKey ?? '', /original\.bin$/);
  });

  test('whose message comes five times at once is settled once', async (t) => {
    const p = await createPipeline(t, { renderConcurrency: 5 });
    const { attachment } = await p.upload('IMG 1');
    await ring(p, attachment.id, 5);
    p.startWorker();
    await p.untilState(attachment.id, 'ready');
    await drained(p);
    assert.equal(await settles(p), 1);
    assert.equal((await p.pool.query('select 1 from variants')).rowCount, 3);
    assert.equal((await p.jobOf(attachment.id)).attempts, 1);
  });

  test('whose source is gone or damaged fails at once with its own code', async (t) => {
    const p = await createPipeline(t);
    const { attachment: gone } = await p.upload('IMG 1');
    const { attachment: damaged } = await p.upload('IMG 2');
    const { attachment: file } = await p.upload('plain 3');
    await p.blobs.port.deleteMany([`staging/${gone.id}`]);
    for (const { id } of [damaged, file]) {
      async function* other() {
        yield Buffer.from('IMG X');
      }
      await p.blobs.port.put(`staging/${id}`, other());
    }
    p.startRelay();
    p.startWorker();
    assert.equal((await p.untilState(gone.id, 'failed')).errorCode, 'staging_lost');
    assert.equal((await p.untilState(damaged.id, 'failed')).errorCode, 'staging_corrupt');
    assert.equal((await p.untilState(file.id, 'failed')).errorCode, 'staging_corrupt');
    assert.equal((await p.jobOf(gone.id)).failures, 1);
  });

  test('with a foreign message beside it is not disturbed, and the foreign one is removed', async (t) => {
    const p = await createPipeline(t);
    await p.memory.publish('x', Buffer.from('not a ring'), { timeoutMs: 1000 });
    const unknownJob = { jobId: newId(), ring: 1, traceparent: null };
    await p.memory.publish(ringId(unknownJob), encodeRing(unknownJob), { timeoutMs: 1000 });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    await drained(p);
  });
});

describe('failures', () => {
  test('of the picture are permanent at once', async (t) => {
    const p = await createPipeline(t, {}, failing('corrupt_image'));
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    const failed = await p.untilState(attachment.id, 'failed');
    assert.equal(failed.errorCode, 'corrupt_image');
    assert.equal((await p.jobOf(attachment.id)).attempts, 1);
    await drained(p);
  });

  test('of a child are permanent the second time', async (t) => {
    for (const code of ['render_timeout', 'render_memory', 'render_crashed'] as const) {
      const p = await createPipeline(t, {}, failing(code));
      p.startRelay();
      p.startWorker();
      const { attachment } = await p.upload('IMG 1');
      assert.equal((await p.untilState(attachment.id, 'failed')).errorCode, code);
      assert.equal((await p.jobOf(attachment.id)).failures, 2);
    }
  });

  test('that are nobody’s are retried until the budget ends, and every one is in the history', async (t) => {
    const p = await createPipeline(
      t,
      { attemptsMax: 3 },
      createPainter(async () => Promise.reject(new Error('bug'))),
    );
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    assert.equal((await p.untilState(attachment.id, 'failed')).errorCode, 'internal');
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.attempts, job.failures, job.crashes], [3, 3, 0]);
    assert.match(job.error_detail, /bug/);
    const { rows } = await p.pool.query('select from_state, to_state from job_events where job_id = $1 order by id', [
      job.id,
    ]);
    assert.deepEqual(
      rows.map((row) => `${row.from_state}→${row.to_state}`),
      [
        'null→queued',
        'queued→processing',
        'processing→queued',
        'queued→processing',
        'processing→queued',
        'queued→processing',
        'processing→failed',
      ],
    );
  });

  test('of the second variant’s put leave nothing half: retried, then ready and complete', async (t) => {
    const p = await createPipeline(t);
    const through = { first: async () => {} };
    const { attachment } = await p.upload('IMG 1');
    p.blobs.plan('put', through, { before: () => new BlobError('broken', 'bad sector') });
    p.startRelay();
    p.startWorker();
    const ready = await p.untilState(attachment.id, 'ready');
    assert.equal(ready.variants.length, 3);
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.attempts, job.failures], [2, 1]);
  });

  test('of a put whose bytes are not those that were sent are found by reading back', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    p.blobs.plan('put', {
      first: async (args) => {
        const key = args[0] as string;
        p.blobs.plan('open', { first: async () => void (await spoil(p, key)) });
      },
    });
    p.startRelay();
    p.startWorker();
    const ready = await p.untilState(attachment.id, 'ready');
    assert.equal((await p.jobOf(attachment.id)).failures, 1);
    for (const variant of ready.variants) assert.equal((await p.blobs.port.head(variant.key))?.size, variant.size);
  });

  async function spoil(p: Pipeline, key: string) {
    async function* torn() {
      yield Buffer.from('torn');
    }
    await p.blobs.port.put(key, torn());
  }
});

describe('an outage is not the job’s fault', () => {
  test('of the storage: the claim is given back, nothing is spent', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    const down = { before: () => new BlobError('unavailable', 'away') };
    p.blobs.plan('open', ...Array.from({ length: 7 }, () => down));
    p.startRelay();
    p.startWorker();
    await p.untilState(attachment.id, 'ready');
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.failures, job.crashes, job.releases], [0, 0, 7]);
  });

  test('of the store at the settle: asked again until it answers', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('settle', { before: away }, { before: away });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    assert.equal((await p.jobOf(attachment.id)).attempts, 1);
  });

  test('of the store at the claim: the message comes again', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('claim', { before: away });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
  });
});

describe('an unknown outcome', () => {
  test('of a claim is read back by its attempt, and the work goes on', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('claim', { after: lost });
    p.store.plan('readAttempt', { before: away });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.attempts, job.crashes], [1, 0]);
  });

  test('of a settle that came through is recognised, and the message acked', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('settle', { after: lost });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    await drained(p);
    assert.equal(p.store.calls('readAttempt'), 1);
    assert.equal(await settles(p), 1);
  });

  test('of a settle that did not come through is settled again', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('settle', { before: lost });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    assert.equal(await settles(p), 1);
  });

  test('of a failure that came through is recognised', async (t) => {
    const p = await createPipeline(t, {}, failing('corrupt_image'));
    p.store.plan('fail', { after: lost });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'failed');
    await drained(p);
    assert.equal((await p.jobOf(attachment.id)).failures, 1);
  });
});

describe('a lease', () => {
  test('is renewed while a long render runs, in the store first and then in the broker', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, {}, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await eventually('renewed past the first lease and the visibility', () => p.store.calls('renew') >= 10);
    go();
    await p.untilState(attachment.id, 'ready');
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.attempts, job.crashes, job.fence], [1, 0, 1]);
  });

  test('that was lost makes a worker silent: no put, no settle, no ack', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, { visibilityMs: 60_000, renderConcurrency: 1, starvedMs: 60_000 }, painter);
    const { attachment } = await p.upload('IMG 1');
    await ring(p, attachment.id);
    p.startWorker();
    await eventually('claimed', async () => (await p.jobOf(attachment.id)).state === 'processing');
    // Another worker's claim, as after a lease that ended.
    await p.pool.query(
      `update jobs set fence = fence + 1, attempt_id = gen_random_uuid(), lease_until = now() + interval '1 hour'`,
    );
    await eventually('the worker noticed', () => p.meter.counted('leases_broken_total') === 1);
    go();
    await eventually('the worker is free', () => p.meter.counted('attempts_total') === 1);
    assert.equal(p.store.calls('settle') + p.store.calls('fail') + p.store.calls('release'), 0);
    assert.equal((await p.memory.depth()).inFlight, 1);
    assert.deepEqual(await p.keys('attachments/'), []);
  });

  test('whose renewals hang ends by the worker’s own deadline, and only a fenced release follows', async (t) => {
    const { painter } = waiting();
    const p = await createPipeline(t, { renderConcurrency: 1 }, painter);
    p.store.plan('renew', ...Array.from({ length: 10 }, () => ({ hang: true as const })));
    const { attachment } = await p.upload('IMG 1');
    await ring(p, attachment.id);
    p.startWorker();
    await eventually('released', () => p.store.calls('release') === 1);
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.state, job.releases, job.failures, job.crashes], ['queued', 1, 0, 0]);
    assert.equal(p.store.calls('settle'), 0);
  });

  test('that fails to renew for a moment is kept', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, {}, painter);
    p.store.plan('renew', { before: away }, { before: lost });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await eventually('renewed again', () => p.store.calls('renew') >= 5);
    go();
    await p.untilState(attachment.id, 'ready');
    assert.equal((await p.jobOf(attachment.id)).attempts, 1);
  });

  test('of a dead worker is taken over by another when it ends, as a crash', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    const job = await p.jobOf(attachment.id);
    const claim = {
      jobId: job.id,
      attemptId: newId(),
      worker: 'dead',
      leaseMs: 300,
      marginMs: 20,
      versions: [1],
      budgets: quick,
      graceMs: 50,
      unsupportedMs: 1000,
    };
    assert.equal((await p.store.port.claim(claim)).kind, 'claimed');
    p.startRelay();
    p.startWorker();
    await p.untilState(attachment.id, 'ready');
    const after = await p.jobOf(attachment.id);
    assert.deepEqual([after.attempts, after.crashes, after.fence], [2, 1, 2]);
  });

  test('that ended too often fails the job with worker_lost, in the claim', async (t) => {
    const p = await createPipeline(t, { crashesMax: 2 });
    const { attachment } = await p.upload('IMG 1');
    const job = await p.jobOf(attachment.id);
    for (let i = 0; i < 2; i += 1) {
      await eventually('claimed', async () => {
        const request = {
          jobId: job.id,
          attemptId: newId(),
          worker: 'dead',
          leaseMs: 50,
          marginMs: 0,
          versions: [1],
          budgets: p.settings,
          graceMs: 50,
          unsupportedMs: 1000,
        };
        return (await p.store.port.claim(request)).kind === 'claimed';
      });
    }
    p.startRelay();
    p.startWorker();
    const failed = await p.untilState(attachment.id, 'failed');
    assert.equal(failed.errorCode, 'worker_lost');
    await drained(p);
  });
});

describe('slots', () => {
  test('come first: a worker holds no more deliveries than it has slots', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, { renderConcurrency: 2, reringMs: 60_000, reringCapMs: 60_000 }, painter);
    for (let i = 0; i < 6; i += 1) await p.upload(`IMG ${i}`);
    p.startRelay();
    p.startWorker();
    await eventually('all are announced and both slots busy', async () => {
      const { waiting: w, inFlight } = await p.memory.depth();
      return w === 4 && inFlight === 2;
    });
    go();
    await eventually(
      'all are ready',
      async () => (await p.pool.query(`select 1 from attachments where state = 'ready'`)).rowCount === 6,
    );
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
          await new Promise((resolve) => setTimeout(resolve, 30));
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
        const request = {
          jobId: job.id,
          attemptId: newId(),
          worker: 'dead',
          leaseMs: 1,
          marginMs: 0,
          versions: [1],
          budgets: quick,
          graceMs: 50,
          unsupportedMs: 1000,
        };
        assert.equal((await p.store.port.claim(request)).kind, 'claimed');
      }
    }
    p.startRelay();
    p.startWorker();
    await eventually(
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
    await eventually(
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
  await eventually('the slow one ended', () => p.meter.counted('attempts_total') >= 2);
  assert.deepEqual(await p.attachment(attachment.id), ready);
  assert.equal(await settles(p), 1);
  for (const variant of ready.variants) assert.match(variant.key, /\/v1\.2-/);
});

test('a build without the recipe of a job’s version leaves it to another and spends nothing', async (t) => {
  const p = await createPipeline(t);
  const { attachment } = await p.upload('IMG 1');
  await ring(p, attachment.id);
  p.startWorker({ versions: [99] });
  await eventually('refused', () => p.meter.counted('claims_refused_total') === 1);
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
