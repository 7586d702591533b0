/**
 * The recipes: how each pipeline version makes its variants. Data, not code, so that a build can carry several and a
 * worker that lacks one can say so. `contracts/attachment-states.md` describes them for readers.
 *
 * A recipe is never edited once released: other settings are another version.
 */
import type { VariantName } from './attachment.ts';

interface Box {
  readonly width: number;
  readonly height: number;
}

/** `inside` keeps proportions and never enlarges; `cover` fills the box exactly, centred. */
export type VariantRule =
  | {
      readonly name: VariantName;
      readonly format: 'jpeg';
      readonly fit: 'inside' | 'cover';
      readonly box: Box;
      readonly quality: number;
      readonly mozjpeg: boolean;
    }
  | {
      readonly name: VariantName;
      readonly format: 'webp';
      readonly fit: 'inside';
      readonly box: Box;
      readonly quality: number;
      readonly effort: number;
    };

export interface Recipe {
  readonly version: number;
  /** The one decode is resized to raw pixels of at most this long edge; every variant comes from those. */
  readonly workingEdge: number;
  readonly variants: readonly VariantRule[];
}

/**
 * Version 1. WebP effort 2: −37 % CPU against effort 4 for +2 to +6 % bytes; mozjpeg for the two small pictures: −15 %
 * bytes for +1 % CPU (`docs/decisions/`).
 */
const version1: Recipe = {
  version: 1,
  workingEdge: 2048,
  variants: [
    { name: 'thumbnail', format: 'jpeg', fit: 'inside', box: { width: 256, height: 256 }, quality: 80, mozjpeg: true },
    { name: 'crop', format: 'jpeg', fit: 'cover', box: { width: 128, height: 128 }, quality: 80, mozjpeg: true },
    { name: 'optimized', format: 'webp', fit: 'inside', box: { width: 2048, height: 2048 }, quality: 80, effort: 2 },
  ],
};

/**
 * Version 2. WebP effort 1 at quality 78 in place of 2 at 80: −16 % CPU of the whole render, +1 % bytes, −0.1 dB. The small
 * pictures are those of version 1, byte for byte (`docs/decisions/0011-recipe-2.md`).
 */
const version2: Recipe = {
  version: 2,
  workingEdge: 2048,
  variants: [
    { name: 'thumbnail', format: 'jpeg', fit: 'inside', box: { width: 256, height: 256 }, quality: 80, mozjpeg: true },
    { name: 'crop', format: 'jpeg', fit: 'cover', box: { width: 128, height: 128 }, quality: 80, mozjpeg: true },
    { name: 'optimized', format: 'webp', fit: 'inside', box: { width: 2048, height: 2048 }, quality: 78, effort: 1 },
  ],
};

/** In order. A recipe that left this list would make `rebuild` and roll-back of its version impossible. */
const released: readonly Recipe[] = [version1, version2];

export const recipes: ReadonlyMap<number, Recipe> = new Map(released.map((recipe) => [recipe.version, recipe]));

/** What new jobs get unless the setting `PIPELINE_VERSION` names another one. */
export const newestVersion = Math.max(...recipes.keys());
