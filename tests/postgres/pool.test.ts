/** What becomes of a fault on the way to PostgreSQL: which of the store's two faults it is, and that the process lives. */
import assert from 'node:assert/strict';
import test, { describe, it } from 'node:test';
import { StoreError } from '../../src/pipeline/store.ts';
import { createPool, listen, type Pool, single, transaction } from '../../src/postgres/pool.ts';
import { namedMax } from '../../src/postgres/statements.ts';
import { onEnd } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';

const isFault = (fault: StoreError['fault']) => (error: unknown) =>
  error instanceof StoreError && error.fault === fault;

/** A table with one row per write, and a pool that reaches it through a line that can be cut. */
async function prepare(t: test.TestContext) {
  const { pool, url } = await freshDatabase(t, { empty: true });
  await pool.query('create table notes (id int primary key)');
  const proxy = await startTcpProxy(t, url);
  const far = createPool({ url: proxy.url, max: 2, name: 'far', connectMs: 30_000 });
  onEnd(t, () => far.end());
  const ids = async () => (await pool.query('select id from notes order by id')).rows.map((row) => row.id);
  return { pool, proxy, far, ids };
}

const write = (pool: Pool, id: number) => single(pool, 'insert into notes values ($1)', [id], { writes: true });

test('a bigint is a number, and one beyond 2^53 rejects instead of losing digits', async (t) => {
  const { pool } = await freshDatabase(t, { empty: true });
  const { rows } = await pool.query(
    'select 9007199254740991::bigint as n, count(*) as many from generate_series(1, 3)',
  );
  assert.deepEqual(rows, [{ n: 9007199254740991, many: 3 }]);
  await assert.rejects(pool.query('select 9007199254740993::bigint'), RangeError);
  assert.equal((await pool.query('select 1 as one')).rows[0].one, 1);
});

test('a transaction commits what its work wrote, and rolls back with the very error that its work threw', async (t) => {
  const { far, ids } = await prepare(t);
  assert.equal(await transaction(far, async (db) => (await db.query('insert into notes values (1)')).rowCount), 1);
  const thrown = new Error('a guard did not hold');
  const work = transaction(far, async (db) => {
    await db.query('insert into notes values (2)');
    throw thrown;
  });
  await assert.rejects(work, (error) => error === thrown);
  assert.deepEqual(await ids(), [1]);
});

test('a violated constraint is passed on as it is, and the connection stays usable', async (t) => {
  const { far, ids } = await prepare(t);
  await write(far, 1);
  const again = (error: unknown) => (error as { code?: string }).code === '23505';
  await assert.rejects(write(far, 1), again);
  await assert.rejects(
    transaction(far, (db) => db.query('insert into notes values (1)')),
    again,
  );
  await write(far, 2);
  assert.deepEqual(await ids(), [1, 2]);
});

test('a COMMIT whose answer never comes is unknown, although it was done', async (t) => {
  const { far, proxy, ids } = await prepare(t);
  proxy.cutAfter('commit');
  await assert.rejects(
    transaction(far, (db) => db.query('insert into notes values (1)')),
    isFault('unknown'),
  );
  assert.deepEqual(await ids(), [1]);
});

test('a connection lost before the COMMIT is unavailable, and nothing was written', async (t) => {
  const { far, proxy, ids } = await prepare(t);
  proxy.cutAfter('insert');
  await assert.rejects(
    transaction(far, (db) => db.query('insert into notes values (1)')),
    isFault('unavailable'),
  );
  assert.deepEqual(await ids(), []);
});

test('a transaction whose session the server ends is unavailable, and the next one works', async (t) => {
  const { pool, far, ids } = await prepare(t);
  const work = transaction(far, async (db) => {
    const pid = (await db.query('select pg_backend_pid() as pid')).rows[0]?.pid;
    await pool.query('select pg_terminate_backend($1)', [pid]);
    await db.query('insert into notes values (1)');
  });
  await assert.rejects(work, isFault('unavailable'));
  await transaction(far, (db) => db.query('insert into notes values (2)'));
  assert.deepEqual(await ids(), [2]);
});

test('a transaction that swallowed a failed statement rejects instead of pretending that it committed', async (t) => {
  const { far, ids } = await prepare(t);
  const work = transaction(far, async (db) => {
    await db.query('insert into notes values (1)');
    await db.query('insert into notes values (1)').catch(() => {});
  });
  await assert.rejects(work, /Expected COMMIT for a transaction, received ROLLBACK/);
  assert.deepEqual(await ids(), []);
});

test('a single write whose answer never comes is unknown, a read is unavailable', async (t) => {
  const { far, proxy, ids } = await prepare(t);
  proxy.cutAfter('notes');
  await assert.rejects(write(far, 1), isFault('unknown'));
  await assert.rejects(single(far, 'select * from notes', [], { writes: false }), isFault('unavailable'));
  assert.deepEqual(await ids(), [1]);
});

test('a write that could not even be sent is unavailable: no server, and no connection free in time', async (t) => {
  const { far, proxy } = await prepare(t);
  const held = [await far.connect(), await far.connect()];
  // From now on: those two had all the time that they needed.
  assert.equal(far.options.connectionTimeoutMillis, 30_000);
  far.options.connectionTimeoutMillis = 1_000;
  await assert.rejects(write(far, 1), isFault('unavailable'));
  for (const client of held) client.release(true);
  proxy.refuse(true);
  await assert.rejects(write(far, 1), isFault('unavailable'));
  await assert.rejects(
    transaction(far, (db) => db.query('select 1')),
    isFault('unavailable'),
  );
});

test('a statement over its time, a full disk and a deadlock are unavailable: the statement is not to blame', async (t) => {
  const { url, pool } = await freshDatabase(t, { empty: true });
  await pool.query('create table notes (id int primary key, n int); insert into notes values (1, 0), (2, 0)');
  const hasty = createPool({ url, max: 1, name: 'hasty', statementMs: 12_000 });
  onEnd(t, () => hasty.end());
  assert.equal((await hasty.query('show statement_timeout')).rows[0].statement_timeout, '12s');
  // Of its one session alone: the client's own time-out, which cannot tell what became of a statement, is far away.
  await hasty.query(`set statement_timeout = '100ms'`);
  await assert.rejects(single(hasty, 'select pg_sleep(5)', [], { writes: true }), isFault('unavailable'));
  await hasty.query('set statement_timeout = 0');
  assert.equal((await hasty.query('select 1 as one')).rows[0].one, 1);

  const full = `do $$ begin raise exception using errcode = '53100'; end $$`;
  await assert.rejects(single(hasty, full, [], { writes: true }), isFault('unavailable'));

  const first = Promise.withResolvers<void>();
  const touch = 'update notes set n = n + 1 where id = $1';
  const crossing = (mine: number, other: number, ready: () => void, go: Promise<void>) =>
    transaction(pool, async (db) => {
      await db.query(touch, [mine]);
      ready();
      await go;
      await db.query(touch, [other]);
    });
  const second = Promise.withResolvers<void>();
  const both = await Promise.allSettled([
    crossing(1, 2, first.resolve, second.promise),
    crossing(2, 1, second.resolve, first.promise),
  ]);
  const lost = both.filter((result) => result.status === 'rejected');
  assert.equal(lost.length, 1);
  assert.ok(isFault('unavailable')(lost[0]?.reason));
});

test('idle connections that are lost neither end the process nor the pool', async (t) => {
  const { far, proxy } = await prepare(t);
  await far.query('select 1');
  proxy.cutAll();
  await until('the pool noticed', () => far.totalCount === 0);
  assert.equal((await far.query('select 1 as one')).rows[0].one, 1);
});

test('a listener hears, and after its connection was cut it listens again and says so', async (t) => {
  const { pool, proxy } = await prepare(t);
  const heard: string[] = [];
  const connected: boolean[] = [];
  const losses: Error[] = [];
  const listener = listen({
    url: proxy.url,
    name: 'listener',
    channels: ['news', 'Weather'],
    onMessage: (channel, payload) => heard.push(`${channel}:${payload}`),
    onConnected: (again) => connected.push(again),
    onLost: (error) => losses.push(error),
  });
  await until('it listens', () => connected.length === 1);
  await pool.query(`select pg_notify('news', 'one'), pg_notify('Weather', 'rain')`);
  await until('it heard', () => heard.length === 2);
  proxy.refuse(true);
  proxy.cutAll();
  await until('it tried in vain', () => losses.length >= 3);
  proxy.refuse(false);
  await until('it listens again', () => connected.length === 2);
  await pool.query(`select pg_notify('news', 'two')`);
  await until('it heard again', () => heard.length === 3);
  assert.deepEqual(heard, ['news:one', 'Weather:rain', 'news:two']);
  assert.deepEqual(connected, [false, true]);
  await listener.close();
  await until('its session is gone', async () => {
    const { rows } = await pool.query(`select count(*) as n from pg_stat_activity where application_name = 'listener'`);
    return rows[0].n === 0;
  });
});

test('a listener without a server closes at once', async () => {
  const losses: Error[] = [];
  const listener = listen({
    url: 'postgres://nobody@127.0.0.1:1/nothing',
    name: 'listener',
    channels: ['news'],
    onMessage: () => {},
    onLost: (error) => losses.push(error),
  });
  await until('it failed', () => losses.length > 0);
  await listener.close();
});

/** A pool of one session, a table of one column, and what the session has prepared. */
async function prepareOne(t: test.TestContext) {
  const { pool, url } = await freshDatabase(t, { empty: true });
  await pool.query('create table notes (id int primary key)');
  const one = createPool({ url, max: 1, name: 'one' });
  onEnd(t, () => one.end());
  const prepared = async () => {
    const { rows } = await one.query<{ statement: string }>('select statement from pg_prepared_statements');
    return rows.map(({ statement }) => statement);
  };
  const session = async () => (await one.query('select pg_backend_pid() as pid')).rows[0].pid;
  return { pool, one, prepared, session };
}

const add = 'insert into notes (id) values ($1) returning *';
const read = 'select * from notes where id >= $1';

describe('prepared statements', () => {
  it('are one a text and session, of statements and inside transactions alike; what has no values goes plain', async (t) => {
    const { one, prepared } = await prepareOne(t);
    for (const id of [1, 2]) {
      await single(one, add, [id], { writes: true });
      await transaction(one, (db) => db.query(add, [id + 2]));
    }
    await single(one, 'select 1; select 2', [], { writes: false });
    await single(one, read, [1], { writes: false, replan: true });
    assert.deepEqual(await prepared(), [add]);
  });

  it('repeat once what a migration made stale: a statement as well as a transaction, whose work is done once', async (t) => {
    const { pool, one, session, prepared } = await prepareOne(t);
    const work = (id: number) =>
      transaction(one, async (db) => {
        const { rows } = await db.query(add, [id]);
        return [...rows, ...(await db.query(read, [id])).rows];
      });
    await single(one, add, [1], { writes: true });
    await work(2);
    const old = await session();
    await pool.query(`alter table notes add column said text default 'new'`);
    assert.deepEqual((await single(one, add, [3], { writes: true })).rows, [{ id: 3, said: 'new' }]);
    assert.notEqual(await session(), old, 'the session with the old plans ended');
    assert.deepEqual(await work(4), Array(2).fill({ id: 4, said: 'new' }));
    assert.deepEqual((await prepared()).sort(), [add, read]);
    await pool.query(`alter table notes add column seen text default 'newer'`);
    assert.deepEqual(await work(5), Array(2).fill({ id: 5, said: 'new', seen: 'newer' }));
    assert.deepEqual(
      (await pool.query('select id from notes order by id')).rows.map(({ id }) => id),
      [1, 2, 3, 4, 5],
    );
  });

  it('repeat once what the session does not know, or has given its name away', async (t) => {
    const { one } = await prepareOne(t);
    await single(one, add, [1], { writes: true });
    await one.query('deallocate all');
    await single(one, add, [2], { writes: true });
    await single(one, add, [3], { writes: true });
    const { rows } = await one.query<{ name: string }>('select name from pg_prepared_statements');
    const name = rows[0]?.name ?? assert.fail();
    assert.match(name, /^skrepka_[0-9a-f]{16}$/);
    // A new session, of which the pool knows nothing yet.
    (await one.connect()).release(true);
    await one.query(`prepare ${name} as select 1`);
    await transaction(one, (db) => db.query(add, [4]));
    assert.equal((await one.query('select from notes')).rowCount, 4);
  });

  it('do not hide an error that the statement itself has, nor repeat it', async (t) => {
    const { one, session } = await prepareOne(t);
    const refused = (code: string) => (error: unknown) => (error as { code?: string }).code === code;
    const before = await session();
    let runs = 0;
    const unsupported = transaction(one, (db) => {
      runs += 1;
      return db.query(`select $1::int from notes full join notes as other on notes.id > other.id`, [1]);
    });
    await assert.rejects(unsupported, refused('0A000'));
    await assert.rejects(single(one, 'select from nothing where id = $1', [1], { writes: false }), refused('42P01'));
    assert.equal(runs, 1);
    assert.equal(await session(), before);
  });

  it('have a bound, beyond which texts work without a name', async (t) => {
    const { one, prepared } = await prepareOne(t);
    for (let n = 0; n < namedMax + 20; n += 1) {
      const { rows } = await single(one, `select $1::int + ${n} as sum`, [1], { writes: false });
      assert.deepEqual(rows, [{ sum: n + 1 }]);
    }
    assert.ok((await prepared()).length <= namedMax);
  });
});
