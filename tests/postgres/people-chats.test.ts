/** Chats and members keep their promises on a real PostgreSQL. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { all, ids, sent, startPeople } from '../support/people.ts';

describe('chats', () => {
  it('begin with their owner as the one member', async (t) => {
    const { people, account, chat } = await startPeople(t);
    const ada = await account('ada');
    const made = await chat(ada.id, 'Plans');
    assert.equal(made.title, 'Plans');
    assert.equal(made.ownerId, ada.id);
    assert.deepEqual(made.members, [{ id: ada.id, handle: 'ada' }]);
    assert.deepEqual(await people.chatFor(ada.id, made.id), made);
  });

  it('are not there for others', async (t) => {
    const { people, account, chat } = await startPeople(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    assert.equal(await people.chatFor(bob.id, made.id), null);
    assert.deepEqual(await people.listChats(bob.id, all), { items: [], nextCursor: null });
    assert.equal(await people.chatFor(ada.id, newId()), null);
  });

  it('are listed newest first, each once, across pages', async (t) => {
    const { people, account, chat } = await startPeople(t);
    const ada = await account('ada');
    const made: string[] = [];
    for (let i = 0; i < 5; i += 1) made.unshift((await chat(ada.id, `chat ${i}`)).id);
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const page = await people.listChats(ada.id, { limit: 2, cursor });
      seen.push(...ids(page));
      cursor = page.nextCursor;
    } while (cursor !== null);
    assert.deepEqual(seen, made);
  });

  it('end their list without a cursor when the last page is full', async (t) => {
    const { people, account, chat } = await startPeople(t);
    const ada = await account('ada');
    for (let i = 0; i < 2; i += 1) await chat(ada.id);
    assert.equal((await people.listChats(ada.id, { limit: 2, cursor: null })).nextCursor, null);
  });

  for (const cursor of [
    '',
    'x',
    'AAAAAAAAAAAAAAAAAAAAA',
    'AAAAAAAAAAAAAAAAAAAAAA==',
    'AAAAAAAAAAAAAAAAAAAAAB',
    '../..',
    newId(),
  ]) {
    it(`refuse the cursor ${JSON.stringify(cursor)} that they did not give`, async (t) => {
      const { people, account, chat } = await startPeople(t);
      const ada = await account('ada');
      const made = await chat(ada.id);
      const refusal = { code: 'validation', members: { field: 'cursor' } };
      await assert.rejects(people.listChats(ada.id, { limit: 2, cursor }), refusal);
      await assert.rejects(people.listMessages(ada.id, made.id, { limit: 2, cursor }), refusal);
    });
  }
});

describe('members', () => {
  it('are added by the owner, twice without harm', async (t) => {
    const { people, account, chat } = await startPeople(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    assert.equal(await people.addMember(ada.id, made.id, bob.id), 'added');
    assert.equal(await people.addMember(ada.id, made.id, bob.id), 'added');
    const seen = await people.chatFor(bob.id, made.id);
    assert.deepEqual(
      seen?.members.map((member) => member.handle),
      ['ada', 'bob'],
    );
  });

  it('are not added by another member, by an outsider, or without an account', async (t) => {
    const { people, account, chat } = await startPeople(t);
    const [ada, bob, eve] = [await account('ada'), await account('bob'), await account('eve')];
    const made = await chat(ada.id);
    await people.addMember(ada.id, made.id, bob.id);
    assert.equal(await people.addMember(bob.id, made.id, eve.id), 'not_owner');
    assert.equal(await people.addMember(eve.id, made.id, eve.id), 'not_member');
    assert.equal(await people.addMember(ada.id, newId(), eve.id), 'not_member');
    assert.equal(await people.addMember(ada.id, made.id, newId()), 'no_user');
    assert.equal((await people.chatFor(ada.id, made.id))?.members.length, 2);
  });

  it('are removed by the owner or leave, and see nothing from then on', async (t) => {
    const { people, account, chat, send } = await startPeople(t);
    const [ada, bob, eve] = [await account('ada'), await account('bob'), await account('eve')];
    const made = await chat(ada.id);
    const message = sent(await send(made.id, ada.id, 'hello'));
    for (const user of [bob, eve]) await people.addMember(ada.id, made.id, user.id);
    assert.equal(await people.removeMember(ada.id, made.id, bob.id), 'removed');
    assert.equal(await people.removeMember(eve.id, made.id, eve.id), 'removed');
    for (const user of [bob, eve]) {
      assert.equal(await people.chatFor(user.id, made.id), null);
      assert.equal(await people.messageFor(user.id, message.id), null);
      assert.equal(await people.listMessages(user.id, made.id, all), null);
      assert.deepEqual(await send(made.id, user.id, 'still here?'), { kind: 'no_chat' });
    }
  });

  it('are not removed by another member or an outsider, and the owner not at all', async (t) => {
    const { people, account, chat } = await startPeople(t);
    const [ada, bob, eve, joe] = [
      await account('ada'),
      await account('bob'),
      await account('eve'),
      await account('joe'),
    ];
    const made = await chat(ada.id);
    for (const user of [bob, eve]) await people.addMember(ada.id, made.id, user.id);
    assert.equal(await people.removeMember(bob.id, made.id, eve.id), 'not_owner');
    assert.equal(await people.removeMember(joe.id, made.id, eve.id), 'not_member');
    assert.equal(await people.removeMember(ada.id, made.id, joe.id), 'not_member');
    assert.equal(await people.removeMember(ada.id, made.id, ada.id), 'is_owner');
    assert.equal(await people.removeMember(bob.id, made.id, ada.id), 'is_owner');
    assert.equal((await people.chatFor(ada.id, made.id))?.members.length, 3);
  });
});
