/**
 * Claims and ends that are one statement each, against whatever may happen at once. READ COMMITTED: the statement sees what was
 * committed when it began, and looks again only at rows that it had to wait for. Here it waits, and the rows change meanwhile.
 */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { replayHistory } from '../../src/postgres/history.ts';
import { resultOf, settle, startStore, times } from '../support/store.ts';

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

describe('a first settle that waited for a lock', () => {
  const end = `lease_until = null, ring_at = null, rung_at = null, finished_at = now()`;
  const again = `fence = fence + 1, attempt_id = gen_random_uuid(), crashes = crashes + 1, attempts = attempts + 1`;
  const changes: [title: string, table: 'attachments' | 'jobs', set: string, kind: string][] = [
    ['the job claimed again', 'jobs', again, 'lost'],
    ['the fence alone moved', 'jobs', 'fence = fence + 1', 'lost'],
    ['another attempt under the same fence', 'jobs', 'attempt_id = gen_random_uuid()', 'lost'],
    ['the job failed', 'jobs', `state = 'failed', ${end}`, 'lost'],
    ['the job cancelled', 'jobs', `state = 'cancelled', ${end}`, 'cancelled'],
    ['its lease over and its bell rung', 'jobs', `lease_until = now() - interval '1 second', rung_at = now()`, 'ready'],
    [
      'a newer version published',
      'attachments',
      `state = 'ready', pipeline_version = 2, original_key = 'x', ready_at = now()`,
      'superseded',
    ],
    ['its description written', 'attachments', `alt = 'a cat'`, 'ready'],
  ];
  for (const waitsFor of ['attachments', 'jobs'] as const) {
    for (const [title, table, set, kind] of changes) {
      // Whoever changes an attachment has its lock, and not that of the job alone.
      if (waitsFor === 'jobs' && table === 'attachments') continue;
      it(`on ${waitsFor} finds ${title} meanwhile: ${kind}`, async (t) => {
        const s = await start(t);
        const { id, jobId } = await s.accept();
        const { attempt } = await s.claimed(jobId);
        const ids = { attachments: id, jobs: jobId };
        const change = [`update ${table} set ${set} where id = $1`, ids[table]] as const;
        const lock = { table: waitsFor, id: ids[waitsFor] };
        assert.equal(await s.changedMeanwhile(lock, change, () => settle(s.store, attempt)), kind);
        const row = await s.attachmentRow(id);
        const published = kind === 'ready';
        assert.equal(row.pipeline_version, published ? 1 : kind === 'superseded' ? 2 : 0);
        assert.equal(row.alt, table === 'attachments' && published ? 'a cat' : null);
        const { rowCount } = await s.pool.query('select from variants where attachment_id = $1', [id]);
        assert.equal(rowCount, published ? 3 : 0);
        assert.equal((await s.cleanups()).filter(({ reason }) => reason === 'published').length, published ? 1 : 0);
        if (published) assert.deepEqual(await s.explained(jobId), ['accepted', 'claimed', 'settled']);
      });
    }
  }
});

describe('first settles at once', () => {
  it('with a deletion leave nothing readable, and what was stored to the clean-ups', async (t) => {
    const s = await start(t);
    for (let round = 0; round < rounds; round += 1) {
      const { id, jobId } = await s.accept();
      const { attempt } = await s.claimed(jobId);
      const [settled, removed] = await together(
        round,
        () => settle(s.store, attempt),
        () => s.remove(id),
      );
      assert.ok(removed);
      assert.ok(settled === 'ready' || settled === 'cancelled', settled);
      assert.equal((await s.explained(jobId)).at(-1), settled === 'ready' ? 'settled' : 'cancelled');
      assert.equal(await s.store.attachmentFor(s.owner, id), null);
      const { rowCount } = await s.pool.query('select from variants where attachment_id = $1', [id]);
      assert.equal(rowCount, 0);
      assert.ok((await s.cleanups()).some(({ key }) => key === `attachments/${id}/`));
    }
  });

  it('of two versions leave the newer one, with one original and one set', async (t) => {
    const s = await start(t);
    for (let round = 0; round < rounds; round += 1) {
      const { id, jobId } = await s.accept();
      const newerId = await s.addJob(id, 2);
      const [older, newer] = [await s.claimed(jobId), await s.claimed(newerId)];
      const [first, second] = await together(
        round,
        () => settle(s.store, older.attempt),
        () => settle(s.store, newer.attempt),
      );
      assert.equal(second, 'ready');
      assert.ok(first === 'ready' || first === 'superseded', first);
      const row = await s.attachmentRow(id);
      const of = ({ attempt }: typeof older) => resultOf(attempt).originalKey;
      assert.deepEqual([row.pipeline_version, row.original_key], [2, of(first === 'ready' ? older : newer)]);
      const attachment = await s.store.attachmentFor(s.owner, id);
      const keys = attachment?.variants.map(({ key }) => key);
      assert.deepEqual(
        keys,
        resultOf(newer.attempt).variants.map(({ key }) => key),
      );
      for (const one of [jobId, newerId]) await s.explained(one);
    }
  });

  it('with the claim after a lease that ended: one of them has the job', async (t) => {
    const s = await start(t);
    const firsts = { settle: 0, claim: 0 };
    for (let round = 0; round < rounds; round += 1) {
      const { id, jobId } = await s.accept();
      const { attempt } = await s.claimed(jobId);
      await s.endLease(jobId);
      const [settled, claim] = await together(
        round,
        async () => {
          // A claim after a crash takes several statements: the settle comes before, between and after them.
          for (let n = 0; n < round % 8; n += 1) await s.pool.query('select');
          return await settle(s.store, attempt);
        },
        () => s.claim(jobId),
      );
      const begun = claim.kind === 'claimed';
      assert.equal(settled, begun ? 'lost' : 'ready');
      firsts[begun ? 'claim' : 'settle'] += 1;
      if (begun) assert.equal(await settle(s.store, claim.claim.attempt), 'ready');
      const reasons = begun ? ['claimed', 'crashed', 'settled'] : ['claimed', 'settled'];
      assert.deepEqual(await s.explained(jobId), ['accepted', ...reasons]);
      const { original_key } = await s.attachmentRow(id);
      assert.equal(original_key, resultOf(begun ? claim.claim.attempt : attempt).originalKey);
    }
    t.diagnostic(`first: ${JSON.stringify(firsts)}`);
  });

  it('of one attempt publish once', async (t) => {
    const s = await start(t);
    for (let round = 0; round < rounds / 2; round += 1) {
      const { jobId } = await s.accept();
      const { attempt } = await s.claimed(jobId);
      const kinds = await Promise.all([1, 2, 3].map(() => settle(s.store, attempt)));
      assert.deepEqual(kinds.sort(), ['lost', 'lost', 'ready']);
      assert.deepEqual(await s.explained(jobId), ['accepted', 'claimed', 'settled']);
    }
  });
});
