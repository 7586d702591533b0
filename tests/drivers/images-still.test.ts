/** The deadline of a render, when the worker itself stands still: that time is not the picture's. */
import assert from 'node:assert/strict';
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { SkrepkaError } from '../../src/errors.ts';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import { checkRendering, hostileScript, openScene, recipeOf } from '../support/images-scene.ts';
import { onEnd } from '../support/on-end.ts';
import { photo } from '../support/pictures.ts';
import { until } from '../support/until.ts';

/** Nothing of this process runs for so long, as after SIGSTOP. */
const standStill = (ms: number) => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

describe('a worker that stands still for longer than a render may take', () => {
  test('does not count that time: what its child answered meanwhile is good', async (t) => {
    const scene = await openScene({ children: 1, warmSpare: 0, limits: { timeoutMs: 3000 } });
    onEnd(t, scene.close);
    await checkRendering(await scene.render(await photo(64, 48).png().toBuffer(), 'image/png'));
    const task = { sourcePath: join(scene.folder, 'source-1'), outputDir: scene.folder, contentType: 'image/png' };
    const rendering = scene.images.render({ ...task, recipe: recipeOf(newestVersion) }, new AbortController().signal);
    standStill(4000);
    await checkRendering(await rendering);
  });

  test('kills what never ends all the same', async (t) => {
    const scene = await openScene({
      ...{ children: 1, warmSpare: 0, script: hostileScript },
      limits: { timeoutMs: 1000 },
    });
    onEnd(t, scene.close);
    const rendering = assert.rejects(scene.render(Buffer.from('anything'), 'image/png', { name: 'hang' }), (error) => {
      assert.ok(error instanceof SkrepkaError && error.code === 'render_timeout', String(error));
      return true;
    });
    const started = () => access(join(scene.folder, 'out-1', 'started')).then(() => true);
    await until('it has begun', () => started().catch(() => false));
    standStill(1500);
    await rendering;
  });
});
