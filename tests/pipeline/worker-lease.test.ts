/** Steps 3 and 6, leases: unknown outcomes are read back, renewals keep a claim, and who lost it is silent. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { SkrepkaError } from '../../src/errors.ts';
import { newId } from '../../src/ids.ts';
import { giveUp, Interrupted } from '../../src/pipeline/outcome.ts';
import { away, deadClaim, drained, failing, lost, ring, settles, waiting } from '../support/attempts.ts';
import { createPipeline, quick } from '../support/pipeline.ts';
import { createTally, silent } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

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
    const p = await createPipeline(t, { leaseMs: 6000, visibilityMs: 7500 }, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await until('renewed past the first lease and the visibility', () => p.store.calls('renew') >= 34);
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
    // It is stored beside the rendering, while the lease is held.
    const before = await until('its original is stored', async () => {
      const keys = await p.keys('attachments/');
      return keys.length === 1 ? keys : null;
    });
    // Another worker's claim, as after a lease that ended.
    await p.pool.query(
      `update jobs set fence = fence + 1, attempt_id = gen_random_uuid(), lease_until = now() + interval '1 hour'`,
    );
    await until('the worker noticed', () => p.meter.counted('leases_broken_total') === 1);
    go();
    await until('the worker is free', () => p.meter.counted('attempts_total') === 1);
    assert.equal(p.store.calls('settle') + p.store.calls('fail') + p.store.calls('release'), 0);
    assert.equal((await p.memory.depth()).inFlight, 1);
    assert.deepEqual(await p.keys('attachments/'), before);
  });

  test('whose renewals hang ends by the worker’s own deadline, and only a fenced release follows', async (t) => {
    const { painter } = waiting();
    const p = await createPipeline(t, { renderConcurrency: 1, leaseMs: 2000, visibilityMs: 2600 }, painter);
    p.store.plan('renew', ...Array.from({ length: 10 }, () => ({ hang: true as const })));
    const { attachment } = await p.upload('IMG 1');
    await ring(p, attachment.id);
    p.startWorker();
    await until('released', () => p.meter.counted('attempts_total', { outcome: 'released' }) === 1);
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.state, job.releases, job.failures, job.crashes], ['queued', 1, 0, 0]);
    assert.equal(p.store.calls('settle'), 0);
  });

  test('is kept while a failure waits for the store, and once it is lost the failure is not said again', async (t) => {
    const p = await createPipeline(t, { visibilityMs: 60_000, renderConcurrency: 1 }, failing('internal'));
    p.store.plan('fail', ...Array.from({ length: 100 }, () => ({ before: away })));
    const { attachment } = await p.upload('IMG 1');
    await ring(p, attachment.id);
    p.startWorker();
    await until('it is renewed meanwhile', () => p.store.calls('fail') > 0 && p.store.calls('renew') > 0);
    await p.pool.query(
      `update jobs set fence = fence + 1, attempt_id = gen_random_uuid(), lease_until = now() + interval '1 hour'`,
    );
    await until('the worker is free', () => p.meter.counted('attempts_total', { outcome: 'lost' }) === 1);
    assert.equal(p.meter.counted('leases_broken_total', { why: 'lost' }), 1);
  });

  test('that ended while its worker stood still has its turn before a failure is said again', async () => {
    const lease = new AbortController();
    let said = 0;
    const fail = async () => {
      said += 1;
      throw lost();
    };
    // Of two timers that are over when a process wakes, the shorter one goes first, and the promises that it settles.
    const sleep = async (ms: number) => (ms === 0 ? lease.abort(new Interrupted('expired')) : undefined);
    const clock = { monotonicMs: () => 0, wallMs: () => 0, random: () => 0, newId, sleep };
    const readAttempt = async () => ({ kind: 'gone' });
    const deps = { store: { fail, readAttempt }, clock, log: silent, meter: createTally(), who: 'w' };
    const attempt = { jobId: newId(), attachmentId: newId(), version: 1, fence: 1, attemptId: newId() };
    const given = [{ attempt, failures: 0 }, new SkrepkaError('internal'), deps, quick, lease.signal];
    assert.equal(await giveUp(...(given as unknown as Parameters<typeof giveUp>)), 'lost');
    assert.equal(said, 1);
  });

  test('that fails to renew for a moment is kept', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, {}, painter);
    p.store.plan('renew', { before: away }, { before: lost });
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await until('renewed again', () => p.store.calls('renew') >= 5);
    go();
    await p.untilState(attachment.id, 'ready');
    assert.equal((await p.jobOf(attachment.id)).attempts, 1);
  });

  test('of a dead worker is taken over by another when it ends, as a crash', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    const job = await p.jobOf(attachment.id);
    const claim = deadClaim(job.id, 300);
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
      await until('claimed', async () => {
        const request = deadClaim(job.id, 50, p.settings);
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
