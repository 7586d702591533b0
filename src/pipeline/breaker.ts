/**
 * A breaker stands before one dependency: while that is down, nobody asks it but a probe, and nothing is spent on it.
 *
 * Life: closed → (a call says that the dependency is away) → open → (a probe answers) → closed. There is no half-open traffic:
 * the probe is the driver's own health check, so a job is never the one that finds out. Waits double up to a bound.
 */
import { describe } from '../errors.ts';
import type { Clock, Log, Meter } from './ports.ts';

export interface BreakerSettings {
  readonly breakerFloorMs: number;
  readonly breakerCapMs: number;
}

export interface Breaker {
  /** Resolves when the dependency may be used, or `signal` aborts. At once while closed. */
  closed(signal: AbortSignal): Promise<void>;
  isOpen(): boolean;
  /** A call found the dependency away. */
  trip(): void;
  /** Milliseconds until the next probe at the earliest; 0 while closed. What was given up meanwhile need not come back before. */
  mayCloseInMs(): number;
  /** Ends the probing; who waits goes on. */
  end(): void;
}

/** `probe` resolves when the dependency can be used. It is called only while the breaker is open, one at a time. */
export function createBreaker(
  dependency: 'store' | 'storage' | 'broker' | 'disk',
  probe: () => Promise<void>,
  { clock, log, meter }: { clock: Clock; log: Log; meter: Meter },
  settings: BreakerSettings,
): Breaker {
  let waiters: (() => void)[] | null = null;
  let probeAtMs = 0;
  const over = new AbortController();
  meter.gauge('breaker_open', 0, { dependency });

  async function untilItAnswers() {
    let isTold = false;
    for (
      let waitMs = settings.breakerFloorMs;
      !over.signal.aborted;
      waitMs = Math.min(waitMs * 2, settings.breakerCapMs)
    ) {
      // Jitter: a fleet of workers must not come back to a store in one moment.
      const jitteredMs = waitMs * (0.75 + 0.5 * clock.random());
      probeAtMs = clock.monotonicMs() + jitteredMs;
      await clock.sleep(jitteredMs, over.signal);
      if (over.signal.aborted) return;
      try {
        await probe();
        return;
      } catch (error) {
        meter.count('breaker_probes_failed_total', { dependency });
        // Once for each time that it opens: the same words at every probe would fill the log of a long outage.
        if (!isTold) log.warn({ dependency, error: describe(error) }, 'breaker: stays open, the probe failed');
        isTold = true;
      }
    }
  }

  return {
    end: () => over.abort(),
    isOpen: () => waiters !== null,
    mayCloseInMs: () => (waiters === null ? 0 : Math.max(0, probeAtMs - clock.monotonicMs())),
    trip() {
      if (waiters !== null || over.signal.aborted) return;
      waiters = [];
      log.warn({ dependency }, 'breaker: open, the dependency is away');
      meter.count('breaker_trips_total', { dependency });
      meter.gauge('breaker_open', 1, { dependency });
      void untilItAnswers().then(() => {
        const waiting = waiters ?? [];
        waiters = null;
        meter.gauge('breaker_open', 0, { dependency });
        if (!over.signal.aborted) log.info({ dependency }, 'breaker: closed, the dependency answers');
        for (const go of waiting) go();
      });
    },
    async closed(signal) {
      while (waiters !== null && !signal.aborted) {
        await new Promise<void>((resolve) => {
          waiters?.push(resolve);
          signal.addEventListener('abort', () => resolve(), { once: true });
        });
      }
    },
  };
}
