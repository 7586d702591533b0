/** Step 6: the ends of an attempt. Their guard, their effect on both rows, and what goes to the clean-ups. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { attemptPrefix } from '../../src/pipeline/attachment.ts';
import type { Attempt } from '../../src/pipeline/job.ts';
import type { Store } from '../../src/pipeline/store.ts';
import { budgets, fail, release, resultOf, settle, startStore, times } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;
const prefixOf = (attempt: Attempt) =>
  attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);
const keysOf = async (s: Fixture, reason: string) =>
  (await s.cleanups()).filter((one) => one.reason === reason).map((one) => one.key);

const ends: [name: string, end: (store: Store, attempt: Attempt) => Promise<string>][] = [
  ['settle', (store, attempt) => settle(store, attempt)],
  ['fail', (store, attempt) => fail(store, attempt)],
  ['a permanent fail', (store, attempt) => fail(store, attempt, 'corrupt_image')],
  ['release', (store, attempt) => release(store, attempt)],
];

describe('a zombie', () => {
  const zombies: [title: string, change: (attempt: Attempt) => Attempt][] = [
    ['an older fence', (attempt) => ({ ...attempt, fence: attempt.fence - 1 })],
    ['another attempt id under the same fence', (attempt) => ({ ...attempt, attemptId: randomUUID() })],
  ];
  for (const [name, end] of ends) {
    for (const [title, change] of zombies) {
      it(`with ${title} changes no row by ${name}`, async (t) => {
        const s = await startStore(t);
        const { jobId } = await s.accept();
        await s.claimed(jobId);
        await s.endLease(jobId);
        const { attempt } = await s.claimed(jobId);
        const before = await s.everything();
        s.told.length = 0;
        assert.equal(await end(s.store, change(attempt)), 'lost');
        assert.equal(await s.everything(), before);
        assert.deepEqual(s.told, []);
      });
    }

    it(`changes no row by ${name} after its job succeeded, failed or was queued again`, async (t) => {
      const s = await startStore(t);
      const begun = async () => (await s.claimed((await s.accept()).jobId)).attempt;
      const [settled, failed, retried, released] = [await begun(), await begun(), await begun(), await begun()];
      await settle(s.store, settled);
      await fail(s.store, failed, 'corrupt_image');
      await fail(s.store, retried);
      await release(s.store, released);
      const before = await s.everything();
      for (const attempt of [settled, failed, retried, released]) {
        assert.equal(await end(s.store, attempt), 'lost');
      }
      assert.equal(await s.everything(), before);
    });

    it(`by ${name} after a deletion is told cancelled, and only its own folder goes to the clean-ups`, async (t) => {
      const s = await startStore(t);
      const { attempt } = await s.claimed((await s.accept()).jobId);
      await s.store.deleteAttachment(s.owner, attempt.attachmentId, { graceMs: times.graceMs });
      const rows = async () => [await s.jobRow(attempt.jobId), await s.attachmentRow(attempt.attachmentId)];
      const before = await rows();
      const queued = await s.cleanups();
      assert.equal(await end(s.store, attempt), 'cancelled');
      assert.deepEqual(await rows(), before);
      const added = { key: prefixOf(attempt), passes: 1, reason: 'cancelled', seconds: 60 };
      assert.deepEqual(await s.cleanups(), [...queued, added]);
    });

    it(`whose job was crashed away and then deleted is told lost by ${name}`, async (t) => {
      const s = await startStore(t);
      const { jobId, id } = await s.accept();
      const { attempt } = await s.claimed(jobId);
      await s.endLease(jobId);
      const { attempt: last } = await s.claimed(jobId);
      await s.store.deleteAttachment(s.owner, id, { graceMs: times.graceMs });
      const before = await s.everything();
      assert.equal(await end(s.store, attempt), 'lost');
      assert.equal(await end(s.store, { ...last, attemptId: randomUUID() }), 'lost');
      assert.equal(await end(s.store, { ...last, fence: last.fence - 1 }), 'lost');
      assert.equal(await s.everything(), before);
    });
  }
});

describe('settle', () => {
  it('of a first version publishes everything, gives staging up, and tells after it', async (t) => {
    const s = await startStore(t);
    const { id, jobId, upload } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    s.told.length = 0;
    const result = resultOf(attempt);
    assert.equal(await settle(s.store, attempt, result), 'ready');
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.ok(attachment);
    assert.deepEqual(attachment.variants, result.variants);
    assert.deepEqual(
      [attachment.state, attachment.pipelineVersion, attachment.originalKey, attachment.width, attachment.height],
      ['ready', 1, result.originalKey, 400, 300],
    );
    assert.deepEqual([attachment.frames, attachment.placeholder, attachment.errorCode], [1, 'AAAA', null]);
    assert.ok(attachment.readyAt);
    assert.ok((await s.attachmentRow(id)).staging_gone_at);
    const job = await s.jobRow(jobId);
    assert.deepEqual(
      [job.state, job.ring_at, job.rung_at, job.lease_until, job.error_code, job.attempt_id],
      ['succeeded', null, null, null, null, attempt.attemptId],
    );
    assert.ok(job.finished_at);
    assert.deepEqual(await s.cleanups(), [{ key: upload.stagingKey, passes: 0, reason: 'published', seconds: 0 }]);
    assert.deepEqual(s.told, [`changed ${id}`]);
  });

  it('publishes a file without variants', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept({ kind: 'file', contentType: 'application/pdf' });
    const { attempt } = await s.claimed(jobId);
    const result = { ...resultOf(attempt), width: null, height: null, frames: null, placeholder: null, variants: [] };
    assert.equal(await settle(s.store, attempt, result), 'ready');
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.state, attachment?.variants, attachment?.width], ['ready', [], null]);
  });

  it('forgets the error of an attempt before it', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await fail(s.store, (await s.claimed(jobId)).attempt);
    await s.endWait(jobId);
    await settle(s.store, (await s.claimed(jobId)).attempt);
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.error_code, row.error_detail, row.failures], [null, null, 1]);
  });

  it('of a newer version replaces the set, keeps the original and readyAt, and cleans the old variants later', async (t) => {
    const s = await startStore(t);
    const { id, result: old } = await s.ready();
    const before = await s.store.attachmentFor(s.owner, id);
    const { attempt } = await s.claimed(await s.addJob(id, 2));
    const result = resultOf(attempt, { withOriginal: false });
    assert.equal(await settle(s.store, attempt, result), 'ready');
    const after = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual(
      [after?.state, after?.pipelineVersion, after?.originalKey, after?.readyAt],
      ['ready', 2, old.originalKey, before?.readyAt],
    );
    assert.deepEqual(after?.variants, result.variants);
    const replaced = (await s.cleanups()).filter((one) => one.reason === 'replaced');
    assert.deepEqual(replaced.map((one) => one.key).sort(), old.variants.map((one) => one.key).sort());
    assert.ok(replaced.every((one) => one.seconds === 120));
    assert.ok(!(await s.cleanups()).some((one) => old.originalKey?.startsWith(one.key)), 'the original is named still');
  });

  it('cleans a second copy of the original, which no row will name', async (t) => {
    const s = await startStore(t);
    const { id, result: old } = await s.ready();
    const { attempt } = await s.claimed(await s.addJob(id, 2));
    const result = resultOf(attempt);
    assert.equal(await settle(s.store, attempt, result), 'ready');
    assert.equal((await s.store.attachmentFor(s.owner, id))?.originalKey, old.originalKey);
    assert.ok((await keysOf(s, 'replaced')).includes(result.originalKey ?? ''));
  });

  it('of an older version is superseded: the newer set stays, its own folder goes', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const older = await s.claimed(await s.addJob(id, 2));
    const newer = await s.claimed(await s.addJob(id, 3));
    assert.equal(await settle(s.store, newer.attempt, resultOf(newer.attempt, { withOriginal: false })), 'ready');
    const before = await s.store.attachmentFor(s.owner, id);
    s.told.length = 0;
    assert.equal(await settle(s.store, older.attempt, resultOf(older.attempt, { withOriginal: false })), 'superseded');
    const after = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual({ ...after, attempts: 0 }, { ...before, attempts: 0 });
    const job = await s.jobRow(older.attempt.jobId);
    assert.deepEqual([job.state, job.ring_at], ['superseded', null]);
    assert.deepEqual(await keysOf(s, 'superseded'), [prefixOf(older.attempt)]);
    assert.deepEqual(s.told, []);
  });

  it('of two versions at once leaves the newer one, whoever is first', async (t) => {
    const s = await startStore(t);
    for (let round = 0; round < 6; round += 1) {
      const { id } = await s.ready();
      const older = await s.claimed(await s.addJob(id, 2));
      const newer = await s.claimed(await s.addJob(id, 3));
      const [first, second] = await Promise.all(
        [older, newer].map(({ attempt }) => settle(s.store, attempt, resultOf(attempt, { withOriginal: false }))),
      );
      assert.equal(second, 'ready');
      assert.ok(first === 'ready' || first === 'superseded', first);
      const attachment = await s.store.attachmentFor(s.owner, id);
      assert.equal(attachment?.pipelineVersion, 3);
      assert.ok(attachment.variants.every((one) => one.key.startsWith(prefixOf(newer.attempt))));
    }
  });

  it('five times at once publishes once', async (t) => {
    const s = await startStore(t);
    const { attempt } = await s.claimed((await s.accept()).jobId);
    const answers = await Promise.all(Array.from({ length: 5 }, () => settle(s.store, attempt)));
    assert.deepEqual(answers.sort(), ['lost', 'lost', 'lost', 'lost', 'ready']);
    assert.equal((await s.store.job(attempt.jobId))?.events.length, 3);
  });

  it('refuses keys outside of the attempt, and a first result without an original, and writes nothing', async (t) => {
    const s = await startStore(t);
    const { attempt } = await s.claimed((await s.accept()).jobId);
    const result = resultOf(attempt);
    const before = await s.everything();
    const other = resultOf({ ...attempt, fence: 9 });
    await assert.rejects(async () => settle(s.store, attempt, { ...result, variants: other.variants }), {
      code: 'internal',
    });
    await assert.rejects(async () => settle(s.store, attempt, { ...result, originalKey: other.originalKey }), {
      code: 'internal',
    });
    await assert.rejects(settle(s.store, attempt, { ...result, originalKey: null }), { code: 'internal' });
    assert.equal(await s.everything(), before);
  });

  it('is all or nothing: a variant that cannot be written leaves the attempt running', async (t) => {
    const s = await startStore(t);
    const { attempt } = await s.claimed((await s.accept()).jobId);
    const result = resultOf(attempt);
    const [variant] = result.variants;
    assert.ok(variant);
    const before = await s.everything();
    await assert.rejects(settle(s.store, attempt, { ...result, variants: [{ ...variant, width: 0 }] }), {
      code: '23514',
    });
    assert.equal(await s.everything(), before);
    assert.equal(await settle(s.store, attempt, result), 'ready');
  });
});

describe('fail', () => {
  it('of a passing kind queues both again after the retry time, keeps staging and cleans its folder later', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    s.told.length = 0;
    assert.equal(await fail(s.store, attempt, 'storage_unavailable', 7_000), 'retried');
    const row = await s.jobRow(jobId);
    assert.deepEqual(
      [row.state, row.failures, row.strikes, row.fence, row.rung_at, row.lease_until, row.error_code, row.error_detail],
      ['queued', 1, 0, 1, null, null, 'storage_unavailable', 'because of storage_unavailable'],
    );
    assert.deepEqual(row.not_before, row.ring_at);
    const wait = (await s.secondsTo(jobId, 'ring_at')) ?? 0;
    assert.ok(wait > 4 && wait <= 7, String(wait));
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.state, attachment?.errorCode], ['queued', null]);
    assert.equal((await s.attachmentRow(id)).staging_gone_at, null);
    assert.deepEqual(await s.cleanups(), [{ key: prefixOf(attempt), passes: 1, reason: 'failed', seconds: 60 }]);
    assert.deepEqual(s.told, [`changed ${id}`, 'due']);
  });

  it('of a permanent kind fails both at once, and staging stays for a replay', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    s.told.length = 0;
    assert.equal(await fail(s.store, attempt, 'too_many_pixels'), 'failed');
    const row = await s.jobRow(jobId);
    assert.deepEqual(
      [row.state, row.failures, row.error_code, row.ring_at, row.lease_until],
      ['failed', 1, 'too_many_pixels', null, null],
    );
    assert.ok(row.finished_at);
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.state, attachment?.errorCode], ['failed', 'too_many_pixels']);
    assert.equal((await s.attachmentRow(id)).staging_gone_at, null);
    assert.deepEqual(await keysOf(s, 'published'), []);
    assert.deepEqual(s.told, [`changed ${id}`]);
  });

  it('fails when the budget of failures is spent', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const answers: string[] = [];
    for (let count = 0; count < budgets.attemptsMax; count += 1) {
      answers.push(await fail(s.store, (await s.claimed(jobId)).attempt));
      if (count + 1 < budgets.attemptsMax) await s.endWait(jobId);
    }
    assert.deepEqual(answers, ['retried', 'retried', 'retried', 'retried', 'failed']);
    assert.equal((await s.jobRow(jobId)).failures, 5);
  });

  it('fails at the second strike, also of another code and with failures between', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const answers: string[] = [];
    for (const code of ['render_timeout', 'internal', 'render_crashed'] as const) {
      answers.push(await fail(s.store, (await s.claimed(jobId)).attempt, code));
      if (code !== 'render_crashed') await s.endWait(jobId);
    }
    assert.deepEqual(answers, ['retried', 'retried', 'failed']);
    assert.equal((await s.jobRow(jobId)).strikes, 2);
  });

  it('of a newer version leaves a ready attachment ready', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const jobId = await s.addJob(id, 2);
    const before = await s.attachmentRow(id);
    s.told.length = 0;
    assert.equal(await fail(s.store, (await s.claimed(jobId)).attempt), 'retried');
    await s.endWait(jobId);
    assert.equal(await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image'), 'failed');
    assert.deepEqual(await s.attachmentRow(id), before);
    assert.deepEqual(s.told, ['due']);
  });

  it('keeps a detail with a NUL byte or of any length legible', async (t) => {
    const s = await startStore(t);
    const { attempt } = await s.claimed((await s.accept()).jobId);
    const failure = { code: 'internal', detail: `a\0b${'x'.repeat(5_000)}`, retryMs: 1 } as const;
    assert.equal(await s.store.fail(attempt, failure, { budgets, graceMs: 1, who: 'w' }), 'retried');
    const detail = String((await s.jobRow(attempt.jobId)).error_detail);
    assert.ok(detail.startsWith('a\uFFFDb'));
    assert.equal(detail.length, 2_000);
  });
});

describe('release', () => {
  it('queues both again without a failure, claimable at once or after the delay', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    s.told.length = 0;
    assert.equal(await release(s.store, attempt), 'released');
    const row = await s.jobRow(jobId);
    assert.deepEqual(
      [row.state, row.releases, row.failures, row.crashes, row.attempts, row.rung_at, row.lease_until],
      ['queued', 1, 0, 0, 1, null, null],
    );
    assert.equal((await s.store.attachmentFor(s.owner, id))?.state, 'queued');
    assert.deepEqual(await s.cleanups(), [{ key: prefixOf(attempt), passes: 1, reason: 'released', seconds: 60 }]);
    assert.deepEqual(s.told, [`changed ${id}`, 'due']);
    assert.equal((await s.store.job(jobId))?.events.at(-1)?.detail, 'drain');
    const again = await s.claimed(jobId);
    assert.equal(await release(s.store, again.attempt, 60_000), 'released');
    assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'not_yet' });
    assert.equal((await s.jobRow(jobId)).releases, 2);
  });

  it('spends no budget, however often', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    for (let count = 0; count < 8; count += 1) {
      assert.equal(await release(s.store, (await s.claimed(jobId)).attempt), 'released');
    }
    assert.equal(await settle(s.store, (await s.claimed(jobId)).attempt), 'ready');
  });

  it('after the lease ended is still its holder’s, as long as nobody claimed', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    await s.endLease(jobId);
    assert.equal(await release(s.store, attempt), 'released');
    assert.equal((await s.jobRow(jobId)).crashes, 0);
  });
});
