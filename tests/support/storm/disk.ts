/**
 * A small disk for tests, and how to fill it: a file system of its own in memory where this user may mount one, otherwise
 * a folder whose place for unfinished files is taken away, so that every write of an object fails.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, open, rename, rm, statfs, unlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { onEnd, type Scope } from '../on-end.ts';

export interface SmallDisk {
  readonly folder: string;
  /** How its fullness is made, for the report. */
  readonly means: string;
  /** Nothing more can be written, but for `leaveBytes`; resolves when that has been seen. */
  fill(leaveBytes: number): Promise<void>;
  free(): Promise<void>;
}

/** `objects`: the folder of objects below it. All of it is gone when `t` ends, or this process does. */
export async function makeSmallDisk(t: Scope, options: { mebibytes: number; objects: string }): Promise<SmallDisk> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-disk-'));
  const size = `size=${options.mebibytes}m`;
  const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', size, 'skrepka-test', folder]).status === 0;
  const guard = spawnGuard(folder);
  onEnd(t, async () => {
    const gone = once(guard, 'exit');
    guard.stdin?.end();
    await gone;
    if (!mounted) await rm(folder, { recursive: true, force: true });
  });
  return mounted ? ofItsOwn(folder) : withoutUnfinished(folder, path.join(folder, options.objects));
}

/** It waits for the end of our words, which comes with the end of this process as well, and takes the disk away. */
function spawnGuard(folder: string): ChildProcess {
  const script = 'cat >/dev/null; umount -l "$1" 2>/dev/null; rm -rf "$1"';
  return spawn('bash', ['-c', script, 'guard', folder], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
}

function ofItsOwn(folder: string): SmallDisk {
  const ballast = path.join(folder, 'ballast');
  return {
    folder,
    means: 'a small file system in memory, filled to its last byte',
    async fill(leaveBytes) {
      const piece = Buffer.alloc(256 * 1024);
      const file = await open(ballast, 'w');
      try {
        for (;;) {
          const { bavail, bsize } = await statfs(folder);
          const left = bavail * bsize - leaveBytes;
          if (left <= 0) return;
          await file.write(piece, 0, Math.min(piece.length, left));
        }
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
      } finally {
        await file.close();
      }
    },
    async free() {
      await unlink(ballast);
    },
  };
}

function withoutUnfinished(folder: string, objects: string): SmallDisk {
  const unfinished = path.join(objects, '.tmp');
  return {
    folder,
    means: 'no file system may be mounted here: the folder of unfinished objects is moved away instead',
    fill: () => rename(unfinished, `${objects}.away`),
    free: () => rename(`${objects}.away`, unfinished),
  };
}
