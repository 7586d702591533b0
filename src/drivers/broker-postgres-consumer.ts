/**
 * A consumer of the broker `postgres:`: hands messages to those who ask, and sleeps while there are none.
 *
 * Life: `next` adds an asker and starts the loop, if it is not running → the loop takes for all askers (and the prefetch)
 * in one statement → hands out → sleeps until the bell, the next visible message, or the backstop → ends when nobody asks
 * and the prefetch is full. A slot comes first: without an asker nothing is taken. What was taken for an asker that went
 * away meanwhile goes back at once, as does the prefetch on `close`; after a kill it comes again when its visibility ends.
 */
import type { Clock, Consumer, Delivery } from '../pipeline/ports.ts';
import type { Queue, Taken } from './broker-postgres-queue.ts';

export type BrokerClock = Pick<Clock, 'monotonicMs' | 'sleep'>;

export interface Bell {
  /** Wakes the consumers of all processes, soon. */
  ring(): void;
  /** Wakes those of this process now. */
  ringHere(): void;
  /** Answers how to stop listening. */
  onRing(listener: () => void): () => void;
}

interface Held extends Taken {
  readonly takenAtMs: number;
}

type Answer = (delivery: Delivery | null) => void;

/** A sleep doubles while nothing comes, up to so many backstops: less than after which a worker beside a waiting message calls itself starved. */
export const quietMax = 4;
/** Rows of one take at most. */
const takeMax = 200;
/** How long a `close` waits for PostgreSQL. What is not given back by then comes again when its visibility ends. */
const closeMs = 2_000;
const retryMs = { first: 100, cap: 1_000 };

export function createConsumer(
  deps: { queue: Queue; bell: Bell; clock: BrokerClock; backstopMs: number },
  { prefetch, visibilityMs }: { prefetch: number; visibilityMs: number },
): Consumer {
  const { queue, bell, clock } = deps;
  const asking = new Set<Answer>();
  const held: Held[] = [];
  let quietMs = deps.backstopMs;
  let alarm = new AbortController();
  let closed = false;

  const wake = () => alarm.abort();
  const silence = bell.onRing(wake);
  const wanted = () => (closed ? 0 : Math.min(takeMax, asking.size + prefetch - held.length));

  const taking = createLoop(takeAll, () => wanted() > 0);

  async function takeAll(): Promise<void> {
    let delayMs = retryMs.first;
    while (wanted() > 0) {
      // Slots that come free in one turn of the event loop share a take.
      await new Promise<void>((resolve) => setImmediate(resolve));
      // Set before the take: a ring during it may be for a message that it did not see.
      alarm = new AbortController();
      const limit = wanted();
      if (limit <= 0) break;
      let sleepMs: number | null;
      try {
        sleepMs = await takeOnce(limit);
        delayMs = retryMs.first;
      } catch {
        // An outage, or a queue that does not fit: told to the log by the queue, waited through here.
        sleepMs = delayMs;
        delayMs = Math.min(delayMs * 2, retryMs.cap);
      }
      if (sleepMs !== null && wanted() > 0) await clock.sleep(sleepMs, alarm.signal);
    }
  }

  /** Answers how long there will be nothing more to take; null when there may be. */
  async function takeOnce(limit: number): Promise<number | null> {
    const takenAtMs = clock.monotonicMs();
    const { taken, nextMs } = await queue.take(limit, visibilityMs);
    const surplus: Taken[] = [];
    for (const one of taken) {
      const [answer] = asking;
      if (closed) surplus.push(one);
      else if (answer) answer(toDelivery(one));
      else if (held.length < prefetch) held.push({ ...one, takenAtMs });
      else surplus.push(one);
    }
    await giveBack(surplus);
    // Each look costs both sides: with nothing to do for long, they were a third of what the idle service spends.
    const isQuiet = taken.length === 0;
    if (!isQuiet) quietMs = deps.backstopMs;
    const sleepMs = Math.min(quietMs, nextMs ?? quietMs);
    if (isQuiet) quietMs = Math.min(2 * quietMs, quietMax * deps.backstopMs);
    return taken.length === limit ? null : sleepMs;
  }

  async function giveBack(surplus: readonly Taken[]): Promise<void> {
    if (surplus.length === 0) return;
    await queue.giveBack(surplus);
    bell.ring();
  }

  /** The oldest prefetched delivery with half its visibility left; older ones go back and are taken anew. */
  function fromHeld(): Held | undefined {
    const oldestMs = clock.monotonicMs() - visibilityMs / 2;
    const stale = held.filter((one) => one.takenAtMs < oldestMs);
    if (stale.length > 0) {
      held.splice(0, held.length, ...held.filter((one) => one.takenAtMs >= oldestMs));
      giveBack(stale).catch(() => {});
    }
    return held.shift();
  }

  function toDelivery(taken: Taken): Delivery {
    return {
      body: taken.body,
      deliveries: taken.deliveries,
      ack: () => queue.remove(taken),
      async nak(delayMs) {
        await queue.release(taken, delayMs);
        // A delayed one is nobody's yet, but the consumers here now sleep for too long; those elsewhere sleep to the end of theirs.
        if (delayMs > 0) bell.ringHere();
        else bell.ring();
      },
      extend: () => queue.extend(taken, visibilityMs),
    };
  }

  return {
    next(signal) {
      if (closed || signal.aborted) return Promise.resolve(null);
      const ready = fromHeld();
      if (ready) {
        taking.start();
        return Promise.resolve(toDelivery(ready));
      }
      return new Promise((resolve) => {
        const answer: Answer = (delivery) => {
          asking.delete(answer);
          signal.removeEventListener('abort', abort);
          resolve(delivery);
        };
        const abort = () => {
          answer(null);
          wake();
        };
        signal.addEventListener('abort', abort, { once: true });
        asking.add(answer);
        taking.start();
      });
    },
    async close() {
      if (closed) return;
      closed = true;
      silence();
      for (const answer of [...asking]) answer(null);
      wake();
      await inTime(clock, [giveBack(held.splice(0)), taking.ended()]);
    },
  };
}

/** Resolves when all of `ends` have ended, however they did, or after the time that a `close` has. */
export async function inTime(clock: BrokerClock, ends: readonly unknown[]): Promise<void> {
  const ended = new AbortController();
  await Promise.race([Promise.allSettled(ends), clock.sleep(closeMs, ended.signal)]);
  ended.abort();
}

/** At most one `work` at a time; what `more` tells of between its last look and its end starts it again. */
export function createLoop(work: () => Promise<void>, more: () => boolean) {
  let running: Promise<void> | null = null;
  const start = () => {
    running ??= work().finally(() => {
      running = null;
      if (more()) start();
    });
  };
  return { start, ended: async () => running };
}
