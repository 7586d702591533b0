/**
 * Connections to PostgreSQL: the pool, a transaction, a single statement and a listener that reconnects for ever.
 *
 * The only file that imports `pg`. Here an error of the driver becomes one of the store's two faults: `unavailable`
 * (certainly nothing was written) or `unknown` (a COMMIT was sent and its answer never came).
 */
import pg from 'pg';
import { StoreError } from '../pipeline/store.ts';
import { asStatement, isStale } from './statements.ts';

export type Pool = pg.Pool;
/** What runs a query: a pool, or a client inside a transaction. */
export interface Db {
  query<Row extends pg.QueryResultRow = pg.QueryResultRow>(
    text: string,
    values?: readonly unknown[],
  ): Promise<pg.QueryResult<Row>>;
}
export type Client = pg.Client;

export interface PoolSettings {
  readonly url: string;
  /** Connections at most. */
  readonly max: number;
  /** Shown in `pg_stat_activity`. */
  readonly name: string;
  /** For a new connection, or for one of the pool to come free. */
  readonly connectMs?: number;
  /** `statement_timeout` of the server. A statement whose answer is a quarter longer away counts as a lost connection. */
  readonly statementMs?: number;
}

const connectMsDefault = 5_000;
const statementMsDefault = 30_000;

/** A pool whose `bigint` columns are numbers; one beyond 2^53 rejects with a RangeError instead of losing digits. */
export function createPool(settings: PoolSettings): Pool {
  const pool = new pg.Pool({ ...connection(settings), max: settings.max, idleTimeoutMillis: 30_000 });
  // Without a listener a lost connection would end the process: idle ones report to the pool, busy ones to themselves.
  pool.on('error', () => {});
  pool.on('connect', (client) => client.on('error', () => {}));
  return pool;
}

/** One connection outside any pool, connected. The caller ends it. */
export async function connect(settings: Omit<PoolSettings, 'max'>): Promise<Client> {
  const client = new pg.Client(connection(settings));
  client.on('error', () => {});
  try {
    await client.connect();
  } catch (error) {
    await client.end().catch(() => {});
    throw error;
  }
  return client;
}

function connection(settings: Omit<PoolSettings, 'max'>): pg.ClientConfig {
  const statementMs = settings.statementMs ?? statementMsDefault;
  return {
    connectionString: settings.url,
    application_name: settings.name,
    connectionTimeoutMillis: settings.connectMs ?? connectMsDefault,
    statement_timeout: statementMs,
    // The server's own time-out comes first; this one is for a network that swallows packets.
    query_timeout: statementMs === 0 ? undefined : Math.ceil(statementMs * 1.25),
    idle_in_transaction_session_timeout: 60_000,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    types: { getTypeParser },
  };
}

const int8Oid = 20;
const getTypeParser = ((oid: number, format?: 'text') =>
  oid === int8Oid ? toSafeInteger : pg.types.getTypeParser(oid, format)) as typeof pg.types.getTypeParser;

function toSafeInteger(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`Expected a bigint below 2^53, received ${text}`);
  return value;
}

/**
 * Runs `work` between BEGIN and COMMIT on one connection. An error before the COMMIT rolls back and rejects `unavailable`
 * when PostgreSQL was out of reach, out of room or in another's way, with the original error otherwise. A COMMIT whose
 * answer never came rejects `unknown`. Nothing may be awaited in `work` but queries: locks are held meanwhile. It runs a
 * second time when a prepared statement was stale, so it keeps nothing outside itself.
 */
export async function transaction<T>(pool: Pool, work: (db: Db) => Promise<T>): Promise<T> {
  const client = await acquire(pool);
  let broken = false;
  try {
    const result = await attempt(client, prepared(client), work).catch((error: unknown) => {
      if (!isStale(error)) throw error;
      // Rolled back. Without names nothing can be stale, and the session with all its old statements ends afterwards.
      broken = true;
      return attempt(client, client, work);
    });
    await commit(client);
    return result;
  } catch (error) {
    broken ||= isLost(error) || (error instanceof StoreError && isLost(error.cause));
    throw error;
  } finally {
    client.release(broken);
  }
}

function prepared(client: pg.PoolClient): Db {
  return { query: (text, values) => client.query(asStatement(text, values)) };
}

async function attempt<T>(client: pg.PoolClient, db: Db, work: (db: Db) => Promise<T>): Promise<T> {
  try {
    await client.query('begin');
    return await work(db);
  } catch (error) {
    const lost = isLost(error);
    const rolledBack =
      !lost &&
      (await client.query('rollback').then(
        () => true,
        () => false,
      ));
    // A connection in an unknown state never goes back to the pool.
    if (!lost && !rolledBack) throw new StoreError('unavailable', 'Rollback failed', asLost(error));
    throw nothingWritten(error);
  }
}

async function commit(client: pg.PoolClient): Promise<void> {
  let answer: pg.QueryResult;
  try {
    answer = await client.query('commit');
  } catch (error) {
    if (isLost(error)) throw new StoreError('unknown', 'The answer to COMMIT never came', error);
    throw nothingWritten(error);
  }
  // PostgreSQL answers ROLLBACK to the COMMIT of a transaction whose failed statement was swallowed on the way.
  if (answer.command !== 'COMMIT') throw new Error(`Expected COMMIT for a transaction, received ${answer.command}`);
}

/** Runs each query as a `single` that writes: for work that is one statement here, and a part of a transaction elsewhere. */
export function committing(pool: Pool): Db {
  return { query: (text, values = []) => single(pool, text, values, { writes: true }) };
}

/**
 * One statement, committed by itself. With `writes`, a connection lost after the statement was sent rejects `unknown`;
 * every other fault of the connection or the server's resources rejects `unavailable`, the rest is passed on.
 * `replan`: its filters may be left out (`$1 is null or …`). A plan for all of them would read what the given one spares.
 */
export async function single<Row extends pg.QueryResultRow>(
  pool: Pool,
  text: string,
  values: readonly unknown[],
  { writes, replan = false }: { writes: boolean; replan?: boolean },
): Promise<pg.QueryResult<Row>> {
  const client = await acquire(pool);
  let broken = false;
  try {
    const plain = () => client.query<Row>(text, [...values]);
    if (replan) return await plain();
    return await client.query<Row>(asStatement(text, values)).catch((error: unknown) => {
      if (!isStale(error)) throw error;
      // It did not run. See `transaction`.
      broken = true;
      return plain();
    });
  } catch (error) {
    const lost = isLost(error);
    broken ||= lost;
    if (lost && writes) throw new StoreError('unknown', 'The answer to a write never came', error);
    throw nothingWritten(error);
  } finally {
    client.release(broken);
  }
}

/**
 * For statements that serve many calls: what the server refuses may be the fault of one of them, and it did nothing for any. Only its own
 * word proves that; what goes wrong while its answer is read comes after the commit.
 */
export const ownStatement = { most: 64, isOfOne: (error: unknown) => error instanceof pg.DatabaseError } as const;

/**
 * A bound of `with ordinality` that holds for every place of a list. With it the planner expects one row and goes by keys; of a list of unknown
 * length it expects ten, reads small tables whole for them, and goes on so with a kept plan when the tables have grown.
 */
export const anyPlace = 'between 1 and 1000';

/** Any failure to get a connection means that nothing was sent. */
async function acquire(pool: Pool): Promise<pg.PoolClient> {
  try {
    return await pool.connect();
  } catch (error) {
    throw new StoreError('unavailable', 'PostgreSQL cannot be reached', error);
  }
}

function nothingWritten(error: unknown): unknown {
  return isLost(error) || isBusy(error) ? new StoreError('unavailable', 'PostgreSQL did not do it', error) : error;
}

const socketCodes = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH']);
/** `pg` gives these no code (pg 8.23, `client.js`). */
const lostTexts = [
  'Connection terminated',
  'Query read timeout',
  'timeout exceeded when trying to connect',
  'Client has encountered a connection error',
  'Client was closed',
  'lost connection',
];
const lostMark = Symbol('lost');

/** The connection is gone: what was sent last may or may not have happened. */
export function isLost(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  if (lostMark in error) return true;
  const code = (error as { code?: unknown }).code;
  if (typeof code === 'string') return code.startsWith('08') || code.startsWith('57P') || socketCodes.has(code);
  return lostTexts.some((text) => error.message.startsWith(text));
}

/** Errors of the server that have nothing to do with the statement: no room, a time-out, a deadlock, a standby. */
function isBusy(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  if (typeof code !== 'string' || code.length !== 5) return false;
  return code.startsWith('53') || code.startsWith('40') || ['57014', '55P03', '25006'].includes(code);
}

function asLost(cause: unknown): Error {
  return Object.assign(new Error('Connection in an unknown state', { cause }), { [lostMark]: true });
}

export interface Listener {
  close(): Promise<void>;
}

export interface ListenSettings {
  readonly url: string;
  readonly name: string;
  readonly channels: readonly string[];
  readonly onMessage: (channel: string, payload: string) => void;
  /** Listening; `again` when it is not the first time: notifications may have been missed in between. */
  readonly onConnected?: (again: boolean) => void;
  readonly onLost?: (error: Error) => void;
}

const backOffMs = { first: 100, cap: 5_000 };
/** How often a silent connection is asked whether it lives: a dropped route sends no reset. */
const heartbeatMs = 20_000;

/** LISTENs on one connection of its own, and reconnects for ever, waiting 0.1 to 5 s between attempts, until closed. */
export function listen(settings: ListenSettings): Listener {
  const closing = new AbortController();
  const done = keepListening(settings, closing.signal);
  return {
    async close() {
      closing.abort();
      await done;
    },
  };
}

async function keepListening(settings: ListenSettings, signal: AbortSignal): Promise<void> {
  let delayMs = backOffMs.first;
  let again = false;
  while (!signal.aborted) {
    try {
      await listenOnce(settings, signal, () => {
        settings.onConnected?.(again);
        again = true;
        delayMs = backOffMs.first;
      });
    } catch (error) {
      settings.onLost?.(error instanceof Error ? error : new Error(String(error)));
    }
    if (!signal.aborted) await pause(delayMs * (0.5 + Math.random() / 2), signal);
    delayMs = Math.min(delayMs * 2, backOffMs.cap);
  }
}

/** Resolves when `signal` aborts, rejects when the connection is lost. */
async function listenOnce(settings: ListenSettings, signal: AbortSignal, onReady: () => void): Promise<void> {
  const client = await connect({ url: settings.url, name: settings.name, statementMs: 10_000 });
  let heartbeat: NodeJS.Timeout | undefined;
  try {
    const ended = new Promise<void>((resolve, reject) => {
      client.on('error', reject);
      client.on('end', () => reject(new Error('Connection terminated')));
      signal.addEventListener('abort', () => resolve(), { once: true });
      if (signal.aborted) resolve();
      heartbeat = setInterval(() => client.query('select 1').catch(reject), heartbeatMs);
      heartbeat.unref();
    });
    // It may reject while LISTEN is still on its way, which rejects as well.
    ended.catch(() => {});
    client.on('notification', ({ channel, payload }) => settings.onMessage(channel, payload ?? ''));
    for (const channel of settings.channels) await client.query(`listen ${pg.escapeIdentifier(channel)}`);
    if (!signal.aborted) onReady();
    await ended;
  } finally {
    clearInterval(heartbeat);
    await client.end().catch(() => {});
  }
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener('abort', end, { once: true });
  });
}
