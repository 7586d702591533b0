/** Reads and edits: who may see an attachment, pages that lose nothing, what operators see, and health. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { createPeople } from '../../src/postgres/people.ts';
import { createStore } from '../../src/postgres/store.ts';
import { freshDatabase } from '../support/postgres.ts';
import { addUser, fail, startStore } from '../support/store.ts';

const page = { limit: 50, cursor: null };

async function startChat(t: Parameters<typeof startStore>[0]) {
  const s = await startStore(t);
  const people = createPeople({ pool: s.pool });
  const [member, stranger] = [await addUser(s.pool, 'member'), await addUser(s.pool, 'stranger')];
  const chatId = newId();
  await people.createChat({ id: chatId, title: 'Plans', ownerId: s.owner });
  await people.addMember(s.owner, chatId, member);
  const { id } = await s.accept();
  const send = async () => {
    const messageId = newId();
    const message = { id: messageId, chatId, authorId: s.owner, text: 'x', attachmentIds: [id], reservation: null };
    assert.equal((await people.send(message)).kind, 'sent');
    return messageId;
  };
  const sees = async (userId: string) => (await s.store.attachmentFor(userId, id)) !== null;
  return { ...s, people, member, stranger, chatId, id, send, sees };
}

describe('attachmentFor', () => {
  it('shows an attachment to its owner alone until a message carries it', async (t) => {
    const c = await startChat(t);
    assert.deepEqual([await c.sees(c.owner), await c.sees(c.member)], [true, false]);
    await c.send();
    assert.deepEqual([await c.sees(c.owner), await c.sees(c.member), await c.sees(c.stranger)], [true, true, false]);
  });

  it('shows it to nobody else once the message is deleted, unless another carries it', async (t) => {
    const c = await startChat(t);
    const [first, second] = [await c.send(), await c.send()];
    await c.people.deleteMessage(c.owner, first);
    assert.equal(await c.sees(c.member), true);
    await c.people.deleteMessage(c.owner, second);
    assert.deepEqual([await c.sees(c.member), await c.sees(c.owner)], [false, true]);
  });

  it('hides it from a member who left', async (t) => {
    const c = await startChat(t);
    await c.send();
    await c.people.removeMember(c.owner, c.chatId, c.member);
    assert.equal(await c.sees(c.member), false);
  });

  it('shows a deleted one to nobody, and it is left out of the message', async (t) => {
    const c = await startChat(t);
    const messageId = await c.send();
    await c.store.deleteAttachment(c.owner, c.id, { graceMs: 1 });
    assert.deepEqual([await c.sees(c.owner), await c.sees(c.member)], [false, false]);
    assert.deepEqual((await c.people.messageFor(c.member, messageId))?.attachmentIds, []);
  });

  it('knows nothing of unknown ids and of strings that are no ids', async (t) => {
    const s = await startStore(t);
    for (const id of [newId(), '', 'x', `${newId()}'`]) assert.equal(await s.store.attachmentFor(s.owner, id), null);
  });

  it('counts the attempts of the newest version’s job', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const jobId = await s.addJob(id, 2);
    await fail(s.store, (await s.claimed(jobId)).attempt);
    await s.endWait(jobId);
    await s.claimed(jobId);
    assert.equal((await s.store.attachmentFor(s.owner, id))?.attempts, 2);
  });
});

describe('acceptedAttachment', () => {
  it('shows what a key was answered with to its owner, also when it was deleted since', async (t) => {
    const c = await startChat(t);
    await c.send();
    await c.store.deleteAttachment(c.owner, c.id, { graceMs: 1 });
    assert.equal((await c.store.acceptedAttachment(c.owner, c.id))?.id, c.id);
    assert.equal(await c.store.acceptedAttachment(c.member, c.id), null);
  });
});

describe('listAttachments', () => {
  it('pages through all of the owner’s living attachments, newest first, each once', async (t) => {
    const s = await startStore(t);
    const ids: string[] = [];
    for (let count = 0; count < 7; count += 1) ids.unshift((await s.accept()).id);
    const deleted = ids.splice(3, 1)[0] ?? '';
    await s.store.deleteAttachment(s.owner, deleted, { graceMs: 1 });
    await s.accept({ ownerId: await addUser(s.pool, 'other') });
    const seen: string[] = [];
    let cursor: string | null = null;
    const sizes: number[] = [];
    do {
      const next: Awaited<ReturnType<typeof s.store.listAttachments>> = await s.store.listAttachments(s.owner, {
        state: null,
        limit: 3,
        cursor,
      });
      seen.push(...next.items.map(({ id }) => id));
      sizes.push(next.items.length);
      cursor = next.nextCursor;
      // What comes in meanwhile is newer than the cursor.
      await s.accept();
    } while (cursor);
    assert.deepEqual(seen, ids);
    assert.deepEqual(sizes, [3, 3], 'a page that ends the list says so');
  });

  it('filters by state', async (t) => {
    const s = await startStore(t);
    const queued = await s.accept();
    const ready = await s.ready();
    const ids = async (state: 'queued' | 'ready' | 'failed') =>
      (await s.store.listAttachments(s.owner, { ...page, state })).items.map(({ id }) => id);
    assert.deepEqual([await ids('queued'), await ids('ready'), await ids('failed')], [[queued.id], [ready.id], []]);
  });

  it('refuses a cursor that it never gave, naming the field', async (t) => {
    const s = await startStore(t);
    for (const cursor of ['', 'x', newId(), 'AAAA', "' or 1=1"]) {
      const refused = { code: 'validation', members: { field: 'cursor' } };
      await assert.rejects(s.store.listAttachments(s.owner, { state: null, limit: 3, cursor }), refused);
      await assert.rejects(
        s.store.listJobs({ state: null, errorCode: null, ownerId: null, limit: 3, cursor }),
        refused,
      );
    }
  });
});

describe('editAlt', () => {
  it('changes the text and its time, for the owner alone, in any state', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    const before = await s.store.attachmentFor(s.owner, id);
    const edited = await s.store.editAlt(s.owner, id, 'a cat');
    assert.deepEqual(edited, await s.store.attachmentFor(s.owner, id));
    assert.deepEqual({ ...edited, alt: null, updatedAt: before?.updatedAt }, before);
    assert.equal(edited?.alt, 'a cat');
    assert.ok((edited?.updatedAt ?? 0) > (before?.updatedAt ?? 0));
    assert.equal((await s.store.editAlt(s.owner, id, null))?.alt, null);
    assert.equal(await s.store.editAlt(newId(), id, 'mine'), null);
    assert.equal(await s.store.editAlt(s.owner, 'no id', 'x'), null);
    await s.store.deleteAttachment(s.owner, id, { graceMs: 1 });
    assert.equal(await s.store.editAlt(s.owner, id, 'late'), null);
  });
});

describe('queue', () => {
  it('counts what waits, is due, announced, running, failed and to be cleaned, and the rates of the last minute', async (t) => {
    const s = await startStore(t);
    assert.deepEqual(await s.store.queue(), {
      queued: 0,
      due: 0,
      announced: 0,
      processing: 0,
      failed: 0,
      oldestQueuedSeconds: null,
      oldestDueSeconds: null,
      stagingBytes: 0,
      oldestStagingSeconds: null,
      acceptedPerSecond: 0,
      finishedPerSecond: 0,
      cleanups: 0,
    });
    await s.ready();
    await fail(s.store, (await s.claimed((await s.accept()).jobId)).attempt, 'corrupt_image');
    await fail(s.store, (await s.claimed((await s.accept()).jobId)).attempt);
    await s.claimed((await s.accept()).jobId);
    const oldest = await s.accept();
    await s.store.takeDue({ limit: 1, window: 1, takenMs: 1_000 });
    await s.accept();
    await s.pool.query(
      `update jobs set created_at = now() - interval '2 minutes', not_before = now() - interval '70 seconds' where id = $1`,
      [oldest.jobId],
    );
    await s.pool.query(`update attachments set created_at = now() - interval '3 minutes' where id = $1`, [oldest.id]);
    const { oldestQueuedSeconds, oldestDueSeconds, oldestStagingSeconds, ...view } = await s.store.queue();
    assert.deepEqual(view, {
      queued: 3,
      due: 2,
      announced: 1,
      processing: 1,
      failed: 1,
      stagingBytes: 5 * oldest.upload.size,
      acceptedPerSecond: 5 / 60,
      finishedPerSecond: 2 / 60,
      cleanups: 3,
    });
    for (const [seconds, least] of [
      [oldestQueuedSeconds, 120],
      [oldestDueSeconds, 70],
      [oldestStagingSeconds, 180],
    ] as const) {
      assert.ok(seconds !== null && seconds >= least && seconds < least + 50, `${seconds} s, at least ${least} s`);
    }
  });
});

describe('listJobs and job', () => {
  it('list by state and code, newest first, in pages', async (t) => {
    const s = await startStore(t);
    const failed: string[] = [];
    for (const code of ['corrupt_image', 'too_many_pixels', 'corrupt_image'] as const) {
      const { jobId } = await s.accept();
      await fail(s.store, (await s.claimed(jobId)).attempt, code);
      failed.unshift(jobId);
    }
    const { jobId: queued } = await s.accept();
    const ids = async (filter: Partial<Parameters<typeof s.store.listJobs>[0]>) =>
      (await s.store.listJobs({ state: null, errorCode: null, ownerId: null, ...page, ...filter })).items.map(
        ({ id }) => id,
      );
    assert.deepEqual(await ids({}), [queued, ...failed]);
    assert.deepEqual(await ids({ state: 'failed' }), failed);
    assert.deepEqual(await ids({ state: 'failed', errorCode: 'corrupt_image' }), [failed[0], failed[2]]);
    const { nextCursor } = await s.store.listJobs({
      state: 'failed',
      errorCode: null,
      ownerId: null,
      limit: 2,
      cursor: null,
    });
    assert.deepEqual(await ids({ state: 'failed', cursor: nextCursor }), [failed[2]]);
  });

  it('show one job with its history, codes and details', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.accept();
    await fail(s.store, (await s.claimed(jobId, { worker: 'w9' })).attempt, 'corrupt_image');
    const found = await s.store.job(jobId);
    assert.ok(found);
    const { state, attachmentId, ownerId, errorCode, errorDetail, worker, ringAt } = found.job;
    assert.deepEqual(
      [state, attachmentId, ownerId, errorCode, errorDetail, worker, ringAt],
      ['failed', id, s.owner, 'corrupt_image', 'because of corrupt_image', 'w9', null],
    );
    assert.ok(found.job.finishedAt instanceof Date);
    assert.deepEqual(
      found.events.map(({ from, to, reason, who, code, detail }) => [from, to, reason, who, code, detail]),
      [
        [null, 'queued', 'accepted', 'api', null, null],
        ['queued', 'processing', 'claimed', 'w9', null, null],
        ['processing', 'failed', 'failed', 'worker-1', 'corrupt_image', 'because of corrupt_image'],
      ],
    );
    assert.ok(found.events.every(({ at }) => at instanceof Date && !Number.isNaN(at.getTime())));
    assert.equal(await s.store.job(newId()), null);
    assert.equal(await s.store.job('no id'), null);
  });

  it('show a code of a newer build as internal instead of failing', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    await s.pool.query(`update jobs set error_code = 'from_the_future' where id = $1`, [jobId]);
    assert.equal((await s.store.job(jobId))?.job.errorCode, 'internal');
  });
});

describe('health', () => {
  it('resolves on a database with the schema of this build, and rejects on any other', async (t) => {
    const s = await startStore(t);
    await s.store.health();
    await s.pool.query(`update migrations set name = '9999_later'`);
    const unfit = (error: unknown) => error instanceof StoreError && error.fault === 'unavailable';
    await assert.rejects(s.store.health(), unfit);
    const { pool } = await freshDatabase(t, { empty: true });
    await assert.rejects(createStore({ pool, signals: s.signals }).health(), unfit);
  });
});
