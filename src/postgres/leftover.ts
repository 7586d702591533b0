/**
 * What a supervisor that was killed leaves behind in a database folder: a `postmaster.pid`, and perhaps a live server.
 *
 * The server outlives its supervisor on purpose (it has its own session), so the next start finds it here, recognises it
 * as the one of this very folder, and stops it before it starts its own. Whatever is not provably that is left alone.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { readFile, readlink, realpath, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { StartError } from '../errors.ts';
import type { Log } from '../pipeline/ports.ts';

/** Fast shutdown gets this long, then immediate shutdown (whose crash recovery the next start does) as long again. */
const stopMs = 30_000;

/** The lines of a `postmaster.pid` that matter (their order is that of PostgreSQL’s own `pidfile.h`). */
export interface PidFile {
  readonly pid: number;
  readonly startedAtMs: number;
  readonly port: number;
  readonly ready: boolean;
}

/** The folder's `postmaster.pid`, or null when there is none or it is not yet written in full. */
export async function readPidFile(dir: string): Promise<PidFile | null> {
  const text = await readFile(path.join(dir, 'postmaster.pid'), 'utf8').catch(() => '');
  const lines = text.split('\n');
  const pid = Number(lines[0]);
  if (!Number.isInteger(pid) || pid <= 0) return null;
  return {
    pid,
    startedAtMs: Number(lines[2]) * 1000,
    port: Number(lines[3]),
    ready: lines[7]?.trim() === 'ready',
  };
}

/** Leaves the folder without a running server, or rejects `StartError`. */
export async function endLeftOver(dir: string, log: Log): Promise<void> {
  const left = await readPidFile(dir);
  if (left === null && (await isEmpty(path.join(dir, 'postmaster.pid')))) {
    // PostgreSQL refuses to start beside it, and never says what to do. It writes the file at once, so only a crash leaves an empty one.
    throw new StartError(
      `${path.join(dir, 'postmaster.pid')} is empty, as a crash of the machine can leave it: if no other PostgreSQL (in a container, perhaps) uses the folder, delete that file and start again.`,
    );
  }
  if (left === null) return;
  if (!isAlive(left.pid)) {
    // PostgreSQL itself removes the file of a process that is gone, but takes one for alive whose parent never asked after it.
    if (existsAtAll(left.pid)) await rm(path.join(dir, 'postmaster.pid'), { force: true });
    return;
  }
  if (await isServerOf(left.pid, dir)) {
    log.warn({ server: left.pid }, 'PostgreSQL of an earlier run is still alive; stopping it');
    await stopServer(left.pid, dir);
    return;
  }
  const startedAtMs = await processStartedAtMs(left.pid);
  const file = path.join(dir, 'postmaster.pid');
  if (startedAtMs !== null && startedAtMs > left.startedAtMs + 2_000) {
    log.warn({ process: left.pid }, 'postmaster.pid names a process that is younger than the file; removing it');
    await rm(file, { force: true });
    return;
  }
  throw new StartError(
    `${file} names process ${left.pid}, which is alive but not the PostgreSQL of this folder: if no other PostgreSQL (in a container, perhaps) uses the folder, delete that file and start again.`,
  );
}

async function isEmpty(file: string): Promise<boolean> {
  return await stat(file).then(
    (found) => found.size === 0,
    () => false,
  );
}

async function stopServer(pid: number, dir: string): Promise<void> {
  for (const signal of ['SIGINT', 'SIGQUIT'] as const) {
    process.kill(pid, signal);
    for (let waitedMs = 0; waitedMs < stopMs; waitedMs += 50) {
      if (!isAlive(pid)) return;
      await wait(50);
    }
  }
  throw new StartError(
    `PostgreSQL of an earlier run (process ${pid}) in ${dir} does not stop: end it and start again.`,
  );
}

/** True also for a process of another user, and for a zombie. */
function existsAtAll(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** True also for a process of another user. A zombie counts as dead: an orphan in a container may stay one for ever. */
export function isAlive(pid: number): boolean {
  if (!existsAtAll(pid)) return false;
  if (process.platform !== 'linux') return true;
  try {
    return statFields(readFileSync(`/proc/${pid}/stat`, 'utf8'))[0] !== 'Z';
  } catch {
    return false;
  }
}

/** The fields from the third on: the second is the program's name in parentheses and may hold anything. */
function statFields(line: string): string[] {
  return line.slice(line.lastIndexOf(')') + 2).split(' ');
}

/** A server works inside its folder, so the kernel can tell whose it is. */
export async function isServerOf(pid: number, dir: string): Promise<boolean> {
  const real = await realpath(dir);
  if (process.platform === 'linux') {
    const [cwd, program] = await Promise.all(
      ['cwd', 'exe'].map((link) => readlink(`/proc/${pid}/${link}`).catch(() => '')),
    );
    // The program of a server whose package was updated meanwhile reads "postgres (deleted)".
    return cwd === real && path.basename(program ?? '').startsWith('postgres');
  }
  const command = spawnSync('ps', ['-ww', '-o', 'command=', '-p', String(pid)]).stdout?.toString() ?? '';
  return command.includes('postgres') && (command.includes(`-D ${dir}`) || command.includes(`-D ${real}`));
}

/** When a process started, in milliseconds since the epoch, to about a second; null when it cannot be told. */
export async function processStartedAtMs(pid: number): Promise<number | null> {
  if (process.platform !== 'linux') {
    const started = spawnSync('ps', ['-o', 'lstart=', '-p', String(pid)], { env: { LC_ALL: 'C' } }).stdout?.toString();
    const atMs = Date.parse(started ?? '');
    return Number.isNaN(atMs) ? null : atMs;
  }
  const [own, system] = await Promise.all(
    [`/proc/${pid}/stat`, '/proc/stat'].map((file) => readFile(file, 'utf8').catch(() => '')),
  );
  // Field 22 of the line.
  const ticks = Number(statFields(own ?? '')[19]);
  const bootSeconds = Number(/^btime (\d+)$/m.exec(system ?? '')?.[1]);
  // USER_HZ is 100 on every architecture that Node runs on.
  return Number.isFinite(ticks) && Number.isFinite(bootSeconds) ? bootSeconds * 1000 + ticks * 10 : null;
}
