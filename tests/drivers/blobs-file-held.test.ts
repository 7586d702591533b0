/** Folders that the `file:` driver holds open: which ones, and for how long. */
import assert from 'node:assert/strict';
import { lstat, mkdir, mkdtemp, readdir, readlink, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { createHeldFolders, type HeldFolders } from '../../src/drivers/blobs-file/held.ts';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import { noise, pieces } from '../support/bytes.ts';
import { onEnd } from '../support/on-end.ts';
import { until } from '../support/until.ts';

/** What of the folder this process has open, by the names that they have now. */
async function openIn(dir: string): Promise<string[]> {
  const all = await readdir('/proc/self/fd');
  const names = await Promise.all(all.map((fd) => readlink(`/proc/self/fd/${fd}`).catch(() => '')));
  return names.filter((name) => name.startsWith(dir)).map((name) => name.slice(dir.length + 1));
}

async function stage(t: test.TestContext, held: HeldFolders) {
  const dir = await mkdtemp(join(tmpdir(), 'skrepka-held-'));
  onEnd(t, () => rm(dir, { recursive: true }));
  onEnd(t, () => held.close());
  const path = join(dir, 'staging');
  await mkdir(path);
  const sync = async () => held.sync(path, await lstat(path, { bigint: true }));
  return { dir, path, sync };
}

describe('a folder that is held open', () => {
  test('is one for many syncs, also at once, and let go of when nobody wants it for a while', async (t) => {
    const held = createHeldFolders({ idleMs: 50 });
    const { dir, sync } = await stage(t, held);
    await Promise.all(Array.from({ length: 20 }, sync));
    await sync();
    await until('one is open', async () => (await openIn(dir)).length <= 1);
    await until('none is open', async () => (await openIn(dir)).length === 0);
    await sync();
  });

  test('is let go of for the one that took its place', async (t) => {
    const held = createHeldFolders({ idleMs: 60_000 });
    const { dir, path, sync } = await stage(t, held);
    await sync();
    assert.deepEqual(await openIn(dir), ['staging']);
    await rename(path, join(dir, 'old'));
    await mkdir(path);
    await sync();
    await until('the old one is closed', async () => !(await openIn(dir)).includes('old'));
    assert.deepEqual(await openIn(dir), ['staging']);
  });

  test('is closed with its driver, and missing where its path is', async (t) => {
    const held = createHeldFolders({ idleMs: 60_000 });
    const { dir, path, sync } = await stage(t, held);
    await sync();
    const stat = await lstat(path, { bigint: true });
    held.close();
    await until('none is open', async () => (await openIn(dir)).length === 0);
    await rm(path, { recursive: true });
    await assert.rejects(held.sync(path, stat), { code: 'ENOENT' });
  });

  test('is not the one that was replaced before it was opened', async (t) => {
    const held = createHeldFolders({ idleMs: 60_000 });
    const { dir, path, sync } = await stage(t, held);
    const before = await lstat(path, { bigint: true });
    await rename(path, join(dir, 'old'));
    await mkdir(path);
    await assert.rejects(held.sync(path, before), { code: 'ESTALE' });
    await until('none is open', async () => (await openIn(dir)).length === 0);
    await sync();
  });
});

test('a put opens its folder of the first level once, and the driver closes it', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'skrepka-held-'));
  onEnd(t, () => rm(dir, { recursive: true }));
  const blobs = createFileBlobs({ dir });
  for (let at = 0; at < 5; at += 1) await blobs.put(`staging/${at}`, pieces(noise(10, at)));
  assert.deepEqual(await openIn(dir), ['staging']);
  await blobs.close();
  await until('none is open', async () => (await openIn(dir)).length === 0);
});
