/**
 * The verbs of the command line: everything that a person starts and waits for, beside the roles of `wiring.ts`.
 *
 * Like a role, a verb is built by hand out of the parts that the settings name; it ends when it has said its result.
 */
import path from 'node:path';
import type { VerbOrder } from './cli-verbs.ts';
import type { Config } from './config.ts';
import { createSystemClock } from './drivers/clock-system.ts';
import { describe, StartError } from './errors.ts';
import { ensureOperator } from './http/auth.ts';
import { withoutEchoes } from './lifecycle.ts';
import { createOperate, type Operate } from './pipeline/operate.ts';
import type { People } from './pipeline/people.ts';
import { BlobError, type Blobs, type Clock, type Log } from './pipeline/ports.ts';
import { type Store, StoreError } from './pipeline/store.ts';
import { findEmbedded, startEmbedded } from './postgres/embedded.ts';
import { migrate, schemaProblem } from './postgres/migrate.ts';
import { createPeople } from './postgres/people.ts';
import { createPool, type Pool } from './postgres/pool.ts';
import { createSignals } from './postgres/signals.ts';
import { createStore } from './postgres/store.ts';
import { supervise } from './supervisor.ts';
import type { Telemetry } from './telemetry.ts';
import { examine, makeOperator, showStatus, sweep } from './verbs-care.ts';
import { listJobs, replayJobs, replayMany, reprocess, showJob } from './verbs-jobs.ts';
import { buildBlobs, requireDatabase, requireEngines } from './wiring-engines.ts';

/** `skrepka start`. Answers the exit code; rejects `StartError`. */
export async function startEverything(config: Config, { log }: Telemetry): Promise<number> {
  requireEngines(config);
  return await supervise(
    {
      log,
      print: (line) => console.log(line),
      startDatabase: (options) => startEmbedded({ dir: path.join(config.dataDir, 'postgres'), log, ...options }),
      migrate,
      ensureOperator: firstOperator,
    },
    config,
  );
}

/** `skrepka migrate`. Answers what was applied; rejects `StartError`. */
export async function migrateDatabase(config: Config): Promise<readonly string[]> {
  requireEngines(config);
  requireDatabase(config);
  try {
    const applied = await migrate(config.databaseUrl);
    await prepareStorage(config);
    return applied;
  } catch (error) {
    if (error instanceof StartError) throw error;
    throw new StartError(
      `The database of DATABASE_URL cannot be migrated: ${describe(error)}: start it, or correct DATABASE_URL.`,
      error,
    );
  }
}

/** The bucket, or the folder with its mark. */
async function prepareStorage(config: Config): Promise<void> {
  const pool = createPool({ url: config.databaseUrl, max: 1, name: 'skrepka migrate' });
  const blobs = await buildBlobs(config, pool);
  try {
    await blobs.prepare();
  } catch (error) {
    throw new StartError(
      `The storage of BLOBS_URL cannot be prepared: ${describe(error)}: start it, or correct BLOBS_URL and its keys.`,
      error,
    );
  } finally {
    await blobs.close();
    await pool.end();
  }
}

/** On a connection of its own: nothing else runs yet. */
async function firstOperator(url: string): Promise<{ handle: string; password: string } | null> {
  const pool = createPool({ url, max: 1, name: 'skrepka start' });
  try {
    return await ensureOperator(createPeople({ pool }));
  } finally {
    await pool.end();
  }
}

/* -------------------------------------------------------------- operators' verbs */

/** What a verb works with. */
export interface Tools {
  readonly pool: Pool;
  readonly store: Store;
  readonly people: People;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly operate: Operate;
  /** With the URL of the database that was found. */
  readonly config: Config;
  /** How a person knows the database: never its URL, which holds a password. */
  readonly databaseName: string;
  /** Aborts at Ctrl-C: what runs long ends with what it has found so far. */
  readonly signal: AbortSignal;
  /** A result, to standard output. */
  say(text: string): void;
  /** How far a long verb is, to a person at a terminal: overwritten by the next. */
  note(text: string): void;
}

/** These come to an end of their own at Ctrl-C, and tell what they know; the others are simply ended. */
const mayTakeLong: readonly VerbOrder['kind'][] = ['reprocess', 'sweep', 'doctor'];

/** Does an operator's verb and answers the exit code. Rejects `StartError`. */
export async function runVerb(order: VerbOrder, config: Config, telemetry: Telemetry): Promise<number> {
  requireEngines(config);
  const embedded = config.databaseUrl === '' ? path.join(config.dataDir, 'postgres') : null;
  const url = embedded === null ? config.databaseUrl : await findEmbedded(embedded);
  const pool = createPool({ url, max: config.databasePoolMax, name: `skrepka ${order.kind}` });
  const signals = createSignals({ pool, url, log: telemetry.log });
  const interrupted = new AbortController();
  if (mayTakeLong.includes(order.kind)) {
    const interrupt = withoutEchoes(() => (interrupted.signal.aborted ? process.exit(130) : interrupted.abort()));
    process.on('SIGINT', () => interrupt('SIGINT'));
  }
  const notes = createNotes();
  try {
    await requireSchema(pool, embedded);
    const store = createStore({ pool, signals });
    const found = { ...config, databaseUrl: url };
    const blobs = await buildBlobs(found, pool);
    const clock = createSystemClock();
    const { log } = telemetry;
    const tools: Tools = {
      ...{ pool, store, people: createPeople({ pool }), blobs, clock, log, config: found },
      operate: createOperate({ store, clock, log }, config),
      databaseName: embedded === null ? 'postgres:' : `embedded in ${embedded}`,
      signal: interrupted.signal,
      say: notes.say,
      note: notes.note,
    };
    return await obey(order, tools).finally(() => blobs.close());
  } catch (error) {
    throw sentenceOf(error);
  } finally {
    notes.clear();
    await signals.close();
    if (!pool.ended) await pool.end();
  }
}

async function obey(order: VerbOrder, tools: Tools): Promise<number> {
  switch (order.kind) {
    case 'status':
      return await showStatus(tools, order);
    case 'jobs':
      return await listJobs(tools, order);
    case 'job':
      return await showJob(tools, order);
    case 'replay':
      return await replayJobs(tools, order);
    case 'replay-many':
      return await replayMany(tools, order);
    case 'reprocess':
      return await reprocess(tools, order);
    case 'sweep':
      return await sweep(tools, order);
    case 'doctor':
      return await examine(tools, order);
    case 'operator':
      return await makeOperator(tools, order);
  }
}

/** Rejects `StartError` where the database does not answer, or has not the schema of this build. */
async function requireSchema(pool: Pool, embedded: string | null): Promise<void> {
  let problem: string | null;
  try {
    problem = await schemaProblem(pool);
  } catch (error) {
    const way = embedded === null ? 'start it, or correct DATABASE_URL' : 'look at the log of "npm start"';
    const name = embedded === null ? 'The database of DATABASE_URL' : `The PostgreSQL in ${embedded}`;
    throw new StartError(`${name} does not answer (${describe(error)}): ${way}.`, error);
  }
  if (problem !== null) throw new StartError(`The database cannot be used by this build: ${problem}.`);
}

/** Engines that went away on the way are no fault of ours, and one sentence. */
function sentenceOf(error: unknown): unknown {
  if (error instanceof StoreError) {
    return new StartError(
      `The database stopped answering (${describe(error)}): try again; what was done until then is done, and asking twice does no harm.`,
      error,
    );
  }
  if (error instanceof BlobError) {
    return new StartError(
      `The storage of BLOBS_URL does not answer (${describe(error)}): start it, or correct BLOBS_URL and its keys.`,
      error,
    );
  }
  return error;
}

/** Results go to standard output, one after the other; progress is a single line of standard error, on a terminal only. */
function createNotes() {
  const terminal = process.stderr;
  let isShown = false;
  const clear = () => {
    if (isShown) terminal.write('\r\x1b[K');
    isShown = false;
  };
  return {
    clear,
    say(text: string): void {
      clear();
      console.log(text);
    },
    note(text: string): void {
      if (!terminal.isTTY) return;
      terminal.write(`\r\x1b[K${text}`);
      isShown = true;
    },
  };
}
