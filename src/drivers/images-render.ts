/**
 * One render, inside a child process: probe, one decode to raw pixels, every variant from those. The only file that
 * imports sharp and thumbhash; it runs nowhere but in a child, because a hostile picture may crash, hang or swell it.
 *
 * `docs/decisions/0005-rendering.md` tells why it is done so and how the settings were measured.
 */
import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import sharp, { type Sharp } from 'sharp';
import { rgbaToThumbHash } from 'thumbhash';
import { SkrepkaError } from '../errors.ts';
import type { ImageType } from '../pipeline/attachment.ts';
import type { Recipe, VariantRule } from '../pipeline/recipe.ts';
import { fitInside, hasMoreScans, isSrgbProfile, piecesOf, readHead, type Size, webpCanvas } from './images-probe.ts';
import { type ChildRendering, type ChildVariant, type Job, variantPath } from './images-protocol.ts';

/** One thread a child: as many single-job children as cores beat one child with many threads. No cache: no picture comes twice. */
sharp.concurrency(1);
sharp.cache(false);

/** The libvips loader of each type, by class name, file variant only: bytes never come from memory. */
const loaders: Readonly<Record<ImageType, string>> = {
  'image/jpeg': 'VipsForeignLoadJpegFile',
  'image/png': 'VipsForeignLoadPngFile',
  'image/webp': 'VipsForeignLoadWebpFile',
  'image/gif': 'VipsForeignLoadNsgifFile',
  'image/avif': 'VipsForeignLoadHeifFile',
};

/**
 * `error` refuses what is cut off or fails a checksum. It lets pass what libjpeg only warns of (stray bytes between
 * segments, a broken Huffman code): many cameras write such files, every viewer shows them, and so do the variants.
 */
const failOn = 'error';

/** libwebp and sharp hold delays and loop counts in 16 bits. */
const uint16Max = 65_535;

/** What the probe tells of a picture. `width` and `height` are those of one frame as it is stored, before orientation. */
interface Facts {
  readonly width: number;
  readonly height: number;
  readonly frames: number;
  /** EXIF orientation, 1 to 8. */
  readonly orientation: number;
  readonly ignoreProfile: boolean;
  readonly deepWithProfile: boolean;
  readonly delaysMs: readonly number[];
  readonly loop: number;
}

/** Raw sRGB pixels, 8 bit, upright, frame below frame. `width` and `height` are those of one frame. */
interface Working {
  readonly data: Buffer;
  readonly width: number;
  readonly height: number;
  readonly channels: 3 | 4;
  readonly frames: number;
}

/**
 * Renders the picture of `job` into its output folder. Throws a `SkrepkaError`: `corrupt_image`, `too_many_pixels`,
 * `too_many_frames`, `too_many_scans`, `render_memory` where the decoder said that it ran out, `internal` where the
 * source is missing or a variant could not be written.
 */
export async function renderPicture(job: Job): Promise<ChildRendering> {
  await stat(job.sourcePath).catch((cause: unknown) => {
    throw new SkrepkaError('internal', { log: 'the picture to render cannot be found', cause });
  });
  allowOnly(loaders[job.contentType]);
  const facts = await judged('corrupt_image', 'probe', () => probe(job));
  const seen = upright(facts, facts.orientation);
  const working = await judged('corrupt_image', 'decode', () => decode(job, facts));
  const small = await judged('internal', 'shrink', () => shrink(job.recipe, working, seen));
  const variants: ChildVariant[] = [];
  for (const rule of job.recipe.variants) {
    const from = rule === small?.rule ? small.pixels : working;
    variants.push(await judged('internal', rule.name, () => writeVariant(job, facts, from, seen, rule)));
  }
  const placeholder = await judged('internal', 'placeholder', () => placeholderOf(small?.pixels ?? working));
  free(working.data);
  return { ...seen, frames: facts.frames, placeholder, variants };
}

/** The loader of the sniffed type and no other: a file that is something else is not even looked at. */
function allowOnly(loader: string): void {
  sharp.block({ operation: ['VipsForeignLoad'] });
  sharp.unblock({ operation: [loader] });
}

async function judged<T>(otherwise: 'corrupt_image' | 'internal', stage: string, step: () => Promise<T>): Promise<T> {
  try {
    return await step();
  } catch (cause) {
    if (cause instanceof SkrepkaError) throw cause;
    const text = String(cause);
    const code = saysOutOfMemory(text)
      ? 'render_memory'
      : /exceeds pixel limit/.test(text)
        ? 'too_many_pixels'
        : otherwise;
    throw new SkrepkaError(code, { log: `${stage} failed`, cause });
  }
}

/**
 * The words in which libvips, its codecs, GLib, C++ and V8 say that memory ran out. libheif calls it a memory error, too,
 * when a picture is larger than its own header says: that is a lie of the picture, and no shortage.
 */
export function saysOutOfMemory(text: string): boolean {
  if (/security limit exceeded/i.test(text)) return false;
  return /out of memory|bad_alloc|bad alloc|failed to allocate|cannot allocate|allocation (failed|error)|insufficient memory/i.test(
    text,
  );
}

async function probe(job: Job): Promise<Facts> {
  const { limits, contentType } = job;
  const pixelsMax = contentType === 'image/avif' ? limits.pixelsMaxAvif : limits.pixelsMax;
  if (contentType === 'image/webp') {
    const canvas = webpCanvas(await readHead(job.sourcePath, 30));
    if (canvas) refuseTooMany({ ...canvas, frames: 1 }, pixelsMax);
  }
  const found = await sharp(job.sourcePath, { failOn, limitInputPixels: false }).metadata();
  if (found.mediaType !== contentType) {
    throw new SkrepkaError('corrupt_image', { log: `expected ${contentType}, the loader found ${found.mediaType}` });
  }
  const animated = contentType === 'image/gif' || contentType === 'image/webp';
  const frames = animated ? Math.max(1, found.pages ?? 1) : 1;
  if (frames > limits.framesMax) {
    throw new SkrepkaError('too_many_frames', { log: `${frames} frames, at most ${limits.framesMax}` });
  }
  refuseTooMany({ width: found.width, height: found.height, frames }, pixelsMax);
  if (contentType === 'image/jpeg' && hasMoreScans(job.sourcePath, limits.scansMax)) {
    throw new SkrepkaError('too_many_scans', { log: `more than ${limits.scansMax} scans` });
  }
  const ignoreProfile = found.icc !== undefined && isSrgbProfile(found.icc);
  return {
    width: found.width,
    height: found.height,
    frames,
    orientation: found.orientation ?? 1,
    ignoreProfile,
    deepWithProfile: found.icc !== undefined && !ignoreProfile && found.depth === 'ushort' && found.channels >= 3,
    delaysMs: (found.delay ?? []).slice(0, frames).map((delay) => Math.min(Math.max(delay, 0), uint16Max)),
    loop: Math.min(found.loop ?? 0, uint16Max),
  };
}

function refuseTooMany({ width, height, frames }: Size & { frames: number }, pixelsMax: number): void {
  if (width * height * frames <= pixelsMax) return;
  throw new SkrepkaError('too_many_pixels', { log: `${width} × ${height} × ${frames} pixels, at most ${pixelsMax}` });
}

function upright(size: Size, orientation: number): Size {
  return orientation >= 5 ? { width: size.height, height: size.width } : { width: size.width, height: size.height };
}

/**
 * The one decode, resized on the way to at most `workingEdge`. For a still, `autoOrient` comes after `resize`: the other
 * way round sharp turns the picture at full size and gives shrink-on-load up. An animation is turned by hand, because
 * sharp refuses to turn more than one page.
 */
async function decode(job: Job, facts: Facts): Promise<Working> {
  const edge = job.recipe.workingEdge;
  const target = fitInside(upright(facts, facts.orientation), { width: edge, height: edge });
  const still = facts.frames === 1;
  const stored = still ? target : upright(target, facts.orientation);
  let picture = sharp(job.sourcePath, {
    failOn,
    limitInputPixels: facts.width * facts.height * facts.frames,
    ignoreIcc: facts.ignoreProfile,
    ...(still ? {} : { pages: facts.frames }),
  }).resize(stored.width, stored.height, { fit: 'fill' });
  if (still) picture = picture.autoOrient();
  // sharp converts 16-bit pictures to Display P3 by their profile; without this second step they would stay there.
  if (facts.deepWithProfile) picture = picture.withIccProfile('srgb');
  const { data, info } = await picture
    .toColourspace('srgb')
    .raw({ depth: 'uchar' })
    .toBuffer({ resolveWithObject: true });
  const channels = info.channels;
  if ((channels !== 3 && channels !== 4) || data.length !== stored.width * stored.height * facts.frames * channels) {
    throw new SkrepkaError('corrupt_image', { log: `decoded to ${info.width} × ${info.height} × ${channels}` });
  }
  const decoded: Working = { data, ...stored, channels, frames: facts.frames };
  if (still) return channels === 4 && isOpaque(data) ? await withoutAlpha(decoded) : decoded;
  return facts.orientation === 1 ? decoded : orient(decoded, facts.orientation);
}

/** Most pictures that have transparency use none of it. */
function isOpaque(rgba: Buffer): boolean {
  for (let at = 3; at < rgba.length; at += 4) if (rgba[at] !== 255) return false;
  return true;
}

/** The same bytes of every variant, for less work: encoders look at an alpha of nothing but 255 as well. */
async function withoutAlpha(decoded: Working): Promise<Working> {
  const { data, width, height, channels } = decoded;
  const plain = await sharp(data, { raw: { width, height, channels } }).removeAlpha().raw().toBuffer();
  free(data);
  return { ...decoded, data: plain, channels: 3 };
}

/** Gives pixels back at once: the collector sees a small object, and may leave 100 MB behind it for many renders. */
function free({ buffer, byteLength }: Buffer): void {
  // What is a part of a larger one is not ours alone.
  if (buffer instanceof ArrayBuffer && buffer.byteLength === byteLength) buffer.transfer(0);
}

/** Turns every frame of an animation upright. */
function orient(from: Working, orientation: number): Working {
  const { width, height, channels, frames } = from;
  const to = upright(from, orientation);
  const flipX = [2, 3, 7, 8].includes(orientation);
  const flipY = [3, 4, 6, 7].includes(orientation);
  const data = Buffer.allocUnsafe(from.data.length);
  let at = 0;
  for (let frame = 0; frame < frames; frame += 1) {
    const start = frame * width * height;
    for (let y = 0; y < to.height; y += 1) {
      for (let x = 0; x < to.width; x += 1) {
        const [u, v] = orientation >= 5 ? [y, x] : [x, y];
        const column = flipX ? width - 1 - u : u;
        const row = flipY ? height - 1 - v : v;
        const source = (start + row * width + column) * channels;
        for (let channel = 0; channel < channels; channel += 1) data[at++] = from.data[source + channel] ?? 0;
      }
    }
  }
  return { data, width: to.width, height: to.height, channels, frames };
}

/**
 * The pixels of the first small variant, which the placeholder is made of as well: one pass less over the large ones. Null where
 * the variant would not be the same, byte for byte: sharp lays transparency on white before it resizes. And where there is nothing to shrink.
 */
async function shrink(
  recipe: Recipe,
  working: Working,
  seen: Size,
): Promise<{ rule: VariantRule; pixels: Working } | null> {
  const rule = recipe.variants.find(({ fit, format }) => fit === 'inside' && format === 'jpeg');
  if (rule === undefined || working.channels !== 3 || working.frames > 1) return null;
  const size = sizeOf(recipe, rule, seen);
  if (size.width === working.width && size.height === working.height) return null;
  const data = await firstFrame(working).resize(size.width, size.height, { fit: 'fill' }).raw().toBuffer();
  return { rule, pixels: { ...working, ...size, data } };
}

function firstFrame(working: Working): Sharp {
  const { data, width, height, channels } = working;
  return sharp(data.subarray(0, width * height * channels), { raw: { width, height, channels } });
}

function allFrames(working: Working): Sharp {
  const { data, width, height, channels, frames } = working;
  // Without `animated`, sharp takes the frames for one tall still as soon as it resizes.
  return sharp(data, {
    animated: frames > 1,
    limitInputPixels: false,
    raw: { width, height: height * frames, channels, pageHeight: height },
  });
}

function sizeOf({ workingEdge }: Recipe, { fit, box }: VariantRule, seen: Size): Size {
  if (fit === 'cover') return box;
  return fitInside(seen, { width: Math.min(box.width, workingEdge), height: Math.min(box.height, workingEdge) });
}

/** sharp writes no metadata unless asked to, so that nothing of EXIF, GPS, XMP or ICC can be left. */
async function writeVariant(
  job: Job,
  facts: Facts,
  working: Working,
  seen: Size,
  rule: VariantRule,
): Promise<ChildVariant> {
  const path = variantPath(job.outputDir, rule);
  const size = sizeOf(job.recipe, rule, seen);
  const moving = rule.format === 'webp' && working.frames > 1;
  const fitted = (moving ? allFrames(working) : firstFrame(working)).resize(size.width, size.height, {
    fit: rule.fit === 'cover' ? 'cover' : 'fill',
    position: 'centre',
  });
  const encoded =
    rule.format === 'jpeg'
      ? fitted.flatten({ background: '#ffffff' }).jpeg({ quality: rule.quality, mozjpeg: rule.mozjpeg })
      : fitted.webp({
          quality: rule.quality,
          effort: rule.effort,
          ...(moving ? { loop: facts.loop, delay: [...facts.delaysMs] } : {}),
        });
  const written = await encoded.toFile(path);
  const { width, pageHeight = written.height, pages = 1 } = written;
  if (width !== size.width || pageHeight !== size.height || pages !== (moving ? working.frames : 1)) {
    throw new Error(`expected ${size.width} × ${size.height}, wrote ${width} × ${pageHeight} × ${pages}`);
  }
  return { ...size, ...digestOf(path) };
}

function digestOf(path: string): { size: number; sha256: string } {
  const hash = createHash('sha256');
  let size = 0;
  for (const piece of piecesOf(path)) {
    hash.update(piece);
    size += piece.length;
  }
  return { size, sha256: hash.digest('hex') };
}

/** A ThumbHash in base64, of the first frame at 100 pixels at most, which is all that the algorithm takes. */
async function placeholderOf(working: Working): Promise<string> {
  const { width, height } = fitInside(working, { width: 100, height: 100 });
  const pixels = await firstFrame(working).resize(width, height, { fit: 'fill' }).ensureAlpha().raw().toBuffer();
  return Buffer.from(rgbaToThumbHash(width, height, pixels)).toString('base64');
}
