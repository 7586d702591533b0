/**
 * The queue of the broker `postgres:` as it lies in the database: its tables, and every statement that touches them.
 *
 * Each verb is one statement and one transaction: nothing is locked between two of them. The queue may vanish at any time
 * (dropped, truncated, the server restarted on an empty disk): a verb that finds no table makes it anew and goes on, and
 * whoever listens to `onDisrupted` hears of it.
 */
import { inBatches } from '../batches.ts';
import { describe } from '../errors.ts';
import { BrokerError, type Log } from '../pipeline/ports.ts';
import { StoreError } from '../pipeline/store.ts';

/** What the driver needs of PostgreSQL; `src/postgres/pool.ts` has all of it. */
export interface BrokerSql {
  /** One statement, committed by itself. Rejects `StoreError` for a fault of the connection, the server's own error otherwise. */
  query<Row extends Record<string, unknown>>(text: string, values: readonly unknown[]): Promise<{ rows: Row[] }>;
  /** LISTENs on a connection of its own and reconnects for ever. `again`: not for the first time. */
  listen(
    channel: string,
    on: { heard(): void; connected(again: boolean): void; lost(): void },
  ): { close(): Promise<void> };
  /** Called once, when the broker has closed. */
  close(): Promise<void>;
}

/** Names one hand-over: whoever has the token may end it, until the next take gives the message another. */
export interface Holding {
  readonly id: string;
  readonly token: string;
}

export interface Taken extends Holding {
  readonly body: Uint8Array;
  readonly deliveries: number;
}

export interface Queue {
  /** Creates or verifies the tables. Rejects `refused` with one sentence when something else is there. */
  prepare(): Promise<void>;
  /** Stores messages durably; an id that is there already is left alone. */
  insert(messages: readonly { id: string; body: Uint8Array }[]): Promise<void>;
  /** Visible → handed out for `visibilityMs`. `nextMs`: until another message becomes visible, null when none will. */
  take(limit: number, visibilityMs: number): Promise<{ taken: readonly Taken[]; nextMs: number | null }>;
  /** Handed out → gone, durably. Guard: the token. Those that are removed at once share a statement. */
  remove(holding: Holding): Promise<void>;
  /** Handed out → waiting, visible after `delayMs`. Guard: the token. */
  release(holding: Holding, delayMs: number): Promise<void>;
  /** Handed out → handed out for `visibilityMs` from now on. Guard: the token. */
  extend(holding: Holding, visibilityMs: number): Promise<void>;
  /** Taken and never used → waiting, as if it had not been taken. Guard: the token. */
  giveBack(holdings: readonly Holding[]): Promise<void>;
  /** Wakes the consumers of every process. */
  notify(): Promise<void>;
  depth(): Promise<{ waiting: number; inFlight: number }>;
  /** Asks which queue is there; another than before is a disruption. */
  look(): Promise<void>;
  /** A connection was lost, so the next success is a disruption. */
  lost(): void;
  recovered(): void;
  /** Called after an outage, and when the queue is another than before. */
  onDisrupted(listener: () => void): () => void;
  /** Every verb rejects `unavailable` from now on. */
  close(): void;
}

export function createQueue(sql: BrokerSql, log?: Pick<Log, 'warn'>): Queue {
  const watch = createWatch();
  let preparing: Promise<void> | null = null;
  let closed = false;

  function prepare(): Promise<void> {
    preparing ??= prepareQueue(sql).finally(() => {
      preparing = null;
    });
    return preparing.catch((error) => Promise.reject(asBrokerError(error)));
  }

  async function run<Row extends Record<string, unknown>>(text: string, values: readonly unknown[]): Promise<Row[]> {
    if (closed) throw new BrokerError('unavailable', 'The broker is closed');
    try {
      const { rows } = await sql.query<Row>(text, values).catch(async (error) => {
        if (!isMissing(error)) throw error;
        log?.warn({ reason: describe(error) }, 'the queue in PostgreSQL is gone; making it anew');
        await prepare();
        return sql.query<Row>(text, values);
      });
      watch.recovered();
      return rows;
    } catch (error) {
      if (!watch.down()) log?.warn({ reason: describe(error) }, 'the queue in PostgreSQL does not answer');
      watch.lost();
      throw asBrokerError(error);
    }
  }

  const drop = (all: readonly Holding[]) => run(removeText, columnsOf(all)).then(() => all.map(() => undefined));

  return {
    prepare,
    async insert(messages) {
      const bodies = messages.map(({ body }) => Buffer.from(body));
      const rows = await run<Seen>(insertText, [messages.map(({ id }) => id), bodies]);
      watch.saw(rows[0]);
    },
    async take(limit, visibilityMs) {
      const rows = await run<TakeRow>(takeText, [limit, visibilityMs]);
      watch.saw(rows[0]);
      return { taken: rows.flatMap(toTaken), nextMs: rows[0]?.next_ms ?? null };
    },
    remove: inBatches(drop, { most: removeMax }),
    async release({ id, token }, delayMs) {
      await run(releaseText, [id, token, delayMs]);
    },
    async extend({ id, token }, visibilityMs) {
      await run(extendText, [id, token, visibilityMs]);
    },
    async giveBack(holdings) {
      await run(giveBackText, columnsOf(holdings));
    },
    async notify() {
      await run(`select pg_notify($1, '')`, [channel]);
    },
    async depth() {
      const [row] = await run<{ waiting: number; in_flight: number }>(depthText, []);
      return { waiting: row?.waiting ?? 0, inFlight: row?.in_flight ?? 0 };
    },
    async look() {
      watch.saw((await run<Seen>(lookText, []))[0]);
    },
    lost: watch.lost,
    recovered: watch.recovered,
    onDisrupted: watch.onDisrupted,
    close() {
      closed = true;
      watch.close();
    },
  };
}

const columnsOf = (all: readonly Holding[]) => [all.map(({ id }) => id), all.map(({ token }) => token)];

interface Seen extends Record<string, unknown> {
  readonly incarnation: string;
}

/** Notices that the queue was out of reach, or is another than the one seen last. */
function createWatch() {
  const listeners = new Set<() => void>();
  let outage = false;
  let known: string | null = null;
  // In a microtask: a listener that throws must not end the loop that noticed.
  const disrupted = () => {
    for (const listener of listeners) queueMicrotask(listener);
  };
  return {
    down: () => outage,
    lost() {
      outage = true;
    },
    recovered() {
      if (outage) disrupted();
      outage = false;
    },
    saw(row: Seen | undefined) {
      if (row === undefined) return;
      if (known !== null && row.incarnation !== known) disrupted();
      known = row.incarnation;
    },
    onDisrupted(listener: () => void) {
      const own = () => listener();
      listeners.add(own);
      return () => {
        listeners.delete(own);
      };
    },
    close: () => listeners.clear(),
  };
}

function codeOf(error: unknown): string {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : '';
}

/** Undefined table, or undefined schema: somebody dropped the queue. */
function isMissing(error: unknown): boolean {
  return ['42P01', '3F000'].includes(codeOf(error));
}

function asBrokerError(error: unknown): BrokerError {
  if (error instanceof BrokerError) return error;
  if (error instanceof StoreError) return new BrokerError(error.fault, 'PostgreSQL does not answer', error);
  // Dropped again meanwhile, or while the statement ran (an internal error then): nothing was stored, and it passes.
  if (isMissing(error) || codeOf(error) === 'XX000') {
    return new BrokerError('unavailable', 'The queue in PostgreSQL is being dropped', error);
  }
  return new BrokerError('refused', 'PostgreSQL refused the statement', error);
}

/* ------------------------------------------------------------------ tables */

const version = 1;
const removeMax = 200;
export const channel = 'skrepka_broker';

/** A truncated table gets another file, a new one another epoch: together they name the queue. */
const incarnationText = `
  pg_relation_filenode('skrepka_broker.messages')::text
  || coalesce((select ' ' || about.epoch from skrepka_broker.about), '')`;

const shapes = {
  about: 'one boolean, version integer, epoch uuid',
  messages: 'id text, body bytea, visible_at timestamp with time zone, token uuid, deliveries integer',
};

/** Nothing there → created; ours → verified without any lock or right to create; anything else → refused, untouched. */
async function prepareQueue(sql: BrokerSql): Promise<void> {
  const look = async () => {
    const { rows } = await sql.query<{ about: string | null; messages: string | null }>(shapeText, []);
    const found = rows[0] ?? { about: null, messages: null };
    for (const table of ['about', 'messages'] as const) {
      if (found[table] === null || found[table] === shapes[table]) continue;
      throw new BrokerError(
        'refused',
        `Expected a table skrepka_broker.${table} (${shapes[table]}), received one of (${found[table]}); move it away or choose another database`,
      );
    }
    if (found.about === null || found.messages === null) return null;
    const about = await sql.query<{ version: number }>('select version from skrepka_broker.about', []);
    return about.rows[0]?.version ?? null;
  };
  let found = await look();
  for (let attempt = 1; found === null && attempt <= 3; attempt += 1) {
    await sql.query(createText, []).catch((error) => {
      if (!isCollision(error)) throw error;
    });
    found = await look();
  }
  if (found !== version) {
    throw new BrokerError(
      'refused',
      `Expected version ${version} of the queue skrepka_broker, received ${found}; drop that schema when no process uses it, its messages are announced again`,
    );
  }
}

/**
 * "Create if not exists" collides in the catalogue when two run at once: the loser waits for the winner's commit and fails,
 * and what it wanted is there. An advisory lock around it does not help: a backend that looked before trusts its cache.
 */
function isCollision(error: unknown): boolean {
  // Unique violation (in the catalogue), duplicate schema, duplicate table.
  return ['23505', '42P06', '42P07'].includes(codeOf(error));
}

const shapeText = `
select
  max(columns) filter (where name = 'about') as about,
  max(columns) filter (where name = 'messages') as messages
from (
  select
    class.relname::text as name,
    string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' order by attnum) as columns
  from pg_class as class
  join pg_attribute on attrelid = class.oid
  where class.relnamespace = to_regnamespace('skrepka_broker')
    and attnum > 0
    and not attisdropped
  group by class.relname
) as tables`;

// In one block, so in one transaction: whole or not at all.
const createText = `
do $$
begin
  create schema if not exists skrepka_broker;
  create table if not exists skrepka_broker.about (
    one boolean primary key default true check (one),
    version int not null,
    epoch uuid not null default gen_random_uuid()
  );
  create table if not exists skrepka_broker.messages (
    id text primary key,
    body bytea not null,
    visible_at timestamptz not null default now(),
    -- Of the delivery that is out; null while nobody has it.
    token uuid,
    deliveries int not null default 0
  )
  -- Every row dies soon: clean early, or takes wade through dead index entries.
  with (autovacuum_vacuum_scale_factor = 0.01);
  create index if not exists messages_visible on skrepka_broker.messages (visible_at);
  insert into skrepka_broker.about (version)
  values (${version})
  on conflict do nothing;
end
$$`;

/* -------------------------------------------------------------- statements */

/** Effective for the transaction of the statement that reads it: a server may have it off, and a confirmation is a promise. */
const durable = `durable as materialized (select set_config('synchronous_commit', 'on', true) as setting)`;

// In the order of ids: two processes that store the same ones wait for each other in line, not in a circle.
const insertText = `
with ${durable}, stored as (
  insert into skrepka_broker.messages (id, body)
  select message.id, message.body
  from unnest($1::text[], $2::bytea[]) as message (id, body), durable
  order by message.id
  on conflict (id) do nothing
)
select ${incarnationText} as incarnation`;

interface TakeRow extends Seen {
  readonly next_ms: number | null;
  readonly id: string | null;
  readonly body: Uint8Array;
  readonly token: string;
  readonly deliveries: number;
}

// Not flushed: what a dying server forgets of it comes once more. The bound on deliveries always holds: see `anyPlace`. One row at
// least, also when none is due; both halves look at one now(), so that none becomes visible between "none is due" and "the next is".
const takeText = `
with due as (
  select id, deliveries
  from skrepka_broker.messages
  where visible_at <= now()
    and (select set_config('synchronous_commit', 'off', true)) is not null
  order by visible_at
  limit $1
  for update skip locked
), taken as (
  update skrepka_broker.messages as message
  set
    visible_at = now() + $2 * interval '1 millisecond',
    token = gen_random_uuid(),
    deliveries = message.deliveries + 1
  from due
  where message.id = due.id and due.deliveries between 0 and 2147483647
  returning message.id, message.body, message.token, message.deliveries
), next as (
  select ceil(extract(epoch from min(visible_at) - now()) * 1000)::float8 as ms
  from skrepka_broker.messages
  where visible_at > now()
)
select ${incarnationText} as incarnation, next.ms as next_ms, taken.*
from next
left join taken on true`;

function toTaken(row: TakeRow): Taken[] {
  if (row.id === null) return [];
  // The driver's buffers are slices of what came from the socket: a copy lets that go.
  return [{ id: row.id, body: Uint8Array.from(row.body), token: row.token, deliveries: row.deliveries }];
}

// A row at a time by its key: of a list of unknown length the planner expects ten, and reads a small table whole for them.
const removeText = `
with ${durable}, gone as materialized (
  select id, token
  from durable, unnest($1::text[], $2::uuid[]) with ordinality as gone (id, token, n)
  where n between 1 and ${removeMax}
)
delete from skrepka_broker.messages as message
using gone
where message.id = gone.id
  and message.token = gone.token`;

const releaseText = `
update skrepka_broker.messages
set
  visible_at = now() + $3 * interval '1 millisecond',
  token = null
where id = $1
  and token = $2`;

const extendText = `
update skrepka_broker.messages
set visible_at = now() + $3 * interval '1 millisecond'
where id = $1
  and token = $2`;

const giveBackText = `
update skrepka_broker.messages as message
set
  visible_at = now(),
  token = null,
  deliveries = message.deliveries - 1
from unnest($1::text[], $2::uuid[]) as back (id, token)
where message.id = back.id
  and message.token = back.token`;

const depthText = `
select
  count(*) filter (where token is null or visible_at <= now())::int as waiting,
  count(*) filter (where token is not null and visible_at > now())::int as in_flight
from skrepka_broker.messages`;

const lookText = `select ${incarnationText} as incarnation`;
