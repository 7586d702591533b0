/** Reprocessing: one attachment asked for by name, all of them by a wish whose jobs are fed within a window. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { end, feedAll, jobsOf, to2, wide, wish } from '../support/reprocess.ts';
import { settle, startStore } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

describe('reprocess of one attachment', () => {
  it('makes a job of the version whose turn is now, and leaves the attachment as it is', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const before = await s.attachmentRow(id);
    s.told.length = 0;
    assert.equal(await s.store.reprocess(id, to2), 'made');
    assert.deepEqual(s.told, ['due']);
    assert.deepEqual(await s.attachmentRow(id), before);
    const [made] = await jobsOf(s, 2);
    assert.ok(made);
    const row = await s.jobRow(made.id);
    assert.deepEqual(
      [row.state, row.origin, row.owner_id, row.generation, row.fence, row.rebuild],
      ['queued', 'reprocess', s.owner, 1, 0, false],
    );
    assert.equal(await s.turnOf(made.id), (row.created_at as Date).getTime());
    const events = (await s.store.job(made.id))?.events ?? [];
    assert.deepEqual(
      events.map(({ reason, from, to, who, fence }) => [reason, from, to, who, fence]),
      [['reprocessed', null, 'queued', 'operator', 0]],
    );
    await end(s, made.id, 'ready');
    assert.equal((await s.store.attachmentFor(s.owner, id))?.pipelineVersion, 2);
  });

  it('replays a failed job of the version, and makes no second one', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    await s.store.reprocess(id, to2);
    const [made] = await jobsOf(s, 2);
    await end(s, made?.id ?? '', 'failed');
    s.told.length = 0;
    assert.equal(await s.store.reprocess(id, to2), 'replayed');
    assert.deepEqual(s.told, ['due']);
    const jobs = await jobsOf(s, 2);
    assert.deepEqual(
      jobs.map(({ id: jobId, state, generation }) => [jobId, state, generation]),
      [[made?.id, 'queued', 2]],
    );
    await end(s, made?.id ?? '', 'ready');
  });

  it('asked by ten at once makes one job', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const { id } = await s.ready();
    const answers = await Promise.all(Array.from({ length: 10 }, () => s.store.reprocess(id, to2)));
    assert.deepEqual(answers.sort(), [...Array.from({ length: 9 }, () => 'exists'), 'made']);
    assert.equal((await jobsOf(s, 2)).length, 1);
  });

  it('with a deletion leaves no unfinished job of a deleted attachment, whoever comes first', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const all = await Promise.all(Array.from({ length: 10 }, () => s.ready()));
    await Promise.all(
      all.flatMap(({ id }, index) => {
        const both = [() => s.store.reprocess(id, to2), () => s.store.deleteAttachment(s.owner, id, { graceMs: 1 })];
        return (index % 2 === 0 ? both : both.reverse()).map((act) => act());
      }),
    );
    assert.deepEqual(
      (await jobsOf(s, 2)).filter((job) => job.state !== 'cancelled'),
      [],
    );
  });

  const refusals: [title: string, answer: string, make: (s: Fixture) => Promise<{ id: string }>][] = [
    ['for an unknown attachment', 'not_found', async () => ({ id: newId() })],
    ['for a name that is no id', 'not_found', async () => ({ id: 'x' })],
    ['before anything is published', 'not_ready', (s) => s.accept()],
    ['of an upload that failed', 'not_ready', (s) => s.failed()],
    ['at the version already', 'current', (s) => s.ready({ version: 2 })],
    ['above the version', 'current', (s) => s.ready({ version: 3 })],
    ['of a file, which has no variants', 'current', (s) => s.ready({ kind: 'file', contentType: 'application/pdf' })],
    [
      'while a job of the version runs',
      'exists',
      async (s) => {
        const ready = await s.ready();
        await s.claimed(await s.addJob(ready.id, 2));
        return ready;
      },
    ],
    [
      'for a deleted attachment',
      'not_found',
      async (s) => {
        const ready = await s.ready();
        await s.store.deleteAttachment(s.owner, ready.id, { graceMs: 1 });
        return ready;
      },
    ],
  ];
  for (const [title, answer, make] of refusals) {
    it(`says ${answer} ${title}, and changes and tells nothing`, async (t) => {
      const s = await startStore(t);
      const { id } = await make(s);
      const before = await s.everything();
      s.told.length = 0;
      assert.equal(await s.store.reprocess(id, to2), answer);
      assert.equal(await s.everything(), before);
      assert.deepEqual(s.told, []);
    });
  }
});

describe('a wish', () => {
  it('asked three times in a row makes one job for each picture, and leaves failures alone', async (t) => {
    const s = await startStore(t);
    const ready = [await s.ready(), await s.ready(), await s.ready()];
    const [failed] = ready;
    const failedJob = await s.addJob(failed?.id ?? '', 2);
    await end(s, failedJob, 'failed');
    const answers = [];
    for (let asked = 0; asked < 3; asked += 1) {
      answers.push((await s.store.askReprocessing(wish)).askedAt.getTime());
      await s.store.feedReprocessing({ window: 100, limit: 1 });
    }
    assert.equal(new Set(answers).size, 1, 'asking again changes nothing');
    await feedAll(s);
    for (let asked = 0; asked < 3; asked += 1) {
      await s.store.askReprocessing(wish);
      assert.equal(await feedAll(s), 0);
    }
    const jobs = await jobsOf(s, 2);
    assert.deepEqual(
      jobs.map((job) => job.attachment_id),
      ready.map(({ id }) => id),
    );
    assert.deepEqual(
      jobs.map(({ state, generation }) => [state, generation]),
      [
        ['failed', 1],
        ['queued', 1],
        ['queued', 1],
      ],
    );
  });

  it('tells how far it is, and counts neither files nor what cannot be brought up', async (t) => {
    const s = await startStore(t);
    assert.equal(await s.store.reprocessing(2), null);
    const ready = [await s.ready(), await s.ready(), await s.ready(), await s.ready()];
    await s.ready({ kind: 'file', contentType: 'application/pdf' });
    await s.ready({ version: 2 });
    await s.ready({ version: 3 });
    await s.accept();
    await s.failed();
    const deleted = await s.ready();
    await s.store.deleteAttachment(s.owner, deleted.id, { graceMs: 1 });
    assert.equal(await s.store.countBelow(2), 4);
    const asked = await s.store.askReprocessing(wish);
    const figures = async () => {
      const found = await s.store.reprocessing(2);
      assert.ok(found);
      return [found.remaining, found.unfinished, found.succeeded, found.failed, found.doneAt !== null];
    };
    assert.deepEqual([asked.version, asked.askedBy, asked.retryFailed, asked.doneAt], [2, 'operator', false, null]);
    assert.deepEqual(await figures(), [4, 0, 0, 0, false]);
    s.told.length = 0;
    assert.equal(await s.store.feedReprocessing({ window: 100, limit: 3 }), 3);
    assert.deepEqual(s.told, ['due']);
    assert.deepEqual(await figures(), [1, 3, 0, 0, false]);
    const jobs = await jobsOf(s, 2);
    const made = jobs.filter((job) => job.origin === 'reprocess');
    assert.deepEqual(
      made.map((job) => job.attachment_id),
      ready.slice(0, 3).map(({ id }) => id),
    );
    await end(s, made[0]?.id ?? '', 'ready');
    await end(s, made[1]?.id ?? '', 'failed');
    assert.deepEqual(await figures(), [1, 1, 1, 1, false]);
    assert.equal(await feedAll(s), 1);
    assert.deepEqual(await figures(), [0, 2, 1, 1, true]);
    assert.equal(await s.store.countBelow(2), 3);
    s.told.length = 0;
    assert.equal(await s.store.feedReprocessing(wide), 0);
    assert.deepEqual(s.told, []);
  });

  it('replays failed jobs when asked to, each at most once for each asking', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const jobId = await s.addJob(id, 2);
    await end(s, jobId, 'failed');
    await s.store.askReprocessing({ ...wish, retryFailed: true });
    assert.equal(await s.store.feedReprocessing(wide), 1);
    assert.equal((await s.jobRow(jobId)).generation, 2);
    await end(s, jobId, 'failed');
    assert.equal(await feedAll(s), 0);
    await s.store.askReprocessing({ ...wish, retryFailed: true });
    assert.equal(await feedAll(s), 1);
    assert.equal((await s.jobRow(jobId)).generation, 3);
  });

  it('that is open begins anew when failed jobs are to be replayed as well, and not when they are no more', async (t) => {
    const s = await startStore(t);
    const [first] = [await s.ready(), await s.ready(), await s.ready()];
    await end(s, await s.addJob(first.id, 2), 'failed');
    await s.store.askReprocessing(wish);
    assert.equal(await s.store.feedReprocessing({ window: 100, limit: 1 }), 1);
    const asked = await s.store.askReprocessing({ ...wish, retryFailed: true, who: 'another' });
    assert.deepEqual([asked.retryFailed, asked.askedBy], [true, 'another']);
    const again = await s.store.askReprocessing(wish);
    assert.deepEqual(again, asked);
    assert.equal(await feedAll(s), 2);
    assert.deepEqual(
      (await jobsOf(s, 2)).map(({ state, generation }) => [state, generation]),
      [
        ['queued', 2],
        ['queued', 1],
        ['queued', 1],
      ],
    );
  });

  it('goes round again for what became ready behind its cursor', async (t) => {
    const s = await startStore(t);
    const late = await s.accept();
    await s.ready();
    await s.store.askReprocessing(wish);
    assert.equal(await s.store.feedReprocessing(wide), 1);
    const { attempt } = await s.claimed(late.jobId);
    await settle(s.store, attempt);
    assert.equal(await feedAll(s), 1);
    assert.deepEqual((await s.store.reprocessing(2))?.remaining, 0);
  });

  it('that is done begins anew for what became ready at an older version since', async (t) => {
    const s = await startStore(t);
    await s.store.askReprocessing(wish);
    assert.equal(await feedAll(s), 0);
    await s.ready();
    assert.equal(await s.store.feedReprocessing(wide), 0);
    assert.equal((await s.store.reprocessing(2))?.remaining, 1);
    const asked = await s.store.askReprocessing(wish);
    assert.equal(asked.doneAt, null);
    assert.equal(await feedAll(s), 1);
  });

  it('for another version ends the open one: what exists goes on, and no more is made', async (t) => {
    const s = await startStore(t);
    await s.ready();
    await s.ready();
    await s.store.askReprocessing(wish);
    assert.equal(await s.store.feedReprocessing({ window: 100, limit: 1 }), 1);
    await s.store.askReprocessing({ ...wish, version: 1 });
    assert.ok((await s.store.reprocessing(2))?.doneAt);
    assert.equal(await feedAll(s, 1), 0);
    const jobs = await jobsOf(s, 2);
    assert.deepEqual(
      jobs.map((job) => job.state),
      ['queued'],
    );
    const both = await Promise.all([s.store.askReprocessing(wish), s.store.askReprocessing({ ...wish, version: 3 })]);
    assert.equal(both.length, 2);
    const { rowCount } = await s.pool.query('select from reprocessings where done_at is null');
    assert.equal(rowCount, 1);
  });

  it('waits for another that is being written, and then ends it', async (t) => {
    const s = await startStore(t);
    const client = await s.pool.connect();
    try {
      await client.query('begin');
      await client.query(`insert into reprocessings (version, asked_by) values (3, 'another')`);
      const asked = s.store.askReprocessing(wish);
      await s.untilLocked();
      await client.query('commit');
      assert.equal((await asked).doneAt, null);
    } finally {
      client.release();
    }
    assert.ok((await s.store.reprocessing(3))?.doneAt);
  });

  it('is not written twice by many who ask at once', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    await s.ready();
    const asked = await Promise.all(Array.from({ length: 8 }, () => s.store.askReprocessing(wish)));
    assert.equal(new Set(asked.map((one) => one.askedAt.getTime())).size, 1);
    assert.equal(await feedAll(s), 1);
  });
});
