/** The frame of every route: refusals of what is no request, early refusals, headers, outages. A block per status. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import type { HttpDeps } from '../../src/http/app.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { assertProblem, startApi } from '../support/api.ts';
import { until } from '../support/until.ts';
import { dial, nothing, startUploads, uploadHead } from '../support/uploads.ts';

const anId = '019a0000-0000-7000-8000-000000000000';

/** What a socket got: the last status line, headers in lower case, the parsed body. */
function parse(text: string) {
  const at = text.lastIndexOf('HTTP/1.1 ');
  const [head = '', body = ''] = text.slice(at).split('\r\n\r\n');
  const [line = '', ...lines] = head.split('\r\n');
  const headers = new Headers(
    lines.map((each): [string, string] => [each.split(': ')[0] ?? '', each.split(': ')[1] ?? '']),
  );
  return { status: Number(line.split(' ')[1]), headers, body: JSON.parse(body || '{}'), isEmpty: body === '' };
}

async function askRaw(t: TestContext, url: string, request: string) {
  const line = await dial(t, url);
  await line.write(request);
  await line.untilClosed();
  return parse(line.received());
}

const failing = (thrown: () => unknown) => (real: HttpDeps) => ({
  store: { ...real.store, attachmentFor: () => Promise.reject(thrown()) },
});

describe('every answer', () => {
  it('has an id, forbids sniffing, scripts and caching, and a problem names the same id', async (t) => {
    const { call, lines } = await startUploads(t);
    const answer = await call('GET /nowhere');
    const id = answer.headers.get('x-request-id');
    assert.equal(answer.body.instance, `urn:uuid:${id}`);
    assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
    assert.match(answer.headers.get('content-security-policy') ?? '', /default-src 'none'/);
    assert.equal(answer.headers.get('cache-control'), 'no-store');
    assert.ok(lines.some((line) => line.includes(`${id}`) && line.includes('"status":404')));
  });

  it('to HEAD is that to GET without its body', async (t) => {
    const { url } = await startUploads(t);
    for (const path of ['/v1/limits', '/health/live', '/nowhere', '/docs/']) {
      const [head, get] = await Promise.all([fetch(url + path, { method: 'HEAD' }), fetch(url + path)]);
      assert.equal(head.status, get.status);
      assert.equal(head.headers.get('content-type'), get.headers.get('content-type'));
      assert.equal(await head.text(), '');
      await get.text();
    }
  });

  it('is logged without tokens and without what the user wrote into the URL', async (t) => {
    const { call, ada, lines } = await startUploads(t);
    await call('GET /v1/attachments?cursor=whisper', { token: ada.token });
    await call('POST /v1/attachments?filename=whisper', { token: ada.token, json: {} });
    assert.ok(lines.some((line) => line.includes('"route":"/v1/attachments"')));
    assert.ok(!lines.some((line) => line.includes('whisper') || line.includes(ada.token)));
  });
});

describe('400', () => {
  it('answers a broken percent encoding in a path', async (t) => {
    const { call } = await startUploads(t);
    assertProblem(await call('GET /v1/%zz'), 400, 'malformed_request');
  });

  it('answers what is no HTTP at all, and closes', async (t) => {
    const { url } = await startUploads(t);
    assertProblem(await askRaw(t, url, 'GARBAGE\r\n\r\n'), 400, 'malformed_request');
    assertProblem(await askRaw(t, url, 'GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n'), 400, 'malformed_request');
    const smuggled = 'POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n';
    assertProblem(await askRaw(t, url, smuggled), 400, 'malformed_request');
  });

  it('answers a request without a host', async (t) => {
    const { url } = await startUploads(t);
    const answer = await askRaw(t, url, 'GET /v1/limits HTTP/1.1\r\nconnection: close\r\n\r\n');
    assertProblem(answer, 400, 'malformed_request', 'host');
  });

  it('answers JSON that is none, in another encoding, or not of the expected form, naming the field', async (t) => {
    const { call, ada } = await startUploads(t);
    const patch = (json: unknown) => call(`PATCH /v1/attachments/${anId}`, { token: ada.token, json });
    assertProblem(await patch('{"alt":'), 400, 'malformed_body');
    assertProblem(await patch('"\ud800'), 400, 'malformed_body');
    assertProblem(await patch(''), 400, 'validation', '');
    assertProblem(await patch([]), 400, 'validation', '');
    assertProblem(await patch({}), 400, 'validation', '/alt');
    assertProblem(await patch({ alt: 7 }), 400, 'validation', '/alt');
    assertProblem(await patch({ alt: 'x'.repeat(1001) }), 400, 'validation', '/alt');
    assertProblem(await patch({ alt: 'NUL \0' }), 400, 'validation', '/alt');
    assertProblem(await patch({ alt: 'a', title: 'b' }), 400, 'validation', '/title');
    assertProblem(await patch('{"alt":"a","__proto__":{"x":1}}'), 400, 'validation', '/__proto__');
  });

  it('answers bytes that are no UTF-8', async (t) => {
    const { url, ada } = await startUploads(t);
    const response = await fetch(`${url}/v1/attachments/${anId}`, {
      method: 'PATCH',
      headers: { authorization: `Bearer ${ada.token}`, 'content-type': 'application/json' },
      body: Buffer.from('{"alt":"\xff"}', 'latin1'),
    });
    assert.equal(response.status, 400);
    assert.equal(((await response.json()) as { code: string }).code, 'malformed_body');
  });

  it('answers a query that is not of the expected form, naming the parameter', async (t) => {
    const { call, ada } = await startUploads(t);
    const { token } = ada;
    for (const query of ['limit=0', 'limit=201', 'limit=x', 'limit=1.5', 'limit=1&limit=2']) {
      assertProblem(await call(`GET /v1/attachments?${query}`, { token }), 400, 'validation', 'limit');
    }
    assertProblem(await call('GET /v1/attachments?state=gone', { token }), 400, 'validation', 'state');
    assertProblem(await call('GET /v1/attachments?cursor=!', { token }), 400, 'validation', 'cursor');
    assertProblem(await call(`GET /v1/attachments/${anId}?wait=31`, { token }), 400, 'validation', 'wait');
  });
});

describe('404', () => {
  it('answers unknown paths before anybody is asked for a token or a body', async (t) => {
    const { call } = await startUploads(t);
    for (const line of [
      'GET /nothing',
      'GET /v1',
      'POST /v1/nothing',
      'GET /v1/limits/',
      'GET /V1/limits',
      'GET /v1//limits',
    ]) {
      assertProblem(await call(line), 404, 'not_found');
    }
    const typed = { 'content-type': 'application/x-unheard-of' };
    assertProblem(await call('POST /v1/nothing', { json: 'x', headers: typed }), 404, 'not_found');
  });

  it('answers ids that cannot be one, and ones that are too long for a path', async (t) => {
    const { call, ada } = await startUploads(t);
    for (const id of ['x', anId.toUpperCase(), `${anId}0`, '..%2f..%2fetc', '%00', 'a'.repeat(5000)]) {
      assertProblem(await call(`GET /v1/attachments/${id}`, { token: ada.token }), 404, 'not_found');
    }
  });
});

describe('405', () => {
  it('answers methods that a path does not take, naming those that it does', async (t) => {
    const { call } = await startUploads(t);
    const cases: readonly [string, string][] = [
      ['DELETE /v1/attachments', 'GET, HEAD, POST'],
      ['PUT /v1/attachments/1', 'DELETE, GET, HEAD, PATCH'],
      ['POST /v1/limits', 'GET, HEAD'],
      ['OPTIONS /v1/limits', 'GET, HEAD'],
      ['PROPFIND /v1/limits', 'GET, HEAD'],
    ];
    for (const [line, allow] of cases) {
      const answer = await call(line);
      assertProblem(answer, 405, 'method_not_allowed');
      assert.equal(answer.headers.get('allow'), allow);
    }
  });
});

describe('413', () => {
  it('answers JSON over 64 KiB, declared or not, without waiting for it', async (t) => {
    const { url, ada } = await startUploads(t);
    const head = (length: string) =>
      `PATCH /v1/attachments/${anId} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ada.token}\r\n` +
      `content-type: application/json\r\n${length}\r\n\r\n`;
    assertProblem(await askRaw(t, url, head('content-length: 65537')), 413, 'body_too_large');
    const chunk = `4000\r\n${'x'.repeat(0x4000)}\r\n`;
    assertProblem(await askRaw(t, url, head('transfer-encoding: chunked') + chunk.repeat(5)), 413, 'body_too_large');
  });
});

describe('415', () => {
  it('answers other media types than JSON on routes that take JSON', async (t) => {
    const { call, ada } = await startUploads(t);
    for (const type of ['text/plain', 'application/xml', 'multipart/form-data; boundary=x', 'nonsense']) {
      const answer = await call(`PATCH /v1/attachments/${anId}`, {
        token: ada.token,
        json: '{"alt":null}',
        headers: { 'content-type': type },
      });
      assertProblem(answer, 415, 'unsupported_media_type');
    }
  });
});

describe('431', () => {
  it('answers headers over 16 KiB', async (t) => {
    const { url } = await startUploads(t);
    const request = `GET /v1/limits HTTP/1.1\r\nhost: x\r\nx: ${'a'.repeat(20_000)}\r\n\r\n`;
    assertProblem(await askRaw(t, url, request), 431, 'headers_too_large');
  });
});

describe('500', () => {
  it('tells the log everything and the client nothing', async (t) => {
    const secret = 'select * from /secret/place password=hunter2';
    const { call, ada, lines } = await startUploads(t, { deps: failing(() => new Error(secret)) });
    const answer = await call(`GET /v1/attachments/${anId}`, { token: ada.token });
    assertProblem(answer, 500, 'internal');
    assert.ok(!JSON.stringify(answer.body).includes('secret'));
    const line = lines.find((each) => each.startsWith('error')) ?? '';
    assert.ok(line.includes(secret) && line.includes(`${answer.headers.get('x-request-id')}`));
  });
});

describe('503', () => {
  it('answers an outage of the database with Retry-After, whatever was known of it', async (t) => {
    for (const fault of ['unavailable', 'unknown'] as const) {
      const { call, ada } = await startUploads(t, {
        deps: failing(() => new StoreError(fault, 'no host db.internal')),
      });
      const answer = await call(`GET /v1/attachments/${anId}`, { token: ada.token });
      assertProblem(answer, 503, 'unavailable');
      assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
      assert.ok(!JSON.stringify(answer.body).includes('db.internal'));
    }
  });
});

describe('an early refusal', () => {
  it('comes whole while the body is still being sent, then the connection closes', async (t) => {
    const { url, ada, remains } = await startUploads(t);
    const line = await dial(t, url);
    await line.write(uploadHead('skr_wrong', { 'content-length': 500_000_000 }));
    await line.write('x'.repeat(100_000));
    await line.until('"code":"unauthorized"');
    // What is under way is still read for a while: a reset would take the answer from a client that has not read it.
    for (let at = 0; at < 2; at += 1) await line.write('x'.repeat(50_000));
    await line.untilClosed();
    assert.equal(line.socket.errored, null);
    const answer = parse(line.received());
    assertProblem(answer, 401, 'unauthorized');
    assert.equal(answer.headers.get('connection'), 'close');
    assert.deepEqual(await remains(), nothing);
    assertProblem(await askRaw(t, url, uploadHead(ada.token, { 'content-length': 9_000_000 })), 413, 'file_too_large');
  });

  it('reaches a client that goes on sending, though it never reads the whole body', async (t) => {
    const { send } = await startUploads(t);
    for (let round = 0; round < 20; round += 1) {
      let pulled = 0;
      const body = new ReadableStream<Uint8Array>({
        pull(controller) {
          pulled += 1;
          controller.enqueue(new Uint8Array(64 * 1024));
        },
      });
      assertProblem(await send(body, { 'content-encoding': 'gzip' }), 415, 'unsupported_media_type');
      assert.ok(pulled < 500, `${pulled} pieces`);
    }
  });

  it('leaves a connection without an open body alone', async (t) => {
    const { url } = await startUploads(t);
    const line = await dial(t, url);
    await line.write('GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n');
    await line.until('"code":"not_found"');
    await line.write('GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n');
    await line.until('"status":"ok"');
  });
});

describe('the reference at /docs', () => {
  it('is a page of this server alone: no other origin is named, and the policy allows none', async (t) => {
    const { url } = await startUploads(t);
    const page = await fetch(`${url}/docs`);
    assert.equal(page.status, 200);
    assert.match(page.headers.get('content-security-policy') ?? '', /^default-src 'self'/);
    const html = await page.text();
    assert.deepEqual(
      [...html.matchAll(/<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"/g)].map((m) => m[1]),
      ['js/scalar.js'],
    );
    const script = await fetch(`${url}/docs/js/scalar.js`);
    assert.equal(script.status, 200);
    assert.match(script.headers.get('content-type') ?? '', /javascript/);
    assert.ok((await script.text()).length > 1_000_000);
    const document = (await (await fetch(`${url}/docs/openapi.json`)).json()) as { openapi: string };
    assert.equal(document.openapi, '3.1.0');
  });
});

it('a request is timed from its arrival to its answer, in log and metrics', async (t) => {
  const observed: number[] = [];
  let nowMs = 0;
  const { call, lines } = await startApi(t, {
    deps: (real) => ({
      // Every look at the clock is 250 ms later than the one before.
      clock: { ...real.clock, monotonicMs: () => (nowMs += 250) },
      meter: { count() {}, gauge() {}, observe: (_name, seconds) => void observed.push(seconds) },
    }),
  });
  await call('GET /v1/limits');
  await until('it is logged', () => lines.some((line) => line.includes('"ms":')));
  assert.ok(observed.length > 0 && observed.every((seconds) => seconds >= 0.25), String(observed));
});
