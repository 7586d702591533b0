/** What the broker `postgres:` promises beyond the port: its tables, its statements, and how little it does when idle. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import { connect } from '../../src/postgres/pool.ts';
import { disruption, isFault, nothing, patient, publish, receive, text } from '../contract/broker-scene.ts';
import { emptyDatabase, openObserved } from '../support/broker-observed.ts';
import type { TestDatabase } from '../support/postgres.ts';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';

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
  const all = await Promise.all(Array.from({ length: 8 }, () => openObserved(t, database)));
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
  const { broker } = await openObserved(t, database);
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
  await assert.rejects(openObserved(t, database), {
    fault: 'refused',
    message: /^Expected a table skrepka_broker.messages \(/,
  });
  const { rows } = await database.pool.query("select to_regclass('skrepka_broker.about') as about");
  assert.deepEqual(rows, [{ about: null }]);
});

test('prepare needs no right to create what is there already', async (t) => {
  const database = await emptyDatabase(t);
  await openObserved(t, database);
  const { statements, broker } = await openObserved(t, database);
  await broker.prepare();
  assert.ok(statements.every((statement) => !statement.includes('create')));
});

test('a truncated queue is reported as a disruption', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await openObserved(t, database);
  await publish(broker, 'gone');
  const { happened } = disruption(broker);
  await database.pool.query('truncate skrepka_broker.messages');
  await happened;
  await publish(broker, 'new');
  assert.equal(text(await receive(await broker.consumer(patient))), 'new');
});

test('a table that was dropped alone is made anew', async (t) => {
  const database = await emptyDatabase(t);
  const { broker } = await openObserved(t, database);
  await database.pool.query('drop table skrepka_broker.messages');
  await publish(broker, 'new');
  await database.pool.query('drop table skrepka_broker.about');
  assert.equal(text(await receive(await broker.consumer(patient))), 'new');
});

test('a queue that is dropped between its making and its use is unavailable, not a refusal', async (t) => {
  const { broker } = await openObserved(t, await emptyDatabase(t), {
    async answered(statement) {
      const stored = statement.includes('insert into skrepka_broker.messages');
      if (stored) throw Object.assign(new Error('relation does not exist'), { code: '42P01' });
    },
  });
  await assert.rejects(publish(broker, 'nowhere'), isFault(['unavailable']));
});

test('an idle consumer asks about once a second, also while messages are out or locked', async (t) => {
  const database = await emptyDatabase(t);
  const { broker, statements } = await openObserved(t, database);
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
  const [publisher, worker] = [(await openObserved(t, database)).broker, (await openObserved(t, database)).broker];
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

test('a burst is stored by few inserts and announced by few statements, apart from them', async (t) => {
  const database = await emptyDatabase(t);
  const { broker, statements } = await openObserved(t, database);
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
  const { broker, statements } = await openObserved(t, await emptyDatabase(t), { clock });
  const notifies = () => statements.filter((statement) => statement.includes('pg_notify')).length;
  for (let at = 0; at < 10; at += 1) await publish(broker, `within:${at}`);
  assert.equal(notifies(), 1);
  moment.resolve();
  await until('those that came meanwhile are announced', () => notifies() === 2);
});

test('all consumers of a process share one listening connection', async (t) => {
  const { broker, listens } = await openObserved(t, await emptyDatabase(t));
  for (let at = 0; at < 5; at += 1) await broker.consumer(patient);
  broker.onDisrupted(() => {});
  assert.equal(listens(), 1);
});

test('a publish without an answer rejects unknown in time, and holds up nobody who comes later', async (t) => {
  const database = await emptyDatabase(t);
  const { broker, statements } = await openObserved(t, database);
  const release = await holding(t, database, 'lock table skrepka_broker.messages in access exclusive mode');
  const stuck = () => broker.publish('stuck', new Uint8Array(1), { timeoutMs: 300 });
  await within('the publish ended', 2_000, () => assert.rejects(stuck, isFault(['unknown'])));
  const later = publish(broker, 'later');
  const inserts = () => statements.filter((statement) => statement.includes('insert into skrepka_broker.messages'));
  await until('the later one is on its way', () => inserts().length === 2);
  await release();
  await later;
  // What was unknown came to be after all.
  await until('both are there', async () => (await broker.depth()).waiting === 2);
});

test('an id that PostgreSQL cannot hold is refused without harm to its neighbours', async (t) => {
  const { broker } = await openObserved(t, await emptyDatabase(t));
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
  const { broker } = await openObserved(t, database);
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
