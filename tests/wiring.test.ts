/** Roles as processes wired as in production: what they wait for, how they are refused, how they drain. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import test from 'node:test';
import type { Point } from '../src/pipeline/ports.ts';
import { migrate } from '../src/postgres/migrate.ts';
import type { Role } from '../src/roles.ts';
import { register } from './support/client.ts';
import { onEnd } from './support/on-end.ts';
import { freshDatabase } from './support/postgres.ts';
import { type Action, startRole } from './support/role.ts';
import { startCommand } from './support/started.ts';
import { until } from './support/until.ts';

const photograph = await readFile(path.join(import.meta.dirname, 'fixtures/orientation/small_6.jpg'));

async function prepare(t: test.TestContext, { empty = false } = {}) {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'skrepka-wiring-'));
  onEnd(t, () => rm(dataDir, { recursive: true, force: true }));
  const { url: databaseUrl, pool } = await freshDatabase(t, { empty });
  const start = (
    roles: readonly Role[],
    points: Partial<Record<Point, Action>> = {},
    settings: Record<string, string> = {},
  ) => startRole(t, { roles, databaseUrl, dataDir, points, settings });
  const job = async () => (await pool.query('select * from jobs')).rows[0];
  return { dataDir, databaseUrl, pool, start, job };
}

const ready = async (url: string) => (await fetch(`${url}/health/ready`)).status;

test('an API without a schema lives but is not ready, and the other roles begin once the schema is there', async (t) => {
  const { databaseUrl, start } = await prepare(t, { empty: true });
  const all = await start(['api', 'relay', 'worker', 'janitor']);
  assert.equal((await fetch(`${all.url}/health/live`)).status, 200);
  assert.equal(await ready(all.url), 503);
  await until('it says what it waits for', () => all.output().includes('waiting until the database has a schema'));
  await migrate(databaseUrl);
  await until('it is ready', async () => (await ready(all.url)) === 200);
  const user = await register(() => all.url);
  const { id } = await user.upload(photograph);
  assert.equal((await user.until(id, 'ready')).state, 'ready');
  assert.equal(await all.stop(), 0);
});

test('a role whose port is in use is refused with one sentence and 1', async (t) => {
  const { dataDir, databaseUrl } = await prepare(t);
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  onEnd(t, () => taken.close());
  const address = taken.address();
  const PORT = String(typeof address === 'object' && address ? address.port : 0);
  const role = startCommand(t, ['api'], { DATABASE_URL: databaseUrl, DATA_DIR: dataDir, PORT });
  assert.equal((await role.ended).code, 1);
  assert.match(role.stderr(), new RegExp(`^skrepka: Port ${PORT} of 127\\.0\\.0\\.1 is in use: .*\\.\\n$`));
});

test('engines of a scheme that nobody drives are refused with one sentence and 1', async (t) => {
  const { dataDir, databaseUrl } = await prepare(t);
  for (const [name, value] of [
    ['BROKER_URL', 'carrier-pigeon://me:geheim@loft'],
    ['BLOBS_URL', 'ftp://me:geheim@host'],
  ] as const) {
    const role = startCommand(t, ['worker'], { DATABASE_URL: databaseUrl, DATA_DIR: dataDir, [name]: value });
    assert.equal((await role.ended).code, 1);
    assert.match(role.stderr(), new RegExp(`^skrepka: Expected .* for ${name}, received .*\\.\\n$`));
    assert.doesNotMatch(role.stderr(), /geheim/);
  }
});

test('a drain finishes the attempt that runs, takes no other, and leaves with 0', async (t) => {
  const { start, job, pool } = await prepare(t);
  const api = await start(['api', 'relay']);
  const worker = await start(['worker'], { 'worker.rendered': 'wait' });
  const user = await register(() => api.url);
  const { id } = await user.upload(photograph);
  await worker.reached('worker.rendered');
  process.kill(worker.pid, 'SIGTERM');
  await until('it drains', () => worker.output().includes('"stopping"'));
  await user.upload(photograph);
  await worker.resume('worker.rendered');
  assert.deepEqual(await worker.ended, { code: 0, signal: null });
  assert.equal((await user.attachment(id)).state, 'ready');
  const { rows } = await pool.query('select state from jobs order by id');
  assert.deepEqual(
    rows.map((row) => row.state),
    ['succeeded', 'queued'],
  );
  assert.equal((await job()).failures, 0);
});

for (const [what, grace] of [
  ['a second SIGTERM', '50s'],
  ['the end of the grace time', '500ms'],
] as const) {
  test(`${what} makes a drain give its claim back: nothing is spent, another worker goes on at once`, async (t) => {
    const { start, job } = await prepare(t);
    const api = await start(['api', 'relay']);
    const worker = await start(['worker'], { 'worker.rendered': 'wait' }, { DRAIN: grace, RELEASE_DELAY: '0s' });
    const user = await register(() => api.url);
    const { id } = await user.upload(photograph);
    await worker.reached('worker.rendered');
    process.kill(worker.pid, 'SIGTERM');
    await until('it drains', () => worker.output().includes('"stopping"'));
    await until('it hurries', () => {
      // Again and again: one that comes soon after the first is taken for its echo.
      if (grace === '50s') process.kill(worker.pid, 'SIGTERM');
      return worker.output().includes('giving up what runs');
    });
    await worker.resume('worker.rendered');
    assert.deepEqual(await worker.ended, { code: 0, signal: null });
    const { state, failures, crashes, releases } = await job();
    assert.deepEqual({ state, failures, crashes, releases }, { state: 'queued', failures: 0, crashes: 0, releases: 1 });
    const next = await start(['worker']);
    assert.equal((await user.until(id, 'ready')).state, 'ready');
    assert.equal(await next.stop(), 0);
  });
}
