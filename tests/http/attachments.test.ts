/** Reading, waiting for, listing, editing and deleting attachments: a block per route, inside it one per status. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { assertProblem } from '../support/api.ts';
import { until } from '../support/until.ts';
import { dial, form, png, startUploads } from '../support/uploads.ts';

/** Makes a chat of two with a message that carries the attachment; answers the message's id. */
async function share({ call, ada }: Awaited<ReturnType<typeof startUploads>>, memberId: string, attachmentId: string) {
  const { token } = ada;
  const chat = (await call('POST /v1/chats', { token, json: { title: 'cats' } })).body.id;
  await call(`PUT /v1/chats/${chat}/members/${memberId}`, { token });
  const json = { text: 'look', attachment_ids: [attachmentId] };
  const message = await call(`POST /v1/chats/${chat}/messages`, { token, json });
  assert.equal(message.status, 201, JSON.stringify(message.body));
  return { chat, message: message.body.id };
}

describe('GET /v1/attachments/{id}', () => {
  describe('200', () => {
    it('tells everything of a ready picture, its variants with their addresses among it', async (t) => {
      const { send, publish, call, ada } = await startUploads(t);
      const { id } = (await send(png(), {}, '?filename=a.png')).body;
      await publish(id);
      const { body } = await call(`GET /v1/attachments/${id}`, { token: ada.token });
      const { state, pipeline_version, attempts, width, height, frames, placeholder, error_code, content_url } = body;
      assert.deepEqual(
        { state, pipeline_version, attempts, width, height, frames, placeholder, error_code, content_url },
        {
          ...{ state: 'ready', pipeline_version: 1, attempts: 1, width: 1, height: 1, frames: 1 },
          ...{ placeholder: 'AAAA', error_code: null, content_url: `/v1/attachments/${id}/content` },
        },
      );
      assert.ok(typeof body.ready_at === 'string' && !Number.isNaN(Date.parse(body.ready_at)));
      const variants = body.variants as readonly Record<string, unknown>[];
      assert.deepEqual(
        variants.map(({ name, content_type, url }) => [name, content_type, url]),
        [
          ['thumbnail', 'image/jpeg', `/v1/attachments/${id}/variants/thumbnail`],
          ['crop', 'image/jpeg', `/v1/attachments/${id}/variants/crop`],
          ['optimized', 'image/webp', `/v1/attachments/${id}/variants/optimized`],
        ],
      );
    });

    it('tells of a failed one its code and a sentence without anything from inside', async (t) => {
      const { send, fail, call, ada } = await startUploads(t);
      const { id } = (await send(png())).body;
      await fail(id);
      const { body } = await call(`GET /v1/attachments/${id}`, { token: ada.token });
      assert.deepEqual([body.state, body.error_code], ['failed', 'corrupt_image']);
      assert.match(String(body.error_message), /damaged/);
      assert.ok(!JSON.stringify(body).includes('secret'));
    });

    it('lets a member of a chat read what a message there carries, until the message is deleted', async (t) => {
      const uploads = await startUploads(t);
      const { send, publish, call, account, ada } = uploads;
      const bob = await account('bob');
      const { id } = (await send(png())).body;
      await publish(id);
      const paths = ['', '/content', '/variants/thumbnail'].map((end) => `/v1/attachments/${id}${end}`);
      const statuses = () =>
        Promise.all(
          paths.map(async (path) => {
            const response = await fetch(uploads.url + path, { headers: { authorization: `Bearer ${bob.token}` } });
            await response.arrayBuffer();
            return response.status;
          }),
        );
      assert.deepEqual(await statuses(), [404, 404, 404]);
      const { message } = await share(uploads, bob.id, id);
      assert.deepEqual(await statuses(), [200, 200, 200]);
      assert.equal((await call(`DELETE /v1/messages/${message}`, { token: ada.token })).status, 204);
      assert.deepEqual(await statuses(), [404, 404, 404]);
    });
  });

  describe('with wait', () => {
    it('answers at once when the state is over, and when the time is', async (t) => {
      const { send, publish, call, ada, faults } = await startUploads(t);
      const { id } = (await send(png())).body;
      const started = performance.now();
      const waited = await call(`GET /v1/attachments/${id}?wait=1`, { token: ada.token });
      assert.equal(waited.body.state, 'queued');
      assert.ok(performance.now() - started >= 1000);
      await publish(id);
      const looks = faults.calls('attachmentFor');
      assert.equal((await call(`GET /v1/attachments/${id}?wait=30`, { token: ada.token })).body.state, 'ready');
      assert.equal(faults.calls('attachmentFor'), looks + 1, 'it did not wait');
    });

    it('wakes fifty waiters when the state changes, with few questions to the database', async (t) => {
      const { send, publish, call, ada, faults } = await startUploads(t);
      const { id } = (await send(png())).body;
      const waiters = Array.from({ length: 50 }, () => call(`GET /v1/attachments/${id}?wait=30`, { token: ada.token }));
      await until('all have looked', () => faults.calls('attachmentFor') >= 50);
      const started = performance.now();
      await publish(id);
      for (const { body } of await Promise.all(waiters)) assert.equal(body.state, 'ready');
      const seconds = (performance.now() - started) / 1000;
      // One look at the beginning, one when woken, and the backstop's each second.
      assert.ok(faults.calls('attachmentFor') <= 50 * (3 + seconds), `${faults.calls('attachmentFor')} questions`);
    });

    it('sees a change within a second or two although no signal came', async (t) => {
      const { send, call, ada, faults, pool } = await startUploads(t);
      const { id } = (await send(png())).body;
      const waiter = call(`GET /v1/attachments/${id}?wait=30`, { token: ada.token });
      await until('it has looked', () => faults.calls('attachmentFor') >= 1);
      await pool.query(`update attachments set state = 'failed', error_code = 'corrupt_image' where id = $1`, [id]);
      assert.equal((await waiter).body.state, 'failed');
    });

    it('answers 404 as soon as the attachment is deleted', async (t) => {
      const { send, call, ada, faults } = await startUploads(t);
      const { id } = (await send(png())).body;
      const waiter = call(`GET /v1/attachments/${id}?wait=30`, { token: ada.token });
      await until('it has looked', () => faults.calls('attachmentFor') >= 1);
      assert.equal((await call(`DELETE /v1/attachments/${id}`, { token: ada.token })).status, 204);
      assertProblem(await waiter, 404, 'not_found');
    });

    it('stops asking when its client is gone', async (t) => {
      const { send, url, ada, faults, lines } = await startUploads(t);
      const { id } = (await send(png())).body;
      const line = await dial(t, url);
      await line.write(
        `GET /v1/attachments/${id}?wait=30 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ada.token}\r\n\r\n`,
      );
      await until('it has looked', () => faults.calls('attachmentFor') >= 1);
      line.socket.destroy();
      await until('the server knows', () => lines.some((each) => each.includes('"aborted":true')));
      const calls = faults.calls('attachmentFor');
      const end = performance.now() + 2500;
      await until('time for two more looks', () => performance.now() > end);
      assert.ok(faults.calls('attachmentFor') <= calls + 1);
    });

    it('is answered at once with the state and when to ask again, where there is no room to wait, which comes back', async (t) => {
      const { send, publish, call, ada, account, faults, ...uploads } = await startUploads(t, {
        settings: { waitsPerUserMax: 2, waitsMax: 3 },
      });
      const bob = await account('bob');
      const { id } = (await send(png())).body;
      await share({ ...uploads, call, ada, account, send, publish, faults }, bob.id, id);
      const path = `GET /v1/attachments/${id}?wait=30`;
      const looked = faults.calls('attachmentFor');
      const waiters = [ada, ada, bob].map(({ token }) => call(path, { token }));
      await until('all wait', () => faults.calls('attachmentFor') >= looked + 3);
      for (const { token } of [ada, bob]) {
        const answer = await call(path, { token });
        assert.deepEqual([answer.status, answer.body.state], [200, 'queued']);
        assert.equal(answer.headers.get('retry-after'), '1');
      }
      // Whoever does not ask to wait is told nothing about waiting.
      assert.equal((await call(`GET /v1/attachments/${id}`, { token: ada.token })).headers.get('retry-after'), null);
      await publish(id);
      for (const { body, headers } of await Promise.all(waiters)) {
        assert.deepEqual([body.state, headers.get('retry-after')], ['ready', null]);
      }
      const { id: next } = (await send(png('next'))).body;
      const again = await call(`GET /v1/attachments/${next}?wait=1`, { token: ada.token });
      assert.deepEqual([again.body.state, again.headers.get('retry-after')], ['queued', null]);
    });

    it('is answered when the server closes, which does not wait for it', async (t) => {
      const { send, call, ada, faults, close } = await startUploads(t);
      const { id } = (await send(png())).body;
      const waiter = call(`GET /v1/attachments/${id}?wait=30`, { token: ada.token });
      await until('it has looked', () => faults.calls('attachmentFor') >= 1);
      const started = performance.now();
      await close();
      assert.equal((await waiter).body.state, 'queued');
      assert.ok(performance.now() - started < 10_000);
    });
  });

  describe('404', () => {
    it('answers ids that nobody has and attachments of others alike', async (t) => {
      const { send, call, account, ada } = await startUploads(t);
      const bob = await account('bob');
      const { id } = (await send(png())).body;
      const foreign = await call(`GET /v1/attachments/${id}`, { token: bob.token });
      const unknown = await call(`GET /v1/attachments/${newId()}`, { token: ada.token });
      assertProblem(foreign, 404, 'not_found');
      assertProblem(unknown, 404, 'not_found');
      assert.equal(foreign.body.detail, unknown.body.detail);
    });
  });
});

describe('a message with an attachment that is still queued', () => {
  it('is sent at once; the content is 409 with Retry-After until it is ready, then it is there', async (t) => {
    const uploads = await startUploads(t);
    const { send, publish, call, account } = uploads;
    const bob = await account('bob');
    const { id } = (await send(png())).body;
    await share(uploads, bob.id, id);
    const early = await call(`GET /v1/attachments/${id}/content`, { token: bob.token });
    assertProblem(early, 409, 'attachment_not_ready');
    assert.match(early.headers.get('retry-after') ?? '', /^[1-9]/);
    await publish(id);
    const response = await fetch(`${uploads.url}/v1/attachments/${id}/content`, {
      headers: { authorization: `Bearer ${bob.token}` },
    });
    assert.equal(response.status, 200);
    assert.deepEqual(Buffer.from(await response.arrayBuffer()), png());
  });
});

describe('GET /v1/attachments', () => {
  describe('200', () => {
    it('lists the own ones newest first, page by page, each once', async (t) => {
      const { send, call, ada, account } = await startUploads(t);
      const bob = await account('bob');
      const made: string[] = [];
      for (let at = 0; at < 5; at += 1) made.push((await send(png(`${at}`))).body.id);
      const seen: string[] = [];
      let cursor: string | null = '';
      while (cursor !== null) {
        const path: string = `GET /v1/attachments?limit=2${cursor && `&cursor=${encodeURIComponent(cursor)}`}`;
        const { body } = await call(path, { token: ada.token });
        assert.ok(body.items.length <= 2);
        seen.push(...body.items.map((item) => item.id));
        cursor = body.next_cursor;
      }
      assert.deepEqual(seen, made.toReversed());
      assert.deepEqual((await call('GET /v1/attachments', { token: bob.token })).body.items, []);
    });

    it('lists those of one state', async (t) => {
      const { send, publish, fail, call, ada } = await startUploads(t);
      const [queued, ready, failed] = [
        (await send(png('a'))).body.id,
        (await send(png('b'))).body.id,
        (await send(png('c'))).body.id,
      ];
      await publish(ready);
      await fail(failed);
      for (const [state, ids] of Object.entries({
        queued: [queued],
        processing: [],
        ready: [ready],
        failed: [failed],
      })) {
        const { body } = await call(`GET /v1/attachments?state=${state}`, { token: ada.token });
        assert.deepEqual(
          body.items.map(({ id }) => id),
          ids,
        );
      }
    });
  });
});

describe('PATCH /v1/attachments/{id}', () => {
  describe('200', () => {
    it('sets alt, exactly, and takes it away with null or nothing in it', async (t) => {
      const { send, call, ada } = await startUploads(t);
      const { id } = (await send(form({ file: [png(), 'a.png', 'image/png'], alt: 'old' }))).body;
      for (const [given, kept] of [
        ['כלב 😀 "quoted"', 'כלב 😀 "quoted"'],
        ['', null],
        ['😀'.repeat(1000), '😀'.repeat(1000)],
        [null, null],
      ]) {
        const answer = await call(`PATCH /v1/attachments/${id}`, { token: ada.token, json: { alt: given } });
        assert.deepEqual([answer.status, answer.body.alt], [200, kept]);
        assert.equal((await call(`GET /v1/attachments/${id}`, { token: ada.token })).body.alt, kept);
      }
    });
  });

  describe('400', () => {
    it('says in plain words which field is not known, missing or of the wrong form', async (t) => {
      const { send, call, ada } = await startUploads(t);
      const { id } = (await send(png())).body;
      for (const [json, detail] of [
        [{ alt: 'a', title: 'b' }, '"/title" is not known.'],
        [{}, '"/alt" is missing.'],
        [{ alt: 7 }, '"/alt" must be either string or null.'],
      ] as const) {
        const answer = await call(`PATCH /v1/attachments/${id}`, { token: ada.token, json });
        assertProblem(answer, 400, 'validation');
        assert.equal(answer.body.detail, detail);
      }
      const listed = await call('GET /v1/attachments?state=gone', { token: ada.token });
      assert.equal(listed.body.detail, '"state" must be one of queued, processing, ready, failed.');
    });
  });

  describe('403', () => {
    it('answers those who may read but did not upload, 404 those who may not', async (t) => {
      const uploads = await startUploads(t);
      const { send, call, account } = uploads;
      const bob = await account('bob');
      const { id } = (await send(png())).body;
      const edit = () => call(`PATCH /v1/attachments/${id}`, { token: bob.token, json: { alt: 'mine' } });
      const remove = () => call(`DELETE /v1/attachments/${id}`, { token: bob.token });
      assertProblem(await edit(), 404, 'not_found');
      assertProblem(await remove(), 404, 'not_found');
      await share(uploads, bob.id, id);
      assertProblem(await edit(), 403, 'forbidden');
      assertProblem(await remove(), 403, 'forbidden');
    });
  });
});

describe('DELETE /v1/attachments/{id}', () => {
  describe('204', () => {
    it('ends access at once in every state, and is 404 the second time', async (t) => {
      const { send, publish, fail, claim, call, ada } = await startUploads(t);
      const settle = [async () => {}, claim, publish, fail];
      for (const [at, step] of settle.entries()) {
        const { id } = (await send(png(`${at}`))).body;
        await step(id);
        const gone = await call(`DELETE /v1/attachments/${id}`, { token: ada.token });
        assert.deepEqual([gone.status, gone.isEmpty], [204, true]);
        for (const line of ['GET', 'DELETE']) {
          assertProblem(await call(`${line} /v1/attachments/${id}`, { token: ada.token }), 404, 'not_found');
        }
        assertProblem(await call(`GET /v1/attachments/${id}/content`, { token: ada.token }), 404, 'not_found');
        const edit = await call(`PATCH /v1/attachments/${id}`, { token: ada.token, json: { alt: 'x' } });
        assertProblem(edit, 404, 'not_found');
      }
      assert.deepEqual((await call('GET /v1/attachments', { token: ada.token })).body.items, []);
    });
  });
});
