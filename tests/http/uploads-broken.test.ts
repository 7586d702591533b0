/** Uploads that come slowly, in pieces, after an invitation, or never to their end. Nothing half is ever kept. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { describe, it, type TestContext } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { until } from '../support/until.ts';
import {
  dial,
  nothing,
  png,
  sha256,
  startUploads,
  type Uploads,
  untilNothing,
  uploadHead,
} from '../support/uploads.ts';

const bytes = png('x', 200_000);

/** The head and body of a form with one file. */
function formUpload(token: string, content: Buffer, headers: Record<string, string> = {}): [string, Buffer] {
  const part = 'content-disposition: form-data; name=file; filename=a.png\r\ncontent-type: image/png\r\n\r\n';
  const body = Buffer.concat([Buffer.from(`--b\r\n${part}`), content, Buffer.from('\r\n--b--\r\n')]);
  const type = 'multipart/form-data; boundary=b';
  return [uploadHead(token, { 'content-type': type, 'content-length': body.length, ...headers }), body];
}

/** Files, pipes and sockets that this process has open. */
const openHandles = async () => (await readdir('/dev/fd')).length;

const answered = ({ lines }: Uploads) => lines.filter((line) => line.includes('"method":"POST"')).length;

/** Sends a part of an upload, then is gone without a word. */
async function vanish(t: TestContext, { url, ada }: Uploads, share: number, asForm: boolean): Promise<void> {
  const line = await dial(t, url);
  const raw: [string, Buffer] = [
    uploadHead(ada.token, { 'content-length': bytes.length, 'idempotency-key': 'k' }),
    bytes,
  ];
  const [head, body] = asForm ? formUpload(ada.token, bytes) : raw;
  await line.write(head);
  await line.write(body.subarray(0, Math.floor(body.length * share)));
  line.socket.destroy();
}

describe('a client that is gone', () => {
  for (const [share, where] of [
    [0.1, 'a tenth'],
    [0.99, 'almost all'],
  ] as const) {
    it(`after ${where} of its upload leaves no row, no key, no file and no handle, eighty times`, async (t) => {
      const uploads = await startUploads(t);
      await vanish(t, uploads, share, false);
      await until('the first is over', () => answered(uploads) === 1);
      await untilNothing(uploads);
      // The pool's connections are handles too, and stay.
      await Promise.all(Array.from({ length: 10 }, () => uploads.pool.query('select pg_sleep(0.2)')));
      const before = await openHandles();
      for (let round = 1; round <= 20; round += 1) {
        await Promise.all([1, 2, 3, 4].map((at) => vanish(t, uploads, share, at % 2 === 0)));
        await until('all are over', () => answered(uploads) === 1 + 4 * round);
      }
      await untilNothing(uploads);
      await until('all handles are closed', async () => (await openHandles()) <= before + 2);
      assert.ok(!uploads.lines.some((line) => line.startsWith('error')));
    });
  }

  it('after its last byte, before the answer, leaves nothing, forty times', async (t) => {
    const uploads = await startUploads(t);
    for (let round = 1; round <= 40; round += 1) {
      const held = uploads.points.hold('accept.stored');
      const line = await dial(t, uploads.url);
      await line.write(uploadHead(uploads.ada.token, { 'content-length': bytes.length }));
      await line.write(bytes);
      await held.reached;
      line.socket.destroy();
      await until('the server knows', () => answered(uploads) === round);
      held.pass();
      await untilNothing(uploads);
    }
  });

  it('at any moment leaves rows and objects that belong together', async (t) => {
    const uploads = await startUploads(t);
    for (let round = 1; round <= 40; round += 1) {
      const line = await dial(t, uploads.url);
      await line.write(uploadHead(uploads.ada.token, { 'content-length': bytes.length }));
      await line.write(bytes);
      line.socket.destroy();
      await until('it is over', () => answered(uploads) === round);
    }
    await until('every object has its row', async () => {
      const { attachments, jobs, files } = await uploads.remains();
      return attachments === jobs && jobs === files;
    });
  });

  it('leaves its key free: the same upload sent again is taken', async (t) => {
    const uploads = await startUploads(t);
    await vanish(t, uploads, 0.5, false);
    // Before it has begun, nothing is there either.
    await until('it is over', () => answered(uploads) === 1);
    await untilNothing(uploads);
    assert.equal((await uploads.send(bytes, { 'idempotency-key': 'k' })).status, 202);
  });
});

describe('a body in pieces', () => {
  it('is the same object byte by byte, raw and as a form', async (t) => {
    const { url, ada } = await startUploads(t);
    const small = png('drop by drop', 500);
    for (const [head, body] of [
      [uploadHead(ada.token, { 'content-length': small.length }), small] as const,
      formUpload(ada.token, small),
    ]) {
      const line = await dial(t, url);
      line.socket.setNoDelay(true);
      await line.write(head);
      for (const byte of body) await line.write(Buffer.of(byte));
      await line.until(sha256(small));
    }
  });

  it('is the same object in pieces of seven kilobytes, of known and of unknown length', async (t) => {
    const { url, ada } = await startUploads(t);
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { 'content-length': bytes.length }));
    for (let at = 0; at < bytes.length; at += 7168) await line.write(bytes.subarray(at, at + 7168));
    await line.until(sha256(bytes));
    const chunked = await dial(t, url);
    await chunked.write(uploadHead(ada.token, { 'transfer-encoding': 'chunked' }));
    for (let at = 0; at < bytes.length; at += 7168) {
      const piece = bytes.subarray(at, at + 7168);
      await chunked.write(Buffer.concat([Buffer.from(`${piece.length.toString(16)}\r\n`), piece, Buffer.from('\r\n')]));
    }
    await chunked.write('0\r\n\r\n');
    await chunked.until(sha256(bytes));
  });

  it('is handed on in those of the network: joined ones would leave copies that only a full collection finds', async (t) => {
    const pieces: number[] = [];
    async function* watched(body: AsyncIterable<Uint8Array>) {
      for await (const piece of body) {
        pieces.push(piece.length);
        yield piece;
      }
    }
    const { url, ada } = await startUploads(t, {
      deps: ({ accept }) => ({
        accept: { accept: (upload, body) => accept.accept(upload, watched(body)) },
      }),
    });
    const line = await dial(t, url);
    await line.write(Buffer.concat([Buffer.from(uploadHead(ada.token, { 'content-length': bytes.length })), bytes]));
    await line.until(sha256(bytes));
    assert.equal(
      pieces.reduce((sum, length) => sum + length, 0),
      bytes.length,
    );
    // What one read of a socket brings, behind the little that was queued before it.
    assert.ok(Math.max(...pieces) < (64 + 16) * 1024, `pieces of ${pieces}`);
  });

  it('never sits in memory: 200 MB pass through a bounded heap', async (t) => {
    const { url, ada } = await startUploads(t, { settings: { uploadBytesMax: 256 * 1024 * 1024 } });
    const piece = Buffer.alloc(256 * 1024, 'x');
    // Collected first: what is measured is held, not merely not swept up yet.
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const used = () => {
      collect();
      const { heapUsed, external } = process.memoryUsage();
      return heapUsed + external;
    };
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { 'content-length': 800 * piece.length }));
    const before = used();
    let peak = before;
    for (let sent = 0; sent < 800; sent += 1) {
      await line.write(piece);
      if (sent % 40 === 0) peak = Math.max(peak, used());
    }
    await line.until(`"size":${800 * piece.length}`);
    assert.ok(peak - before < 16 * 1024 * 1024, `grew by ${Math.round((peak - before) / 1e6)} MB`);
  });
});

describe('an upload that stalls', () => {
  it('is ended with 408 when nothing comes for the set time, and leaves nothing', async (t) => {
    const uploads = await startUploads(t, { settings: { stallMs: 150 } });
    const [formHead, formBody] = formUpload(uploads.ada.token, bytes);
    for (const [head, body] of [
      [uploadHead(uploads.ada.token, { 'content-length': bytes.length }), bytes] as const,
      [formHead, formBody] as const,
    ]) {
      const line = await dial(t, uploads.url);
      await line.write(head);
      await line.write(body.subarray(0, 100_000));
      await line.until('"code":"request_timeout"');
      await line.untilClosed();
      assert.match(line.received(), /^HTTP\/1\.1 408 /);
      await untilNothing(uploads);
    }
  });

  it('may take any time as long as something comes, and storage may take its time as well', async (t) => {
    const uploads = await startUploads(t, { settings: { stallMs: 300 } });
    const passes = (ms: number) => {
      const end = performance.now() + ms;
      return until(`${ms} ms have passed`, () => performance.now() > end);
    };
    uploads.blobs.plan('put', { first: () => passes(700) as unknown as Promise<void> });
    const line = await dial(t, uploads.url);
    await line.write(uploadHead(uploads.ada.token, { 'content-length': bytes.length }));
    await line.write(bytes.subarray(0, 10));
    await until('storage was asked', () => uploads.blobs.calls('put') === 1);
    await passes(500);
    for (let at = 10; at < 60; at += 10) {
      await line.write(bytes.subarray(at, at + 10));
      await passes(150);
    }
    await line.write(bytes.subarray(60));
    await line.until(sha256(bytes));
  });
});

describe('Expect: 100-continue', () => {
  const expect = { expect: '100-continue' };
  const invited = 'HTTP/1.1 100 Continue\r\n\r\n';

  it('is answered with the invitation alone, and with 202 after the body', async (t) => {
    const { url, ada } = await startUploads(t);
    const raw = uploadHead(ada.token, { 'content-length': bytes.length, ...expect });
    for (const [head, body] of [[raw, bytes] as const, formUpload(ada.token, bytes, expect)]) {
      const line = await dial(t, url);
      await line.write(head);
      await line.until(invited);
      assert.equal(line.received(), invited);
      await line.write(body);
      await line.until(sha256(bytes));
    }
  });

  it('is answered no sooner than the body is wanted', async (t) => {
    const { url, ada, faults } = await startUploads(t);
    const gate = Promise.withResolvers<void>();
    faults.plan('arrive', { first: () => gate.promise });
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { 'content-length': bytes.length, ...expect }));
    await until('admission was asked', () => faults.calls('arrive') === 1);
    assert.equal(line.received(), '');
    gate.resolve();
    await line.until(invited);
  });

  it('is answered with a refusal instead, before any byte is sent', async (t) => {
    const { url, ada, remains } = await startUploads(t);
    const cases: readonly [string, string][] = [
      [uploadHead('skr_wrong', { 'content-length': 10, ...expect }), 'unauthorized'],
      [uploadHead(ada.token, { 'content-length': 9_999_999, ...expect }), 'file_too_large'],
      [uploadHead(ada.token, { 'content-length': 10, 'content-encoding': 'br', ...expect }), 'unsupported_media_type'],
      [uploadHead(ada.token, { 'transfer-encoding': 'gzip, chunked', ...expect }), 'unsupported_media_type'],
      [uploadHead(ada.token, { 'content-length': 10, 'repr-digest': 'x', ...expect }), 'validation'],
      [formUpload(ada.token, Buffer.alloc(2_000_000), expect)[0], 'file_too_large'],
    ];
    for (const [head, code] of cases) {
      const line = await dial(t, url);
      await line.write(head);
      await line.until(`"code":"${code}"`);
      await line.untilClosed();
      assert.ok(!line.received().includes('100 Continue'));
    }
    assert.deepEqual(await remains(), nothing);
  });

  it('of a form whose key is in flight is answered with the refusal, before any byte is sent', async (t) => {
    const { url, ada, points, send } = await startUploads(t);
    const held = points.hold('accept.stored');
    const first = send(png(), { 'idempotency-key': 'k' });
    await held.reached;
    const line = await dial(t, url);
    await line.write(formUpload(ada.token, bytes, { 'idempotency-key': 'k', ...expect })[0]);
    await line.until('"code":"idempotency_in_flight"');
    assert.ok(!line.received().includes('100 Continue'));
    held.pass();
    await first;
  });

  it('is obeyed by routes that take JSON, and other expectations are ignored', async (t) => {
    const { url, ada, send } = await startUploads(t);
    const { id } = (await send(png())).body;
    for (const word of ['100-continue', '200-maybe']) {
      const line = await dial(t, url);
      const body = '{"alt":"a cat"}';
      const head = uploadHead(ada.token, {
        'content-type': 'application/json',
        'content-length': body.length,
        expect: word,
      });
      await line.write(head.replace('POST /v1/attachments', `PATCH /v1/attachments/${id}`));
      if (word === '100-continue') await line.until(invited);
      await line.write(body);
      await line.until('"alt":"a cat"');
    }
  });
});

describe('a refusal', () => {
  it('reaches a client that goes on sending for a while before it looks at the answer', async (t) => {
    const { url } = await startUploads(t);
    const line = await dial(t, url);
    line.socket.pause();
    await line.write(uploadHead('skr_wrong', { 'content-length': 50_000_000 }));
    void line.write(Buffer.alloc(50_000_000)).catch(() => {});
    let [sent, looks] = [-1, 0];
    // Often, because a connection that sends nothing more is not kept for long.
    await until(
      'the server takes no more',
      () => {
        looks = line.socket.bytesWritten - line.socket.writableLength === sent ? looks + 1 : 0;
        sent = line.socket.bytesWritten - line.socket.writableLength;
        return looks > 40;
      },
      { everyMs: 5 },
    );
    line.socket.resume();
    await line.until('"code":"unauthorized"');
  });

  it('in the middle of a body has the rest passed by, and the connection closed with its end', async (t) => {
    const uploads = await startUploads(t);
    const body = Buffer.alloc(200_000, 'no picture ');
    const line = await dial(t, uploads.url);
    await line.write(uploadHead(uploads.ada.token, { 'content-type': 'image/png', 'content-length': body.length }));
    await line.write(body.subarray(0, 100_000));
    await line.until('"code":"unsupported_image"');
    await line.write(body.subarray(100_000));
    // Far below the two seconds for which a connection is kept that sends nothing more.
    await line.untilClosed(1000);
    await untilNothing(uploads);
  });
});
