/** The schema comes to be once, whoever asks for it and however many ask at the same time. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import { StartError } from '../../src/errors.ts';
import { expectedVersion, migrate, schemaVersion } from '../../src/postgres/migrate.ts';
import { freshDatabase } from '../support/postgres.ts';
import { until } from '../support/until.ts';

const root = path.resolve(import.meta.dirname, '../..');
const all = readdirSync(path.join(root, 'src/postgres/migrations'))
  .filter((name) => name.endsWith('.sql'))
  .map((name) => name.replace('.sql', ''))
  .sort();

test('an empty database gets all migrations in order, a second run finds nothing to do', async (t) => {
  const { pool, url } = await freshDatabase(t, { empty: true });
  assert.equal(await schemaVersion(pool), null);
  assert.deepEqual(await migrate(url), all);
  assert.deepEqual(await migrate(url), []);
  assert.equal(await schemaVersion(pool), expectedVersion());
  assert.equal(expectedVersion(), all.at(-1));
});

/** The advisory lock of node-pg-migrate. */
const lockId = '7241865325823964';

test('several processes that migrate at the same time all succeed, and one of them did it', async (t) => {
  const { pool, url } = await freshDatabase(t, { empty: true });
  const gate = await pool.connect();
  await gate.query(`select pg_advisory_lock(${lockId})`);
  const run = promisify(execFile);
  const env = { ...process.env, DATABASE_URL: url };
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

test('a database of a newer build is refused with one sentence', async (t) => {
  const { pool, url } = await freshDatabase(t);
  await pool.query(`insert into migrations (name, run_on) values ('9999_future', now())`);
  await assert.rejects(migrate(url), (error) => {
    assert.ok(error instanceof StartError);
    assert.match(error.message, /^The database has schema 9999_future, newer than \S+ of this build: .*\.$/);
    return true;
  });
});
