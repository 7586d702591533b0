/**
 * `DELIVERY=redirect` behind the routes: what the store is asked to pin, and what happens where it has no URLs or cannot sign.
 * What such a URL then serves is proven on a real store, in `tests/engines/s3-redirect.test.ts`.
 */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { BlobError, type Blobs } from '../../src/pipeline/ports.ts';
import { png, startUploads } from '../support/uploads.ts';

type Presign = Blobs['presign'];

async function ready(t: TestContext, presign: Presign) {
  const uploads = await startUploads(t, {
    settings: { delivery: 'redirect', presignSeconds: 17 },
    deps: ({ blobs }) => ({ blobs: { ...blobs, presign } }),
  });
  const { id } = (await uploads.send(png(), { 'content-type': 'image/png' }, '?filename=cat.png')).body;
  await uploads.publish(id);
  const get = (path: string, headers: Record<string, string> = {}) =>
    fetch(`${uploads.url}/v1/attachments/${id}/${path}`, {
      headers: { authorization: `Bearer ${uploads.ada.token}`, ...headers },
      redirect: 'manual',
    });
  return { ...uploads, id, get };
}

describe('307', () => {
  it('names a URL for exactly the object of the row, with type, disposition and life, and is never kept', async (t) => {
    const asked: Parameters<Presign>[] = [];
    const { get, pool, id } = await ready(t, async (...args) => {
      asked.push(args);
      return 'https://store.example/signed?x=1';
    });
    const { rows } = await pool.query(
      `select original_key as key, 'image/png' as type, 'cat.png' as name from attachments where id = $1
       union all select key, content_type, 'cat-crop.jpg' from variants where attachment_id = $1 and name = 'crop'`,
      [id],
    );
    for (const path of ['content', 'variants/crop']) {
      const answer = await get(path, { range: 'bytes=0-1' });
      assert.equal(answer.status, 307);
      assert.equal(answer.headers.get('location'), 'https://store.example/signed?x=1');
      assert.equal(answer.headers.get('cache-control'), 'no-store');
      assert.equal(answer.headers.get('etag'), null);
      assert.equal((await answer.arrayBuffer()).byteLength, 0);
    }
    assert.deepEqual(
      asked,
      rows.map(({ key, type, name }) => [
        key,
        { expiresSeconds: 17, contentType: type, disposition: `inline; filename=${name}` },
      ]),
    );
  });
});

describe('200', () => {
  it('streams the bytes where the store has no URLs', async (t) => {
    const { get } = await ready(t, async () => null);
    const answer = await get('content');
    assert.equal(answer.status, 200);
    assert.deepEqual(Buffer.from(await answer.arrayBuffer()), png());
  });
});

describe('503', () => {
  it('answers when no URL can be signed, and says nothing of the store', async (t) => {
    const { get } = await ready(t, () => Promise.reject(new BlobError('unavailable', 'no credentials at s3.internal')));
    const answer = await get('content');
    const text = await answer.text();
    assert.deepEqual([answer.status, JSON.parse(text).code], [503, 'storage_unavailable']);
    assert.ok(!text.includes('internal'));
    assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]/);
  });
});
