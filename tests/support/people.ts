/** People, chats and messages on a real PostgreSQL, for tests of their port. */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import type { Message } from '../../src/pipeline/message.ts';
import type { SendResult } from '../../src/pipeline/people.ts';
import type { Page } from '../../src/pipeline/registry.ts';
import { createPeople } from '../../src/postgres/people.ts';
import { freshDatabase } from './postgres.ts';

export const all = { limit: 50, cursor: null };

/** People on a fresh database, with short words for making accounts, chats, attachments and messages. */
export async function startPeople(t: TestContext) {
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

/** The message of a result that must be one. */
export function sent(result: SendResult): Message {
  assert.equal(result.kind, 'sent');
  return result.kind === 'sent' ? result.message : assert.fail();
}

/** The ids of a page that must be there. */
export function ids(page: Page<{ id: string }> | null): string[] {
  assert.ok(page);
  return page.items.map((item) => item.id);
}
