/** The broker `nats:` passes the suite of every driver on a real server; then what else may happen to server, stream and line. */
import assert from 'node:assert/strict';
import { cp, rm } from 'node:fs/promises';
import test, { describe, it } from 'node:test';
import type { NatsBrokerSettings } from '../../src/drivers/broker-nats.ts';
import { createNats } from '../../src/drivers/broker-nats-connection.ts';
import { createConsumer } from '../../src/drivers/broker-nats-consumer.ts';
import { createRingStream, durableName } from '../../src/drivers/broker-nats-stream.ts';
import type { Broker } from '../../src/pipeline/ports.ts';
import { brokerContract } from '../contract/broker.ts';
import {
  disruption,
  isFault,
  nothing,
  patient,
  publish,
  publishInTheEnd,
  receive,
  text,
} from '../contract/broker-scene.ts';
import { available, installCommand, startNats } from '../support/engines/nats.ts';
import { createHeardLog, createNatsHarness, openNatsBroker, streamName } from '../support/engines/nats-harness.ts';
import { asOperator } from '../support/engines/nats-operator.ts';
import { onEnd, type Scope } from '../support/on-end.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';

const traits = {
  visibilityMs: 800,
  // 5.1 s of standing still, since the server holds a pull of the other consumer meanwhile.
  extendedMs: 8_500,
  countsDeliveries: true,
  fencesAcks: false,
  dropsDuplicates: true,
};
/** Notices everything within a second or two. */
const alert = { lookMs: 200, stallMs: 500, pullMs: 1_000, pingMs: 300, requestMs: 1_000 };

if (available()) await suite();
else test('the broker suite runs on a real NATS server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startNats(test);
  brokerContract('broker nats', traits, () => createNatsHarness(server));
  describe('broker nats: the server', { timeout: 120_000 }, () => serverCases());
  describe('broker nats: the stream', { timeout: 120_000 }, () => streamCases(server.url));
  describe('broker nats: the line', { timeout: 120_000 }, () => lineCases(server.url));
}

async function open(t: Scope, url: string, settings: NatsBrokerSettings = {}, name = streamName()) {
  const broker = await openNatsBroker({ url, name }, settings);
  onEnd(t, () => broker.close());
  return { broker, name };
}

/** The parts of a broker, to put something between them. */
async function openParts(t: Scope, url: string) {
  const name = streamName();
  const log = createHeardLog();
  const nats = createNats({ url, log }, { requestMs: 1_000, pingMs: 1_000 });
  const stream = createRingStream({ nats, log }, { name, replicas: 1, messagesMax: 1_000 });
  onEnd(t, () => nats.close());
  await stream.prepare();
  await stream.durable(patient.visibilityMs);
  return { nats, stream, name, log };
}

/** Pulls that stand at the server. */
async function pullsOf(t: Scope, url: string, name: string): Promise<number> {
  return (await (await asOperator(t, url)).consumers.info(name, durableName)).num_waiting;
}

const answers = (broker: Broker) =>
  broker.health().then(
    () => true,
    () => false,
  );

/** Takes and acks everything that is there, until nothing comes for a moment. */
async function drain(broker: Broker, visibilityMs: number): Promise<(string | null)[]> {
  const consumer = await broker.consumer({ prefetch: 0, visibilityMs });
  const seen: (string | null)[] = [];
  for (;;) {
    const delivery = await consumer.next(AbortSignal.timeout(visibilityMs * 2));
    if (!delivery) return seen;
    seen.push(text(delivery));
    await delivery.ack();
  }
}

function serverCases(): void {
  it('loses nothing that it confirmed when it is killed amid publishing and consuming', async (t) => {
    const server = await startNats(t);
    const { broker, name } = await open(t, server.url);
    const confirmed = new Set<string>();
    const seen = new Set<string | null>();
    const over = new AbortController();
    const consumer = await broker.consumer({ prefetch: 2, visibilityMs: 1_000 });
    const consuming = (async () => {
      for (;;) {
        const delivery = await consumer.next(over.signal);
        if (!delivery) return;
        seen.add(text(delivery));
        await delivery.ack().catch(() => {});
      }
    })();
    let killed: Promise<void> | null = null;
    for (let at = 0; confirmed.size < 1_000; at += 1) {
      const id = `job:${at}`;
      if (confirmed.size === 400) killed ??= server.kill().then(server.start);
      await publish(broker, id).then(
        () => confirmed.add(id),
        () => until('the server answers again', () => answers(broker)),
      );
    }
    await killed;
    await until('all that was confirmed came', () => [...confirmed].every((id) => seen.has(id)));
    over.abort();
    await consuming;
    await broker.close();
    const { broker: successor } = await open(t, server.url, {}, name);
    assert.deepEqual(await drain(successor, 1_000), []);
  });

  it('that is away does not hold up who leaves', async (t) => {
    const server = await startNats(t);
    const { broker } = await open(t, server.url);
    const consumer = await broker.consumer({ prefetch: 2, visibilityMs: 5_000 });
    for (const id of ['1', '2', '3']) await publish(broker, id);
    await receive(consumer);
    await until('the prefetch is full', async () => (await broker.depth()).inFlight === 3);
    const waiting = [receive(consumer), receive(consumer), consumer.next(new AbortController().signal)];
    await server.kill();
    await within('it left a server that is away', 2_500, async () => {
      await broker.close();
      await Promise.all(waiting);
    });
  });

  it('may come back from an older copy of its volume: it works on, and the disruption is reported', async (t) => {
    const server = await startNats(t);
    const { broker } = await open(t, server.url, alert);
    const { count } = disruption(broker);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'old');
    await server.stop();
    await cp(server.volume, `${server.volume}.copy`, { recursive: true });
    await server.start();
    await until('the restart is reported', () => count() === 1);
    for (const id of ['new 1', 'new 2']) await publishInTheEnd(broker, id);
    const lost = [await receive(consumer), await receive(consumer), await receive(consumer)];
    await server.kill();
    await rm(server.volume, { recursive: true });
    await cp(`${server.volume}.copy`, server.volume, { recursive: true });
    await server.start();
    await until('the older volume is reported', () => count() === 2);
    await publishInTheEnd(broker, 'newer');
    const seen = [text(await receive(consumer)), text(await receive(consumer))];
    assert.deepEqual(seen.sort(), ['newer', 'old']);
    // Sequence numbers are used again: the ack of "new 1" would remove "newer".
    for (const delivery of lost) await assert.rejects(delivery.ack(), isFault(['unavailable']));
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 2 });
  });

  it('does not let the end of a lost message be the end of a new one', async (t) => {
    const server = await startNats(t);
    const { broker } = await open(t, server.url, alert);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'lost');
    const lost = await receive(consumer);
    await server.wipe();
    await publishInTheEnd(broker, 'new');
    assert.equal(text(await receive(consumer)), 'new');
    await assert.rejects(lost.ack(), isFault(['unavailable']));
    await assert.rejects(lost.nak(0), isFault(['unavailable']));
    await assert.rejects(lost.extend(), isFault(['unavailable']));
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 1 });
  });
}

function streamCases(url: string): void {
  it('is made anew where an operator removed it, for those who publish and those who wait', async (t) => {
    const operator = await asOperator(t, url);
    const once = async () => {
      const { broker, name } = await open(t, url);
      const consumer = await broker.consumer(patient);
      await publish(broker, 'first');
      await (await receive(consumer)).ack();
      const next = receive(consumer);
      const { happened } = disruption(broker);
      await operator.streams.delete(name);
      await happened;
      await publishInTheEnd(broker, 'second');
      assert.equal(text(await next), 'second');
    };
    // Made at once instead of a little later, about every fourth such stream never delivers.
    await Promise.all(Array.from({ length: 12 }, once));
  });

  it('is missed by a process that does nothing but listen', async (t) => {
    const { broker, name } = await open(t, url, alert);
    const { happened } = disruption(broker);
    await (await asOperator(t, url)).streams.delete(name);
    await happened;
  });

  it('that another process made anew is known to be another one', async (t) => {
    const { broker, name } = await open(t, url, alert);
    const { happened } = disruption(broker);
    const operator = await asOperator(t, url);
    const { config } = await operator.streams.info(name);
    await operator.streams.delete(name);
    await operator.streams.add(config);
    await happened;
  });

  it('keeps delivering when its consumer is removed', async (t) => {
    const { broker, name } = await open(t, url);
    const next = receive(await broker.consumer(patient));
    await (await asOperator(t, url)).consumers.delete(name, durableName);
    await publish(broker, 'still');
    assert.equal(text(await next), 'still');
  });

  it('that stalls gets new pulls, then a new consumer, and what waited is delivered', async (t) => {
    const { nats, stream, name, log } = await openParts(t, url);
    let stalled = true;
    let pulls = 0;
    const renewed: number[] = [];
    const stalling = {
      ...nats,
      pull(...args: Parameters<typeof nats.pull>) {
        pulls += 1;
        return stalled ? { cancel: async () => {} } : nats.pull(...args);
      },
    };
    const renewing = {
      ...stream,
      async renewDurable(visibilityMs: number) {
        renewed.push(pulls);
        await stream.renewDurable(visibilityMs);
        stalled = false;
      },
    };
    const settings = { name, pullMs: 60_000, stallMs: 50 };
    const consumer = createConsumer({ nats: stalling, stream: renewing, log }, patient, settings);
    const waiting = receive(consumer);
    await nats.publish({ subject: stream.subject, id: 'stalled', body: new Uint8Array([1]), timeoutMs: 1_000 });
    await until('the stall is over', async () => {
      await consumer.watch();
      return !stalled;
    });
    await (await waiting).ack();
    assert.deepEqual(renewed, [2], 'expected one renewal, after the second pull');
    await consumer.close();
  });

  it('is not taken for stalled while deliveries are out or kept away by a delay', async (t) => {
    const { broker, name } = await open(t, url, alert);
    const operator = await asOperator(t, url);
    const consumer = await broker.consumer(patient);
    for (const id of ['in hand', 'delayed']) await publish(broker, id);
    await receive(consumer);
    await (await receive(consumer)).nak(60_000);
    const { created } = await operator.consumers.info(name, durableName);
    await nothing(consumer, 5 * alert.stallMs);
    assert.equal((await operator.consumers.info(name, durableName)).created, created);
  });

  it('that is full refuses, and takes again when there is room', async (t) => {
    const { broker } = await open(t, url, { messagesMax: 2 });
    await publish(broker, 'one');
    await publish(broker, 'two');
    await assert.rejects(publish(broker, 'three'), isFault(['refused']));
    await (await receive(await broker.consumer(patient))).ack();
    await publish(broker, 'three');
  });

  it('refuses an id that does not fit into a header line', async (t) => {
    const { broker } = await open(t, url);
    for (const id of ['', 'a\r\nb', 'x'.repeat(201)]) {
      await assert.rejects(broker.publish(id, new Uint8Array(), { timeoutMs: 1_000 }), isFault(['refused']));
    }
    await broker.publish('ж'.repeat(100), new Uint8Array(1024), { timeoutMs: 1_000 });
  });
}

function lineCases(url: string): void {
  it('that swallows the confirmation leaves the publish unknown, and the message there', async (t) => {
    const proxy = await startTcpProxy(t, url);
    const { broker, name } = await open(t, proxy.url);
    proxy.swallow('answers');
    const lost = () => broker.publish('unknown', new Uint8Array(1), { timeoutMs: 500 });
    await within('the publish ended', 2_000, () => assert.rejects(lost, isFault(['unknown'])));
    const { broker: other } = await open(t, url, {}, name);
    await receive(await other.consumer(patient));
  });

  it('that is cut after a publish leaves it unknown at once, and a repetition is harmless', async (t) => {
    const proxy = await startTcpProxy(t, url);
    const { broker, name } = await open(t, proxy.url);
    proxy.cutAfter('twice');
    const cut = () => publish(broker, 'twice');
    await within('the publish ended, whose answer cannot come,', 2_000, () =>
      assert.rejects(cut, isFault(['unknown'])),
    );
    proxy.cutAfter('no such word');
    await publishInTheEnd(broker, 'twice');
    const { broker: other } = await open(t, url, {}, name);
    assert.deepEqual(await drain(other, 500), ['twice']);
  });

  it('that is half-open is given up, and a waiting consumer goes on over a new one', async (t) => {
    const proxy = await startTcpProxy(t, url);
    const { broker, name } = await open(t, proxy.url, alert);
    const waiting = receive(await broker.consumer(patient));
    const { happened } = disruption(broker);
    proxy.swallow('all');
    await assert.rejects(broker.health(), isFault(['unavailable']));
    proxy.swallow('nothing');
    await happened;
    await publish((await open(t, url, {}, name)).broker, 'after');
    assert.equal(text(await waiting), 'after');
  });

  it('that loses the answer to an ack fails the ack, which may be repeated', async (t) => {
    const proxy = await startTcpProxy(t, url);
    const { broker } = await open(t, proxy.url, alert);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'acked');
    const delivery = await receive(consumer);
    proxy.swallow('all');
    await assert.rejects(delivery.ack(), isFault(['unknown', 'unavailable']));
    proxy.swallow('nothing');
    await until('the ack is confirmed', () =>
      delivery.ack().then(
        () => true,
        () => false,
      ),
    );
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 0 });
  });

  it('that is slow loses no message to those who stopped waiting while it was under way', async (t) => {
    const proxy = await startTcpProxy(t, url);
    const { broker, name } = await open(t, proxy.url);
    const { broker: near } = await open(t, url, {}, name);
    proxy.delay(150);
    const far = await broker.consumer(patient);
    const abort = new AbortController();
    const waiting = far.next(abort.signal);
    await until('its pull stands at the server', async () => (await pullsOf(t, url, name)) === 1);
    await publish(near, 'under way');
    abort.abort();
    assert.equal(await waiting, null);
    assert.equal(text(await receive(await near.consumer(patient))), 'under way');
  });

  it('that is slow only takes longer', async (t) => {
    const proxy = await startTcpProxy(t, url);
    const { broker } = await open(t, proxy.url);
    proxy.delay(150);
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
