/** `skrepka start` with real processes: from an empty folder, to the end, and again after every way to die. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { createServer } from 'node:net';
import path from 'node:path';
import test from 'node:test';
import { freePort } from '../scripts/free-port.ts';
import { skrepka } from './support/command.ts';
import { onEnd } from './support/on-end.ts';
import { freshDatabase } from './support/postgres.ts';
import { commandOf, isAlive, type Started } from './support/started.ts';
import { childWith, isReady, linesOf, post, prepare, sendText } from './support/supervised.ts';
import { until } from './support/until.ts';

async function assertAllGone(pids: readonly number[]): Promise<void> {
  await until('all its processes are gone', () => pids.every((pid) => !isAlive(pid)));
}

async function assertRefused(started: Started, sentence: RegExp): Promise<void> {
  const { code } = await started.ended;
  assert.equal(code, 1);
  const lines = started.stderr().trim().split('\n');
  assert.equal(lines.length, 1, started.stderr());
  assert.match(lines[0] ?? '', sentence);
}

test('from an empty folder it becomes ready, shows the operator once, ends all on Ctrl-C, and goes on with its data', async (t) => {
  const { dataDir, start } = await prepare(t);
  const first = start();
  const url = await first.ready();
  const password = /password {2}(\S+)/.exec(first.stdout())?.[1] ?? '';
  const operator = { handle: 'operator', password };
  const session = await post(`${url}/v1/sessions`, operator);
  assert.equal(session.status, 201);
  const { status, body } = await post(`${url}/v1/users`, { handle: 'somebody', password: 'long enough 1' });
  assert.equal(status, 201);
  // What it is ready for, without a second try.
  assert.equal((await sendText(url, body.token, 'a')).status, 202);
  const family = first.family();
  assert.ok(family.some((pid) => commandOf(pid).includes('postgres')));
  assert.equal(await first.ctrlC(), 0);
  await assertAllGone(family);
  // The terminal's SIGINT reached the supervisor alone, which ended the others one by one.
  const told = linesOf(first).filter(({ text }) => text === 'stopping' || text === 'stopped');
  assert.deepEqual(
    told.map(({ service, text, reason }) => [service, text, reason].filter(Boolean).join(' ')),
    [
      'start stopping SIGINT',
      'worker stopping SIGTERM',
      'worker stopped',
      'api,relay,janitor stopping SIGTERM',
      'api,relay,janitor stopped',
      'start stopped',
    ],
  );

  const second = start();
  const again = await second.ready();
  assert.equal((await post(`${again}/v1/sessions`, { handle: 'somebody', password: 'long enough 1' })).status, 201);
  assert.equal((await post(`${again}/v1/sessions`, operator)).status, 201);
  assert.doesNotMatch(second.stdout(), /operator|password/);
  // npm passes on what the terminal has sent already: one key, two signals.
  void second.ctrlC();
  assert.equal(await second.ctrlC(), 0);
  assert.ok(!linesOf(second).some(({ text }) => text === 'giving up what runs'));
  for (const name of await readdir(dataDir, { recursive: true })) {
    if (!/\.(log|json|txt)$/.test(name)) continue;
    assert.ok(!(await readFile(path.join(dataDir, name), 'utf8')).includes(password), name);
  }
  assert.ok(!(await readdir(dataDir)).includes('lock'));
});

test('a second Ctrl-C, later than an echo of the first, makes all its processes hurry', async (t) => {
  const { start } = await prepare(t);
  const started = start();
  const url = await started.ready();
  const { body } = await post(`${url}/v1/users`, { handle: 'somebody', password: 'long enough 1' });
  // An upload that stalls: the API would wait for it for as long as it may drain.
  const stalled = request(`${url}/v1/attachments?filename=a.jpg`, {
    method: 'POST',
    headers: {
      ...{ authorization: `Bearer ${body.token}`, 'content-type': 'image/jpeg', 'content-length': 1000 },
      expect: '100-continue',
    },
  });
  stalled.on('error', () => {});
  onEnd(t, () => stalled.destroy());
  // An upload that has not come yet is nothing to wait for.
  stalled.flushHeaders();
  await once(stalled, 'continue');
  stalled.write('the first bytes');
  void started.ctrlC();
  const isSaid = (words: string) => linesOf(started).some(({ service, text }) => `${service} ${text}` === words);
  await until('it has come', () => isSaid('start stopping'));
  const cameMs = performance.now();
  await until('the API drains', () => isSaid('api,relay,janitor stopping'));
  await until('it is no echo any more', () => performance.now() - cameMs > 1_600);
  assert.ok(!isSaid('api,relay,janitor giving up what runs'));
  assert.equal(await started.ctrlC(), 0);
  assert.ok(isSaid('api,relay,janitor giving up what runs'));
});

test('the lines of its processes carry neither the password of the database nor that of the operator', async (t) => {
  const { dataDir, start } = await prepare(t);
  const started = start({ LOG_LEVEL: 'debug' });
  await started.ready();
  const ofDatabase = (await readFile(path.join(dataDir, 'postgres.password'), 'utf8')).trim();
  const ofOperator = /password {2}(\S+)/.exec(started.stdout())?.[1] ?? '';
  await started.ctrlC();
  const lines = (started.stdout() + started.stderr()).split('\n').filter((line) => line.startsWith('{'));
  assert.ok(lines.length > 3);
  for (const secret of [ofDatabase, ofOperator])
    assert.ok(secret !== '' && !lines.some((line) => line.includes(secret)));
});

test('a port in use is refused before anything is started', async (t) => {
  const { dataDir, start } = await prepare(t);
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  onEnd(t, () => taken.close());
  const address = taken.address();
  const port = typeof address === 'object' && address ? address.port : 0;
  await assertRefused(
    start({ PORT: String(port) }),
    new RegExp(
      `^skrepka: Port ${port} of 127\\.0\\.0\\.1 is in use: stop what uses it, or choose another with PORT\\.$`,
    ),
  );
  assert.deepEqual(await readdir(dataDir), []);
});

test('a port that is left soon is waited for: the API of a killed supervisor needs a moment', async (t) => {
  const { dataDir, start } = await prepare(t);
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  const address = taken.address();
  const port = typeof address === 'object' && address ? address.port : 0;
  const started = start({ PORT: String(port) });
  // The port is tried as soon as the folder is held.
  await until('it holds the folder', async () => (await readdir(dataDir).catch((): string[] => [])).includes('lock'));
  taken.close();
  assert.equal(await started.ready(), `http://127.0.0.1:${port}`);
  assert.equal(await started.ctrlC(), 0);
});

test('an address that is not ours is refused with one sentence', async (t) => {
  const { start } = await prepare(t);
  await assertRefused(
    start({ HOST: '192.0.2.1' }),
    /^skrepka: The API cannot listen on 192\.0\.2\.1 port 0 \(\w+\): check HOST and PORT\.$/,
  );
});

test('a data folder that cannot be written is refused with one sentence', async (t) => {
  const { folder, start } = await prepare(t);
  const file = path.join(folder, 'a-file');
  await writeFile(file, '');
  const sentence =
    /^skrepka: The data folder \S+ cannot be written \(.+\): make it writable, or choose another with DATA_DIR\.$/;
  await assertRefused(start({ DATA_DIR: file }), sentence);
  await assertRefused(start({ DATA_DIR: path.join(file, 'below') }), sentence);
  // Nobody may write there, not even root.
  await assertRefused(start({ DATA_DIR: '/proc/skrepka' }), sentence);
});

test('a data folder in use is refused with the pid of who holds it, who goes on undisturbed', async (t) => {
  const { start } = await prepare(t);
  const first = start();
  const url = await first.ready();
  await assertRefused(
    start(),
    new RegExp(
      `^skrepka: The data folder \\S+ is in use by process ${first.pid}: stop that one, or choose another with DATA_DIR\\.$`,
    ),
  );
  await until('it is ready', () => isReady(url));
  assert.equal(await first.ctrlC(), 0);
});

test('a lock of a dead process is taken over with a note', async (t) => {
  const { dataDir, start } = await prepare(t);
  const first = start();
  await first.ready();
  const lock = await readFile(path.join(dataDir, 'lock'), 'utf8');
  assert.equal(await first.ctrlC(), 0);
  await writeFile(path.join(dataDir, 'lock'), lock);
  const second = start();
  await second.ready();
  assert.match(second.stdout(), /the last run did not end in order; going on where it was/);
  assert.equal(await second.ctrlC(), 0);
});

test('a damaged database folder is refused with one sentence, and nothing is left running', async (t) => {
  const { dataDir, start } = await prepare(t);
  const first = start();
  await first.ready();
  await first.ctrlC();
  await rm(path.join(dataDir, 'postgres', 'PG_VERSION'));
  const second = start();
  await assertRefused(second, /^skrepka: The database folder \S+ is damaged \(it has no PG_VERSION\): restore it/);
  assert.deepEqual(second.family(), []);
  assert.ok(!(await readdir(dataDir)).includes('lock'));
});

test('a setting that cannot be read is refused with one sentence', async (t) => {
  const { start } = await prepare(t);
  await assertRefused(start({ PORT: 'eighty' }), /^skrepka: Expected a whole number for PORT, received "eighty"\.$/);
});

test('after a SIGKILL of the supervisor its processes leave, and the next start on the same port goes on', async (t) => {
  const { start } = await prepare(t);
  const PORT = String(await freePort());
  const first = start({ PORT });
  const url = await first.ready();
  await post(`${url}/v1/users`, { handle: 'somebody', password: 'long enough 1' });
  const family = first.family();
  first.process.kill('SIGKILL');
  await first.ended;
  const second = start({ PORT });
  const again = await second.ready();
  assert.equal((await post(`${again}/v1/sessions`, { handle: 'somebody', password: 'long enough 1' })).status, 201);
  await assertAllGone(family);
  assert.equal(await second.ctrlC(), 0);
});

test('a worker, an API and a database that die are started again', async (t) => {
  const { dataDir, start } = await prepare(t);
  const started = start();
  const url = await started.ready();
  for (const roles of ['worker', 'api relay janitor']) {
    const before = await until(`${roles} runs`, () => childWith(started, roles));
    process.kill(before, 'SIGKILL');
    const after = await until(`${roles} runs again`, () => {
      const now = childWith(started, roles);
      return now !== before && now;
    });
    assert.notEqual(after, before);
  }
  await until('it is ready again at the same address', () => isReady(url));
  const postmaster = Number((await readFile(path.join(dataDir, 'postgres', 'postmaster.pid'), 'utf8')).split('\n')[0]);
  process.kill(postmaster, 'SIGKILL');
  await until('the database is missed', async () => !(await isReady(url)));
  await until('it is ready again', () => isReady(url));
  assert.equal((await post(`${url}/v1/users`, { handle: 'somebody', password: 'long enough 1' })).status, 201);
  assert.equal(await started.ctrlC(), 0);
});

test('a Ctrl-C in the middle of the first start ends it in order, and the next start works', async (t) => {
  const { dataDir, start } = await prepare(t);
  const first = start();
  await until('it creates the folder', async () => {
    const names = await readdir(dataDir).catch((): string[] => []);
    return names.some((name) => name.startsWith('postgres.'));
  });
  const family = first.family();
  assert.equal(await first.ctrlC(), 0);
  await assertAllGone(family);
  assert.ok(!(await readdir(dataDir)).includes('lock'));
  const second = start();
  const url = await second.ready();
  await until('it is ready', () => isReady(url));
  assert.equal(await second.ctrlC(), 0);
});

test('with DATABASE_URL nothing embedded is started', async (t) => {
  const { freshDatabase } = await import('./support/postgres.ts');
  const { dataDir, start } = await prepare(t);
  const { url: DATABASE_URL, pool } = await freshDatabase(t, { empty: true });
  const started = start({ DATABASE_URL });
  const url = await started.ready();
  await until('it is ready', () => isReady(url));
  assert.ok(!started.family().some((pid) => commandOf(pid).includes('postgres -D')));
  assert.ok(!(await readdir(dataDir)).includes('postgres'));
  assert.equal((await pool.query(`select role from users where handle = 'operator'`)).rows[0].role, 'admin');
  assert.equal(await started.ctrlC(), 0);
});

test('a DATABASE_URL that leads nowhere is refused with one sentence without its password', async (t) => {
  const { start } = await prepare(t);
  const started = start({ DATABASE_URL: 'postgres://me:geheim@127.0.0.1:1/nothing' });
  await assertRefused(
    started,
    /^skrepka: The database cannot be brought to the schema of this build: .*ECONNREFUSED.*: start it, correct DATABASE_URL, or unset it for the embedded one\.$/,
  );
  assert.doesNotMatch(started.stdout() + started.stderr(), /geheim/);
});

test('operators work beside it without a setting but its folder, and are told when it does not run', async (t) => {
  const { dataDir, start } = await prepare(t);
  const none = await skrepka(['jobs'], { DATA_DIR: dataDir });
  const sentence =
    /^skrepka: No PostgreSQL runs in \S+: run "npm start" in another terminal, .*DATA_DIR, or set DATABASE_URL\.\n$/;
  assert.equal(none.code, 1);
  assert.match(none.stderr, sentence);
  const started = start();
  await started.ready();
  const status = await skrepka(['status'], { DATA_DIR: dataDir });
  assert.equal(status.code, 0, status.stderr);
  assert.match(status.stdout, /^database +ok {2}embedded in \S+postgres {2}schema /m);
  const made = JSON.parse((await skrepka(['operator', 'grace', '--json'], { DATA_DIR: dataDir })).stdout);
  const session = await post(`${await started.ready()}/v1/sessions`, made);
  assert.equal(session.status, 201);
  assert.equal(await started.ctrlC(), 0);
  assert.match((await skrepka(['jobs'], { DATA_DIR: dataDir })).stderr, sentence);
});

test('Ctrl-C ends a start that hangs in a step which no signal reaches', { timeout: 60_000 }, async (t) => {
  const { start } = await prepare(t);
  const { url, pool } = await freshDatabase(t);
  const holder = await pool.connect();
  try {
    await holder.query('begin');
    await holder.query('lock table migrations in access exclusive mode');
    const started = start({ DATABASE_URL: url });
    await until('the start waits for the lock', async () => {
      const { rowCount } = await pool.query(
        'select 1 from pg_locks where not granted and database = (select oid from pg_database where datname = current_database())',
      );
      return rowCount !== null && rowCount > 0;
    });
    await started.ctrlC();
  } finally {
    holder.release(true);
  }
});
