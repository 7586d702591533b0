/**
 * The product as its users run it: an embedded PostgreSQL as it is shipped, the roles as processes of their own, the engines of
 * choice. It lies in a folder of its own and is gone when its scope ends.
 *
 * Nothing is tuned for a measurement but the limits for one user, which a load from one place would meet at once.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { freePort } from '../scripts/free-port.ts';
import { type EngineNames, openEngines } from '../scripts/stage-engines.ts';
import type { ChildWord } from '../src/child.ts';
import { environmentWith } from '../src/config.ts';
import { type Embedded, startEmbedded } from '../src/postgres/embedded.ts';
import { migrate } from '../src/postgres/migrate.ts';
import type { Role } from '../src/roles.ts';
import { onEnd, type Scope } from '../tests/support/on-end.ts';
import { cpuMsOf } from './usage.ts';
import { type Ask, type BenchUser, connectTo, registerUser } from './user.ts';

export type { BenchUser, Uploaded, Uploading, View } from './user.ts';

const root = path.resolve(import.meta.dirname, '..');

export interface ProductOptions {
  /** Left out: `embedded`. The other one needs `missingEngines` of `scripts/stage-engines.ts` to be null. */
  readonly engines?: EngineNames;
  /** Environment variables of `docs/configuration.md`, for all processes. */
  readonly settings?: Readonly<Record<string, string>>;
  /** The roles of each process. Left out: as `skrepka start` does, the API with relay and janitor, and one worker. */
  readonly roles?: readonly (readonly Role[])[];
  /** Added to that of its processes, 0 to 19; PostgreSQL keeps its own. */
  readonly niceness?: number;
  /** In place of the script that renders, wired by `tests/support/role-process.ts`: for what is measured without pixels. */
  readonly renderScript?: URL;
}

/** `workers` are all processes that take deliveries but do not listen. */
export type Part = 'postgres' | 'api' | 'workers';

export interface Product {
  /** Of the API; it stays the same over a kill and a start. Empty where no process has that role. */
  readonly url: string;
  /** Carries the password: never told. */
  readonly databaseUrl: string;
  readonly dataDir: string;
  /** As they are now; 0 for one that does not run, and for `api` where no process has that role. */
  readonly processes: { readonly postgres: number; readonly api: number; readonly workers: readonly number[] };
  /** Pids of all of ours, PostgreSQL included, for `cpuMsOf` and `residentMiBOf`; servers of NATS and S3 are not ours. */
  readonly roots: readonly number[];
  /** A new account. */
  user(): Promise<BenchUser>;
  /** SIGKILL; resolves when it is gone. */
  kill(part: Part): Promise<void>;
  /** Starts again what was killed; resolves when it is ready. */
  start(part: Part): Promise<void>;
  /** Resolves when it spends next to nothing; rejects after `deadlineMs` (30 s). */
  untilCalm(deadlineMs?: number): Promise<void>;
  /** The last lines of all processes, for when something did not hold. */
  lastLines(): Promise<string>;
}

/** What stands in the way of a load from one user; `settings` of a row go before. */
const unthrottled = {
  MAX_UPLOADS_PER_MINUTE: '1000000',
  MAX_PENDING_PER_USER: '1000000',
  MAX_UPLOADS_PER_USER: '256',
};

const asStarted: readonly (readonly Role[])[] = [['api', 'relay', 'janitor'], ['worker']];
const silent = { debug() {}, info() {}, warn() {}, error() {} };

/** Calm: at most this share of a core over a while, which is above what the idle product takes. */
const calm = { share: 0.04, overMs: 500 };

/** Starts it and waits until it is ready and calm: render children are loaded, nothing of the start is measured. */
export async function openProduct(scope: Scope, options: ProductOptions = {}): Promise<Product> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-bench-'));
  onEnd(scope, () => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const dataDir = path.join(folder, 'data');
  const engines = await openEngines(options.engines ?? 'embedded', scope, dataDir);
  const postgres = await keepPostgres(scope, path.join(dataDir, 'postgres'));
  await migrate(postgres.server().url);
  const lines = await openLines(scope, path.join(folder, 'lines.log'));
  const settings = {
    ...unthrottled,
    ...engines.settings,
    HOST: '127.0.0.1',
    PORT: '0',
    ...options.settings,
    DATABASE_URL: postgres.server().url,
    DATA_DIR: dataDir,
  };
  const all = (options.roles ?? asStarted).map((roles) => createActor(scope, { roles, settings, lines, options }));
  await Promise.all(all.map((actor) => actor.start()));
  const api = all.find(({ roles }) => roles.includes('api'));
  const workers = all.filter(({ roles }) => roles.includes('worker') && !roles.includes('api'));
  const ask: Ask = connectTo(() => api?.url() ?? '', scope);

  const partOf = (part: Part): readonly { start(): Promise<void>; kill(): Promise<void> }[] =>
    ({ postgres: [postgres], api: api ? [api] : [], workers })[part];
  const roots = () => [postgres.server().pid, ...all.map((actor) => actor.pid())].filter((pid) => pid !== 0);
  const product: Product = {
    get url() {
      return api?.url() ?? '';
    },
    databaseUrl: postgres.server().url,
    dataDir,
    get processes() {
      return { postgres: postgres.server().pid, api: api?.pid() ?? 0, workers: workers.map((actor) => actor.pid()) };
    },
    get roots() {
      return roots();
    },
    user: () => registerUser(ask),
    kill: async (part) => void (await Promise.all(partOf(part).map((one) => one.kill()))),
    start: async (part) => void (await Promise.all(partOf(part).map((one) => one.start()))),
    untilCalm: (deadlineMs = 30_000) => untilCalm(roots, deadlineMs),
    lastLines: async () => (await readFile(path.join(folder, 'lines.log'), 'utf8')).split('\n').slice(-20).join('\n'),
  };
  await product.untilCalm();
  return product;
}

/** Durable, as it is shipped: no setting is changed. */
async function keepPostgres(scope: Scope, dir: string) {
  const port = await freePort();
  const giveUp = new AbortController();
  let server: Embedded | null = null;
  let starting: Promise<Embedded> | null = null;
  onEnd(scope, async () => {
    giveUp.abort(new Error('The row ended'));
    await (await starting?.catch(() => null))?.stop();
  });
  const start = async () => {
    starting = startEmbedded({ dir, log: silent, signal: giveUp.signal, port });
    server = await starting;
  };
  await start();
  const current = (): Embedded => {
    if (!server) throw new Error('Expected a PostgreSQL, found none');
    return server;
  };
  return {
    server: current,
    start,
    async kill() {
      process.kill(current().pid, 'SIGKILL');
      await current().ended;
    },
  };
}

async function openLines(scope: Scope, file: string): Promise<number> {
  const handle = await open(file, 'a');
  onEnd(scope, () => handle.close());
  return handle.fd;
}

interface ActorSettings {
  readonly roles: readonly Role[];
  readonly settings: Readonly<Record<string, string>>;
  /** File descriptor for what it says. */
  readonly lines: number;
  readonly options: ProductOptions;
}

/** One process of ours that can be killed and started again. */
function createActor(scope: Scope, { roles, settings, lines, options }: ActorSettings) {
  let running: { child: ChildProcess; ended: Promise<void> } | null = null;
  let url = '';
  const kill = async () => {
    running?.child.kill('SIGKILL');
    await running?.ended;
  };
  onEnd(scope, kill);

  return {
    roles,
    kill,
    url: () => url,
    /** 0 when it does not run. */
    pid: () => (running?.child.exitCode === null && running.child.signalCode === null ? (running.child.pid ?? 0) : 0),
    async start() {
      const { niceness = 0, renderScript } = options;
      const script = path.join(root, renderScript ? 'tests/support/role-process.ts' : 'src/main.ts');
      const command = [...(niceness > 0 ? ['nice', '-n', String(niceness)] : []), process.execPath, script, ...roles];
      const child = spawn(command[0] ?? '', command.slice(1), {
        // Away from the terminal's Ctrl-C, which is for us; by the channel it ends when we do, however that is.
        detached: true,
        stdio: ['ignore', lines, lines, 'ipc'],
        env: environmentWith({
          ...settings,
          ...(url === '' ? {} : { PORT: new URL(url).port }),
          SKREPKA_TEST_RENDER_SCRIPT: renderScript?.href ?? '',
        }),
      });
      const ended = new Promise<void>((resolve) => {
        child.once('exit', () => resolve());
        child.once('error', () => resolve());
      });
      running = { child, ended };
      url = (await readyWord(child, ended, roles)) ?? '';
    },
  };
}

/** Where it listens, or null. Rejects when it ends instead. */
async function readyWord(child: ChildProcess, ended: Promise<void>, roles: readonly Role[]): Promise<string | null> {
  const word = await Promise.race([
    new Promise<ChildWord>((resolve) => child.once('message', (heard) => resolve(heard as ChildWord))),
    ended.then(() => null),
  ]);
  if (word?.kind === 'ready') return word.url;
  throw new Error(`The process of ${roles.join(', ')} did not start: ${word?.sentence ?? 'it ended'}`);
}

async function untilCalm(roots: () => readonly number[], deadlineMs: number): Promise<void> {
  const endMs = performance.now() + deadlineMs;
  for (let spentMs = await cpuMsOf(roots()); ; ) {
    await pause(calm.overMs);
    const nowMs = await cpuMsOf(roots());
    if (nowMs - spentMs <= calm.share * calm.overMs) return;
    if (performance.now() > endMs) throw new Error(`The product was not calm within ${deadlineMs} ms`);
    spentMs = nowMs;
  }
}
