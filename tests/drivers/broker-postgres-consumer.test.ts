/** The consumers of the broker `postgres:`: when they wake, what they hold ahead, and what they leave behind. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { createConsumer, createLoop } from '../../src/drivers/broker-postgres-consumer.ts';
import type { Queue } from '../../src/drivers/broker-postgres-queue.ts';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import { nothing, patient, publish, receive, text } from '../contract/broker-scene.ts';
import { emptyDatabase, openObserved, openSleeper } from '../support/broker-observed.ts';
import type { TestDatabase } from '../support/postgres.ts';
import { until } from '../support/until.ts';

test('a sleeping consumer wakes for a message whose visibility ends before the backstop', async (t) => {
  const { broker, consumer, asleep } = await openSleeper(t, await emptyDatabase(t));
  await publish(broker, 'silent');
  await receive(consumer);
  const { waiting } = await asleep();
  assert.equal((await waiting).deliveries, 2);
});

test('a sleeping consumer wakes for what its own process gave back with a delay', async (t) => {
  const database = await emptyDatabase(t);
  const { broker, asleep } = await openSleeper(t, database);
  await publish(broker, 'delayed');
  const delivery = await receive(await broker.consumer({ prefetch: 0, visibilityMs: 100_000 }));
  const { waiting } = await asleep();
  await delivery.nak(300);
  assert.equal((await waiting).deliveries, 2);
});

test('a sleeping consumer wakes for what another process gives back', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await openObserved(t, database);
  await publish(broker, 'back');
  const delivery = await receive(await broker.consumer(patient));
  const { waiting } = await (await openSleeper(t, database)).asleep();
  await delivery.nak(0);
  assert.equal(text(await waiting), 'back');
});

test('a sleeping consumer wakes for what another process prefetched and gives back when it closes', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await openObserved(t, database);
  for (const id of ['in hand', 'ahead']) await publish(broker, id);
  const consumer = await broker.consumer({ prefetch: 1, visibilityMs: 100_000 });
  await receive(consumer);
  await until('the prefetch is full', async () => (await broker.depth()).inFlight === 2);
  const { waiting } = await (await openSleeper(t, database)).asleep();
  await consumer.close();
  assert.ok(await waiting);
});

test('a consumer sleeps longer the longer nothing comes, up to four times the backstop, and not after a message', async () => {
  const sleeps: number[] = [];
  const done = Promise.withResolvers<void>();
  const message = { id: '1', token: 't', body: Buffer.from('m'), deliveries: 1 };
  let takes = 0;
  const queue = {
    async take() {
      takes += 1;
      return { taken: takes === 6 ? [message] : [], nextMs: null };
    },
  };
  const clock = {
    monotonicMs: () => 0,
    async sleep(ms: number) {
      sleeps.push(ms);
      if (sleeps.length < 7) return;
      done.resolve();
      await new Promise(() => {});
    },
  };
  const bell = { ring() {}, ringHere() {}, onRing: () => () => {} };
  const deps = { queue: queue as unknown as Queue, bell, clock, backstopMs: 1000 };
  const consumer = createConsumer(deps, { prefetch: 0, visibilityMs: 60_000 });
  const { signal } = new AbortController();
  await consumer.next(signal);
  void consumer.next(signal);
  await done.promise;
  assert.deepEqual(sleeps, [1000, 2000, 4000, 4000, 4000, 1000, 2000]);
});

test('a ring during an empty take is not slept through', async (t) => {
  const database = await emptyDatabase(t);
  const publisher = (await openObserved(t, database)).broker;
  const listening = Promise.withResolvers<void>();
  const heard = Promise.withResolvers<void>();
  let between = true;
  const { broker } = await openObserved(t, database, {
    backstopMs: 60_000,
    listening: listening.resolve,
    heard: heard.resolve,
    // After the answer "nothing is there" and before the sleep: a message is stored, and its ring comes.
    async answered(statement) {
      if (!between || !statement.includes('skip locked')) return;
      between = false;
      await publish(publisher, 'between');
      await heard.promise;
    },
  });
  const consumer = await broker.consumer(patient);
  await listening.promise;
  assert.equal(text(await receive(consumer)), 'between');
});

/** A consumer that has one delivery in hand and one prefetched, and the passing of `ms` for both sides. */
async function withPrefetched(t: TestContext, database: TestDatabase) {
  let laterMs = 0;
  const clock = { ...createSystemClock(), monotonicMs: () => performance.now() + laterMs };
  const { broker } = await openObserved(t, database, { clock });
  for (const id of ['one', 'other']) await publish(broker, id);
  const consumer = await broker.consumer({ prefetch: 1, visibilityMs: 100_000 });
  await (await receive(consumer)).ack();
  await until('the prefetch is full', async () => (await broker.depth()).inFlight === 1);
  const pass = async (ms: number) => {
    laterMs += ms;
    await database.pool.query(
      `update skrepka_broker.messages set visible_at = visible_at - $1 * interval '1 millisecond'`,
      [ms],
    );
  };
  return { consumer, pass };
}

test('a prefetched delivery whose visibility is nearly over is taken anew before it is handed out', async (t) => {
  const database = await emptyDatabase(t);
  const { consumer, pass } = await withPrefetched(t, database);
  await pass(90_000);
  const delivery = await receive(consumer);
  assert.equal(delivery.deliveries, 1);
  const { rows } = await database.pool.query(
    `select visible_at > now() + interval '50 seconds' as fresh from skrepka_broker.messages`,
  );
  assert.deepEqual(rows, [{ fresh: true }]);
});

test('a prefetched delivery whose visibility is over belongs to whoever took it since', async (t) => {
  const database = await emptyDatabase(t);
  const { consumer, pass } = await withPrefetched(t, database);
  await pass(100_000);
  const successor = await receive(await (await openObserved(t, database)).broker.consumer(patient));
  assert.equal(successor.deliveries, 2);
  await nothing(consumer, 300);
});

test('a consumer that closes during a take gives all of it back, also what it would have held ahead', async (t) => {
  const database = await emptyDatabase(t);
  const publisher = (await openObserved(t, database)).broker;
  for (const id of ['x', 'y', 'z']) await publish(publisher, id);
  let closing: Promise<void> | null = null;
  const { broker } = await openObserved(t, database, {
    async answered(statement) {
      if (statement.includes('skip locked')) closing ??= consumer.close();
    },
  });
  const consumer = await broker.consumer({ prefetch: 2, visibilityMs: 100_000 });
  assert.equal(await consumer.next(new AbortController().signal), null);
  await closing;
  assert.deepEqual(await publisher.depth(), { waiting: 3, inFlight: 0 });
});

test('what is asked for between the last look of a loop and its end is done as well', async () => {
  const runs: string[] = [];
  let more = false;
  const loop = createLoop(
    async () => {
      runs.push('run');
      more = false;
      if (runs.length > 1) return;
      queueMicrotask(() => {
        more = true;
        loop.start();
      });
    },
    () => more,
  );
  loop.start();
  await until('the second run', () => runs.length === 2);
});
