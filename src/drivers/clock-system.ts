/** The `Clock` port on the machine's own clocks and random numbers. */
import { setTimeout as delay } from 'node:timers/promises';
import { newId } from '../ids.ts';
import type { Clock } from '../pipeline/ports.ts';

/** The clock of production and of tests with real processes. */
export function createSystemClock(): Clock {
  return {
    monotonicMs: () => performance.now(),
    wallMs: () => Date.now(),
    random: () => Math.random(),
    newId,
    async sleep(ms, signal) {
      if (signal?.aborted) return;
      try {
        await delay(ms, undefined, { signal });
      } catch (error) {
        if (!signal?.aborted) throw error;
      }
    },
  };
}
