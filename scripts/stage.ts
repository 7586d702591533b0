/**
 * The stage of the scenario: a folder, a PostgreSQL and role processes of its own, which can be killed one by one.
 *
 * Everything listens on free ports of 127.0.0.1. The lines of the processes go to a file in the folder; `clear` ends what
 * still runs and removes the folder.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { type FileHandle, mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import type { ChildWord } from '../src/child.ts';
import { environmentWith } from '../src/config.ts';
import type { Log } from '../src/pipeline/ports.ts';
import { type Embedded, startEmbedded } from '../src/postgres/embedded.ts';

const main = path.resolve(import.meta.dirname, '../src/main.ts');

export interface Actor {
  readonly pid: number;
  /** Where the API listens; null for others. */
  readonly url: string | null;
  /** SIGKILL; resolves when it is gone. */
  kill(): Promise<void>;
  /** SIGTERM; resolves with its exit code. */
  stop(): Promise<number | null>;
}

export interface Stage {
  readonly folder: string;
  /** The last lines of all processes, for when something did not hold. */
  lastLines(): Promise<string>;
  /** Starts PostgreSQL, on the port that it had before if there was one. */
  startDatabase(): Promise<{ pid: number; kill(): Promise<void>; stop(): Promise<void> }>;
  /** Runs `skrepka migrate` to its end. Rejects when it fails. */
  migrate(): Promise<void>;
  /** Starts one process with these roles; resolves when it is ready. */
  startRoles(roles: readonly string[], settings?: Readonly<Record<string, string>>): Promise<Actor>;
  clear(): Promise<void>;
}

/** When `signal` aborts, nothing starts any more. */
export async function setStage(signal: AbortSignal): Promise<Stage> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-scenario-'));
  const lines = await open(path.join(folder, 'lines.log'), 'a');
  const children = new Set<ChildProcess>();
  let database: Embedded | null = null;
  let starting: Promise<Embedded> | null = null;

  function start(words: readonly string[], settings: Readonly<Record<string, string>> = {}) {
    signal.throwIfAborted();
    const child = spawn(process.execPath, [main, ...words], {
      stdio: ['ignore', lines.fd, lines.fd, 'ipc'],
      env: environmentWith({
        HOST: '127.0.0.1',
        PORT: '0',
        DATA_DIR: path.join(folder, 'data'),
        DATABASE_URL: database?.url ?? '',
        BROKER_URL: 'postgres:',
        BLOBS_URL: 'file:',
        ...settings,
      }),
    });
    children.add(child);
    const ended = new Promise<number | null>((resolve) => {
      child.once('exit', (code) => {
        children.delete(child);
        resolve(code);
      });
    });
    return { child, ended };
  }

  return {
    folder,
    lastLines: async () => (await readFile(path.join(folder, 'lines.log'), 'utf8')).split('\n').slice(-15).join('\n'),

    async startDatabase() {
      const dir = path.join(folder, 'data', 'postgres');
      starting = startEmbedded({ dir, log: silent, signal, ...(database ? { port: database.port } : {}) });
      const server = await starting;
      database = server;
      return {
        pid: server.pid,
        stop: () => server.stop(),
        async kill() {
          process.kill(server.pid, 'SIGKILL');
          await server.ended;
        },
      };
    },

    async migrate() {
      const code = await start(['migrate']).ended;
      if (code !== 0) throw new Error(`"skrepka migrate" ended with ${code}`);
    },

    async startRoles(roles, settings) {
      const { child, ended } = start(roles, settings);
      const word = new Promise<ChildWord>((resolve) => child.once('message', (heard) => resolve(heard as ChildWord)));
      const early = ended.then((code) => {
        throw new Error(`the process of ${roles.join(', ')} ended with ${code} before it was ready`);
      });
      const heard = await Promise.race([word, early]);
      early.catch(() => {});
      if (heard.kind === 'refused') throw new Error(heard.sentence);
      const { url } = heard;
      const end = async (signal: NodeJS.Signals) => {
        child.kill(signal);
        return await ended;
      };
      return { pid: child.pid ?? 0, url, kill: async () => void (await end('SIGKILL')), stop: () => end('SIGTERM') };
    },

    clear: () => clear(folder, lines, children, () => starting),
  };
}

async function clear(
  folder: string,
  lines: FileHandle,
  children: Set<ChildProcess>,
  starting: () => Promise<Embedded> | null,
) {
  for (const child of children) child.kill('SIGKILL');
  while (children.size > 0) await wait(10);
  const server = await starting()?.catch(() => null);
  await server?.stop();
  await lines.close();
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
}

const silent: Log = { debug() {}, info() {}, warn() {}, error() {} };
