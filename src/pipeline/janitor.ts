/**
 * Step 8 of 8, clean: the single active process that removes what nobody needs. Before it: whatever wrote a clean-up.
 *
 * Durable when a pass returns: the deletions, then the row's own end. Dies in between: the row stays and the pass is made
 * again by whoever leads next; deleting twice is harmless. An object is deleted only after its row was looked up by key,
 * never because a listing did not know it. Workers never delete objects.
 */
import { describe } from '../errors.ts';
import { BlobError, type Blobs, type Clock, type Log, type Meter, type Reach } from './ports.ts';
import type { Cleanup, Store } from './store.ts';

export interface JanitorSettings {
  readonly janitorMs: number;
  readonly sweepMs: number;
  readonly graceMs: number;
  readonly orphanMs: number;
}

export interface JanitorDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly meter: Meter;
  readonly reach: Reach;
}

export interface Janitor {
  /** Works whenever this process leads, until `stop` aborts. Never rejects. */
  run(stop: AbortSignal): Promise<void>;
}

const cleanupsMax = 100;
const listMax = 500;
const expireMax = 1000;

export function createJanitor(deps: JanitorDeps, settings: JanitorSettings): Janitor {
  const { store, blobs, clock, log, meter, reach } = deps;

  async function run(stop: AbortSignal) {
    while (!stop.aborted) {
      try {
        await store.lead('janitor', (lead) => rounds(AbortSignal.any([stop, lead])));
      } catch (error) {
        log.warn({ error: describe(error) }, 'janitor: a round failed');
        meter.count('janitor_faults_total');
      }
      // Another leads, or the lead was lost: asked again at the same pace.
      await clock.sleep(settings.janitorMs, stop);
    }
  }

  async function rounds(stop: AbortSignal) {
    let sweptAtMs = Number.NEGATIVE_INFINITY;
    while (!stop.aborted) {
      const cleanups = await store.dueCleanups(cleanupsMax);
      for (const cleanup of cleanups) {
        if (stop.aborted) return;
        await pass(cleanup).catch(skipBroken);
      }
      if (clock.monotonicMs() - sweptAtMs >= settings.sweepMs) {
        await sweep(stop);
        sweptAtMs = clock.monotonicMs();
      }
      if (cleanups.length < cleanupsMax) await clock.sleep(settings.janitorMs, stop);
    }
  }

  /** One object that cannot be deleted stays for later; it must not keep the others from going. */
  function skipBroken(error: unknown) {
    if (!(error instanceof BlobError) || error.fault === 'unavailable') throw error;
    log.warn({ error: describe(error) }, 'janitor: an object could not be deleted');
    meter.count('janitor_faults_total');
  }

  async function pass(cleanup: Cleanup) {
    await reach('janitor.deleting', cleanup.key);
    if (cleanup.key.endsWith('/')) await eachPage(cleanup.key, (keys) => remove(keys));
    else await remove([cleanup.key]);
    await store.passedCleanup(cleanup, settings.graceMs);
  }

  /** Deletes those of the keys that no row names and no running attempt may still publish. */
  async function remove(keys: readonly string[]) {
    const named = await store.namedAmong(keys);
    const unnamed = keys.filter((key) => !named.has(key));
    if (named.size > 0) log.warn({ kept: named.size }, 'janitor: kept objects that rows still name');
    if (unnamed.length === 0) return;
    await blobs.deleteMany(unnamed);
    meter.count('objects_deleted_total', undefined, unnamed.length);
  }

  async function sweep(stop: AbortSignal) {
    const before = clock.wallMs() - settings.orphanMs;
    let orphans = 0;
    let after: string | undefined;
    do {
      const page = await blobs.list('staging/', { after, limit: listMax });
      const old = page.objects.filter((object) => object.modifiedAt.getTime() < before).map((object) => object.key);
      const ids = old.map((key) => key.slice('staging/'.length));
      const known = await store.knownAttachments(ids);
      const lost = old.filter((_, index) => !known.has(ids[index] ?? ''));
      if (lost.length > 0) await blobs.deleteMany(lost);
      orphans += lost.length;
      after = page.next ?? undefined;
    } while (after !== undefined && !stop.aborted);
    let expired = 0;
    for (let rows = expireMax; rows >= expireMax && !stop.aborted; expired += rows)
      rows = await store.expire(expireMax);
    meter.count('orphans_deleted_total', undefined, orphans);
    if (orphans > 0 || expired > 0) log.info({ orphans, expired }, 'janitor: swept');
  }

  async function eachPage(prefix: string, work: (keys: readonly string[]) => Promise<void>) {
    let after: string | undefined;
    do {
      const page = await blobs.list(prefix, { after, limit: listMax });
      await work(page.objects.map((object) => object.key));
      after = page.next ?? undefined;
    } while (after !== undefined);
  }

  return { run };
}
