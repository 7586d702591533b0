/**
 * Twins: the store's model and the SQL on PostgreSQL, given the same random verbs, compared after each of them.
 *
 * Both begin empty. Time is moved, not waited for: the model's clock goes forward, and every time in PostgreSQL goes back by as
 * much. No time of any row is ever within seconds of the moment at which a verb asks for it, so that the two cannot differ by
 * the milliseconds between them.
 */
import assert from 'node:assert/strict';
import type { Store } from '../../src/pipeline/store.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { acceptVerbs, claimVerbs, relayVerbs } from './store-accept.ts';
import { endVerbs } from './store-ends.ts';
import { keepingVerbs, operatorVerbs } from './store-keeping.ts';
import { createTables, type Moments, type Tables } from './store-tables.ts';
import { dumpModel, dumpSql } from './twins-dump.ts';
import { createGiven, unitMs, type Verb } from './twins-given.ts';
import { createRandom } from './world.ts';

const minuteMs = 60_000;
/** Times that differ by less are the same. */
export const toleranceMs = 4_000;

export interface Twins {
  /** Does one random verb on both and compares answers and rows. Throws an `AssertionError` that names the verb. */
  step(): Promise<string>;
}

export function createTwins({
  store,
  pool,
  owners,
  seed,
}: {
  store: Store;
  pool: Pool;
  owners: readonly string[];
  seed: number;
}): Twins {
  const random = createRandom(seed);
  const between = (min: number, max: number) => min + Math.floor(random() * (max - min + 1));
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)] as T;
  let movedMs = 0;
  const hex = (length: number) => Array.from({ length }, () => Math.floor(random() * 16).toString(16)).join('');
  const newId = () => {
    const time = (Date.now() + movedMs).toString(16).padStart(12, '0');
    return `${time.slice(0, 8)}-${time.slice(8)}-7${hex(3)}-8${hex(3)}-${hex(12)}`;
  };
  const tables = createTables({ nowMs: () => Date.now() + movedMs, newId });
  const model = verbsOf(tables);
  const given = createGiven({ tables, owners, newId, between, pick, hex });

  /** The same job has two ids when reprocessing made it: each side made its own. */
  const ids = new Map<string, string>();
  async function sqlId(jobId: string): Promise<string> {
    const known = ids.get(jobId);
    if (known) return known;
    const job = tables.jobs.get(jobId);
    if (!job) return jobId;
    const { rows } = await pool.query<{ id: string }>('select id from jobs where attachment_id = $1 and version = $2', [
      job.attachmentId,
      job.version,
    ]);
    const id = rows[0]?.id ?? jobId;
    ids.set(jobId, id);
    return id;
  }

  async function both<V extends Verb>(verb: V, ...args: Parameters<Moments[V]>): Promise<void> {
    const sqlArgs = verb === 'passedCleanup' ? await translateCleanup(args) : await translate(args);
    const act = model[verb] as (...args: unknown[]) => unknown;
    const ask = store[verb] as (...args: unknown[]) => Promise<unknown>;
    const [a, b] = await Promise.all([settled(async () => act(...args)), settled(async () => await ask(...sqlArgs))]);
    assertAlike(ordered(verb, await untranslate(b)), ordered(verb, a), `the answer of ${verb} ${JSON.stringify(args)}`);
    assertAlike(await dumpSql(pool, movedMs), dumpModel(tables), `the rows after ${verb} ${JSON.stringify(args)}`);
  }

  /** Clean-ups are numbered by each side for itself: the same one is the one with the same key in the same place. */
  async function translateCleanup(args: readonly unknown[]): Promise<unknown[]> {
    const [{ id, key, passes }, againMs] = args as [{ id: string; key: string; passes: number }, number];
    const alike = [...tables.cleanups.values()]
      .filter((row) => row.key === key && row.passes === passes)
      .sort((a, b) => a.notBefore - b.notBefore || a.reason.localeCompare(b.reason));
    const { rows } = await pool.query<{ id: string }>(
      'select id from cleanups where key = $1 and passes = $2 order by not_before, reason',
      [key, passes],
    );
    return [{ id: String(rows[alike.findIndex((row) => row.id === id)]?.id ?? 0), key, passes }, againMs];
  }

  async function translate(args: readonly unknown[]): Promise<unknown[]> {
    const text = JSON.stringify(args);
    let swapped = text;
    for (const jobId of tables.jobs.keys())
      if (text.includes(jobId)) swapped = swapped.replaceAll(jobId, await sqlId(jobId));
    // What the model calls now, PostgreSQL calls earlier: its rows were moved back instead.
    return (JSON.parse(swapped) as unknown[]).map((arg) =>
      typeof arg === 'object' && arg !== null && 'startedAt' in arg
        ? { ...arg, startedAt: new Date(Date.parse(String(arg.startedAt)) - movedMs).toISOString() }
        : arg,
    );
  }

  async function untranslate(answer: unknown): Promise<unknown> {
    let text = JSON.stringify(answer, (_name, value: unknown) => (value instanceof Set ? [...value].sort() : value));
    for (const jobId of tables.jobs.keys()) text = text?.replaceAll(await sqlId(jobId), jobId);
    return text === undefined ? undefined : (JSON.parse(text) as unknown);
  }

  /** Moves time, to a moment that is not close to any time of a row plus any whole number of units. */
  async function move(): Promise<void> {
    for (;;) {
      const byMs = between(1, 4 * unitMs);
      const now = Date.now() + movedMs + byMs;
      const isClear = timesOf(tables).every((time) => {
        const rest = Math.abs(now - time) % unitMs;
        const fromUnit = Math.min(rest, unitMs - rest);
        // What happened within the last minute is counted as well.
        return Math.min(fromUnit, Math.abs(rest - minuteMs)) > 2 * toleranceMs;
      });
      if (!isClear) continue;
      movedMs += byMs;
      await moveBack(pool, byMs);
      return;
    }
  }

  return {
    async step() {
      // Before every verb: times that were written a moment ago are never asked for at that moment, except when they are meant to be.
      await move();
      const { verb, args } = given.next();
      await both(verb, ...(args as never));
      return verb;
    },
  };

  function assertAlike(actual: unknown, expected: unknown, what: string): void {
    const plain = JSON.parse(
      JSON.stringify({ expected }, (_n, v: unknown) => (v instanceof Set ? [...v].sort() : v)),
    ) as { expected: unknown };
    const difference = differ(actual, plain.expected, movedMs, '');
    if (difference) assert.fail(`The model and PostgreSQL differ in ${what}: ${difference}`);
  }
}

function verbsOf(tables: Tables): Moments {
  return {
    ...acceptVerbs(tables),
    ...relayVerbs(tables),
    ...claimVerbs(tables),
    ...endVerbs(tables),
    ...keepingVerbs(tables),
    ...operatorVerbs(tables),
  } as Moments;
}

/** In which order equals are taken is not said. */
function ordered(verb: Verb, answer: unknown): unknown {
  if (verb !== 'takeDue' || !Array.isArray(answer)) return answer;
  return (answer as { jobId: string }[]).sort((one, other) => (one.jobId < other.jobId ? -1 : 1));
}

async function settled(act: () => Promise<unknown>): Promise<unknown> {
  try {
    return await act();
  } catch (error) {
    return { threw: (error as Error).name };
  }
}

/* -------------------------------------------------------------------- times */

function timesOf(tables: Tables): number[] {
  const rows: object[] = [
    ...tables.attachments.values(),
    ...tables.jobs.values(),
    ...tables.cleanups.values(),
    ...tables.keys.values(),
    ...tables.wishes.values(),
  ];
  return rows.flatMap((row) =>
    Object.values(row).filter((value): value is number => typeof value === 'number' && value > 1e12),
  );
}

const moved: Readonly<Record<string, readonly string[]>> = {
  attachments: ['created_at', 'updated_at', 'ready_at', 'deleted_at', 'staging_gone_at'],
  jobs: [
    ...['not_before', 'lease_until', 'ring_at', 'rung_at', 'turn', 'created_at', 'updated_at'],
    ...['claimed_at', 'finished_at', 'history_gone_at'],
  ],
  job_events: ['at'],
  cleanups: ['not_before', 'created_at'],
  idempotency_keys: ['lease_until', 'expires_at', 'created_at'],
  reprocessings: ['asked_at', 'done_at'],
};

async function moveBack(pool: Pool, ms: number): Promise<void> {
  // In one request: this is done before every verb.
  const updates = Object.entries(moved).map(([table, columns]) => {
    const sets = columns.map((column) => `${column} = ${column} - ${ms} * interval '1 millisecond'`).join(', ');
    return `update ${table} set ${sets}`;
  });
  await pool.query(updates.join('; '));
}

/** The first difference, or null. Times may be a little apart, and PostgreSQL's are `movedMs` earlier when they come as dates. */
function differ(actual: unknown, expected: unknown, movedMs: number, at: string): string | null {
  if (typeof actual === 'number' && typeof expected === 'number') {
    const apart = isTime.test(at) ? toleranceMs : isAge.test(at) ? toleranceMs / 1000 : 1e-9;
    return Math.abs(actual - expected) <= apart ? null : told(at, actual, expected);
  }
  if (isDate(actual) && isDate(expected)) {
    const apart = Math.abs(Date.parse(actual) + movedMs - Date.parse(expected));
    return apart <= toleranceMs ? null : told(at, actual, expected);
  }
  if (typeof actual === 'object' && typeof expected === 'object' && actual !== null && expected !== null) {
    const names = new Set([...Object.keys(actual), ...Object.keys(expected)]);
    for (const name of names) {
      const found = differ(Reflect.get(actual, name), Reflect.get(expected, name), movedMs, `${at}/${name}`);
      if (found) return found;
    }
    return null;
  }
  return actual === expected ? null : told(at, actual, expected);
}

/** Names of what is measured by clocks. */
const isTime = /\/(at|turn|notBefore|leaseUntil|retryAfterSeconds|\w+(At|Ms))$/;
const isAge = /\/oldest\w+Seconds$/;
const isDate = (value: unknown): value is string =>
  typeof value === 'string' && /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(value);
const told = (at: string, actual: unknown, expected: unknown) =>
  `${at || 'it'} is ${JSON.stringify(actual)} in PostgreSQL and ${JSON.stringify(expected)} in the model`;
