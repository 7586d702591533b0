/** Step 1: accepting is one statement, all or nothing, once; keys are reserved, answered and given back under their token. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it, type TestContext } from 'node:test';
import { type KeyName, type NewAttachment, StoreError } from '../../src/pipeline/store.ts';
import { createPool } from '../../src/postgres/pool.ts';
import { createStore } from '../../src/postgres/store.ts';
import { addUser, newUpload, startStore } from '../support/store.ts';
import { until } from '../support/until.ts';

const leaseMs = 30_000;
const ago = (ms: number) => new Date(Date.now() - ms).toISOString();

async function withKey(t: TestContext) {
  const s = await startStore(t);
  const name: KeyName = { userId: s.owner, scope: 'attachment', key: 'k1' };
  const token = randomUUID();
  const keyed = (change: Partial<NonNullable<NewAttachment['reservation']>> = {}) =>
    newUpload(s.owner, {
      reservation: { ...name, token, fingerprint: 'print', keepMs: 86_400_000, ...change },
    });
  const key = async () =>
    (await s.pool.query('select *, expires_at < now() as over from idempotency_keys where key = $1', [name.key]))
      .rows[0];
  return { ...s, name, token, keyed, key };
}

describe('accept', () => {
  it('writes attachment, job with its bell set, and history, and tells that a bell is due', async (t) => {
    const s = await startStore(t);
    const upload = newUpload(s.owner, { alt: 'a cat', fileName: '日本-é-😀.jpg', traceparent: 'tp' });
    const acceptance = await s.store.accept(upload);
    assert.equal(acceptance.kind, 'accepted');
    const row = await s.attachmentRow(upload.id);
    assert.deepEqual(
      [
        row.state,
        row.owner_id,
        row.kind,
        row.file_name,
        row.content_type,
        row.size,
        row.sha256,
        row.alt,
        row.staging_key,
      ],
      [
        'queued',
        s.owner,
        'image',
        '日本-é-😀.jpg',
        'image/jpeg',
        4_321,
        upload.sha256,
        'a cat',
        `staging/${upload.id}`,
      ],
    );
    const job = await s.jobRow(upload.jobId);
    assert.deepEqual(
      [job.state, job.version, job.origin, job.fence, job.rings, job.rung_at, job.traceparent, job.owner_id],
      ['queued', 1, 'upload', 0, 0, null, 'tp', s.owner],
    );
    const wait = await s.secondsTo(upload.jobId, 'ring_at');
    assert.ok(wait !== null && wait <= 0, 'the bell is due at once');
    const found = await s.store.job(upload.jobId);
    assert.deepEqual(
      found?.events.map(({ from, to, fence, reason }) => ({ from, to, fence, reason })),
      [{ from: null, to: 'queued', fence: 0, reason: 'accepted' }],
    );
    assert.deepEqual(s.told, ['due']);
  });

  it('answers the attachment as a reader sees it', async (t) => {
    const s = await startStore(t);
    const upload = newUpload(s.owner, { kind: 'file', contentType: 'application/pdf', size: 5 * 1024 ** 3 });
    const acceptance = await s.store.accept(upload);
    assert.ok(acceptance.kind === 'accepted');
    assert.deepEqual(acceptance.attachment, await s.store.attachmentFor(s.owner, upload.id));
    assert.equal(acceptance.attachment.size, 5 * 1024 ** 3);
    assert.deepEqual([acceptance.attachment.state, acceptance.attachment.attempts], ['queued', 0]);
  });

  it('sent twice makes one attachment and one job, and answers both alike', async (t) => {
    const s = await startStore(t);
    const upload = newUpload(s.owner);
    const first = await s.store.accept(upload);
    const second = await s.store.accept(upload);
    assert.deepEqual(second, first);
    const { rows } = await s.pool.query(
      `select (select count(*) from attachments) as attachments, (select count(*) from jobs) as jobs,
         (select count(*) from job_events) as events`,
    );
    assert.deepEqual(rows, [{ attachments: 1, jobs: 1, events: 1 }]);
  });

  it('sent twice at once makes one attachment, with a key as well', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    const upload = s.keyed();
    const answers = await Promise.all([upload, upload, upload, upload].map((one) => s.store.accept(one)));
    assert.deepEqual(
      answers.map((answer) => answer.kind),
      Array(4).fill('accepted'),
    );
    const { rows } = await s.pool.query('select count(*) as jobs from jobs');
    assert.deepEqual(rows, [{ jobs: 1 }]);
  });

  it('writes nothing for an upload older than its limit on the database clock', async (t) => {
    const s = await startStore(t);
    const before = await s.everything();
    const upload = newUpload(s.owner, { startedAt: ago(3_600_000), uploadMsMax: 3_599_000 });
    assert.deepEqual(await s.store.accept(upload), { kind: 'too_old' });
    assert.equal(await s.everything(), before);
    assert.deepEqual(s.told, []);
    assert.equal((await s.store.accept({ ...upload, uploadMsMax: 3_700_000 })).kind, 'accepted');
  });

  it('takes the time of arrive as the beginning', async (t) => {
    const s = await startStore(t);
    const { startedAt } = await s.store.arrive(s.owner);
    assert.equal((await s.store.accept(newUpload(s.owner, { startedAt, uploadMsMax: 10_000 }))).kind, 'accepted');
  });

  it('writes nothing when one of its rows cannot be written', async (t) => {
    const s = await withKey(t);
    const { jobId } = await s.accept();
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    const before = await s.everything();
    s.told.length = 0;
    // The id of another attachment's job: the third row of four fails.
    await assert.rejects(s.store.accept({ ...s.keyed(), jobId }), { code: '23505' });
    assert.equal(await s.everything(), before);
    assert.deepEqual(s.told, []);
  });

  it('answers its key in the same statement', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    const upload = s.keyed();
    assert.equal((await s.store.accept(upload)).kind, 'accepted');
    const again = await s.store.reserve({ ...s.name, token: randomUUID(), leaseMs });
    assert.deepEqual(again, { kind: 'answered', fingerprint: 'print', resultId: upload.id });
  });

  it('writes nothing when its key is held under another token', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: randomUUID(), leaseMs });
    const before = await s.everything();
    assert.deepEqual(await s.store.accept(s.keyed()), { kind: 'reservation_lost' });
    assert.equal(await s.everything(), before);
  });

  it('writes nothing when its key is gone', async (t) => {
    const s = await withKey(t);
    const before = await s.everything();
    assert.deepEqual(await s.store.accept(s.keyed()), { kind: 'reservation_lost' });
    assert.equal(await s.everything(), before);
  });

  it('writes nothing for a second upload under a key that was answered', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    await s.store.accept(s.keyed());
    const before = await s.everything();
    assert.deepEqual(await s.store.accept(s.keyed()), { kind: 'reservation_lost' });
    assert.equal(await s.everything(), before);
  });

  it('leaves its key unanswered when it is too old', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    const before = await s.everything();
    const outcome = await s.store.accept({ ...s.keyed(), startedAt: ago(10_000), uploadMsMax: 1 });
    assert.deepEqual(outcome, { kind: 'too_old' });
    assert.equal(await s.everything(), before);
  });

  it('rejects unknown when its connection dies before the answer, and what is there then is all or nothing', async (t) => {
    const s = await startStore(t);
    const blocker = await s.pool.connect();
    const upload = newUpload(s.owner);
    try {
      await blocker.query('begin');
      // The foreign keys of the new rows wait for this.
      await blocker.query('select from users where id = $1 for update', [s.owner]);
      const outcome = assert.rejects(
        s.store.accept(upload),
        (error: unknown) => error instanceof StoreError && error.fault === 'unknown',
      );
      await until('accept waits and is killed', async () => {
        const { rows } = await s.pool.query(
          `select pg_terminate_backend(pid) from pg_stat_activity
           where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into attachments%'`,
        );
        return rows.length === 1;
      });
      await outcome;
    } finally {
      await blocker.query('rollback');
      blocker.release();
    }
    assert.equal(await s.store.attachmentFor(s.owner, upload.id), null);
    assert.deepEqual(s.told, []);
    assert.equal((await s.store.accept(upload)).kind, 'accepted');
  });

  it('rejects unavailable without a database', async (t) => {
    const s = await startStore(t);
    const pool = createPool({ url: 'postgres://nobody@127.0.0.1:1/none', max: 1, name: 'tests' });
    t.after(() => pool.end());
    const { signals } = s;
    const store = createStore({ pool, signals });
    const unavailable = (error: unknown) => error instanceof StoreError && error.fault === 'unavailable';
    await assert.rejects(store.accept(newUpload(s.owner)), unavailable);
    await assert.rejects(store.health(), unavailable);
    await assert.rejects(
      store.lead('janitor', async () => {}),
      unavailable,
    );
  });
});

describe('reserve', () => {
  it('gives a key to one of many at once', async (t) => {
    const s = await withKey(t);
    const all = await Promise.all(
      Array.from({ length: 8 }, () => s.store.reserve({ ...s.name, token: randomUUID(), leaseMs })),
    );
    assert.equal(all.filter((one) => one.kind === 'reserved').length, 1);
    for (const one of all.filter(({ kind }) => kind !== 'reserved')) {
      assert.ok(one.kind === 'in_flight' && one.retryAfterSeconds >= 1 && one.retryAfterSeconds <= 30, one.kind);
    }
  });

  it('gives it again to the token that has it', async (t) => {
    const s = await withKey(t);
    const mine = { ...s.name, token: s.token, leaseMs };
    assert.deepEqual(await s.store.reserve(mine), { kind: 'reserved' });
    assert.deepEqual(await s.store.reserve(mine), { kind: 'reserved' });
  });

  it('gives a key to another when its lease is over, and the first can no longer use it', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    await s.pool.query(`update idempotency_keys set lease_until = now() - interval '1 second'`);
    assert.deepEqual(await s.store.reserve({ ...s.name, token: randomUUID(), leaseMs }), { kind: 'reserved' });
    assert.equal(await s.store.extendReservation({ ...s.name, token: s.token, leaseMs }), false);
    const held = await s.everything();
    await s.store.dropReservation({ ...s.name, token: s.token });
    assert.deepEqual(await s.store.accept(s.keyed()), { kind: 'reservation_lost' });
    assert.equal(await s.everything(), held);
  });

  it('starts anew when an answer has expired', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    await s.store.accept(s.keyed());
    await s.pool.query(`update idempotency_keys set expires_at = now() - interval '1 second'`);
    assert.deepEqual(await s.store.reserve({ ...s.name, token: randomUUID(), leaseMs }), { kind: 'reserved' });
    assert.equal((await s.key()).fingerprint, null);
  });

  it('never hands an answered key out, whatever its lease and its token', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    await s.store.accept(s.keyed());
    await s.pool.query(`update idempotency_keys set lease_until = now() - interval '1 second'`);
    assert.equal((await s.store.reserve({ ...s.name, token: s.token, leaseMs })).kind, 'answered');
    assert.equal(await s.store.extendReservation({ ...s.name, token: s.token, leaseMs }), false);
    await s.store.dropReservation({ ...s.name, token: s.token });
    assert.equal((await s.store.reserve({ ...s.name, token: s.token, leaseMs })).kind, 'answered');
  });

  it('keeps users, scopes and keys apart', async (t) => {
    const s = await withKey(t);
    const other = await addUser(s.pool, 'other');
    for (const name of [
      s.name,
      { ...s.name, userId: other },
      { ...s.name, scope: 'message' } as const,
      { ...s.name, key: 'k2' },
    ]) {
      assert.deepEqual(await s.store.reserve({ ...name, token: randomUUID(), leaseMs }), { kind: 'reserved' });
    }
  });

  it('is prolonged under its token, so that a long upload keeps it', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs: 1_000 });
    assert.equal(await s.store.extendReservation({ ...s.name, token: s.token, leaseMs: 500_000 }), true);
    const other = await s.store.reserve({ ...s.name, token: randomUUID(), leaseMs });
    assert.ok(other.kind === 'in_flight' && other.retryAfterSeconds > 490, JSON.stringify(other));
  });

  it('is given back by its token', async (t) => {
    const s = await withKey(t);
    await s.store.reserve({ ...s.name, token: s.token, leaseMs });
    await s.store.dropReservation({ ...s.name, token: s.token });
    assert.deepEqual(await s.store.reserve({ ...s.name, token: randomUUID(), leaseMs }), { kind: 'reserved' });
  });
});
