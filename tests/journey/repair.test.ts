/**
 * What an operator does about a disk that lost something, with real processes on file storage: an object is deleted behind
 * Skrepka's back, downloads say so, the doctor finds it, and mends what can be mended.
 */
import assert from 'node:assert/strict';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import { createDoctor } from '../../src/pipeline/doctor.ts';
import { createStore } from '../../src/postgres/store.ts';
import { register, sha256 } from '../support/client.ts';
import { leftKey } from '../support/doctor.ts';
import { openJourney } from '../support/journey.ts';
import { chunks } from '../support/pipeline.ts';
import { silent } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

const photograph = await readFile(join(import.meta.dirname, '../fixtures/orientation/small_6.jpg'));

type Journey = Awaited<ReturnType<typeof openJourney>>;
type User = Awaited<ReturnType<typeof register>>;

/** A doctor in this process, on the rows and objects of the journey's. */
function examine(j: Journey, options: { repair: boolean; deep?: boolean }) {
  const signals = { announce() {}, listen: () => () => {}, async close() {} };
  const deps = {
    store: createStore({ pool: j.pool, signals }),
    blobs: createFileBlobs({ dir: join(j.dataDir, 'blobs') }),
    clock: createSystemClock(),
    log: silent,
  };
  const doctor = createDoctor(deps, { graceMs: 6_000, orphanMs: 86_400_000 });
  return doctor.examine({ deep: false, who: 'operator', ...options }, new AbortController().signal);
}

const fileOf = (j: Journey, key: string) => join(j.dataDir, 'blobs', key);
const variantKey = async (j: Journey, id: string, name: string): Promise<string> =>
  (await j.pool.query('select key from variants where attachment_id = $1 and name = $2', [id, name])).rows[0].key;

async function refusal(user: User, path: string) {
  const response = await user.ask(path);
  return [response.status, ((await response.json()) as { code: string }).code, response.headers.has('retry-after')];
}

async function openReady(j: Journey) {
  const all = await j.start(['api', 'relay', 'worker', 'janitor']);
  const user = await register(() => all.url);
  const { id } = await user.upload(photograph);
  return { user, ready: await user.until(id, 'ready') };
}

test('a variant whose file is gone answers honestly, is found, made anew and served with the same digest', async (t) => {
  const j = await openJourney(t);
  const { user, ready } = await openReady(j);
  const crop = ready.variants.find(({ name }) => name === 'crop');
  assert.ok(crop);
  const key = await variantKey(j, ready.id, 'crop');
  await rm(fileOf(j, key));
  assert.deepEqual(await refusal(user, crop.url), [503, 'storage_unavailable', true]);

  const found = await examine(j, { repair: false });
  assert.deepEqual(
    found.findings.map(({ kind, attachmentId, key: at, repair }) => ({ kind, attachmentId, at, repair })),
    [{ kind: 'lost_variant', attachmentId: ready.id, at: key, repair: 'possible' }],
  );
  assert.deepEqual(await refusal(user, crop.url), [503, 'storage_unavailable', true]);

  const mended = await examine(j, { repair: true });
  assert.equal(mended.repaired, 1);
  const served = await until('the variant is served again', async () => {
    assert.equal((await user.attachment(ready.id)).state, 'ready');
    const response = await user.ask(crop.url);
    const bytes = Buffer.from(await response.arrayBuffer());
    return response.status === 200 && bytes;
  });
  assert.equal(sha256(served), crop.sha256);
  await user.assertWhole(await user.attachment(ready.id), photograph);
  assert.deepEqual((await examine(j, { repair: true, deep: true })).findings, []);
  assert.equal((await j.job(ready.id)).generation, 2);
});

test('a lost original is told, never made up: its download says so, its variants stay', async (t) => {
  const j = await openJourney(t);
  const { user, ready } = await openReady(j);
  const { rows } = await j.pool.query('select original_key from attachments');
  await rm(fileOf(j, rows[0].original_key));
  assert.deepEqual(await refusal(user, ready.content_url), [503, 'storage_unavailable', true]);
  for (const repair of [false, true]) {
    const { findings, repaired } = await examine(j, { repair });
    assert.deepEqual(
      findings.map(({ kind, attachmentId, repair: remedy }) => [kind, attachmentId, remedy]),
      [['lost_original', ready.id, 'none']],
    );
    assert.equal(repaired, 0);
  }
  assert.deepEqual(await refusal(user, ready.content_url), [503, 'storage_unavailable', true]);
  for (const { url, sha256: digest } of ready.variants) {
    assert.equal(sha256(Buffer.from(await (await user.ask(url)).arrayBuffer())), digest);
  }
  assert.equal((await j.job(ready.id)).generation, 1);
});

test('bytes that rotted are found by reading, and what is left of a dead attempt goes once it is old enough', async (t) => {
  const j = await openJourney(t);
  const { user, ready } = await openReady(j);
  const path = fileOf(j, await variantKey(j, ready.id, 'thumbnail'));
  const bytes = await readFile(path);
  await writeFile(
    path,
    bytes.map((byte) => byte ^ 1),
  );
  const left = leftKey(ready.id);
  const blobs = createFileBlobs({ dir: join(j.dataDir, 'blobs') });
  await blobs.put(left, chunks('left'));
  assert.deepEqual((await examine(j, { repair: false })).findings, []);
  const kinds = await until('the stray is old enough', async () => {
    const { findings } = await examine(j, { repair: true, deep: true });
    return findings.some(({ kind }) => kind === 'stray') && findings.map(({ kind }) => kind);
  });
  assert.ok(kinds.includes('stray'));
  await until('the stray is gone', async () => !(await j.stored()).includes(left));
  await until(
    'the picture is whole again',
    async () => (await examine(j, { repair: false, deep: true })).counts.damaged === 0,
  );
  await user.assertWhole(await user.attachment(ready.id), photograph);
});
