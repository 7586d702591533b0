/**
 * The verbs of the command line: everything that a person starts and waits for, beside the roles of `wiring.ts`.
 *
 * Like a role, a verb is built by hand out of the parts that the settings name; it ends when it has said its result.
 */
import path from 'node:path';
import type { Config } from './config.ts';
import { describe, StartError } from './errors.ts';
import { ensureOperator } from './http/auth.ts';
import { startEmbedded } from './postgres/embedded.ts';
import { migrate } from './postgres/migrate.ts';
import { createPeople } from './postgres/people.ts';
import { createPool } from './postgres/pool.ts';
import { supervise } from './supervisor.ts';
import type { Telemetry } from './telemetry.ts';
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
      ensureOperator: makeOperator,
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

/** The bucket, where there is one. */
async function prepareStorage(config: Config): Promise<void> {
  const blobs = await buildBlobs(config);
  try {
    await blobs.prepare();
  } catch (error) {
    throw new StartError(
      `The storage of BLOBS_URL cannot be prepared: ${describe(error)}: start it, or correct BLOBS_URL and its keys.`,
      error,
    );
  } finally {
    await blobs.close();
  }
}

/** On a connection of its own: nothing else runs yet. */
async function makeOperator(url: string): Promise<{ handle: string; password: string } | null> {
  const pool = createPool({ url, max: 1, name: 'skrepka start' });
  try {
    return await ensureOperator(createPeople({ pool }));
  } finally {
    await pool.end();
  }
}
