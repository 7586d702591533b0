/** Originals and variants as bytes: a block per status, for both routes. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { describe, it, type TestContext } from 'node:test';
import { nameFromHeader } from '../../src/http/disposition.ts';
import { BlobError } from '../../src/pipeline/ports.ts';
import { hardNames } from '../support/names.ts';
import { until } from '../support/until.ts';
import { dial, png, sha256, startUploads } from '../support/uploads.ts';

const bytes = png('content', 5000);

/** A ready picture, and how to ask for it. */
async function ready(t: TestContext, { name = 'cat.png', content = bytes, type = 'image/png' } = {}) {
  const uploads = await startUploads(t);
  const { id } = (await uploads.send(content, { 'content-type': type }, `?filename=${encodeURIComponent(name)}`)).body;
  await uploads.publish(id);
  const get = async (path = '/content', headers: Record<string, string> = {}, method = 'GET') => {
    const response = await fetch(`${uploads.url}/v1/attachments/${id}${path}`, {
      method,
      headers: { authorization: `Bearer ${uploads.ada.token}`, ...headers },
    });
    return { status: response.status, headers: response.headers, bytes: Buffer.from(await response.arrayBuffer()) };
  };
  return { ...uploads, id, get };
}

const codeIn = (answer: { bytes: Buffer }) => (JSON.parse(answer.bytes.toString()) as { code: string }).code;

describe('200', () => {
  it('is the original byte for byte, with everything that keeps it harmless and fresh', async (t) => {
    const { get } = await ready(t);
    const { status, headers, bytes: received } = await get();
    assert.equal(status, 200);
    assert.deepEqual(received, bytes);
    const expected = {
      'content-type': 'image/png',
      'content-length': String(bytes.length),
      etag: `"${sha256(bytes)}"`,
      'accept-ranges': 'bytes',
      'content-disposition': 'inline; filename=cat.png',
      'x-content-type-options': 'nosniff',
      'content-security-policy': "sandbox; default-src 'none'",
      'cache-control': 'private, no-cache',
    };
    for (const [name, value] of Object.entries(expected)) assert.equal(headers.get(name), value, name);
  });

  it('is each variant with its own type, size, digest and name', async (t) => {
    const { get, call, id, ada } = await ready(t);
    const { body } = await call(`GET /v1/attachments/${id}`, { token: ada.token });
    for (const variant of body.variants as readonly Record<string, string | number>[]) {
      const { status, headers, bytes: received } = await get(`/variants/${variant.name}`);
      assert.equal(status, 200);
      assert.equal(sha256(received), variant.sha256);
      assert.equal(headers.get('etag'), `"${variant.sha256}"`);
      assert.equal(headers.get('content-type'), variant.content_type);
      assert.equal(headers.get('content-length'), String(variant.size));
      const end = variant.content_type === 'image/webp' ? 'webp' : 'jpg';
      assert.equal(headers.get('content-disposition'), `inline; filename=cat-${variant.name}.${end}`);
    }
  });

  it('is a download, not a page, for everything that is not one of the five pictures', async (t) => {
    const html = Buffer.from('<!doctype html><html><script>alert(1)</script></html>');
    const { get } = await ready(t, { name: 'cat.jpg', content: html, type: 'text/html' });
    const { status, headers } = await get();
    assert.equal(status, 200);
    assert.match(headers.get('content-disposition') ?? '', /^attachment; /);
    assert.equal(headers.get('x-content-type-options'), 'nosniff');
    assert.match(headers.get('content-security-policy') ?? '', /^sandbox;/);
  });

  it('tells every name exactly in one well-formed header', async (t) => {
    const { send, publish, url, ada } = await startUploads(t);
    for (const name of [...hardNames, 'a\r\nx-evil: 1.png']) {
      const { body } = await send(bytes, {}, `?filename=${encodeURIComponent(name)}`);
      await publish(body.id);
      const response = await fetch(`${url}/v1/attachments/${body.id}/content`, {
        headers: { authorization: `Bearer ${ada.token}` },
      });
      assert.deepEqual(Buffer.from(await response.arrayBuffer()), bytes);
      assert.equal(response.headers.get('x-evil'), null);
      assert.equal(nameFromHeader(response.headers.get('content-disposition') ?? ''), body.file_name);
    }
  });

  it('is the whole for several ranges, for a changed validator and for what is no range', async (t) => {
    const { get } = await ready(t);
    const requests: readonly Record<string, string>[] = [
      { range: 'bytes=0-1,3-4' },
      { range: 'bytes=0-1', 'if-range': '"other"' },
      { range: 'bytes=5-3' },
      { range: 'lines=0-1' },
      { 'if-none-match': '"other"' },
    ];
    for (const headers of requests) {
      const answer = await get('/content', headers);
      assert.deepEqual([answer.status, answer.bytes.length], [200, bytes.length]);
      assert.equal(answer.headers.get('content-range'), null);
    }
  });

  it('to HEAD has the headers of GET, ranges aside, and opens no object', async (t) => {
    const { get, blobs } = await ready(t);
    for (const path of ['/content', '/variants/crop']) {
      const full = await get(path);
      const opened = blobs.calls('open');
      for (const range of ['bytes=0-1', 'bytes=99999-']) {
        const head = await get(path, { range }, 'HEAD');
        assert.deepEqual([head.status, head.bytes.length], [200, 0]);
        for (const name of ['content-length', 'content-type', 'etag', 'content-disposition', 'accept-ranges']) {
          assert.equal(head.headers.get(name), full.headers.get(name), name);
        }
      }
      assert.equal(blobs.calls('open'), opened);
    }
  });

  it('follows the row to another object when the one it named has just gone', async (t) => {
    const { get, blobs, pool, id } = await ready(t);
    const moved = `attachments/${id}/v2.1-moved/original.png`;
    const move = async ([key]: readonly unknown[]) => {
      await blobs.port.copy(String(key), moved);
      await pool.query('update attachments set original_key = $2 where id = $1', [id, moved]);
      await blobs.port.deleteMany([String(key)]);
    };
    blobs.plan('open', { first: move });
    const answer = await get('/content', { range: 'bytes=1-9' });
    assert.equal(answer.status, 206);
    assert.deepEqual(answer.bytes, bytes.subarray(1, 10));
  });
});

describe('206', () => {
  it('is the range that was asked for, with its place and its own length', async (t) => {
    const { get } = await ready(t);
    const size = bytes.length;
    for (const [range, start, end] of [
      ['bytes=0-0', 0, 0],
      ['bytes=10-99', 10, 99],
      [`bytes=${size - 1}-`, size - 1, size - 1],
      ['bytes=-7', size - 7, size - 1],
      ['bytes=100-999999', 100, size - 1],
    ] as const) {
      const requests: readonly Record<string, string>[] = [{}, { 'if-range': `"${sha256(bytes)}"` }];
      for (const more of requests) {
        const { status, headers, bytes: part } = await get('/content', { range, ...more });
        assert.equal(status, 206);
        assert.equal(headers.get('content-range'), `bytes ${start}-${end}/${size}`);
        assert.equal(headers.get('content-length'), String(end - start + 1));
        assert.equal(headers.get('etag'), `"${sha256(bytes)}"`);
        assert.deepEqual(part, bytes.subarray(start, end + 1));
      }
    }
  });
});

describe('304', () => {
  it('has the validator and no body, for GET and HEAD, even with a range', async (t) => {
    const { get, blobs } = await ready(t);
    const opened = blobs.calls('open');
    for (const tag of [`"${sha256(bytes)}"`, `W/"${sha256(bytes)}"`, '*', `"x", "${sha256(bytes)}"`]) {
      for (const method of ['GET', 'HEAD']) {
        const answer = await get('/content', { 'if-none-match': tag, range: 'bytes=0-1' }, method);
        assert.deepEqual([answer.status, answer.bytes.length], [304, 0]);
        assert.equal(answer.headers.get('etag'), `"${sha256(bytes)}"`);
        assert.equal(answer.headers.get('cache-control'), 'private, no-cache');
      }
    }
    assert.equal(blobs.calls('open'), opened);
  });
});

describe('404', () => {
  it('answers variants that nobody made, of pictures and of files', async (t) => {
    const { get, send, publish, url, ada } = await ready(t);
    for (const name of ['huge', 'Thumbnail', '..%2fcontent', 'x'.repeat(300)]) {
      const answer = await get(`/variants/${name}`);
      assert.deepEqual([answer.status, codeIn(answer)], [404, 'not_found']);
    }
    const { id } = (await send('just text', { 'content-type': 'text/plain' })).body;
    await publish(id);
    const response = await fetch(`${url}/v1/attachments/${id}/variants/thumbnail`, {
      headers: { authorization: `Bearer ${ada.token}` },
    });
    assert.equal(response.status, 404);
    await response.arrayBuffer();
  });
});

describe('409', () => {
  it('answers not ready with the state and Retry-After while queued and processing', async (t) => {
    const { send, claim, call, ada } = await startUploads(t);
    const { id } = (await send(bytes)).body;
    for (const state of ['queued', 'processing']) {
      for (const path of ['content', 'variants/thumbnail']) {
        const answer = await call(`GET /v1/attachments/${id}/${path}`, { token: ada.token });
        assert.deepEqual([answer.status, answer.body.code, answer.body.state], [409, 'attachment_not_ready', state]);
        assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]/);
        assert.equal(answer.headers.get('etag'), null);
      }
      if (state === 'queued') await claim(id);
    }
  });

  it('answers failed with the code of the failure and without Retry-After', async (t) => {
    const { send, fail, call, ada } = await startUploads(t);
    const { id } = (await send(bytes)).body;
    await fail(id);
    for (const path of ['content', 'variants/thumbnail']) {
      const answer = await call(`GET /v1/attachments/${id}/${path}`, { token: ada.token });
      assert.deepEqual(
        [answer.status, answer.body.code, answer.body.error_code],
        [409, 'attachment_failed', 'corrupt_image'],
      );
      assert.equal(answer.headers.get('retry-after'), null);
    }
  });
});

describe('416', () => {
  it('answers a range outside of the object with its size, as a problem and not as the picture', async (t) => {
    const { get } = await ready(t);
    for (const range of [`bytes=${bytes.length}-`, 'bytes=-0', 'bytes=999999-9999999']) {
      const answer = await get('/content', { range });
      assert.deepEqual([answer.status, codeIn(answer)], [416, 'range_not_satisfiable']);
      assert.equal(answer.headers.get('content-range'), `bytes */${bytes.length}`);
      assert.match(answer.headers.get('content-type') ?? '', /problem\+json/);
      assert.equal(answer.headers.get('content-disposition'), null);
    }
  });
});

describe('503', () => {
  it('answers when the object is gone, of another size, or out of reach, and says nothing of keys', async (t) => {
    const { get, blobs, lines, counts, pool, id } = await ready(t);
    blobs.plan('open', { before: () => new BlobError('unavailable', 'host s3.internal') });
    blobs.plan('open', { before: () => new BlobError('missing', 'No object') });
    for (let round = 0; round < 2; round += 1) {
      const answer = await get();
      assert.deepEqual([answer.status, codeIn(answer)], [503, 'storage_unavailable']);
      assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]/);
      assert.equal(answer.headers.get('etag'), null);
      assert.equal(answer.headers.get('content-disposition'), null);
      assert.ok(!/internal|attachments\//.test(answer.bytes.toString()));
    }
    assert.ok(lines.some((line) => line.startsWith('warn') && /which a row names: .*doctor --repair/.test(line)));
    // Of the two only the one that is gone, not the one out of reach.
    assert.equal(counts.filter((name) => name === 'objects_missing_total').length, 1);
    assert.equal((await get()).status, 200);
    const { rows } = await pool.query('select original_key from attachments where id = $1', [id]);
    await blobs.port.put(rows[0].original_key, Readable.from([bytes.subarray(1)]));
    assert.deepEqual([(await get()).status, codeIn(await get())], [503, 'storage_unavailable']);
  });
});

describe('a download that breaks off', () => {
  it('closes its object when the client goes, forty times', async (t) => {
    const { url, id, ada, send, publish } = await ready(t);
    assert.ok(id);
    const large = (await send(png('large', 900_000))).body.id;
    await publish(large);
    const open = async () => (await readdir('/dev/fd')).length;
    const request = `GET /v1/attachments/${large}/content HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ada.token}\r\n\r\n`;
    const before = await open();
    for (let round = 0; round < 40; round += 1) {
      const line = await dial(t, url);
      await line.write(request);
      await line.until('HTTP/1.1 200');
      line.socket.destroy();
    }
    await until('all are closed', async () => (await open()) <= before + 2);
  });

  it('is never a shorter file: the connection breaks when storage does, and the log knows', async (t) => {
    async function* half() {
      yield bytes.subarray(0, 2000);
      throw new Error('the disk is gone');
    }
    const { url, ada, send, publish, lines } = await startUploads(t, {
      deps: (real) => ({
        blobs: { ...real.blobs, open: async () => ({ size: bytes.length, body: Readable.from(half()) }) },
      }),
    });
    const { id } = (await send(bytes)).body;
    await publish(id);
    const response = await fetch(`${url}/v1/attachments/${id}/content`, {
      headers: { authorization: `Bearer ${ada.token}` },
    });
    assert.equal(response.status, 200);
    await assert.rejects(response.arrayBuffer());
    await until('the log knows', () => lines.some((line) => line.includes('the disk is gone')));
  });
});
