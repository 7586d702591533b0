/** Replay: a failed job gets a new generation, once, and everything else says why not and changes nothing. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import type { Attempt } from '../../src/pipeline/job.ts';
import { addUser, budgets, byOperator, fail, release, resultOf, settle, startStore, times } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

/** Failed with every counter above zero, after rings that were confirmed. */
async function worn(s: Fixture) {
  const { id, jobId } = await s.accept();
  await release(s.store, (await s.claimed(jobId)).attempt);
  await fail(s.store, (await s.claimed(jobId)).attempt, 'render_timeout');
  await s.endWait(jobId);
  await s.claimed(jobId);
  await s.endLease(jobId);
  const [ring] = await s.store.takeDue({ limit: 1, window: 1, takenMs: 1 });
  assert.ok(ring);
  await s.store.markRung(ring, { baseMs: 1, capMs: 1, jitter: 1 });
  const { attempt } = await s.claimed(jobId);
  assert.equal(await fail(s.store, attempt, 'render_timeout'), 'failed');
  return { id, jobId, attempt };
}

describe('a replay', () => {
  it('queues a failed job and its attachment again in a new generation, and tells of both after it', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await worn(s);
    const before = await s.jobRow(jobId);
    assert.deepEqual(
      [before.failures, before.strikes, before.crashes, before.releases, before.attempts, before.rings],
      [2, 2, 1, 1, 4, 1],
    );
    s.told.length = 0;
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    assert.deepEqual(s.told, [`changed ${id}`, 'due']);
    const row = await s.jobRow(jobId);
    assert.deepEqual(
      [row.state, row.generation, row.failures, row.strikes, row.crashes, row.releases, row.confirmed, row.rebuild],
      ['queued', 2, 0, 0, 0, 0, 0, false],
    );
    assert.deepEqual([row.error_code, row.error_detail, row.finished_at, row.rung_at], [null, null, null, null]);
    assert.deepEqual([row.attempts, row.rings, row.fence], [before.attempts, before.rings, before.fence]);
    assert.ok(((await s.secondsTo(jobId, 'ring_at')) ?? 1) <= 0);
    assert.ok(((await s.secondsTo(jobId, 'not_before')) ?? 1) <= 0);
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.state, attachment?.errorCode], ['queued', null]);
    const event = (await s.store.job(jobId))?.events.at(-1);
    assert.deepEqual(
      [event?.reason, event?.from, event?.to, event?.who, event?.fence],
      ['replayed', 'failed', 'queued', 'operator', before.fence],
    );
  });

  it('leads to ready under a higher fence, with its whole budget anew', async (t) => {
    const s = await startStore(t);
    const { id, jobId, attempt } = await worn(s);
    await s.store.replay(jobId, byOperator);
    const [ring] = await s.store.takeDue({ limit: 1, window: 1, takenMs: 1 });
    assert.equal(ring?.ring, 2);
    for (let crash = 1; crash < budgets.crashesMax; crash += 1) {
      await s.claimed(jobId);
      await s.endLease(jobId);
    }
    const last = await s.claimed(jobId);
    assert.equal(last.attempt.fence, attempt.fence + budgets.crashesMax);
    assert.equal(await settle(s.store, last.attempt), 'ready');
    assert.equal((await s.store.attachmentFor(s.owner, id))?.state, 'ready');
  });

  it('that fails again can be replayed again, as the third generation', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.failed();
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    assert.equal(await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image'), 'failed');
    assert.equal((await s.store.attachmentFor(s.owner, id))?.errorCode, 'corrupt_image');
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    assert.equal((await s.jobRow(jobId)).generation, 3);
  });

  it('begins with the first wait between rings, however often the generation before was announced', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const { attempt } = await s.claimed(jobId);
    await s.endLease(jobId);
    const [ring] = await s.store.takeDue({ limit: 1, window: 1, takenMs: 1 });
    assert.ok(ring);
    await s.store.markRung(ring, { baseMs: 1, capMs: 1, jitter: 1 });
    assert.equal(await fail(s.store, attempt, 'corrupt_image'), 'failed');
    await s.store.replay(jobId, byOperator);
    const [again] = await s.store.takeDue({ limit: 1, window: 1, takenMs: 1 });
    assert.equal(again?.again, false);
    assert.equal((await s.jobRow(jobId)).confirmed, 0);
  });

  it('waits a step behind the waiting jobs of its owner, and behind nobody else’s', async (t) => {
    const s = await startStore(t);
    const other = await addUser(s.pool, 'other');
    const { jobId } = await s.failed();
    const waiting = await s.accept();
    await s.pool.query(`update jobs set turn = now() + interval '1 hour' where id = $1`, [waiting.jobId]);
    const last = await s.turnOf(waiting.jobId);
    assert.equal(await s.store.replay(jobId, { who: 'operator', spacingMs: 7_000 }), 'replayed');
    assert.equal((await s.turnOf(jobId)) - last, 7_000);
    const foreign = await s.failed({ ownerId: other });
    assert.equal(await s.store.replay(foreign.jobId, { who: 'operator', spacingMs: 7_000 }), 'replayed');
    assert.ok((await s.turnOf(foreign.jobId)) < last);
  });

  it('of a newer version’s job needs the published original, not staging, and leaves the attachment ready', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const jobId = await s.addJob(id, 2);
    await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    assert.ok((await s.attachmentRow(id)).staging_gone_at);
    const before = await s.attachmentRow(id);
    s.told.length = 0;
    assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
    assert.deepEqual(await s.attachmentRow(id), before);
    assert.deepEqual(s.told, ['due']);
    const { attempt, originalKey } = await s.claimed(jobId);
    assert.equal(originalKey, before.original_key);
    assert.equal(await settle(s.store, attempt, resultOf(attempt, { withOriginal: false })), 'ready');
    assert.equal((await s.store.attachmentFor(s.owner, id))?.pipelineVersion, 2);
  });
});

const refusals: [title: string, answer: string, make: (s: Fixture) => Promise<{ jobId: string }>][] = [
  ['for a queued job', 'job_unfinished', (s) => s.accept()],
  [
    'for a running job',
    'job_unfinished',
    async (s) => {
      const { jobId } = await s.accept();
      await s.claimed(jobId);
      return { jobId };
    },
  ],
  [
    'for a job that waits for its retry',
    'job_unfinished',
    async (s) => {
      const { jobId } = await s.accept();
      await fail(s.store, (await s.claimed(jobId)).attempt);
      return { jobId };
    },
  ],
  [
    'for a job that was replayed before',
    'job_unfinished',
    async (s) => {
      const { jobId } = await s.failed();
      assert.equal(await s.store.replay(jobId, byOperator), 'replayed');
      return { jobId };
    },
  ],
  ['for a succeeded job', 'already_succeeded', (s) => s.ready()],
  [
    'for a superseded job',
    'job_ended',
    async (s) => {
      const { id } = await s.ready();
      const older = await s.claimed(await s.addJob(id, 2));
      const newer = await s.claimed(await s.addJob(id, 3));
      await settle(s.store, newer.attempt, resultOf(newer.attempt, { withOriginal: false }));
      assert.equal(await settle(s.store, older.attempt), 'superseded');
      return { jobId: older.attempt.jobId };
    },
  ],
  [
    'for a cancelled job',
    'job_ended',
    async (s) => {
      const accepted = await s.accept();
      await s.store.deleteAttachment(s.owner, accepted.id, { graceMs: 1 });
      return accepted;
    },
  ],
  [
    'for the failed job of a deleted attachment',
    'job_ended',
    async (s) => {
      const failed = await s.failed();
      await s.store.deleteAttachment(s.owner, failed.id, { graceMs: 1 });
      return failed;
    },
  ],
  [
    'for the succeeded job of a deleted attachment',
    'job_ended',
    async (s) => {
      const ready = await s.ready();
      await s.store.deleteAttachment(s.owner, ready.id, { graceMs: 1 });
      return ready;
    },
  ],
  [
    'for a failed job below the version that is published',
    'job_ended',
    async (s) => {
      const { id } = await s.ready();
      const jobId = await s.addJob(id, 2);
      await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
      const newer = await s.claimed(await s.addJob(id, 3));
      await settle(s.store, newer.attempt, resultOf(newer.attempt, { withOriginal: false }));
      return { jobId };
    },
  ],
  [
    'when staging of a first version is gone',
    'staging_gone',
    async (s) => {
      const failed = await s.failed();
      await s.pool.query('update attachments set staging_gone_at = now() where id = $1', [failed.id]);
      return failed;
    },
  ],
  ['for an unknown job', 'not_found', async () => ({ jobId: newId() })],
  ['for a name that is no id', 'not_found', async () => ({ jobId: `'; drop table jobs; --` })],
];

describe('a replay that is refused', () => {
  for (const [title, answer, make] of refusals) {
    it(`says ${answer} ${title}, and changes and tells nothing`, async (t) => {
      const s = await startStore(t);
      const { jobId } = await make(s);
      const before = await s.everything();
      s.told.length = 0;
      assert.equal(await s.store.replay(jobId, byOperator), answer);
      assert.equal(await s.everything(), before);
      assert.deepEqual(s.told, []);
    });
  }
});

describe('replays at once', () => {
  it('of one job have one winner, one generation and one event', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const { jobId } = await s.failed();
    const answers = await Promise.all(Array.from({ length: 10 }, () => s.store.replay(jobId, byOperator)));
    assert.deepEqual(answers.sort(), [...Array.from({ length: 9 }, () => 'job_unfinished'), 'replayed']);
    assert.equal((await s.jobRow(jobId)).generation, 2);
    const events = (await s.store.job(jobId))?.events ?? [];
    assert.equal(events.filter((event) => event.reason === 'replayed').length, 1);
  });

  it('with a deletion leave no unfinished job of a deleted attachment, whoever comes first', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const jobs = await Promise.all(Array.from({ length: 12 }, () => s.failed()));
    const answers = await Promise.all(
      jobs.map(async ({ id, jobId }, index) => {
        const remove = () => s.store.deleteAttachment(s.owner, id, { graceMs: 1 });
        const replay = () => s.store.replay(jobId, byOperator);
        const first = index % 2 === 0 ? remove() : null;
        const [replayed] = await Promise.all([replay(), first ?? remove()]);
        return replayed;
      }),
    );
    assert.ok(answers.every((answer) => answer === 'replayed' || answer === 'job_ended'));
    for (const [index, { jobId }] of jobs.entries()) {
      const expected: string = answers[index] === 'replayed' ? 'cancelled' : 'failed';
      assert.equal((await s.jobRow(jobId)).state, expected);
    }
  });

  it('wait for the lock that a deletion holds, and then see it', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.failed();
    const client = await s.pool.connect();
    try {
      await client.query('begin');
      await client.query('update attachments set deleted_at = now() where id = $1', [id]);
      const replayed = s.store.replay(jobId, byOperator);
      await s.untilLocked();
      await client.query('commit');
      assert.equal(await replayed, 'job_ended');
    } finally {
      client.release();
    }
    assert.equal((await s.jobRow(jobId)).state, 'failed');
  });
});

describe('a zombie of the generation before', () => {
  const verbs: [name: string, act: (s: Fixture, attempt: Attempt) => Promise<unknown>, answer: unknown][] = [
    ['settle', (s, attempt) => settle(s.store, attempt), 'lost'],
    ['fail', (s, attempt) => fail(s.store, attempt), 'lost'],
    ['release', (s, attempt) => release(s.store, attempt), 'lost'],
    ['renew', (s, attempt) => s.store.renew(attempt, times), false],
  ];
  for (const [name, act, answer] of verbs) {
    it(`changes nothing by ${name}, neither while the replayed job waits nor while it runs`, async (t) => {
      const s = await startStore(t);
      const { jobId, attempt } = await s.failed();
      await s.store.replay(jobId, byOperator);
      const waiting = await s.everything();
      assert.equal(await act(s, attempt), answer);
      assert.equal(await s.everything(), waiting);
      const successor = await s.claimed(jobId);
      const running = await s.everything();
      assert.equal(await act(s, attempt), answer);
      assert.equal(await s.everything(), running);
      assert.equal(await settle(s.store, successor.attempt), 'ready');
    });
  }

  it('cannot mark a ring of the generation before', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const [ring] = await s.store.takeDue({ limit: 1, window: 1, takenMs: 1 });
    assert.ok(ring);
    await fail(s.store, (await s.claimed(jobId)).attempt, 'corrupt_image');
    await s.store.replay(jobId, byOperator);
    const before = await s.everything();
    assert.equal(await s.store.markRung(ring, { baseMs: 1, capMs: 1, jitter: 1 }), false);
    assert.equal(await s.everything(), before);
  });
});
