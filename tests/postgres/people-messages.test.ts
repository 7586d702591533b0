/** Messages keep their promises on a real PostgreSQL, also when requests race. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it, type TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { all, ids, sent, startPeople } from '../support/people.ts';
import { until } from '../support/until.ts';

describe('send', () => {
  it('answers the message as every member reads it', async (t) => {
    const { people, account, chat, send } = await startPeople(t);
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
    const { people, account, chat, attachment, send } = await startPeople(t);
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
    const { pool, account, chat, attachment, send, counted } = await startPeople(t);
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
    const { account, chat, send, counted } = await startPeople(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    assert.deepEqual(await send(made.id, bob.id, 'x'), { kind: 'no_chat' });
    assert.deepEqual(await send(newId(), ada.id, 'x'), { kind: 'no_chat' });
    assert.equal(await counted(), 0);
  });

  it('waits for a running removal of its author, and then refuses', async (t) => {
    const { pool, people, account, chat, send, counted } = await startPeople(t);
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
    const { pool, account, chat, attachment, send, counted } = await startPeople(t);
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
    const world = await startPeople(t);
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
    const { people, account, chat, send } = await startPeople(t);
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
    const { people, account, chat } = await startPeople(t);
    const [ada, bob] = [await account('ada'), await account('bob')];
    const made = await chat(ada.id);
    assert.deepEqual(await people.listMessages(ada.id, made.id, all), { items: [], nextCursor: null });
    assert.equal(await people.listMessages(bob.id, made.id, all), null);
    assert.equal(await people.listMessages(ada.id, newId(), all), null);
  });

  it('name attachments by position, in whatever order the rows lie', async (t) => {
    const { pool, people, account, chat, attachment, send } = await startPeople(t);
    const ada = await account('ada');
    const made = await chat(ada.id);
    const [a, b, c, d] = [
      await attachment(ada.id),
      await attachment(ada.id),
      await attachment(ada.id),
      await attachment(ada.id),
    ];
    const message = sent(await send(made.id, ada.id, '', [a, b, c, d]));
    for (const order of [
      [b, d, a, c],
      [d, c, b, a],
      [a, b, c, d],
      [c, a, d, b],
    ]) {
      await pool.query('update message_attachments set position = array_position($1::uuid[], attachment_id)', [order]);
      const listed = await people.listMessages(ada.id, made.id, all);
      assert.deepEqual(listed?.items[0]?.attachmentIds, order);
      assert.deepEqual((await people.messageFor(ada.id, message.id))?.attachmentIds, order);
      assert.deepEqual((await people.sentMessage(ada.id, message.id))?.attachmentIds, order);
    }
  });

  it('leave out attachments that were deleted', async (t) => {
    const { pool, people, account, chat, attachment, send } = await startPeople(t);
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
    const { pool, people, account, chat, attachment, send } = await startPeople(t);
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
    const { people, account, chat, send } = await startPeople(t);
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
    const { people, account, chat, send } = await startPeople(t);
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
    const { people, account, chat, send } = await startPeople(t);
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
  await until('a statement that waits for a lock', async () => {
    const { rowCount } = await pool.query(
      `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    return rowCount === 1;
  });
}
