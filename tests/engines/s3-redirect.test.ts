/**
 * `DELIVERY=redirect` with real processes and a real S3 server: who may read is decided here at each request, and the bytes
 * come from the store.
 */
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { register, sha256 } from '../support/client.ts';
import { available, type CephServer, installCommand, keys, startCeph } from '../support/engines/ceph.ts';
import { environmentOf, makeBucket } from '../support/engines/s3-buckets.ts';
import { hardNames } from '../support/names.ts';
import { onEnd } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startRole } from '../support/role.ts';
import { until } from '../support/until.ts';

const photograph = await readFile(join(import.meta.dirname, '../fixtures/orientation/small_6.jpg'));

if (available()) await suite();
else test('downloads are redirected to a real S3 server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startCeph(test);
  locations(server);
  answersOfOurs(server);
  endsOfAccess(server);
}

async function scene(t: TestContext, server: CephServer, more: Record<string, string> = {}) {
  const dataDir = await mkdtemp(join(tmpdir(), 'skrepka-redirect-'));
  onEnd(t, () => rm(dataDir, { recursive: true, force: true }));
  const bucket = await makeBucket(server);
  onEnd(t, bucket.close);
  const { url: databaseUrl } = await freshDatabase(t);
  const settings = {
    ...environmentOf(bucket.settings),
    ...{ DELIVERY: 'redirect', JANITOR_INTERVAL: '100ms', ...more },
  };
  const start = (roles: Parameters<typeof startRole>[1]['roles']) =>
    startRole(t, { roles, databaseUrl, dataDir, settings });
  const api = await start(['api', 'relay', 'janitor']);
  const user = await register(() => api.url);
  return { api, user, bucket, startWorker: () => start(['worker']), another: () => register(() => api.url) };
}

type User = Awaited<ReturnType<typeof register>>;

/** Where the store is asked to serve it. */
async function locationOf(user: User, path: string, headers: Record<string, string> = {}): Promise<string> {
  const answer = await user.ask(path, { redirect: 'manual', headers });
  assert.equal(answer.status, 307, await answer.clone().text());
  assert.equal(answer.headers.get('cache-control'), 'no-store');
  assert.equal((await answer.arrayBuffer()).byteLength, 0);
  return answer.headers.get('location') ?? assert.fail('no location');
}

async function statusOf(location: string): Promise<number> {
  const answer = await fetch(location);
  await answer.arrayBuffer();
  return answer.status;
}

function locations(server: CephServer): void {
  test('redirect: original and variants are served by the store with their type and name, without a token', async (t) => {
    const { api, user, startWorker } = await scene(t, server);
    const worker = await startWorker();
    const { id } = await user.upload(photograph);
    const shown = await user.until(id, 'ready');
    const pieces = [
      { ...shown, url: shown.content_url, content_type: 'image/jpeg', name: 'photo.jpg' },
      ...shown.variants.map((variant) => ({
        ...variant,
        name: `photo-${variant.name}.${variant.content_type === 'image/webp' ? 'webp' : 'jpg'}`,
      })),
    ];
    assert.equal(pieces.length, 4);
    for (const { url, content_type, name, sha256: digest } of pieces) {
      const location = await locationOf(user, url);
      assert.ok(location.startsWith(server.url), 'the store, not us');
      assert.equal(new URL(location).searchParams.get('X-Amz-Expires'), '60');
      const answer = await fetch(location);
      assert.equal(answer.status, 200);
      assert.equal(sha256(Buffer.from(await answer.arrayBuffer())), digest, name);
      assert.equal(answer.headers.get('content-type'), content_type);
      assert.equal(answer.headers.get('content-disposition'), `inline; filename=${name}`);
      assert.equal(answer.headers.get('cache-control'), 'private, no-store');
    }
    // Who follows, follows with the range, and without the token: the store would refuse two kinds of credentials.
    await user.assertWhole(shown, photograph);
    const part = await user.ask(shown.content_url, { headers: { range: 'bytes=100-199' } });
    assert.equal(part.status, 206);
    assert.equal(part.headers.get('content-range'), `bytes 100-199/${photograph.length}`);
    assert.deepEqual(Buffer.from(await part.arrayBuffer()), photograph.subarray(100, 200));
    const words = api.output() + worker.output();
    assert.doesNotMatch(words, /X-Amz-Signature/, 'a presigned URL is a credential');
    assert.ok(!words.includes(keys.s3SecretAccessKey));
  });

  test('redirect: every name comes from the store exactly as we would say it, and a page as a download', async (t) => {
    const { user, startWorker } = await scene(t, server);
    await startWorker();
    const html = Buffer.from('<!doctype html><script>alert(1)</script>');
    for (const name of [...hardNames, 'a+b&c=d?e#f.html']) {
      const sent = await user.ask(`/v1/attachments?filename=${encodeURIComponent(name)}`, {
        method: 'POST',
        headers: { 'content-type': 'text/html' },
        body: new Uint8Array(html),
      });
      assert.equal(sent.status, 202);
      const { id, content_url } = await user.until(((await sent.json()) as { id: string }).id, 'ready');
      const ours = await user.ask(`/v1/attachments/${id}/content`, { method: 'HEAD' });
      const theirs = await fetch(await locationOf(user, content_url));
      assert.deepEqual(Buffer.from(await theirs.arrayBuffer()), html);
      for (const header of ['content-disposition', 'content-type', 'content-length']) {
        assert.equal(theirs.headers.get(header), ours.headers.get(header), `${header} of ${name}`);
      }
      assert.match(theirs.headers.get('content-disposition') ?? '', /^attachment; /);
    }
  });
}

function answersOfOurs(server: CephServer): void {
  test('redirect: what needs no bytes is answered by us: HEAD, 304, 416, 409, 404 and 401', async (t) => {
    const { user, another, startWorker } = await scene(t, server);
    const { id } = await user.upload(photograph);
    const path = `/v1/attachments/${id}/content`;
    const ask = async (headers: Record<string, string> = {}, method = 'GET', who: User = user) => {
      const answer = await who.ask(path, { redirect: 'manual', method, headers });
      return { status: answer.status, headers: answer.headers, text: await answer.text() };
    };
    const early = await ask();
    assert.deepEqual([early.status, early.text.includes('attachment_not_ready')], [409, true]);
    await startWorker();
    await user.until(id, 'ready');
    const etag = `"${sha256(photograph)}"`;
    const head = await ask({}, 'HEAD');
    assert.deepEqual([head.status, head.headers.get('etag')], [200, etag]);
    assert.equal(head.headers.get('content-length'), String(photograph.length));
    const unchanged = await ask({ 'if-none-match': etag });
    assert.deepEqual([unchanged.status, unchanged.headers.get('etag')], [304, etag]);
    const outside = await ask({ range: `bytes=${photograph.length}-` });
    assert.deepEqual([outside.status, outside.headers.get('location')], [416, null]);
    assert.equal((await ask({}, 'GET', await another())).status, 404);
    assert.equal((await ask({ authorization: 'Bearer nobody' })).status, 401);

    const { id: broken } = await user.upload(photograph.subarray(0, 400));
    await user.until(broken, 'failed');
    const failed = await user.ask(`/v1/attachments/${broken}/content`, { redirect: 'manual' });
    assert.deepEqual([failed.status, ((await failed.json()) as { code: string }).code], [409, 'attachment_failed']);
  });
}

function endsOfAccess(server: CephServer): void {
  test('redirect: a deleted message ends access for URLs to come at once, and one given before with its own life', async (t) => {
    const { user, another, startWorker } = await scene(t, server, { PRESIGN_SECONDS: '3' });
    await startWorker();
    const bob = await another();
    const { id: bobId } = (await (await bob.ask('/v1/users/me')).json()) as { id: string };
    const { id } = await user.upload(photograph);
    const shown = await user.until(id, 'ready');
    const made = await user.json('/v1/chats', 'POST', { title: 'cats' });
    const chat = ((await made.json()) as { id: string }).id;
    assert.equal((await user.ask(`/v1/chats/${chat}/members/${bobId}`, { method: 'PUT' })).status, 204);
    const posted = await user.json(`/v1/chats/${chat}/messages`, 'POST', { text: 'look', attachment_ids: [id] });
    const message = ((await posted.json()) as { id: string }).id;

    const [thumbnail] = shown.variants;
    assert.ok(thumbnail);
    await locationOf(bob, thumbnail.url);
    const location = await locationOf(bob, shown.content_url);
    assert.equal((await user.ask(`/v1/messages/${message}`, { method: 'DELETE' })).status, 204);
    for (const path of [shown.content_url, thumbnail.url]) {
      assert.equal((await bob.ask(path, { redirect: 'manual' })).status, 404);
    }
    await until('the URL given before has expired', async () => (await statusOf(location)) === 403, { everyMs: 200 });
  });

  test('redirect: a deleted attachment has no URL to come, and one given before finds no object once it is quiet', async (t) => {
    const short = { CLEANUP_GRACE: '6s', LEASE: '6s', RENEW: '1s', LEASE_RESERVE: '1s', RENDER_TIMEOUT: '5s' };
    const { user, bucket, startWorker } = await scene(t, server, short);
    await startWorker();
    const { id } = await user.upload(photograph);
    const shown = await user.until(id, 'ready');
    const location = await locationOf(user, shown.content_url);
    assert.equal(await statusOf(location), 200);
    assert.equal((await user.ask(`/v1/attachments/${id}`, { method: 'DELETE' })).status, 204);
    assert.equal((await user.ask(shown.content_url, { redirect: 'manual' })).status, 404);
    await until('the bucket is empty', async () => (await bucket.blobs.list('')).objects.length === 0);
    assert.equal(await statusOf(location), 404);
  });
}
