/**
 * A consumer of the broker `valkey:`: hands entries to those who ask, and sleeps while there are none.
 *
 * Life: `next` adds an asker and starts the loop, if it is not running → the loop takes for all askers (and the prefetch) with
 * one script → hands out → sleeps until a ring, the next deadline, or the backstop → ends when nobody asks and the prefetch is
 * full. A slot comes first: without an asker nothing is taken. What was taken for an asker that went away meanwhile goes back
 * at once, as does the prefetch on `close`; after a kill it comes again when its visibility ends.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import type { Consumer, Delivery } from '../pipeline/ports.ts';
import type { Queue, Taken } from './broker-valkey-queue.ts';

export interface WakingConsumer extends Consumer {
  /** There may be something to take. */
  wake(): void;
}

interface Ahead extends Taken {
  readonly takenAtMs: number;
}

type Answer = (delivery: Delivery | null) => void;

/** Entries of one take at most. */
const takeMax = 200;
/** How long a `close` waits for Valkey. What is not given back by then comes again when its visibility ends. */
const closeMs = 2_000;
const retryMs = { first: 100, cap: 1_000 };
/** Spreads those who wait for one deadline: the first of them gets it. */
const jitterMs = 20;

export function createConsumer(
  { queue, backstopMs }: { queue: Queue; backstopMs: number },
  { prefetch, visibilityMs }: { prefetch: number; visibilityMs: number },
): WakingConsumer {
  const name = randomUUID();
  const asking = new Set<Answer>();
  const ahead: Ahead[] = [];
  let alarm = new AbortController();
  let taking: Promise<void> | null = null;
  let closing: Promise<void> | null = null;

  const wanted = () => (closing ? 0 : Math.min(takeMax, asking.size + prefetch - ahead.length));

  function start(): void {
    taking ??= takeAll().finally(() => {
      taking = null;
      if (wanted() > 0) start();
    });
  }

  async function takeAll(): Promise<void> {
    let delayMs = retryMs.first;
    while (wanted() > 0) {
      // Set before the take: a ring during it may be for an entry that it did not see.
      alarm = new AbortController();
      const limit = wanted();
      let sleepMs: number;
      try {
        sleepMs = await takeOnce(limit);
        delayMs = retryMs.first;
      } catch {
        // An outage, or keys that do not fit: told to the log by those who watch, waited through here.
        sleepMs = delayMs;
        delayMs = Math.min(delayMs * 2, retryMs.cap);
      }
      if (sleepMs > 0 && wanted() > 0) await pause(sleepMs, undefined, { signal: alarm.signal }).catch(() => {});
    }
  }

  /** Answers for how long there will be nothing more to take; 0 when there may be. */
  async function takeOnce(limit: number): Promise<number> {
    const takenAtMs = performance.now();
    const { taken, nextMs } = await queue.take(name, limit, visibilityMs);
    const surplus: Taken[] = [];
    for (const one of taken) {
      const [answer] = asking;
      if (closing) surplus.push(one);
      else if (answer) answer(toDelivery(one));
      else if (ahead.length < prefetch) ahead.push({ ...one, takenAtMs });
      else surplus.push(one);
    }
    if (surplus.length > 0) await queue.giveBack(surplus);
    if (taken.length === limit) return 0;
    return Math.min(backstopMs, nextMs) + 1 + Math.random() * jitterMs;
  }

  /** The oldest entry taken ahead with half its visibility left; older ones go back and are taken anew. */
  function fromAhead(): Ahead | undefined {
    const oldestMs = performance.now() - visibilityMs / 2;
    const stale = ahead.filter((one) => one.takenAtMs < oldestMs);
    if (stale.length > 0) {
      ahead.splice(0, ahead.length, ...ahead.filter((one) => one.takenAtMs >= oldestMs));
      queue.giveBack(stale).catch(() => {});
    }
    return ahead.shift();
  }

  const toDelivery = (taken: Taken): Delivery => ({
    body: taken.body,
    deliveries: taken.deliveries,
    ack: () => queue.remove(taken),
    nak: (delayMs) => queue.release(taken, delayMs),
    extend: () => queue.extend(taken, visibilityMs),
  });

  async function end(): Promise<void> {
    for (const answer of [...asking]) answer(null);
    alarm.abort();
    const back = ahead.splice(0);
    const left = (async () => {
      if (back.length > 0) await queue.giveBack(back);
      await taking;
      await queue.leave(name);
    })();
    const late = new AbortController();
    await Promise.race([left.catch(() => {}), pause(closeMs, undefined, { signal: late.signal }).catch(() => {})]);
    late.abort();
  }

  return {
    wake: () => alarm.abort(),
    next(signal) {
      if (closing || signal.aborted) return Promise.resolve(null);
      const ready = fromAhead();
      if (ready) {
        start();
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
          alarm.abort();
        };
        signal.addEventListener('abort', abort, { once: true });
        asking.add(answer);
        // A loop that sleeps has found nothing, so there is nothing for this one either.
        start();
      });
    },
    close() {
      closing ??= end();
      return closing;
    },
  };
}
