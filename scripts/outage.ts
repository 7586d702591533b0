/**
 * What clients see around an outage that somebody else makes: the part of `deploy/verify.sh` that talks to the API.
 *
 * `send` uploads a photograph, sends it in a message and is refused its content; `still` finds all that unchanged; `ready`
 * waits until the same attachment is ready and compares it; `many` uploads twenty at once and waits for all. `BASE_URL`
 * names the server. What `send` wants remembered, tokens among it, goes to standard output, and to standard input of
 * `still` and `ready`; what is for people goes to standard error. Imports nothing from `src`.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import { CheckFailed, type Checks, createChecks } from './checks.ts';
import { createHttpClient, expectStatus, type HttpClient, NoAnswer } from './http-client.ts';
import { readJpeg, readWebp } from './picture-header.ts';

const readyMsMax = 180_000;
const pictures = 20;

interface Memory {
  readonly token: string;
  readonly attachmentId: string;
  readonly messageId: string;
}

interface Visit extends HttpClient {
  readonly checks: Checks;
  readonly photo: Buffer;
}

process.exitCode = await main(process.argv[2]);

async function main(word: string | undefined): Promise<number> {
  const client = createHttpClient(process.env.BASE_URL || 'http://localhost:8080');
  const checks = createChecks((_, line) => console.error(`   ✓ ${line}`));
  const photo = await readFile(new URL('../examples/photo.jpg', import.meta.url));
  const visit: Visit = { ...client, checks, photo };
  try {
    if (word === 'send') console.log(JSON.stringify(await send(visit)));
    else if (word === 'still') await still(visit, await remembered());
    else if (word === 'ready') await ready(visit, await remembered());
    else if (word === 'many') await many(visit);
    else throw new CheckFailed('Expected send, still, ready or many.');
    return 0;
  } catch (error) {
    if (!(error instanceof CheckFailed) && !(error instanceof NoAnswer)) throw error;
    console.error(error.message);
    return 1;
  }
}

async function remembered(): Promise<Memory> {
  return JSON.parse(await text(process.stdin)) as Memory;
}

/* ------------------------------------------------------------------ words */

async function send(visit: Visit): Promise<Memory> {
  const { ask, checks } = visit;
  const token = await register(visit);
  const attachmentId = await checks.check('an upload is answered with 202, queued', async () => {
    const id = await upload(visit, token);
    return { value: id, note: `attachment ${id}` };
  });
  const messageId = await checks.check('a message carries it: 201', async () => {
    const chat = expectStatus(await ask('POST', '/v1/chats', { token, json: { title: 'Outage' } }), 201);
    const json = { text: 'Look what I found', attachment_ids: [attachmentId] };
    const answer = expectStatus(await ask('POST', `/v1/chats/${chat.json?.id}/messages`, { token, json }), 201);
    return { value: String(answer.json?.id), note: `message ${answer.json?.id}` };
  });
  const memory = { token, attachmentId, messageId };
  await refused(visit, memory);
  return memory;
}

async function still(visit: Visit, memory: Memory): Promise<void> {
  const { ask, checks } = visit;
  const { token, attachmentId, messageId } = memory;
  await checks.check('the same attachment is still queued', async () => {
    const { json } = expectStatus(await ask('GET', `/v1/attachments/${attachmentId}`, { token }), 200);
    assert.equal(json?.state, 'queued');
    return { value: undefined, note: `attachment ${attachmentId}` };
  });
  await checks.check('its message is there, and carries it', async () => {
    const { json } = expectStatus(await ask('GET', `/v1/messages/${messageId}`, { token }), 200);
    assert.deepEqual(json?.attachment_ids, [attachmentId]);
    return { value: undefined };
  });
  await refused(visit, memory);
}

async function ready(visit: Visit, { token, attachmentId }: Memory): Promise<void> {
  const { ask, checks, photo } = visit;
  await checks.check('the same attachment is ready, after one attempt', async () => {
    const { attachment, seconds } = await untilReady(visit, token, attachmentId);
    assert.equal(attachment.attempts, 1);
    return { value: undefined, note: `attachment ${attachmentId}, ${seconds} s` };
  });
  const get = async (path: string) =>
    expectStatus(await ask('GET', `/v1/attachments/${attachmentId}${path}`, { token }), 200).bytes;
  await checks.check('its content is what was sent, byte for byte', async () => {
    const bytes = await get('/content');
    assert.ok(bytes.equals(photo), `${bytes.length} bytes, and not those that were sent`);
    return { value: undefined, note: `${bytes.length} bytes` };
  });
  await checks.check('it has a thumbnail, a crop and an optimized picture', async () => {
    const thumbnail = readJpeg(await get('/variants/thumbnail'));
    const crop = readJpeg(await get('/variants/crop'));
    const optimized = readWebp(await get('/variants/optimized'));
    assert.equal(Math.max(thumbnail.width, thumbnail.height), 256);
    assert.deepEqual([crop.width, crop.height], [128, 128]);
    const sizes = [thumbnail, crop, optimized].map(({ width, height }) => `${width}×${height}`);
    return { value: undefined, note: sizes.join(', ') };
  });
}

async function many(visit: Visit): Promise<void> {
  const token = await register(visit);
  await visit.checks.check(`${pictures} pictures at once become ready`, async () => {
    const startMs = performance.now();
    const ids = await Promise.all(Array.from({ length: pictures }, () => upload(visit, token)));
    await Promise.all(ids.map((id) => untilReady(visit, token, id)));
    return { value: undefined, note: `${((performance.now() - startMs) / 1000).toFixed(1)} s` };
  });
}

/* ------------------------------------------------------------------ steps */

async function register({ ask, checks }: Visit): Promise<string> {
  return await checks.check('a new account is registered', async () => {
    const handle = `outage-${randomBytes(6).toString('hex')}`;
    const json = { handle, password: randomBytes(16).toString('hex') };
    const answer = expectStatus(await ask('POST', '/v1/users', { json }), 201);
    return { value: String(answer.json?.token) };
  });
}

/** Answers the id. */
async function upload({ ask, photo }: Visit, token: string): Promise<string> {
  const headers = { 'content-type': 'image/jpeg' };
  const path = '/v1/attachments?filename=photo.jpg';
  const { json } = expectStatus(await ask('POST', path, { token, headers, body: photo }), 202);
  assert.equal(json?.state, 'queued');
  return String(json?.id);
}

async function refused({ ask, checks }: Visit, { token, attachmentId }: Memory): Promise<void> {
  await checks.check('its content is refused: 409, not ready, with Retry-After', async () => {
    const answer = expectStatus(await ask('GET', `/v1/attachments/${attachmentId}/content`, { token }), 409);
    assert.equal(answer.json?.code, 'attachment_not_ready');
    assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
    return { value: undefined };
  });
}

async function untilReady({ ask }: Visit, token: string, id: string) {
  const startMs = performance.now();
  while (performance.now() - startMs < readyMsMax) {
    const { json } = expectStatus(await ask('GET', `/v1/attachments/${id}?wait=20`, { token }), 200);
    assert.notEqual(json?.state, 'failed', `it failed with ${json?.error_code}`);
    if (json?.state !== 'ready') continue;
    assert.equal((json.variants as unknown[]).length, 3);
    return { attachment: json, seconds: ((performance.now() - startMs) / 1000).toFixed(1) };
  }
  throw new assert.AssertionError({ message: `${id} was not ready after ${readyMsMax / 1000} s` });
}
