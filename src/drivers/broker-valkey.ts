/**
 * The broker `valkey:`, `valkeys:`, `redis:` and `rediss:`: a stream with one consumer group, on one primary of Valkey or Redis.
 *
 * Life of a message: `publish` appends it and rings on a channel → a take hands it out until its deadline → its holder acks (it
 * is gone), naks or extends it; one that says nothing loses it at the deadline. Every end compares holder and hand-over, so a
 * late ack of an earlier delivery leaves its successor's alone.
 *
 * `broker-valkey-address.ts` reads the URL, `broker-valkey-connection.ts` speaks with the server, `broker-valkey-queue.ts` holds
 * keys and scripts, `broker-valkey-consumer.ts` a consumer, `broker-valkey-durability.ts` what the server's settings mean. Here
 * are the two connections that all share, and the watch over losses. What was weighed: `docs/decisions/0009-valkey.md`.
 */
import { describe } from '../errors.ts';
import { type Broker, BrokerError, type Log } from '../pipeline/ports.ts';
import { parseValkeyUrl } from './broker-valkey-address.ts';
import { createLine, type Line } from './broker-valkey-connection.ts';
import { createConsumer, type WakingConsumer } from './broker-valkey-consumer.ts';
import { checkDurability } from './broker-valkey-durability.ts';
import { createQueue, type Queue } from './broker-valkey-queue.ts';

export interface ValkeyBrokerSettings {
  /** Longest sleep of an idle consumer, and how often a loss of the stream is looked for. Default 1,000. */
  readonly backstopMs?: number;
  /** Longest silence of a server that owes an answer, and longest wait for a connection. Default 5,000. */
  readonly answerMs?: number;
  /** How often the names of dead consumers are looked for. Default 60,000. */
  readonly sweepMs?: number;
  /** A consumer that has not asked for so long and holds nothing is dead, or none the worse for being forgotten. Default 600,000. */
  readonly forgottenMs?: number;
}

const defaults = { backstopMs: 1_000, answerMs: 5_000, sweepMs: 60_000, forgottenMs: 600_000 };

const bodyBytesMax = 1024;
/** How long `health` waits for a connection. */
const healthMs = 1_000;

/**
 * A broker on the server of `url`, under keys that start with `name`. Throws `StartError` when `url` is none of Valkey or Redis.
 * Connects at once and for ever again. Call `prepare` first; it rejects `refused` when the keys hold something else, and warns in
 * the log when the server may lose what it confirmed.
 */
export function createValkeyBroker(
  { url, name, log }: { url: string; name: string; log: Pick<Log, 'info' | 'warn'> },
  settings: ValkeyBrokerSettings = {},
): Broker {
  const { backstopMs, answerMs, ...times } = { ...defaults, ...settings };
  const address = parseValkeyUrl(url);
  const consumers = new Set<WakingConsumer>();
  const wakeAll = () => {
    for (const consumer of consumers) consumer.wake();
  };
  const line = createLine(
    { name: 'commands', address, log, greeting: ['ping'], up: (again) => again && watch.disrupted() },
    { answerMs },
  );
  const queue = createQueue({ line, log }, name);
  const watch = createWatch(queue, log, { backstopMs, ...times });
  const bell = createBell(
    // A ring may have been missed while it was away, so its return is one.
    () =>
      createLine(
        { name: 'rings', address, log, greeting: ['subscribe', `${name}:rings`], up: wakeAll, heard: wakeAll },
        { answerMs },
      ),
    answerMs,
  );
  let checked: Promise<void> | null = null;
  let closing: Promise<void> | null = null;

  async function end(): Promise<void> {
    await Promise.all([...consumers].map((consumer) => consumer.close()));
    watch.close();
    bell.close();
    line.close();
  }

  return {
    async prepare() {
      watch.saw(await queue.prepare());
      checked ??= checkDurability(line, log);
      await checked;
    },
    async publish(_id, body, { timeoutMs }) {
      if (closing) throw new BrokerError('unavailable', 'The broker is closed');
      if (body.length > bodyBytesMax) {
        throw new BrokerError(
          'refused',
          `Expected at most ${bodyBytesMax} bytes for a message, received ${body.length}`,
        );
      }
      await inTime(queue.add(body, timeoutMs), timeoutMs);
    },
    async consumer(options) {
      if (closing) throw new BrokerError('unavailable', 'The broker is closed');
      watch.start();
      bell.start();
      const consumer = createConsumer({ queue, backstopMs }, options);
      consumers.add(consumer);
      return {
        next: consumer.next,
        close: () => consumer.close().finally(() => consumers.delete(consumer)),
      };
    },
    onDisrupted(listener) {
      if (!closing) watch.start();
      return watch.onDisrupted(listener);
    },
    depth: queue.depth,
    async health() {
      await line.send(['ping'], healthMs).catch((error: unknown) => {
        throw new BrokerError('unavailable', describe(error), error);
      });
    },
    close() {
      closing ??= end();
      return closing;
    },
  };
}

/** Rejects `unknown` after `ms`: what was sent may be stored. */
async function inTime<T>(answer: Promise<T>, ms: number): Promise<T> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  // A moment after the wait for a connection has ended, which is `unavailable`.
  const timer = setTimeout(() => {
    reject(new BrokerError('unknown', `No confirmation came within ${ms} ms`));
  }, ms + 20);
  return await Promise.race([answer, late]).finally(() => clearTimeout(timer));
}

/* -------------------------------------------------------------------- bell */

/**
 * The connection on which the consumers of this process are woken; the first of them opens it. A server that says nothing any more
 * is found out by asking, and costs no more than the backstop until then.
 */
function createBell(open: () => Line, everyMs: number) {
  let line: Line | null = null;
  let timer: NodeJS.Timeout | null = null;
  return {
    start(): void {
      if (line) return;
      const opened = open();
      line = opened;
      timer = setInterval(() => opened.send(['ping'], 0).catch(() => {}), everyMs);
    },
    close(): void {
      if (timer) clearInterval(timer);
      line?.close();
    },
  };
}

/* ------------------------------------------------------------------- watch */

/**
 * Looks every `backstopMs` whether the stream is still the same: a process that only publishes, or whose slots are all taken, would
 * not notice its loss while the connection stays.
 */
function createWatch(
  queue: Queue,
  log: Pick<Log, 'warn'>,
  { backstopMs, sweepMs, forgottenMs }: { backstopMs: number; sweepMs: number; forgottenMs: number },
) {
  const listeners = new Set<() => void>();
  let timer: NodeJS.Timeout | null = null;
  let looking = false;
  let known: string | null = null;
  let complained = false;
  let sweptAtMs = performance.now();

  // In a microtask: a listener that throws must not end what noticed.
  function disrupted(): void {
    for (const listener of listeners) queueMicrotask(listener);
  }

  function saw(epoch: string): void {
    if (known !== null && known !== epoch) disrupted();
    known = epoch;
  }

  async function look(): Promise<void> {
    if (looking) return;
    looking = true;
    try {
      saw(await queue.look());
      complained = false;
      if (performance.now() - sweptAtMs > sweepMs * (0.5 + Math.random())) {
        sweptAtMs = performance.now();
        await queue.sweep(forgottenMs);
      }
    } catch (error) {
      if (!complained) log.warn({ reason: describe(error) }, 'broker: the stream cannot be looked at');
      complained = true;
    } finally {
      looking = false;
    }
  }

  return {
    start(): void {
      if (timer) return;
      timer = setInterval(() => void look(), backstopMs);
      void look();
    },
    saw,
    disrupted,
    onDisrupted(listener: () => void): () => void {
      listeners.add(listener);
      return () => {
        listeners.delete(listener);
      };
    },
    close(): void {
      if (timer) clearInterval(timer);
      listeners.clear();
    },
  };
}
