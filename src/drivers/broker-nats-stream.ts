/**
 * The stream of rings and its one durable consumer: made, verified, counted, and made again when they are gone.
 *
 * A stream has incarnations. It is another one when its creation time changed, or when its sequence went back: a volume that
 * was restored to an earlier time keeps the creation time and uses sequence numbers again. An ack names a message by its
 * sequence alone, so one of an earlier incarnation would remove somebody else's message; deliveries remember theirs.
 *
 * A disruption is told only when the stream is there again, so that what is announced anew has a place to go.
 */
import { setTimeout as pause } from 'node:timers/promises';
import type { ConsumerConfig, ConsumerInfo, StreamConfig, StreamInfo } from '@nats-io/jetstream';
import { BrokerError, type Log } from '../pipeline/ports.ts';
import { apiCode, type Nats } from './broker-nats-connection.ts';

export interface RingStream {
  readonly subject: string;
  /** The stream as it is wanted: made where it is missing. Rejects `refused` with a sentence when it is there and does not fit. */
  prepare(): Promise<void>;
  /** Sees whether the stream is there, makes it anew if not, and tells of a disruption. One look at a time is shared. */
  look(): Promise<void>;
  /** Resolves to the present incarnation, after a look where the connection was lost since the last one. */
  incarnation(): Promise<number>;
  /** The incarnation as of the last look. */
  lastIncarnation(): number;
  /** The stream confirmed this sequence. */
  confirmed(sequence: number): void;
  /** Makes, or verifies and adjusts, the durable consumer. */
  durable(visibilityMs: number): Promise<void>;
  /** Makes the durable consumer anew; what it held is delivered again. */
  renewDurable(visibilityMs: number): Promise<void>;
  /** `blocked`: so many deliveries are out that the server gives no further ones. */
  depth(): Promise<{ waiting: number; inFlight: number; blocked: boolean }>;
  onDisrupted(listener: () => void): () => void;
  close(): void;
}

export interface RingStreamSettings {
  readonly name: string;
  readonly replicas: number;
  readonly messagesMax: number;
}

export const bodyBytesMax = 1024;
/** The stream counts the header with the message id as well. */
const headerBytesMax = 256;
/** Far above the slots of any fleet, so that the limit never holds deliveries back; naks with a delay count as well. */
const ackPendingMax = 10_000;
/** Pulls that wait at once: one a free slot. It cannot be changed later. */
const pullsMax = 4_096;
const missingStream = 10059;
const missingDurable = 10014;
const taken = 10058;
const notClustered = 10074;
const retryMs = { first: 100, cap: 2_000 };
/**
 * With 2.9.10, most streams that were made while the former one of the same name was being removed confirmed nothing, or
 * delivered nothing, for ever: 8 of 12 tries. After a second, none of 20 did.
 */
const removalMs = 1_000;
const nanosInMs = 1_000_000;
export const durableName = 'workers';

export function createRingStream(
  { nats, log }: { nats: Nats; log: Pick<Log, 'info' | 'warn'> },
  settings: RingStreamSettings,
): RingStream {
  const { name } = settings;
  const subject = `${name}.rings`;
  const listeners = new Set<() => void>();
  let seen: { created: string; sequence: number } | null = null;
  let incarnation = 0;
  /** The connection was lost since the last look: what is known of the stream may be over. */
  let doubtful = true;
  let disrupted = false;
  let looking: Promise<void> | null = null;
  let closed = false;

  async function find(): Promise<StreamInfo | null> {
    return await nats.manage('look at the stream', (api) => api.streams.info(name)).catch(nullWhere(missingStream));
  }

  async function make(): Promise<StreamInfo> {
    try {
      return await nats.manage('make the stream', (api) => api.streams.add(wantedStream(settings)));
    } catch (error) {
      if (apiCode(error) === notClustered) {
        const asked = `BROKER_REPLICAS asks for ${settings.replicas}`;
        throw new BrokerError('refused', `The NATS server is in no cluster and keeps 1 replica, ${asked}.`, error);
      }
      // Another process was faster, with a configuration that may differ from ours.
      const found = apiCode(error) === taken ? await find() : null;
      if (found) return found;
      throw error;
    }
  }

  /** A server that is removing a stream says "not found" at once, and what is made meanwhile is torn down along with it. */
  async function makeAnew(): Promise<StreamInfo> {
    await pause(removalMs);
    return (await find()) ?? (await make());
  }

  async function findOrMake(): Promise<StreamInfo> {
    const before = seen;
    const found = (await find()) ?? (await (before ? makeAnew() : make()));
    note(found, before);
    return found;
  }

  /** `before` was known when the question was asked: what was confirmed since may be missing from the answer. */
  function note({ created, state }: StreamInfo, before: typeof seen): void {
    const other = before !== null && (created !== before.created || state.last_seq < before.sequence);
    if (other) {
      log.warn({ stream: name }, 'broker: the stream is another one, what it held is gone');
      incarnation += 1;
      disrupted = true;
      seen = { created, sequence: state.last_seq };
    } else {
      seen = { created, sequence: Math.max(state.last_seq, seen?.sequence ?? 0) };
    }
    doubtful = false;
    if (!disrupted) return;
    disrupted = false;
    for (const listener of [...listeners]) listener();
  }

  function look(): Promise<void> {
    looking ??= findOrMake()
      .then(() => {})
      .finally(() => {
        looking = null;
      });
    return looking;
  }

  async function lookUntilSeen(): Promise<void> {
    for (
      let delayMs = retryMs.first;
      doubtful && nats.isUp() && !closed;
      delayMs = Math.min(delayMs * 2, retryMs.cap)
    ) {
      const lost = await look().then(
        () => false,
        () => true,
      );
      if (lost) await pause(delayMs);
    }
  }

  const silence = nats.listen({
    up(again) {
      doubtful = true;
      disrupted ||= again;
      if (again) void lookUntilSeen();
    },
    down() {
      doubtful = true;
    },
  });

  async function findDurable(): Promise<ConsumerInfo | null> {
    return await nats
      .manage('look at the consumer', (api) => api.consumers.info(name, durableName))
      .catch(nullWhere(missingDurable, missingStream));
  }

  async function makeDurable(visibilityMs: number): Promise<void> {
    await nats.manage('make the consumer', (api) => api.consumers.add(name, wantedDurable(visibilityMs)));
  }

  return {
    subject,
    look,
    async prepare() {
      const { config } = await findOrMake();
      const misfit = misfitOfStream(config, subject);
      if (misfit) throw new BrokerError('refused', `The stream "${name}" on NATS ${misfit}; ${remedy(name)}`);
      if (config.num_replicas !== settings.replicas) {
        log.warn(
          { stream: name, found: config.num_replicas, wanted: settings.replicas },
          `broker: the stream has another number of replicas than BROKER_REPLICAS; change it with "nats stream edit ${name} --replicas ${settings.replicas}"`,
        );
      }
    },
    async incarnation() {
      if (doubtful) await look();
      return incarnation;
    },
    lastIncarnation: () => incarnation,
    confirmed(sequence) {
      if (seen && sequence > seen.sequence) seen = { ...seen, sequence };
    },
    async durable(visibilityMs) {
      const found = await findDurable();
      if (!found) return await makeDurable(visibilityMs);
      const misfit = misfitOfDurable(found.config, subject);
      if (misfit) {
        throw new BrokerError(
          'refused',
          `The consumer "${durableName}" of the stream "${name}" on NATS ${misfit}; ${remedy(name)}`,
        );
      }
      const wanted = changeable(visibilityMs);
      if (Object.entries(wanted).every(([field, value]) => found.config[field as keyof typeof wanted] === value))
        return;
      await nats.manage('adjust the consumer', (api) => api.consumers.update(name, durableName, wanted));
    },
    async renewDurable(visibilityMs) {
      await nats
        .manage('remove the consumer', (api) => api.consumers.delete(name, durableName))
        .catch(nullWhere(missingDurable));
      await makeDurable(visibilityMs);
    },
    async depth() {
      const [stream, durable] = await Promise.all([find(), findDurable()]);
      const inFlight = durable?.num_ack_pending ?? 0;
      const blocked = durable !== null && inFlight >= (durable.config.max_ack_pending ?? ackPendingMax);
      return { waiting: Math.max(0, (stream?.state.messages ?? 0) - inFlight), inFlight, blocked };
    },
    onDisrupted(listener) {
      // A function of its own: one listener may be given twice.
      const own = () => listener();
      listeners.add(own);
      return () => {
        listeners.delete(own);
      };
    },
    close() {
      closed = true;
      silence();
    },
  };
}

function wantedStream({ name, replicas, messagesMax }: RingStreamSettings) {
  return {
    name,
    subjects: [`${name}.rings`],
    retention: 'workqueue',
    storage: 'file',
    discard: 'new',
    num_replicas: replicas,
    max_msgs: messagesMax,
    max_msg_size: bodyBytesMax + headerBytesMax,
    // Covers a publish that is repeated after a time-out; the pipeline relies on none of it.
    duplicate_window: 120_000 * nanosInMs,
  } satisfies Partial<StreamConfig>;
}

function wantedDurable(visibilityMs: number) {
  return {
    durable_name: durableName,
    ack_policy: 'explicit',
    deliver_policy: 'all',
    max_waiting: pullsMax,
    ...changeable(visibilityMs),
  } satisfies Partial<ConsumerConfig>;
}

/** What an update may change. A message is delivered for ever: the job's row counts its failures. */
function changeable(visibilityMs: number) {
  return { ack_wait: visibilityMs * nanosInMs, max_deliver: -1, max_ack_pending: ackPendingMax };
}

/** Half a sentence on the first thing that does not fit; null when all does. Limits may differ, an operator may set them. */
function misfitOfStream(config: StreamConfig, subject: string): string | null {
  const subjects = (config.subjects ?? []).join(', ');
  if (config.retention !== 'workqueue') return `has retention "${config.retention}" instead of "workqueue"`;
  if (config.storage !== 'file') return `has storage "${config.storage}" instead of "file"`;
  if (config.discard !== 'new') return `discards "${config.discard}" messages instead of "new" ones when it is full`;
  if (subjects !== subject) return `has the subjects "${subjects}" instead of "${subject}"`;
  if (config.no_ack) return 'confirms nothing ("no_ack")';
  if (config.sealed) return 'is sealed';
  if (config.max_msg_size > 0 && config.max_msg_size < bodyBytesMax + headerBytesMax) {
    return `takes messages of ${config.max_msg_size} bytes only, ${bodyBytesMax + headerBytesMax} are needed`;
  }
  return null;
}

function misfitOfDurable(config: ConsumerConfig, subject: string): string | null {
  const filters = [config.filter_subject ?? '', ...(config.filter_subjects ?? [])].filter((one) => one !== '');
  if (config.deliver_subject) return 'pushes its messages instead of waiting for pulls';
  if (config.ack_policy !== 'explicit') return `has the ack policy "${config.ack_policy}" instead of "explicit"`;
  if (filters.some((one) => one !== subject)) return `takes "${filters.join(', ')}" alone`;
  if ((config.backoff ?? []).length > 0) return 'has a back-off, which takes the place of its ack wait';
  if (config.headers_only) return 'delivers headers alone';
  return null;
}

const remedy = (name: string) =>
  `give BROKER_NAME another name, or remove it with "nats stream rm ${name}": jobs ring again by themselves.`;

function nullWhere(...codes: readonly number[]) {
  return (error: unknown): null => {
    if (codes.includes(apiCode(error))) return null;
    throw error;
  };
}
