/**
 * A consumer of the broker `amqp:`: brings one message for each slot that asks, and keeps the time of what it brought.
 *
 * AMQP pushes: whoever subscribes is sent messages as long as its prefetch has room. So that nothing comes unasked, each
 * wanted message has a subscription of its own, a tap, with room for one: `next` (or a free place of the prefetch) opens
 * a tap → the message flows the moment that there is one → the tap is closed → the delivery is held under our clock →
 * ack, nak, or the end of its visibility, when it goes back. A tap that nobody waits for any more is closed, and what
 * came through it meanwhile goes back at once. All taps share one channel; when that is lost, the server gives everything
 * back by itself, and what is done to a delivery of it later touches no other: its tag means nothing elsewhere.
 *
 * Rejected: `basic.get` (a look is a log entry of the quorum queue, with its fsync, 20 a second for 50 ms); one
 * subscription with a prefetch that follows the demand (quorum queues take a new limit only with a new subscription).
 */
import { BrokerError, type Consumer, type Delivery } from '../pipeline/ports.ts';
import { type AsyncMessage, type Channel, type Link, within } from './broker-rabbitmq-link.ts';

export interface RabbitConsumer extends Consumer {
  /** Deliveries that were brought and not ended: handed out, prefetched, or waiting for the delay of their nak. */
  inFlight(): number;
}

interface Tap {
  readonly tag: string;
  /** Settles when the server sends nothing more; null while it is open. */
  closed: Promise<unknown> | null;
}

interface Lease extends Delivery {
  /** Starts the visibility anew, for one that was prefetched. */
  handOut(): Delivery;
  giveBack(): Promise<void>;
  /** Its channel is gone, and the message is with the server again. */
  lose(): void;
}

type Answer = (delivery: Delivery | null) => void;

/** Taps open at once at most: a larger prefetch is filled in rounds. */
const tapsMax = 64;
/** How long an ack waits for the server, and a close for the taps. */
const answerMs = 5_000;
const closeMs = 2_000;
/** Longer delays end here: the message counts as held by us, and the server's own limit for that is 30 minutes. */
const delayMsMax = 10 * 60_000;

export function createConsumer(
  deps: { link: Link; queue: string; refreshMs: number },
  { prefetch, visibilityMs }: { prefetch: number; visibilityMs: number },
): RabbitConsumer {
  const asking = new Set<Answer>();
  const held: Lease[] = [];
  const unended = new Set<Lease>();
  const taps = new Set<Tap>();
  const refresher = setInterval(refresh, deps.refreshMs);
  let tags = 0;
  /** Nothing arrived since the last tick of the refresher. */
  let silent = false;
  let balancing: Promise<void> | null = null;
  let closed = false;

  const kept = deps.link.keep({
    async setUp(channel) {
      // A publisher makes it; without one there is nothing to take either.
      await channel.queueDeclare({ queue: deps.queue, passive: true });
      await channel.basicQos({ prefetchCount: 1 });
      // The queue was deleted.
      channel.on('basic.cancel', () => kept.renew());
    },
    ready: startBalancing,
    lost() {
      taps.clear();
      held.length = 0;
      for (const lease of unended) lease.lose();
      unended.clear();
    },
  });

  const wanted = () => (closed ? 0 : Math.min(tapsMax, asking.size + prefetch - held.length));

  function startBalancing(): void {
    balancing ??= balance().finally(() => {
      balancing = null;
      if (kept.current() && wanted() !== taps.size) startBalancing();
    });
  }

  /** Opens and closes taps, one after the other, until there are as many as messages are wanted. */
  async function balance(): Promise<void> {
    for (let channel = kept.current(); channel && wanted() !== taps.size; channel = kept.current()) {
      try {
        const [surplus] = taps;
        if (wanted() > taps.size) await openTap(channel);
        else if (surplus) await closeTap(channel, surplus);
      } catch {
        // Only a lost channel fails here; the next one starts over.
        return;
      }
    }
  }

  async function openTap(channel: Channel): Promise<void> {
    tags += 1;
    const tap: Tap = { tag: `tap-${tags}`, closed: null };
    taps.add(tap);
    await channel.basicConsume({ queue: deps.queue, consumerTag: tap.tag }, (message) => {
      if (channel.active) arrived(channel, tap, message);
    });
  }

  function closeTap(channel: Channel, tap: Tap): Promise<unknown> {
    taps.delete(tap);
    tap.closed ??= channel.basicCancel(tap.tag);
    tap.closed.catch(() => {});
    return tap.closed;
  }

  function arrived(channel: Channel, tap: Tap, message: AsyncMessage): void {
    silent = false;
    const tapClosed = closeTap(channel, tap).catch(() => {});
    const lease = createLease({ channel, message, tapClosed, visibilityMs, expired, ended });
    unended.add(lease);
    const [answer] = asking;
    if (answer) answer(lease.handOut());
    else if (!closed && held.length < prefetch) held.push(lease);
    else lease.giveBack().catch(() => {});
    startBalancing();
  }

  /**
   * Seen with 3.10: a queue that is deleted and made again at once hands its messages to the taps that were open, as the
   * server believes, and nothing arrives. Whatever the reason for a long silence, a new channel ends it.
   */
  function refresh(): void {
    if (silent && taps.size > 0 && unended.size === 0) kept.renew();
    silent = true;
  }

  function expired(lease: Lease): void {
    // One that was prefetched must not be handed out any more.
    const at = held.indexOf(lease);
    if (at >= 0) held.splice(at, 1);
    lease.giveBack().catch(() => {});
  }

  function ended(lease: Lease): void {
    unended.delete(lease);
    if (closed && unended.size === 0) kept.close().catch(() => {});
    startBalancing();
  }

  return {
    inFlight: () => unended.size,
    next(signal) {
      if (closed || signal.aborted) return Promise.resolve(null);
      const ready = held.shift();
      if (ready) {
        startBalancing();
        return Promise.resolve(ready.handOut());
      }
      return new Promise((resolve) => {
        const answer: Answer = (delivery) => {
          asking.delete(answer);
          signal.removeEventListener('abort', abort);
          resolve(delivery);
        };
        const abort = () => {
          answer(null);
          startBalancing();
        };
        signal.addEventListener('abort', abort, { once: true });
        asking.add(answer);
        startBalancing();
      });
    },
    async close() {
      if (closed) return;
      closed = true;
      clearInterval(refresher);
      for (const answer of [...asking]) answer(null);
      startBalancing();
      const back = held.splice(0).map((lease) => lease.giveBack());
      const slow = () => new BrokerError('unavailable', 'RabbitMQ did not answer');
      await within(Promise.allSettled([...back, balancing]), closeMs, slow).catch(() => {});
      if (unended.size === 0) await within(kept.close(), closeMs, slow).catch(() => {});
    },
  };
}

/* -------------------------------------------------------------------- lease */

/**
 * A delivery and its clock. RabbitMQ knows no visibility time-out (`consumer_timeout` is the server's own, 30 minutes, and
 * closes the whole channel), so the holder's clock gives back what was neither ended nor extended; a holder that died
 * or fell silent loses its connection, and the server gives everything back.
 */
function createLease(of: {
  channel: Channel;
  message: AsyncMessage;
  /** Nothing may be ended before: the room that it leaves would be filled again, unasked. */
  tapClosed: Promise<unknown>;
  visibilityMs: number;
  expired(lease: Lease): void;
  ended(lease: Lease): void;
}): Lease {
  const { channel, message, tapClosed } = of;
  const { deliveryTag } = message;
  let state: 'held' | 'ended' | 'lost' = 'held';
  let timer = setTimeout(expire, of.visibilityMs);

  function expire(): void {
    of.expired(lease);
  }

  function restart(): void {
    clearTimeout(timer);
    timer = setTimeout(expire, of.visibilityMs);
  }

  /** True for the one call that ends it. */
  function end(): boolean {
    if (state === 'lost') throw new BrokerError('unavailable', 'The connection that brought the message is gone');
    const first = state === 'held';
    state = 'ended';
    return first;
  }

  async function giveBack(): Promise<void> {
    clearTimeout(timer);
    try {
      await tapClosed;
      channel.basicNack({ deliveryTag, requeue: true });
    } catch (error) {
      throw new BrokerError('unavailable', 'The connection was lost, which gives the message back as well', error);
    } finally {
      of.ended(lease);
    }
  }

  const lease: Lease = {
    body: toBytes(message.body),
    deliveries: 1 + countOf(message.headers?.['x-delivery-count']),
    async ack() {
      if (!end()) return;
      clearTimeout(timer);
      try {
        await within(confirmedAck(), answerMs, () => new BrokerError('unknown', 'The ack was not answered in time'));
      } catch (error) {
        throw error instanceof BrokerError ? error : new BrokerError('unknown', 'The ack was lost', error);
      } finally {
        of.ended(lease);
      }
    },
    async nak(delayMs) {
      if (!end()) return;
      if (delayMs <= 0) return await giveBack();
      // Quorum queues know no delay: the message stays here, and counts as held, until it is over.
      clearTimeout(timer);
      timer = setTimeout(() => giveBack().catch(() => {}), Math.min(delayMs, delayMsMax));
    },
    async extend() {
      if (state === 'lost') end();
      if (state === 'held') restart();
    },
    handOut() {
      restart();
      return lease;
    },
    async giveBack() {
      if (end()) await giveBack();
    },
    lose() {
      clearTimeout(timer);
      if (state === 'held') state = 'lost';
    },
  };

  /** AMQP confirms no ack; an answer of the same channel proves at least that the server has read it. */
  async function confirmedAck(): Promise<void> {
    await tapClosed;
    channel.basicAck({ deliveryTag });
    await channel.basicQos({ prefetchCount: 1 });
  }

  return lease;
}

function countOf(header: unknown): number {
  return typeof header === 'number' || typeof header === 'bigint' ? Number(header) : 0;
}

/** Ours are bytes; the library turns a stranger's text and JSON into values. */
function toBytes(body: unknown): Uint8Array {
  if (body instanceof Uint8Array) return body;
  return Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
}
