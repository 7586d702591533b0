/** Broker suite, second half: consumers beside each other, outages, losses, and upkeep. */
import assert from 'node:assert/strict';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';
import {
  disruption,
  isFault,
  longMs,
  nothing,
  type Promised,
  patient,
  publish,
  publishInTheEnd,
  receive,
  text,
} from './broker-scene.ts';

export function consuming(promised: Promised): void {
  promised('without prefetch a consumer holds nothing that nobody asked for', async ({ open }) => {
    const broker = await open();
    for (const id of ['one', 'two', 'three']) await publish(broker, id);
    const greedy = await broker.consumer(patient);
    await receive(greedy);
    const other = await (await open()).consumer(patient);
    await receive(other);
    await receive(other);
    await nothing(other, 300);
  });

  promised(
    'with prefetch n a consumer holds n beyond what it handed out, and gives them back on close',
    async (scene) => {
      const broker = await scene.open();
      for (const id of ['1', '2', '3', '4', '5']) await publish(broker, id);
      const greedy = await broker.consumer({ prefetch: 2, visibilityMs: longMs });
      const first = await receive(greedy);
      await until('the prefetch is full', async () => (await broker.depth()).inFlight === 3);
      const beside = await scene.open();
      const other = await beside.consumer(patient);
      const seen = [text(first), text(await receive(other)), text(await receive(other))];
      await nothing(other, 300);
      // Asked for before they are given back: a server of NATS 2.9 that finds only a pull that was taken back keeps one of them
      // until its visibility ends, and hands out its last message twice.
      const back = [receive(other), receive(other)];
      await beside.depth();
      await greedy.close();
      seen.push(...(await Promise.all(back)).map(text));
      assert.deepEqual(seen.sort(), ['1', '2', '3', '4', '5']);
    },
  );

  promised('what was prefetched is handed out once, to the consumer that holds it', async ({ open }) => {
    const broker = await open();
    const ids = Array.from({ length: 12 }, (_, at) => `ahead:${at}`);
    for (const id of ids) await publish(broker, id);
    const consumer = await broker.consumer({ prefetch: 4, visibilityMs: longMs });
    const seen: (string | null)[] = [];
    for (let at = 0; at < ids.length; at += 1) {
      const delivery = await receive(consumer);
      seen.push(text(delivery));
      await delivery.ack();
    }
    assert.deepEqual(seen.sort(), [...ids].sort());
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 0 });
  });

  promised('an aborted next answers null at once and keeps no message', async ({ open }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    const abort = new AbortController();
    const waiting = consumer.next(abort.signal);
    await nothing(await broker.consumer(patient), 100);
    abort.abort();
    assert.equal(await waiting, null);
    assert.equal(await consumer.next(abort.signal), null);
    await publish(broker, 'free');
    assert.equal(text(await receive(await (await open()).consumer(patient))), 'free');
  });

  promised('aborts in a race with deliveries lose no message', async ({ open }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    const ids = Array.from({ length: 20 }, (_, at) => `race:${at}`);
    const seen: (string | null)[] = [];
    for (const id of ids) {
      const abort = new AbortController();
      const waiting = consumer.next(abort.signal);
      await publish(broker, id);
      abort.abort();
      const delivery = await waiting;
      await delivery?.ack();
      seen.push(text(delivery));
    }
    const others = await (await open()).consumer(patient);
    while (seen.filter((one) => one !== null).length < ids.length) seen.push(text(await receive(others)));
    assert.deepEqual(seen.filter((one) => one !== null).sort(), [...ids].sort());
  });

  promised('close answers a waiting next with null; deliveries in hand can still be ended', async ({ open }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    await publish(broker, 'acked');
    await publish(broker, 'given back');
    const [one, other] = [await receive(consumer), await receive(consumer)];
    const waiting = consumer.next(new AbortController().signal);
    await consumer.close();
    assert.equal(await waiting, null);
    assert.equal(await consumer.next(new AbortController().signal), null);
    await one.ack();
    await other.nak(0);
    const successor = await (await open()).consumer(patient);
    const last = await receive(successor);
    assert.equal(text(last), text(other));
    await last.ack();
    await nothing(successor, 300);
  });
}

export function sharing(promised: Promised): void {
  promised('two consumers share the messages without doubles', async ({ open }) => {
    const publisher = await open();
    const ids = Array.from({ length: 40 }, (_, at) => `shared:${at}`);
    const consumers = [await (await open()).consumer(patient), await (await open()).consumer(patient)];
    await Promise.all(ids.map((id) => publish(publisher, id)));
    const shares = await Promise.all(
      consumers.map(async (consumer) => {
        const share: (string | null)[] = [];
        for (let at = 0; at < ids.length / 2; at += 1) share.push(text(await receive(consumer)));
        return share;
      }),
    );
    assert.deepEqual(shares.flat().sort(), [...ids].sort());
    for (const consumer of consumers) await nothing(consumer, 100);
  });

  promised('several slots of one consumer wait side by side', async ({ open }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    const slots = Promise.all([receive(consumer), receive(consumer), receive(consumer)]);
    for (const id of ['a', 'b', 'c']) await publish(broker, id);
    assert.deepEqual((await slots).map(text).sort(), ['a', 'b', 'c']);
  });

  promised('500 messages of 8 publishers reach 4 consumers, none lost', async ({ open }) => {
    const publishers = await Promise.all([open(), open()]);
    const ids = Array.from({ length: 500 }, (_, at) => `bulk:${at}`);
    const seen = new Set<string | null>();
    const enough = new AbortController();
    const consume = async (client: (typeof publishers)[0]) => {
      const consumer = await client.consumer(patient);
      for (;;) {
        const delivery = await consumer.next(end);
        if (!delivery) return;
        await delivery.ack();
        seen.add(text(delivery));
        if (seen.size === ids.length) enough.abort();
      }
    };
    const end = AbortSignal.any([enough.signal, AbortSignal.timeout(30_000)]);
    const consumers = [...publishers, ...publishers].map(consume);
    await Promise.all(
      Array.from({ length: 8 }, async (_, lane) => {
        const broker = publishers[lane % 2];
        for (let at = lane; broker && at < ids.length; at += 8) await publish(broker, ids[at] ?? '');
      }),
    );
    await Promise.all(consumers);
    assert.equal(seen.size, ids.length);
  });
}

export function outages(promised: Promised): void {
  promised('publishing while the server is down rejects in time, and works when it is back', async (scene) => {
    const broker = await scene.open();
    await publish(broker, 'before');
    await scene.harness.stop();
    const lost = () => broker.publish('during', new Uint8Array(1), { timeoutMs: 1_000 });
    await within('the publish ended', 5_000, () => assert.rejects(lost, isFault(['unavailable', 'unknown'])));
    await assert.rejects(broker.health(), isFault(['unavailable']));
    await scene.harness.start();
    await publishInTheEnd(broker, 'after');
    await until('health answers again', () =>
      broker.health().then(
        () => true,
        () => false,
      ),
    );
  });

  promised('what was confirmed survives SIGKILL of the server: waiting and not yet acked alike', async (scene) => {
    const { harness, traits } = scene;
    const broker = await scene.open();
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs });
    await publish(broker, 'in hand');
    await receive(consumer);
    await publish(broker, 'waiting');
    await harness.kill();
    await harness.start();
    const seen = new Set<string | null>();
    await until('both come', async () => {
      const delivery = await receive(consumer);
      seen.add(text(delivery));
      await delivery.ack().catch(() => {});
      return seen.has('in hand') && seen.has('waiting');
    });
  });

  promised('a waiting next sits through an outage and gets what comes after it', async ({ open, harness }) => {
    const broker = await open();
    const waiting = receive(await broker.consumer(patient));
    await harness.stop();
    await harness.start();
    await publishInTheEnd(broker, 'after');
    assert.equal(text(await waiting), 'after');
  });

  promised('a restart is reported as a disruption, also to a client that only publishes', async ({ open, harness }) => {
    const broker = await open();
    const { happened } = disruption(broker);
    await publish(broker, 'seen');
    await harness.stop();
    await harness.start();
    await happened;
  });

  promised('after its connections were cut a client works on, and reports a disruption', async ({ open, harness }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    await publish(broker, 'before');
    await (await receive(consumer)).ack();
    const { happened } = disruption(broker);
    const waiting = receive(consumer);
    await harness.cut();
    await happened;
    await publishInTheEnd(broker, 'after');
    assert.equal(text(await waiting), 'after');
  });
}

export function losses(promised: Promised): void {
  promised('a broker that lost everything works on, and reports a disruption', async ({ open, harness }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    await publish(broker, 'in hand');
    const delivery = await receive(consumer);
    await publish(broker, 'waiting');
    const { happened } = disruption(broker);
    await harness.wipe();
    await happened;
    await delivery.ack().catch((error) => assert.ok(isFault(['unavailable', 'unknown'])(error)));
    await publishInTheEnd(broker, 'new');
    const next = await receive(consumer);
    assert.equal(text(next), 'new');
    await next.ack();
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 0 });
  });

  promised('a consumer that waits during the loss gets what comes after it', async ({ open, harness }) => {
    const broker = await open();
    const waiting = receive(await broker.consumer(patient));
    await harness.wipe();
    await publishInTheEnd(await open(), 'new');
    assert.equal(text(await waiting), 'new');
  });

  promised('who stopped listening hears of no disruption', async ({ open, harness }) => {
    const broker = await open();
    let heard = 0;
    const stop = broker.onDisrupted(() => {
      heard += 1;
    });
    const { happened } = disruption(broker);
    stop();
    await publish(broker, 'seen');
    await harness.wipe();
    await happened;
    assert.equal(heard, 0);
  });
}

export function upkeep(promised: Promised): void {
  promised('depth tells what waits and what is handed out', async ({ open, traits }) => {
    const broker = await open();
    for (const id of ['x', 'y', 'z']) await publish(broker, id);
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs * 5 });
    const first = await receive(consumer);
    await until('two wait and one is out', async () => {
      const { waiting, inFlight } = await broker.depth();
      return waiting === 2 && inFlight === 1;
    });
    await first.ack();
    await until('two wait', async () => {
      const { waiting, inFlight } = await broker.depth();
      return waiting === 2 && inFlight === 0;
    });
  });

  promised('health answers while the server does', async ({ open }) => {
    await (await open()).health();
  });

  promised('preparing again, and from many clients at once, changes nothing', async ({ open }) => {
    const clients = await Promise.all([open(), open(), open(), open()]);
    await publish(clients[0], 'kept');
    await Promise.all(clients.flatMap((client) => [client.prepare(), client.prepare()]));
    assert.equal(text(await receive(await clients[1].consumer(patient))), 'kept');
  });

  promised('closing twice is harmless, and a closed broker refuses', async ({ open }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    const waiting = consumer.next(new AbortController().signal);
    await Promise.all([broker.close(), broker.close()]);
    await broker.close();
    await consumer.close();
    assert.equal(await waiting, null);
    await assert.rejects(publish(broker, 'late'), isFault(['unavailable']));
  });
}
