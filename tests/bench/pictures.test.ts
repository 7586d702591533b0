/** The pictures of the benchmarks and the processes that render them: what makes their figures comparable. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, it } from 'node:test';
import sharp from 'sharp';
import { type Kind, kinds, type Wanted, wanted } from '../../bench/picture-mix.ts';
import { mixed } from '../../bench/pictures.ts';
import { newest, scripts } from '../../bench/renderers.ts';
import { bareDataBytes, startChild } from '../../src/drivers/images-process.ts';
import { variantPath } from '../../src/drivers/images-protocol.ts';
import { onEnd, type Scope } from '../support/on-end.ts';
import { photo } from '../support/pictures.ts';

const limits = { pixelsMax: 50_000_000, pixelsMaxAvif: 16_000_000, framesMax: 500, scansMax: 64 };

describe('the mix of pictures', () => {
  it('has forty pictures, each with a name of its own, and some of every kind', () => {
    assert.equal(wanted.length, 40);
    assert.equal(new Set(wanted.map(({ name }) => name)).size, 40);
    for (const kind of kinds) assert.ok(wanted.filter((one) => one.kind === kind).length >= 2, kind);
  });

  it('is ordered so that each half of it is a mix as well', () => {
    const order = mixed(wanted);
    assert.deepEqual(new Set(order), new Set(wanted));
    for (const half of [order.slice(0, 20), order.slice(20)]) {
      assert.deepEqual(new Set(half.map(({ kind }) => kind)), new Set(kinds));
    }
  });

  it('makes the same bytes of the same photograph again', async (t) => {
    const from = await photograph(t);
    for (const name of ['jpeg-storm-forwarded.jpg', 'png-phone.png', 'animated-sticker.webp']) {
      assert.deepEqual(await named(name).make(from), await named(name).make(from), name);
    }
  });

  it('stores a portrait as its camera lay, and says how to turn it', async (t) => {
    const bytes = await named('jpeg-ripple-portrait.jpg').make(await photograph(t));
    const { width, height, orientation, autoOrient } = await sharp(bytes).metadata();
    assert.deepEqual({ width, height, orientation }, { width: 200, height: 320, orientation: 6 });
    assert.deepEqual(autoOrient, { width: 320, height: 200 });
  });

  it('gives profiles, scans and frames to those kinds alone that are named for them', async (t) => {
    const from = await photograph(t);
    for (const kind of kinds) {
      const found = await sharp(await drawn(kind).make(from)).metadata();
      assert.equal(found.icc !== undefined, kind === 'jpeg-icc', `profile of ${kind}`);
      assert.equal(found.isProgressive, kind === 'jpeg-progressive', `scans of ${kind}`);
      assert.equal((found.pages ?? 1) > 1, kind === 'animated', `frames of ${kind}`);
    }
  });
});

describe('the processes that render for a comparison', () => {
  it('make the variants of the product in the same sizes, for a portrait and for an animation', async (t) => {
    const from = await photograph(t);
    for (const name of ['jpeg-ripple-portrait.jpg', 'animated-pan.gif']) {
      const one = named(name);
      const source = path.join(path.dirname(from), name);
      await writeFile(source, await one.make(from));
      const [ours, ...others] = await Promise.all(
        [scripts.child, scripts.bare, scripts.three].map((script) => sizesBy(t, script, source, one)),
      );
      for (const sizes of others) assert.deepEqual(sizes, ours, name);
    }
  });
});

function named(name: string): Wanted {
  const found = wanted.find((one) => one.name === name);
  if (!found) throw new Error(`No picture is called ${name}`);
  return found;
}

/** One of a kind. Its profile comes from sharp where it has one: a drawn photograph brings none along. */
function drawn(kind: Kind): Wanted {
  const found = wanted.find((one) => one.kind === kind);
  if (kind === 'jpeg-icc' || !found) return named('jpeg-icc-hills-srgb.jpg');
  return found;
}

async function photograph(t: Scope): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-bench-'));
  onEnd(t, () => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'photograph.png');
  await photo(320, 200).png().toFile(file);
  return file;
}

/** Width, height and frames of each variant as it lies on disk. */
async function sizesBy(t: Scope, script: URL, sourcePath: string, { contentType }: Wanted) {
  const outputDir = path.join(path.dirname(sourcePath), path.basename(script.pathname, '.ts'));
  await mkdir(outputDir, { recursive: true });
  const settings = { memoryBytes: 600 * 1024 * 1024, niceness: 0, startMs: 30_000 };
  const child = startChild({ script, ...settings, bareBytes: await bareDataBytes() });
  onEnd(t, async () => {
    child.kill();
    await child.ended;
  });
  assert.ok(await child.ready);
  const answer = await child.ask({ id: 1, sourcePath, outputDir, contentType, recipe: newest(), limits });
  assert.equal(answer?.kind, 'done');
  const sizes = newest().variants.map(async (rule) => {
    // Not by its path: libvips remembers what a file of that name was before.
    const bytes = await readFile(variantPath(outputDir, rule));
    const { width, pageHeight, height, pages = 1 } = await sharp(bytes).metadata();
    return { name: rule.name, width, height: pageHeight ?? height, pages };
  });
  return await Promise.all(sizes);
}
