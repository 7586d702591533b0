/**
 * The ports that only a worker has: its own disk and what renders pictures on it. And the named points of the code, at which any
 * process may die.
 */
import { createHash } from 'node:crypto';
import { SkrepkaError } from '../../src/errors.ts';
import {
  type Images,
  ImagesError,
  type Reach,
  type Rendering,
  type Scratch,
  ScratchError,
} from '../../src/pipeline/ports.ts';
import type { Recipe } from '../../src/pipeline/recipe.ts';
import type { Manner, Process, World } from './world.ts';

/* ------------------------------------------------------- the worker's own disk */

export const ofDisk: Manner = {
  fates: ['before', 'crash_before', 'pause'],
  before: () => new ScratchError('simulated: the disk'),
  unknown: () => new ScratchError('simulated: the disk'),
};

export type Disk = Map<string, Uint8Array>;

export function scratchOf(world: World, process: Process, disk: Disk): Scratch {
  return {
    async open(attemptId) {
      const path = `/scratch/${attemptId}`;
      await world.effect(process, 'scratch.open', ofDisk, () => undefined);
      return {
        path,
        async write(name, body) {
          const chunks: Uint8Array[] = [];
          for await (const chunk of body) chunks.push(chunk);
          const bytes = Buffer.concat(chunks);
          const file = `${path}/${name}`;
          await world.effect(process, 'scratch.write', ofDisk, () => void disk.set(file, bytes));
          return { path: file, size: bytes.length, sha256: digest(bytes) };
        },
        async *read(file) {
          yield disk.get(file) ?? Buffer.from('nothing there');
        },
        async remove() {
          for (const file of disk.keys()) if (file.startsWith(`${path}/`)) disk.delete(file);
        },
      };
    },
    sweep: () => world.effect(process, 'scratch.sweep', ofDisk, () => disk.clear()),
    health: () => world.effect(process, 'scratch.health', ofDisk, () => undefined),
  };
}

const digest = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

/* ---------------------------------------------------------------- pictures */

export const ofRendering: Manner = {
  fates: ['before', 'slow', 'crash_before', 'pause'],
  before: () => new ImagesError('simulated: no child'),
  unknown: () => new ImagesError('simulated: no child'),
};

/**
 * Pictures say what they do: `IMG corrupt` cannot be decoded, `IMG crash` crashes its child, `IMG killer` takes its worker along,
 * `IMG slow` takes a minute. What is rendered tells its source and its recipe.
 */
export function imagesOf(world: World, process: Process, disk: Disk): Images {
  return {
    render(task, signal) {
      const source = Buffer.from(disk.get(task.sourcePath) ?? []).toString('utf8');
      const { promise, resolve, reject } = Promise.withResolvers<Rendering>();
      const broken = () => reject(signal.reason as Error);
      if (signal.aborted) broken();
      signal.addEventListener('abort', broken, { once: true });
      const takesMs = source.startsWith('IMG slow') ? world.between(40_000, 70_000) : world.between(20, 3_000);
      world.after(takesMs, () =>
        world.in(process, () => {
          if (source.startsWith('IMG killer')) return world.crash(process);
          void world
            .effect(process, 'images.render', ofRendering, () => draw(source, task, disk))
            .then(resolve, reject)
            .finally(() => signal.removeEventListener('abort', broken));
        }),
      );
      return promise;
    },
    close: async () => {},
  };
}

function draw(source: string, task: { outputDir: string; recipe: Recipe }, disk: Disk): Rendering {
  if (source.startsWith('IMG corrupt')) throw new SkrepkaError('corrupt_image', { log: 'simulated: corrupt' });
  if (source.startsWith('IMG crash')) throw new SkrepkaError('render_crashed', { log: 'simulated: crashed' });
  const variants = task.recipe.variants.map(({ name, format }) => {
    // Encoders are not the same on all machines: no two attempts make the same bytes.
    const bytes = Buffer.from(`${pictureOf(source, name, task.recipe.version)} in ${task.outputDir}`);
    const path = `${task.outputDir}/${name}.out`;
    disk.set(path, bytes);
    const contentType = `image/${format}`;
    return { name, path, contentType, width: 10, height: 10, size: bytes.length, sha256: digest(bytes) };
  });
  return { width: 40, height: 30, frames: 1, placeholder: 'AAAA', variants };
}

/** What a variant begins with. */
export function pictureOf(source: string, name: string, version: number): string {
  return `${name} of ${source} by version ${version}`;
}

/* ------------------------------------------------------------------ points */

/** The named points of the code are moments at which a process may die or sleep as well. */
export function reachOf(world: World, process: Process): Reach {
  return (point) => world.effect(process, `point.${point}`, ofPoint, () => undefined);
}

export const ofPoint: Manner = {
  fates: ['crash_before', 'pause'],
  before: () => new Error('a point cannot fail'),
  unknown: () => new Error('a point cannot fail'),
};
