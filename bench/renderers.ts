/**
 * Warm processes that render one picture at a time, from a file on disk to files on disk: the floor below a service, and what others
 * do in its place. They are started as the product starts its render children: same niceness, memory limit, allocator and threads.
 */
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { bareDataBytes, type RenderChild, startChild } from '../src/drivers/images-process.ts';
import { newestVersion, type Recipe, recipes } from '../src/pipeline/recipe.ts';
import { onEnd, type Scope } from '../tests/support/on-end.ts';
import type { Picture } from './pictures.ts';
import { cpuMsOf } from './usage.ts';

export interface Renderers {
  /** Renders with a process that is free; at most as many at once as there are. Answers its wall-clock time, ms. */
  render(picture: Picture): Promise<number>;
  /** Renders all, every process busy until nothing is left. */
  renderAll(pictures: readonly Picture[]): Promise<void>;
  /** Time on the processor of all of them so far, ms. */
  cpuMs(): Promise<number>;
}

export interface RenderersSettings {
  /** A script that says what a render child says (`src/drivers/images-protocol.ts`). */
  readonly script: URL;
  readonly count: number;
}

/** The scripts: the driver's own child; the plan of the driver in a bare loop; a pipeline from the file for each variant. */
export const scripts = {
  child: new URL('../src/drivers/images-child.ts', import.meta.url),
  bare: new URL('./processes/bare-render.ts', import.meta.url),
  three: new URL('./references/three-pipelines.ts', import.meta.url),
} as const;

/** As the product has them by default. */
const limits = { pixelsMax: 50_000_000, pixelsMaxAvif: 16_000_000, framesMax: 500, scansMax: 64 };
const child = { memoryBytes: 600 * 1024 * 1024, niceness: 10, startMs: 30_000 };

/** Resolves when all are loaded and each has rendered `warmUp` once. They are gone when `scope` ends. */
export async function openRenderers(
  scope: Scope,
  settings: RenderersSettings,
  warmUp: readonly Picture[],
): Promise<Renderers> {
  const { script, count } = settings;
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-bench-'));
  onEnd(scope, () => rm(folder, { recursive: true, force: true }));
  const bareBytes = await bareDataBytes();
  const all = Array.from({ length: count }, () => startChild({ script, ...child, bareBytes }));
  onEnd(scope, async () => {
    for (const one of all) one.kill();
    await Promise.all(all.map(({ ended }) => ended));
  });
  const idle: Renderer[] = [];
  for (const [index, process_] of all.entries()) {
    const outputDir = path.join(folder, String(index));
    await mkdir(outputDir);
    if (!(await process_.ready)) throw new Error(`A render process did not start: ${(await process_.ended).log}`);
    idle.push({ process: process_, outputDir });
  }
  await Promise.all(idle.map((one) => renderInTurn(one, [...warmUp])));

  return {
    async render(picture) {
      const one = idle.pop();
      if (!one) throw new Error(`Expected a free render process, all ${count} are busy`);
      const startMs = performance.now();
      await renderOne(one, picture);
      const tookMs = performance.now() - startMs;
      idle.push(one);
      return tookMs;
    },
    async renderAll(pictures) {
      const left = [...pictures];
      await Promise.all(idle.map((one) => renderInTurn(one, left)));
    },
    cpuMs: () => cpuMsOf(all.map(({ pid = 0 }) => pid)),
  };
}

interface Renderer {
  readonly process: RenderChild;
  readonly outputDir: string;
}

/** Takes from the front of `left`, which others may take from too. */
async function renderInTurn(one: Renderer, left: Picture[]): Promise<void> {
  for (let next = left.shift(); next !== undefined; next = left.shift()) await renderOne(one, next);
}

async function renderOne({ process: asked, outputDir }: Renderer, { name, path: sourcePath, contentType }: Picture) {
  const job = { id: asked.asked(), sourcePath, outputDir, contentType, recipe: newest(), limits };
  const answer = await asked.ask(job);
  if (answer?.kind !== 'done') throw new Error(`${name} was not rendered: ${answer?.log ?? (await asked.ended).log}`);
}

/** What new uploads are rendered by. */
export function newest(): Recipe {
  const recipe = recipes.get(newestVersion);
  if (!recipe) throw new Error(`Expected recipe ${newestVersion}, found none`);
  return recipe;
}
