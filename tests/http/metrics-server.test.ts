/** The small server of a process without the API: what it answers, and to whom. */
import assert from 'node:assert/strict';
import { request } from 'node:http';
import { connect } from 'node:net';
import { networkInterfaces } from 'node:os';
import { describe, test } from 'node:test';
import { serveMetrics } from '../../src/http/metrics.ts';
import { silent } from '../support/ports-fake.ts';

const metrics = { contentType: 'text/plain; version=0.0.4; charset=utf-8', render: async () => 'up 1\n' };

async function serve(t: { after(end: () => Promise<void>): void }, change: Partial<Served> = {}) {
  const settings = { host: '127.0.0.1', metricsPort: 0, metricsToken: '', ...change };
  const { away } = change;
  const server = await serveMetrics(
    { metrics: change.metrics ?? metrics, log: silent, ...(away && { away }) },
    settings,
  );
  t.after(() => server.close());
  return `http://127.0.0.1:${server.port}`;
}

interface Served {
  readonly host: string;
  readonly metricsToken: string;
  readonly metrics: typeof metrics;
  readonly away: () => readonly string[];
}

const proxied = { 'x-forwarded-for': '203.0.113.7' };

describe('GET /health/live', () => {
  test('answers anybody, also through a proxy', async (t) => {
    const url = await serve(t);
    const response = await fetch(`${url}/health/live`, { headers: proxied });
    assert.deepEqual([response.status, await response.json()], [200, { status: 'ok' }]);
    assert.equal(response.headers.get('cache-control'), 'no-store');
  });

  test('names what the process waits for, as long as it does', async (t) => {
    let away = ['disk'];
    const url = await serve(t, { away: () => away });
    const told = async () => (await fetch(`${url}/health/live`)).json();
    assert.deepEqual(await told(), { status: 'ok', waits_for: ['disk'] });
    away = [];
    assert.deepEqual(await told(), { status: 'ok' });
  });
});

describe('GET /metrics', () => {
  test('answers loopback, and elsewhere whoever has the token', async (t) => {
    const url = await serve(t, { metricsToken: 'tell me' });
    for (const headers of [{}, { ...proxied, authorization: 'Bearer tell me' }] as Record<string, string>[]) {
      const response = await fetch(`${url}/metrics?x=1`, { headers });
      assert.equal(response.status, 200);
      assert.match(response.headers.get('content-type') ?? '', /^text\/plain; version=0\.0\.4/);
      assert.equal(await response.text(), 'up 1\n');
    }
    const head = await fetch(`${url}/metrics`, { method: 'HEAD' });
    assert.deepEqual([head.status, head.headers.get('content-length'), await head.text()], [200, '5', '']);
  });

  test('refuses whoever comes through a proxy without the token, or when there is none to know', async (t) => {
    for (const metricsToken of ['tell me', '']) {
      const url = await serve(t, { metricsToken });
      for (const authorization of ['', 'Bearer ', 'Bearer wrong', 'Basic dGVsbCBtZQ==']) {
        for (const from of [proxied, { forwarded: 'for=203.0.113.7' }]) {
          const response = await fetch(`${url}/metrics`, {
            headers: { ...from, authorization } as Record<string, string>,
          });
          assert.equal(response.status, 401);
          assert.match(response.headers.get('www-authenticate') ?? '', /^Bearer/);
          assert.equal(((await response.json()) as { code: string }).code, 'unauthorized');
        }
      }
    }
  });

  test('refuses whoever comes from another address of the machine without the token', async (t) => {
    const outside = Object.values(networkInterfaces())
      .flat()
      .find((one) => one && !one.internal && one.family === 'IPv4')?.address;
    const url = await serve(t, { host: '0.0.0.0' });
    // A machine without a network has nobody to refuse.
    const { status } = outside ? await fetch(url.replace('127.0.0.1', outside).concat('/metrics')) : { status: 401 };
    assert.equal(status, 401);
  });

  test('says nothing of why it cannot tell', async (t) => {
    const broken = { ...metrics, render: async () => Promise.reject(new Error('secret')) };
    const url = await serve(t, { metrics: broken });
    const response = await fetch(`${url}/metrics`);
    assert.equal(response.status, 500);
    assert.doesNotMatch(await response.text(), /secret/);
  });
});

describe('everything else', () => {
  test('is not found, or not allowed', async (t) => {
    const url = await serve(t);
    for (const path of ['/', '/metrics/', '/v1/attachments', '/health/ready', '//metrics']) {
      assert.equal((await fetch(`${url}${path}`)).status, 404, path);
    }
    for (const method of ['POST', 'PUT', 'DELETE']) {
      const body = 'x'.repeat(100_000);
      const response = await fetch(`${url}/metrics`, { method, body });
      assert.deepEqual([response.status, response.headers.get('allow')], [405, 'GET, HEAD']);
    }
  });

  test('that is no request, or has too large a head, ends its connection and nothing else', async (t) => {
    const url = await serve(t);
    const port = Number(new URL(url).port);
    for (const text of ['\0\0\0\r\n\r\n', `GET /metrics HTTP/1.1\r\nHost: a\r\nX: ${'y'.repeat(20_000)}\r\n\r\n`]) {
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => {});
      const closed = new Promise((resolve) => socket.once('close', resolve));
      socket.end(text);
      socket.resume();
      await closed;
    }
    assert.equal((await fetch(`${url}/health/live`)).status, 200);
  });
});

describe('the server', () => {
  test('closes at once, with connections that wait for nothing', { timeout: 20_000 }, async (t) => {
    const server = await serveMetrics(
      { metrics, log: silent },
      { host: '127.0.0.1', metricsPort: 0, metricsToken: '' },
    );
    const kept = request({ port: server.port, host: '127.0.0.1', path: '/health/live', agent: false });
    kept.setHeader('connection', 'keep-alive').end();
    t.after(() => void kept.destroy());
    const [response] = (await new Promise((resolve, reject) => {
      kept.once('response', (...args) => resolve(args));
      kept.once('error', reject);
    })) as [import('node:http').IncomingMessage];
    response.on('error', () => {}).resume();
    const idle = connect(server.port, '127.0.0.1');
    idle.on('error', () => {});
    t.after(() => void idle.destroy());
    await new Promise((resolve) => idle.once('connect', resolve));
    await server.close();
    await assert.rejects(fetch(`http://127.0.0.1:${server.port}/health/live`));
  });

  test('rejects with the reason of the system when its port is in use', async (t) => {
    const first = await serve(t);
    const settings = { host: '127.0.0.1', metricsPort: Number(new URL(first).port), metricsToken: '' };
    await assert.rejects(serveMetrics({ metrics, log: silent }, settings), { code: 'EADDRINUSE' });
  });
});
