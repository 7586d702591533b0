/** Step 1, accept: a 202 means durable bytes and a durable intent; a refusal leaves nothing. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, test } from 'node:test';
import { SkrepkaError } from '../../src/errors.ts';
import type { Upload } from '../../src/pipeline/accept.ts';
import { BlobError } from '../../src/pipeline/ports.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { chunks, createPipeline } from '../support/pipeline.ts';
import { takes } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

type Pipeline = Awaited<ReturnType<typeof createPipeline>>;

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');
const refusal = (code: string) => (error: unknown) => error instanceof SkrepkaError && error.code === code;
const trailer =
  (alt: string | null, digest: string | null = null) =>
  async () => ({ alt, sha256: digest });

async function assertNothingKept(p: Pipeline) {
  assert.deepEqual(await p.keys(), []);
  const { rows } = await p.pool.query('select (select count(*) from attachments) + (select count(*) from jobs) as n');
  assert.equal(Number(rows[0].n), 0);
}

describe('an accepted upload', () => {
  test('has its bytes in staging, and attachment, job and bell in the store', async (t) => {
    const p = await createPipeline(t);
    const { attachment, replayed } = await p.upload('IMG photograph', {
      trailer: trailer('a cat', sha256('IMG photograph')),
    });
    assert.equal(replayed, false);
    assert.equal(attachment.state, 'queued');
    assert.equal(attachment.kind, 'image');
    assert.equal(attachment.contentType, 'image/jpeg');
    assert.equal(attachment.size, 14);
    assert.equal(attachment.sha256, sha256('IMG photograph'));
    assert.equal(attachment.alt, 'a cat');
    const { body } = await p.blobs.port.open(`staging/${attachment.id}`);
    assert.equal((await body.toArray()).join(''), 'IMG photograph');
    const job = await p.jobOf(attachment.id);
    assert.equal(job.state, 'queued');
    assert.ok(job.ring_at);
    assert.equal(job.rung_at, null);
  });

  test('of exactly the limit is accepted, of one byte more refused while it streams, and nothing is kept', async (t) => {
    const p = await createPipeline(t, { uploadBytesMax: 20 });
    await assert.rejects(p.upload('x'.repeat(21)), refusal('file_too_large'));
    await assertNothingKept(p);
    assert.equal((await p.upload('x'.repeat(20))).attachment.size, 20);
  });

  test('whose content is of no known type is a file, whatever it was called', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('<script>', { declaredType: 'text/html', fileName: 'cat.jpg' });
    assert.equal(attachment.kind, 'file');
    assert.equal(attachment.contentType, 'application/octet-stream');
    assert.equal(attachment.fileName, 'cat.jpg');
  });
});

describe('a refusal', () => {
  test('for the declared size comes before a byte is read', async (t) => {
    const p = await createPipeline(t, { uploadBytesMax: 20 });
    let read = 0;
    async function* body() {
      read += 1;
      yield Buffer.from('x');
    }
    await assert.rejects(
      p.upload(body(), { declaredSize: 21, onAccepting: () => assert.fail() }),
      refusal('file_too_large'),
    );
    await assert.rejects(
      p.upload(body(), { declaredSize: 0, onAccepting: () => assert.fail() }),
      refusal('empty_file'),
    );
    assert.equal(read, 0);
  });

  test('for an empty body keeps nothing', async (t) => {
    const p = await createPipeline(t);
    await assert.rejects(p.upload(''), refusal('empty_file'));
    await assertNothingKept(p);
  });

  test('for a false picture comes with its head, not after its end', async (t) => {
    const p = await createPipeline(t);
    let read = 0;
    async function* body() {
      for (; read < 1000; read += 1) yield Buffer.from('<html>..');
    }
    await assert.rejects(p.upload(body(), { declaredType: 'image/png' }), refusal('unsupported_image'));
    assert.ok(read < 100, `${read} chunks were read`);
    await assertNothingKept(p);
  });

  test('for a false picture shorter than a head keeps nothing', async (t) => {
    const p = await createPipeline(t);
    await assert.rejects(p.upload('no', { declaredType: 'image/webp' }), refusal('unsupported_image'));
    await assertNothingKept(p);
  });

  test('for another digest keeps nothing', async (t) => {
    const p = await createPipeline(t);
    await assert.rejects(p.upload('IMG 1', { trailer: trailer(null, sha256('IMG 2')) }), refusal('digest_mismatch'));
    await assertNothingKept(p);
  });

  test('by what follows the file keeps nothing', async (t) => {
    const p = await createPipeline(t);
    const late: Upload['trailer'] = async () => {
      throw new SkrepkaError('too_many_files');
    };
    await assert.rejects(p.upload('IMG 1', { trailer: late }), refusal('too_many_files'));
    await assertNothingKept(p);
  });

  test('of an upload that took longer than allowed keeps nothing', async (t) => {
    const p = await createPipeline(t, { uploadMsMax: 1 });
    p.store.plan('accept', {
      first: () =>
        until('2 ms', async () => (await p.pool.query('select pg_sleep(0.002)')).rowCount).then(() => undefined),
    });
    await assert.rejects(p.upload('IMG 1'), refusal('upload_expired'));
    await assertNothingKept(p);
  });

  test('of an upload that trickles for ever comes when its time is over, not at its end', async (t) => {
    const p = await createPipeline(t, { uploadMsMax: 300, uploadBytesMax: 300 });
    async function* trickle() {
      for (;;) {
        await takes(20);
        yield Buffer.from('x');
      }
    }
    await assert.rejects(p.upload(trickle()), refusal('upload_expired'));
    await assertNothingKept(p);
  });

  test('for the storage says so and keeps no row', async (t) => {
    const p = await createPipeline(t);
    p.blobs.plan('put', { before: () => new BlobError('unavailable', 'the disk is gone') });
    await assert.rejects(p.upload('IMG 1'), refusal('storage_unavailable'));
    await assertNothingKept(p);
  });

  test('for an object that is not whole in the storage keeps nothing', async (t) => {
    const p = await createPipeline(t);
    p.blobs.plan('put', { answer: { size: 4 } });
    await assert.rejects(p.upload('IMG 1'), refusal('storage_unavailable'));
    await assertNothingKept(p);
  });
});

describe('a client that is gone', () => {
  test('in the middle of the body leaves nothing', async (t) => {
    const p = await createPipeline(t);
    async function* body() {
      yield Buffer.from('IMG 1');
      throw new Error('socket hang up');
    }
    await assert.rejects(p.upload(body()), /socket hang up/);
    await assertNothingKept(p);
  });

  test('after the last byte and before the commit leaves nothing', async (t) => {
    const p = await createPipeline(t);
    const gone = new AbortController();
    const { reached, pass } = p.points.hold('accept.stored');
    const upload = p.upload('IMG 1', { signal: gone.signal });
    upload.catch(() => undefined);
    await reached;
    gone.abort(new Error('gone'));
    pass();
    await assert.rejects(upload, /gone/);
    await assertNothingKept(p);
  });
});

describe('a commit of unknown outcome', () => {
  const lost = () => new StoreError('unknown', 'the connection broke');

  test('that came through is read back and answered', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('accept', { after: lost });
    const { attachment } = await p.upload('IMG 1');
    assert.equal((await p.attachment(attachment.id)).state, 'queued');
  });

  test('is no refusal and deletes nothing when it cannot be read back', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('accept', { after: lost });
    p.store.plan('attachmentFor', { before: lost });
    await assert.rejects(p.upload('IMG 1'), refusal('unavailable'));
    const { rows } = await p.pool.query('select id from attachments');
    assert.deepEqual(await p.keys(), [`staging/${rows[0].id}`]);
  });

  test('keeps its key reserved, so that the repeated request finds the answer', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('accept', { after: lost });
    p.store.plan('attachmentFor', { before: lost });
    await assert.rejects(p.upload('IMG 1', { idempotencyKey: 'k' }), refusal('unavailable'));
    const again = await p.upload('IMG 1', { idempotencyKey: 'k' });
    assert.equal(again.replayed, true);
    assert.equal((await p.pool.query('select 1 from attachments')).rowCount, 1);
  });

  test('that did nothing for certain removes the object', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('accept', { before: () => new StoreError('unavailable', 'refused') });
    await assert.rejects(p.upload('IMG 1'), refusal('unavailable'));
    await assertNothingKept(p);
  });
});

describe('an idempotency key', () => {
  test('with the same request answers the same 202 again, also when the attachment is long ready', async (t) => {
    const p = await createPipeline(t);
    const more = { idempotencyKey: 'k', trailer: trailer('a cat') };
    const first = await p.upload('IMG 1', more);
    p.startRelay();
    p.startWorker();
    await p.untilState(first.attachment.id, 'ready');
    const second = await p.upload('IMG 1', more);
    assert.equal(second.replayed, true);
    assert.deepEqual(second.attachment, first.attachment);
    assert.equal((await p.pool.query('select 1 from jobs')).rowCount, 1);
  });

  for (const [what, text, more] of [
    ['bytes', 'IMG 2', {}],
    ['name', 'IMG 1', { fileName: 'b.jpg' }],
    ['type', 'IMG 1', { declaredType: 'image/jpeg' }],
    ['alt', 'IMG 1', { trailer: trailer('another') }],
  ] as const) {
    test(`with another ${what} is a mismatch, and nothing is stored`, async (t) => {
      const p = await createPipeline(t);
      await p.upload('IMG 1', { idempotencyKey: 'k' });
      await assert.rejects(p.upload(text, { idempotencyKey: 'k', ...more }), refusal('idempotency_mismatch'));
      assert.equal((await p.keys()).length, 1);
    });
  }

  test('of a request that still runs is in flight, for as long as it runs', async (t) => {
    const p = await createPipeline(t, { reservationMs: 300 });
    let end = () => {};
    const slow = new Promise<void>((resolve) => {
      end = resolve;
    });
    async function* body() {
      yield Buffer.from('IMG 1');
      await slow;
    }
    const first = p.upload(body(), { idempotencyKey: 'k' });
    await until('the reservation was extended twice', () => p.store.calls('extendReservation') >= 4);
    await assert.rejects(p.upload('IMG 1', { idempotencyKey: 'k' }), (error: SkrepkaError) => {
      return error.code === 'idempotency_in_flight' && (error.retryAfterSeconds ?? 0) >= 1;
    });
    end();
    await first;
  });

  test('is free again after a refusal', async (t) => {
    const p = await createPipeline(t);
    await assert.rejects(p.upload('', { idempotencyKey: 'k' }), refusal('empty_file'));
    assert.equal((await p.upload('IMG 1', { idempotencyKey: 'k' })).replayed, false);
  });

  test('whose holder died is free again when its lease ends', async (t) => {
    const p = await createPipeline(t);
    const name = { userId: p.user, scope: 'attachment', key: 'k' } as const;
    await p.store.port.reserve({ ...name, token: p.clock.newId(), leaseMs: 60_000 });
    await assert.rejects(p.upload('IMG 1', { idempotencyKey: 'k' }), refusal('idempotency_in_flight'));
    await p.pool.query('update idempotency_keys set lease_until = now()');
    await until('the key is free', () => p.upload('IMG 1', { idempotencyKey: 'k' }).catch(() => null));
  });

  test('that was lost to another request commits nothing', async (t) => {
    const p = await createPipeline(t);
    p.store.plan('accept', {
      first: async () => void (await p.pool.query('update idempotency_keys set token = gen_random_uuid()')),
    });
    await assert.rejects(p.upload('IMG 1', { idempotencyKey: 'k' }), refusal('idempotency_in_flight'));
    await assertNothingKept(p);
  });

  test('used by many at once makes one attachment', async (t) => {
    const p = await createPipeline(t);
    const all = await Promise.allSettled(Array.from({ length: 8 }, () => p.upload('IMG 1', { idempotencyKey: 'k' })));
    assert.ok(all.some((one) => one.status === 'fulfilled'));
    assert.equal((await p.pool.query('select 1 from attachments')).rowCount, 1);
    assert.equal((await p.keys()).length, 1);
  });
});

describe('admission', () => {
  test('comes before a byte is asked for, and leaves no key reserved', async (t) => {
    const p = await createPipeline(t, { pendingPerUserMax: 1 });
    await p.upload('IMG 1');
    let read = 0;
    async function* body() {
      read += 1;
      yield Buffer.from('IMG 2');
    }
    const more = { idempotencyKey: 'k', onAccepting: () => assert.fail('it was invited') };
    for (let time = 0; time < 2; time += 1) {
      await assert.rejects(p.upload(body(), more), refusal('too_many_uploads'));
    }
    assert.equal(read, 0);
    assert.equal((await p.pool.query('select 1 from idempotency_keys')).rowCount, 0);
    assert.equal((await p.keys()).length, 1);
  });

  test('does not refuse the repetition of a request that was answered, however full it is', async (t) => {
    const p = await createPipeline(t, { pendingPerUserMax: 1, backlogMax: 1, uploadsMax: 1 });
    const first = await p.upload('IMG 1', { idempotencyKey: 'k' });
    await assert.rejects(p.upload('IMG 1'), refusal('too_many_uploads'));
    const again = await p.upload('IMG 1', { idempotencyKey: 'k' });
    assert.deepEqual([again.replayed, again.attachment.id], [true, first.attachment.id]);
  });

  test('gets its place back from an upload that is refused, breaks off, or whose storage fails', async (t) => {
    const p = await createPipeline(t, { uploadsMax: 1, uploadsPerUserMax: 1, backlogMax: 1 });
    async function* broken() {
      yield Buffer.from('IMG 1');
      throw new Error('socket hang up');
    }
    await assert.rejects(p.upload(''), refusal('empty_file'));
    await assert.rejects(p.upload(broken()), /socket hang up/);
    await assert.rejects(p.upload('IMG', { signal: AbortSignal.abort(new Error('gone')) }), /gone/);
    p.blobs.plan('put', { before: () => new BlobError('unavailable', 'the disk is gone') });
    await assert.rejects(p.upload('IMG 1'), refusal('storage_unavailable'));
    p.store.plan('accept', { before: () => new StoreError('unavailable', 'refused') });
    await assert.rejects(p.upload('IMG 1'), refusal('unavailable'));
    await p.upload('IMG 1');
    await assert.rejects(p.upload('IMG 1'), refusal('overloaded'));
  });

  test('counts a commit of unknown outcome, which may still come', async (t) => {
    const p = await createPipeline(t, { backlogMax: 1 });
    const lost = () => new StoreError('unknown', 'the connection broke');
    p.store.plan('accept', { before: lost });
    p.store.plan('attachmentFor', { before: lost });
    await assert.rejects(p.upload('IMG 1'), refusal('unavailable'));
    await assert.rejects(p.upload('IMG 1'), refusal('overloaded'));
  });

  test('that cannot ask the store says that the service is not available, and not that it is full', async (t) => {
    const p = await createPipeline(t);
    const down = () => new StoreError('unavailable', 'down');
    p.store.plan('arrive', { before: down });
    await assert.rejects(p.upload('IMG 1'), refusal('unavailable'));
    p.store.plan('load', { before: down });
    await assert.rejects(p.upload('IMG 1'), refusal('unavailable'));
    await p.upload('IMG 1');
  });
});

test('a body in single bytes and one in large pieces make the same object', async (t) => {
  const p = await createPipeline(t);
  const text = `IMG ${'0123456789'.repeat(1000)}`;
  const one = await p.upload(chunks(text, 1));
  const other = await p.upload(chunks(text, 7000));
  assert.equal(one.attachment.sha256, other.attachment.sha256);
  assert.equal(one.attachment.size, text.length);
});
