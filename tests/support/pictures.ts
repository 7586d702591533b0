/**
 * Makers of test pictures: real ones by sharp, hostile ones byte by byte. Everything is drawn from a seed, so that a
 * failing case can be made again.
 */
import { crc32, deflateSync } from 'node:zlib';
import sharp, { type Sharp } from 'sharp';

/** A small seeded generator (mulberry32): numbers in [0, 1). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Raw RGB pixels with soft gradients and a little noise: compresses like a photograph. */
export function photo(width: number, height: number, seed = 1): Sharp {
  const random = seeded(seed);
  const phase = random() * 6;
  const pixels = Buffer.allocUnsafe(width * height * 3);
  let at = 0;
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const grain = random() * 12;
      pixels[at++] = 110 + 90 * Math.sin(phase + (3 * x) / width) + grain;
      pixels[at++] = 110 + 90 * Math.sin(phase + 2 + (4 * y) / height) + grain;
      pixels[at++] = 110 + 90 * Math.sin(phase + 4 + (2 * (x + y)) / (width + height)) + grain;
    }
  }
  return sharp(pixels, { limitInputPixels: false, raw: { width, height, channels: 3 } });
}

/** One colour everywhere, made lazily by libvips: large ones cost no memory here. */
export function flat(
  width: number,
  height: number,
  colour: { r: number; g: number; b: number; alpha?: number },
): Sharp {
  return sharp({
    limitInputPixels: false,
    create: { width, height, channels: colour.alpha === undefined ? 3 : 4, background: colour },
  });
}

/** The quarters of an upright picture, row by row: red, green, blue, pale. */
export const quarterColours = [
  [220, 30, 30],
  [30, 200, 30],
  [30, 30, 220],
  [240, 240, 240],
] as const;

/** A picture of four quarters as a camera held in the given EXIF orientation stores it: upright once it is turned. */
export async function quarters(width: number, height: number, orientation: number): Promise<Sharp> {
  const pixels = Buffer.allocUnsafe(width * height * 3);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const colour = quarterColours[(y < height / 2 ? 0 : 2) + (x < width / 2 ? 0 : 1)] ?? [0, 0, 0];
      pixels.set(colour, (y * width + x) * 3);
    }
  }
  const turns: Readonly<Record<number, (picture: Sharp) => Sharp>> = {
    2: (picture) => picture.flop(),
    3: (picture) => picture.rotate(180),
    4: (picture) => picture.flip(),
    5: (picture) => picture.rotate(90),
    6: (picture) => picture.rotate(270),
    7: (picture) => picture.rotate(270),
    8: (picture) => picture.rotate(90),
  };
  const upright = sharp(pixels, { raw: { width, height, channels: 3 } });
  const turned = turns[orientation]?.(upright) ?? upright;
  if (orientation !== 5 && orientation !== 7) return sharp(...(await raw(turned)));
  // Two passes, because sharp has an order of its own for turning and mirroring.
  return sharp(...(await raw(sharp(...(await raw(turned))).flop())));
}

/** The pixels of a picture as arguments for `sharp`. */
export async function raw(
  picture: Sharp,
): Promise<[Buffer, { raw: { width: number; height: number; channels: 3 | 4 } }]> {
  const { data, info } = await picture.raw().toBuffer({ resolveWithObject: true });
  return [data, { raw: { width: info.width, height: info.height, channels: info.channels === 4 ? 4 : 3 } }];
}

/** Frames of distinct flat colours, one below the other, as sharp takes an animation. Colours are those of `frameColour`. */
export function frames(width: number, height: number, count: number): Sharp {
  const pixels = Buffer.allocUnsafe(width * height * count * 3);
  for (let frame = 0; frame < count; frame += 1) {
    const colour = Buffer.from(frameColour(frame));
    pixels.fill(colour, frame * width * height * 3, (frame + 1) * width * height * 3);
  }
  return sharp(pixels, {
    limitInputPixels: false,
    raw: { width, height: height * count, channels: 3, pageHeight: height },
  });
}

/** The colour of a frame of `frames`. The first is red, so that "the first frame" can be told. */
export function frameColour(frame: number): [number, number, number] {
  return frame === 0 ? [200, 20, 20] : [20, 40 + ((frame * 37) % 180), 200 - ((frame * 53) % 160)];
}

/** A flat PNG with one bit a pixel: huge in pixels, small in bytes, and cheap to make. */
export function bitPng(width: number, height: number): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([1, 0, 0, 0, 0], 8);
  const rows = deflateSync(Buffer.alloc((Math.ceil(width / 8) + 1) * height), { level: 1 });
  return Buffer.concat([
    pngSignature,
    pngChunk('IHDR', header),
    pngChunk('IDAT', rows),
    pngChunk('IEND', Buffer.alloc(0)),
  ]);
}

/** The PNG with chunks put in before its pixels, e.g. hundreds of compressed texts. */
export function withPngChunks(png: Buffer, kind: string, data: Buffer, count: number): Buffer {
  const chunk = pngChunk(kind, data);
  const afterHeader = 8 + 25;
  return Buffer.concat([png.subarray(0, afterHeader), ...Array(count).fill(chunk), png.subarray(afterHeader)]);
}

const pngSignature = Buffer.from('89504e470d0a1a0a', 'hex');

export function pngChunk(kind: string, data: Buffer): Buffer {
  const chunk = Buffer.alloc(12 + data.length);
  chunk.writeUInt32BE(data.length, 0);
  chunk.write(kind, 4, 'latin1');
  data.copy(chunk, 8);
  chunk.writeUInt32BE(crc32(chunk.subarray(4, 8 + data.length)), 8 + data.length);
  return chunk;
}

/** The JPEG with another size in its frame header: the header lies, the scans are those of the small picture. */
export function claimSize(jpeg: Buffer, width: number, height: number): Buffer {
  const lying = Buffer.from(jpeg);
  const at = segments(jpeg).find(({ marker }) => marker === 0xc0 || marker === 0xc2)?.at;
  if (at === undefined) throw new Error('Expected a JPEG with a frame header, received one without');
  lying.writeUInt16BE(height, at + 5);
  lying.writeUInt16BE(width, at + 7);
  return lying;
}

/** The progressive JPEG with its last scan repeated until there are `count`. */
export function repeatScans(jpeg: Buffer, count: number): Buffer {
  const scans = segments(jpeg).filter(({ marker }) => marker === 0xda);
  const last = scans.at(-1);
  if (!last) throw new Error('Expected a JPEG with scans, received one without');
  const end = jpeg.lastIndexOf(Buffer.from([0xff, 0xd9]));
  const scan = jpeg.subarray(last.at, end);
  return Buffer.concat([jpeg.subarray(0, end), ...Array(count - scans.length).fill(scan), Buffer.from([0xff, 0xd9])]);
}

/** Where the compressed data of the first scan begin. */
export function firstScanAt(jpeg: Buffer): number {
  const scan = segments(jpeg).find(({ marker }) => marker === 0xda);
  if (!scan) throw new Error('Expected a JPEG with a scan, received one without');
  return scan.at + 2 + jpeg.readUInt16BE(scan.at + 2);
}

/** The marker segments of a well-formed JPEG, in order. */
export function segments(jpeg: Buffer): { marker: number; at: number }[] {
  const found: { marker: number; at: number }[] = [];
  let at = 2;
  while (at + 4 <= jpeg.length) {
    const marker = jpeg[at + 1] ?? 0;
    if (jpeg[at] !== 0xff || marker === 0xd9) break;
    found.push({ marker, at });
    at += 2 + jpeg.readUInt16BE(at + 2);
    if (marker !== 0xda) continue;
    while (at + 1 < jpeg.length && (jpeg[at] !== 0xff || isInsideScan(jpeg[at + 1] ?? 0))) at += 1;
  }
  return found;
}

function isInsideScan(second: number): boolean {
  return second === 0 || (second >= 0xd0 && second <= 0xd7);
}

/** A JPEG segment put in right after the start of the image, e.g. a comment that contains markers. */
export function withSegment(jpeg: Buffer, marker: number, data: Buffer): Buffer {
  const head = Buffer.from([0xff, marker, 0, 0]);
  head.writeUInt16BE(data.length + 2, 2);
  return Buffer.concat([jpeg.subarray(0, 2), head, data, jpeg.subarray(2)]);
}

/** An animated WebP that repeats one lossy still picture: many frames in few bytes. */
export async function repeatedWebp(width: number, height: number, count: number): Promise<Buffer> {
  const still = await flat(width, height, { r: 200, g: 20, b: 20 }).webp().toBuffer();
  const bitstream = still.subarray(12);
  const extended = Buffer.alloc(10);
  extended[0] = 0x02;
  extended.writeUIntLE(width - 1, 4, 3);
  extended.writeUIntLE(height - 1, 7, 3);
  const placement = Buffer.alloc(16);
  placement.writeUIntLE(width - 1, 6, 3);
  placement.writeUIntLE(height - 1, 9, 3);
  placement.writeUIntLE(40, 12, 3);
  const frame = riffChunk('ANMF', Buffer.concat([placement, bitstream]));
  const body = Buffer.concat([
    Buffer.from('WEBP'),
    riffChunk('VP8X', extended),
    riffChunk('ANIM', Buffer.alloc(6)),
    ...Array(count).fill(frame),
  ]);
  return riffChunk('RIFF', body);
}

function riffChunk(kind: string, data: Buffer): Buffer {
  const head = Buffer.alloc(8);
  head.write(kind, 0, 'latin1');
  head.writeUInt32LE(data.length, 4);
  return Buffer.concat([head, data, Buffer.alloc(data.length % 2)]);
}

/** The bytes with `count` of those from `from` on replaced by others, drawn from `seed`. */
export function flipped(bytes: Buffer, from: number, count: number, seed: number): Buffer {
  const random = seeded(seed);
  const damaged = Buffer.from(bytes);
  for (let index = 0; index < count; index += 1) {
    const at = from + Math.floor(random() * (bytes.length - from));
    damaged[at] = ((damaged[at] ?? 0) + 1 + Math.floor(random() * 255)) & 0xff;
  }
  return damaged;
}

/** The picture with a word behind it that `images-hostile-child.ts` obeys, as a decoder with a hole would: `hang`, `segfault`, `swell` … */
export function withMisdeed(picture: Buffer, misdeed: string): Buffer {
  return Buffer.concat([picture, Buffer.from(`misdeed:${misdeed}`)]);
}
