/** The registry of failed jobs: which there are, by filter, and in which order a replay of many takes them. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { addUser, fail, resultOf, settle, startStore } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

describe('the list of failed jobs', () => {
  const any = { errorCode: null, ownerId: null, olderThanMs: null, youngerThanMs: null };
  const minutesAgo = (s: Fixture, jobId: string, minutes: number) =>
    s.pool.query(`update jobs set finished_at = now() - $2 * interval '1 minute' where id = $1`, [jobId, minutes]);

  it('has the oldest failure first, and as many as asked for', async (t) => {
    const s = await startStore(t);
    const [one, two, three] = [await s.failed(), await s.failed(), await s.failed()];
    await s.accept();
    await s.ready();
    await minutesAgo(s, three.jobId, 30);
    await minutesAgo(s, one.jobId, 20);
    await minutesAgo(s, two.jobId, 10);
    assert.deepEqual(await s.store.failedJobs(any, 10), [three.jobId, one.jobId, two.jobId]);
    assert.deepEqual(await s.store.failedJobs(any, 2), [three.jobId, one.jobId]);
    assert.equal(await s.store.countFailed(any), 3);
  });

  it('narrows by code, owner and age', async (t) => {
    const s = await startStore(t);
    const other = await addUser(s.pool, 'other');
    const corrupt = await s.failed();
    const large = await s.failed({}, 'too_many_pixels');
    const foreign = await s.failed({ ownerId: other });
    await minutesAgo(s, corrupt.jobId, 30);
    await minutesAgo(s, large.jobId, 20);
    await minutesAgo(s, foreign.jobId, 10);
    const minute = 60_000;
    const cases: [change: Partial<typeof any> | object, expected: string[]][] = [
      [{ errorCode: 'corrupt_image' }, [corrupt.jobId, foreign.jobId]],
      [{ ownerId: other }, [foreign.jobId]],
      [{ olderThanMs: 15 * minute }, [corrupt.jobId, large.jobId]],
      [{ youngerThanMs: 25 * minute }, [large.jobId, foreign.jobId]],
      [{ olderThanMs: 15 * minute, youngerThanMs: 25 * minute }, [large.jobId]],
      [{ errorCode: 'corrupt_image', ownerId: s.owner, olderThanMs: 40 * minute }, []],
    ];
    for (const [change, expected] of cases) {
      assert.deepEqual(await s.store.failedJobs({ ...any, ...change }, 10), expected, JSON.stringify(change));
      assert.equal(await s.store.countFailed({ ...any, ...change }), expected.length, JSON.stringify(change));
    }
  });

  it('has what a replay would refuse after all others, so that it never stands in front of them', async (t) => {
    const s = await startStore(t);
    const [gone, removed, overtaken, good] = [await s.failed(), await s.ready(), await s.ready(), await s.failed()];
    // Deleted with its published original: nothing but the deletion tells that it cannot be replayed.
    const deleted = { id: removed.id, jobId: await s.addJob(removed.id, 2) };
    await fail(s.store, (await s.claimed(deleted.jobId)).attempt, 'corrupt_image');
    await s.pool.query('update attachments set staging_gone_at = now() where id = $1', [gone.id]);
    await s.store.deleteAttachment(s.owner, deleted.id, { graceMs: 1 });
    const second = await s.addJob(overtaken.id, 2);
    await fail(s.store, (await s.claimed(second)).attempt, 'corrupt_image');
    const third = await s.claimed(await s.addJob(overtaken.id, 3));
    await settle(s.store, third.attempt, resultOf(third.attempt, { withOriginal: false }));
    for (const [index, jobId] of [gone.jobId, deleted.jobId, second].entries()) await minutesAgo(s, jobId, 60 - index);
    assert.deepEqual(await s.store.failedJobs(any, 10), [good.jobId, gone.jobId, deleted.jobId, second]);
    assert.equal(await s.store.countFailed(any), 4);
  });
});
