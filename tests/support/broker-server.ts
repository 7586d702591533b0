/** A PostgreSQL for the broker alone, which a test stops, kills, starts again and empties without harm to others. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { freePort } from '../../scripts/free-port.ts';
import { type Embedded, startEmbedded } from '../../src/postgres/embedded.ts';
import { connect } from '../../src/postgres/pool.ts';
import type { BrokerHarness } from '../contract/broker.ts';
import { openPostgresBroker } from './broker-sql.ts';
import { until } from './until.ts';

const log = { debug() {}, info() {}, warn() {}, error: console.error };
// A killed process loses nothing that it gave to the operating system, and nobody pulls the plug here.
const settings = { fsync: 'off', full_page_writes: 'off' };

export interface BrokerServer {
  start(): Promise<void>;
  stop(): Promise<void>;
  /** SIGKILL of the postmaster; its children follow by themselves. */
  kill(): Promise<void>;
  /** Runs a statement as superuser, in `database` or in none in particular. */
  admin(statement: string, database?: string): Promise<void>;
  url(database: string): string;
  /** Starts again, if need be, with a new database; answers its name. */
  makeDatabase(): Promise<string>;
  /** The folder is gone, and so is everything in it: a restart without its volume. */
  loseDisk(): Promise<void>;
  close(): Promise<void>;
}

export async function createBrokerServer(): Promise<BrokerServer> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-broker-'));
  const dir = path.join(folder, 'data');
  const port = await freePort();
  let server: Embedded | null = await startEmbedded({ dir, port, settings, log });
  const { url: firstUrl } = server;

  const url = (database: string) => {
    const address = new URL(firstUrl);
    address.pathname = `/${database}`;
    return address.href;
  };
  const start = async () => {
    server ??= await startEmbedded({ dir, port, settings, log });
  };
  const stop = async () => {
    await server?.stop();
    server = null;
  };
  const admin = async (statement: string, database = 'skrepka') => {
    const client = await connect({ url: url(database), name: 'tests' });
    await client.query(statement).finally(() => client.end());
  };
  return {
    start,
    stop,
    async kill() {
      if (server) process.kill(server.pid, 'SIGKILL');
      await server?.ended;
      server = null;
    },
    admin,
    url,
    async makeDatabase() {
      await start();
      const name = `broker_${randomBytes(6).toString('hex')}`;
      await admin(`create database ${name}`);
      return name;
    },
    async loseDisk() {
      await stop();
      await rm(dir, { recursive: true });
      await start();
    },
    async close() {
      await stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** The harness of one case: a database of its own on `server`. */
export async function createPostgresHarness(server: BrokerServer): Promise<BrokerHarness> {
  const database = await server.makeDatabase();
  const url = server.url(database);
  return {
    open: () => openPostgresBroker(url),
    stop: server.stop,
    kill: server.kill,
    start: server.start,
    wipe: () => wipe(server, database),
    cut: () => cut(server, database),
    takeAndDie: (visibilityMs) => takeAndDie(url, visibilityMs),
    async close() {
      await server.start();
      await server.admin(`drop database ${database} with (force)`);
    },
  };
}

/**
 * Of a client that listens: a listening connection that is still being opened is not cut, and nothing is lost with the others. The
 * division fails where nobody listens yet.
 */
async function cut(server: BrokerServer, database: string): Promise<void> {
  const sessions = `from pg_stat_activity where datname = '${database}'`;
  const listens = `select 1 / count(*) ${sessions} and query ~* '^(listen |select 1$)'`;
  await until('the client listens', () =>
    server.admin(listens).then(
      () => true,
      () => false,
    ),
  );
  await server.admin(`select pg_terminate_backend(pid) ${sessions}`);
}

/** A take that is under way locks the two tables in its own order, and either may be the victim: it is done again. */
async function wipe(server: BrokerServer, database: string): Promise<void> {
  await until('the queue is dropped', () =>
    server.admin('drop schema skrepka_broker cascade', database).then(
      () => true,
      (error: { code?: string }) => (error.code === '40P01' ? false : Promise.reject(error)),
    ),
  );
}

async function takeAndDie(url: string, visibilityMs: number): Promise<void> {
  const taker = path.join(import.meta.dirname, 'broker-taker.ts');
  const child = spawn(process.execPath, [taker, url, String(visibilityMs)], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(child, 'exit');
  // Ends early when the process does: the case then misses what it should have taken.
  await once(child.stdout, 'data', { signal: AbortSignal.timeout(20_000) });
  child.kill('SIGKILL');
  await ended;
}
