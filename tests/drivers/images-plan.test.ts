/** What is saved on the way to a variant changes no byte of it: each is what its rule makes of the pixels of the one decode. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import sharp from 'sharp';
import { fitInside } from '../../src/drivers/images-probe.ts';
import { openScene, recipeOf, type Scene } from '../support/images-scene.ts';
import { photo } from '../support/pictures.ts';

let scene: Scene;
before(async () => {
  scene = await openScene({ recipe: recipeOf(2) });
});
after(() => scene.close());

/** By the rule alone, as version 2 has it: one pipeline from the pixels of the decode. */
async function thumbnailOf(picture: Buffer): Promise<Buffer> {
  const { width, height } = await sharp(picture).metadata();
  const large = fitInside({ width, height }, { width: 2048, height: 2048 });
  const small = fitInside({ width, height }, { width: 256, height: 256 });
  const { data, info } = await sharp(picture)
    .resize(large.width, large.height, { fit: 'fill' })
    .raw()
    .toBuffer({ resolveWithObject: true });
  const { channels } = info;
  return await sharp(data, { raw: { ...large, channels } })
    .resize(small.width, small.height, { fit: 'fill' })
    .flatten({ background: '#ffffff' })
    .jpeg({ quality: 80, mozjpeg: true })
    .toBuffer();
}

const pictures = {
  'larger than the decode': () => photo(2600, 1733).jpeg().toBuffer(),
  'of an odd size, which rounds differently from the decode’s': () => photo(2400, 914).jpeg().toBuffer(),
  'smaller than the decode': () => photo(700, 500).png().toBuffer(),
  'no larger than the thumbnail': () => photo(200, 100).png().toBuffer(),
  'that is partly transparent': () => photo(700, 500).ensureAlpha(0.4).png().toBuffer(),
};

for (const [what, make] of Object.entries(pictures)) {
  test(`the thumbnail of a picture ${what} is that of its rule, byte for byte`, async () => {
    const picture = await make();
    const type = (await sharp(picture).metadata()).format === 'png' ? 'image/png' : 'image/jpeg';
    const { variants } = await scene.render(picture, type);
    const thumbnail = variants.find(({ name }) => name === 'thumbnail');
    assert.ok(thumbnail);
    assert.ok((await readFile(thumbnail.path)).equals(await thumbnailOf(picture)));
  });
}
