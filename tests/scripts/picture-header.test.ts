/** The demonstrations' reading of pictures without a decoder agrees with the decoder, and refuses what is not whole. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import sharp from 'sharp';
import { readJpeg, readWebp } from '../../scripts/picture-header.ts';

const sizes = [
  [1, 1],
  [256, 171],
  [2048, 3],
] as const;

function picture(width: number, height: number, channels: 3 | 4 = 3) {
  return sharp({ create: { width, height, channels, background: { r: 40, g: 120, b: 90, alpha: 0.5 } } });
}

test('the size of a JPEG is read, whatever its kind', async () => {
  for (const [width, height] of sizes) {
    for (const options of [{}, { progressive: true }, { mozjpeg: true }, { chromaSubsampling: '4:4:4' }]) {
      const header = readJpeg(await picture(width, height).jpeg(options).toBuffer());
      assert.deepEqual(header, { width, height, metadata: [] });
    }
  }
});

test('the size of a WebP is read, whatever its kind', async () => {
  for (const [width, height] of sizes) {
    for (const channels of [3, 4] as const) {
      for (const options of [{}, { lossless: true }]) {
        const header = readWebp(await picture(width, height, channels).webp(options).toBuffer());
        assert.deepEqual(header, { width, height, metadata: [] });
      }
    }
  }
});

test('metadata is noticed', async () => {
  const tagged = picture(20, 10)
    .withExif({ IFD0: { Artist: 'somebody' } })
    .withIccProfile('srgb');
  assert.deepEqual(readJpeg(await tagged.clone().jpeg().toBuffer()).metadata, ['EXIF or XMP', 'ICC']);
  assert.deepEqual(readWebp(await tagged.clone().webp().toBuffer()).metadata.toSorted(), ['EXIF or XMP', 'ICC']);
});

test('a picture that is cut, or another kind of file, is refused', async () => {
  const jpeg = await picture(256, 171).jpeg().toBuffer();
  const webp = await picture(256, 171).webp().toBuffer();
  for (const bytes of [jpeg.subarray(0, -2), jpeg.subarray(2), jpeg.subarray(0, 40), webp, Buffer.alloc(0)]) {
    assert.throws(() => readJpeg(bytes));
  }
  for (const bytes of [webp.subarray(0, -2), webp.subarray(2), webp.subarray(0, 16), jpeg, Buffer.alloc(0)]) {
    assert.throws(() => readWebp(bytes));
  }
});
