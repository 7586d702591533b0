/**
 * The schema: brings a database to the newest migration of this build, and tells whether this build can run on it.
 *
 * Migrations are plain SQL files, applied in one transaction under an advisory lock, so any number of processes may
 * start at once: one migrates, the others wait and find nothing left to do.
 *
 * They only add, but for an index that goes, so that a build runs on every schema that has all of its own migrations, whatever came after them: two
 * builds work side by side during an upgrade, and a build can be rolled back without the database. A migration that
 * takes something away is named `…_breaking`, and a build that does not know it keeps its hands off
 * (`docs/decisions/0012-schema-tolerance.md`).
 */
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { runner } from 'node-pg-migrate';
import { StartError } from '../errors.ts';
import { connect, type Db } from './pool.ts';

const migrationsDir = path.join(import.meta.dirname, 'migrations');
const migrationsTable = 'migrations';

/** Applies what is missing and answers the names of what was applied. Rejects `StartError` when a newer build broke with this one. */
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
    const problem = await schemaProblem(client);
    if (problem) throw new StartError(`The database cannot be used by this build: ${problem}.`);
    return applied.map((migration) => migration.name);
  } finally {
    await client.end();
  }
}

/** Why this build cannot run on the schema of the database, with what to do, as the end of a sentence; null when it can. */
export async function schemaProblem(db: Db): Promise<string | null> {
  const applied = await appliedMigrations(db);
  const breaking = applied.find((name) => name.endsWith('_breaking') && !ownMigrations.includes(name));
  if (breaking)
    return `its schema has ${breaking} of a newer build, so run that build or restore the database from before`;
  const missing = ownMigrations.filter((name) => !applied.includes(name));
  if (missing.length === 0) return null;
  return `its schema lacks ${missing.join(', ')}, so run "npm run migrate"`;
}

/** The names of the applied migrations in order, e.g. `0001_first`; none in a database without our schema. */
export async function appliedMigrations(db: Db): Promise<readonly string[]> {
  const present = await db.query<{ present: boolean }>('select to_regclass($1) is not null as present', [
    migrationsTable,
  ]);
  if (!present.rows[0]?.present) return [];
  const { rows } = await db.query<{ name: string }>('select name from migrations order by id');
  return rows.map((row) => row.name);
}

/** The names of the migrations that this build brings, in order. */
export const ownMigrations: readonly string[] = readdirSync(migrationsDir)
  .filter((name) => name.endsWith('.sql'))
  .map((name) => path.basename(name, '.sql'))
  .sort();
