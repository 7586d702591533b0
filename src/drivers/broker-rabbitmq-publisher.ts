/**
 * The publishing half of the broker `amqp:`: the queue's form, confirmed publishes, and the look at the queue.
 *
 * One channel in confirm mode does all of it. The queue is declared whenever the channel is set up; so a queue that is
 * missing (a message is returned, a look finds nothing) is mended by a new channel, and every channel after the first is
 * a disruption: what was announced may be gone.
 *
 * A publish: refused here (too large) → waits for the channel, or fails at once while the link is down → written → the
 * server's confirm, nack or return, or the time-out, after which nobody knows.
 */
import { setTimeout as pause, setImmediate as turn } from 'node:timers/promises';
import { BrokerError } from '../pipeline/ports.ts';
import {
  type Channel,
  isForbidden,
  isMissingQueue,
  isNack,
  type KeptChannel,
  type Link,
  within,
} from './broker-rabbitmq-link.ts';

export interface QueueForm {
  readonly name: string;
  readonly replicas: number;
  readonly lengthMax: number;
  /** How long nothing is published to a queue that was just made. */
  readonly registerMs: number;
}

export interface Publisher {
  /** Resolves when the queue is there in our form; rejects as soon as it is known that it is not. */
  prepare(): Promise<void>;
  publish(id: string, body: Uint8Array, options: { timeoutMs: number }): Promise<void>;
  /** Asks the server for the queue; answers the messages that wait. A missing queue is made anew, and this rejects once. */
  look(): Promise<number>;
}

const bodyBytesMax = 1024;
/** A short string of AMQP holds 255 bytes. */
const idBytesMax = 200;
const prepareMs = 10_000;
const lookMs = 3_000;
/**
 * RabbitMQ 4 drops a message after 20 deliveries unless told otherwise. -1 says "never" there and is refused by 3.x; the
 * largest signed integer is accepted by all and never reached.
 */
const deliveriesMax = 2 ** 31 - 1;

export function createPublisher(link: Link, form: QueueForm, on: { disrupted(): void }): Publisher {
  /** What was written and not decided, by a mark of ours, since an id may be under way twice. */
  const underWay = new Map<string, { returned: boolean }>();
  let marks = 0;
  let made = 0;

  const kept: KeptChannel = link.keep({
    async setUp(channel) {
      channel.on('basic.return', ({ correlationId }) => {
        const message = underWay.get(correlationId ?? '');
        if (message) message.returned = true;
        kept.renew();
      });
      const isNew = !(await link.aside((other) => exists(other, form.name)));
      await channel.queueDeclare(declaration(form));
      // A quorum queue is in the registry on the server's disk 1 s later. Killed before that, 3.10 comes back with a queue
      // that has no leader, for ever: what was confirmed is lost, and nothing is confirmed any more.
      if (isNew) await pause(form.registerMs);
      await channel.confirmSelect();
    },
    ready() {
      made += 1;
      if (made > 1) on.disrupted();
    },
  });

  async function send(channel: Channel, id: string, body: Uint8Array): Promise<void> {
    marks += 1;
    const mark = String(marks);
    const message = { returned: false };
    underWay.set(mark, message);
    try {
      await channel.basicPublish(
        {
          exchange: '',
          routingKey: form.name,
          mandatory: true,
          durable: true,
          messageId: id,
          correlationId: mark,
          // The library would parse what is declared as text or JSON.
          contentType: 'application/octet-stream',
        },
        Buffer.from(body),
      );
      // The server returns a message before it confirms it, but the library tells of the return one turn later.
      await turn();
    } catch (error) {
      if (!message.returned) throw toPublishError(error);
    } finally {
      underWay.delete(mark);
    }
    if (message.returned) throw new BrokerError('unavailable', 'The queue is gone and is made anew');
  }

  return {
    async prepare() {
      await within(kept.ready(), prepareMs, () => new BrokerError('unavailable', 'RabbitMQ does not answer'));
    },
    async publish(id, body, { timeoutMs }) {
      refuseMisfit(id, body);
      let written = false;
      let late = false;
      const sent = kept.ready().then(async (channel) => {
        if (late) return;
        if (link.blocked()) throw new BrokerError('unavailable', 'RabbitMQ has an alarm and takes no messages');
        written = channel.active;
        await send(channel, id, body);
      });
      await within(sent, timeoutMs, () => {
        late = true;
        return new BrokerError(written ? 'unknown' : 'unavailable', `No confirmation came within ${timeoutMs} ms`);
      });
    },
    async look() {
      const channel = await within(kept.ready(), lookMs, slow);
      if (link.blocked()) throw new BrokerError('unavailable', 'RabbitMQ has an alarm and takes no messages');
      try {
        const { messageCount } = await within(channel.queueDeclare({ queue: form.name, passive: true }), lookMs, slow);
        return messageCount;
      } catch (error) {
        // The server closed the channel with its answer, so that a new one declares the queue.
        if (isMissingQueue(error)) throw new BrokerError('unavailable', 'The queue is gone and is made anew', error);
        throw error instanceof BrokerError ? error : new BrokerError('unavailable', 'RabbitMQ did not answer', error);
      }
    },
  };
}

const slow = () => new BrokerError('unavailable', `RabbitMQ did not answer within ${lookMs} ms`);

async function exists(channel: Channel, queue: string): Promise<boolean> {
  try {
    await channel.queueDeclare({ queue, passive: true });
    return true;
  } catch (error) {
    if (isMissingQueue(error)) return false;
    throw error;
  }
}

function declaration({ name, replicas, lengthMax }: QueueForm) {
  return {
    queue: name,
    durable: true,
    arguments: {
      'x-queue-type': 'quorum',
      'x-quorum-initial-group-size': replicas,
      'x-overflow': 'reject-publish',
      'x-max-length': lengthMax,
      'x-delivery-limit': deliveriesMax,
    },
  } as const;
}

function toPublishError(error: unknown): BrokerError {
  if (isNack(error)) return new BrokerError('refused', 'RabbitMQ did not take the message: the queue is full', error);
  if (isForbidden(error)) return new BrokerError('refused', 'RabbitMQ does not let us publish', error);
  return new BrokerError('unknown', 'The connection was lost before the confirmation', error);
}

function refuseMisfit(id: string, body: Uint8Array): void {
  if (body.length > bodyBytesMax) {
    throw new BrokerError('refused', `Expected at most ${bodyBytesMax} bytes for a message, received ${body.length}`);
  }
  if (id === '' || Buffer.byteLength(id) > idBytesMax) {
    throw new BrokerError('refused', `Expected a message id of 1 to ${idBytesMax} bytes`);
  }
}
