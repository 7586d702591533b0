/** The load of the experiment with overload, against a server that answers as each test needs it. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { Agent, createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { type Arrival, openLoad } from '../../bench/overload/load-process.ts';
import { sendUpload } from '../../bench/overload/sending.ts';
import { onEnd } from '../support/on-end.ts';

const largeBytes = 24 * 1024 * 1024;

async function startServer(t: TestContext, answer: RequestListener): Promise<string> {
  // Whoever expects to be invited is not, unless the test does it.
  const server = createServer(answer).on('checkContinue', answer);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onEnd(t, async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function openAgent(t: TestContext): Agent {
  const agent = new Agent({ keepAlive: true });
  onEnd(t, () => agent.destroy());
  return agent;
}

async function pictureOf(t: TestContext, bytes: Uint8Array): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-load-'));
  onEnd(t, () => rm(folder, { recursive: true, force: true }));
  await writeFile(path.join(folder, 'picture'), bytes);
  return path.join(folder, 'picture');
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

function refuse(response: ServerResponse, retryAfter = '7'): void {
  response.writeHead(503, { 'retry-after': retryAfter, connection: 'close' }).end('{"code":"overloaded"}');
}

function accept(response: ServerResponse, id: string): void {
  response.writeHead(202, { 'content-type': 'application/json' }).end(JSON.stringify({ id, state: 'queued' }));
}

const arrivals = (count: number, rest: Partial<Arrival> = {}): readonly Arrival[] =>
  Array.from({ length: count }, (_, at) => ({ atMs: at, user: 0, expect: false, patient: false, ...rest }));

describe('an upload', () => {
  test('that is accepted tells its id and all of its bytes', async (t) => {
    let received = 0;
    const url = await startServer(t, async (request, response) => {
      received = (await bodyOf(request)).length;
      accept(response, 'an id');
    });
    const body = [Buffer.alloc(100_000), Buffer.alloc(16)];
    const sent = await sendUpload({ url: new URL(url), agent: openAgent(t), headers: {}, body, expect: false });
    assert.deepEqual([sent.status, sent.id, sent.bodyBytes, received], [202, 'an id', 100_016, 100_016]);
  });

  test('that asks first and is refused has sent nothing', async (t) => {
    let expected: string | undefined;
    const url = await startServer(t, (request, response) => {
      expected = request.headers.expect;
      refuse(response);
    });
    const body = [Buffer.alloc(largeBytes)];
    const sent = await sendUpload({ url: new URL(url), agent: openAgent(t), headers: {}, body, expect: true });
    assert.equal(expected, '100-continue');
    assert.deepEqual([sent.status, sent.code, sent.retryAfterSeconds, sent.bodyBytes], [503, 'overloaded', 7, 0]);
  });

  test('that asks first and is invited sends everything', async (t) => {
    const url = await startServer(t, async (request, response) => {
      response.writeContinue();
      await bodyOf(request);
      accept(response, 'an id');
    });
    const body = [Buffer.alloc(200_000)];
    const sent = await sendUpload({ url: new URL(url), agent: openAgent(t), headers: {}, body, expect: true });
    assert.deepEqual([sent.status, sent.bodyBytes], [202, 200_000]);
  });

  test('that is refused while it sends reads the answer, and tells how much went out before', async (t) => {
    const url = await startServer(t, (request, response) => {
      request.once('data', () => {
        request.pause();
        refuse(response);
      });
    });
    const body = [Buffer.alloc(largeBytes)];
    const sent = await sendUpload({ url: new URL(url), agent: openAgent(t), headers: {}, body, expect: false });
    assert.deepEqual([sent.status, sent.retryAfterSeconds], [503, 7]);
    assert.ok(sent.bodyBytes > 0 && sent.bodyBytes < largeBytes, `${sent.bodyBytes} bytes`);
  });

  test('whose connection breaks is an outcome as well', async (t) => {
    const url = await startServer(t, (request) => request.socket.destroy());
    const body = [Buffer.alloc(1000)];
    const sent = await sendUpload({ url: new URL(url), agent: openAgent(t), headers: {}, body, expect: false });
    assert.deepEqual([sent.status, sent.retryAfterSeconds, sent.id], [0, null, null]);
    assert.ok(sent.code);
  });
});

describe('an open loop', () => {
  test('sends the next whether or not the one before was answered', async (t) => {
    const waiting: ServerResponse[] = [];
    const url = await startServer(t, async (request, response) => {
      await bodyOf(request);
      waiting.push(response);
      // A closed loop would never get here: nobody is answered before all have come.
      if (waiting.length === 20) for (const [at, one] of waiting.entries()) accept(one, `id ${at}`);
    });
    const picture = await pictureOf(t, Buffer.from('picture'));
    const played = await openLoad(t).play({
      url,
      tokens: ['token'],
      picture,
      play: { kind: 'open', arrivals: arrivals(20), durationMs: 50 },
    });
    assert.equal(played.sent.length, 20);
    assert.ok(played.sent.every(({ tries }) => tries.length === 1 && tries[0]?.status === 202));
  });

  test('tells the intended moments, and a digest of its own for each upload', async (t) => {
    const digests: string[] = [];
    const url = await startServer(t, async (request, response) => {
      digests.push(
        createHash('sha256')
          .update(await bodyOf(request))
          .digest('hex'),
      );
      accept(response, `id ${digests.length}`);
    });
    const picture = await pictureOf(t, Buffer.from('picture'));
    const play = { kind: 'open', arrivals: arrivals(5), durationMs: 50 } as const;
    const { beganAt, sent } = await openLoad(t).play({ url, tokens: ['token'], picture, play });
    assert.deepEqual(
      sent.map(({ intendedAt }) => Math.round(intendedAt - beganAt)),
      [0, 1, 2, 3, 4],
    );
    assert.equal(new Set(digests).size, 5);
    assert.deepEqual(new Set(sent.map(({ sha256 }) => sha256)), new Set(digests));
  });

  test('lasts as long as it is asked to, also when nobody comes any more', async (t) => {
    const picture = await pictureOf(t, Buffer.from('picture'));
    const play = { kind: 'open', arrivals: [], durationMs: 80 } as const;
    const { beganAt, endedAt } = await openLoad(t).play({ url: 'http://127.0.0.1:1', tokens: [], picture, play });
    assert.ok(endedAt - beganAt >= 60, `${endedAt - beganAt} ms`);
  });

  test('comes back when told to where it is patient, and not where it is not', async (t) => {
    let refusals = 0;
    const url = await startServer(t, async (request, response) => {
      await bodyOf(request);
      refusals += 1;
      if (refusals <= 3) refuse(response, '0');
      else accept(response, 'an id');
    });
    const picture = await pictureOf(t, Buffer.from('picture'));
    const load = openLoad(t);
    const once = { kind: 'open', arrivals: arrivals(1), durationMs: 50 } as const;
    const [impatient] = (await load.play({ url, tokens: ['token'], picture, play: once })).sent;
    assert.deepEqual(
      impatient?.tries.map(({ status }) => status),
      [503],
    );
    const again = { kind: 'open', arrivals: arrivals(1, { patient: true }), durationMs: 50 } as const;
    const [patient] = (await load.play({ url, tokens: ['token'], picture, play: again })).sent;
    assert.deepEqual(
      patient?.tries.map(({ status }) => status),
      [503, 503, 202],
    );
  });
});

describe('a closed loop', () => {
  test('has one upload under way for each client, until it is ready', async (t) => {
    let [under, most, asked] = [0, 0, 0];
    const url = await startServer(t, async (request, response) => {
      if (request.method === 'GET') {
        asked += 1;
        // The first question comes too early, as a long-poll whose time is over does.
        if (asked > 1) under -= 1;
        return void response.end(JSON.stringify({ state: asked > 1 ? 'ready' : 'processing' }));
      }
      await bodyOf(request);
      under += 1;
      most = Math.max(most, under);
      accept(response, 'an id');
    });
    const picture = await pictureOf(t, Buffer.from('picture'));
    const play = { kind: 'closed', clients: 3, durationMs: 100 } as const;
    const { sent } = await openLoad(t).play({ url, tokens: ['token'], picture, play });
    assert.equal(most, 3);
    assert.equal(under, 0);
    assert.equal(asked, sent.length + 1);
  });

  test('tells the failure of its process instead of waiting for ever', async (t) => {
    const load = openLoad(t);
    const play = { kind: 'closed', clients: 1, durationMs: 100 } as const;
    await assert.rejects(load.play({ url: 'http://127.0.0.1:1', tokens: [], picture: '/nowhere', play }), /ENOENT/);
  });
});
