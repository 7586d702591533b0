/** Looks at the render children of a worker from the outside while they come and go: the most memory that each ever had. */
import { readFile } from 'node:fs/promises';
import { setTimeout as wait } from 'node:timers/promises';
import { childrenOf, memoryOf } from './images-scene.ts';

export interface Seen {
  /** Most resident memory so far, bytes. */
  peak: number;
  /** RLIMIT_DATA, bytes. */
  readonly limit: number;
}

export interface Watch {
  /** By process id, those that ended among them. */
  readonly seen: ReadonlyMap<number, Seen>;
  stop(): Promise<void>;
}

/** Looks every 50 ms until `stop`. What a child takes in its last 50 ms may be missed: its limit holds then as well. */
export function watchChildren(workerId: number): Watch {
  const seen = new Map<number, Seen>();
  const stopped = new AbortController();
  const watching = (async () => {
    while (!stopped.signal.aborted) {
      for (const pid of await childrenOf(workerId)) await look(pid, seen);
      await wait(50, undefined, { signal: stopped.signal }).catch(() => undefined);
    }
  })();
  return {
    seen,
    async stop() {
      stopped.abort();
      await watching;
    },
  };
}

async function look(pid: number, seen: Map<number, Seen>): Promise<void> {
  try {
    const limits = await readFile(`/proc/${pid}/limits`, 'utf8');
    const limit = Number(/^Max data size\s+(\d+)/m.exec(limits)?.[1]);
    seen.set(pid, { limit, peak: await memoryOf(pid, 'VmHWM') });
  } catch {
    // It ended while it was looked at.
  }
}
