/**
 * The broker `nats:` and `nats+tls:`: a work-queue stream of JetStream with one durable pull consumer.
 *
 * Life of a message: `publish` stores it under its id and has the confirmation → a pull hands it out → its holder acks (it is
 * gone), naks or extends it; one that says nothing loses it when `ack_wait`, the visibility, ends. JetStream does not fence
 * acks: a late one removes the message while its next delivery is out. The pipeline is built for that, and a worker without
 * a lease says nothing.
 *
 * `broker-nats-address.ts` reads the URL, `broker-nats-connection.ts` speaks with servers, `broker-nats-stream.ts` holds stream
 * and durable consumer, `broker-nats-consumer.ts` a consumer. What was weighed: `docs/decisions/0010-jetstream.md`.
 */
import { type Broker, BrokerError, type Log } from '../pipeline/ports.ts';
import { createNats } from './broker-nats-connection.ts';
import { createConsumer, type WatchedConsumer } from './broker-nats-consumer.ts';
import { bodyBytesMax, createRingStream } from './broker-nats-stream.ts';

export interface NatsBrokerSettings {
  /** How often a process that consumes or listens for disruptions looks at the stream. Default 5,000. */
  readonly lookMs?: number;
  /** For how long one pull stands at the server, at least 1,000. A lost one is noticed 2,000 later. Default 3,000. */
  readonly pullMs?: number;
  /** A slot that waits for so long while messages wait as well: the server stalls. Default 5,000. */
  readonly stallMs?: number;
  /** Longest wait for an answer of the JetStream API, for an ack, and for a connection. Default 5,000. */
  readonly requestMs?: number;
  /** How often the connection is tried; two tries without an answer end it. Default 5,000. */
  readonly pingMs?: number;
  /** Messages of a new stream at most; above, a publish is refused. Default 1,000,000. */
  readonly messagesMax?: number;
}

const defaults = {
  lookMs: 5_000,
  pullMs: 3_000,
  stallMs: 5_000,
  requestMs: 5_000,
  pingMs: 5_000,
  messagesMax: 1_000_000,
};
const idBytesMax = 200;

/**
 * A broker on the servers of `url`, in the stream `name` and its subject `<name>.rings`, kept by `replicas` servers. Throws
 * `StartError` when `url` is none of NATS. It connects at the first call and then for ever again; call `prepare` first.
 */
export function createNatsBroker(
  { url, name, replicas, log }: { url: string; name: string; replicas: number; log: Pick<Log, 'info' | 'warn'> },
  settings: NatsBrokerSettings = {},
): Broker {
  const { lookMs, pullMs, stallMs, requestMs, pingMs, messagesMax } = { ...defaults, ...settings };
  const nats = createNats({ url, log }, { requestMs, pingMs });
  const stream = createRingStream({ nats, log }, { name, replicas, messagesMax });
  const consumers = new Set<WatchedConsumer>();
  let watching: NodeJS.Timeout | null = null;
  let looking = false;
  let closing: Promise<void> | null = null;

  /** A stream that vanished while the connection stayed is noticed by nobody else in a process that only publishes. */
  function watch(): void {
    watching ??= setInterval(() => {
      if (looking) return;
      looking = true;
      stream
        .look()
        .then(() => Promise.all([...consumers].map((consumer) => consumer.watch())))
        .catch(() => {})
        .finally(() => {
          looking = false;
        });
    }, lookMs).unref();
  }

  async function end(): Promise<void> {
    if (watching) clearInterval(watching);
    await Promise.all([...consumers].map((consumer) => consumer.close()));
    stream.close();
    await nats.close();
  }

  return {
    prepare: stream.prepare,
    async publish(id, body, { timeoutMs }) {
      refuseMisfit(id, body);
      try {
        // "duplicate" counts as confirmed, and is never read as "present": the window remembers what was acked long ago.
        const { sequence } = await nats.publish({ subject: stream.subject, id, body, timeoutMs });
        stream.confirmed(sequence);
      } catch (error) {
        // Where nobody answers, the stream may be gone.
        if (nats.isUp()) stream.look().catch(() => {});
        throw error;
      }
    },
    async consumer(options) {
      if (closing) throw new BrokerError('unavailable', 'The broker is closed');
      await stream.durable(options.visibilityMs);
      watch();
      const consumer = createConsumer({ nats, stream, log }, options, { name, pullMs, stallMs });
      consumers.add(consumer);
      return {
        next: consumer.next,
        close: () => consumer.close().finally(() => consumers.delete(consumer)),
      };
    },
    onDisrupted(listener) {
      if (!closing) watch();
      return stream.onDisrupted(listener);
    },
    async depth() {
      const { waiting, inFlight } = await stream.depth();
      return { waiting, inFlight };
    },
    async health() {
      await stream.look().catch((error: unknown) => {
        throw new BrokerError('unavailable', 'The stream on NATS does not answer', error);
      });
    },
    close() {
      closing ??= end();
      return closing;
    },
  };
}

function refuseMisfit(id: string, body: Uint8Array): void {
  if (body.length > bodyBytesMax) {
    throw new BrokerError('refused', `Expected at most ${bodyBytesMax} bytes for a message, received ${body.length}`);
  }
  // It travels in a header line.
  if (id === '' || Buffer.byteLength(id) > idBytesMax || /[\r\n\0]/.test(id)) {
    throw new BrokerError('refused', `Expected a message id of 1 to ${idBytesMax} bytes on one line`);
  }
}
