/** Broker suite, first half: what a message goes through, from its publishing to its end. */
import assert from 'node:assert/strict';
import { until } from '../support/until.ts';
import {
  isFault,
  nothing,
  type Promised,
  patient,
  publish,
  publishInTheEnd,
  publishMs,
  receive,
  text,
} from './broker-scene.ts';

export function publishing(promised: Promised): void {
  promised('a confirmed message is handed out to a consumer that comes later, its bytes exact', async ({ open }) => {
    const broker = await open();
    const body = Uint8Array.from({ length: 1024 }, (_, at) => (at * 7) % 256);
    await broker.publish('exact', body, { timeoutMs: publishMs });
    await broker.publish('empty', new Uint8Array(), { timeoutMs: publishMs });
    const consumer = await (await open()).consumer(patient);
    const bodies = [await receive(consumer), await receive(consumer)].map((delivery) => delivery.body);
    bodies.sort((one, other) => other.length - one.length);
    assert.deepEqual(
      bodies.map((one) => Uint8Array.from(one)),
      [body, new Uint8Array()],
    );
  });

  promised('an idle consumer has a message of another client within a moment', async ({ open }) => {
    const consumer = await (await open()).consumer(patient);
    const publisher = await open();
    const beside = await publisher.consumer(patient);
    const tookMs: number[] = [];
    for (const id of ['a', 'b', 'c', 'd', 'e']) {
      const waiting = receive(consumer).then((delivery) => ({ delivery, cameAt: performance.now() }));
      await nothing(beside, 50);
      await publish(publisher, id);
      // Writing it down is the disk's time, here and with the ack. A delivery may come before its confirmation.
      const confirmedAt = performance.now();
      const { delivery, cameAt } = await waiting;
      tookMs.push(Math.max(0, cameAt - confirmedAt));
      await delivery.ack();
    }
    // 0 to 15 ms on a quiet machine; the bound tells a wake-up from the next look of a sleeper, on any machine.
    const median = tookMs.sort((one, other) => one - other)[2] ?? Number.POSITIVE_INFINITY;
    assert.ok(median < 400, `expected deliveries within 400 ms, received them after ${tookMs.map(Math.round)} ms`);
  });

  promised('a message over 1 KiB is refused, and the next one is not', async ({ open }) => {
    const broker = await open();
    const large = broker.publish('large', new Uint8Array(1025), { timeoutMs: publishMs });
    await assert.rejects(large, isFault(['refused']));
    await publish(broker, 'small');
    assert.equal(text(await receive(await broker.consumer(patient))), 'small');
  });

  promised('publishing an id twice is harmless', async ({ open, traits }) => {
    const broker = await open();
    await Promise.all([publish(broker, 'same'), publish(broker, 'same')]);
    await publish(broker, 'same');
    const consumer = await broker.consumer(patient);
    const first = await receive(consumer);
    assert.equal(text(first), 'same');
    if (traits.dropsDuplicates) await nothing(consumer, 300);
    await first.ack();
    await publish(broker, 'other');
    await until('the other message comes', async () => {
      const next = await receive(consumer);
      await next.ack();
      return text(next) === 'other';
    });
  });

  promised('many publishes at once are each confirmed', async ({ open }) => {
    const broker = await open();
    const ids = Array.from({ length: 300 }, (_, at) => `many:${at}`);
    await Promise.all(ids.map((id) => publish(broker, id)));
    const { waiting } = await broker.depth();
    assert.equal(waiting, ids.length);
  });
}

export function ending(promised: Promised): void {
  promised('an acked message never comes again, also after a restart', async ({ open, harness, traits }) => {
    const broker = await open();
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs });
    await publish(broker, 'done');
    await (await receive(consumer)).ack();
    await nothing(consumer, traits.visibilityMs * 1.5);
    await harness.kill();
    await harness.start();
    await publishInTheEnd(broker, 'marker');
    assert.equal(text(await receive(consumer)), 'marker');
  });

  promised('ending a delivery twice is harmless', async ({ open }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    await publish(broker, 'twice');
    const delivery = await receive(consumer);
    await delivery.ack();
    await delivery.ack();
    await delivery.nak(0);
    await delivery.extend();
    await publish(broker, 'next');
    assert.equal(text(await receive(consumer)), 'next');
    await nothing(consumer, 300);
  });

  promised('an ack after the visibility ended does no harm', async ({ open, traits }) => {
    const broker = await open();
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs });
    await publish(broker, 'late');
    const first = await receive(consumer);
    const second = await receive(consumer);
    assert.equal(text(second), 'late');
    await first.ack();
    if (traits.fencesAcks) {
      // The successor gives it back, so it is still there.
      await second.nak(0);
      await (await receive(consumer)).ack();
    } else {
      await second.ack();
    }
    await nothing(consumer, traits.visibilityMs * 1.5);
  });

  promised('a nak with a delay keeps the message away for that long, and no longer', async ({ open }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    await publish(broker, 'later');
    const delivery = await receive(consumer);
    const startedAt = performance.now();
    await delivery.nak(1_500);
    await nothing(consumer, 1_000 - (performance.now() - startedAt));
    assert.equal(text(await receive(consumer)), 'later');
    assert.ok(performance.now() - startedAt >= 1_450, 'it came before its delay was over');
  });

  promised('a nak without delay brings the message back at once', async ({ open }) => {
    const broker = await open();
    const [one, other] = [await broker.consumer(patient), await (await open()).consumer(patient)];
    await publish(broker, 'back');
    const delivery = await receive(one);
    const waiting = receive(other);
    await delivery.nak(0);
    assert.equal(text(await waiting), 'back');
  });

  promised('the count of deliveries starts at 1 and grows', async ({ open, traits }) => {
    const broker = await open();
    const consumer = await broker.consumer(patient);
    await publish(broker, 'counted');
    const counts: number[] = [];
    for (let round = 0; round < 3; round += 1) {
      const delivery = await receive(consumer);
      counts.push(delivery.deliveries);
      await delivery.nak(0);
    }
    if (traits.countsDeliveries) assert.deepEqual(counts, [1, 2, 3]);
    else assert.ok(counts.every((count) => count >= 1));
  });
}

export function visibility(promised: Promised): void {
  promised('what was not ended comes again after its visibility, not before', async ({ open, traits }) => {
    const broker = await open();
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs });
    await publish(broker, 'again');
    const before = performance.now();
    await receive(consumer);
    assert.equal(text(await receive(consumer)), 'again');
    const awayMs = performance.now() - before;
    assert.ok(awayMs >= traits.visibilityMs * 0.95, `it came again after ${awayMs} ms`);
  });

  promised('extending keeps the message away; the last extension ends as well', async ({ open, traits }) => {
    const broker = await open();
    const { extendedMs: visibilityMs = traits.visibilityMs } = traits;
    const options = { prefetch: 0, visibilityMs };
    const consumer = await broker.consumer(options);
    const other = await (await open()).consumer(options);
    await publish(broker, 'held');
    const delivery = await receive(consumer);
    let before = 0;
    for (let round = 0; round < 6; round += 1) {
      await nothing(other, visibilityMs * 0.4);
      // Before the call: its answer may be late. Without the last extension the message comes 0.6 of the visibility after this.
      before = performance.now();
      await delivery.extend();
    }
    assert.equal(text(await receive(other)), 'held');
    assert.ok(performance.now() - before >= visibilityMs * 0.8, 'the last extension did not count');
  });

  promised('an extension of an acked delivery brings nothing back', async ({ open, traits }) => {
    const broker = await open();
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs });
    await publish(broker, 'over');
    const delivery = await receive(consumer);
    await delivery.ack();
    await delivery.extend();
    await nothing(consumer, traits.visibilityMs * 1.5);
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 0 });
  });

  promised('the message of a consumer whose process was killed comes again', async ({ open, harness, traits }) => {
    const broker = await open();
    await publish(broker, 'orphan');
    await harness.takeAndDie(traits.visibilityMs);
    // The same visibility as the dead one had: some brokers keep one for all consumers, the last that was asked for.
    const heir = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs });
    assert.equal(text(await receive(heir)), 'orphan');
  });

  promised('the message of a consumer whose connection was cut is not lost', async ({ open, harness, traits }) => {
    const broker = await open();
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: traits.visibilityMs });
    await publish(broker, 'cut');
    await receive(consumer);
    await harness.cut();
    assert.equal(text(await receive(consumer)), 'cut');
  });
}
