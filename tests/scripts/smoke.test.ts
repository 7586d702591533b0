/**
 * `npm run smoke` passes against a server that keeps its word, and fails against one that does not: a proxy between
 * them tells one lie at a time.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, describe, type TestContext, test } from 'node:test';
import { onEnd } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startRole } from '../support/role.ts';

const script = resolve(import.meta.dirname, '../../scripts/smoke.ts');

interface Told {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
}
/** Changes an answer in place, or does not. */
type Lie = (path: string, method: string, told: Told) => void;

async function smoke(baseUrl: string): Promise<{ code: number; output: string }> {
  return await new Promise((settle) => {
    const env = { PATH: process.env.PATH, BASE_URL: baseUrl };
    execFile(process.execPath, [script], { env, timeout: 120_000 }, (error, stdout, stderr) => {
      settle({ code: error === null ? 0 : Number(error.code), output: stdout + stderr });
    });
  });
}

/** A server in front of the one at `truth`, which tells `lie`. */
async function liar(t: TestContext, truth: string, lie: Lie): Promise<string> {
  const proxy = createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const method = request.method ?? 'GET';
    const { host, connection, 'content-length': _, 'transfer-encoding': __, ...headers } = request.headers;
    const answer = await fetch(new URL(request.url ?? '/', truth), {
      method,
      headers: headers as Record<string, string>,
      ...(parts.length === 0 ? {} : { body: new Uint8Array(Buffer.concat(parts)) }),
    });
    const body = Buffer.from(await answer.arrayBuffer());
    const told: Told = { status: answer.status, headers: Object.fromEntries(answer.headers), body };
    delete told.headers['transfer-encoding'];
    delete told.headers.connection;
    lie(request.url ?? '', method, told);
    if (method !== 'HEAD') told.headers['content-length'] = String(told.body.length);
    response.writeHead(told.status, told.headers).end(told.body);
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  t.after(() => {
    proxy.closeAllConnections();
    proxy.close();
  });
  return `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
}

function tellsUnready(told: Told): boolean {
  return told.status === 409 && told.body.includes('attachment_not_ready');
}

const lies: readonly [title: string, lie: Lie, said: RegExp][] = [
  [
    'that accepts with another state than queued',
    (_, __, told) => {
      if (told.status === 202) told.body = Buffer.from(told.body.toString().replace('"queued"', '"ready"'));
    },
    /queued/,
  ],
  [
    'that serves content before it is ready',
    (_, __, told) => {
      if (tellsUnready(told)) told.status = 200;
    },
    /none of \d pictures was still unready/,
  ],
  [
    'that refuses unready content without saying when to come back',
    (_, __, told) => {
      if (tellsUnready(told)) delete told.headers['retry-after'];
    },
    /409 and Retry-After/,
  ],
  [
    'that changes one byte of the original',
    (path, method, told) => {
      if (path.endsWith('/content') && method === 'GET' && told.status === 200)
        told.body[1000] = ~(told.body[1000] ?? 0);
    },
    /byte for byte/,
  ],
  [
    'that ignores ranges',
    (path, _, told) => {
      if (path.endsWith('/content') && told.status === 206) told.status = 200;
    },
    /206/,
  ],
  [
    'that still serves what was deleted',
    (path, _, told) => {
      if (path.endsWith('/variants/thumbnail') && told.status === 404) told.status = 200;
    },
    /deleted/,
  ],
];

describe('npm run smoke', () => {
  const ends: (() => Promise<void>)[] = [];
  let baseUrl = '';

  before(async () => {
    const scope = { after: (end: () => Promise<void>) => void ends.push(end) };
    const folder = await mkdtemp(join(tmpdir(), 'skrepka-smoke-'));
    onEnd(scope, () => rm(folder, { recursive: true, force: true }));
    const { url: databaseUrl } = await freshDatabase(scope);
    const roles = ['api', 'relay', 'worker', 'janitor'] as const;
    const server = await startRole(scope, { roles, databaseUrl, dataDir: join(folder, 'data') });
    baseUrl = server.url;
  });
  after(async () => {
    for (const end of ends) await end();
  });

  test('the smoke test passes against a real server, says how many checks held, and tells no token', async () => {
    const { code, output } = await smoke(baseUrl);
    assert.equal(code, 0, output);
    assert.match(output, /^All \d\d checks held\.$/m);
    assert.match(output, /attachment [0-9a-f-]{36}/);
    assert.doesNotMatch(output, /skr_|bearer/i);
  });

  test('the smoke test passes through a proxy that tells no lie', async (t) => {
    const { code, output } = await smoke(await liar(t, baseUrl, () => {}));
    assert.equal(code, 0, output);
  });

  test('without a server the smoke test says so in one sentence', async () => {
    const { code, output } = await smoke('http://127.0.0.1:1');
    assert.equal(code, 1);
    assert.match(output, /^No server answers at http:\/\/127\.0\.0\.1:1\. /m);
    assert.doesNotMatch(output, /\n\s+at /);
  });

  for (const [title, lie, said] of lies) {
    test(`the smoke test fails against a server ${title}`, async (t) => {
      const { code, output } = await smoke(await liar(t, baseUrl, lie));
      assert.equal(code, 1, output);
      assert.match(output, said);
      assert.match(output, /this did not hold/);
    });
  }
});
