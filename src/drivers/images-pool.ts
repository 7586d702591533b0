/**
 * The pool of render children: keeps a number of them loaded, hands idle ones out, replaces those that ended.
 *
 * It knows nothing of jobs. A child is counted from its start until it is removed or has ended, whichever comes first,
 * so that its replacement starts at once and never waits for a funeral.
 */

import { describe } from '../errors.ts';
import type { Log, Meter } from '../pipeline/ports.ts';
import { bareDataBytes, type ChildSettings, type Death, type RenderChild, startChild } from './images-process.ts';

/** `astray`: it answered something that does not fit the job. `retired`: too many renders, or too much memory at rest. */
export type RemovalReason = 'deadline' | 'aborted' | 'retired' | 'astray';

export interface ChildPool {
  /** An idle child, or null. */
  take(): RenderChild | null;
  /** Hands a child back. One that was removed or ended meanwhile is not kept. */
  giveBack(child: RenderChild): void;
  /** Kills a child and starts its replacement. */
  remove(child: RenderChild, reason: RemovalReason): void;
  /** Kills all; resolves when they have ended. */
  close(): Promise<void>;
}

export interface PoolSettings {
  readonly size: number;
  readonly child: Omit<ChildSettings, 'bareBytes'>;
  /** Called when a child has become idle. */
  readonly onIdle: () => void;
  /** Called when several children in a row ended before they were ready: callers should be told instead of kept waiting. */
  readonly onStartsFailing: (reason: string) => void;
}

interface Deps {
  readonly log: Log;
  readonly meter?: Meter | undefined;
}

interface Pool extends Deps, PoolSettings {
  readonly alive: Set<RenderChild>;
  readonly idle: Set<RenderChild>;
  /** Null until measured; no child starts before. */
  bareBytes: number | null;
  failedStarts: number;
  restart: NodeJS.Timeout | null;
  closed: boolean;
}

const failedStartsMax = 3;
const restartMsMax = 5000;

/** Starts `size` children and keeps that many until `close`. */
export function createChildPool(deps: Deps, settings: PoolSettings): ChildPool {
  const pool: Pool = {
    ...deps,
    ...settings,
    alive: new Set(),
    idle: new Set(),
    bareBytes: null,
    failedStarts: 0,
    restart: null,
    closed: false,
  };
  learnBareBytes(pool);
  return {
    take() {
      // The one that rendered last: its code is compiled and its memory is there. In turns, each of them pays for both.
      const child = [...pool.idle].at(-1);
      if (!child) return null;
      pool.idle.delete(child);
      return child;
    },
    giveBack(child) {
      if (pool.alive.has(child)) pool.idle.add(child);
    },
    remove(child, reason) {
      forget(pool, child);
      child.kill();
      pool.log.debug({ child: child.pid, reason }, 'a render child is replaced');
      pool.meter?.count('render_children_replaced_total', { reason });
      fill(pool);
    },
    async close() {
      pool.closed = true;
      if (pool.restart) clearTimeout(pool.restart);
      const ends = [...pool.alive].map((child) => child.ended);
      for (const child of pool.alive) child.kill();
      await Promise.all(ends);
    },
  };
}

/** Asks until it is told: on a machine that is very busy the first answer may not come in time. */
function learnBareBytes(pool: Pool): void {
  if (pool.closed) return;
  bareDataBytes().then(
    (bareBytes) => {
      pool.bareBytes = bareBytes;
      fill(pool);
    },
    (error: unknown) => {
      pool.log.error({ error: describe(error) }, 'the memory of an empty process could not be measured, asks again');
      setTimeout(() => learnBareBytes(pool), restartMsMax).unref();
    },
  );
}

function fill(pool: Pool): void {
  const { bareBytes } = pool;
  if (bareBytes === null) return;
  while (!pool.closed && pool.restart === null && pool.alive.size < pool.size) start(pool, bareBytes);
}

function start(pool: Pool, bareBytes: number): void {
  const child = startChild({ ...pool.child, bareBytes });
  pool.alive.add(child);
  tellAlive(pool);
  void child.ready.then((isReady) => {
    if (!isReady || !pool.alive.has(child)) return;
    pool.failedStarts = 0;
    pool.idle.add(child);
    pool.log.debug({ child: child.pid }, 'a render child is ready');
    pool.onIdle();
  });
  void Promise.all([child.ready, child.ended]).then(([wasReady, death]) => bury(pool, child, wasReady, death));
}

/** A child ended. If nobody asked it to, say so; one that never became ready makes the next start wait, ever longer. */
function bury(pool: Pool, child: RenderChild, wasReady: boolean, death: Death): void {
  const expected = pool.closed || !pool.alive.has(child);
  forget(pool, child);
  if (expected) return;
  pool.meter?.count('render_children_replaced_total', { reason: 'died' });
  if (wasReady) {
    pool.log.warn({ code: death.code, reason: death.log }, 'a render child died');
  } else {
    pool.failedStarts += 1;
    pool.log.error({ failedStarts: pool.failedStarts, reason: death.log }, 'a render child ended before it was ready');
    startLater(pool);
    if (pool.failedStarts >= failedStartsMax) pool.onStartsFailing(`no render child can be started: ${death.log}`);
  }
  fill(pool);
}

function startLater(pool: Pool): void {
  const delayMs = Math.min(100 * 2 ** pool.failedStarts, restartMsMax);
  pool.restart ??= setTimeout(() => {
    pool.restart = null;
    fill(pool);
  }, delayMs);
}

function forget(pool: Pool, child: RenderChild): void {
  pool.alive.delete(child);
  pool.idle.delete(child);
  tellAlive(pool);
}

function tellAlive(pool: Pool): void {
  pool.meter?.gauge('render_children', pool.alive.size);
}
