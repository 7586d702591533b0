/** Databases for tests: each test has its own, a clone of a migrated template, on the one PostgreSQL of the run. */
import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import { connect, createPool, type Pool } from '../../src/postgres/pool.ts';
import { onEnd, type Scope } from './on-end.ts';
import { startServer, type TestServer } from './server.ts';

/** Nothing is learnt from a connection of a test's own that takes long on a busy machine. */
export const connectMs = 60_000;

export interface TestDatabase {
  readonly url: string;
  readonly pool: Pool;
}

/**
 * A new database, dropped when `t` ends. `empty`: without the schema. `poolMax`: connections of `pool`, 10 when left out.
 * Run by hand without the runner's global setup, the first call starts a server that ends with this process.
 */
export async function freshDatabase(
  t: Scope,
  { empty = false, poolMax = 10 }: { empty?: boolean; poolMax?: number } = {},
): Promise<TestDatabase> {
  const server = await serverUrl();
  const name = `test_${randomBytes(8).toString('hex')}`;
  await asAdmin(server, `create database ${name} template ${empty ? 'template0' : 'template_skrepka'}`);
  const address = new URL(server);
  address.pathname = `/${name}`;
  const pool = createPool({ url: address.href, max: poolMax, name: 'tests', connectMs });
  onEnd(t, async () => {
    await pool.end();
    // Processes that a test killed may still have sessions.
    await asAdmin(server, `drop database ${name} with (force)`);
  });
  return { url: address.href, pool };
}

/** The superuser's URL of the run's server, in a database of its own. */
export async function serverUrl(): Promise<string> {
  const shared = process.env.SKREPKA_TEST_POSTGRES;
  if (shared) return shared;
  own ??= startServer();
  return (await own).url;
}

let own: Promise<TestServer> | null = null;
after(async () => {
  if (own) await (await own).stop();
});

async function asAdmin(url: string, statement: string): Promise<void> {
  const admin = await connect({ url, name: 'tests', connectMs });
  try {
    await admin.query(statement);
  } finally {
    await admin.end();
  }
}
