/** The lock of the data folder: what it refuses is one sentence, at once. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { holdFolder } from '../src/data-folder.ts';
import { StartError } from '../src/errors.ts';
import { silent } from './support/ports-fake.ts';

test('a lock that cannot be read is refused with one sentence, not waited for', { timeout: 20_000 }, async (t) => {
  const dir = await mkdtemp(path.join(tmpdir(), 'skrepka-lock-'));
  t.after(() => rm(dir, { recursive: true, force: true }));
  await mkdir(path.join(dir, 'lock'));
  await assert.rejects(holdFolder(dir, silent), (error: Error) => {
    assert.ok(error instanceof StartError);
    assert.match(error.message, /^The lock .*lock cannot be read \(EISDIR\): remove it/);
    return true;
  });
  assert.deepEqual(await readdir(dir), ['lock'], 'nothing is left beside it');
});

test('a folder is held by one at a time, and free again after its release', async (t) => {
  const dir = await mkdtemp(path.join(tmpdir(), 'skrepka-lock-'));
  t.after(() => rm(dir, { recursive: true, force: true }));
  const held = await holdFolder(path.join(dir, 'data'), silent);
  await assert.rejects(holdFolder(path.join(dir, 'data'), silent), /is in use by process/);
  await held.release();
  const again = await holdFolder(path.join(dir, 'data'), silent);
  await again.release();
});
