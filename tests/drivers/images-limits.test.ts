/** What is refused before it is decoded: too many pixels, frames, scans; and every type that is not rendered. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { deflateSync } from 'node:zlib';
import sharp from 'sharp';
import { type Code, SkrepkaError } from '../../src/errors.ts';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import { checkRendering, defaultLimits, memoryOf, openScene, recipeOf, type Scene } from '../support/images-scene.ts';
import {
  bitPng,
  claimSize,
  flat,
  frames,
  photo,
  repeatedWebp,
  repeatScans,
  withPngChunks,
  withSegment,
} from '../support/pictures.ts';

let scene: Scene;
before(async () => {
  scene = await openScene({ children: 1, warmSpare: 0 });
});
after(() => scene.close());

async function refused(code: Code, bytes: Buffer, contentType: string, on: Scene = scene): Promise<string> {
  const error = await on.render(bytes, contentType).then(
    () => null,
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof SkrepkaError, String(error));
  assert.equal(error.code, code, error.message);
  return error.message;
}

/** What sharp says when no loader that is not blocked takes the file: nothing has looked at more than its first bytes. */
const noLoader = /unsupported image format/;

async function tiny(
  limits: Parameters<typeof openScene>[0] & object,
  use: (on: Scene) => Promise<unknown>,
): Promise<void> {
  const on = await openScene({ children: 1, warmSpare: 0, ...limits });
  try {
    await use(on);
  } finally {
    await on.close();
  }
}

describe('pixels', () => {
  test('huge headers are refused before anything is decoded or allocated, in every type', async () => {
    await checkRendering(await scene.render(await photo(64, 64).png().toBuffer(), 'image/png'));
    const [pid] = await scene.children();
    assert.ok(pid);
    const peak = await memoryOf(pid, 'VmHWM');

    await refused('too_many_pixels', claimSize(await photo(300, 200).jpeg().toBuffer(), 64_250, 64_250), 'image/jpeg');
    await refused('too_many_pixels', bitPng(20_000, 20_000), 'image/png');
    for (const lossless of [false, true]) {
      const webp = await flat(64, 64, { r: 1, g: 2, b: 3 }).webp({ lossless }).toBuffer();
      if (lossless) webp.writeUInt32LE(((16_382 << 14) | 16_382) >>> 0, 21);
      else webp.fill(Buffer.from([0xff, 0x3f, 0xff, 0x3f]), 26, 30);
      await refused('too_many_pixels', webp, 'image/webp');
    }
    const animated = await repeatedWebp(64, 64, 2);
    animated.writeUIntLE(16_382, 24, 3);
    animated.writeUIntLE(16_382, 27, 3);
    await refused('too_many_pixels', animated, 'image/webp');
    const avif = await flat(64, 64, { r: 1, g: 2, b: 3 }).avif().toBuffer();
    avif.writeUInt32BE(65_000, avif.indexOf('ispe') + 8);
    avif.writeUInt32BE(65_000, avif.indexOf('ispe') + 12);
    await refused('too_many_pixels', avif, 'image/avif');

    assert.deepEqual(await scene.children(), [pid], 'no child died');
    const grown = (await memoryOf(pid, 'VmHWM')) - peak;
    assert.ok(grown < 24 * 1024 * 1024, `the child grew by ${Math.round(grown / 1024)} KiB`);
  });

  test('exactly the limit is rendered, one column more is not', async () => {
    await tiny({ limits: { pixelsMax: 120_000 } }, async (on) => {
      for (const type of ['jpeg', 'png', 'webp', 'gif'] as const) {
        const at = await photo(400, 300).toFormat(type).toBuffer();
        await checkRendering(await on.render(at, `image/${type}`));
        await refused('too_many_pixels', await photo(401, 300).toFormat(type).toBuffer(), `image/${type}`, on);
      }
    });
  });

  test('AVIF has a limit of its own', async () => {
    await tiny({ limits: { pixelsMax: 1_000_000, pixelsMaxAvif: 120_000 } }, async (on) => {
      await checkRendering(await on.render(await photo(400, 300).avif({ effort: 0 }).toBuffer(), 'image/avif'));
      await refused('too_many_pixels', await photo(401, 300).avif({ effort: 0 }).toBuffer(), 'image/avif', on);
      await checkRendering(await on.render(await photo(401, 300).png().toBuffer(), 'image/png'));
    });
  });

  test('two frames of 5,000 × 5,000 are exactly the limit; with one pixel less allowed they are refused', async () => {
    const gif = await frames(5000, 5000, 2).gif({ effort: 1, colours: 4 }).toBuffer();
    const rendering = await scene.render(gif, 'image/gif');
    await checkRendering(rendering);
    assert.equal(rendering.frames, 2);
    await tiny({ limits: { pixelsMax: defaultLimits.pixelsMax - 1 } }, (on) =>
      refused('too_many_pixels', gif, 'image/gif', on),
    );
  });

  test('an AVIF that is larger than its own header says is corrupt, and no shortage of memory', async () => {
    const avif = await flat(2000, 2000, { r: 1, g: 2, b: 3 }).avif({ effort: 0 }).toBuffer();
    avif.writeUInt32BE(64, avif.indexOf('ispe') + 8);
    avif.writeUInt32BE(64, avif.indexOf('ispe') + 12);
    await refused('corrupt_image', avif, 'image/avif');
  });
});

describe('frames', () => {
  test('a GIF of 400 small frames is rendered with all of them', async () => {
    const rendering = await scene.render(await frames(64, 64, 400).gif({ effort: 1 }).toBuffer(), 'image/gif');
    const { optimized } = await checkRendering(rendering);
    assert.equal(rendering.frames, 400);
    assert.equal((await sharp(optimized).metadata()).pages, 400);
  });

  test('the most frames that are allowed are rendered, one more is refused', async () => {
    await tiny({ limits: { framesMax: 5 } }, async (on) => {
      for (const type of ['gif', 'webp'] as const) {
        const make = (count: number) => frames(32, 32, count).toFormat(type).toBuffer();
        assert.equal((await on.render(await make(5), `image/${type}`)).frames, 5);
        await refused('too_many_frames', await make(6), `image/${type}`, on);
      }
    });
  });

  test('a WebP of 3,000 frames in few bytes is refused at once', async () => {
    const startMs = performance.now();
    await refused('too_many_frames', await repeatedWebp(512, 512, 3000), 'image/webp');
    assert.ok(performance.now() - startMs < 10_000);
  });
});

describe('scans', () => {
  test('a progressive JPEG of 2,000 scans is refused at once', async () => {
    const jpeg = repeatScans(await photo(300, 200).jpeg({ progressive: true }).toBuffer(), 2000);
    const startMs = performance.now();
    await refused('too_many_scans', jpeg, 'image/jpeg');
    assert.ok(performance.now() - startMs < 5000);
  });

  test('a photograph with a progressive thumbnail and odd comments is rendered', async () => {
    const comment = Buffer.concat(Array(100).fill(Buffer.from([0xff, 0xda, 0x00, 0x02])));
    const jpeg = withSegment(await photo(300, 200).jpeg({ progressive: true }).toBuffer(), 0xfe, comment);
    await checkRendering(await scene.render(jpeg, 'image/jpeg'));
  });

  test('the limit is that of the settings', async () => {
    const jpeg = await photo(300, 200).jpeg({ progressive: true }).toBuffer();
    await checkRendering(await scene.render(jpeg, 'image/jpeg'));
    await tiny({ limits: { scansMax: 3 } }, (on) => refused('too_many_scans', jpeg, 'image/jpeg', on));
  });
});

test('a PNG with 900 texts that unpack to megabytes ends in bounded time and memory', async () => {
  const text = Buffer.concat([Buffer.from('k\0\0'), deflateSync(Buffer.alloc(4_000_000))]);
  const png = withPngChunks(await photo(100, 100).png().toBuffer(), 'zTXt', text, 900);
  const startMs = performance.now();
  await scene.render(png, 'image/png').then(checkRendering, (error) => {
    assert.ok(error instanceof SkrepkaError && error.code === 'corrupt_image', String(error));
  });
  assert.ok(performance.now() - startMs < 15_000);
  for (const pid of await scene.children()) assert.ok((await memoryOf(pid, 'VmHWM')) < 512 * 1024 * 1024);
});

describe('types', () => {
  const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>1</script></svg>');
  const foreign: Record<string, () => Promise<Buffer>> = {
    'an SVG': async () => svg,
    'a TIFF': () => photo(40, 30).tiff().toBuffer(),
    'a TIFF that declares one pixel and a huge strip': async () => {
      const tiff = await flat(1, 1, { r: 1, g: 2, b: 3 }).tiff().toBuffer();
      tiff.fill(0xff, tiff.length - 40, tiff.length - 20);
      return tiff;
    },
    'a PDF': async () => Buffer.from('%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF'),
    'a PPM': async () => Buffer.concat([Buffer.from('P6 2 2 255\n'), Buffer.alloc(12)]),
    'a BMP': async () => Buffer.concat([Buffer.from('BM'), Buffer.alloc(200)]),
    'a PSD': async () => Buffer.concat([Buffer.from('8BPS\0\x01'), Buffer.alloc(200)]),
    'a HEIC': async () =>
      Buffer.from(
        (await photo(40, 30).avif().toBuffer())
          .toString('latin1')
          .replaceAll('avif', 'heic')
          .replaceAll('av01', 'hvc1')
          .replaceAll('av1C', 'hvcC'),
        'latin1',
      ),
    'a libvips picture': async () => Buffer.concat([Buffer.from([0xb6, 0xa6, 0xf2, 0x08]), Buffer.alloc(200)]),
    'a table of numbers': async () => Buffer.from('1,2,3\n4,5,6\n'),
    'a page of HTML': async () => Buffer.from('<!doctype html><title>cat.jpg</title>'),
    'no bytes at all': async () => Buffer.alloc(0),
    'random bytes': async () => Buffer.from(Array.from({ length: 500 }, (_, index) => (index * 7919) % 256)),
  };
  for (const [what, make] of Object.entries(foreign)) {
    test(`${what} is never decoded, whatever it is declared as`, async () => {
      const bytes = await make();
      for (const type of ['jpeg', 'png', 'webp', 'gif', 'avif']) {
        const reason = await refused('corrupt_image', bytes, `image/${type}`);
        // HEIC is the container of AVIF with another codec, which this build does not even have.
        if (type !== 'avif' || what !== 'a HEIC') assert.match(reason, noLoader);
      }
    });
  }

  test('a picture is read by the loader of its declared type and by no other', async () => {
    const made = {
      jpeg: await photo(40, 30).jpeg().toBuffer(),
      png: await photo(40, 30).png().toBuffer(),
      webp: await photo(40, 30).webp().toBuffer(),
      gif: await photo(40, 30).gif().toBuffer(),
      avif: await photo(40, 30).avif().toBuffer(),
    };
    for (const [type, bytes] of Object.entries(made)) {
      for (const declared of Object.keys(made)) {
        if (declared === type) await checkRendering(await scene.render(bytes, `image/${declared}`));
        else assert.match(await refused('corrupt_image', bytes, `image/${declared}`), noLoader);
      }
    }
  });

  test('a type that is never rendered is refused without troubling a child', async () => {
    await refused('internal', svg, 'image/svg+xml');
    await refused('internal', svg, 'application/pdf');
  });
});

test('a source that is not there, or outputs that cannot be written, are faults of ours and not of the picture', async () => {
  const isInternal = (error: unknown) => error instanceof SkrepkaError && error.code === 'internal';
  await assert.rejects(scene.renderFile(join(scene.folder, 'nothing'), 'image/png'), isInternal);
  const sourcePath = join(scene.folder, 'whole.png');
  await writeFile(sourcePath, await photo(20, 20).png().toBuffer());
  await checkRendering(await scene.renderFile(sourcePath, 'image/png'));
  const recipe = recipeOf(newestVersion);
  const task = { sourcePath, outputDir: join(scene.folder, 'no-such-folder'), contentType: 'image/png', recipe };
  await assert.rejects(scene.images.render(task, new AbortController().signal), isInternal);
});
