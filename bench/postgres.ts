/**
 * The PostgreSQL of a reference: the same server as the product brings along, as durable, for databases of its own.
 */
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { freePort } from '../scripts/free-port.ts';
import { type Embedded, startEmbedded } from '../src/postgres/embedded.ts';
import { onEnd, type Scope } from '../tests/support/on-end.ts';
import { once } from './references/uploads.ts';

export interface BenchPostgres {
  /** Of the running server; 0 while there is none. */
  readonly pid: number;
  /** A new, empty database; it goes with the server unless it is dropped before. */
  create(): Promise<{ url: string; drop(): Promise<void> }>;
  /** SIGKILL of the server, which takes all its sessions along. */
  kill(): Promise<void>;
  /** Starts the killed server again, on the same port. */
  start(): Promise<void>;
}

const silent = { debug() {}, info() {}, warn() {}, error() {} };

/** A server with the settings that the product ships, fsync on; it and its folder are gone when `scope` ends. */
export async function startPostgres(scope: Scope): Promise<BenchPostgres> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-bench-postgres-'));
  const port = await freePort();
  let server: Embedded | null = null;
  onEnd(scope, async () => {
    await server?.stop();
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  });
  const start = async () => {
    server = await startEmbedded({ dir: path.join(folder, 'data'), log: silent, port });
  };
  const current = (): Embedded => {
    if (!server) throw new Error('Expected a PostgreSQL, found none');
    return server;
  };
  await start();
  return {
    get pid() {
      return server?.pid ?? 0;
    },
    async create() {
      const name = `bench_${randomBytes(6).toString('hex')}`;
      await once(current().url, (admin) => admin.query(`create database ${name} template template0`));
      const address = new URL(current().url);
      address.pathname = `/${name}`;
      return {
        url: address.href,
        drop: () =>
          once(current().url, async (admin) => void (await admin.query(`drop database ${name} with (force)`))),
      };
    },
    async kill() {
      const { pid, ended } = current();
      process.kill(pid, 'SIGKILL');
      await ended;
      server = null;
    },
    start,
  };
}
