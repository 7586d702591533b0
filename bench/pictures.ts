/**
 * The 40 pictures that rows with pictures share, made once and kept in `bench/.cache/` (ignored by git).
 *
 * The photographs are those of the Debian packages below: taken from `/usr/share` where they are installed, fetched with
 * `apt-get download` and unpacked beside the pictures where they are not. Nothing is installed.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import sharp from 'sharp';
import { type Kind, kinds, type Wanted, wanted } from './picture-mix.ts';

export interface Picture {
  readonly name: string;
  readonly kind: Kind;
  readonly contentType: Wanted['contentType'];
  readonly bytes: Buffer;
  /** Of the file that holds `bytes`. */
  readonly path: string;
}

/** Those of their pictures that the mix is made of are under GPL-2+. */
const packages = ['mate-backgrounds', 'plasma-workspace-wallpapers'] as const;
const cacheDir = path.join(import.meta.dirname, '.cache');
const installCommand = `apt-get install ${packages.join(' ')}`;
const run = promisify(execFile);

/** The command by which this machine gets the photographs where `pictures` cannot, or null. */
export function missingPictures(): string | null {
  const canFetch = ['apt-get', 'dpkg-deb'].every((program) => existsSync(`/usr/bin/${program}`));
  return existsSync(madeDir()) || canFetch || rootOfPhotographs() !== null ? null : installCommand;
}

/** All pictures, in a mixed order that is always the same. The first call on a machine makes them, which takes half a minute. */
export async function pictures(say: (line: string) => void = () => {}): Promise<readonly Picture[]> {
  if (!existsSync(madeDir())) await makeAll(say);
  const all: Picture[] = [];
  for (const { name, kind, contentType } of mixed(wanted)) {
    const file = path.join(madeDir(), name);
    all.push({ name, kind, contentType, bytes: await readFile(file), path: file });
  }
  return all;
}

/** The first of each kind: what a process renders before it is measured, so that its code is warm for all of them. */
export function oneOfEach(all: readonly Picture[]): readonly Picture[] {
  return kinds.flatMap((kind) => all.find((one) => one.kind === kind) ?? []);
}

/**
 * The order of the mix: each kind spread evenly over the whole, so that any stretch of it is a mix as well and the last pictures to
 * be worked at are not all of the dearest kind.
 */
export function mixed<T extends { readonly kind: Kind }>(all: readonly T[]): readonly T[] {
  const counts = new Map<Kind, number>();
  for (const { kind } of all) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const seen = new Map<Kind, number>();
  const placed = all.map((one) => {
    const nth = seen.get(one.kind) ?? 0;
    seen.set(one.kind, nth + 1);
    return { one, place: (nth + 0.5) / (counts.get(one.kind) ?? 1) };
  });
  return placed.sort((left, right) => left.place - right.place).map(({ one }) => one);
}

/** Named by what goes in: another mix or another sharp is another folder. */
function madeDir(): string {
  const recipe = readFileSync(path.join(import.meta.dirname, 'picture-mix.ts'));
  const digest = createHash('sha256').update(recipe).update(JSON.stringify(sharp.versions)).digest('hex');
  return path.join(cacheDir, `pictures-${digest.slice(0, 12)}`);
}

/** Into a folder of another name, renamed when complete: an interrupted call leaves nothing that would be taken for the pictures. */
async function makeAll(say: (line: string) => void): Promise<void> {
  await mkdir(cacheDir, { recursive: true });
  const root = rootOfPhotographs() ?? (await fetchPhotographs(say));
  const makingDir = await mkdtemp(path.join(cacheDir, 'making-'));
  try {
    for (const [index, one] of wanted.entries()) {
      if (index % 10 === 0)
        say(`pictures: making ${index + 1} to ${Math.min(index + 10, wanted.length)} of ${wanted.length}`);
      await writeFile(path.join(makingDir, one.name), await one.make(path.join(root, one.from)));
    }
    await rename(makingDir, madeDir()).catch((error: NodeJS.ErrnoException) => {
      // Somebody else made them meanwhile: the same bytes.
      if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
    });
  } finally {
    await rm(makingDir, { recursive: true, force: true });
  }
}

/** The folder that stands for `/usr/share`, or null where some photograph is in none. */
function rootOfPhotographs(): string | null {
  const roots = [unpackedDir(), '/usr/share'];
  return roots.find((root) => wanted.every(({ from }) => existsSync(path.join(root, from)))) ?? null;
}

function unpackedDir(): string {
  return path.join(cacheDir, 'packages', 'usr', 'share');
}

/** Throws, with the command to try by hand, where the packages cannot be had. */
async function fetchPhotographs(say: (line: string) => void): Promise<string> {
  say(`pictures: fetching ${packages.join(' and ')}, 140 MB`);
  const downloads = await mkdtemp(path.join(cacheDir, 'download-'));
  try {
    await run('apt-get', ['download', ...packages], { cwd: downloads });
    for (const file of readdirSync(downloads)) {
      await run('dpkg-deb', ['-x', path.join(downloads, file), path.join(cacheDir, 'packages')]);
    }
  } catch (cause) {
    throw new Error(`The photographs cannot be had: try "${installCommand}"`, { cause });
  } finally {
    await rm(downloads, { recursive: true, force: true });
  }
  const root = rootOfPhotographs();
  if (root === null)
    throw new Error(`Expected all photographs of the mix in ${packages.join(' and ')}: this Debian has others`);
  return root;
}
