/**
 * Step 4 of 8, render: from a claim to finished pictures on this worker's own disk. Before it: the claim. After it: store,
 * whose work for the original is done beside the rendering (`original.ts`).
 *
 * Durable when it returns: of the first version an original that no row names, else nothing. Dies in it: scratch files are
 * left, swept at the next start; the lease ends, the bell rings, and the next claim sends the objects of the dead attempt to
 * the clean-ups. The source is the published original where there is one, else staging; its digest is verified on the way, so
 * that a damaged source can never become a wrong variant.
 */
import { SkrepkaError } from '../errors.ts';
import { giveBack } from './blob-body.ts';
import { both, digest, openBody, storeOriginal } from './original.ts';
import {
  BlobError,
  type Blobs,
  type Clock,
  type Images,
  type Meter,
  type Reach,
  type Rendering,
  type Scratch,
  type ScratchDir,
} from './ports.ts';
import { recipes } from './recipe.ts';
import type { Claim } from './store.ts';

export interface RenderDeps {
  readonly blobs: Blobs;
  readonly scratch: Scratch;
  readonly images: Images;
  readonly clock: Clock;
  readonly meter: Meter;
  readonly reach: Reach;
}

/** `rendering` is null for what is stored and never decoded. The caller removes `dir`. */
export interface Rendered {
  /** Of the stored original; null where an earlier version has published it. */
  readonly originalKey: string | null;
  readonly dir: ScratchDir | null;
  readonly rendering: Rendering | null;
}

/**
 * Fetches, verifies and renders the source of a claim, and stores the original of a first version. Throws `SkrepkaError` (`staging_lost`,
 * `staging_corrupt`, `storage_unavailable`, or one of the `Images` port), `BlobError`, or the signal's reason. Leaves no
 * scratch file behind when it throws, and nothing of it goes on then.
 */
export async function render(claim: Claim, deps: RenderDeps, signal: AbortSignal): Promise<Rendered> {
  const source = claim.originalKey ?? claim.stagingKey;
  const startedMs = deps.clock.monotonicMs();
  if (claim.kind === 'file') {
    await verifyObject(deps.blobs, source, claim, signal);
    deps.meter.observe('download_seconds', (deps.clock.monotonicMs() - startedMs) / 1000);
    await deps.reach('worker.downloaded', claim.attempt.jobId);
    return { originalKey: await storeOriginal(claim, deps.blobs, signal), dir: null, rendering: null };
  }
  const recipe = recipes.get(claim.attempt.version);
  if (!recipe) throw new Error(`no recipe for version ${claim.attempt.version}`);
  const dir = await deps.scratch.open(claim.attempt.attemptId);
  try {
    const file = await dir.write('source', givenBack(await read(deps.blobs, source, signal)));
    if (file.sha256 !== claim.sha256 || file.size !== claim.size) throw damaged(source, file);
    deps.meter.observe('download_seconds', (deps.clock.monotonicMs() - startedMs) / 1000);
    await deps.reach('worker.downloaded', claim.attempt.jobId);
    const task = { sourcePath: file.path, outputDir: dir.path, contentType: claim.contentType, recipe };
    const [rendering, originalKey] = await both(paint(task, deps, signal), storeOriginal(claim, deps.blobs, signal));
    await deps.reach('worker.rendered', claim.attempt.jobId);
    return { originalKey, dir, rendering };
  } catch (error) {
    await dir.remove().catch(() => undefined);
    throw error;
  }
}

async function paint(task: Parameters<Images['render']>[0], deps: RenderDeps, signal: AbortSignal): Promise<Rendering> {
  const startedMs = deps.clock.monotonicMs();
  const rendering = await deps.images.render(task, signal);
  deps.meter.observe('render_seconds', (deps.clock.monotonicMs() - startedMs) / 1000);
  return rendering;
}

/** Reads an object whole and compares size and digest. Throws `staging_lost`, `staging_corrupt`, `BlobError` or the signal's reason. */
async function verifyObject(
  blobs: Blobs,
  key: string,
  expected: { size: number; sha256: string },
  signal: AbortSignal,
): Promise<void> {
  const found = await digest(await read(blobs, key, signal));
  if (found.sha256 !== expected.sha256 || found.size !== expected.size) throw damaged(key, found);
}

async function read(blobs: Blobs, key: string, signal: AbortSignal): Promise<AsyncIterable<Uint8Array>> {
  try {
    return await openBody(blobs, key, signal);
  } catch (error) {
    if (error instanceof BlobError && error.fault === 'missing') {
      throw new SkrepkaError('staging_lost', { log: 'nothing to read', cause: error });
    }
    throw error;
  }
}

/** For a reader that keeps no chunk beyond the next one. */
async function* givenBack(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  for await (const chunk of body) {
    yield chunk;
    giveBack(chunk);
  }
}

function damaged(key: string, found: { size: number; sha256: string }): SkrepkaError {
  return new SkrepkaError('staging_corrupt', {
    log: `object ${key} has ${found.size} bytes with digest ${found.sha256}`,
  });
}
