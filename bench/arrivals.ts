/**
 * Uploads that come when they come, whether the service keeps up or not: the answer is timed from the moment at which the upload was
 * meant to be sent, so a service that stalls pays for everything it kept waiting.
 */
import { setTimeout as pause } from 'node:timers/promises';

export interface Answered {
  /** Null: refused, or the connection failed. */
  readonly id: string | null;
  readonly answerMs: number;
}

/** Sends each of `all`, the next `everyMs` after the one before. Resolves when all are answered, in the order of sending. */
export async function sendAll<T>(
  all: readonly T[],
  everyMs: number,
  send: (one: T) => Promise<string | null>,
): Promise<readonly Answered[]> {
  const startMs = performance.now();
  return await Promise.all(
    all.map(async (one, at) => {
      const intendedMs = startMs + at * everyMs;
      await pause(Math.max(0, intendedMs - performance.now()));
      const id = await send(one).catch(() => null);
      return { id, answerMs: performance.now() - intendedMs };
    }),
  );
}
