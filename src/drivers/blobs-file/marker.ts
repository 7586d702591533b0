/**
 * The file `.skrepka` in the folder of the objects: that this is the folder, and whose it is.
 *
 * Its life: made once, by the first process that uses a new folder; read when that folder is opened, when an object's folder is
 * missing and at every question for health; in each call it is looked whether it is still the same file; never removed. A
 * disk that is not mounted leaves an empty folder behind, in which every object would be missing for good: without this file
 * nothing is missing there, the folder is away.
 */
import { lstat, open, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { isBlobKey } from '../../pipeline/blob-key.ts';
import { BlobError } from '../../pipeline/ports.ts';
import { codeOf, faultOf } from './faults.ts';
import { walk } from './walk.ts';

/** Whose objects a folder holds. */
export interface Owner {
  readonly id: string;
  /** Whether there must be objects already. */
  readonly namesObjects: boolean;
}

const name = '.skrepka';

/**
 * Whether the folder needs no mark. False: it may be marked now, being new, or of a build that made no marks. Rejects
 * `unavailable` for a folder that is away or another's.
 *
 * The objects decide before the mark does: an installation that first started before its disk was mounted has left a mark
 * of its own in the mount point. Only an empty file, which nobody but a person makes, says that they are lost.
 */
export async function isMarked(dir: string, owner: Owner | null): Promise<boolean> {
  const found = await read(dir);
  if (owner === null) return found !== null;
  const isEmpty = !(await holdsObjects(dir));
  if (isEmpty && owner.namesObjects) {
    if (found === '') return true;
    throw new BlobError(
      'unavailable',
      `The folder ${dir} holds none of the objects that the database names: mount it or correct BLOBS_URL; only if they are lost for good, leave an empty file ${name} there to go on without them`,
    );
  }
  if (found === owner.id) return true;
  if (found === null || found === '') return false;
  throw ofAnother(dir);
}

/** Marks the folder for `id`, durably; the file is whole or not there at all. `path`: a name for it until then. */
export async function mark(root: string, id: string, path: string): Promise<void> {
  const handle = await open(path, 'wx', 0o600);
  try {
    await handle.writeFile(id === '' ? '' : `${id}\n`);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await rename(path, join(root, name));
}

/** Rejects `unavailable` where the mark is not, or is another's. `id` is null for whoever does not ask whose it is. */
export async function requireMark(root: string, id: string | null): Promise<void> {
  const found = await read(root);
  if (found === null) throw new BlobError('unavailable', `The folder of the objects, ${root}, is away`);
  if (id !== null && found !== '' && found !== id) throw ofAnother(root);
}

function ofAnother(dir: string): BlobError {
  return new BlobError(
    'unavailable',
    `The folder ${dir} belongs to another database, as its file ${name} says: correct BLOBS_URL or DATABASE_URL, or empty that file to give the folder to this database`,
  );
}

async function read(dir: string): Promise<string | null> {
  return await orNull(async () => (await readFile(join(dir, name), 'utf8')).trim());
}

/** Null: there is no mark. */
async function orNull(look: () => Promise<string>): Promise<string | null> {
  try {
    return await look();
  } catch (error) {
    if (codeOf(error) === 'ENOENT' || codeOf(error) === 'ENOTDIR') return null;
    throw faultOf(error, 'write', 'the mark of the object folder');
  }
}

/** A key of ours lies below a folder: a note that somebody left in an empty mount point is none, nor are the files of another disk. */
async function holdsObjects(dir: string): Promise<boolean> {
  for (const folder of ['attachments/', 'staging/']) {
    for await (const key of walk(dir, folder, { prefix: folder, after: '', batch: 100 })) {
      if (isBlobKey(key)) return true;
    }
  }
  return false;
}

/** The file itself, not its words: another disk that is mounted over the folder has another one. */
export async function identityOf(root: string): Promise<string | null> {
  return await orNull(async () => {
    const { dev, ino } = await lstat(join(root, name), { bigint: true });
    return `${dev}:${ino}`;
  });
}
