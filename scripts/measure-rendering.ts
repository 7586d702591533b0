/**
 * `node scripts/measure-rendering.ts`: the figures that `docs/decisions/0005-rendering.md` quotes, measured on this machine.
 *
 * CPU time of one decode for all variants against a pipeline from the file for each; the memory of a child for pictures at
 * the limits; how long a child takes to load. Prints a table each. Needs Linux for the memory.
 *
 * `node scripts/measure-rendering.ts FOLDER`: the figures of `docs/decisions/0011-recipe-2.md`, from the photographs (JPEG) of the
 * folder: CPU time of the whole render, bytes and likeness of what candidates for a recipe make, against version 1.
 */
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import sharp, { type Sharp } from 'sharp';
import { bareDataBytes, startChild } from '../src/drivers/images-process.ts';
import { variantPath } from '../src/drivers/images-protocol.ts';
import { renderPicture } from '../src/drivers/images-render.ts';
import type { VariantName } from '../src/pipeline/attachment.ts';
import { type Recipe, recipes } from '../src/pipeline/recipe.ts';
import { frames, photo } from '../tests/support/pictures.ts';

const limits = { pixelsMax: 50_000_000, pixelsMaxAvif: 16_000_000, framesMax: 500, scansMax: 64 };
const memoryBytes = 600 * 1024 * 1024;
const recipe = recipes.get(1);
if (!recipe) throw new Error('Expected recipe 1, found none');
/** Of a candidate for a recipe. */
interface Settings {
  /** Of `optimized`. */
  readonly quality: number;
  readonly effort: number;
  /** Of the two JPEGs. */
  readonly small: number;
}

/** The first is version 1, to which all are compared. */
const wanted: readonly Settings[] = [
  { quality: 80, effort: 2, small: 80 },
  { quality: 80, effort: 0, small: 80 },
  { quality: 80, effort: 1, small: 80 },
  { quality: 80, effort: 3, small: 80 },
  { quality: 80, effort: 4, small: 80 },
  { quality: 78, effort: 4, small: 80 },
  { quality: 78, effort: 2, small: 80 },
  { quality: 75, effort: 2, small: 80 },
  { quality: 79, effort: 1, small: 80 },
  { quality: 78, effort: 1, small: 80 },
  { quality: 77, effort: 1, small: 80 },
  { quality: 76, effort: 1, small: 80 },
  { quality: 78, effort: 1, small: 85 },
  { quality: 78, effort: 1, small: 75 },
];

const folder = await mkdtemp(join(tmpdir(), 'skrepka-measure-'));
const photographs = process.argv[2];
try {
  if (photographs !== undefined) {
    console.table(await candidates(recipe, photographs));
  } else {
    console.table(await decodes(recipe));
    console.table(await ceilings(recipe));
  }
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

/* ------------------------------------------------------------------ candidates for a recipe */

interface Sample {
  readonly cpuMs: number;
  readonly bytes: Readonly<Record<VariantName, number>>;
  readonly likeness: Readonly<Record<VariantName, Likeness>>;
}

/** How near a variant is to the same picture before it was encoded. */
interface Likeness {
  readonly decibels: number;
  /** Mean structural similarity of luma, 1 at best. */
  readonly ssim: number;
}

/** Sums of CPU and bytes, means of likeness. The candidates take turns on each photograph, so that a busy moment hits all alike. */
async function candidates(first: Recipe, from: string): Promise<object[]> {
  const names = (await readdir(from)).filter((name) => /\.jpe?g$/i.test(name)).sort();
  const samples = wanted.map((): Sample[] => []);
  for (const name of names) {
    const made = wanted.map((settings) => ({ settings, cpuMs: Number.POSITIVE_INFINITY }));
    for (let round = 0; round < 3; round += 1) {
      for (const one of made) {
        const before = process.cpuUsage();
        await renderPicture({ ...jobFor(join(from, name), 'image/jpeg', withSettings(first, one.settings)), id: 1 });
        const { user, system } = process.cpuUsage(before);
        one.cpuMs = Math.min(one.cpuMs, (user + system) / 1000);
      }
    }
    for (const [index, { settings, cpuMs }] of made.entries()) {
      samples[index]?.push({ cpuMs, ...(await look(join(from, name), withSettings(first, settings))) });
    }
  }
  console.log(`${names.length} photographs of ${from}; CPU is the least of three renders of each.`);
  return samples.map((sample, index) => row(wanted[index] as Settings, sample, samples[0] ?? []));
}

function withSettings(first: Recipe, { quality, effort, small }: Settings): Recipe {
  const variants = first.variants.map((rule) =>
    rule.format === 'webp' ? { ...rule, quality, effort } : { ...rule, quality: small },
  );
  return { ...first, variants };
}

/** Renders once more and compares each variant with its pixels before the encoder. */
async function look(sourcePath: string, from: Recipe): Promise<Omit<Sample, 'cpuMs'>> {
  const rendering = await renderPicture({ ...jobFor(sourcePath, 'image/jpeg', from), id: 1 });
  // A render leaves all loaders blocked but the one of its picture.
  sharp.unblock({ operation: ['VipsForeignLoad'] });
  const { data, info } = await sharp(sourcePath)
    .resize(from.workingEdge, from.workingEdge, { fit: 'inside', withoutEnlargement: true })
    .autoOrient()
    .toColourspace('srgb')
    .raw({ depth: 'uchar' })
    .toBuffer({ resolveWithObject: true });
  const working = () => sharp(data, { raw: { width: info.width, height: info.height, channels: 3 } });
  const bytes: Partial<Record<VariantName, number>> = {};
  const likeness: Partial<Record<VariantName, Likeness>> = {};
  for (const [index, rule] of from.variants.entries()) {
    const variant = rendering.variants[index];
    if (!variant) throw new Error(`Expected the variant ${rule.name}, found none`);
    const { width, height } = variant;
    const fit = rule.fit === 'cover' ? 'cover' : 'fill';
    const [plain, encoded] = await Promise.all([
      luma(working().resize(width, height, { fit })),
      luma(sharp(variantPath(folder, rule))),
    ]);
    bytes[rule.name] = variant.size;
    likeness[rule.name] = compare(plain, encoded, width);
  }
  return { bytes: bytes as Sample['bytes'], likeness: likeness as Sample['likeness'] };
}

async function luma(picture: Sharp): Promise<Buffer> {
  return await picture.removeAlpha().toColourspace('b-w').raw({ depth: 'uchar' }).toBuffer();
}

/** Blocks of 8 × 8 without overlap: the usual constants, no window. */
function compare(plain: Buffer, encoded: Buffer, width: number): Likeness {
  let squares = 0;
  for (let at = 0; at < plain.length; at += 1) squares += ((plain[at] ?? 0) - (encoded[at] ?? 0)) ** 2;
  const height = plain.length / width;
  let similar = 0;
  let blocks = 0;
  for (let top = 0; top + 8 <= height; top += 8) {
    for (let left = 0; left + 8 <= width; left += 8) {
      similar += similarity(plain, encoded, top * width + left, width);
      blocks += 1;
    }
  }
  return { decibels: 10 * Math.log10(255 ** 2 / Math.max(squares / plain.length, 1e-9)), ssim: similar / blocks };
}

function similarity(a: Buffer, b: Buffer, start: number, width: number): number {
  let [sumA, sumB, sumAA, sumBB, sumAB] = [0, 0, 0, 0, 0];
  for (let y = 0; y < 8; y += 1) {
    for (let x = 0; x < 8; x += 1) {
      const one = a[start + y * width + x] ?? 0;
      const other = b[start + y * width + x] ?? 0;
      sumA += one;
      sumB += other;
      sumAA += one * one;
      sumBB += other * other;
      sumAB += one * other;
    }
  }
  const [meanA, meanB] = [sumA / 64, sumB / 64];
  const [c1, c2] = [(0.01 * 255) ** 2, (0.03 * 255) ** 2];
  const covariance = sumAB / 64 - meanA * meanB;
  const variances = sumAA / 64 - meanA ** 2 + (sumBB / 64 - meanB ** 2);
  return ((2 * meanA * meanB + c1) * (2 * covariance + c2)) / ((meanA ** 2 + meanB ** 2 + c1) * (variances + c2));
}

function row({ quality, effort, small }: Settings, sample: readonly Sample[], first: readonly Sample[]): object {
  const sum = (of: readonly Sample[], value: (one: Sample) => number) =>
    of.reduce((total, one) => total + value(one), 0);
  const percent = (value: (one: Sample) => number) =>
    `${((100 * sum(sample, value)) / sum(first, value) - 100).toFixed(1)} %`;
  const mean = (value: (one: Sample) => number) => sum(sample, value) / sample.length;
  return {
    optimized: `quality ${quality}, effort ${effort}`,
    small: `quality ${small}`,
    'CPU a picture, ms': Math.round(mean(({ cpuMs }) => cpuMs)),
    CPU: percent(({ cpuMs }) => cpuMs),
    'bytes of optimized': percent(({ bytes }) => bytes.optimized),
    'its SSIM': mean(({ likeness }) => likeness.optimized.ssim).toFixed(4),
    'its dB': mean(({ likeness }) => likeness.optimized.decibels).toFixed(2),
    'bytes of the small': percent(({ bytes }) => bytes.thumbnail + bytes.crop),
    'SSIM of the thumbnail': mean(({ likeness }) => likeness.thumbnail.ssim).toFixed(4),
  };
}
