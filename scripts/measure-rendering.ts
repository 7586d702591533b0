/**
 * `node scripts/measure-rendering.ts`: the figures that `docs/decisions/0005-rendering.md` quotes, measured on this machine.
 *
 * CPU time of one decode for all variants against a pipeline from the file for each; the memory of a child for pictures at
 * the limits; how long a child takes to load. Prints a table each. Needs Linux for the memory.
 */
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import sharp, { type Sharp } from 'sharp';
import { bareDataBytes, startChild } from '../src/drivers/images-process.ts';
import { renderPicture } from '../src/drivers/images-render.ts';
import { type Recipe, recipes } from '../src/pipeline/recipe.ts';
import { frames, photo } from '../tests/support/pictures.ts';

const limits = { pixelsMax: 50_000_000, pixelsMaxAvif: 16_000_000, framesMax: 500, scansMax: 64 };
const memoryBytes = 600 * 1024 * 1024;
const recipe = recipes.get(1);
if (!recipe) throw new Error('Expected recipe 1, found none');
const folder = await mkdtemp(join(tmpdir(), 'skrepka-measure-'));
try {
  console.table(await decodes(recipe));
  console.table(await ceilings(recipe));
} finally {
  await rm(folder, { recursive: true, force: true });
}

/** CPU milliseconds, the median of five, of the driver's plan and of three pipelines that each decode the file. */
async function decodes(from: Recipe): Promise<object[]> {
  const large = () => photo(1500, 1000).resize(6000, 4000, { fit: 'fill' });
  const pictures: [string, string, Sharp][] = [
    ['24 MP JPEG', 'image/jpeg', large().jpeg({ quality: 90 })],
    ['24 MP JPEG, sRGB profile', 'image/jpeg', large().withIccProfile('srgb').jpeg({ quality: 90 })],
    ['24 MP progressive JPEG', 'image/jpeg', large().jpeg({ quality: 90, progressive: true })],
    ['24 MP PNG', 'image/png', large().png({ compressionLevel: 1 })],
    ['12 MP WebP', 'image/webp', photo(1500, 1000).resize(4000, 3000, { fit: 'fill' }).webp({ effort: 0 })],
    ['12 MP AVIF', 'image/avif', photo(1500, 1000).resize(4000, 3000, { fit: 'fill' }).avif({ effort: 0 })],
  ];
  const rows: object[] = [];
  for (const [picture, type, make] of pictures) {
    const sourcePath = await store(make);
    const one = await median(() => renderPicture({ ...jobFor(sourcePath, type, from), id: 1 }));
    const three = await median(() => separately(sourcePath, from));
    rows.push({
      picture,
      'one decode, ms': one,
      'three pipelines, ms': three,
      ratio: Number((three / one).toFixed(2)),
    });
  }
  return rows;
}

function jobFor(sourcePath: string, contentType: string, from: Recipe) {
  return { sourcePath, outputDir: folder, contentType: contentType as 'image/jpeg', recipe: from, limits };
}

async function separately(sourcePath: string, from: Recipe): Promise<void> {
  for (const rule of from.variants) {
    const fit = rule.fit === 'cover' ? 'cover' : 'inside';
    const resized = sharp(sourcePath).resize(rule.box.width, rule.box.height, {
      fit,
      withoutEnlargement: fit === 'inside',
    });
    const turned = resized.autoOrient();
    await (rule.format === 'jpeg'
      ? turned.flatten({ background: '#ffffff' }).jpeg({ quality: rule.quality, mozjpeg: rule.mozjpeg })
      : turned.webp({ quality: rule.quality, effort: rule.effort })
    ).toFile(join(folder, `separate.${rule.format}`));
  }
}

async function median(step: () => Promise<unknown>): Promise<number> {
  const all: number[] = [];
  for (let round = 0; round < 5; round += 1) {
    const before = process.cpuUsage();
    await step();
    const { user, system } = process.cpuUsage(before);
    all.push((user + system) / 1000);
  }
  return Math.round(all.sort((a, b) => a - b)[2] ?? 0);
}

/** What a fresh child takes for a picture at the limit: peak resident memory, wall-clock time, and the time to load before. */
async function ceilings(from: Recipe): Promise<object[]> {
  const wide = () => photo(1768, 1768).resize(7071, 7071, { fit: 'fill' });
  const square = () => photo(1000, 1000).resize(4000, 4000, { fit: 'fill' });
  const pictures: [string, string, Sharp][] = [
    ['50 MP JPEG', 'image/jpeg', wide().jpeg()],
    ['50 MP progressive JPEG, 4:4:4', 'image/jpeg', wide().jpeg({ progressive: true, chromaSubsampling: '4:4:4' })],
    [
      '50 MP PNG, 16 bit, alpha, interlaced',
      'image/png',
      wide().ensureAlpha(0.5).toColourspace('rgb16').png({ progressive: true, compressionLevel: 1 }),
    ],
    ['50 MP WebP, lossless', 'image/webp', wide().webp({ lossless: true, effort: 0 })],
    ['500 frames of 316 × 316, WebP', 'image/webp', frames(316, 316, 500).webp({ effort: 0 })],
    ['2 frames of 5000 × 5000, GIF', 'image/gif', frames(5000, 5000, 2).gif({ effort: 1, colours: 4 })],
    [
      '16 MP AVIF, 10 bit, alpha, 4:4:4',
      'image/avif',
      square().ensureAlpha(0.5).avif({ effort: 0, bitdepth: 10, chromaSubsampling: '4:4:4' }),
    ],
  ];
  const bareBytes = await bareDataBytes();
  const script = new URL('../src/drivers/images-child.ts', import.meta.url);
  const rows: object[] = [];
  for (const [picture, type, make] of pictures) {
    const sourcePath = await store(make);
    const startMs = performance.now();
    const child = startChild({ script, memoryBytes, bareBytes, niceness: 0, startMs: 30_000 });
    await child.ready;
    const readyMs = performance.now();
    const answer = await child.ask({ ...jobFor(sourcePath, type, from), id: 1 });
    const outcome = answer === null ? 'died' : answer.kind === 'refused' ? answer.code : 'done';
    const peak = answer === null ? NaN : await peakMebibytes(child.pid);
    rows.push({
      picture,
      outcome,
      'peak, MiB': peak,
      'render, ms': Math.round(performance.now() - readyMs),
      'load, ms': Math.round(readyMs - startMs),
    });
    child.kill();
    await child.ended;
  }
  console.log(`An empty Node ${process.version} counts ${Math.round(bareBytes / 1024 / 1024)} MiB as data.`);
  return rows;
}

async function peakMebibytes(pid: number | undefined): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  return Math.round(Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1] ?? NaN) / 1024);
}

async function store(picture: Sharp): Promise<string> {
  await mkdir(folder, { recursive: true });
  const path = join(folder, 'source');
  await writeFile(path, await picture.toBuffer());
  return path;
}
