/**
 * Messages: the part of the people port that carries text and names attachments.
 *
 * A message gives access: members of its chat may read what it carries, until it is deleted. So `send` holds its guards
 * under row locks in one transaction, and a deleted message keeps its row but is found by nothing. Jobs, brokers and
 * objects are never looked at: a message goes out while everything behind attachments is down.
 */
import type { Message } from '../pipeline/message.ts';
import type { People, SendResult } from '../pipeline/people.ts';
import type { Page, PageRequest } from '../pipeline/registry.ts';
import { cursorId, pageOf } from './cursor.ts';
import { type Db, type Pool, single, transaction } from './pool.ts';
import { onlyRow } from './rows.ts';

export type Messages = Pick<People, 'send' | 'listMessages' | 'messageFor' | 'sentMessage' | 'deleteMessage'>;

type Outgoing = Parameters<People['send']>[0];

interface MessageRow {
  id: string;
  chat_id: string;
  author_id: string;
  handle: string;
  text: string;
  attachment_ids: string[];
  created_at: Date;
}

/** Rejects `StoreError` when the database does not answer; `validation` for a cursor that it did not give. */
export function createMessages({ pool }: { pool: Pool }): Messages {
  return {
    send: (message) => transaction(pool, (db) => send(db, message)),
    listMessages: (userId, chatId, page) => listMessages(pool, userId, chatId, page),
    messageFor: (userId, messageId) => messageFor(pool, userId, messageId),
    sentMessage: (authorId, messageId) => sentMessage(pool, authorId, messageId),
    deleteMessage: (userId, messageId) => deleteMessage(pool, userId, messageId),
  };
}

function toMessage(row: MessageRow): Message {
  return {
    id: row.id,
    chatId: row.chat_id,
    author: { id: row.author_id, handle: row.handle },
    text: row.text,
    attachmentIds: row.attachment_ids,
    createdAt: row.created_at,
  };
}

/**
 * Guards first, writes after: every refusal leaves the transaction with nothing written, so that it may commit.
 * Locks, in this order: the membership, the attachments by id, the key. None of them waits for a job.
 */
async function send(db: Db, message: Outgoing): Promise<SendResult> {
  if (!(await lockMembership(db, message.chatId, message.authorId))) return { kind: 'no_chat' };
  const refused = await lockAttachments(db, message.authorId, message.attachmentIds);
  if (refused) return { kind: 'bad_attachment', ...refused };
  if (message.reservation && !(await answerReservation(db, message.reservation, message.id))) {
    return { kind: 'reservation_lost' };
  }
  return { kind: 'sent', message: await insertMessage(db, message) };
}

/** Holds the author in the chat until the message is committed: a removal at the same time comes before or after, never between. */
async function lockMembership(db: Db, chatId: string, userId: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `select
     from chat_members
     where chat_id = $1
       and user_id = $2
     for share`,
    [chatId, userId],
  );
  return rowCount === 1;
}

/** The first of `ids` that may not be carried, or null after all of them are locked against deletion and failure. */
async function lockAttachments(
  db: Db,
  ownerId: string,
  ids: readonly string[],
): Promise<{ id: string; reason: 'unknown' | 'failed' } | null> {
  if (ids.length === 0) return null;
  const { rows } = await db.query<{ id: string; state: string }>(
    `select id, state
     from attachments
     where id = any($1::uuid[])
       and owner_id = $2
       and deleted_at is null
     order by id
     for share`,
    [ids, ownerId],
  );
  const states = new Map(rows.map((row) => [row.id, row.state]));
  for (const id of ids) {
    const state = states.get(id);
    if (state === undefined) return { id, reason: 'unknown' };
    if (state === 'failed') return { id, reason: 'failed' };
  }
  return null;
}

/** Guard: unanswered, and held under this token. False: somebody else holds or has answered the key. */
async function answerReservation(
  db: Db,
  reservation: NonNullable<Outgoing['reservation']>,
  resultId: string,
): Promise<boolean> {
  const { rowCount } = await db.query(
    `update idempotency_keys
     set fingerprint = $5,
         result_id = $6,
         expires_at = now() + $7 * interval '1 millisecond'
     where user_id = $1
       and scope = $2
       and key = $3
       and token = $4
       and fingerprint is null`,
    [
      reservation.userId,
      reservation.scope,
      reservation.key,
      reservation.token,
      reservation.fingerprint,
      resultId,
      reservation.keepMs,
    ],
  );
  return rowCount === 1;
}

async function insertMessage(db: Db, message: Outgoing): Promise<Message> {
  const row = onlyRow(
    await db.query<MessageRow>(
      `with message as (
         insert into messages (id, chat_id, author_id, text)
         values ($1, $2, $3, $4)
         returning id, chat_id, author_id, text, created_at
       ),
       carried as (
         insert into message_attachments (message_id, attachment_id, position)
         select message.id, given.id, given.position
         from message
         cross join unnest($5::uuid[]) with ordinality as given (id, position)
       )
       select message.id, message.chat_id, message.author_id, users.handle, message.text, message.created_at,
         $5::uuid[] as attachment_ids
       from message
       join users on users.id = message.author_id`,
      [message.id, message.chatId, message.authorId, message.text, message.attachmentIds],
    ),
  );
  return toMessage(row);
}

/** Guard: `userId` is a member; null otherwise. */
async function listMessages(
  pool: Pool,
  userId: string,
  chatId: string,
  page: PageRequest,
): Promise<Page<Message> | null> {
  const before = cursorId(page.cursor);
  // One statement, so that the guard and the page are of one moment: a non-member's page is no row, an empty chat's is one.
  const { rows } = await single<MessageRow | { id: null }>(
    pool,
    `select messages.id, messages.chat_id, messages.author_id, users.handle, messages.text, messages.created_at,
       array(
         select carried.attachment_id
         from message_attachments carried
         join attachments on attachments.id = carried.attachment_id
         where carried.message_id = messages.id
           and attachments.deleted_at is null
         order by carried.position
       ) as attachment_ids
     from chat_members
     left join lateral (
       select *
       from messages
       where messages.chat_id = chat_members.chat_id
         and messages.deleted_at is null
         and ($3::uuid is null or messages.id < $3)
       order by messages.id desc
       limit $4
     ) messages on true
     left join users on users.id = messages.author_id
     where chat_members.chat_id = $2
       and chat_members.user_id = $1
     order by messages.id desc`,
    [userId, chatId, before, page.limit + 1],
    { writes: false, replan: true },
  );
  if (rows.length === 0) return null;
  return pageOf(rows.filter((row) => row.id !== null).map(toMessage), page.limit);
}

/** Guard: `userId` is a member of the message's chat. */
async function messageFor(pool: Pool, userId: string, messageId: string): Promise<Message | null> {
  const { rows } = await single<MessageRow>(
    pool,
    `select messages.id, messages.chat_id, messages.author_id, users.handle, messages.text, messages.created_at,
       array(
         select carried.attachment_id
         from message_attachments carried
         join attachments on attachments.id = carried.attachment_id
         where carried.message_id = messages.id
           and attachments.deleted_at is null
         order by carried.position
       ) as attachment_ids
     from messages
     join chat_members on chat_members.chat_id = messages.chat_id and chat_members.user_id = $1
     join users on users.id = messages.author_id
     where messages.id = $2
       and messages.deleted_at is null`,
    [userId, messageId],
    { writes: false },
  );
  return rows[0] ? toMessage(rows[0]) : null;
}

/** Guard: the author's own. Neither the message's end nor that of its attachments changes the answer. */
async function sentMessage(pool: Pool, authorId: string, messageId: string): Promise<Message | null> {
  const { rows } = await single<MessageRow>(
    pool,
    `select messages.id, messages.chat_id, messages.author_id, users.handle, messages.text, messages.created_at,
       array(
         select carried.attachment_id
         from message_attachments carried
         where carried.message_id = messages.id
         order by carried.position
       ) as attachment_ids
     from messages
     join users on users.id = messages.author_id
     where messages.id = $2
       and messages.author_id = $1`,
    [authorId, messageId],
    { writes: false },
  );
  return rows[0] ? toMessage(rows[0]) : null;
}

/**
 * Guard: the author's own, also after the author left the chat: whoever gave an access can always end it.
 * `forbidden` only where the message can be seen; elsewhere it does not exist.
 */
async function deleteMessage(
  pool: Pool,
  userId: string,
  messageId: string,
): Promise<'deleted' | 'not_found' | 'forbidden'> {
  const row = onlyRow(
    await single<{ deleted: boolean; visible: boolean }>(
      pool,
      `with deleted as (
         update messages
         set deleted_at = now()
         where id = $2
           and author_id = $1
           and deleted_at is null
         returning id
       )
       select exists (select from deleted) as deleted,
         exists (
           select
           from messages
           join chat_members on chat_members.chat_id = messages.chat_id and chat_members.user_id = $1
           where messages.id = $2
             and messages.author_id <> $1
             and messages.deleted_at is null
         ) as visible`,
      [userId, messageId],
      { writes: true },
    ),
  );
  if (row.deleted) return 'deleted';
  return row.visible ? 'forbidden' : 'not_found';
}
