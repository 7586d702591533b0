/**
 * The `file:` driver of the `Blobs` port: one file an object, below one folder that several processes share.
 *
 * Life of an object: bytes go to a temporary file in `.tmp` of the same file system, in large batches; fsync; rename to
 * the key's path; fsync of every folder that leads there. So a reader sees the old object, none, or the whole new one,
 * and what was acknowledged outlives a power cut. A file under a key is never written again: a replacement is another
 * inode, which is why a copy may be a hard link and why an open reader keeps what it opened. Each of these calls waits for a
 * thread and costs as much as hashing 50 KiB, so none is made whose answer another one gives: what is missing says so.
 *
 * A file `.skrepka` marks the folder as ours: one without it is away, whatever it lacks (`blobs-file/marker.ts`).
 * Folders below the first level come and go with their objects. Temporary files carry the tag of their process; the
 * first use of a driver sweeps those whose process is dead.
 */
import { constants } from 'node:fs';
import { copyFile, type FileHandle, open as openFile, unlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { interruptible } from '../pipeline/blob-body.ts';
import { checkBlobKey, checkBlobPrefix } from '../pipeline/blob-key.ts';
import { type BlobEntry, BlobError, type Blobs, type ByteRange } from '../pipeline/ports.ts';
import { faultOf, ignoreMissing, ignoreMissingObject, io } from './blobs-file/faults.ts';
import {
  inTemporary,
  isStill,
  linkInto,
  locate,
  look,
  moveInto,
  openTemporary,
  type Place,
  prepare,
  probe,
  prune,
  syncFolder,
  withTemporary,
} from './blobs-file/folder.ts';
import { createHeldFolders } from './blobs-file/held.ts';
import type { Owner } from './blobs-file/marker.ts';
import { walk } from './blobs-file/walk.ts';

export interface FileBlobsSettings {
  /** Bytes gathered before one write. 512 KiB measured best; small writes cost a thread-pool round trip each. */
  readonly batchBytes?: number;
  /** Whether a copy may be a hard link. False for file systems whose links cost more than bytes. */
  readonly hardLinks?: boolean;
}

const pageMax = 1000;
const readBytes = 128 * 1024;
/** Of the buffers for writing, 4 MiB in all. */
const sparesMax = 8;

export interface FileBlobsDeps {
  /** The folder of the objects; it is made when missing, unless there must be objects in it already. */
  readonly dir: string;
  /** Asked before the folder is first used, again until it answers. Left out: whoever opens the folder may. */
  readonly owner?: () => Promise<Owner>;
}

/** Nothing is touched before the first call. */
export function createFileBlobs({ dir, owner }: FileBlobsDeps, settings: FileBlobsSettings = {}): Blobs {
  const { batchBytes = 512 * 1024, hardLinks = true } = settings;
  const batches = createBatches(batchBytes);
  const held = createHeldFolders();
  let prepared: Promise<Place> | null = null;

  /** The folder, looked at: what was opened may have been unmounted or replaced since. In every call, before it changes or tells anything. */
  async function place(): Promise<Place> {
    const opening = opened();
    const at = await opening;
    if (await isStill(at)) return at;
    if (prepared === opening) prepared = null;
    return await opened();
  }

  function opened(): Promise<Place> {
    prepared ??= openPlace().catch((error: unknown) => {
      prepared = null;
      throw faultOf(error, 'write', 'the object folder');
    });
    return prepared;
  }

  async function openPlace(): Promise<Place> {
    const found = await owner?.().catch((error: unknown) => {
      throw new BlobError('unavailable', 'Nobody can say whose the object folder is', error);
    });
    return await prepare(dir, found ?? null, held);
  }

  return {
    async prepare() {
      await place();
    },

    async put(key, body, options = {}) {
      checkBlobKey(key);
      options.signal?.throwIfAborted();
      const at = await opened();
      return await withTemporary(at, async (path) => {
        const { signal, verify = false } = options;
        const size = await writeFile(at, path, body, { key, batches, signal, verify });
        signal?.throwIfAborted();
        // Looked at once, and as late as can be: the bytes took their time. The move then proves that the file which was
        // written lies in the folder that was looked at.
        await moveInto(await place(), path, key);
        return { size };
      });
    },

    async open(key, range) {
      checkBlobKey(key);
      const at = await place();
      const path = await locate(at, key);
      const handle = await io('read', key, () => openFile(path, constants.O_RDONLY | constants.O_NOFOLLOW));
      try {
        const stat = await io('read', key, () => handle.stat());
        if (!stat.isFile()) throw new BlobError('missing', `No object ${key}`);
        return { size: stat.size, body: reader(handle, key, clip(range, stat.size, key)) };
      } catch (error) {
        await handle.close();
        throw error;
      }
    },

    async head(key) {
      checkBlobKey(key);
      const stat = await look(await place(), key);
      return stat === null ? null : { size: stat.size };
    },

    async copy(from, to) {
      checkBlobKey(from);
      checkBlobKey(to);
      const at = await place();
      if ((await look(at, from)) === null) throw new BlobError('missing', `No object ${from}`);
      if (from === to) return;
      if (hardLinks && (await linkInto(at, from, to))) return;
      await withTemporary(at, async (path) => {
        await copyBytes(at, join(at.root, from), path, from);
        await moveInto(at, path, to);
      });
    },

    async deleteMany(keys) {
      for (const key of keys) checkBlobKey(key);
      const at = await place();
      const folders = new Set<string>();
      for (const key of keys) {
        if (await removed(at, key)) folders.add(dirname(join(at.root, key)));
      }
      for (const folder of folders) await io('write', 'a folder', async () => syncFolder(await prune(at, folder)));
    },

    async list(prefix, options = {}) {
      checkBlobPrefix(prefix);
      const limit = Math.min(Math.max(options.limit ?? pageMax, 1), pageMax);
      const at = await place();
      const objects: BlobEntry[] = [];
      const folder = prefix.slice(0, prefix.lastIndexOf('/') + 1);
      await locate(at, `${folder}x`).catch(ignoreMissingObject);
      for await (const key of walk(at.root, folder, {
        prefix,
        after: options.after ?? '',
        batch: limit + 1,
      })) {
        if (objects.length === limit) return { objects, next: objects.at(-1)?.key ?? null };
        const stat = await look(at, key);
        // A linked copy shares the inode and its mtime; ctime is never earlier than the moment the key appeared.
        if (stat !== null) objects.push({ key, size: stat.size, modifiedAt: stat.ctime });
      }
      return { objects, next: null };
    },

    async presign() {
      return null;
    },

    async health() {
      try {
        await probe(await place());
      } catch (error) {
        throw new BlobError('unavailable', 'The object folder cannot be read and written', error);
      }
    },

    async close() {
      held.close();
    },
  };
}

/* --------------------------------------------------------------- writing */

interface Writing {
  readonly key: string;
  readonly batches: Batches;
  readonly signal: AbortSignal | undefined;
  /** Whether the size is to be asked of the file system, after the bytes are durable. */
  readonly verify: boolean;
}

interface Batches {
  take(): Buffer;
  giveBack(batch: Buffer): void;
}

/**
 * Buffers that are used again. A new one for each object is memory outside of the heap that only a full collection gives
 * back: one for every dozen uploads, and nearly half of what the main thread did.
 */
function createBatches(bytes: number): Batches {
  const spare: Buffer[] = [];
  return {
    take: () => spare.pop() ?? Buffer.allocUnsafe(bytes),
    giveBack(batch) {
      if (spare.length < sparesMax) spare.push(batch);
    },
  };
}

/** Body to a new file, durably. Errors of the body and the signal's reason pass unchanged; those of the file become `BlobError`s. */
async function writeFile(at: Place, path: string, body: AsyncIterable<Uint8Array>, writing: Writing): Promise<number> {
  const { key } = writing;
  const handle = await io('write', key, () => openTemporary(at, path));
  try {
    const size = await writeAll(handle, body, writing);
    await io('write', key, () => handle.sync());
    return writing.verify ? (await io('read', key, () => handle.stat())).size : size;
  } finally {
    // What close(2) could still complain of was asked for by fsync, and a body's error must not be covered.
    await handle.close().catch(() => {});
  }
}

async function writeAll(handle: FileHandle, body: AsyncIterable<Uint8Array>, writing: Writing): Promise<number> {
  const { key, batches, signal } = writing;
  // Copied, not kept by reference: a body may reuse its buffer as soon as it is asked for more.
  const batch = batches.take();
  try {
    return await writeThrough(handle, interruptible(body, signal), { key, batch });
  } finally {
    // Each write was waited for, so nobody reads it any more.
    batches.giveBack(batch);
  }
}

async function writeThrough(
  handle: FileHandle,
  body: AsyncIterable<Uint8Array>,
  { key, batch }: { key: string; batch: Buffer },
): Promise<number> {
  let held = 0;
  let size = 0;
  const flush = async () => {
    await io('write', key, () => writeWhole(handle, batch.subarray(0, held)));
    held = 0;
  };
  for await (const chunk of body) {
    size += chunk.length;
    if (held + chunk.length > batch.length) await flush();
    if (chunk.length >= batch.length) await io('write', key, () => writeWhole(handle, chunk));
    else {
      batch.set(chunk, held);
      held += chunk.length;
    }
  }
  await flush();
  return size;
}

async function writeWhole(handle: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    done += (await handle.write(bytes, done, bytes.length - done, null)).bytesWritten;
  }
}

async function copyBytes(at: Place, source: string, path: string, key: string): Promise<void> {
  await io('write', key, async () => {
    await inTemporary(at, () => copyFile(source, path, constants.COPYFILE_FICLONE | constants.COPYFILE_EXCL));
    const handle = await openFile(path, 'r+');
    try {
      await handle.sync();
    } finally {
      await handle.close();
    }
  });
}

/* -------------------------------------------------------------- removing */

/** Whether the key's folder is there, to be tidied: a killed process may have left it empty. A key without an object is fine. */
async function removed(at: Place, key: string): Promise<boolean> {
  try {
    const path = await locate(at, key);
    const stat = await look(at, key);
    if (stat !== null) await io('write', key, () => unlink(path).catch(ignoreMissing));
    return true;
  } catch (error) {
    ignoreMissingObject(error);
    return false;
  }
}

/* --------------------------------------------------------------- reading */

function clip(range: ByteRange | undefined, size: number, key: string): ByteRange {
  if (range === undefined) return { start: 0, end: size - 1 };
  const { start, end } = range;
  if (!Number.isSafeInteger(start) || start < 0 || end < start || start >= size) {
    throw new BlobError('broken', `Expected a range inside the ${size} bytes of ${key}, received ${start}-${end}`);
  }
  return { start, end: Math.min(end, size - 1) };
}

/** Owns the handle from here on: closed at the end, on failure and when the stream is destroyed unread. */
function reader(handle: FileHandle, key: string, { start, end }: ByteRange): Readable {
  let at = start;
  return new Readable({
    highWaterMark: readBytes,
    read() {
      const wanted = Math.min(readBytes, end - at + 1);
      if (wanted <= 0) {
        this.push(null);
        return;
      }
      handle.read(Buffer.allocUnsafe(wanted), 0, wanted, at).then(
        ({ bytesRead, buffer }) => {
          at += bytesRead;
          if (bytesRead === 0) this.destroy(new BlobError('broken', `Object ${key} ends before its recorded size`));
          else this.push(buffer.subarray(0, bytesRead));
        },
        (error: unknown) => this.destroy(faultOf(error, 'read', key)),
      );
    },
    destroy(error, done) {
      handle.close().then(
        () => done(error),
        (failure: unknown) => done(error ?? faultOf(failure, 'read', key)),
      );
    },
  });
}
