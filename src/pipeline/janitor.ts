/**
 * Step 8 of 8, clean: the single active process that removes what nobody needs. Before it: whatever wrote a clean-up.
 *
 * Durable when a pass returns: the deletions, then the row's own end. Dies in between: the row stays and the pass is made
 * again by whoever leads next; deleting twice is harmless. An object is deleted only after its row was looked up by key,
 * never because a listing did not know it. Workers never delete objects.
 *
 * Beside that it does what has to be done by one at a time: ends what is kept for a time only, looks for strays, and
 * feeds the jobs of a reprocessing.
 */
import { describe } from '../errors.ts';
import { isBlobKey } from './blob-key.ts';
import { BlobError, type Blobs, type Clock, type Log, type Meter, type Reach } from './ports.ts';
import type { Cleanup, Store } from './store.ts';
import { createStrays, isOfUnknown, type Place, type StraysSettings } from './strays.ts';

export interface JanitorSettings extends StraysSettings {
  readonly janitorMs: number;
  readonly sweepMs: number;
  readonly deepSweepMs: number;
  /** Unfinished jobs of reprocessing, at most. */
  readonly reprocessWindow: number;
  readonly failedRetentionMs: number;
  readonly historyRetentionMs: number;
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

/** Of an object, and not of the storage. */
const isOfOne = (error: unknown) => error instanceof BlobError && error.fault !== 'unavailable';
const isFolder = ({ key }: Cleanup) => key.endsWith('/');
const cleanupsMax = 100;
const listMax = 500;
const batchMax = 1000;
/** Pages of a search between two looks at what is due: deletions must not wait for the listing of a whole bucket. */
const pagesMax = 10;
/** Pause after that many pages: a search takes its time, the storage has others to serve. */
const pauseMs = 100;
const progressMs = 60_000;
const unknownSentence =
  'janitor: left objects alone whose attachments this database does not know: is it the one of these objects? "skrepka sweep" removes them';

export function createJanitor(deps: JanitorDeps, settings: JanitorSettings): Janitor {
  const { store, blobs, clock, log, meter, reach } = deps;
  const strays = createStrays(deps, settings);
  // Kept when a round fails or the lead is lost: a search goes on where it was.
  const rows = every(settings.sweepMs);
  const searches = [createSearch('staging', settings.sweepMs), createSearch('published', settings.deepSweepMs)];

  async function run(stop: AbortSignal) {
    while (!stop.aborted) {
      meter.gauge('janitor_leads', 0);
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
    meter.gauge('janitor_leads', 1);
    while (!stop.aborted) {
      const cleanups = await store.dueCleanups(cleanupsMax);
      for (const cleanup of await passObjects(cleanups)) {
        if (stop.aborted) return;
        await pass(cleanup).catch(skipBroken);
      }
      await feed(stop);
      if (rows.due()) {
        await sweepRows(stop);
        rows.restart();
      }
      let searching = false;
      for (const goOn of searches) searching = (await goOn(stop)) || searching;
      if (searching) await clock.sleep(Math.min(pauseMs, settings.janitorMs), stop);
      else if (cleanups.length < cleanupsMax) await clock.sleep(settings.janitorMs, stop);
    }
  }

  /** Due at once, and then whenever `ms` have passed since it was restarted: what failed is due in the next round. */
  function every(ms: number): { due(): boolean; restart(): void } {
    let atMs = Number.NEGATIVE_INFINITY;
    return {
      due: () => clock.monotonicMs() - atMs >= ms,
      restart() {
        atMs = clock.monotonicMs();
      },
    };
  }

  /* ------------------------------------------------------------- deleting */

  /** One object that cannot be deleted stays for later; it must not keep the others from going. */
  function skipBroken(error: unknown) {
    if (!isOfOne(error)) throw error;
    log.warn({ error: describe(error) }, 'janitor: an object could not be listed or deleted');
    meter.count('janitor_faults_total');
  }

  /** Those that name one object each go together. Answers what is left to be passed one by one. */
  async function passObjects(cleanups: readonly Cleanup[]): Promise<readonly Cleanup[]> {
    const objects = cleanups.filter((cleanup) => !isFolder(cleanup));
    if (objects.length < 2) return cleanups;
    for (const { key } of objects) await reach('janitor.deleting', key);
    try {
      await remove(objects.map(({ key }) => key));
    } catch (error) {
      if (!isOfOne(error)) throw error;
      // One of them cannot be deleted; which one is told when each goes by itself.
      return cleanups;
    }
    await Promise.all(objects.map((cleanup) => store.passedCleanup(cleanup, settings.graceMs)));
    return cleanups.filter(isFolder);
  }

  async function pass(cleanup: Cleanup) {
    await reach('janitor.deleting', cleanup.key);
    if (isFolder(cleanup)) await eachPage(cleanup.key, (keys) => remove(keys));
    else await remove([cleanup.key]);
    await store.passedCleanup(cleanup, settings.graceMs);
  }

  /** Deletes those of the keys that no row names and no running attempt may still publish. */
  async function remove(keys: readonly string[]) {
    const named = await store.namedAmong(keys);
    // A folder of ours may hold what somebody else put there, under a name that is no key: it stays, and doctor tells of it.
    const unnamed = keys.filter((key) => isBlobKey(key) && !named.has(key));
    if (named.size > 0) log.warn({ kept: named.size }, 'janitor: kept objects that rows still name');
    if (unnamed.length === 0) return;
    await blobs.deleteMany(unnamed);
    meter.count('objects_deleted_total', undefined, unnamed.length);
  }

  async function eachPage(prefix: string, work: (keys: readonly string[]) => Promise<void>) {
    let after: string | undefined;
    do {
      const page = await blobs.list(prefix, { after, limit: listMax });
      await work(page.objects.map((object) => object.key));
      after = page.next ?? undefined;
    } while (after !== undefined);
  }

  /* ---------------------------------------------------------------- jobs */

  async function feed(stop: AbortSignal) {
    let made = 0;
    for (let last = batchMax; last >= batchMax && !stop.aborted; made += last) {
      last = await store.feedReprocessing({ window: settings.reprocessWindow, limit: batchMax });
    }
    if (made === 0) return;
    meter.count('reprocessing_fed_total', undefined, made);
    log.info({ made }, 'janitor: made jobs of a reprocessing');
  }

  /* ------------------------------------------------------------ sweeping */

  /** Rows that have expired, and what is kept for a time only. */
  async function sweepRows(stop: AbortSignal) {
    const done = { expired: 0, staging: 0, histories: 0 };
    for (let rows = batchMax; rows >= batchMax && !stop.aborted; done.expired += rows) {
      rows = await store.expire(batchMax);
    }
    const ages = { failedMs: settings.failedRetentionMs, historyMs: settings.historyRetentionMs };
    for (let most = batchMax; most >= batchMax && !stop.aborted; ) {
      const { staging, histories } = await store.retire({ ...ages, limit: batchMax });
      done.staging += staging;
      done.histories += histories;
      most = Math.max(staging, histories);
    }
    meter.count('retired_total', { what: 'staging' }, done.staging);
    meter.count('retired_total', { what: 'history' }, done.histories);
    if (done.expired + done.staging + done.histories > 0) log.info(done, 'janitor: swept');
  }

  /** A search through one place each `intervalMs`, some pages a call. The call answers whether there is more of it. */
  function createSearch(place: Place, intervalMs: number): (stop: AbortSignal) => Promise<boolean> {
    const begin = every(intervalMs);
    const progress = every(progressMs);
    let running = false;
    let after: string | null = null;
    let sum = { listed: 0, strays: 0, scheduled: 0, unknown: 0 };

    async function goOn(stop: AbortSignal): Promise<boolean> {
      if (!running) {
        if (!begin.due()) return false;
        begin.restart();
        progress.restart();
        running = true;
        after = null;
        sum = { listed: 0, strays: 0, scheduled: 0, unknown: 0 };
      }
      for (let pages = 0; pages < pagesMax && !stop.aborted; pages += 1) {
        const page = await strays.page(place, after);
        const scheduled = await strays.schedule(page.strays, { unknown: false });
        sum.scheduled += scheduled;
        sum.listed += page.listed;
        sum.strays += page.strays.length;
        sum.unknown += page.strays.filter(isOfUnknown).length;
        meter.count('strays_found_total', { place }, scheduled);
        after = page.next;
        if (after === null) {
          running = false;
          if (sum.strays > 0 || place === 'published') log.info({ place, ...sum }, 'janitor: searched for strays');
          if (sum.unknown > 0) log.warn({ unknown: sum.unknown }, unknownSentence);
          return false;
        }
      }
      if (progress.due()) {
        progress.restart();
        log.info({ place, ...sum }, 'janitor: is searching for strays');
      }
      return !stop.aborted;
    }

    return async (stop) => {
      try {
        return await goOn(stop);
      } catch (error) {
        skipBroken(error);
        // Its next page cannot be listed: the search begins anew when it is due again.
        running = false;
        return false;
      }
    };
  }

  return { run };
}
