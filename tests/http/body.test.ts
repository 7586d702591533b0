/** The bytes of a request: whose memory they are, who may read them after whom, and when they are late. */
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { describe, it, type TestContext } from 'node:test';
import { readBody } from '../../src/http/body.ts';
import { openUpload } from '../../src/http/upload.ts';
import { onEnd } from '../support/on-end.ts';

const patience = { stallMs: 10_000, wholeMs: 10_000 };
const bytes = Buffer.alloc(1_000_000, 'some bytes ');

/** What `handle` makes of a request that sends `bytes`. */
async function sent<T>(t: TestContext, handle: (request: IncomingMessage) => Promise<T>): Promise<T> {
  const handled = Promise.withResolvers<T>();
  const server = createServer((incoming, response) => {
    const work = handle(incoming);
    handled.resolve(work);
    work.then(
      () => response.end(),
      () => response.destroy(),
    );
  });
  onEnd(t, () => server.close().closeAllConnections());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const sending = request({ host: '127.0.0.1', port, method: 'POST', headers: { 'content-length': bytes.length } });
  sending.on('error', () => {});
  sending.on('response', (response) => response.resume());
  sending.end(bytes);
  return await handled.promise;
}

describe('the body of a request', () => {
  it('gives the memory of each chunk back when the next one is asked for, and no sooner', async (t) => {
    const { whole, held } = await sent(t, async (incoming) => {
      const chunks: Buffer[] = [];
      const memories: ArrayBufferLike[] = [];
      let held = 0;
      for await (const chunk of readBody(incoming, patience).bytes) {
        chunks.push(Buffer.from(chunk));
        memories.push(chunk.buffer);
        held = Math.max(held, memories.filter(({ byteLength }) => byteLength > 0).length);
      }
      assert.ok(memories.length > 5, `it came in ${memories.length} chunks`);
      return { whole: Buffer.concat(chunks), held };
    });
    assert.ok(whole.equals(bytes));
    assert.equal(held, 1);
  });

  it('that nobody reads on is free for whoever passes the rest by', async (t) => {
    const rest = await sent(t, async (incoming) => {
      const body = readBody(incoming, patience);
      const first = await body.bytes.next();
      const length = (first.value as Buffer).length;
      body.stop();
      let passed = 0;
      incoming.on('data', (chunk: Buffer) => {
        passed += chunk.length;
      });
      incoming.resume();
      await once(incoming, 'end', { signal: AbortSignal.timeout(5000) });
      return length + passed;
    });
    assert.equal(rest, bytes.length);
  });

  it('that came while the process stood still is no stall', async (t) => {
    const stallMs = 100;
    let stood = 0;
    const size = await sent(t, async (incoming) => {
      let size = 0;
      for await (const chunk of readBody(incoming, { ...patience, stallMs }).bytes) {
        size += chunk.length;
        if (stood > 0) continue;
        // The question for the next chunk is asked first, and the process stands still once it waits.
        setImmediate(() => {
          const beganMs = performance.now();
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, stallMs * 3);
          stood = performance.now() - beganMs;
        });
      }
      return size;
    });
    assert.equal(size, bytes.length);
    assert.ok(stood > stallMs, `it stood still for ${stood} ms`);
  });

  it('that is larger than allowed ends with what its reader says', async (t) => {
    const size = await sent(t, async (incoming) => {
      const limit = { bytes: 500_000, exceeded: () => new Error('enough') as never };
      const body = readBody(incoming, { ...patience, limit });
      let size = 0;
      await assert.rejects(async () => {
        for await (const chunk of body.bytes) size += chunk.length;
      }, /enough/);
      body.stop();
      return size;
    });
    assert.ok(size <= 500_000, `${size} bytes were passed on`);
  });

  it('may end within a field of its form, which is kept until its end', async () => {
    const form = '--b\r\ncontent-disposition: form-data; name=alt\r\n\r\nin many pieces\r\n--b\r\n';
    const file = 'content-disposition: form-data; name=file; filename=a\r\n\r\nbytes\r\n--b--\r\n';
    const pieces = [...`${form}${file}`].map((letter) => new Uint8Array(Buffer.from(letter)));
    const raw = Object.assign(
      new Readable({
        read() {
          const piece = pieces.shift();
          this.push(piece ? Buffer.from(piece.buffer) : null);
        },
        // One piece at a time, as they come over a slow line.
        highWaterMark: 1,
      }),
      { headers: { 'content-type': 'multipart/form-data; boundary=b' }, socket: { destroyed: false } },
    );
    const { upload, body } = openUpload(
      {
        raw: raw as unknown as IncomingMessage,
        response: new EventEmitter() as ServerResponse,
        userId: 'u',
        queryName: undefined,
      },
      { uploadBytesMax: 1000, uploadMsMax: 10_000, stallMs: 10_000 },
    );
    let text = '';
    for await (const chunk of body) text += Buffer.from(chunk).toString('latin1');
    assert.equal(text, 'bytes');
    assert.equal((await upload.trailer()).alt, 'in many pieces');
  });
});
