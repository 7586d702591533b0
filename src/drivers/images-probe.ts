/**
 * What can be told of a picture without decoding it and without the decoder's library: how many scans a JPEG has,
 * how large a WebP claims to be, whether a colour profile is sRGB, how large a picture may become. Pure, but for reading.
 */
import { closeSync, openSync, readSync } from 'node:fs';
import { open } from 'node:fs/promises';

/**
 * Whether the JPEG file at `path` has more than `scansMax` scans. A progressive JPEG of 246 KB with 2,000 scans costs 8 s
 * of CPU to decode. The markers are followed only where there are as many pairs of bytes that could be one: a search
 * for those is native, and nearly every picture ends there.
 */
export function hasMoreScans(path: string, scansMax: number): boolean {
  return countScanBytes(path, scansMax) > scansMax && countScans(path, scansMax) > scansMax;
}

const scanStart = Buffer.from([0xff, 0xda]);

/** How often the two bytes of an SOS marker stand in the file, be they one or not: never less than it has scans. Stops above `enough`. */
export function countScanBytes(path: string, enough: number): number {
  let count = 0;
  let last = 0;
  for (const piece of piecesOf(path)) {
    if (last === 0xff && piece[0] === 0xda) count += 1;
    for (let at = piece.indexOf(scanStart); at >= 0 && count <= enough; at = piece.indexOf(scanStart, at + 2))
      count += 1;
    if (count > enough) break;
    last = piece.at(-1) ?? 0;
  }
  return count;
}

/**
 * Counts the scans (SOS markers, ITU-T T.81 annex B) of the JPEG file at `path` and stops as soon as there are more
 * than `scansMax`, so that the answer is at most `scansMax + 1`.
 */
export function countScans(path: string, scansMax: number): number {
  const counter = createScanCounter();
  for (const piece of piecesOf(path)) {
    counter.push(piece);
    if (counter.ended() || counter.scans() > scansMax) break;
  }
  return Math.min(counter.scans(), scansMax + 1);
}

let piece: Buffer | null = null;

/**
 * The bytes of a file in pieces of at most 256 KiB. One buffer for all, so a piece is valid until the next is asked for, and
 * one file is read at a time. Blocks: a child has nothing else to do meanwhile, and each round through the thread pool
 * costs as much as 100 KB of hashing.
 */
export function* piecesOf(path: string): Generator<Buffer> {
  piece ??= Buffer.allocUnsafeSlow(256 * 1024);
  const file = openSync(path, 'r');
  try {
    for (let read = readSync(file, piece); read > 0; read = readSync(file, piece)) yield piece.subarray(0, read);
  } finally {
    closeSync(file);
  }
}

export interface ScanCounter {
  push(chunk: Uint8Array): void;
  scans(): number;
  /** True after the end-of-image marker: what follows is not part of the picture. */
  ended(): boolean;
}

/**
 * Follows the markers the way libjpeg does: a segment's payload is skipped by its length, so that an FF DA inside a
 * thumbnail or a profile counts for nothing; bytes that belong to no segment are skipped to the next marker.
 */
export function createScanCounter(): ScanCounter {
  let state: 'seek' | 'code' | 'length' | 'length2' | 'skip' | 'ended' = 'seek';
  let marker = 0;
  let left = 0;
  let count = 0;

  /** In entropy-coded data FF 00 is a stuffed byte and FF D0…D7 a restart: neither ends it, and neither has a length. */
  const onCode = (code: number): void => {
    if (code === 0xff) return;
    const standalone = code === 0x00 || code === 0x01 || (code >= 0xd0 && code <= 0xd8);
    if (code === 0xd9) state = 'ended';
    else if (standalone) state = 'seek';
    else {
      marker = code;
      state = 'length';
    }
  };
  const onLength = (length: number): void => {
    // A length below 2 is an error on which the decoder gives up; here it is an empty segment.
    left = Math.max(0, length - 2);
    if (marker === 0xda) count += 1;
    state = left > 0 ? 'skip' : 'seek';
  };

  return {
    push(chunk) {
      let at = 0;
      while (at < chunk.length && state !== 'ended') {
        if (state === 'seek') {
          const found = chunk.indexOf(0xff, at);
          if (found < 0) return;
          at = found + 1;
          state = 'code';
          continue;
        }
        if (state === 'skip') {
          const step = Math.min(left, chunk.length - at);
          at += step;
          left -= step;
          if (left === 0) state = 'seek';
          continue;
        }
        const byte = chunk[at] ?? 0;
        at += 1;
        if (state === 'code') onCode(byte);
        else if (state === 'length') {
          left = byte << 8;
          state = 'length2';
        } else onLength(left | byte);
      }
    },
    scans: () => count,
    ended: () => state === 'ended',
  };
}

/**
 * The canvas of the WebP file that starts with `head` (30 bytes suffice), from whichever of the three chunks comes
 * first (RFC 9649, section 2); null where it is none of them. libvips allocates the whole canvas before it tells its
 * size, so that a header of 240 bytes would cost 1 GB.
 */
export function webpCanvas(head: Buffer): Size | null {
  if (head.length < 30 || head.toString('latin1', 8, 12) !== 'WEBP') return null;
  switch (head.toString('latin1', 12, 16)) {
    case 'VP8X':
      return { width: head.readUIntLE(24, 3) + 1, height: head.readUIntLE(27, 3) + 1 };
    case 'VP8L': {
      const bits = head.readUInt32LE(21);
      return { width: (bits & 0x3fff) + 1, height: ((bits >>> 14) & 0x3fff) + 1 };
    }
    case 'VP8 ':
      return { width: head.readUInt16LE(26) & 0x3fff, height: head.readUInt16LE(28) & 0x3fff };
    default:
      return null;
  }
}

/** The first `length` bytes of a file, fewer where it is shorter. */
export async function readHead(path: string, length: number): Promise<Buffer> {
  const file = await open(path);
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, 0);
    return buffer.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}

/** The colorants of sRGB adapted to the D50 white of the profile connection space, as rXYZ, gXYZ and bXYZ hold them. */
const srgbColorants: readonly (readonly [tag: string, x: number, y: number, z: number])[] = [
  ['rXYZ', 0.4361, 0.2225, 0.0139],
  ['gXYZ', 0.3851, 0.7169, 0.0971],
  ['bXYZ', 0.1431, 0.0606, 0.7141],
];

/**
 * Whether an ICC profile is sRGB by what it does, not by what it is called: an RGB matrix profile without lookup
 * tables, with the colorants of sRGB and its tone curve within 0.006. Such a profile is ignored, because transforming
 * sRGB into sRGB costs as much as the decode itself.
 */
export function isSrgbProfile(profile: Buffer): boolean {
  if (profile.length < 132 || profile.toString('latin1', 16, 20) !== 'RGB ') return false;
  if (profile.toString('latin1', 20, 24) !== 'XYZ ') return false;
  const tags = readTags(profile);
  if ([...tags.keys()].some((name) => /^A2B|^D2B/.test(name))) return false;
  for (const [name, ...wanted] of srgbColorants) {
    const at = tags.get(name);
    if (at === undefined || at + 20 > profile.length) return false;
    const close = wanted.every((value, axis) => Math.abs(fixed(profile, at + 8 + 4 * axis) - value) < 0.004);
    if (!close) return false;
  }
  return ['rTRC', 'gTRC', 'bTRC'].every((name) => {
    const at = tags.get(name);
    const curve = at === undefined ? null : readCurve(profile, at);
    return curve !== null && [0.05, 0.1, 0.25, 0.5, 0.75, 0.9].every((x) => Math.abs(curve(x) - srgbCurve(x)) < 0.006);
  });
}

function srgbCurve(x: number): number {
  return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
}

/** Tag signature → offset (ICC.1:2022, 7.3). At most 100 tags are looked at. */
function readTags(profile: Buffer): Map<string, number> {
  const tags = new Map<string, number>();
  const count = Math.min(profile.readUInt32BE(128), 100);
  for (let index = 0; index < count; index += 1) {
    const at = 132 + 12 * index;
    if (at + 12 > profile.length) break;
    tags.set(profile.toString('latin1', at, at + 4), profile.readUInt32BE(at + 4));
  }
  return tags;
}

/** An s15Fixed16Number. */
function fixed(profile: Buffer, at: number): number {
  return profile.readInt32BE(at) / 65536;
}

/** A `curv` or `para` tag as a function on [0, 1]; null for what sRGB profiles do not use. */
function readCurve(profile: Buffer, at: number): ((x: number) => number) | null {
  if (at + 12 > profile.length) return null;
  const kind = profile.toString('latin1', at, at + 4);
  if (kind === 'curv') {
    const count = profile.readUInt32BE(at + 8);
    // Fewer points cannot follow the curve of sRGB closely enough; one point is a bare gamma.
    if (count < 16 || at + 12 + 2 * count > profile.length) return null;
    return (x) => {
      const place = x * (count - 1);
      const low = Math.min(Math.floor(place), count - 2);
      const from = profile.readUInt16BE(at + 12 + 2 * low);
      const to = profile.readUInt16BE(at + 14 + 2 * low);
      return (from + (to - from) * (place - low)) / 65535;
    };
  }
  if (kind !== 'para' || profile.readUInt16BE(at + 8) !== 3 || at + 32 > profile.length) return null;
  const [g, a, b, c, d] = [0, 1, 2, 3, 4].map((index) => fixed(profile, at + 12 + 4 * index)) as [
    number,
    number,
    number,
    number,
    number,
  ];
  return (x) => (x >= d ? (a * x + b) ** g : c * x);
}

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** The size of a picture fitted inside a box: proportions kept, never enlarged, each side at least 1. */
export function fitInside(picture: Size, box: Size): Size {
  const scale = Math.min(1, box.width / picture.width, box.height / picture.height);
  return {
    width: Math.max(1, Math.round(picture.width * scale)),
    height: Math.max(1, Math.round(picture.height * scale)),
  };
}
