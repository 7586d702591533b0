/** Chats and their members over HTTP: a block per route, inside it one per status. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { assertProblem } from '../support/api.ts';
import { badPages, noIds, startChat } from '../support/chat.ts';

describe('POST /v1/chats', () => {
  describe('201', () => {
    it('answers the chat, with its owner as the one member', async (t) => {
      const { call, eve } = await startChat(t);
      const made = await call('POST /v1/chats', { token: eve.token, json: { title: 'Überraschung 🎂' } });
      assert.equal(made.status, 201);
      assert.equal(made.headers.get('location'), `/v1/chats/${made.body.id}`);
      assert.deepEqual(Object.keys(made.body).toSorted(), ['created_at', 'id', 'members', 'owner_id', 'title']);
      assert.equal(made.body.title, 'Überraschung 🎂');
      assert.equal(made.body.owner_id, eve.id);
      assert.deepEqual(made.body.members, [{ id: eve.id, handle: 'eve' }]);
      const read = await call(`GET ${made.headers.get('location')}`, { token: eve.token });
      assert.deepEqual(read.body, made.body);
    });

    it('takes a title of 120 code points outside the first plane', async (t) => {
      const { call, ada } = await startChat(t);
      const made = await call('POST /v1/chats', { token: ada.token, json: { title: '😀'.repeat(120) } });
      assert.equal(made.status, 201);
    });
  });

  describe('400', () => {
    it('names the field that is wrong', async (t) => {
      const { call, ada } = await startChat(t);
      const titles = [
        '',
        ' \n\t',
        'x'.repeat(121),
        'a\u0000b',
        'a\ud83d',
        '\ude00',
        7,
        null,
        `${'x'.repeat(50_000)}\u0000`,
      ];
      const bodies = [{}, ...titles.map((title) => ({ title }))];
      for (const json of bodies) {
        assertProblem(await call('POST /v1/chats', { token: ada.token, json }), 400, 'validation', '/title');
      }
      const surplus = await call('POST /v1/chats', { token: ada.token, json: { title: 'x', owner_id: newId() } });
      assertProblem(surplus, 400, 'validation', '/owner_id');
      assertProblem(await call('POST /v1/chats', { token: ada.token, json: '{' }), 400, 'malformed_body');
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call } = await startChat(t);
      assertProblem(await call('POST /v1/chats', { json: { title: 'x' } }), 401, 'unauthorized');
    });
  });

  describe('413', () => {
    it('refuses a body over the limit of small routes', async (t) => {
      const { call, ada } = await startChat(t);
      const json = { title: 'x'.repeat(70_000) };
      assertProblem(await call('POST /v1/chats', { token: ada.token, json }), 413, 'body_too_large');
    });
  });

  describe('415', () => {
    it('takes JSON only', async (t) => {
      const { call, ada } = await startChat(t);
      const headers = { 'content-type': 'text/plain' };
      const answer = await call('POST /v1/chats', { token: ada.token, json: '{}', headers });
      assertProblem(answer, 415, 'unsupported_media_type');
    });
  });
});

describe('GET /v1/chats', () => {
  describe('200', () => {
    it('lists the chats of which the account is a member, newest first, in pages', async (t) => {
      const { call, bob, eve, ada, chatId } = await startChat(t);
      const made = [chatId];
      for (const title of ['one', 'two']) {
        made.unshift((await call('POST /v1/chats', { token: bob.token, json: { title } })).body.id);
      }
      const first = await call('GET /v1/chats?limit=2', { token: bob.token });
      assert.equal(first.status, 200);
      const second = await call(`GET /v1/chats?limit=2&cursor=${first.body.next_cursor}`, { token: bob.token });
      assert.deepEqual(
        [...first.body.items, ...second.body.items].map((chat) => chat.id),
        made,
      );
      assert.equal(second.body.next_cursor, null);
      assert.equal((await call('GET /v1/chats', { token: ada.token })).body.items.length, 1);
      assert.deepEqual((await call('GET /v1/chats', { token: eve.token })).body, { items: [], next_cursor: null });
    });
  });

  describe('400', () => {
    it('names the parameter that is wrong', async (t) => {
      const { call, ada } = await startChat(t);
      for (const [query, field] of badPages) {
        assertProblem(await call(`GET /v1/chats?${query}`, { token: ada.token }), 400, 'validation', field);
      }
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call } = await startChat(t);
      assertProblem(await call('GET /v1/chats'), 401, 'unauthorized');
    });
  });
});

describe('GET /v1/chats/{id}', () => {
  describe('200', () => {
    it('answers every member', async (t) => {
      const { call, ada, bob, chatId } = await startChat(t);
      for (const { token } of [ada, bob]) {
        const answer = await call(`GET /v1/chats/${chatId}`, { token });
        assert.equal(answer.status, 200);
        assert.deepEqual(
          answer.body.members.map((member) => member.handle),
          ['ada', 'bob'],
        );
      }
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call, chatId } = await startChat(t);
      assertProblem(await call(`GET /v1/chats/${chatId}`), 401, 'unauthorized');
    });
  });

  describe('404', () => {
    it('is the answer to outsiders, and where there is no chat', async (t) => {
      const { call, ada, eve, chatId } = await startChat(t);
      assertProblem(await call(`GET /v1/chats/${chatId}`, { token: eve.token }), 404, 'not_found');
      for (const id of noIds())
        assertProblem(await call(`GET /v1/chats/${id}`, { token: ada.token }), 404, 'not_found');
    });
  });
});

describe('PUT /v1/chats/{id}/members/{user}', () => {
  describe('204', () => {
    it('adds an account by id or by handle, twice without harm', async (t) => {
      const { call, account, ada, eve, chatId, members } = await startChat(t);
      await account('joe');
      for (const user of [eve.id, eve.id, 'eve', 'joe']) {
        const answer = await call(`PUT /v1/chats/${chatId}/members/${user}`, { token: ada.token });
        assert.equal(answer.status, 204);
        assert.ok(answer.isEmpty);
      }
      assert.deepEqual(await members(), ['ada', 'bob', 'eve', 'joe']);
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call, chatId, eve } = await startChat(t);
      assertProblem(await call(`PUT /v1/chats/${chatId}/members/${eve.id}`), 401, 'unauthorized');
    });
  });

  describe('403', () => {
    it('is for the owner only', async (t) => {
      const { call, bob, eve, chatId, members } = await startChat(t);
      for (const user of [eve.id, 'eve', bob.id]) {
        const answer = await call(`PUT /v1/chats/${chatId}/members/${user}`, { token: bob.token });
        assertProblem(answer, 403, 'forbidden');
      }
      assert.deepEqual(await members(), ['ada', 'bob']);
    });
  });

  describe('404', () => {
    it('is the answer to outsiders, and where chat or account are not there', async (t) => {
      const { call, ada, eve, chatId, members } = await startChat(t);
      for (const user of [eve.id, ada.id, 'bob', 'nobody']) {
        const answer = await call(`PUT /v1/chats/${chatId}/members/${user}`, { token: eve.token });
        assertProblem(answer, 404, 'not_found');
      }
      for (const user of [...noIds(), 'nobody', 'Bob']) {
        const answer = await call(`PUT /v1/chats/${chatId}/members/${user}`, { token: ada.token });
        assertProblem(answer, 404, 'not_found');
      }
      for (const id of noIds()) {
        assertProblem(await call(`PUT /v1/chats/${id}/members/${eve.id}`, { token: ada.token }), 404, 'not_found');
      }
      assert.deepEqual(await members(), ['ada', 'bob']);
    });
  });
});

describe('DELETE /v1/chats/{id}/members/{user}', () => {
  describe('204', () => {
    it('removes a member for the owner, who then sees nothing of the chat', async (t) => {
      const { call, send, ada, bob, chatId } = await startChat(t);
      const { body } = await send(ada, { text: 'hello' });
      assert.equal((await call(`DELETE /v1/chats/${chatId}/members/${bob.id}`, { token: ada.token })).status, 204);
      for (const path of [`chats/${chatId}`, `chats/${chatId}/messages`, `messages/${body.id}`]) {
        assertProblem(await call(`GET /v1/${path}`, { token: bob.token }), 404, 'not_found');
      }
      assertProblem(await send(bob, { text: 'still here?' }), 404, 'not_found');
    });

    it('lets a member leave, by handle as well', async (t) => {
      const { call, bob, chatId, members } = await startChat(t);
      assert.equal((await call(`DELETE /v1/chats/${chatId}/members/bob`, { token: bob.token })).status, 204);
      assert.deepEqual(await members(), ['ada']);
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call, chatId, bob } = await startChat(t);
      assertProblem(await call(`DELETE /v1/chats/${chatId}/members/${bob.id}`), 401, 'unauthorized');
    });
  });

  describe('403', () => {
    it('keeps the owner in, and members from removing others', async (t) => {
      const { call, people, ada, bob, eve, chatId, members } = await startChat(t);
      await people.addMember(ada.id, chatId, eve.id);
      for (const [who, user] of [
        [ada, ada],
        [bob, ada],
        [bob, eve],
      ] as const) {
        const answer = await call(`DELETE /v1/chats/${chatId}/members/${user.id}`, { token: who.token });
        assertProblem(answer, 403, 'forbidden');
      }
      assert.deepEqual(await members(), ['ada', 'bob', 'eve']);
    });
  });

  describe('404', () => {
    it('is the answer to outsiders, and where chat or member are not there', async (t) => {
      const { call, ada, bob, eve, chatId, members } = await startChat(t);
      assertProblem(await call(`DELETE /v1/chats/${chatId}/members/${bob.id}`, { token: eve.token }), 404, 'not_found');
      for (const user of [eve.id, 'nobody', ...noIds()]) {
        assertProblem(await call(`DELETE /v1/chats/${chatId}/members/${user}`, { token: ada.token }), 404, 'not_found');
      }
      assert.deepEqual(await members(), ['ada', 'bob']);
    });
  });
});
