/**
 * The schema: brings a database to the newest migration of this build, and tells which one it has.
 *
 * Migrations are plain SQL files, applied in one transaction under an advisory lock, so any number of processes may
 * start at once: one migrates, the others wait and find nothing left to do.
 */
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { runner } from 'node-pg-migrate';
import { StartError } from '../errors.ts';
import { connect, type Db } from './pool.ts';

const migrationsDir = path.join(import.meta.dirname, 'migrations');
const migrationsTable = 'migrations';

/** Applies what is missing and answers the names of what was applied. Rejects `StartError` when the schema is of a newer build. */
export async function migrate(url: string): Promise<readonly string[]> {
  // No statement time-out: a migration, and the wait for another process's, may be long.
  const client = await connect({ url, name: 'skrepka migrate', statementMs: 0 });
  try {
    const applied = await runner({
      dbClient: client,
      dir: migrationsDir,
      direction: 'up',
      migrationsTable,
      singleTransaction: true,
      checkOrder: true,
      advisoryLockMode: 'wait',
      // The runner tells its steps; the caller tells the result.
      log: () => {},
    });
    const version = await schemaVersion(client);
    if (version !== expectedVersion()) {
      throw new StartError(
        `The database has schema ${version}, newer than ${expectedVersion()} of this build: run the newer build, or restore the database from before its migration.`,
      );
    }
    return applied.map((migration) => migration.name);
  } finally {
    await client.end();
  }
}

/** The newest migration that was applied, e.g. `0001_first`, or null in a database without our schema. */
export async function schemaVersion(db: Db): Promise<string | null> {
  const present = await db.query<{ present: boolean }>('select to_regclass($1) is not null as present', [
    migrationsTable,
  ]);
  if (!present.rows[0]?.present) return null;
  const newest = await db.query<{ name: string }>('select name from migrations order by id desc limit 1');
  return newest.rows[0]?.name ?? null;
}

/** The newest migration that this build knows. */
export function expectedVersion(): string {
  return newestMigration;
}

const newestMigration = path.basename(
  readdirSync(migrationsDir)
    .filter((name) => name.endsWith('.sql'))
    .sort()
    .at(-1) ?? '',
  '.sql',
);
