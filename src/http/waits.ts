/**
 * Long-polls: requests that wait for an attachment's state. A change wakes them through `Signals`; since those may be lost,
 * every waiter also asks once a second. A thousand waiters are a thousand timers, one listener, and a thousand questions to
 * the database a second: so there is a bound for all and one for each user.
 */
import type { Clock, Signals } from '../pipeline/ports.ts';

const backstopMs = 1000;

/** Seconds after which whoever found no place may ask again: the wait that a client with a loop should have by itself. */
export const fullSeconds = 1;

export interface Waits {
  /** A place to wait in, which the caller leaves again once; null when the user or this process has as many as allowed. */
  enter(userId: string): { leave(): void } | null;
  /**
   * Asks `look` until `isOver` says so of its answer, `waitMs` have passed, `signal` aborts or the server closes; answers
   * the last look. `look` is called at least once.
   */
  until<T>(
    id: string,
    look: () => Promise<T>,
    isOver: (seen: T) => boolean,
    options: { waitMs: number; signal: AbortSignal },
  ): Promise<T>;
  /** Answers all waiters now, and later ones at once. */
  close(): void;
}

export function createWaits(
  { signals, clock }: { signals: Signals; clock: Clock },
  settings: { waitsMax: number; waitsPerUserMax: number },
): Waits {
  const places = new Map<string, number>();
  let taken = 0;
  const sleepers = new Map<string, Set<() => void>>();
  const closing = new AbortController();
  const stopListening = signals.listen('changed', (id) => {
    // Without an id anything may have changed.
    const woken = id === null ? [...sleepers.values()].flatMap((set) => [...set]) : [...(sleepers.get(id) ?? [])];
    for (const wake of woken) wake();
  });

  /** Registers before it is awaited: a change between a look and its sleep is not missed. */
  function doze(id: string, signal: AbortSignal): { over: (ms: number) => Promise<void>; cancel: () => void } {
    const woken = new AbortController();
    const set = sleepers.get(id) ?? new Set();
    const wake = () => woken.abort();
    sleepers.set(id, set.add(wake));
    signal.addEventListener('abort', wake);
    closing.signal.addEventListener('abort', wake);
    return {
      over: (ms) => clock.sleep(ms, woken.signal),
      cancel() {
        set.delete(wake);
        if (set.size === 0 && sleepers.get(id) === set) sleepers.delete(id);
        signal.removeEventListener('abort', wake);
        closing.signal.removeEventListener('abort', wake);
      },
    };
  }

  return {
    enter(userId) {
      const own = places.get(userId) ?? 0;
      if (taken >= settings.waitsMax || own >= settings.waitsPerUserMax) return null;
      taken += 1;
      places.set(userId, own + 1);
      return {
        leave() {
          taken -= 1;
          const rest = (places.get(userId) ?? 0) - 1;
          if (rest > 0) places.set(userId, rest);
          else places.delete(userId);
        },
      };
    },
    async until(id, look, isOver, { waitMs, signal }) {
      const endMs = clock.monotonicMs() + waitMs;
      for (;;) {
        const nap = doze(id, signal);
        try {
          const seen = await look();
          const leftMs = endMs - clock.monotonicMs();
          if (isOver(seen) || leftMs <= 0 || signal.aborted || closing.signal.aborted) return seen;
          await nap.over(Math.min(leftMs, backstopMs));
        } finally {
          nap.cancel();
        }
      }
    },
    close() {
      stopListening();
      closing.abort();
    },
  };
}
