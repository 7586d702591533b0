/** Recipes are data that was released: numbered one by one, whole, and never edited. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, test } from 'node:test';
import { variantNames } from '../../src/pipeline/attachment.ts';
import { newestVersion, recipes } from '../../src/pipeline/recipe.ts';

/** Digests of the recipes as they were released. A new recipe gets a new line; a line that has to change is a mistake. */
const released: Readonly<Record<number, string>> = {
  1: 'd04e69e91a8ea4e3e590d7b9b8fb9160ccc52bea77e39d77bee9e079cf4a158c',
  2: '877340be5332903c7ac5c3b3d49f1a7178d7e12e3b2d2ea9f783692deecc8c0a',
};

describe('a recipe', () => {
  for (const [version, recipe] of recipes) {
    test(`of version ${version} is what it was when it was released`, () => {
      const digest = createHash('sha256').update(JSON.stringify(recipe)).digest('hex');
      assert.equal(digest, released[version], 'published sets were made by it: other settings are another version');
    });

    test(`of version ${version} makes every variant once`, () => {
      assert.deepEqual(recipe.variants.map(({ name }) => name).sort(), [...variantNames].sort());
    });
  }

  test('of every version up to the newest is there: a published set may have to be rebuilt', () => {
    assert.deepEqual(
      [...recipes.keys()],
      Array.from({ length: newestVersion }, (_, index) => index + 1),
    );
  });

  test('of another version makes something else', () => {
    const contents = [...recipes.values()].map(({ version: _, ...rest }) => JSON.stringify(rest));
    assert.equal(new Set(contents).size, recipes.size);
  });
});
