/**
 * The driver of the `Images` port: sharp in long-lived child processes that can be killed.
 *
 * This is the parent. It imports no codec: a picture can only ever hurt a child. It keeps `children` + `warmSpare`
 * processes, gives each one job at a time, at most `children` at once, and lets callers beyond that wait. A child that
 * outlives its deadline, or whose caller gave up, is killed; the warm spare takes its place at once.
 */
import { SkrepkaError } from '../errors.ts';
import { isImageType } from '../pipeline/attachment.ts';
import {
  type Images,
  ImagesError,
  type Log,
  type Meter,
  type Rendering,
  type RenderLimits,
  ScratchError,
} from '../pipeline/ports.ts';
import { type ChildPool, createChildPool } from './images-pool.ts';
import type { RenderChild } from './images-process.ts';
import { type Answer, type Job, renderingOf } from './images-protocol.ts';

export interface SharpImagesSettings {
  /** Renders at once, at least 1. */
  readonly children: number;
  /** Loaded children beyond that, so that the one after a kill need not be waited for (0.5 s). */
  readonly warmSpare: number;
  readonly limits: RenderLimits;
  /** Added to the niceness of the children: uploads go before pictures. */
  readonly niceness: number;
  /** A child is replaced after so many renders. */
  readonly rendersMax?: number;
  /** A child is replaced when it holds more than this at rest. */
  readonly restingBytesMax?: number;
  /** The script of a child. Only tests pass one. */
  readonly script?: URL;
}

interface Waiting {
  readonly job: Job;
  readonly signal: AbortSignal;
  readonly resolve: (rendering: Rendering) => void;
  readonly reject: (reason: unknown) => void;
  readonly onAbort: () => void;
}

interface Bounds {
  readonly timeoutMs: number;
  readonly rendersMax: number;
  readonly restingBytesMax: number;
}

/** How long a child may take to load, on a machine that is busy with everything else. */
const startMs = 30_000;
/** How long a killed process is waited for before its caller is answered. */
const burialMs = 1000;
const closedReason = 'rendering was closed';
/** How often a render is looked at, as a part of its time, and at least. */
const looks = { part: 1 / 8, everyMs: 250 };

/**
 * Renders with sharp in child processes, which are started at once. Beside the codes of the port, `render` rejects with
 * `internal` where the fault is not the picture's, such as a missing source; `ScratchError` where the disk has no room for the
 * outputs; `ImagesError` where no child starts, or it is closed.
 * `meter` counts `render_children_replaced_total` by reason.
 */
export function createSharpImages(deps: { log: Log; meter?: Meter }, settings: SharpImagesSettings): Images {
  const { children, warmSpare, limits, niceness } = settings;
  const { rendersMax = 500, restingBytesMax = 256 * 1024 * 1024 } = settings;
  const script = settings.script ?? new URL('./images-child.ts', import.meta.url);
  const bounds: Bounds = { timeoutMs: limits.timeoutMs, rendersMax, restingBytesMax };
  const waiting = new Set<Waiting>();
  let busy = 0;
  let lastId = 0;
  let closed = false;

  const pool = createChildPool(deps, {
    size: children + warmSpare,
    child: { script, memoryBytes: limits.memoryBytes, niceness, startMs },
    onIdle: pump,
    onStartsFailing: refuseWaiting,
  });

  function pump(): void {
    while (busy < children && waiting.size > 0) {
      const child = pool.take();
      const [next] = waiting;
      if (!child || !next) return;
      waiting.delete(next);
      next.signal.removeEventListener('abort', next.onAbort);
      void serve(child, next);
    }
  }

  async function serve(child: RenderChild, { job, signal, resolve, reject }: Waiting): Promise<void> {
    busy += 1;
    await run(pool, child, job, signal, bounds).then(resolve, (error: unknown) =>
      reject(closed && !signal.aborted ? closedError(error) : error),
    );
    busy -= 1;
    pump();
  }

  function refuseWaiting(reason: string): void {
    for (const entry of waiting) {
      waiting.delete(entry);
      entry.signal.removeEventListener('abort', entry.onAbort);
      entry.reject(new ImagesError(reason));
    }
  }

  return {
    async render(task, signal) {
      signal.throwIfAborted();
      if (closed) throw closedError();
      lastId += 1;
      const job = jobOf(task, lastId, limits);
      return new Promise((resolve, reject) => {
        const onAbort = (): void => {
          if (waiting.delete(entry)) reject(signal.reason);
        };
        const entry: Waiting = { job, signal, resolve, reject, onAbort };
        signal.addEventListener('abort', onAbort, { once: true });
        waiting.add(entry);
        pump();
      });
    },
    async close() {
      closed = true;
      refuseWaiting(closedReason);
      await pool.close();
    },
  };
}

/** Closing kills children under their jobs; that is nobody's crash. */
function closedError(cause?: unknown): ImagesError {
  return new ImagesError(closedReason, cause);
}

/** Throws `internal` for a type that is never rendered: asking for it is a mistake of the caller. */
function jobOf(task: Parameters<Images['render']>[0], id: number, limits: RenderLimits): Job {
  const { sourcePath, outputDir, contentType, recipe } = task;
  if (!isImageType(contentType)) throw new SkrepkaError('internal', { log: `${contentType} is never rendered` });
  const { pixelsMax, pixelsMaxAvif, framesMax, scansMax } = limits;
  return { id, sourcePath, outputDir, contentType, recipe, limits: { pixelsMax, pixelsMaxAvif, framesMax, scansMax } };
}

/** One job in one child. When it returns or throws, the child is idle again or removed. */
async function run(
  pool: ChildPool,
  child: RenderChild,
  job: Job,
  signal: AbortSignal,
  bounds: Bounds,
): Promise<Rendering> {
  const kill: { reason: 'deadline' | 'aborted' | null; burial?: NodeJS.Timeout } = { reason: null };
  // A process that hangs in the kernel outlives even SIGKILL; its caller and its slot do not wait for it.
  const buried = Promise.withResolvers<null>();
  const killFor = (reason: 'deadline' | 'aborted'): void => {
    if (kill.reason !== null) return;
    kill.reason = reason;
    pool.remove(child, reason);
    kill.burial = setTimeout(() => buried.resolve(null), burialMs);
  };
  const onAbort = (): void => killFor('aborted');
  const endDeadline = startDeadline(bounds.timeoutMs, () => killFor('deadline'));
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    const answer = await Promise.race([child.ask(job), buried.promise]);
    if (kill.reason === 'aborted') throw signal.reason;
    if (kill.reason === 'deadline') {
      throw new SkrepkaError('render_timeout', { log: `killed after ${bounds.timeoutMs} ms` });
    }
    if (answer === null) throw await deathOf(child);
    return conclude(pool, child, job, answer, bounds);
  } finally {
    endDeadline();
    clearTimeout(kill.burial);
    signal.removeEventListener('abort', onAbort);
  }
}

/**
 * Calls `expire` once after `timeoutMs` in which this process ran, not after as much by the clock: while the worker was stopped,
 * or its machine was, the picture was not slow, and its answer may wait to be read. What passed between two looks counts twice
 * their distance at most. How long a stop may be is the lease's matter. Answers how to end it.
 */
function startDeadline(timeoutMs: number, expire: () => void): () => void {
  const lookMs = Math.min(looks.everyMs, timeoutMs * looks.part);
  let leftMs = timeoutMs;
  let lookedMs = performance.now();
  let timer = setTimeout(look, lookMs);
  function look(): void {
    const nowMs = performance.now();
    leftMs -= Math.min(nowMs - lookedMs, 2 * lookMs);
    lookedMs = nowMs;
    if (leftMs <= 0) expire();
    else timer = setTimeout(look, Math.min(lookMs, leftMs));
  }
  return () => clearTimeout(timer);
}

async function deathOf(child: RenderChild): Promise<SkrepkaError> {
  const death = await child.ended;
  return new SkrepkaError(death.code, { log: death.log });
}

/** What an answer means, and what becomes of the child that gave it. */
function conclude(pool: ChildPool, child: RenderChild, job: Job, answer: Answer, bounds: Bounds): Rendering {
  const rendering = answer.kind === 'done' ? renderingOf(answer.rendering, job) : null;
  if (answer.kind === 'done' && rendering === null) pool.remove(child, 'astray');
  else if (answer.rssBytes > bounds.restingBytesMax || child.asked() >= bounds.rendersMax)
    pool.remove(child, 'retired');
  else pool.giveBack(child);
  if (answer.kind === 'refused') {
    if (answer.code === 'internal' && saysDiskFull(answer.log)) throw new ScratchError(answer.log);
    throw new SkrepkaError(answer.code, { log: answer.log });
  }
  if (rendering === null) throw new SkrepkaError('render_crashed', { log: 'the answer does not fit the job' });
  return rendering;
}

/** The words of the C library for ENOSPC and EDQUOT, which libvips passes on. A full disk is this worker's trouble, and costs no job an attempt. */
function saysDiskFull(text: string): boolean {
  return /no space left on device|disk quota exceeded/i.test(text);
}
