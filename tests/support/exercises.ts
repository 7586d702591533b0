/**
 * One request for every declared response of every route: what `tests/http/coverage.test.ts` sends and checks against the
 * OpenAPI document. A new route or status without an exercise fails there.
 */
import assert from 'node:assert/strict';
import { newId } from '../../src/ids.ts';
import type { Account } from './api.ts';
import { png, type Uploads } from './uploads.ts';

export interface Served {
  readonly uploads: Uploads;
  readonly ada: Account;
  /** A member of Ada's chat, owner of nothing. */
  readonly bob: Account;
  readonly operator: Account;
  readonly chat: string;
  readonly message: string;
  /** Ada's: ready and shared with Bob, queued, failed. */
  readonly ready: string;
  readonly queued: string;
  readonly failed: string;
}

interface Options {
  readonly as?: Account | null;
  readonly json?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: RequestInit['body'];
}

/** Sends one request, as Ada unless told otherwise. */
export async function ask({ uploads, ada }: Pick<Served, 'uploads' | 'ada'>, line: string, options: Options = {}) {
  const [method = '', path = ''] = line.split(' ');
  const { as = ada, json, headers, body } = options;
  return fetch(uploads.url + path, {
    method,
    redirect: 'manual',
    headers: {
      ...(as === null ? {} : { authorization: `Bearer ${as.token}` }),
      ...(json === undefined ? {} : { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(json === undefined ? {} : { body: JSON.stringify(json) }),
    ...(body === undefined ? {} : { body }),
    ...(body instanceof ReadableStream ? { duplex: 'half' } : {}),
  } as RequestInit);
}

type Exercise = (s: Served) => Promise<Response>;
export type Exercises = Readonly<Record<string, Readonly<Record<number, Exercise>>>>;

export async function serve(uploads: Uploads): Promise<Served> {
  const { ada } = uploads;
  const [bob, operator] = [await uploads.account('bob'), await uploads.account('the.operator', 'admin')];
  const made = async (word: string) => (await uploads.send(png(word))).body.id;
  const [ready, queued, failed] = [await made('ready'), await made('queued'), await made('failed')];
  await uploads.publish(ready);
  await uploads.fail(failed);
  const id = async (answer: Promise<Response>) => ((await (await answer).json()) as { id: string }).id;
  const known = { uploads, ada };
  const chat = await id(ask(known, 'POST /v1/chats', { json: { title: 'cats' } }));
  assert.equal((await ask(known, `PUT /v1/chats/${chat}/members/${bob.id}`)).status, 204);
  const json = { text: 'look', attachment_ids: [ready] };
  const message = await id(ask(known, `POST /v1/chats/${chat}/messages`, { json }));
  return { ...known, bob, operator, chat, message, ready, queued, failed };
}

const key = (word: string) => ({ 'idempotency-key': word });

const system: Exercises = {
  'GET /': { 302: (s) => ask(s, 'GET /', { as: null }) },
  'GET /v1/limits': { 200: (s) => ask(s, 'GET /v1/limits', { as: null }) },
  'GET /health/live': { 200: (s) => ask(s, 'GET /health/live', { as: null }) },
  'GET /health/ready': { 200: (s) => ask(s, 'GET /health/ready', { as: null }) },
  'GET /metrics': {
    200: (s) => ask(s, 'GET /metrics', { as: null }),
    401: (s) => ask(s, 'GET /metrics', { headers: { forwarded: 'for=203.0.113.7' } }),
  },
  'GET /problems/{code}': {
    200: (s) => ask(s, 'GET /problems/not_found', { as: null }),
    404: (s) => ask(s, 'GET /problems/nothing', { as: null }),
  },
};

const attachments: Exercises = {
  'POST /v1/attachments': {
    202: (s) => ask(s, 'POST /v1/attachments', { body: png('new') }),
    400: (s) => ask(s, 'POST /v1/attachments', { body: '' }),
    408: (s) => ask(s, 'POST /v1/attachments', { body: new ReadableStream({ start: (c) => c.enqueue(png()) }) }),
    409: async (s) => {
      const held = s.uploads.points.hold('accept.stored');
      const first = ask(s, 'POST /v1/attachments', { body: png(), headers: key('busy') });
      await held.reached;
      const second = await ask(s, 'POST /v1/attachments', { body: png(), headers: key('busy') });
      held.pass();
      await first;
      return second;
    },
    413: (s) => ask(s, 'POST /v1/attachments', { body: new Uint8Array(2_000_000) }),
    415: (s) => ask(s, 'POST /v1/attachments', { body: 'x', headers: { 'content-type': 'image/png' } }),
    422: async (s) => {
      await ask(s, 'POST /v1/attachments', { body: png('one'), headers: key('used') });
      return ask(s, 'POST /v1/attachments', { body: png('two'), headers: key('used') });
    },
    429: async (s) => {
      const as = await s.uploads.account('flooding');
      const { pending_per_user_max: most } = (await s.uploads.call('GET /v1/limits')).body;
      for (let at = 0; at < Number(most); at += 1) await ask(s, 'POST /v1/attachments', { as, body: png() });
      return ask(s, 'POST /v1/attachments', { as, body: png() });
    },
  },
  'GET /v1/attachments': {
    200: (s) => ask(s, 'GET /v1/attachments?limit=2'),
    400: (s) => ask(s, 'GET /v1/attachments?limit=x'),
  },
  'GET /v1/attachments/{id}': {
    200: (s) => ask(s, `GET /v1/attachments/${s.ready}`, { as: s.bob }),
    400: (s) => ask(s, `GET /v1/attachments/${s.ready}?wait=x`),
    404: (s) => ask(s, `GET /v1/attachments/${s.queued}`, { as: s.bob }),
  },
  'PATCH /v1/attachments/{id}': {
    200: (s) => ask(s, `PATCH /v1/attachments/${s.ready}`, { json: { alt: 'a cat' } }),
    400: (s) => ask(s, `PATCH /v1/attachments/${s.ready}`, { json: {} }),
    403: (s) => ask(s, `PATCH /v1/attachments/${s.ready}`, { json: { alt: 'mine' }, as: s.bob }),
    404: (s) => ask(s, `PATCH /v1/attachments/${newId()}`, { json: { alt: 'a cat' } }),
  },
  'DELETE /v1/attachments/{id}': {
    204: async (s) => ask(s, `DELETE /v1/attachments/${(await s.uploads.send(png('gone'))).body.id}`),
    403: (s) => ask(s, `DELETE /v1/attachments/${s.ready}`, { as: s.bob }),
    404: (s) => ask(s, `DELETE /v1/attachments/${newId()}`),
  },
};

/** The same for both routes that answer bytes. */
function bytes(end: string): Readonly<Record<number, Exercise>> {
  const get = (s: Served, id: string, headers: Record<string, string> = {}) =>
    ask(s, `GET /v1/attachments/${id}/${end}`, { headers });
  return {
    200: (s) => get(s, s.ready),
    206: (s) => get(s, s.ready, { range: 'bytes=0-0' }),
    304: (s) => get(s, s.ready, { 'if-none-match': '*' }),
    404: (s) => get(s, newId()),
    409: (s) => get(s, s.failed),
    416: (s) => get(s, s.ready, { range: 'bytes=9999-' }),
  };
}

const password = 'correct horse';
const logIn = (s: Served, handle: string, word: string) =>
  ask(s, 'POST /v1/sessions', { json: { handle, password: word }, as: null });

const people: Exercises = {
  'POST /v1/users': {
    201: (s) => ask(s, 'POST /v1/users', { json: { handle: 'eve', password }, as: null }),
    400: (s) => ask(s, 'POST /v1/users', { json: { handle: 'E', password }, as: null }),
    409: (s) => ask(s, 'POST /v1/users', { json: { handle: 'ada', password }, as: null }),
  },
  'POST /v1/sessions': {
    201: (s) => logIn(s, 'ada', 'password of ada'),
    400: (s) => ask(s, 'POST /v1/sessions', { json: {}, as: null }),
    401: (s) => logIn(s, 'nobody', password),
    429: async (s) => {
      // As many failures as a window allows, then one more.
      for (let at = 0; at < 3; at += 1) await logIn(s, 'bob', 'wrong guess');
      return logIn(s, 'bob', 'wrong guess');
    },
  },
  'DELETE /v1/sessions/current': {
    204: async (s) => ask(s, 'DELETE /v1/sessions/current', { as: await s.uploads.account('leaving') }),
  },
  'GET /v1/users/me': { 200: (s) => ask(s, 'GET /v1/users/me') },
};

const chats: Exercises = {
  'POST /v1/chats': {
    201: (s) => ask(s, 'POST /v1/chats', { json: { title: 'dogs' } }),
    400: (s) => ask(s, 'POST /v1/chats', { json: { title: '' } }),
  },
  'GET /v1/chats': { 200: (s) => ask(s, 'GET /v1/chats'), 400: (s) => ask(s, 'GET /v1/chats?limit=0') },
  'GET /v1/chats/{id}': {
    200: (s) => ask(s, `GET /v1/chats/${s.chat}`),
    404: (s) => ask(s, `GET /v1/chats/${newId()}`),
  },
  'PUT /v1/chats/{id}/members/{user}': {
    204: (s) => ask(s, `PUT /v1/chats/${s.chat}/members/${s.bob.id}`),
    403: (s) => ask(s, `PUT /v1/chats/${s.chat}/members/${s.operator.id}`, { as: s.bob }),
    404: (s) => ask(s, `PUT /v1/chats/${s.chat}/members/${newId()}`),
  },
  'DELETE /v1/chats/{id}/members/{user}': {
    204: async (s) => {
      const carol = await s.uploads.account('carol');
      await ask(s, `PUT /v1/chats/${s.chat}/members/${carol.id}`);
      return ask(s, `DELETE /v1/chats/${s.chat}/members/${carol.id}`);
    },
    403: (s) => ask(s, `DELETE /v1/chats/${s.chat}/members/${s.ada.id}`),
    404: (s) => ask(s, `DELETE /v1/chats/${newId()}/members/${s.bob.id}`),
  },
};

const send = (s: Served, chat: string, json: unknown, headers = {}) =>
  ask(s, `POST /v1/chats/${chat}/messages`, { json, headers });

const messages: Exercises = {
  'POST /v1/chats/{id}/messages': {
    201: (s) => send(s, s.chat, { text: 'hello', attachment_ids: [s.queued] }),
    400: (s) => send(s, s.chat, { text: 7 }),
    404: (s) => send(s, newId(), { text: 'hello' }),
    409: (s) => send(s, s.chat, { text: 'hello', attachment_ids: [s.failed] }),
    422: async (s) => {
      await send(s, s.chat, { text: 'one' }, key('said'));
      return send(s, s.chat, { text: 'two' }, key('said'));
    },
  },
  'GET /v1/chats/{id}/messages': {
    200: (s) => ask(s, `GET /v1/chats/${s.chat}/messages`),
    400: (s) => ask(s, `GET /v1/chats/${s.chat}/messages?cursor=!`),
    404: (s) => ask(s, `GET /v1/chats/${newId()}/messages`),
  },
  'GET /v1/messages/{id}': {
    200: (s) => ask(s, `GET /v1/messages/${s.message}`),
    404: (s) => ask(s, `GET /v1/messages/${newId()}`),
  },
  'DELETE /v1/messages/{id}': {
    204: async (s) => {
      const { id } = (await (await send(s, s.chat, { text: 'oops' })).json()) as { id: string };
      return ask(s, `DELETE /v1/messages/${id}`);
    },
    403: (s) => ask(s, `DELETE /v1/messages/${s.message}`, { as: s.bob }),
    404: (s) => ask(s, `DELETE /v1/messages/${newId()}`),
  },
};

/** The job of one of Ada's attachments. */
async function jobOf(s: Served, attachment: string): Promise<string> {
  const { rows } = await s.uploads.pool.query('select id from jobs where attachment_id = $1', [attachment]);
  return rows[0].id;
}

async function failedJob(s: Served): Promise<string> {
  const { id } = (await s.uploads.send(png('failing'))).body;
  await s.uploads.fail(id);
  return jobOf(s, id);
}

const operators: Exercises = {
  'GET /v1/admin/queue': { 200: (s) => ask(s, 'GET /v1/admin/queue', { as: s.operator }) },
  'GET /v1/admin/jobs': {
    200: (s) => ask(s, 'GET /v1/admin/jobs?state=failed', { as: s.operator }),
    400: (s) => ask(s, 'GET /v1/admin/jobs?state=lost', { as: s.operator }),
  },
  'GET /v1/admin/jobs/{id}': {
    200: async (s) => ask(s, `GET /v1/admin/jobs/${await jobOf(s, s.failed)}`, { as: s.operator }),
    404: (s) => ask(s, `GET /v1/admin/jobs/${newId()}`, { as: s.operator }),
  },
  'POST /v1/admin/jobs/{id}/replay': {
    202: async (s) => ask(s, `POST /v1/admin/jobs/${await failedJob(s)}/replay`, { as: s.operator }),
    404: (s) => ask(s, `POST /v1/admin/jobs/${newId()}/replay`, { as: s.operator }),
    409: async (s) => ask(s, `POST /v1/admin/jobs/${await jobOf(s, s.ready)}/replay`, { as: s.operator }),
  },
  'POST /v1/admin/replay': {
    200: (s) => ask(s, 'POST /v1/admin/replay', { as: s.operator, json: { owner_id: s.bob.id } }),
    400: (s) => ask(s, 'POST /v1/admin/replay', { as: s.operator, json: {} }),
  },
  'GET /v1/admin/reprocess': { 200: (s) => ask(s, 'GET /v1/admin/reprocess', { as: s.operator }) },
  'POST /v1/admin/reprocess': {
    200: (s) => ask(s, 'POST /v1/admin/reprocess', { as: s.operator, json: { dry_run: true } }),
    202: (s) => ask(s, 'POST /v1/admin/reprocess', { as: s.operator, json: {} }),
    400: (s) => ask(s, 'POST /v1/admin/reprocess', { as: s.operator, json: { retry_failed: 'yes' } }),
    404: (s) => ask(s, 'POST /v1/admin/reprocess', { as: s.operator, json: { attachment_id: newId() } }),
    409: (s) => ask(s, 'POST /v1/admin/reprocess', { as: s.operator, json: { attachment_id: s.queued } }),
  },
};

export const exercises: Exercises = {
  ...system,
  ...attachments,
  'GET /v1/attachments/{id}/content': bytes('content'),
  'GET /v1/attachments/{id}/variants/{name}': bytes('variants/thumbnail'),
  ...people,
  ...chats,
  ...messages,
  ...operators,
};
