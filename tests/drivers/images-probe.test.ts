/** What is told of a picture without decoding it: scans, profiles, canvases, sizes. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import sharp, { type Sharp } from 'sharp';
import {
  countScanBytes,
  countScans,
  createScanCounter,
  fitInside,
  hasMoreScans,
  isSrgbProfile,
  webpCanvas,
} from '../../src/drivers/images-probe.ts';
import { flat, photo, repeatedWebp, repeatScans, segments, withSegment } from '../support/pictures.ts';

function scansOf(jpeg: Buffer, chunkBytes = jpeg.length): number {
  const counter = createScanCounter();
  for (let at = 0; at < jpeg.length; at += chunkBytes) counter.push(jpeg.subarray(at, at + chunkBytes));
  return counter.scans();
}

describe('the scans of a JPEG', () => {
  test('a baseline picture has one, a progressive one has as many as its script', async () => {
    const progressive = await photo(64, 48).jpeg({ progressive: true }).toBuffer();
    const wanted = segments(progressive).filter(({ marker }) => marker === 0xda).length;
    assert.ok(wanted > 3);
    assert.equal(scansOf(progressive), wanted);
    assert.equal(scansOf(await photo(64, 48).jpeg().toBuffer()), 1);
  });

  test('the count is the same however the file is cut into pieces', async () => {
    const jpeg = repeatScans(await photo(64, 48).jpeg({ progressive: true }).toBuffer(), 30);
    for (const chunkBytes of [1, 2, 3, 7, 64, 1000]) assert.equal(scansOf(jpeg, chunkBytes), 30, `${chunkBytes}`);
  });

  test('markers inside thumbnails, profiles and comments count for nothing', async () => {
    const inner = await photo(32, 24).jpeg({ progressive: true }).toBuffer();
    const scans = Buffer.concat(Array(100).fill(Buffer.from([0xff, 0xda, 0x00, 0x02])));
    let jpeg: Buffer = await photo(64, 48).jpeg().toBuffer();
    for (const [marker, data] of [
      [0xe1, inner],
      [0xe2, scans],
      [0xfe, scans],
    ] as const) {
      jpeg = withSegment(jpeg, marker, data);
    }
    assert.equal(scansOf(jpeg), 1);
    assert.equal(scansOf(jpeg, 1), 1);
    assert.equal((await sharp(jpeg).metadata()).width, 64);
  });

  test('stuffed bytes, restarts, fill bytes and stray bytes do not hide a scan', () => {
    const scan = [0xff, 0xda, 0x00, 0x03, 0x00];
    const data = [0x12, 0xff, 0x00, 0xda, 0xff, 0xd3, 0x44];
    const bytes = [
      0xff,
      0xd8,
      0x99,
      0xff,
      0xff,
      0xff,
      ...scan.slice(1),
      ...data,
      ...scan,
      ...data,
      0xff,
      0xd9,
      ...scan,
    ];
    assert.equal(scansOf(Buffer.from(bytes)), 2);
  });

  test('what follows the end of the image is not counted', async () => {
    const jpeg = await photo(64, 48).jpeg().toBuffer();
    assert.equal(scansOf(Buffer.concat([jpeg, jpeg, jpeg])), 1);
  });

  test('a file that breaks off, or is none at all, has the scans that it has', async () => {
    const jpeg = await photo(64, 48).jpeg().toBuffer();
    assert.equal(scansOf(jpeg.subarray(0, Math.floor(jpeg.length / 2))), 1);
    assert.equal(scansOf(jpeg.subarray(0, 40)), 0);
    assert.equal(scansOf(Buffer.alloc(0)), 0);
    assert.equal(scansOf(Buffer.alloc(1000, 0xff)), 0);
  });

  /** A file of these bytes, for the time of a test. */
  async function fileOf(t: { after(end: () => Promise<void>): void }, bytes: Buffer): Promise<string> {
    const folder = await mkdtemp(join(tmpdir(), 'skrepka-scans-'));
    t.after(() => rm(folder, { recursive: true }));
    const path = join(folder, 'picture.jpg');
    await writeFile(path, bytes);
    return path;
  }

  test('counting stops one above the limit', async (t) => {
    const path = await fileOf(t, repeatScans(await photo(64, 48).jpeg({ progressive: true }).toBuffer(), 2000));
    assert.equal(countScans(path, 64), 65);
    assert.equal(countScans(path, 1999), 2000);
    assert.equal(countScans(path, 5000), 2000);
    assert.equal(countScanBytes(path, 64), 65);
    assert.equal(hasMoreScans(path, 64), true);
    assert.equal(hasMoreScans(path, 2000), false);
  });

  test('bytes that only look like a scan make the markers be followed, and are no reason to refuse', async (t) => {
    const scans = Buffer.concat(Array(100).fill(Buffer.from([0xff, 0xda, 0x00, 0x02])));
    const path = await fileOf(t, withSegment(await photo(64, 48).jpeg().toBuffer(), 0xe2, scans));
    assert.equal(countScanBytes(path, 64), 65);
    assert.equal(hasMoreScans(path, 64), false);
  });

  test('a scan that begins at the end of one piece of the file and ends in the next is found', async (t) => {
    const bytes = Buffer.alloc(600 * 1024, 0x11);
    for (const at of [0, 256 * 1024 - 1, 400 * 1024, 512 * 1024 - 1]) bytes.set([0xff, 0xda], at);
    assert.equal(countScanBytes(await fileOf(t, bytes), 64), 4);
  });
});

describe('colour profiles', () => {
  async function profileOf(picture: Sharp): Promise<Buffer> {
    const { icc } = await sharp(await picture.jpeg().toBuffer()).metadata();
    assert.ok(icc);
    return icc;
  }
  const grey = () => flat(8, 8, { r: 90, g: 90, b: 90 });

  test('sRGB is recognised by what it does, whatever it is called', async () => {
    const profile = await profileOf(grey().withIccProfile('srgb'));
    assert.equal(isSrgbProfile(profile), true);
    const renamed = Buffer.from(profile.toString('latin1').replaceAll('s\0R\0G\0B', 'X\0X\0X\0X'), 'latin1');
    assert.equal(isSrgbProfile(renamed), true);
  });

  test('a wide gamut, CMYK, and sRGB primaries with another tone curve are not sRGB', async () => {
    assert.equal(isSrgbProfile(await profileOf(grey().withIccProfile('p3'))), false);
    assert.equal(isSrgbProfile(await profileOf(grey().withIccProfile('cmyk'))), false);
    const gamma = Buffer.from(await profileOf(grey().withIccProfile('srgb')));
    const curve = gamma.indexOf('para');
    assert.ok(curve > 0);
    gamma.writeInt32BE(Math.round(1.8 * 65536), curve + 12);
    assert.equal(isSrgbProfile(gamma), false);
  });

  test('a damaged profile is not sRGB, and is no reason to fail', async () => {
    const profile = await profileOf(grey().withIccProfile('srgb'));
    for (let length = 0; length < profile.length; length += 1) isSrgbProfile(profile.subarray(0, length));
    assert.equal(isSrgbProfile(profile.subarray(0, 140)), false);
    assert.equal(isSrgbProfile(Buffer.alloc(500, 0xff)), false);
  });
});

describe('the canvas of a WebP', () => {
  test('each of the three kinds of file tells it', async () => {
    const picture = () => flat(120, 45, { r: 1, g: 2, b: 3 });
    const size = { width: 120, height: 45 };
    const lossy = await picture().webp().toBuffer();
    const lossless = await picture().webp({ lossless: true }).toBuffer();
    const animated = await repeatedWebp(120, 45, 3);
    assert.deepEqual(
      [lossy, lossless, animated].map((file) => file.toString('latin1', 12, 16)),
      ['VP8 ', 'VP8L', 'VP8X'],
    );
    for (const file of [lossy, lossless, animated]) assert.deepEqual(webpCanvas(file.subarray(0, 30)), size);
  });

  test('what is no WebP, or too short to tell, has none', async () => {
    const lossy = await flat(120, 45, { r: 1, g: 2, b: 3 }).webp().toBuffer();
    assert.equal(webpCanvas(lossy.subarray(0, 29)), null);
    assert.equal(webpCanvas(Buffer.alloc(30)), null);
  });
});

test('a size fits its box, keeps its proportions, and no side is ever less than one', () => {
  const box = { width: 256, height: 256 };
  assert.deepEqual(fitInside({ width: 4032, height: 3024 }, box), { width: 256, height: 192 });
  assert.deepEqual(fitInside({ width: 1, height: 1000 }, box), { width: 1, height: 256 });
  assert.deepEqual(fitInside({ width: 65_535, height: 1 }, box), { width: 256, height: 1 });
  assert.deepEqual(fitInside({ width: 10, height: 10 }, box), { width: 10, height: 10 });
});
