/**
 * The `Scratch` port on the worker's own disk: `dir/{process tag}/{attempt id}/`, one private folder an attempt.
 *
 * Nothing here is durable or shared: no fsync, and a folder dies with its attempt. What a killed worker left is swept by
 * the next one that starts; folders of living processes are never touched.
 */
import { createHash, randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { access, lstat, mkdir, open as openFile, readdir, rm, rmdir, statfs, unlink } from 'node:fs/promises';
import { join, resolve, sep } from 'node:path';
import { describe } from '../errors.ts';
import { type Scratch, type ScratchDir, ScratchError } from '../pipeline/ports.ts';
import { isAbandoned, processTag } from '../process-tag.ts';

const nameForm = /^[a-z0-9][a-z0-9.-]{0,199}$/;
/** The folder of a process can vanish under `open`, when another attempt ends and finds it empty. */
const openAttemptsMax = 100;

/** Read at a time: most variants in one call. */
const pieceBytes = 256 * 1024;

/** What `health` writes at a time. Nothing that a file system could store in less. */
const fillingBytes = 256 * 1024;

/**
 * `dir` is made when missing. `roomBytes`: what `health` must be able to write, the size of the largest original; half of its file
 * system, whose size in bytes `sizeOf` tells (0: nobody knows), where that is less: what no room could ever be made for would end the
 * worker for good. Failures of the disk reject `ScratchError`, with the system's words for the log.
 */
export function createFileScratch({
  dir,
  roomBytes = 1024 * 1024,
  sizeOf = fileSystemBytes,
}: {
  dir: string;
  roomBytes?: number;
  sizeOf?: (path: string) => Promise<number>;
}): Scratch {
  const root = resolve(dir);
  const own = join(root, processTag());
  let asked = 0;

  async function open(attemptId: string): Promise<ScratchDir> {
    checkName(attemptId);
    const path = join(own, attemptId);
    for (let attempt = 1; ; attempt += 1) {
      try {
        await mkdir(path, { mode: 0o700 });
        return scratchDir(path, own);
      } catch (error) {
        if (codeOf(error) !== 'ENOENT' || attempt === openAttemptsMax) throw failure('make a scratch folder', error);
      }
      await mkdir(own, { recursive: true, mode: 0o700 }).catch((error: unknown) => {
        throw failure('make a scratch folder', error);
      });
    }
  }

  return {
    open,

    async health() {
      asked += 1;
      const folder = await open(`health-${asked}`);
      try {
        const size = await sizeOf(folder.path).catch((error: unknown) => {
          throw failure('learn the size of the scratch file system', error);
        });
        await folder.write('room', filling(size > 0 ? Math.min(roomBytes, Math.floor(size / 2)) : roomBytes));
      } finally {
        await folder.remove();
      }
    },

    async sweep() {
      try {
        await mkdir(root, { recursive: true, mode: 0o700 });
        // A folder that is there may still not be ours to write in.
        await access(root, constants.W_OK | constants.X_OK);
        for (const name of await readdir(root)) {
          const path = join(root, name);
          const stat = await lstat(path).catch(() => null);
          if (stat?.isDirectory() && isAbandoned(name, stat.mtimeMs, Date.now())) {
            await rm(path, { recursive: true, force: true });
          }
        }
      } catch (error) {
        throw failure('sweep the scratch folder', error);
      }
    },
  };
}

/** Of a tmpfs without a bound, and of some file systems of other hosts, it is 0. */
async function fileSystemBytes(path: string): Promise<number> {
  const { blocks, bsize } = await statfs(path);
  return blocks * bsize;
}

async function* filling(bytes: number): AsyncGenerator<Uint8Array> {
  const piece = randomBytes(fillingBytes);
  for (let left = bytes; left > 0; left -= piece.length) yield piece.subarray(0, left);
}

function scratchDir(path: string, own: string): ScratchDir {
  return {
    path,

    async write(name, body) {
      checkName(name);
      const target = join(path, name);
      const handle = await openFile(target, 'wx', 0o600).catch((error: unknown) => {
        throw failure('make a scratch file', error);
      });
      const hash = createHash('sha256');
      let size = 0;
      let whole = false;
      try {
        for await (const chunk of body) {
          hash.update(chunk);
          size += chunk.length;
          await writeWhole(handle, chunk);
        }
        whole = true;
      } finally {
        await handle.close();
        if (!whole) await rm(target, { force: true });
      }
      return { path: target, size, sha256: hash.digest('hex') };
    },

    read(file) {
      const inside = resolve(path, file);
      if (!inside.startsWith(path + sep)) throw new TypeError('Expected a file of this scratch folder');
      return pieces(inside);
    },

    async remove() {
      try {
        await removeFolder(path);
        // The last attempt takes the process's folder along; rmdir(2) refuses while another one is in it.
        await rmdir(own);
      } catch (error) {
        if (!['ENOENT', 'ENOTEMPTY', 'EEXIST'].includes(codeOf(error) ?? '')) throw failure('remove scratch', error);
      }
    },
  };
}

/** By its names: `rm` asks after each of them first, and tries to remove the full folder, which is half of its calls. It has the odd cases. */
async function removeFolder(path: string): Promise<void> {
  try {
    for (const name of await readdir(path)) await unlink(join(path, name));
    await rmdir(path);
  } catch {
    await rm(path, { recursive: true, force: true });
  }
}

async function writeWhole(handle: Awaited<ReturnType<typeof openFile>>, bytes: Uint8Array): Promise<void> {
  try {
    for (let done = 0; done < bytes.length; ) {
      done += (await handle.write(bytes, done, bytes.length - done, null)).bytesWritten;
    }
  } catch (error) {
    throw failure('write scratch', error);
  }
}

/** One buffer for all pieces: each is valid until the next one is asked for. */
async function* pieces(path: string): AsyncGenerator<Uint8Array> {
  const handle = await openFile(path, 'r').catch((error: unknown) => {
    throw failure('read scratch', error);
  });
  try {
    const piece = Buffer.allocUnsafe(pieceBytes);
    for (;;) {
      const { bytesRead } = await handle.read(piece, 0, pieceBytes, null).catch((error: unknown) => {
        throw failure('read scratch', error);
      });
      if (bytesRead === 0) return;
      yield piece.subarray(0, bytesRead);
    }
  } finally {
    await handle.close();
  }
}

function checkName(name: string): void {
  if (!nameForm.test(name)) throw new TypeError(`Expected a plain file name, received ${JSON.stringify(name)}`);
}

function failure(what: string, error: unknown): ScratchError {
  return new ScratchError(`Cannot ${what}: ${describe(error)}`, error);
}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}
