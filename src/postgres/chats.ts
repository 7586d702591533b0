/**
 * Chats and their members: the part of the people port that decides who talks to whom.
 *
 * A chat has one owner for ever, who is always a member. Every verb is one statement, so a guard and what it guards
 * cannot be torn apart by a second request.
 */
import type { Chat } from '../pipeline/message.ts';
import type { People } from '../pipeline/people.ts';
import type { Page, PageRequest } from '../pipeline/registry.ts';
import { cursorId, pageOf } from './cursor.ts';
import { type Pool, single } from './pool.ts';
import { onlyRow } from './rows.ts';

export type Chats = Pick<People, 'createChat' | 'chatFor' | 'listChats' | 'addMember' | 'removeMember'>;

interface ChatRow {
  id: string;
  title: string;
  owner_id: string;
  members: { id: string; handle: string }[];
  created_at: Date;
}

/** Rejects `StoreError` when the database does not answer; `validation` for a cursor that it did not give. */
export function createChats({ pool }: { pool: Pool }): Chats {
  return {
    createChat: (chat) => createChat(pool, chat),
    chatFor: (userId, chatId) => chatFor(pool, userId, chatId),
    listChats: (userId, page) => listChats(pool, userId, page),
    addMember: (actorId, chatId, userId) => addMember(pool, actorId, chatId, userId),
    removeMember: (actorId, chatId, userId) => removeMember(pool, actorId, chatId, userId),
  };
}

function toChat(row: ChatRow): Chat {
  return { id: row.id, title: row.title, ownerId: row.owner_id, members: row.members, createdAt: row.created_at };
}

/** The chat and its first member, the owner. */
async function createChat(pool: Pool, chat: { id: string; title: string; ownerId: string }): Promise<Chat> {
  const row = onlyRow(
    await single<ChatRow>(
      pool,
      `with chat as (
         insert into chats (id, title, owner_id)
         values ($1, $2, $3)
         returning id, title, owner_id, created_at
       ),
       member as (
         insert into chat_members (chat_id, user_id)
         select id, owner_id
         from chat
         returning chat_id
       )
       select chat.id, chat.title, chat.owner_id, chat.created_at,
         json_build_array(json_build_object('id', users.id, 'handle', users.handle)) as members
       from chat
       join member on member.chat_id = chat.id
       join users on users.id = chat.owner_id`,
      [chat.id, chat.title, chat.ownerId],
      { writes: true },
    ),
  );
  return toChat(row);
}

/** Guard: `userId` is a member. */
async function chatFor(pool: Pool, userId: string, chatId: string): Promise<Chat | null> {
  const { rows } = await single<ChatRow>(
    pool,
    `select chats.id, chats.title, chats.owner_id, chats.created_at,
       (
         select json_agg(json_build_object('id', users.id, 'handle', users.handle) order by users.handle)
         from chat_members everyone
         join users on users.id = everyone.user_id
         where everyone.chat_id = chats.id
       ) as members
     from chats
     join chat_members mine on mine.chat_id = chats.id and mine.user_id = $1
     where chats.id = $2`,
    [userId, chatId],
    { writes: false },
  );
  return rows[0] ? toChat(rows[0]) : null;
}

/** The chats of which `userId` is a member. The page is cut before the members are looked up. */
async function listChats(pool: Pool, userId: string, page: PageRequest): Promise<Page<Chat>> {
  const { rows } = await single<ChatRow>(
    pool,
    `select chats.id, chats.title, chats.owner_id, chats.created_at,
       (
         select json_agg(json_build_object('id', users.id, 'handle', users.handle) order by users.handle)
         from chat_members everyone
         join users on users.id = everyone.user_id
         where everyone.chat_id = chats.id
       ) as members
     from (
       select chat_id
       from chat_members
       where user_id = $1
         and ($2::uuid is null or chat_id < $2)
       order by chat_id desc
       limit $3
     ) mine
     join chats on chats.id = mine.chat_id
     order by chats.id desc`,
    [userId, cursorId(page.cursor), page.limit + 1],
    { writes: false, replan: true },
  );
  return pageOf(rows.map(toChat), page.limit);
}

/** Guard: `actorId` owns the chat. Adding somebody twice changes nothing. */
async function addMember(
  pool: Pool,
  actorId: string,
  chatId: string,
  userId: string,
): Promise<'added' | 'not_member' | 'not_owner' | 'no_user'> {
  const row = onlyRow(
    await single<{ owner_id: string | null; known: boolean }>(
      pool,
      `with chat as (
         select chats.id, chats.owner_id
         from chats
         join chat_members on chat_members.chat_id = chats.id and chat_members.user_id = $1
         where chats.id = $2
       ),
       added as (
         insert into chat_members (chat_id, user_id)
         select chat.id, users.id
         from chat
         join users on users.id = $3
         where chat.owner_id = $1
         on conflict do nothing
       )
       select (select owner_id from chat) as owner_id,
         exists (select from users where id = $3) as known`,
      [actorId, chatId, userId],
      { writes: true },
    ),
  );
  if (row.owner_id === null) return 'not_member';
  if (row.owner_id !== actorId) return 'not_owner';
  return row.known ? 'added' : 'no_user';
}

/** Guard: `actorId` owns the chat or leaves it, and the one who goes is not the owner. `not_member`: either of the two is none. */
async function removeMember(
  pool: Pool,
  actorId: string,
  chatId: string,
  userId: string,
): Promise<'removed' | 'not_member' | 'not_owner' | 'is_owner'> {
  const row = onlyRow(
    await single<{ owner_id: string | null; removed: boolean }>(
      pool,
      `with chat as (
         select chats.id, chats.owner_id
         from chats
         join chat_members on chat_members.chat_id = chats.id and chat_members.user_id = $1
         where chats.id = $2
       ),
       removed as (
         delete from chat_members
         using chat
         where chat_members.chat_id = chat.id
           and chat_members.user_id = $3
           and chat.owner_id <> $3
           and (chat.owner_id = $1 or $1 = $3)
         returning chat_members.user_id
       )
       select (select owner_id from chat) as owner_id,
         exists (select from removed) as removed`,
      [actorId, chatId, userId],
      { writes: true },
    ),
  );
  if (row.removed) return 'removed';
  if (row.owner_id === null) return 'not_member';
  if (row.owner_id === userId) return 'is_owner';
  return row.owner_id === actorId || actorId === userId ? 'not_member' : 'not_owner';
}
