/** `skrepka start` with real processes while a part of it is away: it says so, waits, and goes on by itself. */
import assert from 'node:assert/strict';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';
import { findEmbedded } from '../src/postgres/embedded.ts';
import { skrepka } from './support/command.ts';
import { childWith, isReady, linesOf, post, prepare, sendText } from './support/supervised.ts';
import { until } from './support/until.ts';

test('a database that cannot be started again is tried until it can be, while all else stays', async (t) => {
  const { dataDir, start } = await prepare(t);
  const started = start();
  const url = await started.ready();
  const inPlace = path.join(dataDir, 'postgres', 'PG_VERSION');
  const pids = await readFile(path.join(dataDir, 'postgres', 'postmaster.pid'), 'utf8');
  await rename(inPlace, `${inPlace}.away`);
  process.kill(Number(pids.split('\n')[0]), 'SIGKILL');
  const tries = () => linesOf(started).filter(({ text }) => text === 'PostgreSQL cannot be started again yet');
  await until('it was tried twice', () => tries().length >= 2);
  assert.match(tries()[0]?.reason ?? '', /is damaged \(it has no PG_VERSION\)/);
  assert.equal((await fetch(`${url}/health/live`)).status, 200);
  assert.ok(childWith(started, 'worker'));
  await rename(`${inPlace}.away`, inPlace);
  await until('it is ready again', () => isReady(url));
  // One end, however many tries, with a pause between them.
  const ends = linesOf(started).filter(({ text }) => text === 'PostgreSQL ended unexpectedly; starting it again');
  assert.equal(ends.length, 1);
  assert.ok(tries().length < 20, `${tries().length} tries`);
  assert.equal((await post(`${url}/v1/users`, { handle: 'somebody', password: 'long enough 1' })).status, 201);
  assert.equal(await started.ctrlC(), 0);
});

test('it says ready only once uploads are taken: a storage that is away is told plainly, and waited for', async (t) => {
  const { dataDir, start } = await prepare(t);
  await mkdir(dataDir);
  // A file where the folder of the objects should be.
  await writeFile(path.join(dataDir, 'blobs'), '');
  const started = start();
  await until('it has said what is missing', () => started.stdout().includes('It becomes ready by itself'), {
    deadlineMs: 60_000,
  });
  assert.match(
    started.stdout(),
    /^ {4}the storage does not answer: start it or mount its folder, or stop this and correct BLOBS_URL/m,
  );
  assert.doesNotMatch(started.stdout(), /is ready at/);
  await rm(path.join(dataDir, 'blobs'));
  const url = await started.ready();
  await until('it is ready', () => isReady(url));
  assert.equal(await started.ctrlC(), 0);
});

test('objects whose folder is not there at the start are waited for, not lost, and nothing is made in its place', async (t) => {
  const { dataDir, start } = await prepare(t);
  const first = start();
  const { body } = await post(`${await first.ready()}/v1/users`, { handle: 'somebody', password: 'long enough 1' });
  const headers = { authorization: `Bearer ${body.token}` };
  const sent = await sendText(await first.ready(), body.token, 'kept');
  assert.equal(sent.status, 202);
  const { id } = (await sent.json()) as { id: string };
  await first.ctrlC();
  const blobs = path.join(dataDir, 'blobs');
  await rename(blobs, `${blobs}.away`);

  const second = start();
  await until('it has said what is missing', () => second.stdout().includes('It becomes ready by itself'), {
    deadlineMs: 60_000,
  });
  assert.match(second.stdout(), /the storage does not answer: start it or mount its folder,/);
  assert.match(second.stdout(), /blobs holds none of the objects that the database names: mount it/);
  const migrated = await skrepka(['migrate'], {
    DATA_DIR: dataDir,
    DATABASE_URL: await findEmbedded(path.join(dataDir, 'postgres')),
  });
  assert.equal(migrated.code, 1);
  assert.match(migrated.stderr, /^skrepka: The storage of BLOBS_URL cannot be prepared: The folder .*mount it .*\n$/);
  assert.ok(!(await readdir(dataDir)).includes('blobs'));
  await rename(`${blobs}.away`, blobs);
  const url = await second.ready();
  await until('the upload is ready', async () => {
    const answer = await fetch(`${url}/v1/attachments/${id}/content`, { headers });
    return answer.status === 200 && (await answer.text()) === 'kept';
  });
  assert.equal(await second.ctrlC(), 0);
});
