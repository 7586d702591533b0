/** What the broker `postgres:` promises beyond the port: its tables, its statements, and how little it does when idle. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type BrokerSql, createPostgresBroker } from '../../src/drivers/broker-postgres.ts';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import type { Broker, Clock } from '../../src/pipeline/ports.ts';
import { connect } from '../../src/postgres/pool.ts';
import { disruption, isFault, nothing, patient, publish, receive, text, until } from '../contract/broker-scene.ts';
import { openBrokerSql } from '../support/broker-sql.ts';
import { freshDatabase, type TestDatabase } from '../support/postgres.ts';

interface Observed {
  readonly broker: Broker;
  /** Statements sent so far. */
  readonly statements: string[];
  readonly listens: () => number;
}

interface Wishes {
  readonly backstopMs?: number;
  readonly clock?: Clock;
  /** Called when a statement has its answer, before the broker has it. */
  readonly answered?: (statement: string) => Promise<void>;
  /** Called when the broker has listened for the first time, and after each ring that it heard. */
  readonly listening?: () => void;
  readonly heard?: () => void;
}

/** A prepared broker on `database`, whose statements are counted. */
async function open(t: TestContext, database: TestDatabase, wishes: Wishes = {}): Promise<Observed> {
  const sql = openBrokerSql(database.url);
  const statements: string[] = [];
  let listens = 0;
  const observed: BrokerSql = {
    async query<Row extends Record<string, unknown>>(statement: string, values: readonly unknown[]) {
      statements.push(statement);
      const answer = await sql.query<Row>(statement, values);
      await wishes.answered?.(statement);
      return answer;
    },
    listen(channel, on) {
      listens += 1;
      return sql.listen(channel, {
        ...on,
        connected(again) {
          on.connected(again);
          wishes.listening?.();
        },
        heard() {
          on.heard();
          wishes.heard?.();
        },
      });
    },
    close: sql.close,
  };
  const broker = createPostgresBroker({ sql: observed, clock: wishes.clock }, { backstopMs: wishes.backstopMs });
  t.after(() => broker.close());
  await broker.prepare();
  return { broker, statements, listens: () => listens };
}

const emptyDatabase = (t: TestContext) => freshDatabase(t, { empty: true });

/** Holds locks in a session of its own until the test ends, or until the answer is called. */
async function holding(t: TestContext, database: TestDatabase, statement: string): Promise<() => Promise<void>> {
  const client = await connect({ url: database.url, name: 'tests' });
  let open = true;
  const release = async () => {
    if (open) await client.end();
    open = false;
  };
  t.after(release);
  await client.query('begin');
  await client.query(statement);
  return release;
}

test('many processes may prepare at once on an empty database', async (t) => {
  const database = await emptyDatabase(t);
  const all = await Promise.all(Array.from({ length: 8 }, () => open(t, database)));
  // Connected already, they meet in the catalogue.
  for (let round = 0; round < 5; round += 1) {
    await database.pool.query('drop schema skrepka_broker cascade');
    await Promise.all(all.map(({ broker }) => broker.prepare()));
  }
  const { rows } = await database.pool.query('select version from skrepka_broker.about');
  assert.deepEqual(rows, [{ version: 1 }]);
});

test('prepare refuses a queue of another version with one sentence', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await open(t, database);
  await database.pool.query('update skrepka_broker.about set version = 7');
  await assert.rejects(broker.prepare(), {
    name: 'BrokerError',
    fault: 'refused',
    message: /^Expected version 1 of the queue skrepka_broker, received 7; drop that schema/,
  });
});

test('prepare refuses a foreign table in its place and leaves everything as it was', async (t) => {
  const database = await emptyDatabase(t);
  await database.pool.query('create schema skrepka_broker; create table skrepka_broker.messages (id int)');
  await assert.rejects(open(t, database), {
    fault: 'refused',
    message: /^Expected a table skrepka_broker.messages \(/,
  });
  const { rows } = await database.pool.query("select to_regclass('skrepka_broker.about') as about");
  assert.deepEqual(rows, [{ about: null }]);
});

test('prepare needs no right to create what is there already', async (t) => {
  const database = await emptyDatabase(t);
  await open(t, database);
  const { statements, broker } = await open(t, database);
  await broker.prepare();
  assert.ok(statements.every((statement) => !statement.includes('create')));
});

test('a truncated queue is reported as a disruption', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await open(t, database);
  await publish(broker, 'gone');
  const { happened } = disruption(broker);
  await database.pool.query('truncate skrepka_broker.messages');
  await happened;
  await publish(broker, 'new');
  assert.equal(text(await receive(await broker.consumer(patient))), 'new');
});

test('a table that was dropped alone is made anew', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await open(t, database);
  await database.pool.query('drop table skrepka_broker.messages');
  await publish(broker, 'new');
  await database.pool.query('drop table skrepka_broker.about');
  assert.equal(text(await receive(await broker.consumer(patient))), 'new');
});

test('an idle consumer asks about once a second, also while messages are out or locked', async (t) => {
  const database = await emptyDatabase(t);
  const { broker, statements } = await open(t, database);
  for (const id of ['out', 'locked']) await publish(broker, id);
  const consumer = await broker.consumer(patient);
  const out = text(await receive(consumer));
  await holding(t, database, `select from skrepka_broker.messages where id <> '${out}' for update`);
  const before = statements.length;
  await nothing(consumer, 3_000);
  const sent = statements.length - before;
  assert.ok(sent >= 2 && sent <= 7, `expected 2 to 7 statements in 3 s, received ${sent}`);
});

test('a queue that is dropped again and again under traffic ends nobody', async (t) => {
  const database = await emptyDatabase(t);
  const [publisher, worker] = [(await open(t, database)).broker, (await open(t, database)).broker];
  const enough = new AbortController();
  const seen: (string | null)[] = [];
  const consuming = (async () => {
    const consumer = await worker.consumer(patient);
    for (let one = await consumer.next(enough.signal); one; one = await consumer.next(enough.signal)) {
      seen.push(text(one));
      await one.ack().catch((error) => assert.ok(isFault(['unavailable', 'unknown'])(error), String(error)));
    }
  })();
  for (let round = 0; round < 15; round += 1) {
    const publishing = Promise.allSettled(Array.from({ length: 20 }, (_, at) => publish(publisher, `${round}:${at}`)));
    // A drop that loses a deadlock against the traffic is as good as none.
    await database.pool.query('drop schema if exists skrepka_broker cascade').catch(() => {});
    for (const one of await publishing) {
      if (one.status === 'rejected') assert.ok(isFault(['unavailable', 'unknown'])(one.reason), String(one.reason));
    }
  }
  await publish(publisher, 'last');
  await until('the last one comes', () => seen.includes('last'));
  enough.abort();
  await consuming;
});

/** A broker whose consumers would sleep for a minute, and how to await that a take of theirs found nothing. */
async function openSleeper(t: TestContext, database: TestDatabase) {
  const listening = Promise.withResolvers<void>();
  let takes = 0;
  const { broker } = await open(t, database, {
    backstopMs: 60_000,
    listening: listening.resolve,
    async answered(statement) {
      if (statement.includes('skip locked')) takes += 1;
    },
  });
  const consumer = await broker.consumer({ prefetch: 0, visibilityMs: 700 });
  // The first LISTEN wakes as well.
  await listening.promise;
  const asleep = async () => {
    const before = takes;
    const waiting = receive(consumer);
    await until('it has looked', () => takes > before);
    return { waiting };
  };
  return { broker, consumer, asleep };
}

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
  const { broker } = await open(t, database);
  await publish(broker, 'back');
  const delivery = await receive(await broker.consumer(patient));
  const { waiting } = await (await openSleeper(t, database)).asleep();
  await delivery.nak(0);
  assert.equal(text(await waiting), 'back');
});

test('a sleeping consumer wakes for what another process prefetched and gives back when it closes', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await open(t, database);
  for (const id of ['in hand', 'ahead']) await publish(broker, id);
  const consumer = await broker.consumer({ prefetch: 1, visibilityMs: 100_000 });
  await receive(consumer);
  await until('the prefetch is full', async () => (await broker.depth()).inFlight === 2);
  const { waiting } = await (await openSleeper(t, database)).asleep();
  await consumer.close();
  assert.ok(await waiting);
});

test('a ring during an empty take is not slept through', async (t) => {
  const database = await emptyDatabase(t);
  const publisher = (await open(t, database)).broker;
  const listening = Promise.withResolvers<void>();
  const heard = Promise.withResolvers<void>();
  let between = true;
  const { broker } = await open(t, database, {
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

test('a burst is stored by few inserts and announced by few statements, apart from them', async (t) => {
  const database = await emptyDatabase(t);
  const { broker, statements } = await open(t, database);
  const before = statements.length;
  await Promise.all(Array.from({ length: 300 }, (_, at) => publish(broker, `burst:${at}`)));
  await broker.close();
  const sent = statements.slice(before);
  const notifies = sent.filter((statement) => statement.includes('pg_notify'));
  const inserts = sent.filter((statement) => statement.includes('insert into'));
  assert.ok(inserts.length <= 3, `${inserts.length} inserts`);
  assert.ok(notifies.length >= 1 && notifies.length <= 3, `${notifies.length} announcements`);
  assert.ok(notifies.every((statement) => !inserts.includes(statement)));
});

test('messages published one after another within a moment share an announcement', async (t) => {
  const moment = Promise.withResolvers<void>();
  const clock = { ...createSystemClock(), sleep: () => moment.promise };
  const { broker, statements } = await open(t, await emptyDatabase(t), { clock });
  const notifies = () => statements.filter((statement) => statement.includes('pg_notify')).length;
  for (let at = 0; at < 10; at += 1) await publish(broker, `within:${at}`);
  assert.equal(notifies(), 1);
  moment.resolve();
  await until('those that came meanwhile are announced', () => notifies() === 2);
});

test('all consumers of a process share one listening connection', async (t) => {
  const { broker, listens } = await open(t, await emptyDatabase(t));
  for (let at = 0; at < 5; at += 1) await broker.consumer(patient);
  broker.onDisrupted(() => {});
  assert.equal(listens(), 1);
});

test('a publish without an answer rejects unknown in time, and holds up nobody who comes later', async (t) => {
  const database = await emptyDatabase(t);
  const { broker, statements } = await open(t, database);
  const release = await holding(t, database, 'lock table skrepka_broker.messages in access exclusive mode');
  const startedAt = performance.now();
  const stuck = broker.publish('stuck', new Uint8Array(1), { timeoutMs: 300 });
  await assert.rejects(stuck, isFault(['unknown']));
  assert.ok(performance.now() - startedAt < 2_000, 'the time-out did not hold');
  const later = publish(broker, 'later');
  const inserts = () => statements.filter((statement) => statement.includes('insert into skrepka_broker.messages'));
  await until('the later one is on its way', () => inserts().length === 2);
  await release();
  await later;
  // What was unknown came to be after all.
  await until('both are there', async () => (await broker.depth()).waiting === 2);
});

test('an id that PostgreSQL cannot hold is refused without harm to its neighbours', async (t) => {
  const { broker } = await open(t, await emptyDatabase(t));
  const [refused, long, good] = await Promise.allSettled([
    broker.publish('nul\0', new Uint8Array(1), { timeoutMs: 1_000 }),
    broker.publish('x'.repeat(201), new Uint8Array(1), { timeoutMs: 1_000 }),
    publish(broker, 'good'),
  ]);
  assert.equal(refused.status === 'rejected' && isFault(['refused'])(refused.reason), true);
  assert.equal(long.status === 'rejected' && isFault(['refused'])(long.reason), true);
  assert.equal(good.status, 'fulfilled');
});

test('an earlier delivery ends, extends and gives back nothing of its successor', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await open(t, database);
  await publish(broker, 'passed on');
  const consumer = await broker.consumer(patient);
  const earlier = await receive(consumer);
  await database.pool.query('update skrepka_broker.messages set visible_at = now()');
  assert.equal((await receive(consumer)).deliveries, 2);
  const row = () => database.pool.query('select * from skrepka_broker.messages').then(({ rows }) => rows);
  const before = await row();
  await earlier.extend();
  await earlier.nak(0);
  await earlier.ack();
  assert.deepEqual(await row(), before);
});

/** A consumer that has one delivery in hand and one prefetched, and the passing of `ms` for both sides. */
async function withPrefetched(t: TestContext, database: TestDatabase) {
  let laterMs = 0;
  const clock = { ...createSystemClock(), monotonicMs: () => performance.now() + laterMs };
  const { broker } = await open(t, database, { clock });
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
  const successor = await receive(await (await open(t, database)).broker.consumer(patient));
  assert.equal(successor.deliveries, 2);
  await nothing(consumer, 300);
});
