/**
 * What the janitor asks: who leads, what is due to be deleted, what must not be, what has expired.
 *
 * A clean-up is a promise made in the transaction that stopped naming an object. Nothing here touches an object.
 */
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { isId } from '../ids.ts';
import { attemptPrefix } from '../pipeline/attachment.ts';
import { type Cleanup, StoreError } from '../pipeline/store.ts';
import { anyPlace, type Db, type Pool, single } from './pool.ts';
import { onlyRow } from './rows.ts';

/** Adds a clean-up, inside the transaction that needs it. `passes` are those after the first. */
export async function addCleanup(
  db: Db,
  cleanup: { key: string; afterMs: number; passes: number; reason: string },
): Promise<void> {
  await db.query(
    `insert into cleanups (key, not_before, passes, reason)
     values ($1, now() + $2 * interval '1 millisecond', $3, $4)`,
    [cleanup.key, cleanup.afterMs, cleanup.passes, cleanup.reason],
  );
}

/** Adds clean-ups of many keys at once. A key that already waits waits twice: whoever adds strays asks `awaitingCleanup` first. */
export async function addCleanups(
  pool: Pool,
  keys: readonly string[],
  options: { afterMs: number; passes: number; reason: string },
): Promise<void> {
  if (keys.length === 0) return;
  await single(
    pool,
    `insert into cleanups (key, not_before, passes, reason)
     select key, now() + $2 * interval '1 millisecond', $3, $4
     from unnest($1::text[]) as key`,
    [keys, options.afterMs, options.passes, options.reason],
    { writes: true },
  );
}

/** The clean-ups whose time has come, longest due first. */
export async function dueCleanups(pool: Pool, limit: number): Promise<readonly Cleanup[]> {
  const { rows } = await single<{ id: number; key: string; passes: number }>(
    pool,
    `select id, key, passes
     from cleanups
     where not_before <= now()
     order by not_before, id
     limit $1`,
    [limit],
    { writes: false },
  );
  return rows.map((row) => ({ id: String(row.id), key: row.key, passes: row.passes }));
}

export interface Passed {
  readonly cleanup: Cleanup;
  readonly againMs: number;
}

/**
 * Passes are over: of each clean-up one less to come after its `againMs`, or its row goes. Guard, for each by itself: `passes` as it
 * was read, so that saying it twice counts once.
 */
export async function passedCleanups(pool: Pool, passed: readonly Passed[]): Promise<readonly undefined[]> {
  await single(
    pool,
    `with passed as materialized (
       select *
       from unnest($1::bigint[], $2::int[], $3::float8[]) with ordinality as passed (id, passes, again_ms, n)
       where n ${anyPlace}
     ),
     again as (
       update cleanups
       set passes = cleanups.passes - 1,
           not_before = now() + passed.again_ms * interval '1 millisecond'
       from passed
       where cleanups.id = passed.id
         and cleanups.passes = passed.passes
         and cleanups.passes > 0
     )
     delete from cleanups
     using passed
     where cleanups.id = passed.id
       and cleanups.passes = passed.passes
       and cleanups.passes = 0`,
    [
      passed.map(({ cleanup }) => cleanup.id),
      passed.map(({ cleanup }) => cleanup.passes),
      passed.map(({ againMs }) => againMs),
    ],
    { writes: true },
  );
  return passed.map(() => undefined);
}

/**
 * Of `keys`, those that must not be deleted: named by a living attachment as its staging, original or variant, or inside
 * the folder of the attempt that holds a lease now. One statement, so that rows and attempts are of one moment: a settle
 * in between would show an object neither as an attempt's nor as a variant's.
 */
export async function namedAmong(pool: Pool, keys: readonly string[]): Promise<ReadonlySet<string>> {
  const ids = [...new Set(keys.map(attachmentOf).filter((id) => id !== null))];
  if (ids.length === 0) return new Set();
  const { rows } = await single<{
    id: string;
    named: string[];
    running: { version: number; fence: number; attempt_id: string }[];
  }>(
    pool,
    `select attachments.id,
       array_remove(
         array[
           attachments.original_key,
           case when attachments.staging_gone_at is null then attachments.staging_key end
         ] || array(select key from variants where attachment_id = attachments.id),
         null
       ) as named,
       array(
         select jsonb_build_object('version', version, 'fence', fence, 'attempt_id', attempt_id)
         from jobs
         where attachment_id = attachments.id
           and state = 'processing'
       ) as running
     from attachments
     where id = any($1::uuid[])
       and deleted_at is null`,
    [ids],
    { writes: false },
  );
  const named = new Set(rows.flatMap((row) => row.named));
  const running = rows.flatMap((row) =>
    row.running.map((one) => attemptPrefix(row.id, one.version, one.fence, one.attempt_id)),
  );
  return new Set(keys.filter((key) => named.has(key) || running.some((prefix) => key.startsWith(prefix))));
}

/** Of `keys`, those for which a clean-up waits: by the key, or by the folder of its attempt or of its attachment. */
export async function awaitingCleanup(pool: Pool, keys: readonly string[]): Promise<ReadonlySet<string>> {
  const covers = new Map(keys.map((key) => [key, [key, ...foldersOf(key)]]));
  const { rows } = await single<{ key: string }>(
    pool,
    `select distinct key
     from cleanups
     where key = any($1)`,
    [[...new Set([...covers.values()].flat())]],
    { writes: false },
  );
  const waiting = new Set(rows.map((row) => row.key));
  return new Set(keys.filter((key) => covers.get(key)?.some((cover) => waiting.has(cover))));
}

/** `a/b/c` → `a/b/`, `a/`. */
function foldersOf(key: string): string[] {
  const segments = key.split('/').slice(0, -1);
  return segments.map((_, index) => `${segments.slice(0, index + 1).join('/')}/`);
}

/** The attachment whose object a key is, or null for a key that we never make. */
function attachmentOf(key: string): string | null {
  const [root, id] = key.split('/');
  return (root === 'staging' || root === 'attachments') && isId(id) ? id : null;
}

/** Of these ids, those of attachments that have a row, tombstones among them: a delete sends its objects to the clean-ups itself. */
export async function knownAttachments(pool: Pool, ids: readonly string[]): Promise<ReadonlySet<string>> {
  const { rows } = await single<{ id: string }>(
    pool,
    `select id
     from attachments
     where id = any($1::uuid[])`,
    [ids.filter(isId)],
    { writes: false },
  );
  return new Set(rows.map((row) => row.id));
}

/** Removes expired idempotency keys and sessions, at most `limit` of each. Answers how many rows went. */
export async function expire(pool: Pool, limit: number): Promise<number> {
  const keys = await single(
    pool,
    `delete from idempotency_keys
     where (user_id, scope, key) in (
       select user_id, scope, key
       from idempotency_keys
       where coalesce(expires_at, lease_until) <= now()
       order by coalesce(expires_at, lease_until)
       limit $1
       for update skip locked
     )`,
    [limit],
    { writes: true },
  );
  const sessions = await single(
    pool,
    `delete from sessions
     where token_hash in (
       select token_hash
       from sessions
       where expires_at <= now()
       order by expires_at
       limit $1
       for update skip locked
     )`,
    [limit],
    { writes: true },
  );
  return (keys.rowCount ?? 0) + (sessions.rowCount ?? 0);
}

/**
 * Runs `work` while this process alone leads under `name`, by an advisory lock of one connection of the pool; false at
 * once when another leads. The connection is asked every `checkMs` whether it lives, since a dropped route sends no
 * reset, and `work`'s signal aborts when it does not, or when `closing` aborts. Two leaders for a moment do no harm:
 * every deletion looks its rows up. Rejects what `work` rejects, `StoreError('unavailable')` without a connection.
 */
export async function lead(
  pool: Pool,
  name: string,
  work: (signal: AbortSignal) => Promise<void>,
  options: { checkMs: number; closing: AbortSignal },
): Promise<boolean> {
  const client = await pool.connect().catch((error: unknown) => {
    throw new StoreError('unavailable', 'PostgreSQL cannot be reached', error);
  });
  const lost = new AbortController();
  const onLost = () => lost.abort();
  client.on('error', onLost);
  client.on('end', onLost);
  const over = new AbortController();
  try {
    if (!(await tryLock(client, name))) return false;
    void keepAsking(client, options.checkMs, over.signal).catch(onLost);
    await work(AbortSignal.any([lost.signal, options.closing]));
    return true;
  } finally {
    over.abort();
    client.off('error', onLost);
    client.off('end', onLost);
    // Closed, not given back: the lock ends with its connection, whatever state that is in.
    client.release(true);
  }
}

/** Rejects when the connection does not answer any more. */
async function keepAsking(db: Db, checkMs: number, over: AbortSignal): Promise<void> {
  while (!over.aborted) {
    await delay(checkMs, undefined, { signal: over, ref: false }).catch(() => undefined);
    if (!over.aborted) await db.query('select 1');
  }
}

async function tryLock(db: Db, name: string): Promise<boolean> {
  try {
    return onlyRow(await db.query<{ held: boolean }>('select pg_try_advisory_lock($1) as held', [lockId(name)])).held;
  } catch (error) {
    throw new StoreError('unavailable', 'The lead could not be asked for', error);
  }
}

/** 64 bits of a digest: advisory locks are numbers, shared by everything in the database. */
function lockId(name: string): string {
  return createHash('sha256').update(`skrepka lead ${name}`).digest().readBigInt64BE().toString();
}
