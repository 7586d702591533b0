/**
 * Level 3 of the scenario: the promise of a 202.
 *
 * No worker runs; an upload is accepted and travels in a message; API and PostgreSQL are killed and come back; then a
 * worker starts, and the same attachment becomes ready.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import type { Checks } from './checks.ts';
import { createHttpClient, expectStatus, type HttpClient, NoAnswer } from './http-client.ts';
import type { Narration } from './narration.ts';
import { readJpeg, readWebp } from './picture-header.ts';
import { type Person, register, untilReady } from './scenario-people.ts';
import type { Actor, Database, Stage } from './stage.ts';

const apiRoles = ['api', 'relay', 'janitor'];

interface Scene extends HttpClient {
  readonly stage: Stage;
  readonly checks: Checks;
  readonly photo: Buffer;
  readonly author: Person;
  readonly reader: Person;
  readonly chatId: string;
}

/** What was accepted before the deaths, and is asked for after them. */
interface Sent {
  readonly attachmentId: string;
  readonly messageId: string;
}

export async function playPromise(stage: Stage, checks: Checks, { chapter }: Narration): Promise<void> {
  chapter('Everything but a worker');
  const database = await startDatabase(stage, checks);
  const api = await startApi(stage, checks, '0');
  const scene = await setScene(stage, checks, api);

  chapter('An upload is accepted although nobody can process it');
  const sent = await accept(scene);
  await meanwhile(scene, sent);

  chapter('Everything that knew of it dies');
  await die(scene, api, database);
  const databaseAgain = await startDatabase(stage, checks);
  const apiAgain = await startApi(stage, checks, new URL(api.url ?? '').port);
  await remembered(scene, sent);

  chapter('A worker starts');
  const worker = await startWorker(stage, checks);
  await becomesReady(scene, sent);
  await delivered(scene, sent);

  chapter('The end');
  await checks.check('worker and API end in order, with exit code 0', async () => {
    assert.deepEqual([await worker.stop(), await apiAgain.stop()], [0, 0]);
    await databaseAgain.stop();
    return { value: undefined };
  });
}

/* ------------------------------------------------------------- processes */

async function startDatabase(stage: Stage, { check }: Checks): Promise<Database> {
  return await check('PostgreSQL starts, and has the schema of this build', async () => {
    const database = await stage.startDatabase();
    await stage.migrate();
    return { value: database, note: `process ${database.pid}` };
  });
}

async function startApi(stage: Stage, { check }: Checks, port: string): Promise<Actor> {
  return await check('the API starts, with relay and janitor; no worker', async () => {
    const api = await stage.startRoles(apiRoles, { PORT: port });
    return { value: api, note: `process ${api.pid}, ${api.url}` };
  });
}

async function startWorker(stage: Stage, { check }: Checks): Promise<Actor> {
  return await check('a worker starts, in a process of its own', async () => {
    const worker = await stage.startRoles(['worker'], { RENDER_CONCURRENCY: '1' });
    return { value: worker, note: `process ${worker.pid}` };
  });
}

async function die({ checks, ask, author }: Scene, api: Actor, database: { pid: number; kill(): Promise<void> }) {
  await checks.check('the API is killed by SIGKILL, and nothing answers any more', async () => {
    await api.kill();
    await assert.rejects(ask('GET', '/v1/users/me', author), NoAnswer);
    return { value: undefined, note: `process ${api.pid}` };
  });
  await checks.check('PostgreSQL is killed by SIGKILL as well', async () => {
    await database.kill();
    return { value: undefined, note: `process ${database.pid}` };
  });
}

/* ---------------------------------------------------------------- people */

async function setScene(stage: Stage, checks: Checks, api: Actor): Promise<Scene> {
  const client = createHttpClient(api.url ?? '');
  const photo = await readFile(new URL('../examples/photo.jpg', import.meta.url));
  const author = await register(client, checks, 'anna');
  const reader = await register(client, checks, 'boris');
  const chatId = await checks.check('anna makes a chat, and boris is in it', async () => {
    const { json } = expectStatus(await client.ask('POST', '/v1/chats', { ...author, json: { title: 'Family' } }), 201);
    expectStatus(await client.ask('PUT', `/v1/chats/${json?.id}/members/${reader.id}`, author), 204);
    return { value: String(json?.id), note: `chat ${json?.id}` };
  });
  return { ...client, stage, checks, photo, author, reader, chatId };
}

/* ------------------------------------------------------- before the deaths */

async function accept({ ask, checks, author, photo, chatId }: Scene): Promise<Sent> {
  const attachmentId = await checks.check('anna uploads a photograph: 202, queued', async () => {
    const headers = { 'content-type': 'image/jpeg' };
    const path = '/v1/attachments?filename=photo.jpg';
    const { json } = expectStatus(await ask('POST', path, { ...author, headers, body: photo }), 202);
    assert.equal(json?.state, 'queued');
    return { value: String(json?.id), note: `attachment ${json?.id}, ${photo.length} bytes` };
  });
  const messageId = await checks.check('anna sends a message that carries it: 201, although it is queued', async () => {
    const json = { text: 'Look what I found', attachment_ids: [attachmentId] };
    const answer = expectStatus(await ask('POST', `/v1/chats/${chatId}/messages`, { ...author, json }), 201);
    assert.deepEqual(answer.json?.attachment_ids, [attachmentId]);
    return { value: String(answer.json?.id), note: `message ${answer.json?.id}` };
  });
  return { attachmentId, messageId };
}

async function meanwhile({ ask, checks, author, reader, chatId }: Scene, sent: Sent): Promise<void> {
  await checks.check('boris asks for the photograph: 409, not ready, with Retry-After', async () => {
    return { value: undefined, note: await refused(ask, reader, sent) };
  });
  await checks.check('other messages work meanwhile, in both directions', async () => {
    const path = `/v1/chats/${chatId}/messages`;
    expectStatus(await ask('POST', path, { ...reader, json: { text: 'It is still loading here' } }), 201);
    expectStatus(await ask('POST', path, { ...author, json: { text: 'Patience' } }), 201);
    const { json } = expectStatus(await ask('GET', path, reader), 200);
    const texts = (json as { items: { text: string }[] }).items.map(({ text }) => text);
    assert.deepEqual(texts, ['Patience', 'It is still loading here', 'Look what I found']);
    return { value: undefined, note: `${texts.length} messages` };
  });
}

/** Content is refused as unready. Answers the words for it. */
async function refused(ask: HttpClient['ask'], person: Person, { attachmentId }: Sent): Promise<string> {
  const answer = expectStatus(await ask('GET', `/v1/attachments/${attachmentId}/content`, person), 409);
  assert.equal(answer.json?.code, 'attachment_not_ready');
  assert.equal(answer.json?.state, 'queued');
  const retryAfter = answer.headers.get('retry-after') ?? '';
  assert.match(retryAfter, /^[1-9]\d*$/);
  return `state ${answer.json?.state}, Retry-After ${retryAfter}`;
}

/* -------------------------------------------------------- after the deaths */

async function remembered({ ask, checks, author, reader, chatId }: Scene, sent: Sent): Promise<void> {
  await checks.check('the same attachment is still queued, and still refused with 409', async () => {
    const { json } = expectStatus(await ask('GET', `/v1/attachments/${sent.attachmentId}`, author), 200);
    assert.equal(json?.state, 'queued');
    return { value: undefined, note: await refused(ask, reader, sent) };
  });
  await checks.check('the message still carries it', async () => {
    const { json } = expectStatus(await ask('GET', `/v1/messages/${sent.messageId}`, reader), 200);
    assert.deepEqual(json?.attachment_ids, [sent.attachmentId]);
    expectStatus(await ask('GET', `/v1/chats/${chatId}/messages`, reader), 200);
    return { value: undefined, note: `message ${sent.messageId}` };
  });
}

async function becomesReady(scene: Scene, { attachmentId }: Sent): Promise<void> {
  await scene.checks.check('the same attachment becomes ready, and nobody sent anything again', async () => {
    const sinceMs = performance.now();
    const { attempts } = await untilReady(scene, scene.author, attachmentId);
    assert.equal(attempts, 1);
    const seconds = ((performance.now() - sinceMs) / 1000).toFixed(1);
    return { value: undefined, note: `attachment ${attachmentId}, ${seconds} s after the worker` };
  });
}

async function delivered({ ask, checks, reader, photo }: Scene, { attachmentId }: Sent): Promise<void> {
  const get = async (path: string) =>
    expectStatus(await ask('GET', `/v1/attachments/${attachmentId}${path}`, reader), 200);
  await checks.check('boris gets the photograph, byte for byte what anna sent', async () => {
    const { bytes } = await get('/content');
    assert.ok(bytes.equals(photo), `${bytes.length} bytes, and not those that were sent`);
    return { value: undefined, note: `${bytes.length} bytes` };
  });
  await checks.check('boris gets a thumbnail, a crop and an optimized picture', async () => {
    const thumbnail = readJpeg((await get('/variants/thumbnail')).bytes);
    const crop = readJpeg((await get('/variants/crop')).bytes);
    const optimized = readWebp((await get('/variants/optimized')).bytes);
    assert.equal(Math.max(thumbnail.width, thumbnail.height), 256);
    assert.deepEqual([crop.width, crop.height], [128, 128]);
    const source = readJpeg(photo);
    assert.deepEqual([optimized.width, optimized.height], [source.width, source.height]);
    const sizes = [thumbnail, crop, optimized].map(({ width, height }) => `${width}×${height}`);
    return { value: undefined, note: sizes.join(', ') };
  });
}
