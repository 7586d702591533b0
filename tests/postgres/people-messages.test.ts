/** Chats, members and messages keep their promises on a real PostgreSQL, also when requests race. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it, type TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import type { Message } from '../../src/pipeline/message.ts';
import type { SendResult } from '../../src/pipeline/people.ts';
import type { Page } from '../../src/pipeline/store.ts';
import { createPeople } from '../../src/postgres/people.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { eventually } from '../support/ports-fake.ts';
import { freshDatabase } from '../support/postgres.ts';

const all = { limit: 50, cursor: null };

async function start(t: TestContext) {
  const { pool } = await freshDatabase(t);
  const people = createPeople({ pool });
  const account = async (handle: string) => {
    const user = await people.createUser({ id: newId(), handle, passwordHash: 'x', role: 'user' });
    assert.ok(user);
    return user;
  };
  const chat = (ownerId: string, title = 'Plans') => people.createChat({ id: newId(), title, ownerId });
  const attachment = async (ownerId: string, state: 'queued' | 'processing' | 'ready' | 'failed' = 'queued') => {
    const id = newId();
    await pool.query(
      `insert into attachments (
         id, owner_id, state, kind, file_name, content_type, size, sha256, staging_key, pipeline_version, original_key, error_code
       )
       values ($1, $2, $3, 'image', 'a.png', 'image/png', 1, repeat('0', 64), $4, $5, $6, $7)`,
      [
        id,
        ownerId,
        state,
        `staging/${id}`,
        state === 'ready' ? 1 : 0,
        state === 'ready' ? `attachments/${id}/original.png` : null,
        state === 'failed' ? 'corrupt_image' : null,
      ],
    );
    return id;
  };
  const send = (chatId: string, authorId: string, text: string, attachmentIds: string[] = []) =>
    people.send({ id: newId(), chatId, authorId, text, attachmentIds, reservation: null });
  const counted = async () =>
    (await pool.query<{ count: number }>('select count(*)::int from messages')).rows[0]?.count;
  return { pool, people, account, chat, attachment, send, counted };
}

function sent(result: SendResult): Message {
  assert.equal(result.kind, 'sent');
  return result.kind === 'sent' ? result.message : assert.fail();
}

function ids(page: Page<{ id: string }> | null): string[] {
  assert.ok(page);
  return page.items.map((item) => item.id);
}

describe('chats', () => {
  it('begin with their owner as the one member', async (t) => {
    const { people, account, chat } = await start(t);
    const ada = await account('ada');
    const made = await chat(ada.id, 'Plans');
    assert.equal(made.title, 'Plans');
    assert.equal(made.ownerId, ada.id);
    assert.deepEqual(made.members, [{ id: ada.id, handle: 'ada' }]);
    assert.deepEqual(await people.chatFor(ada.id, made.id), made);
  });

  it('are not there for others', async (t) => {
    const { people, account, chat } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    assert.equal(await people.chatFor(bob.id, made.id), null);
    assert.deepEqual(await people.listChats(bob.id, all), { items: [], nextCursor: null });
    assert.equal(await people.chatFor(ada.id, newId()), null);
  });

  it('are listed newest first, each once, across pages', async (t) => {
    const { people, account, chat } = await start(t);
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
    const { people, account, chat } = await start(t);
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
      const { people, account, chat } = await start(t);
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
    const { people, account, chat } = await start(t);
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
    const { people, account, chat } = await start(t);
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
    const { people, account, chat, send } = await start(t);
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
    const { people, account, chat } = await start(t);
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

describe('send', () => {
  it('answers the message as every member reads it', async (t) => {
    const { people, account, chat, send } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    await people.addMember(ada.id, made.id, bob.id);
    const message = sent(await send(made.id, ada.id, 'Grüße 😀\n\u202e'));
    assert.equal(message.text, 'Grüße 😀\n\u202e');
    assert.deepEqual(message.author, { id: ada.id, handle: 'ada' });
    assert.equal(message.chatId, made.id);
    assert.deepEqual(message.attachmentIds, []);
    assert.deepEqual(await people.messageFor(bob.id, message.id), message);
    assert.deepEqual(await people.listMessages(bob.id, made.id, all), { items: [message], nextCursor: null });
  });

  it('carries attachments that are queued, processing and ready, in the order given', async (t) => {
    const { people, account, chat, attachment, send } = await start(t);
    const ada = await account('ada');
    const made = await chat(ada.id);
    const given = [
      await attachment(ada.id, 'ready'),
      await attachment(ada.id, 'queued'),
      await attachment(ada.id, 'processing'),
    ].toReversed();
    const message = sent(await send(made.id, ada.id, '', given));
    assert.deepEqual(message.attachmentIds, given);
    assert.deepEqual((await people.messageFor(ada.id, message.id))?.attachmentIds, given);
  });

  it('writes nothing when an attachment is unknown, foreign, deleted or failed, and names it', async (t) => {
    const { pool, account, chat, attachment, send, counted } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    const good = await attachment(ada.id);
    const deleted = await attachment(ada.id);
    await pool.query('update attachments set deleted_at = now() where id = $1', [deleted]);
    const cases: [string, 'unknown' | 'failed'][] = [
      [newId(), 'unknown'],
      [await attachment(bob.id), 'unknown'],
      [deleted, 'unknown'],
      [await attachment(ada.id, 'failed'), 'failed'],
    ];
    for (const [id, reason] of cases) {
      assert.deepEqual(await send(made.id, ada.id, 'x', [good, id]), { kind: 'bad_attachment', id, reason });
    }
    assert.equal(await counted(), 0);
  });

  it('refuses outsiders and unknown chats', async (t) => {
    const { account, chat, send, counted } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    assert.deepEqual(await send(made.id, bob.id, 'x'), { kind: 'no_chat' });
    assert.deepEqual(await send(newId(), ada.id, 'x'), { kind: 'no_chat' });
    assert.equal(await counted(), 0);
  });

  it('waits for a running removal of its author, and then refuses', async (t) => {
    const { pool, people, account, chat, send, counted } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    await people.addMember(ada.id, made.id, bob.id);
    const removal = await pool.connect();
    try {
      await removal.query('begin');
      await removal.query('delete from chat_members where chat_id = $1 and user_id = $2', [made.id, bob.id]);
      const sending = send(made.id, bob.id, 'x');
      await blocked(pool);
      await removal.query('commit');
      assert.deepEqual(await sending, { kind: 'no_chat' });
    } finally {
      removal.release();
    }
    assert.equal(await counted(), 0);
  });

  it('waits for a running deletion of what it carries, and then refuses', async (t) => {
    const { pool, account, chat, attachment, send, counted } = await start(t);
    const ada = await account('ada');
    const made = await chat(ada.id);
    const id = await attachment(ada.id);
    const deletion = await pool.connect();
    try {
      await deletion.query('begin');
      await deletion.query('update attachments set deleted_at = now() where id = $1', [id]);
      const sending = send(made.id, ada.id, 'x', [id]);
      await blocked(pool);
      await deletion.query('commit');
      assert.deepEqual(await sending, { kind: 'bad_attachment', id, reason: 'unknown' });
    } finally {
      deletion.release();
    }
    assert.equal(await counted(), 0);
  });
});

describe('send with a reservation', () => {
  async function reserved(t: TestContext) {
    const world = await start(t);
    const ada = await world.account('ada');
    const made = await world.chat(ada.id);
    const name = { userId: ada.id, scope: 'message' as const, key: 'k' };
    const token = randomUUID();
    await world.pool.query(
      `insert into idempotency_keys (user_id, scope, key, token, lease_until)
       values ($1, $2, $3, $4, now() + interval '1 minute')`,
      [name.userId, name.scope, name.key, token],
    );
    const sendWith = (held: string, attachmentIds: string[] = []) =>
      world.people.send({
        id: newId(),
        chatId: made.id,
        authorId: ada.id,
        text: 'x',
        attachmentIds,
        reservation: { ...name, token: held, fingerprint: 'f', keepMs: 60_000 },
      });
    const keyRow = async () =>
      (
        await world.pool.query<{ fingerprint: string | null; result_id: string | null }>(
          'select fingerprint, result_id from idempotency_keys',
        )
      ).rows[0];
    return { ...world, ada, token, sendWith, keyRow };
  }

  it('answers the key together with the message', async (t) => {
    const { sendWith, token, keyRow } = await reserved(t);
    const message = sent(await sendWith(token));
    assert.deepEqual(await keyRow(), { fingerprint: 'f', result_id: message.id });
  });

  it('writes nothing when the key is held under another token', async (t) => {
    const { sendWith, keyRow, counted } = await reserved(t);
    assert.deepEqual(await sendWith(randomUUID()), { kind: 'reservation_lost' });
    assert.deepEqual(await keyRow(), { fingerprint: null, result_id: null });
    assert.equal(await counted(), 0);
  });

  it('sends one message of two at once under one token', async (t) => {
    const { sendWith, token, counted } = await reserved(t);
    const results = await Promise.all([sendWith(token), sendWith(token)]);
    assert.deepEqual(results.map((result) => result.kind).toSorted(), ['reservation_lost', 'sent']);
    assert.equal(await counted(), 1);
  });

  it('leaves the key open when the message is refused', async (t) => {
    const { sendWith, token, keyRow } = await reserved(t);
    assert.equal((await sendWith(token, [newId()])).kind, 'bad_attachment');
    assert.deepEqual(await keyRow(), { fingerprint: null, result_id: null });
  });
});

describe('messages', () => {
  it('are listed newest first, each once, across pages, while others arrive', async (t) => {
    const { people, account, chat, send } = await start(t);
    const ada = await account('ada');
    const made = await chat(ada.id);
    const expected: string[] = [];
    for (let i = 0; i < 5; i += 1) expected.unshift(sent(await send(made.id, ada.id, `${i}`)).id);
    const first = await people.listMessages(ada.id, made.id, { limit: 2, cursor: null });
    await send(made.id, ada.id, 'late');
    const second = await people.listMessages(ada.id, made.id, { limit: 2, cursor: first?.nextCursor ?? null });
    const third = await people.listMessages(ada.id, made.id, { limit: 2, cursor: second?.nextCursor ?? null });
    assert.deepEqual([...ids(first), ...ids(second), ...ids(third)], expected);
    assert.equal(third?.nextCursor, null);
  });

  it('are an empty list for a member of a silent chat, and null for others', async (t) => {
    const { people, account, chat } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    assert.deepEqual(await people.listMessages(ada.id, made.id, all), { items: [], nextCursor: null });
    assert.equal(await people.listMessages(bob.id, made.id, all), null);
    assert.equal(await people.listMessages(ada.id, newId(), all), null);
  });

  it('leave out attachments that were deleted', async (t) => {
    const { pool, people, account, chat, attachment, send } = await start(t);
    const ada = await account('ada');
    const made = await chat(ada.id);
    const [one, two, three] = [await attachment(ada.id), await attachment(ada.id), await attachment(ada.id)];
    const message = sent(await send(made.id, ada.id, '', [three, two, one]));
    await pool.query('update attachments set deleted_at = now() where id = $1', [two]);
    assert.deepEqual((await people.messageFor(ada.id, message.id))?.attachmentIds, [three, one]);
    const listed = await people.listMessages(ada.id, made.id, all);
    assert.deepEqual(listed?.items[0]?.attachmentIds, [three, one]);
  });
});

describe('sentMessage', () => {
  it('answers its author as sent after message and attachment were deleted, and nobody else', async (t) => {
    const { pool, people, account, chat, attachment, send } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    await people.addMember(ada.id, made.id, bob.id);
    const message = sent(await send(made.id, ada.id, 'x', [await attachment(ada.id), await attachment(ada.id)]));
    await pool.query('update attachments set deleted_at = now()');
    await people.deleteMessage(ada.id, message.id);
    assert.deepEqual(await people.sentMessage(ada.id, message.id), message);
    assert.equal(await people.sentMessage(bob.id, message.id), null);
    assert.equal(await people.sentMessage(ada.id, newId()), null);
  });
});

describe('deleteMessage', () => {
  it('takes the message away from everybody, once', async (t) => {
    const { people, account, chat, send } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    await people.addMember(ada.id, made.id, bob.id);
    const kept = sent(await send(made.id, ada.id, 'kept'));
    const gone = sent(await send(made.id, bob.id, 'gone'));
    assert.equal(await people.deleteMessage(bob.id, gone.id), 'deleted');
    assert.equal(await people.deleteMessage(bob.id, gone.id), 'not_found');
    for (const user of [ada, bob]) {
      assert.equal(await people.messageFor(user.id, gone.id), null);
      assert.deepEqual(ids(await people.listMessages(user.id, made.id, all)), [kept.id]);
    }
  });

  it('is forbidden for another member, the chat owner included, and finds nothing for outsiders', async (t) => {
    const { people, account, chat, send } = await start(t);
    const [ada, bob, eve] = [await account('ada'), await account('bob'), await account('eve')];
    const made = await chat(ada.id);
    await people.addMember(ada.id, made.id, bob.id);
    const message = sent(await send(made.id, bob.id, 'x'));
    assert.equal(await people.deleteMessage(ada.id, message.id), 'forbidden');
    assert.equal(await people.deleteMessage(eve.id, message.id), 'not_found');
    assert.equal(await people.deleteMessage(eve.id, newId()), 'not_found');
    assert.deepEqual(await people.messageFor(ada.id, message.id), message);
  });

  it('is still possible for an author who has left', async (t) => {
    const { people, account, chat, send } = await start(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    await people.addMember(ada.id, made.id, bob.id);
    const message = sent(await send(made.id, bob.id, 'x'));
    await people.removeMember(bob.id, made.id, bob.id);
    assert.equal(await people.deleteMessage(bob.id, message.id), 'deleted');
    assert.equal(await people.messageFor(ada.id, message.id), null);
  });
});

/** Resolves once a statement of this database waits for a lock: the race under test has really met. */
async function blocked(pool: Pool): Promise<void> {
  await eventually('a statement that waits for a lock', async () => {
    const { rowCount } = await pool.query(
      `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    return rowCount === 1;
  });
}
