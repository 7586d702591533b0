/** Reading and deleting messages over HTTP: a block per route, inside it one per status. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { assertProblem } from '../support/api.ts';
import { badPages, noIds, startChat } from '../support/chat.ts';

describe('GET /v1/chats/{id}/messages', () => {
  describe('200', () => {
    it('lists what members wrote, newest first, in pages', async (t) => {
      const { call, send, ada, bob, chatId } = await startChat(t);
      const sent: string[] = [];
      for (const [at, who] of [ada, bob, ada].entries()) sent.unshift((await send(who, { text: `${at}` })).body.id);
      const first = await call(`GET /v1/chats/${chatId}/messages?limit=2`, { token: bob.token });
      assert.equal(first.status, 200);
      const next = `GET /v1/chats/${chatId}/messages?limit=2&cursor=${first.body.next_cursor}`;
      const second = await call(next, { token: bob.token });
      assert.deepEqual(
        [...first.body.items, ...second.body.items].map((message) => message.id),
        sent,
      );
      assert.equal(second.body.next_cursor, null);
    });

    it('answers 50 a page unless told otherwise, and 200 at most', async (t) => {
      const { call, pool, ada, chatId } = await startChat(t);
      await pool.query(
        `insert into messages (id, chat_id, author_id, text)
         select gen_random_uuid(), $1, $2, n::text
         from generate_series(1, 201) n`,
        [chatId, ada.id],
      );
      for (const [query, length] of [
        ['', 50],
        ['?limit=200', 200],
        ['?limit=1', 1],
      ] as const) {
        const { body } = await call(`GET /v1/chats/${chatId}/messages${query}`, { token: ada.token });
        assert.equal(body.items.length, length);
        assert.notEqual(body.next_cursor, null);
      }
    });
  });

  describe('400', () => {
    it('names the parameter that is wrong', async (t) => {
      const { call, ada, chatId } = await startChat(t);
      for (const [query, field] of badPages) {
        const answer = await call(`GET /v1/chats/${chatId}/messages?${query}`, { token: ada.token });
        assertProblem(answer, 400, 'validation', field);
      }
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call, chatId } = await startChat(t);
      assertProblem(await call(`GET /v1/chats/${chatId}/messages`), 401, 'unauthorized');
    });
  });

  describe('404', () => {
    it('is the answer to outsiders, and where there is no chat', async (t) => {
      const { call, ada, eve, chatId } = await startChat(t);
      assertProblem(await call(`GET /v1/chats/${chatId}/messages`, { token: eve.token }), 404, 'not_found');
      for (const id of noIds()) {
        assertProblem(await call(`GET /v1/chats/${id}/messages`, { token: ada.token }), 404, 'not_found');
      }
    });
  });
});

describe('GET /v1/messages/{id}', () => {
  describe('200', () => {
    it('answers members, without attachments that were deleted', async (t) => {
      const { call, send, accept, store, ada, bob } = await startChat(t);
      const [one, two] = [(await accept({ ownerId: ada.id })).id, (await accept({ ownerId: ada.id })).id];
      const { body } = await send(ada, { attachment_ids: [two, one] });
      await store.deleteAttachment(ada.id, two, { graceMs: 0 });
      const answer = await call(`GET /v1/messages/${body.id}`, { token: bob.token });
      assert.equal(answer.status, 200);
      assert.deepEqual(answer.body.attachment_ids, [one]);
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call } = await startChat(t);
      assertProblem(await call(`GET /v1/messages/${newId()}`), 401, 'unauthorized');
    });
  });

  describe('404', () => {
    it('is the answer to outsiders, and where there is no message', async (t) => {
      const { call, send, ada, eve } = await startChat(t);
      const { body } = await send(ada, { text: 'x' });
      assertProblem(await call(`GET /v1/messages/${body.id}`, { token: eve.token }), 404, 'not_found');
      for (const id of noIds())
        assertProblem(await call(`GET /v1/messages/${id}`, { token: ada.token }), 404, 'not_found');
    });
  });
});

describe('DELETE /v1/messages/{id}', () => {
  describe('204', () => {
    it('takes the author’s message away from everybody', async (t) => {
      const { call, send, ada, bob, chatId } = await startChat(t);
      const { body } = await send(bob, { text: 'x' });
      const deleted = await call(`DELETE /v1/messages/${body.id}`, { token: bob.token });
      assert.equal(deleted.status, 204);
      assert.ok(deleted.isEmpty);
      for (const { token } of [ada, bob]) {
        assertProblem(await call(`GET /v1/messages/${body.id}`, { token }), 404, 'not_found');
        assert.deepEqual((await call(`GET /v1/chats/${chatId}/messages`, { token })).body.items, []);
      }
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call } = await startChat(t);
      assertProblem(await call(`DELETE /v1/messages/${newId()}`), 401, 'unauthorized');
    });
  });

  describe('403', () => {
    it('is for the author only, whoever owns the chat', async (t) => {
      const { call, send, ada, bob } = await startChat(t);
      const { body } = await send(bob, { text: 'x' });
      assertProblem(await call(`DELETE /v1/messages/${body.id}`, { token: ada.token }), 403, 'forbidden');
      assert.equal((await call(`GET /v1/messages/${body.id}`, { token: bob.token })).status, 200);
    });
  });

  describe('404', () => {
    it('is the answer to outsiders, for what is gone, and where there is no message', async (t) => {
      const { call, send, ada, eve } = await startChat(t);
      const { body } = await send(ada, { text: 'x' });
      assertProblem(await call(`DELETE /v1/messages/${body.id}`, { token: eve.token }), 404, 'not_found');
      await call(`DELETE /v1/messages/${body.id}`, { token: ada.token });
      for (const id of [body.id, ...noIds()]) {
        assertProblem(await call(`DELETE /v1/messages/${id}`, { token: ada.token }), 404, 'not_found');
      }
    });
  });
});
