/**
 * A consumer of JetStream: one pull of one message for each free slot, and `prefetch` more.
 *
 * Life: `next` adds an asker → a pull for it stands at the server, for some seconds at a time → its message goes to the
 * asker. Without asker and prefetch there is no pull, so a message is never here without a use for it. An asker that goes
 * away takes its pull back; a message that was under way meanwhile goes to another asker, or back to the server.
 *
 * Pulls are lost without a word when their server dies or another one leads. Each therefore has a deadline of our own, and
 * any end but a message or the time-out leads through `restore`: stream there, durable consumer there, then pull again.
 * Why not the library's `next()`: `docs/decisions/0010-jetstream.md`.
 */
import { BrokerError, type Consumer, type Delivery, type Log } from '../pipeline/ports.ts';
import type { Heard, Message, Nats, Pull } from './broker-nats-connection.ts';
import { durableName, type RingStream } from './broker-nats-stream.ts';

export interface ConsumerSettings {
  readonly name: string;
  /** For how long one pull stands at the server. */
  readonly pullMs: number;
  /** A slot that waits for so long while messages wait as well: the server stalls. */
  readonly stallMs: number;
}

export interface WatchedConsumer extends Consumer {
  /** Looks for a stall and mends it. Called now and then. */
  watch(): Promise<void>;
}

interface Held {
  readonly delivery: Delivery;
  readonly takenAtMs: number;
}

type Answer = (delivery: Delivery | null) => void;

/** How much longer than a pull we wait for its time-out. */
const silenceMs = 2_000;
/** How long a `close` waits for NATS. What is not given back by then comes again when its visibility ends. */
const closeMs = 2_000;
const retryMs = { first: 100, cap: 2_000 };
const nanosInMs = 1_000_000;

export function createConsumer(
  { nats, stream, log }: { nats: Nats; stream: RingStream; log: Pick<Log, 'warn'> },
  { prefetch, visibilityMs }: { prefetch: number; visibilityMs: number },
  { name, pullMs, stallMs }: ConsumerSettings,
): WatchedConsumer {
  const asking = new Set<Answer>();
  const held: Held[] = [];
  const pulls = new Set<{ cancel(): Promise<void> }>();
  /** What is on its way back to the server, and pulls that are being taken back. */
  const leaving = new Set<Promise<void>>();
  let asked = false;
  let ready = true;
  let restoring = false;
  let alarm = new AbortController();
  let misses = 0;
  let hungrySinceMs = 0;
  let stalls = 0;
  let closed = false;

  const silences = [
    nats.listen({ up: () => alarm.abort(), down: () => lose('the connection is lost') }),
    // Pulls that stand at a consumer which is gone may hear nothing of it.
    stream.onDisrupted(() => lose('the stream is another one')),
  ];

  /** As many pulls as there are uses for a message, no more. */
  function adjust(): void {
    const wanted = closed || !asked ? 0 : asking.size + Math.max(0, prefetch - held.length);
    if (wanted > 0 && !ready) void restore();
    for (const pull of [...pulls].slice(wanted)) takeBack(pull);
    try {
      while (ready && pulls.size < wanted) open();
    } catch {
      lose('there is no connection');
    }
  }

  function open(): void {
    const openedAtMs = performance.now();
    const pull = {
      cancel() {
        pulls.delete(pull);
        clearTimeout(timer);
        return inner.cancel();
      },
    };
    const inner: Pull = nats.pull({ stream: name, durable: durableName, expiresMs: pullMs }, (heard) => {
      const counted = pulls.delete(pull);
      clearTimeout(timer);
      if ('message' in heard) {
        take(heard.message);
      } else if (counted && !expired(heard, openedAtMs)) {
        return lose(`${heard.code} ${heard.text}`);
      }
      misses = 0;
      adjust();
    });
    const timer = setTimeout(() => {
      takeBack(pull);
      lose('a pull had no answer');
    }, pullMs + silenceMs);
    pulls.add(pull);
  }

  /** A time-out that comes at once would be asked for again at once, without end. */
  function expired(heard: Heard, openedAtMs: number): boolean {
    return 'code' in heard && heard.code === 408 && performance.now() - openedAtMs > pullMs / 2;
  }

  function takeBack(pull: { cancel(): Promise<void> }): void {
    track(pull.cancel());
  }

  function take(message: Message): void {
    const delivery = toDelivery(message);
    const [answer] = asking;
    if (answer) answer(delivery);
    else if (!closed && held.length < prefetch) held.push({ delivery, takenAtMs: performance.now() });
    else giveBack(delivery);
  }

  function giveBack(delivery: Delivery): void {
    track(delivery.nak(0).catch(() => {}));
  }

  function track(work: Promise<void>): void {
    const tracked = work.finally(() => leaving.delete(tracked));
    leaving.add(tracked);
  }

  function toDelivery({ body, deliveries, reply }: Message): Delivery {
    const incarnation = stream.lastIncarnation();
    let end: Promise<void> | null = null;
    const tell = async (word: string) => {
      if ((await stream.incarnation()) !== incarnation) {
        throw new BrokerError('unavailable', 'The stream of this delivery is gone');
      }
      await nats.tell(reply, word);
    };
    const endWith = (word: string) => {
      // A failed end may be tried again.
      end ??= tell(word).catch((error: unknown) => {
        end = null;
        throw error;
      });
      return end;
    };
    return {
      body,
      deliveries,
      ack: () => endWith('+ACK'),
      nak: (delayMs) => endWith(`-NAK ${JSON.stringify({ delay: Math.round(delayMs * nanosInMs) })}`),
      extend: async () => {
        if (end === null) await tell('+WPI');
      },
    };
  }

  /** The pulls are lost, or the server says that they lead nowhere. */
  function lose(reason: string): void {
    for (const pull of [...pulls]) takeBack(pull);
    if (!ready) return;
    ready = false;
    misses += 1;
    if (!closed && nats.isUp() && misses > 1) log.warn({ reason }, 'broker: pulls end early, looking at the stream');
    adjust();
  }

  async function restore(): Promise<void> {
    if (restoring) return;
    restoring = true;
    alarm = new AbortController();
    // The first time at once: another server leads by now, or the stream is to be made anew.
    if (misses > 1) await rest();
    while (!ready && !closed) {
      alarm = new AbortController();
      try {
        await stream.look();
        await stream.durable(visibilityMs);
        ready = nats.isUp();
      } catch (error) {
        const refused = error instanceof BrokerError && error.fault === 'refused';
        if (refused) log.warn({ reason: error.message }, 'broker: no deliveries');
      }
      if (ready) break;
      misses += 1;
      await rest();
    }
    restoring = false;
    adjust();
  }

  /** Ends early when the connection is there again. */
  async function rest(): Promise<void> {
    const { signal } = alarm;
    if (signal.aborted || closed) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, Math.min(retryMs.first * 2 ** Math.min(misses, 10), retryMs.cap));
    signal.addEventListener('abort', () => resolve(), { once: true });
    await promise;
    clearTimeout(timer);
  }

  /** The oldest prefetched delivery with half its visibility left; older ones go back and are taken anew. */
  function fromHeld(): Delivery | undefined {
    const oldestMs = performance.now() - visibilityMs / 2;
    while (held[0] && held[0].takenAtMs < oldestMs) giveBack((held.shift() as Held).delivery);
    return held.shift()?.delivery;
  }

  async function mendStall(): Promise<void> {
    const { waiting, blocked } = await stream.depth();
    if (waiting === 0 || blocked || !hungry()) {
      stalls = 0;
      return;
    }
    stalls += 1;
    log.warn({ waiting, stalls }, 'broker: messages wait and so do we, the server stalls');
    // The consumer of all processes is the last resort: what the others hold is then delivered once more.
    if (stalls > 1) await stream.renewDurable(visibilityMs);
    lose('stalled');
  }

  const hungry = () => ready && asking.size > 0 && performance.now() - hungrySinceMs > stallMs;

  return {
    next(signal) {
      if (closed || signal.aborted) return Promise.resolve(null);
      asked = true;
      const first = fromHeld();
      if (first) {
        adjust();
        return Promise.resolve(first);
      }
      return new Promise((resolve) => {
        const answer: Answer = (delivery) => {
          asking.delete(answer);
          signal.removeEventListener('abort', abort);
          if (delivery) [hungrySinceMs, stalls] = [performance.now(), 0];
          resolve(delivery);
        };
        const abort = () => {
          answer(null);
          adjust();
        };
        signal.addEventListener('abort', abort, { once: true });
        if (asking.size === 0) hungrySinceMs = performance.now();
        asking.add(answer);
        adjust();
      });
    },
    async watch() {
      if (hungry()) await mendStall();
      else stalls = 0;
    },
    async close() {
      if (closed) return;
      closed = true;
      for (const silence of silences) silence();
      alarm.abort();
      for (const answer of [...asking]) answer(null);
      for (const { delivery } of held.splice(0)) giveBack(delivery);
      for (const pull of [...pulls]) takeBack(pull);
      const late = AbortSignal.timeout(closeMs);
      // Giving back may follow from taking back: what a pull brings on its way out.
      while (leaving.size > 0 && !late.aborted) await Promise.race([Promise.all(leaving), aborted(late)]);
    },
  };
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
