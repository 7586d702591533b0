/** The broker `amqp:` on a real server: what may be wrong with the queue, the line, the URL and the server's own state. */
import assert from 'node:assert/strict';
import test, { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { createRabbitBroker } from '../../src/drivers/broker-rabbitmq.ts';
import { StartError } from '../../src/errors.ts';
import { BrokerError, type Consumer } from '../../src/pipeline/ports.ts';
import { disruption, isFault, longMs, nothing, patient, publish, receive, text } from '../contract/broker-scene.ts';
import { makeCertificate } from '../support/engines/certificate.ts';
import { available, installCommand, type RabbitServer, startRabbit } from '../support/engines/rabbitmq.ts';
import {
  asOperator,
  createHeardLog,
  openRabbit,
  queueName,
  takeElsewhere,
} from '../support/engines/rabbitmq-harness.ts';
import { onEnd } from '../support/on-end.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';

const quick = { registerMs: 0, refreshMs: 1_000, heartbeatSeconds: 1 };

if (available()) await suite();
else test('the broker works with a real RabbitMQ over a bad line', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const certificate = await makeCertificate(test);
  const server = await startRabbit(test, { certificate });
  describe('broker rabbitmq: the queue', { timeout: 120_000 }, () => queueCases(server));
  describe('broker rabbitmq: deliveries', { timeout: 120_000 }, () => deliveryCases(server));
  describe('broker rabbitmq: the line', { timeout: 120_000 }, () => lineCases(server));
  describe('broker rabbitmq: who may enter', { timeout: 120_000 }, () => entryCases(server, certificate.caFile));
  describe('broker rabbitmq: an alarm', { timeout: 120_000 }, () => alarmCases(server));
}

function queueCases(server: RabbitServer): void {
  it('that is there in another form is refused with a sentence, and taken when it was removed', async (t) => {
    const operator = asOperator(t, server.url);
    const name = queueName();
    await operator.queueDeclare({ queue: name, durable: true });
    const broker = createRabbitBroker({ url: server.url, name, replicas: 1, log: createHeardLog() }, quick);
    onEnd(t, () => broker.close());
    const misfit = (error: unknown) =>
      isFault(['refused'])(error) && /BROKER_NAME is there in another form: delete it/.test((error as Error).message);
    await assert.rejects(broker.prepare(), misfit);
    await assert.rejects(publish(broker, 'early'), misfit);
    await operator.queueDelete(name);
    await until('it is made', () =>
      broker.prepare().then(
        () => true,
        () => false,
      ),
    );
    await publish(broker, 'late');
    await operator.queueDelete(name);
  });

  it('that has other replicas is refused', async (t) => {
    const { name } = await openRabbit(t, { url: server.url }, quick);
    const other = createRabbitBroker({ url: server.url, name, replicas: 3, log: createHeardLog() }, quick);
    onEnd(t, () => other.close());
    await assert.rejects(other.prepare(), isFault(['refused']));
  });

  it('that is full refuses, and takes again when there is room', async (t) => {
    const { broker } = await openRabbit(t, { url: server.url }, { ...quick, lengthMax: 3 });
    const refusal = async () => {
      for (let at = 0; at < 20; at += 1) await publish(broker, `full:${at}`);
    };
    await assert.rejects(refusal(), isFault(['refused']));
    await broker.health();
    const consumer = await broker.consumer(patient);
    for (let waiting = (await broker.depth()).waiting; waiting > 0; waiting -= 1) await (await receive(consumer)).ack();
    await until('it takes again', () =>
      publish(broker, 'room').then(
        () => true,
        (error) => !isFault(['refused'])(error),
      ),
    );
  });

  it('that was deleted confirms nothing: the publish is unavailable, the queue made anew, and it is reported', async (t) => {
    const { broker, name } = await openRabbit(t, { url: server.url }, { ...quick, watchMs: longMs });
    const { happened } = disruption(broker);
    const operator = asOperator(t, server.url);
    await publish(broker, 'gone');
    await operator.queueDelete(name);
    const publishes = await Promise.allSettled(['a', 'b', 'c', 'd'].map((id) => publish(broker, id)));
    assert.deepEqual(
      publishes.map((result) => (result.status === 'rejected' ? (result.reason as BrokerError).fault : 'confirmed')),
      ['unavailable', 'unavailable', 'unavailable', 'unavailable'],
    );
    await happened;
    await publish(broker, 'again');
    assert.deepEqual(await broker.depth(), { waiting: 1, inFlight: 0 });
  });

  it('that was made anew at once, behind its consumers, reaches those who wait', async (t) => {
    const { broker, name } = await openRabbit(t, { url: server.url }, quick);
    const { broker: successor } = await openRabbit(t, { url: server.url }, quick);
    const operator = await asOperator(t, server.url).acquire();
    onEnd(t, () => operator.close());
    const consumer = await broker.consumer(patient);
    await publish(broker, 'first');
    await (await receive(consumer)).ack();
    const waiting = receive(consumer);
    await nothing(await successor.consumer(patient), 300);
    await operator.queueDelete({ queue: name });
    await operator.queueDeclare(quorumQueue(name));
    await publish(broker, 'second');
    assert.equal(text(await waiting), 'second');
  });

  it('refuses an id that does not fit into a short string', async (t) => {
    const { broker } = await openRabbit(t, { url: server.url }, quick);
    for (const id of ['', 'x'.repeat(201), 'ж'.repeat(101)]) {
      await assert.rejects(broker.publish(id, new Uint8Array(), { timeoutMs: 1_000 }), isFault(['refused']));
    }
    await broker.publish('ж'.repeat(100), new Uint8Array(1024), { timeoutMs: 1_000 });
  });
}

/** The form that the driver gives it. */
const quorumQueue = (queue: string) => ({
  queue,
  durable: true,
  arguments: {
    'x-queue-type': 'quorum' as const,
    'x-quorum-initial-group-size': 1,
    'x-overflow': 'reject-publish' as const,
    'x-max-length': 1_000_000,
    'x-delivery-limit': 2 ** 31 - 1,
  },
});

function deliveryCases(server: RabbitServer): void {
  it('come again however often they are given back', async (t) => {
    const { broker } = await openRabbit(t, { url: server.url }, quick);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'poison');
    for (let round = 1; round <= 30; round += 1) {
      const delivery = await receive(consumer);
      assert.equal(delivery.deliveries, round);
      await delivery.nak(0);
    }
  });

  it('leave no room for another one, unasked, when they are acked at once', async (t) => {
    const { broker } = await openRabbit(t, { url: server.url }, quick);
    const ids = Array.from({ length: 24 }, (_, at) => `unasked:${at}`);
    for (const id of ids) await publish(broker, id);
    const consumers = [await broker.consumer(patient), await broker.consumer(patient)];
    const slot = async (consumer: Consumer) => {
      const delivery = await receive(consumer);
      assert.equal(delivery.deliveries, 1, `${text(delivery)} was brought to somebody else before`);
      await delivery.ack();
    };
    for (let round = 0; round < ids.length / 4; round += 1) {
      const consumer = consumers[round % 2] ?? assert.fail();
      await Promise.all([slot(consumer), slot(consumer), slot(consumer), slot(consumer)]);
    }
  });

  it('that were prefetched and nobody took go back when their visibility ends', async (t) => {
    const { broker, name } = await openRabbit(t, { url: server.url }, quick);
    const other = await openRabbit(t, { url: server.url, name }, quick);
    await publish(broker, 'first');
    const idle = await broker.consumer({ prefetch: 1, visibilityMs: 700 });
    await (await receive(idle)).ack();
    await publish(broker, 'prefetched');
    await until('it is prefetched', async () => (await broker.depth()).inFlight === 1);
    const taken = await receive(await other.broker.consumer(patient));
    assert.equal(text(taken), 'prefetched');
    await taken.ack();
    await publish(broker, 'fresh');
    assert.equal(text(await receive(idle)), 'fresh');
  });

  it('that were prefetched have their whole visibility from when they are taken', async (t) => {
    const { broker, name } = await openRabbit(t, { url: server.url }, quick);
    const { broker: other } = await openRabbit(t, { url: server.url, name }, quick);
    const consumer = await broker.consumer({ prefetch: 1, visibilityMs: 1_500 });
    const others = await other.consumer(patient);
    for (const id of ['first', 'second']) await publish(broker, id);
    await (await receive(consumer)).ack();
    await until('it is prefetched', async () => (await broker.depth()).inFlight === 1);
    await nothing(others, 900);
    await receive(consumer);
    // Else its prefetch would be first to have it again.
    await consumer.close();
    await nothing(others, 1_100);
    assert.equal(text(await receive(others)), 'second');
  });

  it('of strangers, in text and JSON, are handed out as bytes', async (t) => {
    const { broker, name } = await openRabbit(t, { url: server.url }, quick);
    const operator = asOperator(t, server.url);
    const channel = await operator.acquire();
    await channel.confirmSelect();
    await channel.basicPublish({ routingKey: name }, 'text');
    await channel.basicPublish({ routingKey: name }, { a: 1 });
    await channel.close();
    const consumer = await broker.consumer(patient);
    assert.deepEqual([text(await receive(consumer)), text(await receive(consumer))], ['text', '{"a":1}']);
  });

  it('of a consumer that was closed come again when its last one is ended or its broker closed', async (t) => {
    const { broker, name } = await openRabbit(t, { url: server.url }, quick);
    const { broker: other } = await openRabbit(t, { url: server.url, name }, quick);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'in hand');
    await receive(consumer);
    await consumer.close();
    const successor = await other.consumer(patient);
    await nothing(successor, 200);
    await broker.close();
    assert.equal(text(await receive(successor)), 'in hand');
  });
}

function lineCases(server: RabbitServer): void {
  it('that swallows the confirmation leaves the publish unknown, and the message there', async (t) => {
    const proxy = await startTcpProxy(t, server.url);
    const { broker, name } = await openRabbit(t, { url: proxy.url }, quick);
    proxy.swallow('answers');
    const lost = () => broker.publish('unknown', new Uint8Array(1), { timeoutMs: 500 });
    await within('the publish ended', 2_000, () => assert.rejects(lost, isFault(['unknown'])));
    const { broker: other } = await openRabbit(t, { url: server.url, name }, quick);
    await receive(await other.consumer(patient));
  });

  it('that is cut after a publish leaves it unknown at once', async (t) => {
    const proxy = await startTcpProxy(t, server.url);
    const { broker } = await openRabbit(t, { url: proxy.url }, quick);
    proxy.cutAfter('cut here', 1);
    const cut = () => publish(broker, 'cut here');
    await within('the publish ended, whose answer cannot come,', 2_000, () =>
      assert.rejects(cut, isFault(['unknown'])),
    );
  });

  it('that is half-open is given up: what was held goes to others, who waits goes on, and it is reported', async (t) => {
    const proxy = await startTcpProxy(t, server.url);
    const { broker, name } = await openRabbit(t, { url: proxy.url }, quick);
    const { broker: other } = await openRabbit(t, { url: server.url, name }, quick);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'held');
    const delivery = await receive(consumer);
    const waiting = receive(consumer);
    const { happened } = disruption(broker);
    proxy.swallow('all');
    await assert.rejects(broker.health(), isFault(['unavailable']));
    const taken = await receive(await other.consumer(patient));
    assert.equal(text(taken), 'held');
    await taken.ack();
    proxy.swallow('nothing');
    await happened;
    await assert.rejects(delivery.ack(), isFault(['unavailable']));
    await publish(other, 'after');
    assert.equal(text(await waiting), 'after');
  });

  it('that loses an ack fails it, and the message comes again', async (t) => {
    const proxy = await startTcpProxy(t, server.url);
    const { broker } = await openRabbit(t, { url: proxy.url }, quick);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'acked');
    const delivery = await receive(consumer);
    proxy.swallow('all');
    await assert.rejects(delivery.ack(), isFault(['unknown']));
    proxy.swallow('nothing');
    assert.equal(text(await receive(consumer)), 'acked');
  });

  it('that is slow only takes longer', async (t) => {
    const proxy = await startTcpProxy(t, server.url);
    const { broker } = await openRabbit(t, { url: proxy.url }, quick);
    proxy.delay(100);
    const consumer = await broker.consumer({ prefetch: 1, visibilityMs: 5_000 });
    await Promise.all(['a', 'b', 'c'].map((id) => publish(broker, id)));
    const seen: (string | null)[] = [];
    for (let at = 0; at < 3; at += 1) {
      const delivery = await receive(consumer);
      seen.push(text(delivery));
      await delivery.ack();
    }
    assert.deepEqual(seen.sort(), ['a', 'b', 'c']);
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 0 });
  });
}

function entryCases(server: RabbitServer, caFile: string): void {
  const port = new URL(server.url).port;

  it('is told by a sentence, and neither errors nor the log carry the credentials', async (t) => {
    const log = createHeardLog();
    const url = `amqp://someone:s3cr%40t@127.0.0.1:${port}`;
    const broker = createRabbitBroker({ url, name: queueName(), replicas: 1, log }, quick);
    onEnd(t, () => broker.close());
    const errors: unknown[] = [];
    for (const attempt of [broker.prepare(), publish(broker, 'a'), broker.health(), broker.depth()]) {
      await attempt.catch((error) => errors.push(error));
    }
    assert.equal(errors.length, 4);
    const [first] = errors;
    assert.ok(first instanceof BrokerError && first.fault === 'refused');
    assert.match(first.message, /check user, password, vhost and permissions/);
    assert.ok(log.lines.length > 0);
    const told = [...errors.map((error) => inspect(error, { depth: 10, showHidden: true })), ...log.lines].join('\n');
    assert.doesNotMatch(told, /s3cr|someone/);
  });

  it('is told by a sentence when there is no such vhost', async (t) => {
    const url = `${server.url}/no%20such`;
    const broker = createRabbitBroker({ url, name: queueName(), replicas: 1, log: createHeardLog() }, quick);
    onEnd(t, () => broker.close());
    await assert.rejects(broker.prepare(), isFault(['refused']));
  });

  it('reads URLs, and repeats nothing of one that it cannot read', () => {
    const bad = [
      'amqp://someone:s3cret@',
      'amqp://someone:s3cret@host:99999',
      'amqp://someone:s3cr%et@host',
      'amqp://someone:s3cret@host/vhost/more',
      'amqp://someone:s3cret@[::1]:5672,[::2]:5672',
      'http://someone:s3cret@host',
    ];
    for (const url of bad) {
      const make = () => createRabbitBroker({ url, name: 'unused', replicas: 1, log: createHeardLog() });
      assert.throws(make, (error) => error instanceof StartError && !/s3cr|someone/.test(inspect(error)));
    }
  });

  it('comes in by whichever of several hosts answers', async (t) => {
    const url = `amqp://guest:guest@127.0.0.1:1,127.0.0.1:${port}/`;
    const broker = createRabbitBroker({ url, name: queueName(), replicas: 1, log: createHeardLog() }, quick);
    onEnd(t, () => broker.close());
    await until('it is prepared', () =>
      broker.prepare().then(
        () => true,
        () => false,
      ),
    );
    await publish(broker, 'came');
  });

  it('comes in over TLS where the authority is trusted, and not where it is not', async (t) => {
    const { broker, name } = await openRabbit(t, { url: server.url }, quick);
    await publish(broker, 'over tls');
    const task = { url: server.tlsUrl, name, visibilityMs: longMs };
    const distrusting = await takeElsewhere(task, { NODE_EXTRA_CA_CERTS: undefined });
    onEnd(t, distrusting.kill);
    assert.match(distrusting.said, /self-signed certificate/);
    const trusting = await takeElsewhere(task, { NODE_EXTRA_CA_CERTS: caFile });
    onEnd(t, trusting.kill);
    assert.match(trusting.said, /taken over tls/);
  });
}

function alarmCases(server: RabbitServer): void {
  it('stops publishes and health, not acks, and its end is noticed', async (t) => {
    const { broker } = await openRabbit(t, { url: server.url }, quick);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'before');
    const delivery = await receive(consumer);
    await server.call('vm_memory_monitor set_vm_memory_high_watermark [{absolute, 1000000}]');
    onEnd(t, () => server.call('vm_memory_monitor set_vm_memory_high_watermark [{absolute, 8000000000}]'));
    await until('publishes are told of it', () =>
      broker.publish('during', new Uint8Array(1), { timeoutMs: 500 }).then(
        () => false,
        (error) => isFault(['unavailable'])(error),
      ),
    );
    await assert.rejects(broker.health(), isFault(['unavailable']));
    await delivery.ack();
    await server.call('vm_memory_monitor set_vm_memory_high_watermark [{absolute, 8000000000}]');
    await until('health answers', () =>
      broker.health().then(
        () => true,
        () => false,
      ),
    );
    await publish(broker, 'after');
  });
}
