/**
 * The build before this one, for tests of two builds at once: a copy of `src/` without its newest recipe and without the
 * file of its newest migration, as if both had come with this build.
 *
 * The copy still uses what that migration brought; what it does not do is ask for it. So it can only run on a database
 * that this build has migrated, which is what a roll-back is.
 */
import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import { onEnd, type Scope } from './on-end.ts';

const root = resolve(import.meta.dirname, '../..');

/** Answers the folder of the copy, for `RoleOptions.build`. It is removed when `t` ends. */
export async function olderBuild(t: Scope): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'skrepka-older-build-'));
  onEnd(t, () => rm(folder, { recursive: true, force: true }));
  await cp(join(root, 'src'), join(folder, 'src'), { recursive: true });
  await cp(join(root, 'package.json'), join(folder, 'package.json'));
  await mkdir(join(folder, 'tests/support'), { recursive: true });
  await cp(join(root, 'tests/support/role-process.ts'), join(folder, 'tests/support/role-process.ts'));
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'));
  await cutNewestRecipe(join(folder, 'src/pipeline/recipe.ts'));
  await cutNewestMigration(join(folder, 'src/postgres/migrations'));
  return folder;
}

async function cutNewestRecipe(path: string): Promise<void> {
  const text = await readFile(path, 'utf8');
  const cut = text.replace(new RegExp(`^(const released: .* = \\[.*), version${newestVersion}\\];$`, 'm'), '$1];');
  assert.notEqual(cut, text, `Expected version ${newestVersion} at the end of the recipes of ${path}`);
  await writeFile(path, cut);
}

async function cutNewestMigration(folder: string): Promise<void> {
  const newest = (await readdir(folder))
    .filter((name) => name.endsWith('.sql'))
    .sort()
    .at(-1);
  assert.ok(newest);
  await rm(join(folder, newest));
}
