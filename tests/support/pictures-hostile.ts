/**
 * What an attacker uploads: bombs in every format, damaged files, and pictures that make a decoder with a hole hang, crash
 * or swell.
 */
import { deflateSync } from 'node:zlib';
import {
  bitPng,
  claimSize,
  firstScanAt,
  flat,
  flipped,
  frames,
  photo,
  repeatedWebp,
  repeatScans,
  withMisdeed,
  withPngChunks,
} from './pictures.ts';

export interface Hostile {
  readonly what: string;
  readonly type: string;
  make(): Promise<Buffer>;
}

/** The limits that `hostilePictures` are made for, as settings. A child of this size renders what they allow. */
export const attackLimits = {
  MAX_PIXELS: '20000000',
  MAX_PIXELS_AVIF: '10000000',
  RENDER_MEMORY: '256MiB',
} as const;

const grey = { r: 90, g: 90, b: 90 };
const jpeg = () => photo(300, 200).jpeg().toBuffer();
const progressive = () => photo(300, 200).jpeg({ progressive: true }).toBuffer();
const part = async (bytes: Promise<Buffer>, keep: (length: number) => number) => {
  const whole = await bytes;
  return whole.subarray(0, keep(whole.length));
};

const bombs: readonly Hostile[] = [
  {
    what: 'a progressive JPEG of 2,000 scans',
    type: 'image/jpeg',
    make: async () => repeatScans(await progressive(), 2000),
  },
  {
    what: 'a WebP of 3,000 frames',
    type: 'image/webp',
    make: () => repeatedWebp(512, 512, 3000),
  },
  {
    what: 'a PNG with 900 texts that unpack to megabytes',
    type: 'image/png',
    async make() {
      const text = Buffer.concat([Buffer.from('k\0\0'), deflateSync(Buffer.alloc(4_000_000))]);
      return withPngChunks(await photo(100, 100).png().toBuffer(), 'zTXt', text, 900);
    },
  },
  {
    what: 'an AVIF of 7,000 × 7,000 in few bytes',
    type: 'image/avif',
    make: () => hugeAvif(7000),
  },
  {
    what: 'a small JPEG that claims 64,250 × 64,250',
    type: 'image/jpeg',
    make: async () => claimSize(await jpeg(), 64_250, 64_250),
  },
  {
    what: 'a flat PNG of 20,000 × 20,000',
    type: 'image/png',
    make: async () => bitPng(20_000, 20_000),
  },
  {
    what: 'a PNG of exactly the pixel limit',
    type: 'image/png',
    make: async () => bitPng(5000, 4000),
  },
  {
    what: 'a PNG of one row more than the pixel limit',
    type: 'image/png',
    make: async () => bitPng(5000, 4001),
  },
  {
    what: 'a GIF of two frames of 5,000 × 5,000',
    type: 'image/gif',
    make: () => frames(5000, 5000, 2).gif({ effort: 1, colours: 4 }).toBuffer(),
  },
  {
    what: 'a GIF of 400 small frames',
    type: 'image/gif',
    make: () => frames(64, 64, 400).gif({ effort: 1 }).toBuffer(),
  },
  {
    what: 'a strip of 720 × 20,000',
    type: 'image/png',
    make: async () => bitPng(720, 20_000),
  },
];

/** A real AVIF of that side, which a decoder needs about 20 bytes a pixel for. Its header is small and its pixels are flat. */
async function hugeAvif(side: number): Promise<Buffer> {
  return await flat(side, side, grey).avif({ effort: 0 }).toBuffer();
}

const damaged: readonly Hostile[] = [
  ...['at 60 %', 'by two bytes', 'in its header'].map(
    (where): Hostile => ({
      what: `a JPEG that is cut ${where}`,
      type: 'image/jpeg',
      make: () =>
        part(jpeg(), (length) => (where === 'at 60 %' ? length * 0.6 : where === 'by two bytes' ? length - 2 : 300)),
    }),
  ),
  ...[1, 2, 3, 4, 5, 6].map(
    (seed): Hostile => ({
      what: `a JPEG with 200 bytes flipped by seed ${seed}`,
      type: 'image/jpeg',
      async make() {
        const whole = await (seed % 2 === 0 ? jpeg() : progressive());
        return flipped(whole, firstScanAt(whole), 200, seed);
      },
    }),
  ),
];

const misdeeds: Readonly<Record<string, string>> = {
  hang: 'a picture whose render never ends',
  swell: 'a picture whose render eats memory',
  killed: 'a picture whose render is shot by the kernel for its memory',
  segfault: 'a picture whose render segfaults',
  abort: 'a picture whose render aborts',
  leave: 'a picture whose render leaves without a word',
  lie: 'a picture whose render answers for another recipe',
  babble: 'a picture whose render says what no child says',
  busy: 'a picture whose render never ends inside its codec',
};

const [endless, ...holes] = Object.entries(misdeeds).map(
  ([misdeed, what]): Hostile => ({ what, type: 'image/jpeg', make: async () => withMisdeed(await jpeg(), misdeed) }),
);

/** One that never ends comes first and one last: at no time do both slots of a small worker wait for their deadline together. */
export const hostilePictures: readonly Hostile[] = [...(endless ? [endless] : []), ...bombs, ...damaged, ...holes];
