/**
 * The data folder of `skrepka start`: made, tried, and held by one supervisor at a time.
 *
 * The lock is a file with the process tag of its owner. A dead owner's is taken over; an owner that cannot be seen from
 * here (another container or machine on the same folder) shows that it lives by touching the file every other second.
 */
import { randomBytes } from 'node:crypto';
import { link, mkdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { StartError } from './errors.ts';
import type { Log } from './pipeline/ports.ts';
import { isAbandoned, processTag } from './process-tag.ts';

const touchMs = 2_000;
/** An owner elsewhere that does not touch its lock for this long is dead. */
const silentMs = 10_000;

export interface HeldFolder {
  release(): Promise<void>;
}

/** Makes `dir` when it is missing and takes its lock. Rejects `StartError` when it cannot be written or is in use. */
export async function holdFolder(dir: string, log: Log): Promise<HeldFolder> {
  await tryFolder(dir);
  const file = path.join(dir, 'lock');
  const tag = processTag();
  while (!(await create(file, tag))) await clearAbandoned(file, dir, log);
  const touching = setInterval(() => {
    const now = new Date();
    utimes(file, now, now).catch((error) => log.warn({ reason: error }, 'the lock could not be touched'));
  }, touchMs);
  touching.unref();
  return {
    async release() {
      clearInterval(touching);
      const found = await read(file).catch(() => null);
      if (found === tag) await rm(file, { force: true });
    },
  };
}

async function tryFolder(dir: string): Promise<void> {
  const probe = path.join(dir, `probe-${randomBytes(4).toString('hex')}`);
  try {
    await makeFolder(dir);
    await writeFile(probe, '');
    await rm(probe);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? 'unknown';
    const reasons: Readonly<Record<string, string>> = {
      EACCES: 'permission denied',
      EPERM: 'not permitted',
      EROFS: 'read-only file system',
      ENOSPC: 'no space left',
      ENOTDIR: 'part of its path is a file',
      EEXIST: 'it is a file',
    };
    throw new StartError(
      `The data folder ${dir} cannot be written (${reasons[code] ?? code}): make it writable, or choose another with DATA_DIR.`,
      error,
    );
  }
}

/** By steps, because `recursive` never ends where a folder can neither be made nor found, as in `/proc` (Node 24). */
async function makeFolder(dir: string): Promise<void> {
  if (await isFolder(dir)) return;
  const above = path.dirname(dir);
  if (above !== dir) await makeFolder(above);
  await mkdir(dir).catch(async (error: unknown) => {
    if (!(await isFolder(dir))) throw error;
  });
}

async function isFolder(dir: string): Promise<boolean> {
  return await stat(dir).then(
    (found) => found.isDirectory(),
    () => false,
  );
}

/** Writes the whole lock at once or not at all: a reader never sees an empty one. */
async function create(file: string, tag: string): Promise<boolean> {
  const draft = `${file}.${randomBytes(4).toString('hex')}`;
  await writeFile(draft, tag);
  try {
    await link(draft, file);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw new StartError(`The lock ${file} cannot be made (${(error as NodeJS.ErrnoException).code}).`, error);
  } finally {
    await rm(draft, { force: true });
  }
}

/** Removes the lock of a dead owner. Rejects `StartError` when the owner lives. */
async function clearAbandoned(file: string, dir: string, log: Log): Promise<void> {
  const tag = await read(file);
  if (tag === null) return;
  const pid = tag.split('-')[0];
  const nowMs = Date.now();
  const isDead = isAbandoned(tag, nowMs, nowMs);
  // Only of an owner that cannot be seen from here does the age decide.
  const isElsewhere = !isDead && isAbandoned(tag, 0, nowMs);
  if (!isDead && !isElsewhere) {
    throw new StartError(
      `The data folder ${dir} is in use by process ${pid}: stop that one, or choose another with DATA_DIR.`,
    );
  }
  if (isElsewhere && (await isTouched(file, tag))) {
    throw new StartError(
      `The data folder ${dir} is in use by another container or machine: stop that one, or choose another with DATA_DIR.`,
    );
  }
  const aside = `${file}.${randomBytes(4).toString('hex')}`;
  await rename(file, aside).catch(() => {});
  const moved = await read(aside);
  // Somebody took it over between our look and our move: what we moved is a living lock, and goes back.
  if (moved !== null && moved !== tag) await link(aside, file).catch(() => {});
  else if (moved !== null) log.info({ before: pid }, 'the last run did not end in order; going on where it was');
  await rm(aside, { force: true });
}

async function isTouched(file: string, tag: string): Promise<boolean> {
  const before = (await stat(file).catch(() => null))?.mtimeMs;
  for (let waitedMs = 0; waitedMs < silentMs; waitedMs += 500) {
    await wait(500);
    const now = (await stat(file).catch(() => null))?.mtimeMs;
    if (now !== before || (await read(file)) !== tag) return true;
  }
  return false;
}

/** Null when there is none. What is there and cannot be read is no lock of ours: only a person can say what it is. */
async function read(file: string): Promise<string | null> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return null;
    throw new StartError(
      `The lock ${file} cannot be read (${code}): remove it if no Skrepka uses this folder, or choose another with DATA_DIR.`,
      error,
    );
  }
}
