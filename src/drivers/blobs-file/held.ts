/**
 * Folders that are held open between two syncs: to open and to close one costs more than to sync it.
 *
 * A folder is let go of when nobody synced it for `idleMs`, so that a disk which is not used can be unmounted, and as soon as
 * another one stands in its place.
 */
import { type BigIntStats, constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';

interface Held {
  readonly handle: FileHandle;
  /** Which folder it is, whatever its name means now. */
  readonly id: string;
  users: number;
  idle: NodeJS.Timeout | undefined;
}

export interface HeldFolders {
  /** Syncs the folder `path`, which was `stat` a moment ago. Rejects with the error of the system. */
  sync(path: string, stat: BigIntStats): Promise<void>;
  close(): void;
}

/** Exact: some file systems have inodes that no double can tell from their neighbours. */
const idOf = ({ dev, ino }: BigIntStats) => `${dev}:${ino}`;

export function createHeldFolders({ idleMs = 1000 }: { idleMs?: number } = {}): HeldFolders {
  const held = new Map<string, Held>();

  async function take(path: string, id: string): Promise<Held> {
    const known = held.get(path);
    if (known?.id === id) return use(known);
    if (known) letGo(path, known);
    const opened = await openIt(path);
    // What stands there now is another folder than the one that got a name a moment ago.
    if (opened.id !== id) {
      close(opened);
      throw Object.assign(new Error(`ESTALE: another folder took the place of ${path}`), { code: 'ESTALE' });
    }
    // Two may open it at once; the second is let go of after its use.
    if (!held.has(path)) held.set(path, opened);
    return use(opened);
  }

  async function openIt(path: string): Promise<Held> {
    const handle = await open(path, constants.O_RDONLY | constants.O_DIRECTORY);
    try {
      return { handle, id: idOf(await handle.stat({ bigint: true })), users: 0, idle: undefined };
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  function use(one: Held): Held {
    clearTimeout(one.idle);
    one.users += 1;
    return one;
  }

  function leave(path: string, one: Held): void {
    one.users -= 1;
    if (one.users > 0) return;
    if (held.get(path) !== one) close(one);
    else one.idle = setTimeout(() => letGo(path, one), idleMs).unref();
  }

  function letGo(path: string, one: Held): void {
    clearTimeout(one.idle);
    if (held.get(path) === one) held.delete(path);
    if (one.users === 0) close(one);
  }

  return {
    async sync(path, stat) {
      const one = await take(path, idOf(stat));
      try {
        await one.handle.sync();
      } finally {
        leave(path, one);
      }
    },
    close() {
      for (const [path, one] of held) letGo(path, one);
    },
  };
}

/** Nothing was written through it: what close(2) could complain of is of no interest. */
function close({ handle }: Held): void {
  handle.close().catch(() => {});
}
