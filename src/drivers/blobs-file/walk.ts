/** The folder tree read as one list of keys in byte order, a batch at a time. */
import type { Dirent } from 'node:fs';
import { opendir } from 'node:fs/promises';
import { join } from 'node:path';
import { isBlobKey } from '../../pipeline/blob-key.ts';
import { codeOf, faultOf } from './faults.ts';

interface Bounds {
  readonly prefix: string;
  readonly after: string;
  /** How many names of a folder are held at once. */
  readonly batch: number;
}

/** Keys below `folder` in key order. `folder` is empty or ends in `/`. What is no object of anybody (links, hidden names, temporary files among them) is passed over. */
export async function* walk(root: string, folder: string, bounds: Bounds): AsyncGenerator<string> {
  for (let last = ''; ; ) {
    const entries = await firstEntries(root, folder, last, bounds);
    for (const entry of entries) {
      if (entry.endsWith('/')) yield* walk(root, entry, bounds);
      else yield entry;
    }
    if (entries.length < bounds.batch) return;
    last = entries.at(-1) ?? '';
  }
}

/**
 * The first keys and folders (with a `/` at the end, as which they sort) after `last`. Reads the folder as a stream and
 * holds at most two batches, so a folder of a million names costs time and no memory.
 */
async function firstEntries(root: string, folder: string, last: string, bounds: Bounds): Promise<string[]> {
  let entries: string[] = [];
  const cut = () => {
    entries.sort(byBytes);
    entries.length = Math.min(entries.length, bounds.batch);
  };
  try {
    for await (const dirent of await opendir(join(root, folder), { bufferSize: 512 })) {
      const entry = entryOf(folder, dirent);
      if (entry === null || entry <= last || !isWanted(entry, bounds)) continue;
      entries.push(entry);
      if (entries.length >= bounds.batch * 2) cut();
    }
  } catch (error) {
    if (codeOf(error) === 'ENOENT' || codeOf(error) === 'ENOTDIR') entries = [];
    else throw faultOf(error, 'read', folder);
  }
  cut();
  return entries;
}

/**
 * A file whose name no key of ours has is listed as well, as a bucket would: somebody has put it there. A folder with such a name is
 * not entered: it may be the file system's own (`lost+found`), and closed to us.
 */
function entryOf(folder: string, dirent: Dirent): string | null {
  if (dirent.name.startsWith('.')) return null;
  if (dirent.isDirectory()) return isBlobKey(dirent.name) ? `${folder}${dirent.name}/` : null;
  return dirent.isFile() ? `${folder}${dirent.name}` : null;
}

function isWanted(entry: string, { prefix, after }: Bounds): boolean {
  if (!entry.startsWith(prefix)) return entry.endsWith('/') && prefix.startsWith(entry);
  return entry > after || (entry.endsWith('/') && after.startsWith(entry));
}

/** Our keys are ASCII, so code units are bytes; the names of others have at least an order that is always the same. */
function byBytes(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
