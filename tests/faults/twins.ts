/**
 * Twins: the store's model and the SQL on PostgreSQL, given the same random verbs, compared after each of them.
 *
 * Both begin empty, and have one clock, which moves between two verbs only. So a seed is a sequence, whatever the machine does
 * meanwhile, and every time of a row is the same on both sides, to the millisecond.
 */
import assert from 'node:assert/strict';
import type { Store } from '../../src/pipeline/store.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { acceptVerbs, claimVerbs, relayVerbs } from './store-accept.ts';
import { endVerbs } from './store-ends.ts';
import { keepingVerbs, operatorVerbs } from './store-keeping.ts';
import { createTables, type Moments, type Tables } from './store-tables.ts';
import type { Clock } from './twins-clock.ts';
import { dumpModel, dumpSql } from './twins-dump.ts';
import { createGiven, unitMs, type Verb } from './twins-given.ts';
import { createRandom } from './world.ts';

export interface Twins {
  /** Does one random verb on both and compares answers and rows. Throws an `AssertionError` that names the verb. */
  step(): Promise<Step>;
}

/** What was asked and what both answered. */
export interface Step {
  readonly verb: Verb;
  readonly args: readonly unknown[];
  readonly answer: unknown;
}

export function createTwins({
  store,
  pool,
  clock,
  owners,
  seed,
}: {
  store: Store;
  /** Of sessions that ask `clock`. */
  pool: Pool;
  clock: Clock;
  owners: readonly string[];
  seed: number;
}): Twins {
  const random = createRandom(seed);
  const between = (min: number, max: number) => min + Math.floor(random() * (max - min + 1));
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)] as T;
  const hex = (length: number) => Array.from({ length }, () => Math.floor(random() * 16).toString(16)).join('');
  const newId = () => {
    const time = clock.nowMs().toString(16).padStart(12, '0');
    return `${time.slice(0, 8)}-${time.slice(8)}-7${hex(3)}-8${hex(3)}-${hex(12)}`;
  };
  const tables = createTables({ nowMs: clock.nowMs, newId });
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

  async function both<V extends Verb>(verb: V, ...args: Parameters<Moments[V]>): Promise<unknown> {
    const sqlArgs = verb === 'passedCleanup' ? await translateCleanup(args) : await translate(args);
    const act = model[verb] as (...args: unknown[]) => unknown;
    const ask = store[verb] as (...args: unknown[]) => Promise<unknown>;
    const [a, b] = await Promise.all([settled(async () => act(...args)), settled(async () => await ask(...sqlArgs))]);
    const answer = ordered(verb, await untranslate(b));
    assertAlike(answer, ordered(verb, a), `the answer of ${verb} ${JSON.stringify(args)}`);
    const rows = await dumpSql(pool, clock.nowMs());
    assertAlike(rows, dumpModel(tables), `the rows after ${verb} ${JSON.stringify(args)}`);
    return answer;
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
    return JSON.parse(swapped) as unknown[];
  }

  async function untranslate(answer: unknown): Promise<unknown> {
    let text = JSON.stringify(answer, (_name, value: unknown) => (value instanceof Set ? [...value].sort() : value));
    for (const jobId of tables.jobs.keys()) text = text?.replaceAll(await sqlId(jobId), jobId);
    return text === undefined ? undefined : (JSON.parse(text) as unknown);
  }

  return {
    async step() {
      await clock.forward(between(1, 4 * unitMs));
      const { verb, args } = given.next();
      return { verb, args, answer: await both(verb, ...(args as never)) };
    },
  };

  function assertAlike(actual: unknown, expected: unknown, what: string): void {
    const plain = JSON.parse(
      JSON.stringify({ expected }, (_n, v: unknown) => (v instanceof Set ? [...v].sort() : v)),
    ) as { expected: unknown };
    const difference = differ(actual, plain.expected, '');
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

/** What a division may lose. */
const fraction = 1e-9;

/** The first difference, or null. */
function differ(actual: unknown, expected: unknown, at: string): string | null {
  if (typeof actual === 'number' && typeof expected === 'number') {
    return Math.abs(actual - expected) <= fraction ? null : told(at, actual, expected);
  }
  if (typeof actual === 'object' && typeof expected === 'object' && actual !== null && expected !== null) {
    const names = new Set([...Object.keys(actual), ...Object.keys(expected)]);
    for (const name of names) {
      const found = differ(Reflect.get(actual, name), Reflect.get(expected, name), `${at}/${name}`);
      if (found) return found;
    }
    return null;
  }
  return actual === expected ? null : told(at, actual, expected);
}

const told = (at: string, actual: unknown, expected: unknown) =>
  `${at || 'it'} is ${JSON.stringify(actual)} in PostgreSQL and ${JSON.stringify(expected)} in the model`;
