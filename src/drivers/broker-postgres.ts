/**
 * The broker `postgres:`: a queue in a schema of its own, `skrepka_broker`, in any database, the store's or another.
 *
 * Life of a message: `publish` inserts it, visible at once → a take moves its `visible_at` into the future under a fresh
 * token → the holder of that token acks (row gone), naks (visible again, token gone) or extends; a holder that says
 * nothing loses it when `visible_at` comes. Every end compares the token, so a late ack of an earlier delivery leaves its
 * successor's alone; most brokers do not fence that.
 *
 * `broker-postgres-queue.ts` holds the tables and statements, `broker-postgres-consumer.ts` a consumer; here are the two
 * that consumers and publishers share: the publisher, which stores what is published at once in one insert, and the
 * bell, which wakes sleepers. Why this and no library: `docs/decisions/0003-embedded-broker.md`.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { type Broker, BrokerError, type Consumer, type Log } from '../pipeline/ports.ts';
import {
  type Bell,
  type BrokerClock,
  createConsumer,
  createLoop,
  inTime,
  quietMax,
} from './broker-postgres-consumer.ts';
import { type BrokerSql, channel, createQueue, type Queue } from './broker-postgres-queue.ts';

export type { BrokerSql } from './broker-postgres-queue.ts';

export interface PostgresBrokerSettings {
  /** Sleep of a consumer that has just worked; up to `quietMax` times as long, as a loss of the queue is looked for, where nothing came for long. Default 1,000. */
  readonly backstopMs?: number;
}

const bodyBytesMax = 1024;
const idCharactersMax = 200;
/** Messages of one insert at most. */
const batchMax = 200;
/** Rings within this time share one NOTIFY. */
const notifyMs = 10;

/**
 * A broker on `sql`, which is closed with it. Call `prepare` first; it rejects `refused` when the schema is there in
 * another form. `log` hears of outages and of a queue that was made anew.
 */
export function createPostgresBroker(
  deps: { sql: BrokerSql; clock?: BrokerClock; log?: Pick<Log, 'warn'> },
  settings: PostgresBrokerSettings = {},
): Broker {
  const clock = deps.clock ?? systemClock;
  const backstopMs = settings.backstopMs ?? 1_000;
  const queue = createQueue(deps.sql, deps.log);
  const bell = createBell(deps.sql, queue, clock, backstopMs);
  const publisher = createPublisher(queue, bell);
  const consumers = new Set<Consumer>();
  let closing: Promise<void> | null = null;

  async function end(): Promise<void> {
    await Promise.all([...consumers].map((consumer) => consumer.close()));
    await publisher.close();
    await bell.close();
    queue.close();
    await deps.sql.close();
  }

  return {
    prepare: queue.prepare,
    publish: publisher.publish,
    async consumer(options) {
      if (closing) throw new BrokerError('unavailable', 'The broker is closed');
      bell.listen();
      const consumer = createConsumer({ queue, bell, clock, backstopMs }, options);
      consumers.add(consumer);
      return {
        next: consumer.next,
        close: () => consumer.close().finally(() => consumers.delete(consumer)),
      };
    },
    onDisrupted(listener) {
      if (!closing) bell.watch();
      return queue.onDisrupted(listener);
    },
    depth: queue.depth,
    async health() {
      await queue.look().catch((error) => {
        throw new BrokerError('unavailable', 'The queue in PostgreSQL does not answer', error);
      });
    },
    close() {
      closing ??= end();
      return closing;
    },
  };
}

const systemClock: BrokerClock = {
  monotonicMs: () => performance.now(),
  sleep: (ms, signal) => pause(ms, undefined, { signal }).catch(() => {}),
};

/* -------------------------------------------------------------------- bell */

interface SharedBell extends Bell {
  /** Opens the one LISTEN connection that all consumers of this process share. */
  listen(): void;
  /** Also looks, every `quietMax` times `backstopMs`, whether the queue is still the same: a process that only publishes would not notice. */
  watch(): void;
  close(): Promise<void>;
}

/**
 * NOTIFY is a statement of its own after the insert's commit, and debounced: inside that transaction it would hold a lock
 * of the whole instance until the commit (450 instead of 1,700 messages a second).
 */
function createBell(sql: BrokerSql, queue: Queue, clock: BrokerClock, backstopMs: number): SharedBell {
  const listeners = new Set<() => void>();
  const closing = new AbortController();
  let connection: { close(): Promise<void> } | null = null;
  let watching: Promise<void> | null = null;
  let again = false;

  const sending = createLoop(send, () => again);
  const ringHere = () => {
    for (const listener of listeners) listener();
  };

  /** The first ring is sent at once; those that come meanwhile share the next. A ring that fails leaves it to the backstop. */
  async function send(): Promise<void> {
    do {
      again = false;
      await queue.notify().catch(() => {});
      await clock.sleep(notifyMs, closing.signal);
    } while (again);
  }

  async function watchForLoss(): Promise<void> {
    while (!closing.signal.aborted) {
      await queue.look().catch(() => {});
      await clock.sleep(quietMax * backstopMs, closing.signal);
    }
  }

  function listen(): void {
    connection ??= sql.listen(channel, {
      heard: ringHere,
      // Rings may have been missed since the connection was lost.
      connected(afterLoss) {
        if (afterLoss) queue.recovered();
        ringHere();
      },
      lost: queue.lost,
    });
  }

  return {
    ring() {
      again = true;
      sending.start();
    },
    ringHere,
    onRing(listener) {
      listeners.add(listener);
      return () => {
        listeners.delete(listener);
      };
    },
    listen,
    watch() {
      listen();
      watching ??= watchForLoss();
    },
    async close() {
      closing.abort();
      await inTime(clock, [sending.ended(), watching, connection?.close()]);
    },
  };
}

/* --------------------------------------------------------------- publisher */

interface Pending {
  readonly id: string;
  readonly body: Uint8Array;
  /** What the publisher's caller awaits. */
  readonly confirmed: Promise<void>;
  /** Given to PostgreSQL: from here on a time-out is `unknown`. */
  sent: boolean;
  settle(error?: BrokerError): void;
}

/**
 * One insert is under way at a time; what is published meanwhile shares the next. An idle queue adds no delay, a busy one
 * pays one commit for many messages.
 */
function createPublisher(queue: Queue, bell: Bell) {
  const waiting = new Set<Pending>();
  let closed = false;
  const inserting = createLoop(insertAll, () => waiting.size > 0);

  async function insertAll(): Promise<void> {
    // A tick later, so that publishes of one tick share the first insert as well.
    await null;
    while (waiting.size > 0) {
      const batch = [...waiting].slice(0, batchMax);
      for (const pending of batch) {
        waiting.delete(pending);
        pending.sent = true;
      }
      // Given up by all, it is left behind: a connection that swallows packets must not hold up the next batch.
      await Promise.race([insert(batch), Promise.allSettled(batch.map(({ confirmed }) => confirmed))]);
    }
  }

  async function insert(batch: readonly Pending[]): Promise<void> {
    try {
      await queue.insert(batch);
      for (const pending of batch) pending.settle();
      bell.ring();
    } catch (error) {
      const fault = error instanceof BrokerError ? error : new BrokerError('unknown', 'The insert failed', error);
      for (const pending of batch) pending.settle(fault);
    }
  }

  return {
    async publish(id: string, body: Uint8Array, { timeoutMs }: { timeoutMs: number }): Promise<void> {
      if (closed) throw new BrokerError('unavailable', 'The broker is closed');
      refuseMisfit(id, body);
      const pending = createPending(id, body);
      waiting.add(pending);
      inserting.start();
      const timer = setTimeout(() => {
        waiting.delete(pending);
        const fault = pending.sent ? 'unknown' : 'unavailable';
        pending.settle(new BrokerError(fault, `No confirmation came within ${timeoutMs} ms`));
      }, timeoutMs);
      await pending.confirmed.finally(() => clearTimeout(timer));
    },
    async close(): Promise<void> {
      closed = true;
      await inserting.ended();
    },
  };
}

function createPending(id: string, body: Uint8Array): Pending {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  return { id, body, confirmed: promise, sent: false, settle: (error) => (error ? reject(error) : resolve()) };
}

function refuseMisfit(id: string, body: Uint8Array): void {
  if (body.length > bodyBytesMax) {
    throw new BrokerError('refused', `Expected at most ${bodyBytesMax} bytes for a message, received ${body.length}`);
  }
  // PostgreSQL's text holds no NUL, and one such id would fail the others of its batch.
  if (id === '' || id.length > idCharactersMax || id.includes('\0')) {
    throw new BrokerError('refused', `Expected a message id of 1 to ${idCharactersMax} characters without NUL`);
  }
}
