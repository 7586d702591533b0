/**
 * `npm run smoke`: the main job against a running server, as a client sees it. `BASE_URL` names the server.
 *
 * Needs nothing but Node and the photograph in `examples/`; imports nothing from `src`. Prints one line a check, ids but
 * never tokens, ends with the count, and removes what it uploaded. Exit code 0 only if every check held.
 */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { CheckFailed, type Checks, createChecks } from './checks.ts';
import { type Answer, createHttpClient, expectStatus, type HttpClient, NoAnswer } from './http-client.ts';
import { type PictureHeader, readJpeg, readWebp } from './picture-header.ts';

const baseUrl = process.env.BASE_URL || 'http://localhost:8080';
const readyMsMax = 120_000;
/** Uploads that are asked for at once when the first was ready before its content could be asked for. */
const burst = 8;

interface Walk extends HttpClient {
  readonly checks: Checks;
  readonly token: string;
  readonly photo: Buffer;
  readonly photoSize: PictureHeader;
  /** Attachments to delete in the end. */
  readonly uploaded: Set<string>;
}

process.exit(await main());

async function main(): Promise<number> {
  console.log(`Smoke test of ${baseUrl}`);
  const checks = createChecks((number, text) => console.log(`${String(number).padStart(2)}. ${text}`));
  try {
    await smoke(checks);
    console.log(`All ${checks.count} checks held.`);
    return 0;
  } catch (error) {
    if (!(error instanceof CheckFailed) && !(error instanceof NoAnswer)) throw error;
    console.error(error.message);
    if (checks.count > 0) console.error(`${checks.count} checks held before it.`);
    return 1;
  }
}

async function smoke(checks: Checks): Promise<void> {
  const client = createHttpClient(baseUrl);
  const photo = await readFile(new URL('../examples/photo.jpg', import.meta.url));
  await isUp(client, checks);
  const token = await register(client, checks, 'a new account is registered');
  const walk = { ...client, checks, token, photo, photoSize: readJpeg(photo), uploaded: new Set<string>() };
  try {
    const { id, content } = await upload(walk);
    await unreadyContent(walk, content);
    const chatId = await sendMessage(walk, id);
    const ready = await waitUntilReady(walk, id);
    await original(walk, id);
    await variants(walk, ready);
    await strangers(walk, id, chatId);
    await remove(walk, id);
  } finally {
    for (const id of walk.uploaded) await walk.ask('DELETE', `/v1/attachments/${id}`, { token });
  }
}

/* --------------------------------------------------------------- arriving */

async function isUp({ ask }: HttpClient, { check }: Checks): Promise<void> {
  await check('the server is ready for work', async () => {
    const { status, json } = await ask('GET', '/health/ready');
    assert.equal(status, 200, `/health/ready answers ${status}: ${JSON.stringify(json?.components ?? json)}`);
    return { value: undefined, note: String(json?.status) };
  });
}

async function register({ ask }: HttpClient, { check }: Checks, title: string): Promise<string> {
  return await check(title, async () => {
    const handle = `smoke-${randomBytes(6).toString('hex')}`;
    const answer = await ask('POST', '/v1/users', { json: { handle, password: randomBytes(16).toString('hex') } });
    expectStatus(answer, 201);
    const { user, token } = answer.json as { user: { id: string }; token: string };
    return { value: token, note: `user ${user.id}` };
  });
}

/* ---------------------------------------------------------------- upload */

/** Answers the attachment's id, and what a request for its content right after the 202 was answered with. */
async function upload(walk: Walk): Promise<{ id: string; content: Answer }> {
  const { check, token, photo, ask } = { ...walk, ...walk.checks };
  const key = randomBytes(12).toString('hex');
  const digest = createHash('sha256').update(photo).digest('base64');
  const send = () =>
    ask('POST', '/v1/attachments?filename=photo.jpg', {
      token,
      body: photo,
      headers: { 'content-type': 'image/jpeg', 'idempotency-key': key, 'repr-digest': `sha-256=:${digest}:` },
    });
  const uploaded = await check('an upload is answered with 202 and queued', async () => {
    const answer = await send();
    expectStatus(answer, 202);
    const attachment = answer.json as { id: string; state: string; size: number; sha256: string };
    walk.uploaded.add(attachment.id);
    // Asked before anything else, while there is something to be refused.
    const content = await ask('GET', `/v1/attachments/${attachment.id}/content`, { token });
    assert.equal(attachment.state, 'queued');
    assert.equal(answer.headers.get('location'), `/v1/attachments/${attachment.id}`);
    assert.equal(attachment.size, photo.length);
    assert.equal(attachment.sha256, createHash('sha256').update(photo).digest('hex'));
    return { value: { id: attachment.id, content }, note: `attachment ${attachment.id}` };
  });
  await check('the same upload under the same Idempotency-Key is the same attachment', async () => {
    const answer = await send();
    expectStatus(answer, 202);
    assert.equal(answer.json?.id, uploaded.id);
    return { value: undefined };
  });
  return uploaded;
}

/**
 * A worker may be quicker than our next request. Then many pictures at once keep it busy for longer than a request
 * takes; if even so every one is ready first, the check fails: it was not seen, so it is not claimed.
 */
async function unreadyContent(walk: Walk, content: Answer): Promise<void> {
  await walk.checks.check('content before it is ready is answered with 409 and Retry-After', async () => {
    const refused = content.status === 409 ? content : await refusedOfMany(walk);
    assert.ok(refused, `none of ${burst + 1} pictures was still unready when its content was asked for`);
    assert.equal(refused.headers.get('content-type')?.split(';')[0], 'application/problem+json');
    assert.equal(refused.json?.code, 'attachment_not_ready');
    assert.match(String(refused.json?.state), /^(queued|processing)$/);
    assert.match(refused.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
    return {
      value: undefined,
      note: `state ${refused.json?.state}, Retry-After ${refused.headers.get('retry-after')}`,
    };
  });
}

async function refusedOfMany({ ask, token, photo, uploaded }: Walk): Promise<Answer | undefined> {
  const answers = await Promise.all(
    Array.from({ length: burst }, async () => {
      const form = new FormData();
      form.set('file', new Blob([new Uint8Array(photo)], { type: 'image/jpeg' }), 'photo.jpg');
      const { json } = await ask('POST', '/v1/attachments', { token, body: form });
      uploaded.add(String(json?.id));
      return await ask('GET', `/v1/attachments/${json?.id}/content`, { token });
    }),
  );
  return answers.find(({ status }) => status === 409);
}

async function waitUntilReady({ ask, token, checks }: Walk, id: string): Promise<Record<string, unknown>> {
  return await checks.check('the attachment becomes ready', async () => {
    const begunMs = performance.now();
    while (performance.now() - begunMs < readyMsMax) {
      const answer = await ask('GET', `/v1/attachments/${id}?wait=20`, { token });
      expectStatus(answer, 200);
      const { state, error_code } = answer.json ?? {};
      assert.notEqual(state, 'failed', `it failed with ${error_code}`);
      if (state === 'ready') return { value: answer.json ?? {}, note: seconds(begunMs) };
    }
    throw new assert.AssertionError({ message: `it was not ready after ${readyMsMax / 1000} s: does a worker run?` });
  });
}

/* -------------------------------------------------------------- download */

async function original({ ask, token, photo, checks }: Walk, id: string): Promise<void> {
  const path = `/v1/attachments/${id}/content`;
  const etag = await checks.check('the original comes back byte for byte', async () => {
    const answer = await ask('GET', path, { token });
    expectStatus(answer, 200);
    assert.equal(answer.headers.get('content-type'), 'image/jpeg');
    assert.equal(answer.headers.get('content-length'), String(photo.length));
    assert.ok(answer.bytes.equals(photo), `the ${answer.bytes.length} bytes are not those that were sent`);
    assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
    return { value: answer.headers.get('etag') ?? '', note: `${photo.length} bytes` };
  });
  await checks.check('its ETag is its SHA-256, and asking with it answers 304 without a body', async () => {
    assert.equal(etag, `"${createHash('sha256').update(photo).digest('hex')}"`);
    const answer = await ask('GET', path, { token, headers: { 'if-none-match': etag } });
    expectStatus(answer, 304);
    assert.equal(answer.bytes.length, 0);
    return { value: undefined };
  });
  await checks.check('a range answers 206 with exactly its bytes, and one past the end 416', async () => {
    const ranged = (range: string) => ask('GET', path, { token, headers: { range } });
    const part = await ranged('bytes=1000-1999');
    expectStatus(part, 206);
    assert.equal(part.headers.get('content-range'), `bytes 1000-1999/${photo.length}`);
    assert.ok(part.bytes.equals(photo.subarray(1000, 2000)));
    const tail = await ranged('bytes=-10');
    expectStatus(tail, 206);
    assert.ok(tail.bytes.equals(photo.subarray(-10)));
    expectStatus(await ranged(`bytes=${photo.length}-`), 416);
    return { value: undefined };
  });
  await checks.check('HEAD answers the length and no body', async () => {
    const answer = await ask('HEAD', path, { token });
    expectStatus(answer, 200);
    assert.equal(answer.headers.get('content-length'), String(photo.length));
    assert.equal(answer.bytes.length, 0);
    return { value: undefined };
  });
}

interface Variant {
  readonly name: string;
  readonly content_type: string;
  readonly width: number;
  readonly height: number;
  readonly size: number;
  readonly sha256: string;
  readonly url: string;
}

async function variants(walk: Walk, attachment: Record<string, unknown>): Promise<void> {
  const { width, height } = walk.photoSize;
  const listed = await walk.checks.check('the metadata tells size and three variants', async () => {
    assert.deepEqual([attachment.width, attachment.height], [width, height]);
    const found = attachment.variants as Variant[];
    assert.deepEqual(found.map(({ name }) => name).sort(), ['crop', 'optimized', 'thumbnail']);
    return { value: new Map(found.map((variant) => [variant.name, variant])), note: `${width}×${height}` };
  });
  await variant(walk, listed.get('thumbnail'), 'a JPEG fitted inside 256×256', readJpeg, (header) => {
    sameProportions(header, walk.photoSize, 256);
  });
  await variant(walk, listed.get('crop'), 'a JPEG of exactly 128×128', readJpeg, (header) => {
    assert.deepEqual([header.width, header.height], [128, 128]);
  });
  await variant(walk, listed.get('optimized'), 'a WebP of the whole picture', readWebp, (header) => {
    sameProportions(header, walk.photoSize, 2048);
  });
}

async function variant(
  { ask, token, checks }: Walk,
  listed: Variant | undefined,
  title: string,
  read: (bytes: Buffer) => PictureHeader,
  fits: (header: PictureHeader) => void,
): Promise<void> {
  await checks.check(`the variant ${listed?.name} is ${title}, without metadata`, async () => {
    assert.ok(listed);
    const answer = await ask('GET', listed.url, { token });
    expectStatus(answer, 200);
    assert.equal(answer.headers.get('content-type'), listed.content_type);
    assert.equal(answer.bytes.length, listed.size);
    assert.equal(createHash('sha256').update(answer.bytes).digest('hex'), listed.sha256);
    const header = parse(answer.bytes, read);
    assert.deepEqual([header.width, header.height], [listed.width, listed.height]);
    assert.deepEqual(header.metadata, []);
    fits(header);
    return { value: undefined, note: `${header.width}×${header.height}, ${answer.bytes.length} bytes` };
  });
}

function parse(bytes: Buffer, read: (bytes: Buffer) => PictureHeader): PictureHeader {
  try {
    return read(bytes);
  } catch (error) {
    throw new assert.AssertionError({ message: `not a whole picture: ${(error as Error).message}` });
  }
}

/** Fitted inside a square, never enlarged, each side rounded. */
function sameProportions(found: PictureHeader, source: PictureHeader, edgeMax: number): void {
  const scale = Math.min(1, edgeMax / Math.max(source.width, source.height));
  for (const side of ['width', 'height'] as const) {
    const expected = source[side] * scale;
    assert.ok(
      Math.abs(found[side] - expected) <= 1,
      `expected a ${side} of ${expected.toFixed(1)}, it is ${found[side]}`,
    );
  }
}

/* -------------------------------------------------------------- messages */

async function sendMessage({ ask, token, checks }: Walk, id: string): Promise<string> {
  return await checks.check('a message carries the attachment at once', async () => {
    const chat = await ask('POST', '/v1/chats', { token, json: { title: 'Smoke test' } });
    expectStatus(chat, 201);
    const path = `/v1/chats/${chat.json?.id}/messages`;
    const sent = await ask('POST', path, { token, json: { text: 'Look at this', attachment_ids: [id] } });
    expectStatus(sent, 201);
    const { items } = (await ask('GET', path, { token })).json as { items: { id: string; attachment_ids: string[] }[] };
    assert.deepEqual(
      items.map((item) => [item.id, item.attachment_ids]),
      [[sent.json?.id, [id]]],
    );
    return { value: String(chat.json?.id), note: `message ${sent.json?.id}` };
  });
}

async function strangers(walk: Walk, id: string, chatId: string): Promise<void> {
  const { ask, checks } = walk;
  const token = await register(walk, checks, 'another account is registered');
  const path = `/v1/attachments/${id}/content`;
  await checks.check('a stranger gets 404, without a token it is 401, a member of the chat may read', async () => {
    expectStatus(await ask('GET', path, { token }), 404);
    expectStatus(await ask('GET', path), 401);
    const { json } = await ask('GET', '/v1/users/me', { token });
    const member = `/v1/chats/${chatId}/members/${json?.id}`;
    expectStatus(await ask('PUT', member, { token: walk.token }), 204);
    expectStatus(await ask('GET', path, { token }), 200);
    expectStatus(await ask('DELETE', member, { token: walk.token }), 204);
    expectStatus(await ask('GET', path, { token }), 404);
    return { value: undefined };
  });
}

async function remove({ ask, token, checks, uploaded }: Walk, id: string): Promise<void> {
  await checks.check('a deleted attachment answers 404 everywhere', async () => {
    expectStatus(await ask('DELETE', `/v1/attachments/${id}`, { token }), 204);
    uploaded.delete(id);
    for (const path of ['', '/content', '/variants/thumbnail']) {
      expectStatus(await ask('GET', `/v1/attachments/${id}${path}`, { token }), 404);
    }
    return { value: undefined };
  });
}

/* ---------------------------------------------------------------- shared */

function seconds(sinceMs: number): string {
  return `${((performance.now() - sinceMs) / 1000).toFixed(1)} s`;
}
