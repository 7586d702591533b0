/** `POST /v1/attachments` when there is too much: a block per status. What is decided, and how, is in `pipeline/admission.test.ts`. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { assertProblem } from '../support/api.ts';
import { until } from '../support/until.ts';
import { dial, form, nothing, png, startUploads, uploadHead } from '../support/uploads.ts';

const expect = { expect: '100-continue' };
const retryAfter = /\r\nretry-after: [1-9]\d*\r\n/i;

describe('202', () => {
  it('is answered again for a key that was, when there is no room for anything new', async (t) => {
    const { send, remains } = await startUploads(t, { settings: { pendingPerUserMax: 1, backlogMax: 1 } });
    const first = await send(png(), { 'idempotency-key': 'k' });
    assertProblem(await send(png()), 429, 'too_many_uploads');
    const again = await send(png(), { 'idempotency-key': 'k' });
    assert.deepEqual([again.status, again.body], [202, first.body]);
    assert.deepEqual(await remains(), { attachments: 1, jobs: 1, keys: 1, files: 1 });
  });

  it('is answered as soon as something was published', async (t) => {
    const { send, publish } = await startUploads(t, { settings: { pendingPerUserMax: 1 } });
    const { id } = (await send(png())).body;
    assertProblem(await send(png()), 429, 'too_many_uploads');
    await publish(id);
    assert.equal((await send(png())).status, 202);
  });
});

describe('429', () => {
  it('answers what a user has too much of, how much is allowed, and when to come back; others go on', async (t) => {
    const pending = await startUploads(t, { settings: { pendingPerUserMax: 2 } });
    for (let at = 0; at < 2; at += 1) assert.equal((await pending.send(png())).status, 202);
    const answer = await pending.send(png());
    assertProblem(answer, 429, 'too_many_uploads');
    assert.deepEqual([answer.body.reason, answer.body.limit], ['pending', 2]);
    assert.match(String(answer.body.detail), /^This account has 2 unfinished uploads/);
    assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
    const bob = await pending.account('bob');
    assert.equal((await pending.send(png(), { authorization: `Bearer ${bob.token}` })).status, 202);

    const rate = await startUploads(t, { settings: { uploadsPerMinuteMax: 1 } });
    await rate.publish((await rate.send(png())).body.id);
    assert.equal((await rate.send(png())).body.reason, 'rate');
  });

  it('answers more uploads at once than a user may send, and forgets them when they end', async (t) => {
    const { send, url, ada, points, remains } = await startUploads(t, { settings: { uploadsPerUserMax: 1 } });
    const held = points.hold('accept.stored');
    const first = send(png());
    await held.reached;
    const second = await send(png());
    assertProblem(second, 429, 'too_many_uploads');
    assert.equal(second.body.reason, 'parallel');
    held.pass();
    assert.equal((await first).status, 202);
    // One that breaks off in the middle gives its place back as well.
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { 'content-length': 1000, ...expect }));
    await line.until('100 Continue');
    assert.equal((await send(png())).status, 429);
    line.socket.destroy();
    await until('the place is free again', async () => (await send(png())).status === 202);
    assert.equal((await remains()).attachments, 2);
  });

  it('answers repeats of a key as well, whose bodies are on their way at once like others, until they end', async (t) => {
    const { send, url, ada, account, remains } = await startUploads(t, {
      settings: { uploadsPerUserMax: 2, uploadsMax: 3 },
    });
    const again = { 'idempotency-key': 'k' };
    const first = await send(png(), again);
    const repeat = async () => {
      const line = await dial(t, url);
      await line.write(uploadHead(ada.token, { 'content-length': 1000, ...again, ...expect }));
      await line.until('100 Continue');
      return line;
    };
    const lines = [await repeat(), await repeat()];
    const refused = await send(png(), again);
    assertProblem(refused, 429, 'too_many_uploads');
    assert.equal(refused.body.reason, 'parallel');
    assertProblem(await send(png()), 429, 'too_many_uploads');
    const bob = await account('bob');
    assert.equal((await send(png(), { authorization: `Bearer ${bob.token}` })).status, 202);
    for (const { socket } of lines) socket.destroy();
    await until('the places are free again', async () => {
      const { status, body } = await send(png(), again);
      return status === 202 && body.id === first.body.id;
    });
    // One that was answered has left its place too: as many as one likes, one after the other.
    for (let at = 0; at < 4; at += 1) assert.equal((await send(png(), again)).status, 202);
    assert.equal((await remains()).attachments, 2);
  });

  it('comes instead of the invitation, and asks for no byte of the body, raw or a form', async (t) => {
    const { send, url, ada, remains } = await startUploads(t, { settings: { pendingPerUserMax: 1 } });
    await send(png());
    const heads: readonly Record<string, string>[] = [
      {},
      { 'content-type': 'multipart/form-data; boundary=b' },
      { 'idempotency-key': 'k' },
    ];
    for (const headers of heads) {
      const line = await dial(t, url);
      await line.write(uploadHead(ada.token, { 'content-length': 1000, ...headers, ...expect }));
      await line.until('"code":"too_many_uploads"');
      await line.untilClosed();
      assert.match(line.received(), /^HTTP\/1\.1 429 /);
      assert.match(line.received(), retryAfter);
    }
    assert.deepEqual(await remains(), { ...nothing, attachments: 1, jobs: 1, files: 1 });
  });
});

describe('503', () => {
  it('answers a full backlog with Retry-After, before the body, while reads go on', async (t) => {
    const { send, url, ada, call, remains } = await startUploads(t, { settings: { backlogMax: 1 } });
    const { id } = (await send(png())).body;
    const answer = await send(png());
    assertProblem(answer, 503, 'overloaded');
    assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
    assertProblem(await send(form({ file: [png(), 'a.png', 'image/png'] })), 503, 'overloaded');
    const invited = await dial(t, url);
    await invited.write(uploadHead(ada.token, { 'content-length': 1000, ...expect }));
    await invited.until('"code":"overloaded"');
    assert.ok(!invited.received().includes('100 Continue'));
    assert.match(invited.received(), retryAfter);
    assert.equal((await call(`GET /v1/attachments/${id}`, { token: ada.token })).status, 200);
    await until('it is ready', async () => (await call('GET /health/ready')).status === 200);
    assert.deepEqual(await remains(), { ...nothing, attachments: 1, jobs: 1, files: 1 });
  });

  it('closes the connection early when a client sends the body without asking', async (t) => {
    const { send, url, ada } = await startUploads(t, { settings: { backlogMax: 1 } });
    await send(png());
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { 'content-length': 500_000 }));
    await line.write(Buffer.alloc(100_000));
    await line.until('"code":"overloaded"');
    await line.untilClosed();
    assert.match(line.received(), /\r\nconnection: close\r\n/i);
  });

  it('answers full staging by declared size, and a smaller file that fits is taken', async (t) => {
    const { send } = await startUploads(t, { settings: { stagingBytesMax: 1500, uploadBytesMax: 1400 } });
    assert.equal((await send(png('a', 900))).status, 202);
    assertProblem(await send(png('b', 900)), 503, 'overloaded');
    // Its length says what the file of a form has at most.
    assertProblem(await send(form({ file: [png('c', 900), 'a.png', 'image/png'] })), 503, 'overloaded');
    assertProblem(await send(new Blob([png('d')]).stream()), 503, 'overloaded');
    assert.equal((await send(png('e', 100))).status, 202);
    assert.equal((await send(form({ file: [png('f'), 'a.png', 'image/png'] }))).status, 202);
  });

  it('answers more uploads than this process receives at once', async (t) => {
    const { send, points, account } = await startUploads(t, { settings: { uploadsMax: 1 } });
    const bob = await account('bob');
    const held = points.hold('accept.stored');
    const first = send(png());
    await held.reached;
    assertProblem(await send(png(), { authorization: `Bearer ${bob.token}` }), 503, 'overloaded');
    held.pass();
    assert.equal((await first).status, 202);
  });
});
