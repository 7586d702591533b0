/**
 * The folder of the objects: where a key lies, the temporary files beside it, the durable move from one to the other,
 * and the folders that come and go with their objects.
 */
import { randomBytes } from 'node:crypto';
import { type BigIntStats, constants, type Stats } from 'node:fs';
import { type FileHandle, link, lstat, mkdir, open, readdir, realpath, rename, rmdir, unlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { randomHex } from '../../ids.ts';
import { BlobError } from '../../pipeline/ports.ts';
import { isAbandoned, processTag } from '../../process-tag.ts';
import { codeOf, faultOf, ignoreMissing, io, nullIfMissing } from './faults.ts';
import type { HeldFolders } from './held.ts';
import { identityOf, isMarked, mark, type Owner, requireMark } from './marker.ts';

/** A folder can vanish between its making and the rename into it, when somebody deletes its last object. */
const moveAttemptsMax = 100;

export interface Place {
  /** Absolute and without symbolic links. */
  readonly root: string;
  readonly temporary: string;
  /** Whose objects these are; null where nobody said. */
  readonly ownerId: string | null;
  /** Which file the mark was when the folder was opened. */
  readonly markId: string | null;
  /** First-level folders whose entry in `root` is durable. They are never removed, so this stays true. */
  readonly durable: Set<string>;
  /** Of those folders: uploads come to one of them all the time. */
  readonly held: HeldFolders;
}

export async function prepare(dir: string, owner: Owner | null, held: HeldFolders): Promise<Place> {
  // Before anything is made: a folder that is not mounted stays as it is.
  const marked = await isMarked(dir, owner);
  const made = await mkdir(dir, { recursive: true, mode: 0o700 });
  const root = await realpath(dir);
  const temporary = join(root, '.tmp');
  await mkdir(temporary, { recursive: true, mode: 0o700 });
  if (made !== undefined) await syncUpwards(dirname(root), dirname(await realpath(made)));
  await sweep(temporary);
  if (!marked) {
    await mark(root, owner?.id ?? '', temporaryPath(temporary));
    await syncFolder(root);
  }
  const ownerId = owner?.id ?? null;
  return { root, temporary, ownerId, markId: await identityOf(root), durable: new Set(), held };
}

/**
 * Whether the folder is still the one that was opened. False: another one stands in its place now, a disk that was mounted again
 * perhaps, and has to be opened anew. Rejects `unavailable` where no mark is, or another's.
 */
export async function isStill({ root, ownerId, markId }: Place): Promise<boolean> {
  if ((await identityOf(root)) === markId) return true;
  await requireMark(root, ownerId);
  return false;
}

async function syncUpwards(from: string, to: string): Promise<void> {
  await syncFolder(from);
  if (from !== to && from !== dirname(from)) await syncUpwards(dirname(from), to);
}

/** Removes what dead processes left half written. */
async function sweep(temporary: string): Promise<void> {
  for (const name of await readdir(temporary)) {
    const path = join(temporary, name);
    const stat = await lstat(path).catch(() => null);
    const tag = name.slice(0, name.lastIndexOf('.'));
    if (stat?.isFile() && isAbandoned(tag, stat.mtimeMs, Date.now())) await unlink(path).catch(ignoreMissing);
  }
}

export async function probe(at: Place): Promise<void> {
  await requireMark(at.root, at.ownerId);
  await withTemporary(at, async (path) => {
    const written = randomBytes(16);
    const handle = await openTemporary(at, path);
    try {
      await handle.write(written, 0, written.length, 0);
      await handle.sync();
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(32), 0, 32, 0);
      if (!written.equals(buffer.subarray(0, bytesRead))) throw new Error('The probe came back changed');
    } finally {
      await handle.close();
    }
    await unlink(path).catch(() => {});
  });
}

/** Gives `work` a fresh name in the temporary folder. `work` takes what it put there away; when it fails, nothing is left. */
export async function withTemporary<T>(at: Place, work: (path: string) => Promise<T>): Promise<T> {
  const path = temporaryPath(at.temporary);
  try {
    return await work(path);
  } catch (error) {
    // What cannot be removed now is swept by a later start.
    await unlink(path).catch(() => {});
    throw error;
  }
}

const temporaryPath = (temporary: string) => join(temporary, `${processTag()}.${randomHex(8)}`);

/** A new temporary file, to write and to read. */
export async function openTemporary(at: Place, path: string): Promise<FileHandle> {
  return await inTemporary(at, () => open(path, 'wx+', 0o600));
}

/**
 * Does what makes a name in the temporary folder. The folder is made again when somebody tidied it away under us; one that is
 * not ours, or not mounted, stays as it is.
 */
export async function inTemporary<T>({ root, temporary, ownerId }: Place, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (codeOf(error) !== 'ENOENT' && codeOf(error) !== 'ENOTDIR') throw error;
    await requireMark(root, ownerId);
    await io('write', 'the temporary folder', () => mkdir(temporary, { recursive: true, mode: 0o700 }));
    return await work();
  }
}

/** The path of a key, after making sure that no folder on the way is a symbolic link out of the root. */
export async function locate(at: Place, key: string): Promise<string> {
  if ((await foldersOf(at, key)) === null) await missingOrAway(at, key);
  return join(at.root, key);
}

/** The folders of a key, from the first level down; null where one is missing. Rejects `broken` where one is no plain folder. */
async function foldersOf(at: Place, key: string): Promise<readonly BigIntStats[] | null> {
  const found: BigIntStats[] = [];
  let folder = at.root;
  for (const segment of key.split('/').slice(0, -1)) {
    folder = join(folder, segment);
    const stat = await io('read', key, () => lstat(folder, { bigint: true })).catch(nullIfMissing);
    if (stat === null || stat.isFile()) return null;
    if (!stat.isDirectory()) throw new BlobError('broken', `A folder of ${key} is not a plain folder`);
    found.push(stat);
  }
  return found;
}

/** A disk that is not mounted has no object either: only where our mark still is does an object count as missing. */
async function missingOrAway(at: Place, key: string): Promise<never> {
  await requireMark(at.root, at.ownerId);
  throw new BlobError('missing', `No object ${key}`);
}

export async function look(at: Place, key: string): Promise<Stats | null> {
  try {
    const path = await locate(at, key);
    const stat = await io('read', key, () => lstat(path));
    return stat.isFile() ? stat : null;
  } catch (error) {
    if (error instanceof BlobError && error.fault === 'missing') return null;
    throw error;
  }
}

/** Temporary file to key, durably. The file itself is synced already. */
export async function moveInto(at: Place, from: string, key: string): Promise<void> {
  await nameInto(at, key, (path) => rename(from, path));
}

/**
 * Another name for the object `from`, durably. False, and nothing is done, where something has the name already, the file system has
 * no links, or this file too many of them. Rejects `missing` when `from` is gone.
 */
export async function linkInto(at: Place, from: string, key: string): Promise<boolean> {
  try {
    await nameInto(at, key, async (path) => {
      await link(join(at.root, from), path).catch(async (error: unknown) => {
        // Of the two names it may be the one that was there.
        if (codeOf(error) === 'ENOENT' && (await look(at, from)) === null) {
          throw new BlobError('missing', `No object ${from}`, error);
        }
        throw error;
      });
    });
    return true;
  } catch (error) {
    const { cause } = error as BlobError;
    if (noLinks.has(codeOf(cause) ?? '')) return false;
    throw error;
  }
}

const noLinks = new Set(['EEXIST', 'EMLINK', 'EPERM', 'EXDEV', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS']);

/** Gives synced bytes the name of a key by `name`, in folders that are made where they are missing, durably. */
async function nameInto(at: Place, key: string, name: (path: string) => Promise<void>): Promise<void> {
  const path = join(at.root, key);
  let folders: readonly BigIntStats[] | null;
  for (let attempt = 1; ; attempt += 1) {
    folders = await foldersOf(at, key);
    try {
      if (folders === null) await mkdir(dirname(path), { recursive: true, mode: 0o700 });
      await name(path);
      break;
    } catch (error) {
      if (codeOf(error) !== 'ENOENT' || attempt === moveAttemptsMax) throw faultOf(error, 'write', key);
    }
  }
  await io('write', key, () => syncPath(at, key, folders?.[0]));
}

/**
 * All folders from the object's up, not only those made just now: another process may have made one a moment ago
 * without having synced it yet. `first`: the one of the first level, as it was when the name was made in it.
 */
async function syncPath(at: Place, key: string, first: BigIntStats | undefined): Promise<void> {
  const [top = key, ...rest] = key.split('/');
  const folders = rest.map((_, depth) => join(at.root, top, ...rest.slice(0, depth)));
  if (rest.length === 0 || !at.durable.has(top)) folders.push(at.root);
  await Promise.all(
    folders.map((folder, depth) =>
      depth === 0 && first !== undefined ? at.held.sync(folder, first).catch(ignoreMissing) : syncFolder(folder),
    ),
  );
  if (rest.length > 0) at.durable.add(top);
}

/** A folder that is gone took its objects with it: somebody deleted them meanwhile. */
export async function syncFolder(folder: string): Promise<void> {
  try {
    const handle = await open(folder, constants.O_RDONLY | constants.O_DIRECTORY);
    try {
      await handle.sync();
    } finally {
      await handle.close();
    }
  } catch (error) {
    ignoreMissing(error);
  }
}

/** Removes folders that became empty, upwards, and answers the first that stays. rmdir(2) refuses one that is in use. */
export async function prune(at: Place, folder: string): Promise<string> {
  let rest = folder;
  while (rest !== at.root && dirname(rest) !== at.root) {
    try {
      await rmdir(rest);
    } catch (error) {
      if (codeOf(error) === 'ENOTEMPTY' || codeOf(error) === 'EEXIST') return rest;
      if (codeOf(error) !== 'ENOENT') throw faultOf(error, 'write', 'a folder');
    }
    rest = dirname(rest);
  }
  return rest;
}
