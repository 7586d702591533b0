/**
 * Claims and ends that are one statement each, against whatever may happen at once. READ COMMITTED: the statement sees what was
 * committed when it began, and looks again only at rows that it had to wait for. Here it waits, and the rows change meanwhile.
 */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { replayHistory } from '../../src/postgres/history.ts';
import { startStore, times } from '../support/store.ts';

/** Enough for each order of two verbs to come about many times: which is first is up to the server. */
const rounds = 60;

async function start(t: TestContext) {
  const s = await startStore(t);
  const remove = (id: string) => s.store.deleteAttachment(s.owner, id, { graceMs: times.graceMs });
  /** The job's history adds up to its row. Answers its reasons, in order. */
  const explained = async (jobId: string) => {
    const found = (await s.store.job(jobId)) ?? assert.fail();
    const { state, generation, fence, attempts, failures, crashes, releases } = found.job;
    const row = { state, generation, fence, attempts, failures, crashes, releases };
    assert.deepEqual(replayHistory(found.events), row);
    return found.events.map(({ reason }) => reason);
  };
  /** Runs `verb` while another transaction has locked a row, changes what it will find, and commits. */
  const changedMeanwhile = async <T>(
    lock: { table: 'attachments' | 'jobs'; id: string },
    change: readonly [text: string, ...values: string[]],
    verb: () => Promise<T>,
  ): Promise<T> => {
    const other = await s.pool.connect();
    try {
      await other.query('begin');
      await other.query(`select from ${lock.table} where id = $1 for no key update`, [lock.id]);
      const result = verb();
      await s.untilLocked();
      const [text, ...values] = change;
      assert.equal((await other.query(text, values)).rowCount, 1);
      await other.query('commit');
      return await result;
    } finally {
      other.release();
    }
  };
  return { ...s, remove, explained, changedMeanwhile };
}

/** Both at once; the one that is sent first changes from round to round. */
async function together<A, B>(round: number, a: () => Promise<A>, b: () => Promise<B>): Promise<[A, B]> {
  if (round % 2 === 0) return await Promise.all([a(), b()]);
  const [second, first] = await Promise.all([b(), a()]);
  return [first, second];
}

describe('a claim that waited for a lock', () => {
  const changes: [title: string, set: string, kind: string, writes: boolean][] = [
    ['put off', `not_before = now() + interval '1 hour'`, 'not_yet', false],
    [
      'claimed by another',
      `state = 'processing', fence = fence + 1, attempt_id = gen_random_uuid(), lease_until = now() + interval '1 hour'`,
      'leased',
      false,
    ],
    ['cancelled', `state = 'cancelled', ring_at = null, rung_at = null, finished_at = now()`, 'finished', false],
    ['rung once more', `rung_at = now() - interval '7 seconds', ring_at = now() + interval '1 hour'`, 'claimed', true],
  ];
  for (const table of ['attachments', 'jobs'] as const) {
    for (const [title, set, kind, writes] of changes) {
      it(`on ${table} finds the job ${title} meanwhile: ${kind}`, async (t) => {
        const s = await start(t);
        const { id, jobId } = await s.accept();
        const lock = { table, id: table === 'jobs' ? jobId : id };
        const change = [`update jobs set ${set} where id = $1`, jobId] as const;
        const events = await s.explained(jobId);
        const result = await s.changedMeanwhile(lock, change, () => s.claim(jobId));
        assert.equal(result.kind === 'refused' ? result.reason : result.kind, kind);
        const row = await s.jobRow(jobId);
        assert.equal(row.attempts, writes ? 1 : 0);
        // From the row as it is, not as it was when the claim began to wait.
        if (writes) assert.ok(Number(row.waited_ms) >= 7_000);
        const found = await s.store.job(jobId);
        assert.equal(found?.events.length, events.length + (writes ? 1 : 0));
        assert.equal((await s.attachmentRow(id)).state, writes ? 'processing' : 'queued');
      });
    }
  }

  it('on the attachment takes a job that came to be due meanwhile', async (t) => {
    const s = await start(t);
    const { id, jobId } = await s.accept();
    await s.pool.query(`update jobs set not_before = now() + interval '1 hour' where id = $1`, [jobId]);
    const change = ['update jobs set not_before = now() where id = $1', jobId] as const;
    const result = await s.changedMeanwhile({ table: 'attachments', id }, change, () => s.claim(jobId));
    assert.equal(result.kind, 'claimed');
    assert.deepEqual(await s.explained(jobId), ['accepted', 'claimed']);
  });

  it('on the attachment leaves it as it is when a version was published meanwhile', async (t) => {
    const s = await start(t);
    const { id, jobId } = await s.accept();
    s.told.length = 0;
    const change = [
      `update attachments set state = 'ready', pipeline_version = 1, original_key = 'x', ready_at = now() where id = $1`,
      id,
    ] as const;
    const result = await s.changedMeanwhile({ table: 'attachments', id }, change, () => s.claim(jobId));
    assert.equal(result.kind === 'claimed' && result.claim.originalKey, 'x');
    assert.equal((await s.attachmentRow(id)).state, 'ready');
    assert.deepEqual(s.told, []);
  });
});

describe('claims at once', () => {
  it('of one job give one attempt, and leave the others nothing', async (t) => {
    const s = await start(t);
    for (let round = 0; round < rounds; round += 1) {
      const { jobId } = await s.accept();
      const results = await Promise.all([1, 2, 3].map(() => s.claim(jobId)));
      const kinds = results.map((result) => (result.kind === 'refused' ? result.reason : result.kind));
      assert.deepEqual(kinds.sort(), ['claimed', 'leased', 'leased']);
      assert.deepEqual(await s.explained(jobId), ['accepted', 'claimed']);
    }
  });

  it('and a deletion leave the job cancelled, whoever is first', async (t) => {
    const s = await start(t);
    for (let round = 0; round < rounds; round += 1) {
      const { id, jobId } = await s.accept();
      const [claim, removed] = await together(
        round,
        () => s.claim(jobId),
        () => s.remove(id),
      );
      assert.ok(removed);
      const reasons = await s.explained(jobId);
      const begun = claim.kind === 'claimed';
      assert.deepEqual(reasons, begun ? ['accepted', 'claimed', 'cancelled'] : ['accepted', 'cancelled']);
      assert.ok(begun || claim.reason === 'finished');
    }
  });
});
