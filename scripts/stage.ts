/**
 * The stage of the scenarios: a folder, a PostgreSQL and role processes of its own, which can be killed one by one.
 *
 * Everything listens on free ports of 127.0.0.1. The lines of the processes are kept for when something does not hold; `clear`
 * ends what still runs and removes the folder.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import type { ChildWord } from '../src/child.ts';
import { environmentWith } from '../src/config.ts';
import type { Log } from '../src/pipeline/ports.ts';
import { type Embedded, startEmbedded } from '../src/postgres/embedded.ts';
import type { Role } from '../src/roles.ts';
import type { Scope } from '../tests/support/on-end.ts';
import { type RoleOptions, type RoleProcess, startRole } from '../tests/support/role.ts';

const main = path.resolve(import.meta.dirname, '../src/main.ts');

type Settings = Readonly<Record<string, string>>;

export interface Actor {
  readonly pid: number;
  /** Where the API listens; null for others. */
  readonly url: string | null;
  /** SIGKILL; resolves when it is gone. */
  kill(): Promise<void>;
  /** SIGTERM; resolves with its exit code. */
  stop(): Promise<number | null>;
}

export interface Database {
  readonly pid: number;
  /** Carries the password: never told. */
  readonly url: string;
  kill(): Promise<void>;
  stop(): Promise<void>;
}

export interface Stage {
  readonly folder: string;
  /** Where the processes keep what is embedded. */
  readonly dataDir: string;
  /** What is registered here ends with the stage, before the database does. */
  readonly scope: Scope;
  /** The last lines of all processes, for when something did not hold. */
  lastLines(): Promise<string>;
  /** Settings of every process that starts from now on. */
  configure(settings: Settings): void;
  /** Starts PostgreSQL, on the port that it had before if there was one. */
  startDatabase(): Promise<Database>;
  /** Runs `skrepka migrate` to its end. Rejects when it fails. */
  migrate(): Promise<void>;
  /** Starts one process with these roles, as production does; resolves when it is ready. */
  startRoles(roles: readonly string[], settings?: Settings): Promise<Actor>;
  /** Starts one process with these roles, wired as in production, that stops or dies where it is told to. */
  play(roles: readonly Role[], options?: Pick<RoleOptions, 'settings' | 'points'>): Promise<RoleProcess>;
  clear(): Promise<void>;
}

/** When `signal` aborts, nothing starts any more. */
export async function setStage(signal: AbortSignal): Promise<Stage> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-scenario-'));
  const dataDir = path.join(folder, 'data');
  const linesFile = path.join(folder, 'lines.log');
  const lines = await open(linesFile, 'a');
  const children = new Set<ChildProcess>();
  const played: RoleProcess[] = [];
  const ends: (() => Promise<void>)[] = [];
  const scope: Scope = { after: (end) => void ends.push(end) };
  let settings: Settings = {};
  let database: Embedded | null = null;
  let starting: Promise<Embedded> | null = null;

  function start(words: readonly string[], own: Settings = {}) {
    signal.throwIfAborted();
    const all = {
      HOST: '127.0.0.1',
      PORT: '0',
      DATA_DIR: dataDir,
      DATABASE_URL: database?.url ?? '',
      ...settings,
      ...own,
    };
    const child = spawn(process.execPath, [main, ...words], {
      stdio: ['ignore', lines.fd, lines.fd, 'ipc'],
      env: environmentWith(all),
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
    dataDir,
    scope,
    lastLines: async () => tail([await readFile(linesFile, 'utf8'), ...played.map((role) => role.output())]),
    configure(more) {
      settings = { ...settings, ...more };
    },
    async startDatabase() {
      const dir = path.join(dataDir, 'postgres');
      starting = startEmbedded({ dir, log: silent, signal, ...(database ? { port: database.port } : {}) });
      database = await starting;
      return mortal(database);
    },
    async migrate() {
      const code = await start(['migrate']).ended;
      if (code !== 0) throw new Error(`"skrepka migrate" ended with ${code}`);
    },
    startRoles: (roles, own) => actorOf(roles.join(', '), start(roles, own)),
    async play(roles, { settings: own = {}, points = {} } = {}) {
      signal.throwIfAborted();
      const databaseUrl = database?.url ?? '';
      const role = await startRole(scope, { roles, databaseUrl, dataDir, points, settings: { ...settings, ...own } });
      played.push(role);
      return role;
    },
    async clear() {
      for (const child of children) child.kill('SIGKILL');
      while (children.size > 0) await wait(10);
      for (const end of ends.splice(0)) await end();
      await (await starting?.catch(() => null))?.stop();
      await lines.close();
      await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

/** The end of every one of these outputs that says anything. */
function tail(outputs: readonly string[]): string {
  return outputs
    .filter((output) => output !== '')
    .map((output) => output.split('\n').slice(-8).join('\n'))
    .join('\n');
}

function mortal(server: Embedded): Database {
  return {
    pid: server.pid,
    url: server.url,
    stop: () => server.stop(),
    async kill() {
      process.kill(server.pid, 'SIGKILL');
      await server.ended;
    },
  };
}

/** Resolves when the process says that it is ready. */
async function actorOf(
  name: string,
  { child, ended }: { child: ChildProcess; ended: Promise<number | null> },
): Promise<Actor> {
  const word = new Promise<ChildWord>((resolve) => child.once('message', (heard) => resolve(heard as ChildWord)));
  const early = ended.then((code) => {
    throw new Error(`the process of ${name} ended with ${code} before it was ready`);
  });
  const heard = await Promise.race([word, early]);
  early.catch(() => {});
  if (heard.kind === 'refused') throw new Error(heard.sentence);
  const end = async (signal: NodeJS.Signals) => {
    child.kill(signal);
    return await ended;
  };
  return {
    pid: child.pid ?? 0,
    url: heard.url,
    kill: async () => void (await end('SIGKILL')),
    stop: () => end('SIGTERM'),
  };
}

const silent: Log = { debug() {}, info() {}, warn() {}, error() {} };
