/** The embedded PostgreSQL in every state in which a start may find its folder. */
import assert from 'node:assert/strict';
import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { StartError } from '../../src/errors.ts';
import { type Embedded, findEmbedded, startEmbedded } from '../../src/postgres/embedded.ts';
import { connect } from '../../src/postgres/pool.ts';
import { onEnd } from '../support/on-end.ts';
import { until } from '../support/until.ts';

interface Lines {
  readonly lines: string[];
  readonly log: { debug(): void; info(f: object, t: string): void; warn(f: object, t: string): void; error(): void };
}

function recorder(): Lines {
  const lines: string[] = [];
  const keep = (_: object, text: string) => lines.push(text);
  return { lines, log: { debug() {}, info: keep, warn: keep, error() {} } };
}

const settings = { fsync: 'off' };

/** A folder that only its owner may enter, as `mktemp -d` makes it, with a database of one row when `filled`. */
async function prepare(t: test.TestContext, { filled = false } = {}) {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-embedded-'));
  onEnd(t, () => rm(folder, { recursive: true, force: true }));
  const dir = path.join(folder, 'postgres');
  if (filled) {
    const from = await template();
    for (const name of ['postgres', 'postgres.password']) {
      await cp(path.join(from, name), path.join(folder, name), { recursive: true, preserveTimestamps: true });
    }
    const owner = await stat(path.join(from, 'postgres'));
    if (process.getuid?.() === 0) await giveTo(dir, owner.uid, owner.gid);
  }
  return { folder, dir, ...recorder() };
}

async function giveTo(dir: string, uid: number, gid: number): Promise<void> {
  const chown = spawn('chown', ['-R', `${uid}:${gid}`, dir]);
  await once(chown, 'exit');
}

let made: Promise<string> | null = null;
function template(): Promise<string> {
  made ??= (async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-embedded-'));
    const server = await startEmbedded({ dir: path.join(folder, 'postgres'), settings, log: recorder().log });
    await query(server.url, 'create table kept as select 42 as answer');
    await server.stop();
    return folder;
  })();
  return made;
}
test.after(async () => {
  if (made) await rm(await made, { recursive: true, force: true });
});

async function start(t: test.TestContext, place: { dir: string } & Lines, port?: number): Promise<Embedded> {
  const server = await startEmbedded({ dir: place.dir, port, settings, log: place.log });
  onEnd(t, () => server.stop());
  return server;
}

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = await connect({ url, name: 'tests' });
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

async function answer(server: Embedded): Promise<unknown> {
  return (await query(server.url, 'select answer from kept'))[0]?.answer;
}

const isGone = (pid: number) => {
  try {
    process.kill(pid, 0);
    return false;
  } catch {
    return true;
  }
};

async function refused(promise: Promise<unknown>, sentence: RegExp): Promise<void> {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof StartError, String(error));
    assert.match(error.message, sentence);
    assert.doesNotMatch(error.message, /\n/);
    return true;
  });
}

test('an empty folder becomes a database that keeps its data from start to start', async (t) => {
  const place = await prepare(t);
  const first = await start(t, place);
  await query(first.url, 'create table kept as select 42 as answer');
  await first.stop();
  assert.ok(isGone(first.pid));
  const second = await start(t, place);
  assert.equal(await answer(second), 42);
  const names = (await readdir(place.folder)).sort();
  assert.deepEqual(names, ['postgres', 'postgres.log', 'postgres.password']);
});

test('the password is for nobody else: in a file of mode 0600, not in the log, not among the arguments', async (t) => {
  const place = await prepare(t, { filled: true });
  const server = await start(t, place);
  const password = new URL(server.url).password;
  assert.ok(password.length >= 32);
  const file = `${place.dir}.password`;
  assert.equal((await stat(file)).mode & 0o777, 0o600);
  assert.equal((await readFile(file, 'utf8')).trim(), password);
  assert.ok(!(await readFile(`${place.dir}.log`, 'utf8')).includes(password));
  assert.ok(!(await readFile(`/proc/${server.pid}/cmdline`, 'utf8')).includes(password));
  const wrong = new URL(server.url);
  wrong.password = 'wrong';
  await assert.rejects(query(wrong.href, 'select 1'), /password authentication failed/);
});

test('the server listens on loopback only, is not root, syncs by default and has a session of its own', async (t) => {
  const place = await prepare(t);
  const server = await startEmbedded({ dir: place.dir, log: place.log });
  onEnd(t, () => server.stop());
  const rows = await query(
    server.url,
    `select name, setting from pg_settings where name in ('listen_addresses', 'fsync')`,
  );
  assert.deepEqual(new Map(rows.map((row) => [row.name, row.setting])).get('listen_addresses'), '127.0.0.1');
  assert.deepEqual(new Map(rows.map((row) => [row.name, row.setting])).get('fsync'), 'on');
  const status = await readFile(`/proc/${server.pid}/status`, 'utf8');
  assert.doesNotMatch(status, /^Uid:\t0\b/m);
  const fields = (await readFile(`/proc/${server.pid}/stat`, 'utf8')).split(') ')[1]?.split(' ') ?? [];
  const [, , group, session] = fields.map(Number);
  assert.deepEqual([group, session], [server.pid, server.pid]);
});

test('root runs the server as the owner of its folder, everybody else as themselves', async (t) => {
  const place = await prepare(t, { filled: true });
  const nobody = 65_534;
  const ourselves = process.getuid?.() ?? 0;
  if (ourselves === 0) await giveTo(place.dir, nobody, nobody);
  const server = await start(t, place);
  const owner = ourselves === 0 ? nobody : ourselves;
  assert.match(await readFile(`/proc/${server.pid}/status`, 'utf8'), new RegExp(`^Uid:\\t${owner}\\t${owner}\\t`, 'm'));
  assert.equal(await answer(server), 42);
});

test('a server whose supervisor was killed is stopped in order, and the next one goes on with its data', async (t) => {
  const place = await prepare(t, { filled: true });
  const first = await start(t, place);
  await query(first.url, 'update kept set answer = 43');
  const second = await start(t, place);
  await first.ended;
  assert.notEqual(second.pid, first.pid);
  assert.equal(await answer(second), 43);
  assert.ok(place.lines.some((line) => line.includes('earlier run')));
  assert.match(await readFile(`${place.dir}.log`, 'utf8'), /received fast shutdown request/);
});

test('the postmaster.pid of a killed server hinders nobody', async (t) => {
  const place = await prepare(t, { filled: true });
  const first = await start(t, place);
  process.kill(first.pid, 'SIGKILL');
  await first.ended;
  const second = await start(t, place);
  assert.equal(await answer(second), 42);
});

test('a server that a plain kill told to shut down ends although a session stays, so that it can be started again', async (t) => {
  const place = await prepare(t, { filled: true });
  const server = await start(t, place);
  const session = await connect({ url: server.url, name: 'stays', statementMs: 10_000 });
  session.on('error', () => {});
  process.kill(server.pid, 'SIGTERM');
  await server.ended;
  assert.ok(place.lines.some((line) => line.includes('told to shut down')));
  assert.match(
    await readFile(`${place.dir}.log`, 'utf8'),
    /received smart shutdown request[\s\S]*received fast shutdown request/,
  );
  assert.equal(await answer(await start(t, place)), 42);
});

async function writePidFile(dir: string, pid: number, startedSeconds: number): Promise<void> {
  const file = path.join(dir, 'postmaster.pid');
  await writeFile(file, `${pid}\n${dir}\n${startedSeconds}\n5432\n\n127.0.0.1\n  1 1\nready   \n`);
  const owner = await stat(dir);
  await giveTo(file, owner.uid, owner.gid);
}

test('a process that is not the server of this folder is left alone, with one sentence', async (t) => {
  const place = await prepare(t, { filled: true });
  const stranger = spawn('sleep', ['60']);
  onEnd(t, () => stranger.kill());
  await writePidFile(place.dir, stranger.pid ?? 0, Math.ceil(Date.now() / 1000) + 60);
  await refused(
    start(t, place),
    /postmaster\.pid names process \d+, which is alive but not the PostgreSQL of this folder: /,
  );
  assert.equal(stranger.exitCode, null);
});

test('the postmaster.pid of a server that is dead, but whose parent never asked after it, hinders nobody', async (t) => {
  const place = await prepare(t, { filled: true });
  // The shell becomes a program that never waits for the child of the shell. PostgreSQL looks at processes of its own user only.
  const { uid, gid } = await stat(place.dir);
  const script = 'sleep 0.1 & echo $!; exec sleep 600';
  const parent = spawn('sh', ['-c', script], { uid, gid, cwd: '/', stdio: ['ignore', 'pipe', 'ignore'] });
  onEnd(t, () => parent.kill());
  const [said] = await once(parent.stdout, 'data');
  const pid = Number(said);
  await until('it is a zombie', async () => / Z /.test(await readFile(`/proc/${pid}/stat`, 'utf8')));
  await writePidFile(place.dir, pid, Math.floor(Date.now() / 1000));
  assert.equal(await answer(await start(t, place)), 42);
});

test('a process that came to be after the postmaster.pid cannot have written it, and hinders nobody', async (t) => {
  const place = await prepare(t, { filled: true });
  const stranger = spawn('sleep', ['60']);
  onEnd(t, () => stranger.kill());
  await writePidFile(place.dir, stranger.pid ?? 0, Math.floor(Date.now() / 1000) - 3600);
  const server = await start(t, place);
  assert.equal(await answer(server), 42);
  assert.equal(stranger.exitCode, null);
});

test('an empty postmaster.pid, which PostgreSQL does not start beside, is refused with what to do', async (t) => {
  const place = await prepare(t, { filled: true });
  const file = path.join(place.dir, 'postmaster.pid');
  await writeFile(file, '');
  await refused(
    start(t, place),
    /postmaster\.pid is empty, .*: if no other PostgreSQL .*, delete that file and start again\.$/,
  );
  await rm(file);
  assert.equal(await answer(await start(t, place)), 42);
});

test('a running server is found by its folder; one that is not there, or not of the folder, is refused with what to do', async (t) => {
  const place = await prepare(t, { filled: true });
  const nothing = /^No PostgreSQL runs in \S+: run "npm start" in another terminal, .*\.$/;
  await refused(findEmbedded(path.join(place.folder, 'elsewhere')), nothing);
  await refused(findEmbedded(place.dir), nothing);
  const server = await start(t, place);
  assert.equal(await findEmbedded(place.dir), server.url);
  await server.stop();
  await refused(findEmbedded(place.dir), nothing);
  const stranger = spawn('sleep', ['60']);
  onEnd(t, () => stranger.kill());
  await writePidFile(place.dir, stranger.pid ?? 0, Math.ceil(Date.now() / 1000) + 60);
  await refused(findEmbedded(place.dir), nothing);
});

test('a folder without PG_VERSION, and one of another version, are refused with one sentence', async (t) => {
  const place = await prepare(t, { filled: true });
  await writeFile(path.join(place.dir, 'PG_VERSION'), '11\n');
  await refused(
    start(t, place),
    /was made by PostgreSQL 11, and this is 18: dump it there and load it here, or move it away/,
  );
  await rm(path.join(place.dir, 'PG_VERSION'));
  await refused(start(t, place), /is damaged \(it has no PG_VERSION\): restore it from a backup, or move it away/);
});

test('a folder in which PostgreSQL does not start is refused with its words, and nothing is left running', async (t) => {
  const place = await prepare(t, { filled: true });
  await rm(path.join(place.dir, 'global', 'pg_control'));
  await refused(
    start(t, place),
    /^PostgreSQL did not start in .*postgres: .*pg_control.* \(the log is .*postgres\.log\)\.$/,
  );
  await assert.rejects(stat(path.join(place.dir, 'postmaster.pid')));
});

test('what an interrupted first start left behind blocks nothing and is removed', async (t) => {
  const place = await prepare(t);
  await mkdir(`${place.dir}.new-dead/data`, { recursive: true });
  await writeFile(`${place.dir}.new-dead/data/PG_VERSION`, '18\n');
  await mkdir(place.dir);
  const server = await start(t, place);
  assert.equal((await query(server.url, 'select 1 as one'))[0]?.one, 1);
  assert.ok(!(await readdir(place.folder)).some((name) => name.includes('.new-')));
});

test('a first start that is killed in the middle of creating the folder can be repeated', async (t) => {
  const place = await prepare(t);
  const script = path.join(place.folder, 'start.ts');
  const source = path.resolve(import.meta.dirname, '../../src/postgres/embedded.ts');
  await writeFile(
    script,
    `import { startEmbedded } from ${JSON.stringify(source)};
     const log = { debug() {}, info() {}, warn() {}, error() {} };
     await startEmbedded({ dir: process.argv[2], log });`,
  );
  const child = fork(script, [place.dir], { execArgv: [], stdio: 'ignore' });
  const ended = once(child, 'exit');
  await until(
    'initdb is at work',
    async () => {
      const half = (await readdir(place.folder)).find((name) => name.includes('.new-'));
      return half && (await readdir(path.join(place.folder, half)).catch((): string[] => [])).includes('data');
    },
    { everyMs: 5 },
  );
  child.kill('SIGKILL');
  await ended;
  await assert.rejects(stat(place.dir));
  const server = await start(t, place);
  assert.equal((await query(server.url, 'select 1 as one'))[0]?.one, 1);
});

test('a lost password file is replaced by one with a new password', async (t) => {
  const place = await prepare(t, { filled: true });
  const old = await readFile(`${place.dir}.password`, 'utf8');
  await rm(`${place.dir}.password`);
  const server = await start(t, place);
  assert.equal(await answer(server), 42);
  assert.notEqual(await readFile(`${place.dir}.password`, 'utf8'), old);
});

test('a wanted port that is in use is refused with one sentence', async (t) => {
  const place = await prepare(t, { filled: true });
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  onEnd(t, () => taken.close());
  const address = taken.address();
  const port = typeof address === 'object' && address ? address.port : 0;
  await refused(start(t, place, port), new RegExp(`port ${port} is in use`));
});

test('a start that is given up while the server recovers rejects with the reason and leaves nothing running', async (t) => {
  const place = await prepare(t, { filled: true });
  // A standby without a primary that takes no sessions is never ready.
  const standby = path.join(place.dir, 'standby.signal');
  await writeFile(standby, '');
  const owner = await stat(place.dir);
  await giveTo(standby, owner.uid, owner.gid);
  const giveUp = new AbortController();
  const starting = startEmbedded({
    dir: place.dir,
    settings: { ...settings, hot_standby: 'off' },
    log: place.log,
    signal: giveUp.signal,
  });
  const waiting = until('the server waits', async () =>
    (await readFile(path.join(place.dir, 'postmaster.pid'), 'utf8').catch(() => '')).includes('standby'),
  );
  await Promise.race([waiting, starting]);
  const pid = Number((await readFile(path.join(place.dir, 'postmaster.pid'), 'utf8')).split('\n')[0]);
  const reason = new Error('given up');
  giveUp.abort(reason);
  await assert.rejects(starting, (error) => error === reason);
  assert.ok(isGone(pid));
});
