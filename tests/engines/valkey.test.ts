/** The broker `valkey:` passes the suite of every driver on a real server; then what else may happen to server and keys. */
import assert from 'node:assert/strict';
import test, { describe, it } from 'node:test';
import { brokerContract } from '../contract/broker.ts';
import {
  disruption,
  isFault,
  longMs,
  nothing,
  patient,
  publish,
  publishInTheEnd,
  receive,
  text,
} from '../contract/broker-scene.ts';
import { available, installCommand, startValkey, type ValkeyServer } from '../support/engines/valkey.ts';
import { alert, createValkeyHarness, open, queueName, refused, takeAndDie } from '../support/engines/valkey-harness.ts';
import { until } from '../support/until.ts';

const traits = { visibilityMs: 800, countsDeliveries: true, fencesAcks: true, dropsDuplicates: false };

if (available()) await suite();
else test('the broker suite runs on a real Valkey server', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startValkey(test);
  brokerContract('broker valkey', traits, () => createValkeyHarness(server));
  describe('broker valkey: its server', { timeout: 60_000 }, () => serverCases());
  describe('broker valkey: its keys', { timeout: 60_000 }, () => keyCases(server));
}

function serverCases(): void {
  it('loses nothing that it confirmed, and no ack, when it is killed amid publishing and consuming', async (t) => {
    const server = await startValkey(t);
    const { broker } = await open(t, server.url);
    const confirmed = new Set<string>();
    const seen = new Set<string | null>();
    const acked = new Set<string | null>();
    const over = new AbortController();
    const consumer = await broker.consumer({ prefetch: 2, visibilityMs: 1_000 });
    const consuming = (async () => {
      for (;;) {
        const delivery = await consumer.next(over.signal);
        if (!delivery) return;
        assert.ok(!acked.has(text(delivery)), `${text(delivery)} came again after its ack was confirmed`);
        seen.add(text(delivery));
        await delivery.ack().then(
          () => acked.add(text(delivery)),
          () => {},
        );
      }
    })();
    const publishing = Array.from({ length: 4 }, async (_, lane) => {
      for (let at = 0; confirmed.size < 400; at += 1) {
        const id = `${lane}:${at}`;
        await broker.publish(id, new TextEncoder().encode(id), { timeoutMs: 1_000 }).then(
          () => confirmed.add(id),
          // As whoever waits for anything between two tries. Who does not is played in valkey-line.test.ts.
          () => new Promise((resolve) => setImmediate(resolve)),
        );
      }
    });
    for (const many of [100, 250]) {
      await until(`${many} are confirmed`, () => confirmed.size >= many);
      await server.kill();
      await server.start();
    }
    await Promise.all(publishing);
    await until('all confirmed have come', () => [...confirmed].every((id) => seen.has(id)));
    over.abort();
    await consuming;
  });

  it('works on when the server comes back on an empty disk', async (t) => {
    const server = await startValkey(t);
    const { broker } = await open(t, server.url);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'in hand');
    const delivery = await receive(consumer);
    await publish(broker, 'gone');
    const waiting = consumer.next(AbortSignal.timeout(300));
    await (await waiting)?.ack();
    const { happened } = disruption(broker);
    await server.wipe();
    await happened;
    await publishInTheEnd(broker, 'new');
    await delivery.ack();
    assert.equal(text(await receive(consumer)), 'new');
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 1 });
  });

  it('refuses when the server is full, and takes again when there is room', async (t) => {
    const server = await startValkey(t);
    const { broker } = await open(t, server.url);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'before');
    await server.command('config', 'set', 'maxmemory', 1);
    await assert.rejects(publish(broker, 'too much'), (error: unknown) => {
      assert.ok(isFault(['refused'])(error));
      return /^Valkey is full/.test(String((error as Error).message));
    });
    // What it holds can be worked off meanwhile.
    const before = await receive(consumer);
    await before.nak(0);
    await (await receive(consumer)).ack();
    await server.command('config', 'set', 'maxmemory', 0);
    await publish(broker, 'after');
    assert.equal(text(await receive(consumer)), 'after');
  });

  it('a primary that became a replica is out of reach until it is one again', async (t) => {
    const server = await startValkey(t);
    const { broker } = await open(t, server.url);
    await publish(broker, 'before');
    const { happened } = disruption(broker);
    await server.command('replicaof', '127.0.0.1', 1);
    await assert.rejects(publish(broker, 'during'), isFault(['unavailable']));
    // It was left: the name may lead to another server by now.
    await happened;
    await server.command('replicaof', 'no', 'one');
    await publishInTheEnd(broker, 'after');
  });
}

function keyCases(server: ValkeyServer): void {
  it('refuses a key of another type with a sentence that names it, and leaves it alone', async (t) => {
    for (const key of ['rings', 'epoch']) {
      const name = queueName();
      await server.command('rpush', `${name}:${key}`, 'precious');
      const { error } = await refused(t, server.url, name);
      assert.equal(error.fault, 'refused');
      assert.match(error.message, new RegExp(`^Valkey holds something else under .*${name}:${key} is a list`));
      assert.deepEqual(await server.command('lrange', `${name}:${key}`, 0, -1), ['precious']);
    }
  });

  it('refuses the stream of somebody else, and takes nothing from it', async (t) => {
    const name = queueName();
    await server.command('xadd', `${name}:rings`, '*', 'theirs', 'precious');
    const { error } = await refused(t, server.url, name);
    assert.equal(error.fault, 'refused');
    assert.match(error.message, /is a stream without the group/);
    assert.equal(await server.command('xlen', `${name}:rings`), 1);
  });

  it('reports a key that turned into another type as a refusal of each publish', async (t) => {
    const { broker, name } = await open(t, server.url);
    await server.command('del', `${name}:rings`);
    await server.command('set', `${name}:rings`, 'text');
    await assert.rejects(publish(broker, 'lost'), isFault(['refused']));
    await server.command('del', `${name}:rings`);
    await publish(broker, 'found');
    assert.equal(text(await receive(await broker.consumer(patient))), 'found');
  });

  it('a group that an operator destroyed is made anew, what it held comes again, and a disruption is reported', async (t) => {
    const { broker, name } = await open(t, server.url);
    const consumer = await broker.consumer(patient);
    await publish(broker, 'held');
    await receive(consumer);
    const { happened } = disruption(broker);
    await server.command('xgroup', 'destroy', `${name}:rings`, name);
    assert.equal(text(await receive(consumer)), 'held');
    await happened;
  });

  it('a stream that was deleted and made anew by another client is a disruption', async (t) => {
    const { broker, name } = await open(t, server.url);
    const { happened } = disruption(broker);
    await publish(broker, 'seen');
    await server.command('del', `${name}:rings`, `${name}:epoch`);
    await open(t, server.url, {}, name);
    await happened;
  });

  it('an ack leaves nothing behind on the server', async (t) => {
    const { broker, name } = await open(t, server.url);
    await publish(broker, 'done');
    const consumer = await broker.consumer(patient);
    await (await receive(consumer)).ack();
    assert.equal(await server.command('xlen', `${name}:rings`), 0);
    assert.deepEqual(await server.command('xpending', `${name}:rings`, name), [0, null, null, null]);
  });

  it('queues of other names on the same server are left alone', async (t) => {
    const one = await open(t, server.url);
    const other = await open(t, server.url);
    const consumer = await other.broker.consumer(patient);
    await publish(one.broker, 'mine');
    await nothing(consumer, 200);
    assert.deepEqual(await other.broker.depth(), { waiting: 0, inFlight: 0 });
  });

  it('forgets consumers that closed at once, and the dead in time, but none that holds something', async (t) => {
    const { broker, name } = await open(t, server.url, { ...alert, sweepMs: 100, forgottenMs: 300 });
    const names = async () => {
      const consumers = (await server.command('xinfo', 'consumers', `${name}:rings`, name)) as unknown[][];
      return consumers.map((about) => about[1]).filter((one) => one !== 'nobody');
    };
    for (const id of ['dead', 'held']) await publish(broker, id);
    await takeAndDie(server.url, name, 200);
    const holder = await broker.consumer({ prefetch: 0, visibilityMs: longMs });
    const closing = await broker.consumer(patient);
    const [one, other] = [await receive(holder), await receive(closing)];
    assert.deepEqual([text(one), text(other)].sort(), ['dead', 'held']);
    await other.ack();
    await closing.close();
    assert.ok((await names()).length <= 2, 'the closed one is still known');
    await until('only the holder is known', async () => (await names()).length === 1);
    // Far beyond what makes a consumer forgotten.
    await nothing(await broker.consumer(patient), 1_000);
    await one.nak(0);
    const back = await receive(holder);
    assert.deepEqual([text(back), back.deliveries], [text(one), one.deliveries + 1]);
  });

  it('what a consumer held ahead for half its visibility comes with its whole visibility, and once', async (t) => {
    const { broker } = await open(t, server.url);
    const consumer = await broker.consumer({ prefetch: 1, visibilityMs: 2_000 });
    for (const id of ['first', 'ahead']) await publish(broker, id);
    const first = await receive(consumer);
    await until('one is held ahead', async () => (await broker.depth()).inFlight === 2);
    const startedMs = performance.now();
    await until('half of the visibility is over', () => performance.now() - startedMs > 1_100);
    await first.extend();
    // Before it is taken: the answer waits for a disk. It would come again 900 ms after this if the time before counted.
    const takenMs = performance.now();
    const ahead = await receive(consumer);
    assert.notEqual(text(ahead), text(first));
    assert.equal(ahead.deliveries, 1);
    await first.ack();
    assert.equal(text(await receive(consumer)), text(ahead));
    assert.ok(performance.now() - takenMs > 1_800, 'it came again before its visibility was over');
  });
}
