/**
 * A chat on a real server, for tests of its routes: ada owns it, bob is a member, eve is not. Beside it, what no route
 * of the kind may take.
 */

import type { TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import { type Account, startApi } from './api.ts';

/** A server with ada, who owns a chat, bob, who is a member of it, and eve, who is not. */
export async function startChat(t: TestContext, options?: Parameters<typeof startApi>[1]) {
  const api = await startApi(t, options);
  const [ada, bob, eve] = [await api.account('ada'), await api.account('bob'), await api.account('eve')];
  const chatId = newId();
  await api.people.createChat({ id: chatId, title: 'Plans', ownerId: ada.id });
  await api.people.addMember(ada.id, chatId, bob.id);
  const send = (who: Account, json: unknown, key?: string) =>
    api.call(`POST /v1/chats/${chatId}/messages`, {
      token: who.token,
      json,
      ...(key === undefined ? {} : { headers: { 'idempotency-key': key } }),
    });
  const count = async () => Number((await api.pool.query('select count(*) from messages')).rows[0]?.count);
  const members = async () => (await api.people.chatFor(ada.id, chatId))?.members.map((member) => member.handle);
  return { ...api, ada, bob, eve, chatId, send, count, members };
}

/** What a path may hold in place of an id, so that nothing is found. */
export const noIds = () => [newId(), newId().toUpperCase(), 'x', '%00', "'"];

/** Queries that no list takes, each with the parameter to blame. */
export const badPages = [
  ['limit=0', 'limit'],
  ['limit=201', 'limit'],
  ['limit=x', 'limit'],
  ['cursor=x', 'cursor'],
  ['cursor=', 'cursor'],
  [`cursor=${newId()}`, 'cursor'],
  [`cursor=${'A'.repeat(600)}`, 'cursor'],
] as const;
