/** A PostgreSQL for one test that may be killed: what it confirmed it keeps. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { freePort } from '../../../scripts/free-port.ts';
import { type Embedded, startEmbedded } from '../../../src/postgres/embedded.ts';
import { migrate } from '../../../src/postgres/migrate.ts';
import { type Client, connect } from '../../../src/postgres/pool.ts';
import { onEnd, type Scope } from '../on-end.ts';

export interface KillablePostgres {
  /** Of a database with the schema. It stays the same over all starts. */
  readonly url: string;
  /** SIGKILL to the server, and waits for its end. */
  kill(): Promise<void>;
  /** Starts it again in the same folder, on the same port. */
  start(): Promise<void>;
  /** One conversation over a connection of its own, past all proxies. */
  talk<T>(words: (client: Client) => Promise<T>): Promise<T>;
}

const log = { debug() {}, info() {}, warn() {}, error() {} };
/** The machine stays up, so the kernel keeps what was written: only the death of processes is at stake, and commits wait for their WAL. */
const settings = { fsync: 'off', full_page_writes: 'off', max_connections: '200' };

export async function startKillablePostgres(t: Scope): Promise<KillablePostgres> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-storm-postgres-'));
  const dir = path.join(folder, 'data');
  const port = await freePort();
  let server: Embedded = await startEmbedded({ dir, port, settings, log });
  const { url } = server;
  onEnd(t, async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });
  await migrate(url);
  return {
    url,
    async kill() {
      process.kill(server.pid, 'SIGKILL');
      await server.ended;
    },
    async start() {
      server = await startEmbedded({ dir, port, settings, log });
    },
    async talk(words) {
      const client = await connect({ url, name: 'storm' });
      try {
        return await words(client);
      } finally {
        await client.end();
      }
    },
  };
}
