/**
 * One connection to RabbitMQ, and channels on it that are made anew when they are lost. The only file that imports
 * `rabbitmq-client`.
 *
 * Life of a link: connecting → up → down (the library reconnects for ever, 0.2 to 3 s apart) → up … → closed. Life of a
 * kept channel, beside it: opened → set up (queues, mode, prefetch) → ready → lost, with the link or alone → opened again.
 * Whoever needs a channel while the link is down is told at once, and while it comes up waits.
 *
 * The heartbeat finds a peer that fell silent: the server after two intervals, the library here after at most 2.5.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { type AMQPError, type Channel, Connection } from 'rabbitmq-client';
import { describe } from '../errors.ts';
import { BrokerError, type Log } from '../pipeline/ports.ts';
import type { RabbitAddress } from './broker-rabbitmq-address.ts';

export type { AsyncMessage, Channel } from 'rabbitmq-client';

export type RabbitLog = Pick<Log, 'warn' | 'info'>;

export interface ChannelLife {
  /** Makes a fresh channel ready for use. What it throws is told to those who wait, and it is tried again. */
  setUp(channel: Channel): Promise<void>;
  ready?(channel: Channel): void;
  /** The ready channel is gone, and with it all deliveries and confirmations that it owed. */
  lost?(): void;
}

export interface KeptChannel {
  current(): Channel | null;
  /** The channel, once it is ready. Rejects with a `BrokerError` as soon as it is known that it will not be for now. */
  ready(): Promise<Channel>;
  /** Gives the present channel up; another one follows. */
  renew(): void;
  close(): Promise<void>;
}

export interface Link {
  keep(life: ChannelLife): KeptChannel;
  /** Does `work` on a channel of its own, which it may lose. */
  aside<T>(work: (channel: Channel) => Promise<T>): Promise<T>;
  /** The server has an alarm (memory, disk) and takes no messages: what is written now stays in this process. */
  blocked(): boolean;
  /** Resolves when all is closed, by force after 2 s. */
  close(): Promise<void>;
}

const closeMs = 2_000;
const setUpRetryMs = { first: 100, cap: 1_000 };

export function createLink(
  deps: { address: RabbitAddress; log: RabbitLog },
  settings: { name: string; heartbeatSeconds: number },
): Link {
  const { log } = deps;
  const connection = new Connection(connectionOptions(deps.address, settings));
  const kept = new Set<KeptChannel>();
  const watchers = new Set<(error: BrokerError) => void>();
  const closing = new AbortController();
  /** Why the link is down; null while it is up or coming up for the first time. */
  let down: BrokerError | null = null;
  let alarmed = false;
  let closed: Promise<void> | null = null;

  // The library tells each outage once, and each return.
  connection.on('error', (error: Error) => {
    if (closing.signal.aborted) return;
    down = toBrokerError(error);
    log.warn({ connection: settings.name, error: describe(error) }, 'broker: the connection to RabbitMQ is down');
    for (const tell of watchers) tell(down);
  });
  connection.on('connection', () => {
    if (down) log.info({ connection: settings.name }, 'broker: RabbitMQ is connected again');
    down = null;
    alarmed = false;
  });
  connection.on('connection.blocked', (reason: string) => {
    alarmed = true;
    log.warn({ connection: settings.name, reason }, 'broker: RabbitMQ has an alarm and takes no messages');
  });
  connection.on('connection.unblocked', () => {
    alarmed = false;
  });

  async function end(): Promise<void> {
    closing.abort();
    const inOrder = Promise.all([...kept].map((channel) => channel.close())).then(() => connection.close());
    await within(inOrder, closeMs, () => new BrokerError('unavailable', 'too slow')).catch(() => {});
    connection.unsafeDestroy();
  }

  return {
    keep(life) {
      const channel = keepChannel({ connection, log, closing: closing.signal, down: () => down }, life);
      watchers.add(channel.told);
      kept.add(channel);
      return channel;
    },
    async aside(work) {
      const channel = await connection.acquire({ emitErrorsFromChannel: true });
      channel.on('error', () => {});
      return await work(channel).finally(() => channel.close());
    },
    blocked: () => alarmed,
    close() {
      closed ??= end();
      return closed;
    },
  };
}

function connectionOptions(address: RabbitAddress, settings: { name: string; heartbeatSeconds: number }) {
  const { tls, nodes, username, password, vhost } = address;
  const [only] = nodes;
  const hosts =
    nodes.length > 1 || !only
      ? { hosts: nodes.map(({ hostname, port }) => `${hostname}:${port}`) }
      : { hostname: only.hostname, port: only.port };
  return {
    ...hosts,
    tls,
    username,
    password,
    vhost,
    connectionName: settings.name,
    heartbeat: settings.heartbeatSeconds,
    noDelay: true,
    connectionTimeout: 5_000,
    acquireTimeout: 60_000,
    retryLow: 200,
    retryHigh: 3_000,
  };
}

/* ------------------------------------------------------------------ channel */

interface Around {
  readonly connection: Connection;
  readonly log: RabbitLog;
  readonly closing: AbortSignal;
  down(): BrokerError | null;
}

function keepChannel(around: Around, life: ChannelLife): KeptChannel & { told(error: BrokerError): void } {
  const { connection, log } = around;
  const ending = new AbortController();
  const over = AbortSignal.any([around.closing, ending.signal]);
  let current: Channel | null = null;
  /** Why the last set-up failed, until one succeeds. */
  let misfit: BrokerError | null = null;
  let waiting = createWaiting();
  run();

  async function run(): Promise<void> {
    let delayMs = setUpRetryMs.first;
    while (!over.aborted) {
      try {
        await live(await connection.acquire({ emitErrorsFromChannel: true }));
        delayMs = setUpRetryMs.first;
      } catch (error) {
        if (over.aborted) break;
        failed(toBrokerError(error));
        delayMs = Math.min(delayMs * 2, setUpRetryMs.cap);
      }
      await pause(delayMs, undefined, { signal: over }).catch(() => {});
    }
    waiting.reject(closedError());
  }

  /** From the opening of a channel to its loss. */
  async function live(channel: Channel): Promise<void> {
    if (over.aborted) return await channel.close();
    const lost = Promise.withResolvers<void>();
    // The server tells on the channel why it closes it; what waits for an answer hears the same.
    channel.on('error', (error: Error) => {
      if (!over.aborted) log.warn({ error: describe(error) }, 'broker: RabbitMQ closed a channel');
    });
    channel.once('close', () => {
      lost.resolve();
      if (current === channel) leave();
    });
    try {
      await life.setUp(channel);
    } catch (error) {
      // A time-out of ours leaves it open.
      channel.close().catch(() => {});
      throw error;
    }
    if (over.aborted) return await channel.close();
    if (!channel.active) throw new BrokerError('unavailable', 'The channel was closed while it was set up');
    misfit = null;
    current = channel;
    waiting.resolve(channel);
    waiting = createWaiting();
    life.ready?.(channel);
    await lost.promise;
  }

  /** Gives the channel up before the server confirms its end: nothing may be sent on it any more. */
  async function leave(): Promise<void> {
    const channel = current;
    if (!channel) return;
    current = null;
    life.lost?.();
    await channel.close();
  }

  function failed(error: BrokerError): void {
    if (misfit?.message !== error.message && !around.down()) {
      log.warn({ error: describe(error) }, 'broker: a channel could not be set up');
    }
    misfit = error;
    told(error);
  }

  function told(error: BrokerError): void {
    waiting.reject(error);
    waiting = createWaiting();
  }

  return {
    told,
    current: () => current,
    async ready() {
      if (over.aborted) throw closedError();
      const fault = around.down() ?? misfit;
      return current ?? (await (fault ? Promise.reject(fault) : waiting.promise));
    },
    renew() {
      leave();
    },
    async close() {
      ending.abort();
      await leave();
    },
  };
}

function createWaiting() {
  const waiting = Promise.withResolvers<Channel>();
  waiting.promise.catch(() => {});
  return waiting;
}

const closedError = () => new BrokerError('unavailable', 'The broker is closed');

/* ------------------------------------------------------------------- faults */

/** `refused` where waiting mends nothing: another kind of queue, credentials, permissions. The texts are the server's own. */
export function toBrokerError(error: unknown): BrokerError {
  if (error instanceof BrokerError) return error;
  switch ((error as AMQPError).code) {
    case 'PRECONDITION_FAILED':
    case 'RESOURCE_LOCKED':
      return new BrokerError(
        'refused',
        'The queue named by BROKER_NAME is there in another form: delete it (it holds nothing that is not announced again), or choose another BROKER_NAME',
        error,
      );
    case 'ACCESS_REFUSED':
    case 'NOT_ALLOWED':
      return new BrokerError(
        'refused',
        'RabbitMQ does not let us in: check user, password, vhost and permissions of BROKER_URL',
        error,
      );
    default:
      return new BrokerError('unavailable', 'RabbitMQ does not answer', error);
  }
}

export const isMissingQueue = (error: unknown) => (error as AMQPError).code === 'NOT_FOUND';
export const isNack = (error: unknown) => (error as AMQPError).code === 'NACK';
export const isForbidden = (error: unknown) => (error as AMQPError).code === 'ACCESS_REFUSED';

/** What `promise` settles to, or rejects with `late()` after `ms`. */
export async function within<T>(promise: Promise<T>, ms: number, late: () => BrokerError): Promise<T> {
  const { promise: expired, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(late()), ms);
  // Whichever comes second is nobody's.
  promise.catch(() => {});
  return await Promise.race([promise, expired]).finally(() => clearTimeout(timer));
}
