/**
 * A gate before costly work: a few pass at once, some wait in line, the rest is sent away at once.
 *
 * Password hashing needs it: libuv has four threads for files, names and scrypt alike, and each hash takes 32 MiB.
 */
import { SkrepkaError } from '../errors.ts';

export interface Gate {
  /** Runs `work` when its turn comes, first come, first served. Rejects `unavailable` when the line is full; else as `work` does. */
  pass<T>(work: () => Promise<T>): Promise<T>;
}

/** `passingMax` run at once, `waitingMax` wait; `retryAfterSeconds` is told to those who are sent away. */
export function createGate(settings: { passingMax: number; waitingMax: number; retryAfterSeconds: number }): Gate {
  const waiting: (() => void)[] = [];
  let passing = 0;

  const leave = () => {
    const next = waiting.shift();
    // The place goes over without being counted down in between, so that no newcomer can slip in.
    if (next) next();
    else passing -= 1;
  };

  return {
    async pass(work) {
      if (passing < settings.passingMax) passing += 1;
      else if (waiting.length < settings.waitingMax) await new Promise<void>((resolve) => waiting.push(resolve));
      else
        throw new SkrepkaError('unavailable', {
          retryAfterSeconds: settings.retryAfterSeconds,
          log: 'The line is full',
        });
      try {
        return await work();
      } finally {
        leave();
      }
    },
  };
}
