/**
 * The broker `amqp:` and `amqps:`: a quorum queue of RabbitMQ (3.10 and later), confirmed publishes, one subscription a
 * wanted message.
 *
 * Two connections, each made when it is first needed: one publishes and looks at the queue (`broker-rabbitmq-publisher.ts`),
 * one brings messages (`broker-rabbitmq-consumer.ts`). An alarm of the server stops a connection that publishes, acks
 * included; with one connection it could never be drained. `broker-rabbitmq-link.ts` keeps them. Why this client library:
 * `docs/decisions/0008-rabbitmq.md`.
 */
import { type Broker, BrokerError } from '../pipeline/ports.ts';
import { parseRabbitUrl } from './broker-rabbitmq-address.ts';
import { createConsumer, type RabbitConsumer } from './broker-rabbitmq-consumer.ts';
import { createLink, type Link, type RabbitLog } from './broker-rabbitmq-link.ts';
import { createPublisher, type Publisher } from './broker-rabbitmq-publisher.ts';

export interface RabbitBrokerSettings {
  /** Default 10: a silent peer is noticed within 25 s. Whole seconds, as AMQP has it. */
  readonly heartbeatSeconds?: number;
  /** Messages that the queue holds at most, a part of its form. Default 1,000,000, a thousand windows of the relay. */
  readonly lengthMax?: number;
  /** How often a process that listens for disruptions looks whether the queue is still there. Default 1,000. */
  readonly watchMs?: number;
  /** A consumer that waits, holds nothing and gets nothing for this long, or up to twice, subscribes anew. Default 10,000. */
  readonly refreshMs?: number;
  /** How long nothing is published to a queue that was just made, until it is on the server's disk. Default 1,500. */
  readonly registerMs?: number;
}

/**
 * A broker on the quorum queue `name`, made with `replicas` initial members; an existing one must have the same form. Throws
 * `StartError` for a URL that it cannot read. `log` hears of outages; neither it nor any error hears of credentials.
 */
export function createRabbitBroker(
  { url, name, replicas, log }: { url: string; name: string; replicas: number; log: RabbitLog },
  {
    heartbeatSeconds = 10,
    lengthMax = 1_000_000,
    watchMs = 1_000,
    refreshMs = 10_000,
    registerMs = 1_500,
  }: RabbitBrokerSettings = {},
): Broker {
  const address = parseRabbitUrl(url);
  const listeners = new Set<() => void>();
  const consumers = new Set<RabbitConsumer>();
  const links: Link[] = [];
  let publisher: Publisher | null = null;
  let taking: Link | null = null;
  let watching: NodeJS.Timeout | null = null;
  let closing: Promise<void> | null = null;

  function openLink(purpose: string): Link {
    if (closing) throw closed();
    const link = createLink({ address, log }, { name: `skrepka ${purpose}`, heartbeatSeconds });
    links.push(link);
    return link;
  }

  function publishing(): Publisher {
    if (closing) throw closed();
    publisher ??= createPublisher(openLink('publishes'), { name, replicas, lengthMax, registerMs }, { disrupted });
    return publisher;
  }

  function disrupted(): void {
    for (const listener of [...listeners]) listener();
  }

  /** A lost connection is noticed anyway; a queue deleted under a process that publishes nothing only by looking. */
  function watch(): void {
    watching = setTimeout(async () => {
      await publisher?.look().catch(() => {});
      if (!closing && listeners.size > 0) watch();
      else watching = null;
    }, watchMs);
  }

  async function end(): Promise<void> {
    if (watching) clearTimeout(watching);
    await Promise.all([...consumers].map((consumer) => consumer.close()));
    await Promise.all(links.map((link) => link.close()));
  }

  return {
    prepare: async () => await publishing().prepare(),
    publish: async (id, body, options) => await publishing().publish(id, body, options),
    async consumer(options) {
      if (closing) throw closed();
      taking ??= openLink('consumes');
      const consumer = createConsumer({ link: taking, queue: name, refreshMs }, options);
      consumers.add(consumer);
      return consumer;
    },
    onDisrupted(listener) {
      listeners.add(listener);
      if (!closing) publishing();
      if (!closing && !watching) watch();
      return () => {
        listeners.delete(listener);
      };
    },
    async depth() {
      const waiting = await publishing().look();
      return { waiting, inFlight: [...consumers].reduce((sum, consumer) => sum + consumer.inFlight(), 0) };
    },
    async health() {
      await publishing().look();
    },
    close() {
      closing ??= end();
      return closing;
    },
  };
}

const closed = () => new BrokerError('unavailable', 'The broker is closed');
