/**
 * Cases that broke other systems, as journeys with real processes: doubled deliveries, deaths in the middle of a write,
 * deletions at every moment. `docs/cases.md` lists all cases with their tests.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { encodeRing, ringId } from '../../src/pipeline/job.ts';
import { openPostgresBroker } from '../support/broker-sql.ts';
import { register, sha256 } from '../support/client.ts';
import { complaints, filesBelow, letGo, openChat, openJourney, pathsOf, statusesOf } from '../support/journey.ts';
import { onEnd } from '../support/on-end.ts';
import { photo } from '../support/pictures.ts';
import { longLease } from '../support/role.ts';
import { until } from '../support/until.ts';
import { dial, nothing, png, startUploads, uploadHead } from '../support/uploads.ts';

const photograph = await readFile(join(import.meta.dirname, '../fixtures/orientation/small_6.jpg'));
/** What metadata, content and three variants answer. */
const unready = [200, 409, 409, 409, 409];
const gone = Array(5).fill(404);
const there = Array(5).fill(200);

test('uploads of one name at the same moment each answer their own bytes', async (t) => {
  const j = await openJourney(t);
  const all = await j.start(['api', 'relay', 'worker', 'janitor'], { 'accept.stored': 'wait' });
  const user = await register(() => all.url);
  const pictures = await Promise.all([1, 2, 3, 4].map((seed) => photo(300, 200, seed).jpeg().toBuffer()));
  const uploads = Promise.all(pictures.map((picture) => user.upload(picture)));
  // All four are durable, and none has a row yet.
  for (const _ of pictures) await all.reached('accept.stored');
  await letGo(all, 'accept.stored');
  const thumbnails = new Set<string | undefined>();
  for (const [at, { id, sha256: digest }] of (await uploads).entries()) {
    const picture = pictures[at] ?? Buffer.alloc(0);
    assert.equal(digest, sha256(picture));
    const ready = await user.until(id, 'ready');
    await user.assertWhole(ready, picture);
    thumbnails.add(ready.variants.find(({ name }) => name === 'thumbnail')?.sha256);
  }
  assert.equal(thumbnails.size, pictures.length);
  await j.assertTidy();
});

test('a corrupt picture fails at its first attempt, and its neighbours become ready', async (t) => {
  const j = await openJourney(t, longLease);
  const api = await j.start(['api', 'relay', 'janitor']);
  const user = await register(() => api.url);
  const before = await user.upload(photograph);
  const corrupt = await user.upload(photograph.subarray(0, Math.floor(photograph.length * 0.6)));
  const after = await user.upload(await photo(200, 100).png().toBuffer(), 'image/png');
  const worker = await j.start(['worker']);
  const failed = await user.until(corrupt.id, 'failed');
  assert.deepEqual([failed.error_code, failed.attempts], ['corrupt_image', 1]);
  const refused = await user.ask(failed.content_url);
  const problem = (await refused.json()) as { code: string; error_code: string };
  assert.deepEqual([refused.status, problem.code, problem.error_code], [409, 'attachment_failed', 'corrupt_image']);
  assert.equal(refused.headers.get('retry-after'), null);
  for (const { id } of [before, after]) assert.equal((await user.until(id, 'ready')).attempts, 1);
  assert.equal(await worker.stop(), 0);
});

test('what only claims to be a picture is refused, and what is none is a download that no browser opens', async (t) => {
  const j = await openJourney(t);
  const all = await j.start(['api', 'relay', 'worker', 'janitor']);
  const user = await register(() => all.url);
  const foreign: Record<string, [type: string, bytes: Buffer]> = {
    TIFF: ['image/tiff', await photo(40, 30).tiff().toBuffer()],
    SVG: ['image/svg+xml', Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')],
    BMP: ['image/bmp', Buffer.concat([Buffer.from('BM'), Buffer.alloc(200)])],
    PSD: ['image/vnd.adobe.photoshop', Buffer.concat([Buffer.from('8BPS\0\x01'), Buffer.alloc(200)])],
    PPM: ['image/x-portable-pixmap', Buffer.concat([Buffer.from('P6 2 2 255\n'), Buffer.alloc(12)])],
    PDF: ['application/pdf', Buffer.from('%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF')],
    HTML: ['text/html', Buffer.from('<!doctype html><script>alert(1)</script>')],
  };
  const kept: [id: string, bytes: Buffer][] = [];
  for (const [name, [type, bytes]] of Object.entries(foreign)) {
    const lying = await user.send(bytes, 'image/jpeg');
    assert.deepEqual([lying.status, ((await lying.json()) as { code: string }).code], [415, 'unsupported_image'], name);
    kept.push([(await user.upload(bytes, type)).id, bytes]);
  }
  for (const [id, bytes] of kept) {
    const ready = await user.until(id, 'ready');
    assert.deepEqual(ready.variants, []);
    const { status, headers } = await user.ask(ready.content_url, { method: 'HEAD' });
    assert.equal(status, 200);
    assert.match(headers.get('content-disposition') ?? '', /^attachment;/);
    assert.equal(headers.get('x-content-type-options'), 'nosniff');
    assert.match(headers.get('content-security-policy') ?? '', /^sandbox;/);
    await user.assertWhole(ready, bytes);
  }
  assert.equal(await j.count('attachments'), kept.length);
});

test('a length that lies is no way past the limit, and never passes a part of a file off as the whole', async (t) => {
  const uploadBytesMax = 100_000;
  const { url, ada, remains } = await startUploads(t, { settings: { uploadBytesMax } });
  const over = png('x', uploadBytesMax);
  const whole = `sha-256=:${Buffer.from(sha256(over), 'hex').toString('base64')}:`;
  const part = `--b\r\ncontent-disposition: form-data; name=file; filename=a.png\r\ncontent-length: 10\r\n\r\n`;
  const form = Buffer.concat([Buffer.from(part), over, Buffer.from('\r\n--b--\r\n')]);
  const asForm = { 'content-type': 'multipart/form-data; boundary=b' };
  const lies: [says: string, headers: Record<string, string | number>, body: Buffer][] = [
    // HTTP ends the body where it was declared to end: what follows is no request, and the digest is not that of the part.
    ['HTTP/1.1 400', { 'content-length': 1000, 'repr-digest': whole }, over],
    ['HTTP/1.1 400', { 'content-length': 1000, 'transfer-encoding': 'chunked' }, over],
    ['"code":"file_too_large"', { 'content-length': form.length, ...asForm }, form],
  ];
  for (const [says, headers, body] of lies) {
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, headers));
    // The refusal may come, and the connection close, before all of it is sent.
    await line.write(body).catch(() => undefined);
    await line.until(says);
    assert.ok(!line.received().includes('HTTP/1.1 202'));
  }
  await until('nothing is left', async () => JSON.stringify(await remains()) === JSON.stringify(nothing));
});

test('SIGKILL while variants are written: content and variants answer 409 until another worker has a whole set', async (t) => {
  const j = await openJourney(t);
  const api = await j.start(['api', 'relay', 'janitor']);
  const user = await register(() => api.url);
  const worker = await j.start(['worker'], { 'worker.storing': 'kill' });
  const { id } = await user.upload(photograph);
  assert.equal((await worker.ended).signal, 'SIGKILL');
  const left = (await j.stored()).filter((key) => key.startsWith('attachments/'));
  assert.ok(left.length > 0 && left.length < 4, `some of the four objects lie there: ${left}`);
  assert.deepEqual(await statusesOf(user, pathsOf(id)), unready);
  await j.start(['worker']);
  await user.assertWhole(await user.until(id, 'ready'), photograph);
  assert.deepEqual(await statusesOf(user, pathsOf(id)), there);
  assert.equal(await j.count('variants'), 3);
  await j.assertTidy();
});

test('two workers that write variants of one job at once publish one set, that of the second', async (t) => {
  const j = await openJourney(t);
  const api = await j.start(['api', 'relay', 'janitor']);
  const user = await register(() => api.url);
  const first = await j.start(['worker'], { 'worker.storing': 'wait' });
  const { id } = await user.upload(photograph);
  await first.reached('worker.storing');
  // It cannot renew while it is stopped, so its lease ends under it.
  process.kill(first.pid, 'SIGSTOP');
  const second = await j.start(['worker'], { 'worker.storing': 'wait' });
  await second.reached('worker.storing');
  process.kill(first.pid, 'SIGCONT');
  await letGo(first, 'worker.storing');
  await until('the first knows that it lost', () => first.output().includes('the attempt is broken off'));
  assert.deepEqual(await statusesOf(user, pathsOf(id)), unready);
  await letGo(second, 'worker.storing');
  await user.assertWhole(await user.until(id, 'ready'), photograph);
  const { fence, crashes, failures, state } = await j.job(id);
  assert.deepEqual([fence, crashes, failures, state], [2, 1, 0, 'succeeded']);
  assert.equal(await j.count('variants'), 3);
  await j.assertTidy();
});

test('five deliveries of one message at once: one settle, one set of rows, and nothing to complain of in the log', async (t) => {
  // Five slots in one process, with small children: 5 × RENDER_MEMORY has to fit the machine.
  const small = { RENDER_MEMORY: '256MiB', MAX_PIXELS: '10000000', MAX_PIXELS_AVIF: '1000000' };
  const j = await openJourney(t, { RENDER_CONCURRENCY: '5', ...small, ...longLease });
  const api = await j.start(['api']);
  const user = await register(() => api.url);
  const { id } = await user.upload(photograph);
  const { id: jobId } = await j.job(id);
  const broker = await openPostgresBroker(j.databaseUrl);
  onEnd(t, () => broker.close());
  for (let ring = 1; ring <= 5; ring += 1) {
    const message = { jobId, ring, traceparent: null };
    await broker.publish(ringId(message), encodeRing(message), { timeoutMs: 5_000 });
  }
  const worker = await j.start(['worker'], { 'worker.claimed': 'wait' });
  await worker.reached('worker.claimed');
  const held = async () => JSON.stringify(await broker.depth());
  await until(
    'four deliveries ended beside the one that runs',
    async () => (await held()) === '{"waiting":0,"inFlight":1}',
  );
  await letGo(worker, 'worker.claimed');
  await user.assertWhole(await user.until(id, 'ready'), photograph);
  await until('the last one is acked', async () => (await held()) === '{"waiting":0,"inFlight":0}');
  const { attempts, fence, failures, crashes, releases } = await j.job(id);
  assert.deepEqual([attempts, fence, failures, crashes, releases], [1, 1, 0, 0, 0]);
  const { rows } = await j.pool.query(`select 1 from job_events where to_state = 'succeeded'`);
  assert.deepEqual([rows.length, await j.count('variants')], [1, 3]);
  assert.deepEqual([...complaints(worker), ...complaints(api)], []);
});

for (const moment of ['queued', 'being processed', 'ready'] as const) {
  test(`an attachment that is deleted while it is ${moment} cannot be read from then on, and its storage is empty soon`, async (t) => {
    const j = await openJourney(t);
    const api = await j.start(['api', 'relay', 'janitor']);
    const [ada, bob] = [await register(() => api.url), await register(() => api.url)];
    let worker = moment === 'queued' ? null : await j.start(['worker'], { 'worker.storing': 'wait' });
    const { id } = await ada.upload(photograph);
    const chat = await openChat(ada, bob);
    await chat.send(id);
    await worker?.reached('worker.storing');
    if (moment === 'ready') {
      await letGo(worker, 'worker.storing');
      await ada.until(id, 'ready');
    }
    assert.deepEqual(await statusesOf(bob, pathsOf(id)), moment === 'ready' ? there : unready);
    const known = (await ada.ask(`/v1/attachments/${id}/content`)).headers.get('etag') ?? '"none"';

    assert.equal((await ada.ask(`/v1/attachments/${id}`, { method: 'DELETE' })).status, 204);
    for (const user of [ada, bob]) {
      assert.deepEqual(await statusesOf(user, pathsOf(id)), gone);
      // What a cache has must not be confirmed to it any more.
      assert.deepEqual(await statusesOf(user, pathsOf(id), { 'if-none-match': known }), gone);
    }
    if (moment === 'being processed') {
      await letGo(worker, 'worker.storing');
      const scratch = join(j.dataDir, 'scratch');
      await until('the worker has let go of it', async () => (await filesBelow(scratch)).length === 0);
    }
    worker ??= await j.start(['worker']);
    await j.assertTidy();
    assert.deepEqual(await j.stored(), []);
    assert.deepEqual(
      [await j.count('variants'), (await j.job(id)).state],
      [0, moment === 'ready' ? 'succeeded' : 'cancelled'],
    );
    assert.deepEqual(await statusesOf(ada, pathsOf(id)), gone);
    assert.equal(await worker.stop(), 0);
  });
}

test('a deleted message ends the access that it gave, for content and variants, and no other access', async (t) => {
  const j = await openJourney(t);
  const all = await j.start(['api', 'relay', 'worker', 'janitor']);
  const [ada, bob] = [await register(() => all.url), await register(() => all.url)];
  const { id } = await ada.upload(photograph);
  const chat = await openChat(ada, bob);
  assert.deepEqual(await statusesOf(bob, pathsOf(id)), gone);
  const messages = [await chat.send(id), await chat.send(id)];
  await ada.until(id, 'ready');
  assert.deepEqual(await statusesOf(bob, pathsOf(id)), there);
  const known = (await bob.ask(`/v1/attachments/${id}/content`, { method: 'HEAD' })).headers.get('etag') ?? '';
  const ask = { 'if-none-match': known };
  assert.deepEqual(await statusesOf(bob, [`/v1/attachments/${id}/content`], ask), [304]);

  const remove = async (message: string | undefined) =>
    assert.equal((await ada.ask(`/v1/messages/${message}`, { method: 'DELETE' })).status, 204);
  await remove(messages[0]);
  assert.deepEqual(await statusesOf(bob, pathsOf(id)), there, 'the other message still carries it');
  await remove(messages[1]);
  assert.deepEqual(await statusesOf(bob, pathsOf(id)), gone);
  assert.deepEqual(await statusesOf(bob, pathsOf(id), ask), gone);
  assert.deepEqual(await statusesOf(ada, pathsOf(id)), there);
  await j.assertTidy();
});
