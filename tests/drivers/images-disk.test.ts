/** A render on a disk that is full: `/dev/full` stands where a variant is to be written, and answers every write as such a disk does. */
import assert from 'node:assert/strict';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { ScratchError } from '../../src/pipeline/ports.ts';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import { checkRendering, openScene, recipeOf } from '../support/images-scene.ts';
import { onEnd } from '../support/on-end.ts';
import { photo } from '../support/pictures.ts';

for (const variant of ['thumbnail.jpg', 'crop.jpg', 'optimized.webp']) {
  test(`a full disk under ${variant} is nobody’s failure, and the next picture is good`, async (t) => {
    const scene = await openScene({ children: 1 });
    onEnd(t, scene.close);
    const picture = await photo(640, 480).jpeg().toBuffer();
    const sourcePath = join(scene.folder, 'source');
    const outputDir = join(scene.folder, 'full');
    await mkdir(outputDir);
    await writeFile(sourcePath, picture);
    await symlink('/dev/full', join(outputDir, variant));
    const task = { sourcePath, outputDir, contentType: 'image/jpeg', recipe: recipeOf(newestVersion) };
    await assert.rejects(scene.images.render(task, new AbortController().signal), ScratchError);
    await checkRendering(await scene.render(picture, 'image/jpeg'));
  });
}
