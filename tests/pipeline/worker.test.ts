/** Steps 3 to 7, results: one settle a job, every failure counted once, nothing spent on outages. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/ids.ts';
import { encodeRing, ringId } from '../../src/pipeline/job.ts';
import { BlobError, ImagesError, ScratchError } from '../../src/pipeline/ports.ts';
import { away, drained, failing, type Pipeline, ring, settles } from '../support/attempts.ts';
import { createPipeline } from '../support/pipeline.ts';
import { createPainter } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

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
        // Others are read back meanwhile.
        const ofKey = { first: async ([opened]: readonly unknown[]) => void (opened === key && (await spoil(p, key))) };
        p.blobs.plan('open', ofKey, ofKey, ofKey);
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

  test('of the worker’s own disk: the claim is given back, nothing is spent', async (t) => {
    const p = await createPipeline(t);
    p.scratch.plan('open', ...Array.from({ length: 3 }, () => ({ before: () => new ScratchError('no space left') })));
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.failures, job.crashes, job.releases], [0, 0, 3]);
  });

  test('of the worker’s own disk: nothing more is taken until it can be written again, and it is told once', async (t) => {
    const p = await createPipeline(t);
    let full = true;
    const room = { first: async () => void (full && raise(new ScratchError('no space left'))) };
    for (const verb of ['open', 'health'] as const) p.scratch.plan(verb, ...Array.from({ length: 100 }, () => room));
    const uploads = await Promise.all(Array.from({ length: 8 }, (_, at) => p.upload(`IMG ${at}`)));
    p.startRelay();
    p.startWorker();
    await until('it was looked for room in vain', () => p.scratch.calls('health') >= 4);
    // Whoever was at it when the disk was full, and nobody after: two slots.
    assert.ok(p.store.calls('claim') <= 2, `${p.store.calls('claim')} claims`);
    const told = () => p.meter.gauged('breaker_open', { dependency: 'disk' });
    assert.deepEqual(told(), [0, 1]);
    full = false;
    for (const { attachment } of uploads) await p.untilState(attachment.id, 'ready');
    assert.deepEqual(told(), [0, 1, 0]);
    const jobs = await Promise.all(uploads.map(({ attachment }) => p.jobOf(attachment.id)));
    assert.ok(jobs.every(({ failures, crashes }) => failures === 0 && crashes === 0));
  });

  test('of the worker’s own renderer: the claim is given back, nothing is spent', async (t) => {
    let failing = 3;
    const painter = createPainter(async () => {
      if (failing-- > 0) throw new ImagesError('no child starts');
    });
    const p = await createPipeline(t, {}, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'ready');
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.failures, job.crashes, job.releases], [0, 0, 3]);
  });

  test('of the worker’s own disk at its start: nothing is taken until it can be used', async (t) => {
    const p = await createPipeline(t);
    p.scratch.plan('sweep', ...Array.from({ length: 3 }, () => ({ before: () => new ScratchError('read-only') })));
    const { attachment } = await p.upload('IMG 1');
    p.startRelay();
    p.startWorker();
    await until('asked in vain twice', () => p.scratch.calls('sweep') >= 2);
    assert.equal(p.store.calls('claim'), 0);
    await p.untilState(attachment.id, 'ready');
    assert.equal((await p.jobOf(attachment.id)).attempts, 1);
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

function raise(error: Error): never {
  throw error;
}
