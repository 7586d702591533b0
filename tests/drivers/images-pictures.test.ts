/** Pictures of every kind that the five types allow, and what becomes of them. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import sharp from 'sharp';
import { thumbHashToApproximateAspectRatio, thumbHashToAverageRGBA } from 'thumbhash';
import { newestVersion, recipes } from '../../src/pipeline/recipe.ts';
import { assertNear, checkRendering, means, openScene, recipeOf, type Scene, sizeOf } from '../support/images-scene.ts';
import { flat, frameColour, frames, photo, quarterColours, quarters, raw } from '../support/pictures.ts';

let scene: Scene;
before(async () => {
  scene = await openScene();
});
after(() => scene.close());

describe('sizes', () => {
  const cases = [
    { size: [1, 1000], thumbnail: [1, 256], optimized: [1, 1000] },
    { size: [1000, 1], thumbnail: [256, 1], optimized: [1000, 1] },
    { size: [1, 1], thumbnail: [1, 1], optimized: [1, 1] },
    { size: [10, 10], thumbnail: [10, 10], optimized: [10, 10] },
    { size: [720, 20_000], thumbnail: [9, 256], optimized: [74, 2048] },
    { size: [16_383, 3], thumbnail: [256, 1], optimized: [2048, 1] },
    { size: [3000, 2000], thumbnail: [256, 171], optimized: [2048, 1365] },
  ] as const;
  for (const { size, thumbnail, optimized } of cases) {
    test(`a picture of ${size[0]} × ${size[1]} is fitted, never enlarged, and cut to a full square`, async () => {
      const [width, height] = size;
      const picture = await flat(width, height, { r: 200, g: 90, b: 40 }).png().toBuffer();
      const rendering = await scene.render(picture, 'image/png');
      const files = await checkRendering(rendering);
      assert.deepEqual([rendering.width, rendering.height, rendering.frames], [width, height, 1]);
      assert.deepEqual(sizeOf(rendering, 'thumbnail'), thumbnail);
      assert.deepEqual(sizeOf(rendering, 'crop'), [128, 128]);
      assert.deepEqual(sizeOf(rendering, 'optimized'), optimized);
      for (const file of Object.values(files)) assertNear(await means(file), [200, 90, 40], 4);
    });
  }

  test('the crop is the middle of the picture', async () => {
    const [left, middle, right] = [
      { r: 220, g: 30, b: 30 },
      { r: 30, g: 200, b: 30 },
      { r: 30, g: 30, b: 220 },
    ];
    const stripe = async (colour: typeof left) => flat(200, 200, colour).png().toBuffer();
    const picture = await flat(600, 200, left)
      .composite([
        { input: await stripe(middle), left: 200, top: 0 },
        { input: await stripe(right), left: 400, top: 0 },
      ])
      .png()
      .toBuffer();
    const { crop } = await checkRendering(await scene.render(picture, 'image/png'));
    assertNear(await means(crop), [30, 200, 30], 4);
  });

  test('a picture that is already small keeps an optimized variant, even a larger one', async () => {
    const random = await photo(64, 64, 7).toColourspace('b-w').png({ palette: true, colours: 8 }).toBuffer();
    const rendering = await scene.render(random, 'image/png');
    await checkRendering(rendering);
    const noise = Buffer.from(Array.from({ length: 40 * 40 * 3 }, (_, index) => (index * 7919 * (index % 251)) % 256));
    const jpeg = await sharp(noise, { raw: { width: 40, height: 40, channels: 3 } })
      .jpeg({ quality: 5 })
      .toBuffer();
    const larger = await scene.render(jpeg, 'image/jpeg');
    await checkRendering(larger);
    const optimized = larger.variants.find(({ name }) => name === 'optimized');
    assert.ok(optimized && optimized.size > jpeg.length, `${optimized?.size} of ${jpeg.length} bytes`);
  });
});

describe('colours', () => {
  const colour = { r: 200, g: 60, b: 60 };
  const values = [200, 60, 60];
  /** Within what four inks can print. */
  const muted = { r: 150, g: 110, b: 90 };
  const deep = (channels: 2 | 3, pixel: number[]) =>
    sharp(
      Uint16Array.from({ length: 200 * 100 * channels }, (_, index) => pixel[index % channels] ?? 0),
      {
        raw: { width: 200, height: 100, channels },
      },
    );

  const cases: Record<string, () => Promise<{ bytes: Buffer; type: string; expected?: number[]; tolerance?: number }>> =
    {
      'a CMYK JPEG with its profile': async () => ({
        bytes: await flat(200, 100, muted).withIccProfile('cmyk').jpeg().toBuffer(),
        type: 'image/jpeg',
        expected: [150, 110, 90],
        // The perceptual intent shifts colours on the way to ink and back.
        tolerance: 22,
      }),
      'a CMYK JPEG without a profile': async () => ({
        bytes: await flat(200, 100, muted).toColourspace('cmyk').jpeg().toBuffer(),
        type: 'image/jpeg',
        expected: [150, 110, 90],
        tolerance: 10,
      }),
      'a 16-bit PNG': async () => ({
        bytes: await deep(
          3,
          values.map((value) => value * 257),
        )
          .toColourspace('rgb16')
          .png()
          .toBuffer(),
        type: 'image/png',
      }),
      'a grey JPEG': async () => ({
        bytes: await flat(200, 100, { r: 90, g: 90, b: 90 }).toColourspace('b-w').jpeg().toBuffer(),
        type: 'image/jpeg',
        expected: [90, 90, 90],
      }),
      'a Display P3 JPEG': async () => ({
        bytes: await flat(200, 100, colour).withIccProfile('p3').jpeg({ quality: 100 }).toBuffer(),
        type: 'image/jpeg',
      }),
      'an sRGB JPEG that says so': async () => ({
        bytes: await flat(200, 100, colour).withIccProfile('srgb').jpeg({ quality: 100 }).toBuffer(),
        type: 'image/jpeg',
      }),
      // The stored numbers are those of P3, whose red is redder.
      'a 16-bit Display P3 PNG': async () => ({
        bytes: await deep(
          3,
          values.map((value) => value * 257),
        )
          .toColourspace('rgb16')
          .withIccProfile('p3')
          .png()
          .toBuffer(),
        type: 'image/png',
        expected: [217, 42, 53],
      }),
      'an AVIF': async () => ({ bytes: await flat(200, 100, colour).avif().toBuffer(), type: 'image/avif' }),
    };
  for (const [what, make] of Object.entries(cases)) {
    test(`${what} comes out in the same colours, in sRGB`, async () => {
      const { bytes, type, expected = values, tolerance = 4 } = await make();
      const rendering = await scene.render(bytes, type);
      for (const [name, file] of Object.entries(await checkRendering(rendering))) {
        assertNear(await means(file), expected, tolerance, name);
      }
    });
  }

  test('a profile that makes no sense is no reason to fail', async () => {
    const jpeg = await flat(200, 100, colour).withIccProfile('p3').jpeg({ quality: 100 }).toBuffer();
    const at = jpeg.indexOf('acsp');
    assert.ok(at > 0);
    jpeg.fill(0x77, at + 20, at + 200);
    const { optimized } = await checkRendering(await scene.render(jpeg, 'image/jpeg'));
    assertNear(await means(optimized), values, 40);
  });

  test('sixteen bits of grey with transparency keep their tones', async () => {
    const ramp = Uint16Array.from({ length: 256 * 64 * 2 }, (_, index) =>
      index % 2 === 0 ? ((index / 2) % 256) * 257 : 65_535,
    );
    const png = await sharp(ramp, { raw: { width: 256, height: 64, channels: 2 } })
      .toColourspace('grey16')
      .png()
      .toBuffer();
    assert.equal((await sharp(png).metadata()).depth, 'ushort');
    const { thumbnail } = await checkRendering(await scene.render(png, 'image/png'));
    for (const left of [16, 64, 128, 200, 240]) {
      const column = await sharp(thumbnail).extract({ left, top: 20, width: 8, height: 8 }).png().toBuffer();
      assertNear(await means(column), [left + 4, left + 4, left + 4], 6, `column ${left}`);
    }
  });
});

describe('transparency', () => {
  test('a fully transparent picture is white in JPEG and transparent in WebP', async () => {
    const png = await flat(300, 200, { r: 10, g: 20, b: 30, alpha: 0 }).png().toBuffer();
    const files = await checkRendering(await scene.render(png, 'image/png'));
    assertNear(await means(files.thumbnail), [255, 255, 255], 1);
    assertNear(await means(files.crop), [255, 255, 255], 1);
    assert.equal((await means(files.optimized))[3], 0);
  });

  test('a palette with a transparent colour keeps it', async () => {
    const square = await flat(100, 100, { r: 200, g: 30, b: 30, alpha: 1 }).png().toBuffer();
    const png = await flat(200, 100, { r: 0, g: 0, b: 0, alpha: 0 })
      .composite([{ input: square, left: 100, top: 0 }])
      .png({ palette: true })
      .toBuffer();
    assert.equal((await sharp(png).metadata()).isPalette, true);
    const { thumbnail, optimized } = await checkRendering(await scene.render(png, 'image/png'));
    const half = (file: Buffer, left: number) =>
      sharp(file).extract({ left, top: 20, width: 60, height: 60 }).png().toBuffer();
    assertNear(await means(await half(thumbnail, 20)), [255, 255, 255], 2);
    assertNear(await means(await half(thumbnail, 120)), [200, 30, 30], 4);
    assert.equal((await means(await half(optimized, 20)))[3], 0);
    assert.equal((await means(await half(optimized, 120)))[3], 255);
  });

  test('of which nothing is used makes the same files as none, and one pixel of it is kept', async () => {
    const plain = photo(300, 200).removeAlpha();
    const [without, opaque] = [
      await plain.clone().png().toBuffer(),
      await plain.clone().ensureAlpha(1).png().toBuffer(),
    ];
    const made = await checkRendering(await scene.render(without, 'image/png'));
    assert.deepEqual(await checkRendering(await scene.render(opaque, 'image/png')), made);
    const { data, info } = await sharp(opaque).raw().toBuffer({ resolveWithObject: true });
    data[data.length - 1] = 128;
    const pixel = await sharp(data, { raw: { width: info.width, height: info.height, channels: 4 } })
      .png()
      .toBuffer();
    const { optimized } = await checkRendering(await scene.render(pixel, 'image/png'));
    assert.equal((await sharp(optimized).metadata()).hasAlpha, true);
  });
});

describe('orientation', () => {
  test('the eight photographs come out alike, upright, without a tag', async () => {
    const small = async (file: Buffer) => (await raw(sharp(file).resize(48, 32, { fit: 'fill' })))[0];
    let first: Record<string, Buffer> | null = null;
    for (let orientation = 1; orientation <= 8; orientation += 1) {
      const path = new URL(`../fixtures/orientation/landscape_${orientation}.jpg`, import.meta.url);
      assert.equal((await sharp(await readFile(path)).metadata()).orientation, orientation);
      const rendering = await scene.renderFile(path.pathname, 'image/jpeg');
      const files = await checkRendering(rendering);
      assert.deepEqual([rendering.width, rendering.height], [1800, 1200]);
      assert.deepEqual(sizeOf(rendering, 'thumbnail'), [256, 171]);
      first ??= files;
      for (const [name, file] of Object.entries(files)) {
        const [a, b] = [await small(file), await small(first[name] ?? file)];
        const difference = a.reduce((sum, value, at) => sum + Math.abs(value - (b[at] ?? 0)), 0) / a.length;
        assert.ok(difference < 8, `${name} of ${orientation} differs by ${difference.toFixed(1)}`);
      }
    }
  });

  async function assertUpright(file: Buffer) {
    const { width = 0, height = 0 } = await sharp(file).metadata();
    for (const [index, colour] of quarterColours.entries()) {
      const left = Math.floor(width * (index % 2 === 0 ? 0.1 : 0.6));
      const top = Math.floor(height * (index < 2 ? 0.1 : 0.6));
      const area = { left, top, width: Math.floor(width * 0.3), height: Math.floor(height * 0.3) };
      const seen = await means(await sharp(file).extract(area).png().toBuffer());
      assertNear(seen.slice(0, 3), colour, 8, `quarter ${index}`);
    }
  }

  for (let orientation = 1; orientation <= 8; orientation += 1) {
    test(`orientation ${orientation} is undone in a JPEG that is shrunk and a PNG that is not`, async () => {
      const jpeg = (await quarters(5000, 3000, orientation)).withMetadata({ orientation }).jpeg();
      const png = (await quarters(300, 180, orientation)).withMetadata({ orientation }).png();
      const shrunk = await scene.render(await jpeg.toBuffer(), 'image/jpeg');
      assert.deepEqual([shrunk.width, shrunk.height], [5000, 3000]);
      assert.deepEqual(sizeOf(shrunk, 'optimized'), [2048, 1229]);
      const same = await scene.render(await png.toBuffer(), 'image/png');
      assert.deepEqual([same.width, same.height], [300, 180]);
      for (const rendering of [shrunk, same]) {
        const { thumbnail, optimized } = await checkRendering(rendering);
        await assertUpright(thumbnail);
        await assertUpright(optimized);
      }
    });

    test(`orientation ${orientation} is undone in every frame of an animation`, async () => {
      const [pixels, { raw: size }] = await raw(await quarters(90, 60, orientation));
      const two = { ...size, height: size.height * 2, pageHeight: size.height };
      const webp = await sharp(Buffer.concat([pixels, Buffer.from(pixels).fill(99, 0, 3)]), { raw: two })
        .withMetadata({ orientation })
        .webp({ lossless: true, delay: [80, 80] })
        .toBuffer();
      const rendering = await scene.render(webp, 'image/webp');
      assert.deepEqual([rendering.width, rendering.height, rendering.frames], [90, 60, 2]);
      const { optimized, thumbnail } = await checkRendering(rendering);
      await assertUpright(thumbnail);
      for (const page of [0, 1]) await assertUpright(await sharp(optimized, { page }).png().toBuffer());
    });
  }
});

describe('animation', () => {
  const loops = async (file: Buffer) => {
    const { pages, delay, loop } = await sharp(file).metadata();
    return { pages, delay, loop };
  };

  test('an animated WebP keeps frames, delays and loops; thumbnail and crop show the first frame', async () => {
    const delay = [100, 200, 300];
    const webp = await frames(200, 100, 3).webp({ loop: 2, delay }).toBuffer();
    const rendering = await scene.render(webp, 'image/webp');
    const files = await checkRendering(rendering);
    assert.equal(rendering.frames, 3);
    assert.deepEqual(await loops(files.optimized), { pages: 3, delay, loop: 2 });
    for (const file of [files.thumbnail, files.crop]) {
      assert.equal((await sharp(file).metadata()).pages, undefined);
      assertNear(await means(file), frameColour(0), 4);
    }
    for (const page of [0, 1, 2]) {
      const frame = await sharp(files.optimized, { page }).png().toBuffer();
      assertNear((await means(frame)).slice(0, 3), frameColour(page), 5, `frame ${page}`);
    }
  });

  test('an animated GIF of 640 × 640 × 40 is no taller than WebP allows', async () => {
    const gif = await frames(640, 640, 40)
      .gif({ loop: 3, delay: Array(40).fill(70), effort: 1 })
      .toBuffer();
    const rendering = await scene.render(gif, 'image/gif');
    const { optimized } = await checkRendering(rendering);
    assert.deepEqual([rendering.width, rendering.height, rendering.frames], [640, 640, 40]);
    assert.deepEqual(await loops(optimized), { pages: 40, delay: Array(40).fill(70), loop: 3 });
  });

  test('a GIF with one frame is a still', async () => {
    const gif = await photo(1920, 1080).gif({ effort: 1 }).toBuffer();
    const rendering = await scene.render(gif, 'image/gif');
    const { optimized } = await checkRendering(rendering);
    assert.deepEqual([rendering.width, rendering.height, rendering.frames], [1920, 1080, 1]);
    assert.equal((await sharp(optimized).metadata()).pages, undefined);
  });

  test('an animation that is larger than the working size is shrunk frame by frame', async () => {
    const webp = await frames(2500, 500, 3)
      .webp({ effort: 0, delay: [50, 60, 70] })
      .toBuffer();
    const rendering = await scene.render(webp, 'image/webp');
    const { optimized } = await checkRendering(rendering);
    assert.deepEqual(sizeOf(rendering, 'optimized'), [2048, 410]);
    assert.equal((await sharp(optimized).metadata()).pages, 3);
  });
});

test('nothing of EXIF, GPS, XMP and ICC is left in any variant', async () => {
  const jpeg = await photo(400, 300)
    .withExif({ IFD0: { Copyright: 'Somebody' }, IFD3: { GPSLatitudeRef: 'N', GPSLatitude: '52/1 31/1 0/1' } })
    .withXmp('<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf/></x:xmpmeta>')
    .withIccProfile('p3')
    .jpeg()
    .toBuffer();
  const before = await sharp(jpeg).metadata();
  assert.ok(before.exif && before.icc && before.xmp);
  const files = await checkRendering(await scene.render(jpeg, 'image/jpeg'));
  for (const file of Object.values(files)) {
    for (const word of ['Exif', 'Somebody', 'xmpmeta', 'ICC', 'acsp']) assert.equal(file.indexOf(word), -1, word);
  }
});

test('the placeholder tells proportions and colour', async () => {
  const rendering = await scene.render(await flat(800, 400, { r: 200, g: 60, b: 60 }).png().toBuffer(), 'image/png');
  const hash = Buffer.from(rendering.placeholder, 'base64');
  assert.ok(Math.abs(thumbHashToApproximateAspectRatio(hash) - 2) < 0.4);
  const { r, g, b } = thumbHashToAverageRGBA(hash);
  assertNear([r * 255, g * 255, b * 255], [200, 60, 60], 12);
});

describe('pipeline versions', () => {
  const file = new URL('../fixtures/orientation/small_6.jpg', import.meta.url).pathname;

  /** Renders the photograph by the recipe of a version; answers the digest of each variant. */
  async function made(version: number): Promise<Record<string, string>> {
    const on = await openScene({ children: 1, warmSpare: 0, recipe: recipeOf(version) });
    try {
      const rendering = await on.renderFile(file, 'image/jpeg');
      await checkRendering(rendering);
      return Object.fromEntries(rendering.variants.map(({ name, sha256 }) => [name, sha256]));
    } finally {
      await on.close();
    }
  }

  test('each makes all variants, and a set that is none of another version', async () => {
    const optimized = new Set<string | undefined>();
    for (const version of recipes.keys()) optimized.add((await made(version)).optimized);
    assert.equal(optimized.size, recipes.size);
  });

  test('make the same bytes again, so that what was lost can be rebuilt', async () => {
    assert.deepEqual(await made(newestVersion), await made(newestVersion));
  });
});
