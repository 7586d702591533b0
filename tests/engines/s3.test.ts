/** The `s3:` driver on a real server: the suite of the port, and what only a store behind a network can get wrong. */
import assert from 'node:assert/strict';
import { createServer, request as forward } from 'node:http';
import { type TestContext, test } from 'node:test';
import { inspect } from 'node:util';
import type { S3Settings } from '../../src/drivers/blobs-s3.ts';
import { createS3Blobs } from '../../src/drivers/blobs-s3.ts';
import { fault, keysOf, read, sameBytes } from '../contract/blobs/expect.ts';
import { blobsContract } from '../contract/blobs.ts';
import { noise, pieces, wholeOf } from '../support/bytes.ts';
import { available, type CephServer, installCommand, startCeph } from '../support/engines/ceph.ts';
import { makeBucket, openHarness, partBytes, settingsOf } from '../support/engines/s3-buckets.ts';
import { onEnd } from '../support/on-end.ts';
import { putInChild } from '../support/put-elsewhere.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';

if (available()) await suite();
else test('the blobs suite runs on a real S3 server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startCeph(test);
  blobsContract('s3', () => openHarness(server));
  uploads(server);
  refusals(server);
  urls(server);
  faults(server);
  deaths(server);
}

async function bucketFor(t: TestContext, server: CephServer, change: Partial<S3Settings> = {}) {
  const bucket = await makeBucket(server, change);
  onEnd(t, bucket.close);
  return bucket;
}

const url = { expiresSeconds: 30, contentType: 'image/png', disposition: 'attachment; filename="cat.png"' };

function uploads(server: CephServer): void {
  for (const [size, parts] of [
    [2 * partBytes - 1, 2],
    [2 * partBytes, 2],
    [2 * partBytes + 1, 3],
  ] as const) {
    test(`s3: a body of ${size} bytes is an upload of ${parts} parts, whole`, async (t) => {
      const { blobs, look, unfinished } = await bucketFor(t, server);
      assert.deepEqual(await blobs.put('a/b', pieces(noise(size, 1), 1 << 16)), { size });
      sameBytes(await read(blobs, 'a/b'), noise(size, 1), 'a/b');
      assert.match((await look('a/b')).etag, new RegExp(`-${parts}"$`));
      assert.deepEqual(await unfinished(), []);
    });
  }

  test('s3: a body that throws in a later part leaves the old object and no unfinished upload', async (t) => {
    const { blobs, unfinished } = await bucketFor(t, server);
    await blobs.put('a/b', pieces(noise(1000, 1)));
    const error = new Error('the client hung up');
    let during: readonly string[] = [];
    async function* body() {
      yield noise(partBytes + 1000, 2);
      during = await unfinished();
      throw error;
    }
    await assert.rejects(blobs.put('a/b', body()), (received) => received === error);
    assert.deepEqual(during, ['a/b']);
    assert.deepEqual(await unfinished(), []);
    sameBytes(await read(blobs, 'a/b'), noise(1000, 1), 'the old object');
  });

  test('s3: an abort while a later part hangs leaves no object and no unfinished upload', async (t) => {
    const { blobs, unfinished } = await bucketFor(t, server);
    const abort = new AbortController();
    const reason = new Error('lease lost');
    async function* body() {
      yield noise(partBytes + 1000, 2);
      assert.deepEqual(await unfinished(), ['a/b']);
      abort.abort(reason);
      await new Promise<void>(() => {});
    }
    await assert.rejects(blobs.put('a/b', body(), { signal: abort.signal }), (received) => received === reason);
    assert.deepEqual(await unfinished(), []);
    assert.deepEqual(await keysOf(blobs), []);
  });

  test('s3: an upload whose process is killed between its parts shows nothing, and another one goes through', async (t) => {
    const { blobs, settings, unfinished } = await bucketFor(t, server);
    const size = 2 * partBytes;
    const put = putInChild({
      ...{ url: 's3:', s3: settings, key: 'a/b', size, seed: 1, pieceBytes: partBytes / 5 },
      hangAt: partBytes + partBytes / 5,
    });
    onEnd(t, put.kill);
    await put.asked(partBytes + partBytes / 5);
    await put.kill();
    assert.equal(await blobs.head('a/b'), null);
    assert.deepEqual(await unfinished(), ['a/b'], 'what the lifecycle rule of the bucket is for');
    await blobs.put('a/b', pieces(noise(size, 2), 1 << 20));
    sameBytes(await read(blobs, 'a/b'), noise(size, 2), 'the later one');
  });

  test('s3: a copy above the limit is made part by part inside the store, and keeps bytes and type', async (t) => {
    const { blobs, open, look, unfinished } = await bucketFor(t, server);
    const size = 2 * partBytes + 7;
    await blobs.put('a/b', pieces(noise(size, 1), 1 << 20), { contentType: 'image/webp' });
    const parted = open({ copyBytesMax: partBytes, s3PartBytes: 4 * partBytes });
    await parted.copy('a/b', 'c/d');
    sameBytes(await read(blobs, 'c/d'), noise(size, 1), 'the copy');
    const { etag, contentType } = await look('c/d');
    assert.match(etag, /-3"$/);
    assert.equal(contentType, 'image/webp');
    assert.deepEqual(await unfinished(), []);
    await assert.rejects(parted.copy('a/none', 'c/e'), fault('missing'));
  });

  test('s3: the SDK’s own checksums can be switched on', async (t) => {
    const { blobs } = await bucketFor(t, server, { s3Checksums: 'when_supported' });
    await blobs.put('a/b', pieces(noise(1000, 1)));
    sameBytes(await read(blobs, 'a/b'), noise(1000, 1), 'a/b');
  });
}

function refusals(server: CephServer): void {
  for (const [what, change] of [
    ['a wrong secret', { s3SecretAccessKey: 'a-wrong-secret' }],
    ['an unknown key', { s3AccessKeyId: 'AKNOBODY' }],
    ['a missing bucket', { bucket: 'never-made' }],
  ] as const) {
    test(`s3: ${what} is an outage of the store for every verb, never a missing object, and told without secrets`, async (t) => {
      const { open } = await bucketFor(t, server);
      const blobs = open(change);
      const calls = [
        blobs.put('a/b', pieces(noise(10, 1))),
        blobs.put('a/b', pieces(noise(partBytes + 1, 1), 1 << 20)),
        blobs.open('a/b'),
        blobs.head('a/b'),
        blobs.copy('a/b', 'a/c'),
        blobs.deleteMany(['a/b']),
        blobs.list(''),
        blobs.health(),
      ];
      for (const [at, call] of (await Promise.allSettled(calls)).entries()) {
        assert.equal(call.status, 'rejected', `call ${at}`);
        const error: unknown = call.status === 'rejected' ? call.reason : null;
        fault('unavailable')(error);
        assert.doesNotMatch(
          inspect(error, { depth: 20, showHidden: true }),
          /wrong-secret|SKSKREPKA|AKNOBODY|Signature=/,
        );
      }
    });
  }

  test('s3: a bucket is made when it is missing, also by many at once, and left as it is when it is there', async (t) => {
    const all = Array.from({ length: 5 }, () => createS3Blobs(shared));
    onEnd(t, () => Promise.all(all.map((blobs) => blobs.close())));
    const [blobs] = all;
    assert.ok(blobs);
    await assert.rejects(blobs.health(), fault('unavailable'));
    await Promise.all(all.map((each) => each.prepare()));
    await blobs.put('a/b', pieces(noise(10, 1)));
    await blobs.prepare();
    await blobs.health();
    assert.deepEqual(await keysOf(blobs), ['a/b']);
  });
  const shared = settingsOf(server);
}

function urls(server: CephServer): void {
  test('s3: a presigned URL needs no keys, serves ranges, pins type and disposition, and expires', async (t) => {
    const { blobs } = await bucketFor(t, server);
    await blobs.put('a/b', pieces(noise(5000, 1)), { contentType: 'text/html' });
    const location = (await blobs.presign('a/b', { ...url, expiresSeconds: 3 })) ?? '';
    const answer = await fetch(location, { headers: { range: 'bytes=10-19' } });
    assert.equal(answer.status, 206);
    assert.equal(answer.headers.get('content-range'), 'bytes 10-19/5000');
    assert.equal(answer.headers.get('content-type'), url.contentType);
    assert.equal(answer.headers.get('content-disposition'), url.disposition);
    assert.equal(answer.headers.get('cache-control'), 'private, no-store');
    sameBytes(Buffer.from(await answer.arrayBuffer()), noise(5000, 1).subarray(10, 20), 'the range');

    const status = async (changed: string) => {
      const again = await fetch(changed);
      await again.arrayBuffer();
      return again.status;
    };
    assert.equal(await status(location.replace('image%2Fpng', 'text%2Fhtml')), 403);
    assert.equal(await status(location.replace('/a/b', '/a/c')), 403);
    await until('the URL has expired', async () => (await status(location)) === 403, { everyMs: 200 });
  });

  test('s3: presigned URLs name the public endpoint where there is one', async (t) => {
    const { open } = await bucketFor(t, server);
    const blobs = open({ s3PublicEndpoint: 'https://pictures.example.com' });
    await blobs.put('a/b', pieces(noise(10, 1)));
    assert.match((await blobs.presign('a/b', url)) ?? '', /^https:\/\/pictures\.example\.com\/tests-[\d-]+\/a\/b\?/);
  });
}

const timeoutMs = 4000;

function faults(server: CephServer): void {
  /** `near` is the bucket without the proxy and with all the time it needs, for what is only to be there. */
  const behindProxy = async (t: TestContext, s3TimeoutMs = timeoutMs) => {
    const proxy = await startTcpProxy(t, server.url);
    const bucket = await bucketFor(t, server);
    return { proxy, ...bucket, near: bucket.blobs, blobs: bucket.open({ s3Endpoint: proxy.url, s3TimeoutMs }) };
  };

  test('s3: a half-open line ends calls as unavailable within the time-out, and new ones go through after it', async (t) => {
    const { proxy, blobs, near } = await behindProxy(t);
    await near.put('a/b', pieces(noise(1000, 1)));
    await until('there is a line, to be half-open then', () => blobs.head('a/b').catch(() => null));
    proxy.swallow('all');
    await within('all calls ended', 3 * timeoutMs, async () => {
      const calls = [blobs.put('a/c', pieces(noise(1000, 2))), blobs.open('a/b'), blobs.head('a/b'), blobs.list('')];
      await Promise.all(calls.map((call) => assert.rejects(call, fault('unavailable'))));
    });
    proxy.swallow('nothing');
    sameBytes(await read(blobs, 'a/b'), noise(1000, 1), 'afterwards');
  });

  test('s3: a line that cannot be made is unavailable, and a slow one is not', async (t) => {
    const { proxy, blobs } = await behindProxy(t, 20_000);
    proxy.delay(100);
    await blobs.put('a/b', pieces(noise(1000, 1)));
    sameBytes(await read(blobs, 'a/b'), noise(1000, 1), 'a/b');
    proxy.refuse(true);
    proxy.cutAll();
    await assert.rejects(blobs.head('a/b'), fault('unavailable'));
    await assert.rejects(blobs.put('a/b', pieces(noise(1000, 1))), fault('unavailable'));
  });

  test('s3: an answer that is lost once is asked for again, whatever was done already', async (t) => {
    const { proxy, blobs, unfinished } = await behindProxy(t, 20_000);
    proxy.cutAfter('PUT ', 1);
    await blobs.put('a/b', pieces(noise(1000, 1)));
    proxy.cutAfter('x-amz-copy-source', 1);
    await blobs.copy('a/b', 'a/c');
    proxy.cutAfter('POST ', 1);
    await blobs.deleteMany(['a/b']);
    assert.deepEqual(await keysOf(blobs), ['a/c']);
    const size = partBytes + 10;
    // Of a multipart upload the last request has the identity of the upload and no number of a part.
    proxy.cutAfter('/a/d?uploadId=', 1);
    assert.deepEqual(await blobs.put('a/d', pieces(noise(size, 2), 1 << 20)), { size });
    sameBytes(await read(blobs, 'a/d'), noise(size, 2), 'a/d');
    assert.deepEqual(await unfinished(), []);
  });

  test('s3: a download that is cut or goes silent in its middle is unavailable, never shorter', async (t) => {
    const { proxy, blobs, near } = await behindProxy(t);
    const size = 3 * partBytes;
    await near.put('a/b', pieces(noise(size, 1), 1 << 20));
    proxy.cutAnswersAt(size / 2);
    proxy.cutAll();
    await assert.rejects(read(blobs, 'a/b'), fault('unavailable'));
    proxy.cutAnswersAt(null);
    const { body } = await blobs.open('a/b');
    await within('the download ended', 3 * timeoutMs, async () => {
      const reading = wholeOf(body);
      proxy.swallow('answers');
      await assert.rejects(reading, fault('unavailable'));
    });
  });

  test('s3: bytes that change on their way are refused, in one request and in parts', async (t) => {
    const endpoint = await startLiar(t, server);
    const { open, unfinished } = await bucketFor(t, server);
    const blobs = open({ s3Endpoint: endpoint });
    for (const size of [1000, partBytes + 1000]) {
      await assert.rejects(blobs.put('a/b', pieces(noise(size, 1), 1 << 20)), fault('broken'), `${size} bytes`);
      assert.equal(await blobs.head('a/b'), null);
    }
    assert.deepEqual(await unfinished(), []);
  });
}

/** A proxy that turns one bit of every body around. */
async function startLiar(t: TestContext, server: CephServer): Promise<string> {
  const liar = createServer((incoming, answer) => {
    const { method, headers, url: path } = incoming;
    const upstream = forward(`${server.url}${path}`, { method, headers }, (received) => {
      answer.writeHead(received.statusCode ?? 500, received.headers);
      received.pipe(answer);
    });
    let isFirst = true;
    incoming.on('data', (bytes: Buffer) => {
      if (isFirst) bytes[0] = (bytes[0] ?? 0) ^ 1;
      isFirst = false;
      upstream.write(bytes);
    });
    incoming.on('end', () => upstream.end());
  });
  await new Promise<void>((resolve) => liar.listen(0, '127.0.0.1', resolve));
  onEnd(t, () => {
    liar.closeAllConnections();
    liar.close();
  });
  const address = liar.address();
  return `http://127.0.0.1:${typeof address === 'object' && address ? address.port : 0}`;
}

function deaths(server: CephServer): void {
  for (const [what, size, position] of [
    ['between two parts', 3 * partBytes, partBytes + 1],
    ['while it is sent', partBytes - 1, partBytes - 1],
  ] as const) {
    test(`s3: a gateway killed in the middle of a put, ${what}, leaves the old object or the new one, and the driver goes on`, async (t) => {
      const { blobs } = await bucketFor(t, server);
      await blobs.put('a/b', pieces(noise(1000, 1)));
      async function* body() {
        for (let at = 0; at < size; at += 1 << 16) {
          if (at >= position) await server.killGateway().catch(() => undefined);
          yield noise(size, 2).subarray(at, at + (1 << 16));
        }
        if (position === size) setImmediate(() => void server.killGateway());
      }
      const resolved = await blobs.put('a/b', body()).then(
        () => true,
        (error: unknown) => !fault('unavailable')(error),
      );
      await server.startGateway();
      const found = await read(blobs, 'a/b');
      const isNew = found.length === size;
      sameBytes(found, isNew ? noise(size, 2) : noise(1000, 1), isNew ? 'the new object' : 'the old object');
      if (resolved) assert.ok(isNew, 'what was acknowledged is there');
      await blobs.put('a/b', pieces(noise(2000, 3)));
      sameBytes(await read(blobs, 'a/b'), noise(2000, 3), 'afterwards');
    });
  }

  test('s3: what was acknowledged survives SIGKILL of the whole store', async (t) => {
    const { blobs } = await bucketFor(t, server);
    await blobs.put('a/b', pieces(noise(1000, 1)));
    await blobs.put('a/c', pieces(noise(partBytes + 5, 2), 1 << 20));
    await blobs.copy('a/c', 'a/d');
    await server.kill();
    await assert.rejects(blobs.health(), fault('unavailable'));
    await server.start();
    sameBytes(await read(blobs, 'a/b'), noise(1000, 1), 'a/b');
    for (const key of ['a/c', 'a/d']) sameBytes(await read(blobs, key), noise(partBytes + 5, 2), key);
  });
}
