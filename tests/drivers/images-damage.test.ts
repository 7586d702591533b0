/**
 * Damaged pictures: `corrupt_image` at once, or a rendering where the decoder honestly can; never a dead child. Every case
 * is drawn from a seed that its failure names.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { type Code, SkrepkaError } from '../../src/errors.ts';
import { checkRendering, openScene, type Scene } from '../support/images-scene.ts';
import { firstScanAt, flipped, frames, photo, withPngChunks } from '../support/pictures.ts';

let scene: Scene;
before(async () => {
  // No child is replaced for its age: whoever is, died of a picture.
  scene = await openScene({ rendersMax: 10_000 });
});
after(() => scene.close());

/** What became of the bytes; fails for anything but the two honest ends. A flipped header may also claim too much. */
async function outcomeOf(
  bytes: Buffer,
  contentType: string,
  what: string,
  codes: readonly Code[] = ['corrupt_image'],
): Promise<'rendered' | 'corrupt'> {
  try {
    await checkRendering(await scene.render(bytes, contentType));
    return 'rendered';
  } catch (error) {
    assert.ok(error instanceof SkrepkaError, `${what}: ${String(error)}`);
    assert.ok(codes.includes(error.code), `${what}: ${error.code}, ${error.message}`);
    return 'corrupt';
  }
}

async function assertUndisturbed(pids: readonly number[]): Promise<void> {
  assert.deepEqual(await scene.children(), pids, 'no child was replaced');
  assert.deepEqual(
    scene.logged.filter(({ level }) => level !== 'debug'),
    [],
  );
  assert.equal(await outcomeOf(await photo(64, 48).jpeg().toBuffer(), 'image/jpeg', 'the next picture'), 'rendered');
}

const part = (bytes: Buffer, share: number) => bytes.subarray(0, Math.floor(bytes.length * share));

describe('files that break off', () => {
  test('a JPEG cut at 60 %, by two bytes or inside its header is corrupt at once', async () => {
    for (const progressive of [false, true]) {
      const jpeg = await photo(640, 480).jpeg({ progressive }).toBuffer();
      const cuts = {
        'at 60 %': part(jpeg, 0.6),
        'by two bytes': jpeg.subarray(0, -2),
        'in its header': jpeg.subarray(0, 300),
      };
      for (const [what, cut] of Object.entries(cuts)) {
        assert.equal(await outcomeOf(cut, 'image/jpeg', what), 'corrupt', what);
      }
    }
  });

  test('the other types are corrupt as well, but a GIF keeps the frames that arrived', async () => {
    const whole = {
      'image/png': await photo(640, 480).png().toBuffer(),
      'image/webp': await photo(640, 480).webp().toBuffer(),
      'image/avif': await photo(320, 240).avif({ effort: 0 }).toBuffer(),
    };
    for (const [type, bytes] of Object.entries(whole)) {
      for (const share of [0.6, 0.95, 0.01]) assert.equal(await outcomeOf(part(bytes, share), type, type), 'corrupt');
    }
    const gif = await frames(64, 64, 10).gif({ effort: 1 }).toBuffer();
    const rendering = await scene.render(part(gif, 0.6), 'image/gif');
    await checkRendering(rendering);
    assert.ok(rendering.frames >= 4 && rendering.frames < 10, `${rendering.frames} frames`);
  });

  test('a file can break off after any of its first 200 bytes', async () => {
    const pids = await scene.children();
    for (const type of ['jpeg', 'png', 'webp', 'gif', 'avif'] as const) {
      const bytes = await photo(32, 24).toFormat(type).toBuffer();
      for (let length = 1; length < Math.min(200, bytes.length); length += 9) {
        await outcomeOf(bytes.subarray(0, length), `image/${type}`, `${type} of ${length} bytes`);
      }
    }
    await assertUndisturbed(pids);
  });
});

describe('files that others write and viewers show', () => {
  test('a JPEG with stray bytes between its segments is rendered', async () => {
    const jpeg = await photo(320, 240).jpeg().toBuffer();
    const stray = Buffer.concat([jpeg.subarray(0, 2), Buffer.from([0x11, 0x22, 0x33]), jpeg.subarray(2)]);
    assert.equal(await outcomeOf(stray, 'image/jpeg', 'stray bytes'), 'rendered');
  });

  test('a JPEG with something appended is rendered', async () => {
    const jpeg = await photo(320, 240).jpeg().toBuffer();
    assert.equal(await outcomeOf(Buffer.concat([jpeg, jpeg.subarray(0, 999)]), 'image/jpeg', 'a trailer'), 'rendered');
  });

  test('a PNG with a broken text is rendered, one with broken pixels is corrupt', async () => {
    const png = await photo(320, 240).png().toBuffer();
    const text = withPngChunks(png, 'tEXt', Buffer.from('k\0value'), 1);
    text[text.indexOf('tEXt') + 8] = 0x21;
    assert.equal(await outcomeOf(text, 'image/png', 'a broken text'), 'rendered');
    const pixels = Buffer.from(png);
    pixels[Math.floor(png.length / 2)] = ~(pixels[Math.floor(png.length / 2)] ?? 0) & 0xff;
    assert.equal(await outcomeOf(pixels, 'image/png', 'broken pixels'), 'corrupt');
  });
});

/** Runs the seeds through all children at once. Answers how many were rendered. */
async function flip(
  seeds: number,
  contentType: string,
  make: (seed: number) => Buffer,
  codes?: readonly Code[],
): Promise<number> {
  let rendered = 0;
  let next = 1;
  const lane = async (): Promise<void> => {
    for (let seed = next++; seed <= seeds; seed = next++) {
      const outcome = await outcomeOf(make(seed), contentType, `seed ${seed}`, codes);
      if (outcome === 'rendered') rendered += 1;
    }
  };
  await Promise.all([lane(), lane()]);
  return rendered;
}

describe('bytes flipped at random', () => {
  test('500 JPEGs with 200 bytes flipped after the start of scan end honestly', async () => {
    const pids = await scene.children();
    const baseline = await photo(160, 120).jpeg({ quality: 90 }).toBuffer();
    const progressive = await photo(160, 120).jpeg({ quality: 90, progressive: true }).toBuffer();
    const rendered = await flip(500, 'image/jpeg', (seed) => {
      const jpeg = seed % 2 === 0 ? baseline : progressive;
      return flipped(jpeg, firstScanAt(jpeg), 200, seed);
    });
    assert.ok(rendered < 500, `${rendered} of 500 were rendered`);
    await assertUndisturbed(pids);
  });

  const others = { png: 120, webp: 120, gif: 120, avif: 60 } as const;
  for (const [type, seeds] of Object.entries(others)) {
    test(`${seeds} ${type.toUpperCase()} files with bytes flipped anywhere behind the signature end honestly`, async () => {
      const pids = await scene.children();
      const still = await photo(96, 64)
        .toFormat(type as keyof typeof others)
        .toBuffer();
      const moving = type === 'webp' || type === 'gif' ? await frames(48, 32, 6).toFormat(type).toBuffer() : still;
      const make = (seed: number) => flipped(seed % 2 === 0 ? still : moving, 16, 1 + (seed % 20), seed);
      await flip(seeds, `image/${type}`, make, ['corrupt_image', 'too_many_pixels', 'too_many_frames']);
      await assertUndisturbed(pids);
    });
  }
});
