/**
 * A driver of pictures with a folder of its own: renders bytes, keeps what was logged, looks at its child processes, and
 * checks that what a rendering names is what lies on the disk.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import sharp from 'sharp';
import { createSharpImages, type SharpImagesSettings } from '../../src/drivers/images-sharp.ts';
import type { Images, Log, Meter, Rendering, RenderLimits } from '../../src/pipeline/ports.ts';
import { newestVersion, type Recipe, recipes } from '../../src/pipeline/recipe.ts';
import { until } from './until.ts';

export const defaultLimits: RenderLimits = {
  pixelsMax: 50_000_000,
  pixelsMaxAvif: 16_000_000,
  framesMax: 500,
  scansMax: 64,
  timeoutMs: 60_000,
  memoryBytes: 600 * 1024 * 1024,
};

/** A child that misbehaves for sources with certain names, and renders all others. */
export const hostileScript = new URL('./images-hostile-child.ts', import.meta.url);

export interface Prepared {
  readonly sourcePath: string;
  readonly outputDir: string;
}

export interface Scene {
  readonly images: Images;
  readonly folder: string;
  readonly logged: { level: string; fields: object; text: string }[];
  /** Renders the bytes. `name` is the source's file name, by which a hostile child chooses what to do. */
  render(bytes: Uint8Array, contentType: string, options?: { name?: string; signal?: AbortSignal }): Promise<Rendering>;
  /** Writes a source and makes a folder for its outputs, so that a render of them begins with the call. */
  prepare(bytes: Uint8Array, name: string): Promise<Prepared>;
  renderPrepared(prepared: Prepared, contentType: string, signal?: AbortSignal): Promise<Rendering>;
  /** Renders a file where it lies. */
  renderFile(path: string, contentType: string, signal?: AbortSignal): Promise<Rendering>;
  /** Ids of this driver's child processes that have loaded, waiting for as many as there should be. */
  children(): Promise<number[]>;
  close(): Promise<void>;
}

export type SceneSettings = Partial<Omit<SharpImagesSettings, 'limits'>> & {
  limits?: Partial<RenderLimits>;
  recipe?: Recipe;
  meter?: Meter;
};

export async function openScene({
  limits,
  recipe = recipeOf(newestVersion),
  meter,
  ...settings
}: SceneSettings = {}): Promise<Scene> {
  const folder = await mkdtemp(join(tmpdir(), 'skrepka-images-'));
  const logged: Scene['logged'] = [];
  const keep = (level: string) => (fields: object, text: string) => void logged.push({ level, fields, text });
  const log: Log = { debug: keep('debug'), info: keep('info'), warn: keep('warn'), error: keep('error') };
  const all = { children: 2, warmSpare: 1, niceness: 10, ...settings, limits: { ...defaultLimits, ...limits } };
  const images = createSharpImages({ log, ...(meter ? { meter } : {}) }, all);
  let renders = 0;
  let sources = 0;

  async function prepareFile(sourcePath: string): Promise<Prepared> {
    renders += 1;
    const outputDir = join(folder, `out-${renders}`);
    await mkdir(outputDir);
    return { sourcePath, outputDir };
  }

  async function prepare(bytes: Uint8Array, name: string): Promise<Prepared> {
    sources += 1;
    const sourcePath = join(folder, `${name}-${sources}`);
    await writeFile(sourcePath, bytes);
    return prepareFile(sourcePath);
  }

  function renderPrepared(prepared: Prepared, contentType: string, signal = new AbortController().signal) {
    return images.render({ ...prepared, contentType, recipe }, signal);
  }

  return {
    images,
    folder,
    logged,
    prepare,
    renderPrepared,
    renderFile: async (sourcePath, contentType, signal) =>
      renderPrepared(await prepareFile(sourcePath), contentType, signal),
    render: async (bytes, contentType, { name = 'source', signal } = {}) =>
      renderPrepared(await prepare(bytes, name), contentType, signal),
    children: () =>
      until('all render children have loaded', async () => {
        const ready = readyOf(logged);
        const pids = (await childrenOf(process.pid)).filter((pid) => ready.has(pid));
        return pids.length === all.children + all.warmSpare ? pids : null;
      }),
    async close() {
      await images.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** A child that was killed may be seen alive for a moment yet; the log tells of the kill at once. */
function readyOf(logged: Scene['logged']): ReadonlySet<unknown> {
  const ready = new Set<unknown>();
  for (const { text, fields } of logged) {
    if (text === 'a render child is ready') ready.add(childOf(fields));
    if (text === 'a render child is replaced') ready.delete(childOf(fields));
  }
  return ready;
}

function childOf(fields: object): unknown {
  return 'child' in fields ? fields.child : null;
}

/** The recipe of a version that this build has. */
export function recipeOf(version: number): Recipe {
  const recipe = recipes.get(version);
  assert.ok(recipe);
  return recipe;
}

/** The ids of the Node processes that `parent` has started. A shell that has not become Node yet does not count. */
export async function childrenOf(parent: number): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const [stat, command] = await Promise.all([
      readFile(`/proc/${name}/stat`, 'utf8').catch(() => ''),
      readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => ''),
    ]);
    const [state, parentId] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const isChild = Number(parentId) === parent && state !== 'Z';
    if (isChild && command.startsWith(process.execPath) && command.includes('--expose-gc')) found.push(Number(name));
  }
  return found.sort((a, b) => a - b);
}

/** A field of `/proc/pid/status` in bytes, e.g. `VmHWM`. */
export async function memoryOf(pid: number, field: 'VmHWM' | 'VmRSS' | 'VmData'): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const kibibytes = new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1];
  assert.ok(kibibytes, `${field} of ${pid}`);
  return Number(kibibytes) * 1024;
}

const formats: Readonly<Record<string, string>> = { 'image/jpeg': 'jpeg', 'image/webp': 'webp' };

/**
 * Checks what every rendering must keep: the three variants, decodable to the last pixel, of the told size, dimensions and
 * digest, in sRGB with 8 bits, without any metadata. Answers them by name.
 */
export async function checkRendering(
  rendering: Rendering,
): Promise<Record<'thumbnail' | 'crop' | 'optimized', Buffer>> {
  const bytes: Partial<Record<string, Buffer>> = {};
  assert.match(rendering.placeholder, /^[A-Za-z0-9+/]+={0,2}$/);
  for (const variant of rendering.variants) {
    const file = await readFile(variant.path);
    const found = await sharp(file).metadata();
    assert.equal(file.length, variant.size);
    assert.equal(createHash('sha256').update(file).digest('hex'), variant.sha256);
    assert.deepEqual([found.width, found.pageHeight ?? found.height], [variant.width, variant.height], variant.name);
    assert.ok(variant.width >= 1 && variant.height >= 1);
    assert.equal(found.format, formats[variant.contentType]);
    assert.deepEqual([found.space, found.depth], ['srgb', 'uchar']);
    assert.equal(found.channels, variant.contentType === 'image/jpeg' ? 3 : found.hasAlpha ? 4 : 3);
    for (const kind of ['exif', 'xmp', 'icc', 'iptc', 'orientation', 'comments'] as const) {
      assert.equal(found[kind], undefined, `${variant.name} has ${kind}`);
    }
    await sharp(file, { animated: true, failOn: 'warning' }).raw().toBuffer();
    bytes[variant.name] = file;
  }
  const { thumbnail, crop, optimized } = bytes;
  assert.ok(thumbnail && crop && optimized && rendering.variants.length === 3);
  return { thumbnail, crop, optimized };
}

/** Width and height of a variant. */
export function sizeOf(rendering: Rendering, name: string): [number, number] {
  const variant = rendering.variants.find((candidate) => candidate.name === name);
  assert.ok(variant, `there is a ${name}`);
  return [variant.width, variant.height];
}

/** The mean of every channel of a picture's first frame, whole numbers. */
export async function means(bytes: Buffer): Promise<number[]> {
  const { channels } = await sharp(bytes).stats();
  return channels.map(({ mean }) => Math.round(mean));
}

/** Fails unless each value is within `tolerance` of the expected one. */
export function assertNear(actual: readonly number[], expected: readonly number[], tolerance: number, what = ''): void {
  const near =
    actual.length === expected.length &&
    expected.every((value, at) => Math.abs(value - (actual[at] ?? 0)) <= tolerance);
  assert.ok(near, `${what} expected ${expected.join()} ± ${tolerance}, received ${actual.join()}`);
}
