/**
 * What the parent and a render child say to each other: paths, numbers and codes over IPC, never bytes of a picture.
 *
 * An answer is parsed once, here, into a narrow type: a child that decodes hostile bytes is not trusted to be truthful
 * about anything that the parent can derive itself (a variant's path, its content type).
 */
import { join } from 'node:path';
import type { ImageType } from '../pipeline/attachment.ts';
import type { RenderedVariant, Rendering, RenderLimits } from '../pipeline/ports.ts';
import type { Recipe, VariantRule } from '../pipeline/recipe.ts';

/** One render, as the parent asks for it. `id` is echoed, so that a late answer is never taken for another job's. */
export interface Job {
  readonly id: number;
  readonly sourcePath: string;
  readonly outputDir: string;
  readonly contentType: ImageType;
  readonly recipe: Recipe;
  readonly limits: Pick<RenderLimits, 'pixelsMax' | 'pixelsMaxAvif' | 'framesMax' | 'scansMax'>;
}

/** A variant as the child tells of it: what only the child knows. */
export interface ChildVariant {
  readonly width: number;
  readonly height: number;
  readonly size: number;
  readonly sha256: string;
}

/** `variants` are in the recipe's order. */
export interface ChildRendering {
  readonly width: number;
  readonly height: number;
  readonly frames: number;
  readonly placeholder: string;
  readonly variants: readonly ChildVariant[];
}

/** The verdicts that a child can come to. The others are the parent's: a child that is dead says nothing. */
const refusals = [
  'corrupt_image',
  'too_many_pixels',
  'too_many_frames',
  'too_many_scans',
  'render_memory',
  'internal',
] as const;
export type Refusal = (typeof refusals)[number];

/** True for a code with which a child may refuse. */
export function isRefusal(value: unknown): value is Refusal {
  return refusals.some((code) => code === value);
}

/** From child to parent. `rssBytes` is the child's resident memory at rest: it decides whether the child is kept. */
export type ChildMessage =
  | { readonly kind: 'ready' }
  | { readonly kind: 'done'; readonly id: number; readonly rssBytes: number; readonly rendering: ChildRendering }
  | {
      readonly kind: 'refused';
      readonly id: number;
      readonly rssBytes: number;
      readonly code: Refusal;
      readonly log: string;
    };

export type Answer = Exclude<ChildMessage, { kind: 'ready' }>;

const variantFiles = {
  jpeg: { extension: 'jpg', contentType: 'image/jpeg' },
  webp: { extension: 'webp', contentType: 'image/webp' },
} as const;

/** Where a variant is written: known to both sides from the job alone. */
export function variantPath(outputDir: string, rule: VariantRule): string {
  return join(outputDir, `${rule.name}.${variantFiles[rule.format].extension}`);
}

/** The rendering that an answer stands for, with what the parent knows better filled in; null when it does not fit the job. */
export function renderingOf(answer: ChildRendering, job: Job): Rendering | null {
  if (answer.variants.length !== job.recipe.variants.length) return null;
  const variants: RenderedVariant[] = [];
  for (const [index, rule] of job.recipe.variants.entries()) {
    const told = answer.variants[index];
    if (!told) return null;
    variants.push({
      name: rule.name,
      path: variantPath(job.outputDir, rule),
      contentType: variantFiles[rule.format].contentType,
      width: told.width,
      height: told.height,
      size: told.size,
      sha256: told.sha256,
    });
  }
  return {
    width: answer.width,
    height: answer.height,
    frames: answer.frames,
    placeholder: answer.placeholder,
    variants,
  };
}

/** The message in what came over IPC, or null when it is none. */
export function parseMessage(value: unknown): ChildMessage | null {
  if (!isRecord(value)) return null;
  if (value.kind === 'ready') return { kind: 'ready' };
  const { kind, id, rssBytes } = value;
  if (!isCount(id) || !isCount(rssBytes)) return null;
  if (kind === 'refused' && isRefusal(value.code) && typeof value.log === 'string') {
    return { kind, id, rssBytes, code: value.code, log: value.log.slice(0, 2000) };
  }
  if (kind !== 'done') return null;
  const rendering = parseRendering(value.rendering);
  return rendering && { kind, id, rssBytes, rendering };
}

function parseRendering(value: unknown): ChildRendering | null {
  if (!isRecord(value)) return null;
  const { width, height, frames, placeholder, variants } = value;
  if (!isPositive(width) || !isPositive(height) || !isPositive(frames)) return null;
  if (typeof placeholder !== 'string' || !/^[A-Za-z0-9+/]{4,64}={0,2}$/.test(placeholder)) return null;
  if (!Array.isArray(variants)) return null;
  const parsed = variants.map(parseVariant);
  if (!parsed.every((variant) => variant !== null)) return null;
  return { width, height, frames, placeholder, variants: parsed };
}

function parseVariant(value: unknown): ChildVariant | null {
  if (!isRecord(value)) return null;
  const { width, height, size, sha256 } = value;
  if (!isPositive(width) || !isPositive(height) || !isPositive(size)) return null;
  if (typeof sha256 !== 'string' || !/^[0-9a-f]{64}$/.test(sha256)) return null;
  return { width, height, size, sha256 };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isPositive(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}
