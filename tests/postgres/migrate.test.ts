/** The schema comes to be once, whoever asks for it and however many ask at the same time. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import { StartError } from '../../src/errors.ts';
import { appliedMigrations, migrate, ownMigrations, schemaProblem } from '../../src/postgres/migrate.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { createStore } from '../../src/postgres/store.ts';
import { onEnd } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { until } from '../support/until.ts';

const root = path.resolve(import.meta.dirname, '../..');
const all = readdirSync(path.join(root, 'src/postgres/migrations'))
  .filter((name) => name.endsWith('.sql'))
  .map((name) => name.replace('.sql', ''))
  .sort();

test('an empty database gets all migrations in order, a second run finds nothing to do', async (t) => {
  const { pool, url } = await freshDatabase(t, { empty: true });
  assert.deepEqual(await appliedMigrations(pool), []);
  assert.deepEqual(await migrate(url), all);
  assert.deepEqual(await migrate(url), []);
  assert.deepEqual(await appliedMigrations(pool), all);
  assert.deepEqual(ownMigrations, all);
});

/** `migrate` prepares the folder of the objects as well: not that of whoever runs the tests. */
async function temporaryFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-migrate-'));
  onEnd(t, () => rm(folder, { recursive: true }));
  return folder;
}

/** The advisory lock of node-pg-migrate. */
const lockId = '7241865325823964';

test('several processes that migrate at the same time all succeed, and one of them did it', async (t) => {
  const { pool, url } = await freshDatabase(t, { empty: true });
  const gate = await pool.connect();
  await gate.query(`select pg_advisory_lock(${lockId})`);
  const run = promisify(execFile);
  const env = { ...process.env, DATABASE_URL: url, DATA_DIR: await temporaryFolder(t) };
  const running = Promise.all(
    [1, 2, 3].map(() => run(process.execPath, ['src/main.ts', 'migrate'], { cwd: root, env })),
  );
  const allWait = until('all stand before the lock', async () => {
    const { rows } = await pool.query(`select count(*) as n from pg_locks where locktype = 'advisory' and not granted`);
    return rows[0].n === 3;
  });
  await Promise.race([allWait, running]).finally(() => gate.release(true));
  const words = (await running).map(({ stdout }) => stdout.split(' ')[0]).sort();
  assert.deepEqual(words, ['Applied', 'Nothing', 'Nothing']);
  const { rows } = await pool.query('select name from migrations order by id');
  assert.deepEqual(
    rows.map((row) => row.name),
    all,
  );
});

describe('a schema', () => {
  const later = (pool: Pool, name: string) =>
    pool.query(`insert into migrations (name, run_on) values ($1, now())`, [name]);
  const health = (pool: Pool) => createStore({ pool, signals: silentSignals }).health();

  test('of a newer build that only added to ours is as good as ours, and there is nothing to migrate', async (t) => {
    const { pool, url } = await freshDatabase(t);
    await pool.query('create table of_the_future (id int)');
    await pool.query('alter table jobs add column of_the_future int');
    await later(pool, '9999_future');
    assert.deepEqual(await migrate(url), []);
    assert.equal(await schemaProblem(pool), null);
    await health(pool);
    const run = await promisify(execFile)(process.execPath, ['src/main.ts', 'migrate'], {
      cwd: root,
      env: { ...process.env, DATABASE_URL: url, DATA_DIR: await temporaryFolder(t) },
    });
    assert.match(run.stdout, /^Nothing to do/);
  });

  test('that lacks a migration of this build is refused, also when its newest one is ours', async (t) => {
    const { pool } = await freshDatabase(t);
    await pool.query('delete from migrations where name = $1', [all[0]]);
    assert.match((await schemaProblem(pool)) ?? '', new RegExp(`lacks ${all[0]}, so run "npm run migrate"`));
    await assert.rejects(health(pool), { name: 'StoreError', fault: 'unavailable' });
  });

  test('from which a newer build took something away is refused with one sentence', async (t) => {
    const { pool, url } = await freshDatabase(t);
    await later(pool, '9998_future');
    await later(pool, '9999_contract_breaking');
    await assert.rejects(migrate(url), (error) => {
      assert.ok(error instanceof StartError);
      assert.match(
        error.message,
        /^The database cannot be used by this build: its schema has 9999_contract_breaking of a newer build, so .*\.$/,
      );
      return true;
    });
    await assert.rejects(health(pool), { name: 'StoreError', fault: 'unavailable' });
  });
});

const silentSignals = { announce: () => {}, listen: () => () => {}, close: async () => {} };

/** What takes something away from a build that knows nothing of it, or asks of it what it does not give. */
const takesAway =
  /\b(drop (table|column|view|function|type|schema)|rename (to|column)|(alter|add) column \S+( \S+)? (type|set not null|set data type)|truncate)\b/i;

describe('a migration', () => {
  for (const name of all.filter((each) => !each.endsWith('_breaking'))) {
    test(`only adds, so that builds before it go on: ${name}`, () => {
      const text = readFileSync(path.join(root, `src/postgres/migrations/${name}.sql`), 'utf8');
      const up = text.split('-- Down Migration')[0] ?? '';
      assert.doesNotMatch(up, takesAway);
      for (const [column] of up.matchAll(/add column [^,;]+/gi)) {
        assert.ok(!/not null/i.test(column) || /default/i.test(column), `older builds cannot fill it: ${column}`);
      }
    });
  }

  for (const statement of [
    'drop table jobs',
    'alter table jobs drop column turn',
    'alter table jobs rename column turn to place',
    'alter table jobs alter column turn type bigint',
    'alter table jobs alter column turn set not null',
  ]) {
    test(`that says "${statement}" is caught`, () => assert.match(statement, takesAway));
  }
});
