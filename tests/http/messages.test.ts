/**
 * Sending messages over HTTP, a block per status. Broker, object storage and intake throw as soon as anybody touches them
 * (`support/api.ts`): that all of this passes shows that messages need none of them.
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { assertProblem } from '../support/api.ts';
import { noIds, startChat } from '../support/chat.ts';
import { fail } from '../support/store.ts';
import { until } from '../support/until.ts';

describe('POST /v1/chats/{id}/messages', () => {
  describe('201', () => {
    it('answers the message as it is read afterwards', async (t) => {
      const { call, send, ada, bob, chatId } = await startChat(t);
      const text = 'Grüße,\n\tשלום 👩‍👩‍👧 \u202e <b>"\\';
      const sent = await send(ada, { text });
      assert.equal(sent.status, 201);
      assert.equal(sent.headers.get('location'), `/v1/messages/${sent.body.id}`);
      assert.deepEqual(
        { ...sent.body, id: '', created_at: '' },
        { id: '', chat_id: chatId, author: { id: ada.id, handle: 'ada' }, text, attachment_ids: [], created_at: '' },
      );
      assert.deepEqual((await call(`GET /v1/messages/${sent.body.id}`, { token: bob.token })).body, sent.body);
    });

    it('takes 4,000 code points outside the first plane', async (t) => {
      const { send, ada } = await startChat(t);
      const text = '😀'.repeat(4000);
      const sent = await send(ada, { text });
      assert.equal(sent.status, 201);
      assert.equal(sent.body.text, text);
    });

    it('carries attachments while they are queued, and goes without text then', async (t) => {
      const { send, accept, ada } = await startChat(t);
      const ids: string[] = [];
      for (let i = 0; i < 10; i += 1) ids.unshift((await accept({ ownerId: ada.id })).id);
      const sent = await send(ada, { attachment_ids: ids });
      assert.equal(sent.status, 201);
      assert.deepEqual(sent.body.attachment_ids, ids);
      assert.equal(sent.body.text, '');
    });

    it('gives the members of the chat access to what it carries, until it is deleted', async (t) => {
      const { call, send, accept, ada, bob, eve } = await startChat(t);
      const { id } = await accept({ ownerId: ada.id });
      const paths = [`attachments/${id}`, `attachments/${id}/content`, `attachments/${id}/variants/thumbnail`];
      const seen = async ({ token }: { token: string }) =>
        Promise.all(paths.map(async (path) => (await call(`GET /v1/${path}`, { token })).status));
      assert.deepEqual(await seen(bob), [404, 404, 404]);
      const { body } = await send(ada, { attachment_ids: [id] });
      // There, and not ready yet.
      assert.deepEqual(await seen(bob), [200, 409, 409]);
      assert.deepEqual(await seen(eve), [404, 404, 404]);
      assert.equal((await call(`DELETE /v1/messages/${body.id}`, { token: ada.token })).status, 204);
      assert.deepEqual(await seen(bob), [404, 404, 404]);
      assert.deepEqual(await seen(ada), [200, 409, 409]);
    });

    it('gives nothing to members who have left, nor keeps anything from those who come later', async (t) => {
      const { call, send, accept, people, chatId, ada, bob, eve } = await startChat(t);
      const { id } = await accept({ ownerId: ada.id });
      await send(ada, { attachment_ids: [id] });
      await people.removeMember(ada.id, chatId, bob.id);
      await people.addMember(ada.id, chatId, eve.id);
      assertProblem(await call(`GET /v1/attachments/${id}`, { token: bob.token }), 404, 'not_found');
      assert.equal((await call(`GET /v1/attachments/${id}`, { token: eve.token })).status, 200);
    });

    it('answers the same message again for the same key and content', async (t) => {
      const { send, accept, ada, count } = await startChat(t);
      const json = { text: 'once', attachment_ids: [(await accept({ ownerId: ada.id })).id] };
      const first = await send(ada, json, 'key 1');
      const again = await send(ada, json, 'key 1');
      assert.equal(first.status, 201);
      assert.equal(again.status, 201);
      assert.deepEqual(again.body, first.body);
      assert.equal(again.headers.get('location'), first.headers.get('location'));
      assert.equal(await count(), 1);
    });

    it('answers the same message again after it and what it carries were deleted', async (t) => {
      const { call, send, accept, store, ada, count } = await startChat(t);
      const { id } = await accept({ ownerId: ada.id });
      const json = { text: 'once', attachment_ids: [id] };
      const first = await send(ada, json, 'k');
      assert.equal((await call(`DELETE /v1/messages/${first.body.id}`, { token: ada.token })).status, 204);
      assert.equal(await store.deleteAttachment(ada.id, id, { graceMs: 0 }), true);
      assert.deepEqual((await send(ada, json, 'k')).body, first.body);
      assert.equal(await count(), 1);
    });

    it('sends one message of ten at once with one key', async (t) => {
      const { send, ada, count } = await startChat(t);
      const answers = await Promise.all(Array.from({ length: 10 }, () => send(ada, { text: 'once' }, 'k')));
      const sent = answers.filter((answer) => answer.status === 201);
      assert.ok(sent.length >= 1);
      assert.equal(new Set(sent.map((answer) => answer.body.id)).size, 1);
      for (const answer of answers) if (answer.status !== 201) assertProblem(answer, 409, 'idempotency_in_flight');
      assert.equal(await count(), 1);
    });

    it('keeps the keys of two accounts apart', async (t) => {
      const { send, ada, bob, count } = await startChat(t);
      assert.equal((await send(ada, { text: 'from ada' }, 'k')).status, 201);
      assert.equal((await send(bob, { text: 'from bob' }, 'k')).status, 201);
      assert.equal(await count(), 2);
    });

    it('takes a key again after a refusal', async (t) => {
      const { send, accept, ada } = await startChat(t);
      assert.equal((await send(ada, { attachment_ids: [newId()] }, 'k')).status, 400);
      const { id } = await accept({ ownerId: ada.id });
      assert.equal((await send(ada, { attachment_ids: [id] }, 'k')).status, 201);
    });

    it('takes a key over from a process that died with it', async (t) => {
      const { send, store, pool, ada } = await startChat(t);
      const name = { userId: ada.id, scope: 'message' as const, key: 'k' };
      await store.reserve({ ...name, token: randomUUID(), leaseMs: 60_000 });
      await pool.query('update idempotency_keys set lease_until = now()');
      assert.equal((await send(ada, { text: 'x' }, 'k')).status, 201);
    });

    it('forgets a key after its time', async (t) => {
      const { send, pool, ada, count } = await startChat(t);
      await send(ada, { text: 'x' }, 'k');
      await pool.query('update idempotency_keys set expires_at = now()');
      assert.equal((await send(ada, { text: 'something else' }, 'k')).status, 201);
      assert.equal(await count(), 2);
    });
  });

  describe('400', () => {
    it('names the field that is wrong', async (t) => {
      const { send, ada, count } = await startChat(t);
      const id = newId();
      const cases: [unknown, string][] = [
        [{}, '/text'],
        [{ text: '' }, '/text'],
        [{ text: '', attachment_ids: [] }, '/text'],
        [{ text: 7 }, '/text'],
        [{ text: null }, '/text'],
        [{ text: 'x'.repeat(4001) }, '/text'],
        [{ text: 'a\u0000b' }, '/text'],
        [{ text: 'a\ud83db' }, '/text'],
        [{ attachment_ids: id }, '/attachment_ids'],
        [{ attachment_ids: [id, id] }, '/attachment_ids'],
        [{ attachment_ids: Array.from({ length: 11 }, newId) }, '/attachment_ids'],
        [{ text: 'x', attachment_ids: ['x'] }, '/attachment_ids/0'],
        [{ text: 'x', attachment_ids: [id, id.toUpperCase()] }, '/attachment_ids/1'],
        [{ text: 'x', author_id: id }, '/author_id'],
        [[], ''],
      ];
      for (const [json, field] of cases) assertProblem(await send(ada, json), 400, 'validation', field);
      assert.equal(await count(), 0);
    });

    it('names the attachment that is not there for the author', async (t) => {
      const { send, accept, store, ada, bob, count } = await startChat(t);
      const [own, foreign, deleted] = [
        (await accept({ ownerId: ada.id })).id,
        (await accept({ ownerId: bob.id })).id,
        (await accept({ ownerId: ada.id })).id,
      ];
      await store.deleteAttachment(ada.id, deleted, { graceMs: 0 });
      for (const id of [newId(), foreign, deleted]) {
        const answer = await send(ada, { text: 'x', attachment_ids: [own, id] });
        assertProblem(answer, 400, 'validation', '/attachment_ids/1');
      }
      assert.equal(await count(), 0);
    });

    it('names the header of a key that is too long or not printable', async (t) => {
      const { send, ada, count } = await startChat(t);
      for (const key of ['k'.repeat(256), '', 'é']) {
        assertProblem(await send(ada, { text: 'x' }, key), 400, 'validation', 'idempotency-key');
      }
      assert.equal(await count(), 0);
    });

    it('says when the body is no JSON', async (t) => {
      const { send, ada } = await startChat(t);
      assertProblem(await send(ada, '{"text":'), 400, 'malformed_body');
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call, chatId } = await startChat(t);
      assertProblem(await call(`POST /v1/chats/${chatId}/messages`, { json: { text: 'x' } }), 401, 'unauthorized');
    });
  });

  describe('404', () => {
    it('is the answer to outsiders, and where there is no chat', async (t) => {
      const { call, send, ada, eve, count } = await startChat(t);
      assertProblem(await send(eve, { text: 'x' }), 404, 'not_found');
      assertProblem(await send(eve, { text: 'x' }, 'k'), 404, 'not_found');
      for (const id of noIds()) {
        const answer = await call(`POST /v1/chats/${id}/messages`, { token: ada.token, json: { text: 'x' } });
        assertProblem(answer, 404, 'not_found');
      }
      assert.equal(await count(), 0);
    });
  });

  describe('409', () => {
    it('refuses an attachment that has failed, and names it', async (t) => {
      const { send, accept, claimed, store, ada, count } = await startChat(t);
      const { id, jobId } = await accept({ ownerId: ada.id });
      assert.equal(await fail(store, (await claimed(jobId)).attempt, 'corrupt_image'), 'failed');
      assertProblem(await send(ada, { attachment_ids: [id] }), 409, 'attachment_failed', '/attachment_ids/0');
      assert.equal(await count(), 0);
    });

    it('says when to come back while the key is in use', async (t) => {
      const { send, store, ada, count } = await startChat(t);
      await store.reserve({ userId: ada.id, scope: 'message', key: 'k', token: randomUUID(), leaseMs: 30_000 });
      const answer = await send(ada, { text: 'x' }, 'k');
      assertProblem(answer, 409, 'idempotency_in_flight');
      const seconds = Number(answer.headers.get('retry-after'));
      assert.ok(seconds >= 1 && seconds <= 30, `${seconds} s`);
      assert.equal(await count(), 0);
    });
  });

  describe('413', () => {
    it('refuses a body over the limit of small routes', async (t) => {
      const { send, ada } = await startChat(t);
      assertProblem(await send(ada, { text: 'x'.repeat(70_000) }), 413, 'body_too_large');
    });
  });

  describe('415', () => {
    it('takes JSON only', async (t) => {
      const { call, ada, chatId } = await startChat(t);
      const headers = { 'content-type': 'text/plain' };
      const answer = await call(`POST /v1/chats/${chatId}/messages`, { token: ada.token, json: 'x', headers });
      assertProblem(answer, 415, 'unsupported_media_type');
    });
  });

  describe('422', () => {
    it('refuses a key that was used for another text, order, attachment or chat', async (t) => {
      const { call, send, accept, people, ada, count } = await startChat(t);
      const [one, two] = [(await accept({ ownerId: ada.id })).id, (await accept({ ownerId: ada.id })).id];
      assert.equal((await send(ada, { text: 'x', attachment_ids: [one, two] }, 'k')).status, 201);
      for (const json of [
        { text: 'y', attachment_ids: [one, two] },
        { text: 'x', attachment_ids: [two, one] },
        { text: 'x', attachment_ids: [one] },
      ]) {
        assertProblem(await send(ada, json, 'k'), 422, 'idempotency_mismatch');
      }
      const other = await people.createChat({ id: newId(), title: 'Other', ownerId: ada.id });
      const answer = await call(`POST /v1/chats/${other.id}/messages`, {
        token: ada.token,
        json: { text: 'x', attachment_ids: [one, two] },
        headers: { 'idempotency-key': 'k' },
      });
      assertProblem(answer, 422, 'idempotency_mismatch');
      assert.equal(await count(), 1);
    });
  });

  describe('503', () => {
    it('after which the key finds out whether the message went out', async (t) => {
      let isLost = true;
      const { send, ada, count, pool } = await startChat(t, {
        deps: ({ people }) => ({
          people: {
            ...people,
            async send(message) {
              const result = await people.send(message);
              if (isLost) throw new StoreError('unknown', 'the answer to COMMIT never came');
              return result;
            },
          },
        }),
      });
      assertProblem(await send(ada, { text: 'x' }, 'k'), 503, 'unavailable');
      isLost = false;
      const again = await send(ada, { text: 'x' }, 'k');
      assert.equal(again.status, 201);
      assert.equal(await count(), 1);
      const { rows } = await pool.query('select id from messages');
      assert.equal(rows[0]?.id, again.body.id);
    });

    it('leaves the key free when nothing was written', async (t) => {
      const { send, ada, pool } = await startChat(t, {
        deps: ({ people }) => ({
          people: { ...people, send: () => Promise.reject(new StoreError('unavailable', 'down')) },
        }),
      });
      assertProblem(await send(ada, { text: 'x' }, 'k'), 503, 'unavailable');
      await until('a free key', async () => (await pool.query('select from idempotency_keys')).rowCount === 0);
    });
  });
});
