/**
 * The `s3:` driver against a store that answers what a test tells it to: what no healthy server can be made to say. The suite
 * of the port runs on a real server, in `tests/engines/s3.test.ts`.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { describe, it, type TestContext } from 'node:test';
import { inspect } from 'node:util';
import { createS3Blobs, type S3Settings } from '../../src/drivers/blobs-s3.ts';
import type { Blobs } from '../../src/pipeline/ports.ts';
import { fault } from '../contract/blobs/expect.ts';
import { noise, pieces, wholeOf } from '../support/bytes.ts';
import { onEnd } from '../support/on-end.ts';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

const keys = { s3AccessKeyId: 'AKIDTESTTEST', s3SecretAccessKey: 'very-secret-words' };
const timeoutMs = 900;

/** A store whose answers come from `answer`; what it was asked is in `asked`, as "METHOD path". */
async function stand(t: TestContext, answer: Answer, change: Partial<S3Settings> = {}) {
  const asked: string[] = [];
  const server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url?.split('?')[0]}`);
    // A body is read to its end first, as a store does.
    request.resume().once('end', () => answer(request, response));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  const port = typeof address === 'object' && address ? address.port : 0;
  const blobs = createS3Blobs({
    bucket: 'photos',
    s3Endpoint: `http://127.0.0.1:${port}`,
    s3PublicEndpoint: '',
    s3Region: 'somewhere',
    s3PathStyle: 'yes',
    s3Checksums: 'when_required',
    ...keys,
    s3PartBytes: 5 * 1024 * 1024,
    s3TimeoutMs: timeoutMs,
    ...change,
  });
  onEnd(t, async () => {
    await blobs.close();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return { blobs, asked };
}

const refusal =
  (status: number, code: string): Answer =>
  (_request, response) =>
    void response
      .writeHead(status, { 'content-type': 'application/xml' })
      .end(`<Error><Code>${code}</Code><AWSAccessKeyId>${keys.s3AccessKeyId}</AWSAccessKeyId></Error>`);

const silence: Answer = () => {};

/** Every verb that talks to the store, by its name. */
function verbs(blobs: Blobs): Record<string, () => Promise<unknown>> {
  return {
    put: () => blobs.put('a/b', pieces(noise(10, 1))),
    open: () => blobs.open('a/b'),
    head: () => blobs.head('a/b'),
    copy: () => blobs.copy('a/b', 'a/c'),
    deleteMany: () => blobs.deleteMany(['a/b']),
    list: () => blobs.list('a/'),
    health: () => blobs.health(),
    prepare: () => blobs.prepare(),
  };
}

describe('retries', () => {
  it('of a store that is overloaded or broken are three attempts and no more', async (t) => {
    for (const [status, code] of [
      [503, 'SlowDown'],
      [500, 'InternalError'],
    ] as const) {
      const { blobs, asked } = await stand(t, refusal(status, code), { s3TimeoutMs: 20_000 });
      await assert.rejects(blobs.put('a/b', pieces(noise(10, 1))), fault('unavailable'));
      assert.deepEqual(asked, Array(3).fill('PUT /photos/a/b'));
    }
  });

  it('hide a failure that passes: an error, then a cut line, then success', async (t) => {
    const answers: Answer[] = [
      refusal(500, 'InternalError'),
      (request) => void request.socket.destroy(),
      (_request, response) => void response.end(),
    ];
    const { blobs, asked } = await stand(t, (request, response) => answers.shift()?.(request, response), {
      s3TimeoutMs: 20_000,
    });
    assert.deepEqual(await blobs.put('a/b', pieces(noise(10, 1))), { size: 10 });
    assert.equal(asked.length, 3);
  });

  it('are not made of a refusal, whose fault tells whether all objects would fare alike', async (t) => {
    for (const [status, code, expected] of [
      [403, 'AccessDenied', 'unavailable'],
      [400, 'ExpiredToken', 'unavailable'],
      [400, 'AuthorizationHeaderMalformed', 'unavailable'],
      [404, 'NoSuchBucket', 'unavailable'],
      [400, 'XAmzContentSHA256Mismatch', 'broken'],
      [400, 'EntityTooLarge', 'broken'],
    ] as const) {
      const { blobs, asked } = await stand(t, refusal(status, code));
      await assert.rejects(blobs.put('a/b', pieces(noise(10, 1))), fault(expected), code);
      assert.equal(asked.length, 1, code);
    }
  });
});

describe('silence', () => {
  it('of the store ends every verb as unavailable within the time-out', async (t) => {
    const { blobs } = await stand(t, silence);
    const start = performance.now();
    const ends = Object.entries(verbs(blobs)).map(async ([verb, call]) => {
      await within(`${verb} ended`, timeoutMs * 3, () => assert.rejects(call, fault('unavailable'), verb));
      const tookMs = performance.now() - start;
      assert.ok(tookMs >= timeoutMs - 1, `${verb} took ${tookMs} ms`);
    });
    await Promise.all(ends);
  });

  it('of a connection that is dead without knowing leaves time for another', async (t) => {
    let first = true;
    const answer: Answer = (_request, response) => {
      if (first) first = false;
      else response.writeHead(200, { 'content-length': 5 }).end();
    };
    // A third of it for each attempt: the second one must not be late as well.
    const { blobs, asked } = await stand(t, answer, { s3TimeoutMs: 12_000 });
    assert.deepEqual(await blobs.head('a/b'), { size: 5 });
    assert.deepEqual(asked, ['HEAD /photos/a/b', 'HEAD /photos/a/b']);
  });

  it('in the middle of a download ends it as unavailable, not with a shorter file', async (t) => {
    const half: Answer = (_request, response) =>
      void response.writeHead(200, { 'content-length': 2000 }).write(noise(1000, 1));
    const { blobs } = await stand(t, half);
    const { body } = await blobs.open('a/b');
    await within('it ended', timeoutMs * 3, () => assert.rejects(wholeOf(body), fault('unavailable')));
  });

  it('of the reader is no fault of the store: a download goes on after a pause longer than the time-out', async (t) => {
    const size = 8 * 1024 * 1024;
    const { blobs } = await stand(t, (_request, response) => void response.end(noise(size, 1)));
    const { body } = await blobs.open('a/b');
    let received = 0;
    for await (const piece of body) {
      if (received === 0) {
        const end = performance.now() + timeoutMs * 1.5;
        await until('the pause is over', () => performance.now() > end);
      }
      received += (piece as Buffer).length;
    }
    assert.equal(received, size);
  });
});

describe('downloads', () => {
  it('that end before their length are unavailable, not shorter', async (t) => {
    const cut: Answer = (request, response) =>
      void response
        .writeHead(200, { 'content-length': 2000 })
        .write(noise(1000, 1), () => void request.socket.destroy());
    const { blobs } = await stand(t, cut);
    const { body } = await blobs.open('a/b');
    await assert.rejects(wholeOf(body), fault('unavailable'));
  });

  it('that break off before they are read tell their reader, and hurt nobody without one', async (t) => {
    const requests: IncomingMessage[] = [];
    const { blobs } = await stand(t, (request, response) => {
      requests.push(request);
      response.writeHead(200, { 'content-length': 2000 }).write(noise(1000, 1));
    });
    const { body } = await blobs.open('a/b');
    // Without a listener for the error, as between two steps of whoever opened it.
    const closed = new Promise<void>((resolve) => body.once('close', resolve));
    requests[0]?.socket.destroy();
    await closed;
    await assert.rejects(wholeOf(body), fault('unavailable'));
  });

  it('that are open by the hundred leave room for other calls', async (t) => {
    const answer: Answer = (request, response) => {
      response.writeHead(200, { 'content-length': 1_000_000 });
      if (request.method === 'HEAD') response.end();
      else response.write(noise(1000, 1));
    };
    const { blobs } = await stand(t, answer, { s3TimeoutMs: 20_000 });
    const open = await Promise.all(Array.from({ length: 120 }, () => blobs.open('a/b')));
    assert.deepEqual(await blobs.head('a/b'), { size: 1_000_000 });
    for (const { body } of open) {
      const closed = once(body, 'close');
      body.destroy();
      await closed;
    }
  });
});

describe('a 404', () => {
  it('that does not say of the key that it is missing never reads as a lost object', async (t) => {
    const { blobs } = await stand(t, (_request, response) => void response.writeHead(404).end('<html>no route</html>'));
    const { open, head, copy, health } = verbs(blobs);
    for (const call of [open, head, copy, health]) await assert.rejects(async () => call?.(), fault('unavailable'));
  });

  it('to a look at a key in a bucket that exists is a missing object', async (t) => {
    const { blobs } = await stand(t, (request, response) => {
      response.writeHead(request.url?.startsWith('/photos/a') ? 404 : 200).end();
    });
    assert.equal(await blobs.head('a/b'), null);
    await assert.rejects(blobs.copy('a/b', 'a/c'), fault('missing'));
  });
});

describe('a put that is to be verified', () => {
  const tells = (size: number | null): Answer => {
    return (request, response) => {
      request.resume();
      if (request.method !== 'HEAD') response.writeHead(200, { etag: '"x"' }).end();
      else if (size !== null) response.writeHead(200, { 'content-length': size }).end();
      else response.writeHead(request.url?.startsWith('/photos/a') ? 404 : 200).end();
    };
  };

  it('tells the size that the store has, and none where it has no such object', async (t) => {
    for (const [has, told] of [
      [1000, 1000],
      [999, 999],
      [null, 0],
    ] as const) {
      const { blobs } = await stand(t, tells(has));
      assert.deepEqual(await blobs.put('a/b', pieces(noise(1000, 1)), { verify: true }), { size: told });
    }
  });
});

describe('an upload in parts', () => {
  /** A store that loses its first answer to the completion, and knows the upload no more; the object has the mark that `markOf` makes of the upload's. */
  const forgetful = (markOf: (mark: string) => string): Answer => {
    let mark = '';
    let completions = 0;
    return (request, response) => {
      const { method, url = '', headers } = request;
      if (method === 'POST' && url.includes('uploads')) {
        mark = String(headers['x-amz-meta-upload']);
        response.end('<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>');
      } else if (method === 'PUT') response.writeHead(200, { etag: '"part"' }).end();
      else if (method === 'HEAD') response.writeHead(200, { 'x-amz-meta-upload': markOf(mark) }).end();
      else if (method === 'DELETE') response.writeHead(204).end();
      else if (++completions === 1) request.socket.destroy();
      else refusal(404, 'NoSuchUpload')(request, response);
    };
  };
  const body = () => pieces(noise(6 * 1024 * 1024, 1), 1 << 20);

  it('whose completion was answered into the void is recognised by its mark', async (t) => {
    const { blobs, asked } = await stand(
      t,
      forgetful((mark) => mark),
      { s3TimeoutMs: 20_000 },
    );
    assert.deepEqual(await blobs.put('a/b', body()), { size: 6 * 1024 * 1024 });
    assert.ok(!asked.includes('DELETE /photos/a/b'));
  });

  it('is not taken for the one of somebody else under the same key, and is aborted', async (t) => {
    const { blobs, asked } = await stand(
      t,
      forgetful(() => 'another'),
      { s3TimeoutMs: 20_000 },
    );
    await assert.rejects(blobs.put('a/b', body()), fault('unavailable'));
    assert.ok(asked.includes('DELETE /photos/a/b'));
  });
});

describe('a bucket', () => {
  it('that another process made meanwhile is taken as it is', async (t) => {
    let exists = false;
    const { blobs, asked } = await stand(t, (request, response) => {
      if (request.method === 'HEAD') response.writeHead(exists ? 200 : 404).end();
      else refusal(409, 'BucketAlreadyOwnedByYou')(request, response);
      exists = true;
    });
    await blobs.prepare();
    assert.deepEqual(asked, ['HEAD /photos/', 'PUT /photos/', 'HEAD /photos/']);
  });
});

describe('answers in part', () => {
  it('of a list that are short or empty are not its end', async (t) => {
    const entry = (key: string) =>
      `<Contents><Key>${key}</Key><Size>1</Size><LastModified>2026-01-02T03:04:05Z</LastModified></Contents>`;
    const pages = [
      `<IsTruncated>true</IsTruncated><NextContinuationToken>one</NextContinuationToken>${entry('a/1')}`,
      '<IsTruncated>true</IsTruncated><NextContinuationToken>two</NextContinuationToken>',
      `<IsTruncated>true</IsTruncated><NextContinuationToken>three</NextContinuationToken>${entry('a/2')}`,
    ];
    const { blobs } = await stand(t, (_request, response) => {
      response
        .writeHead(200, { 'content-type': 'application/xml' })
        .end(`<ListBucketResult>${pages.shift()}</ListBucketResult>`);
    });
    const { objects, next } = await blobs.list('a/', { limit: 2 });
    assert.deepEqual(
      objects.map(({ key }) => key),
      ['a/1', 'a/2'],
    );
    assert.equal(next, 'a/2');
    assert.deepEqual(pages, []);
  });

  it('of a deletion that name a key which stayed are failures', async (t) => {
    for (const [code, expected] of [
      ['AccessDenied', 'unavailable'],
      ['InternalError', 'unavailable'],
      ['MalformedXML', 'broken'],
      ['NoSuchKey', null],
    ] as const) {
      const { blobs } = await stand(t, (_request, response) => {
        response
          .writeHead(200, { 'content-type': 'application/xml' })
          .end(`<DeleteResult><Error><Key>a/b</Key><Code>${code}</Code></Error></DeleteResult>`);
      });
      if (expected === null) await blobs.deleteMany(['a/b']);
      else await assert.rejects(blobs.deleteMany(['a/b']), fault(expected), code);
    }
  });
});

describe('errors', () => {
  it('hold no key, no secret and no signature, however deep one looks', async (t) => {
    for (const answer of [refusal(403, 'InvalidAccessKeyId'), silence]) {
      const { blobs } = await stand(t, answer);
      const ends = Object.entries(verbs(blobs)).map(async ([verb, call]) => {
        const error: unknown = await call().then(
          () => assert.fail(verb),
          (failure: unknown) => failure,
        );
        const shown = inspect(error, { depth: 20, showHidden: true });
        assert.match(shown, /BlobError: S3 could not/);
        assert.doesNotMatch(shown, /AKIDTEST|very-secret|Signature|authorization/i, verb);
      });
      await Promise.all(ends);
    }
  });

  it('of a bucket that can be neither found nor made say so in one sentence', async (t) => {
    const { blobs } = await stand(t, (request, response) => {
      if (request.method === 'HEAD') response.writeHead(404).end();
      else refusal(403, 'AccessDenied')(request, response);
    });
    await assert.rejects(blobs.prepare(), { message: 'S3 could not make the bucket photos: AccessDenied (403)' });
  });
});
