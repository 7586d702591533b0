/**
 * The doctor: compares what rows say with what the storage has, in both directions, and repairs what can be repaired.
 *
 * Rows → objects: every object that a row names is looked for, and with `deep` read. Objects → rows: every object is looked
 * up. Things move meanwhile, so a finding is told only when its row was read again and still says the same. The doctor
 * deletes and renders nothing itself: it asks for a rebuild, and sends strays to the clean-ups, where each key is looked up once more.
 * It runs in the storage's and the database's time, page by page; several at once, beside everything else, do no harm.
 */
import { createExamination, createPatience, type Patience } from './examination.ts';
import type { Blobs, Clock, Log } from './ports.ts';
import type { Audited } from './registry.ts';
import type { Store } from './store.ts';
import {
  createStrays,
  isOfUnknown,
  type Place,
  places,
  type Stray,
  type StrayPage,
  type StraysSettings,
} from './strays.ts';

export type DoctorSettings = StraysSettings;

export interface DoctorDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
}

export const findingKinds = ['lost_original', 'lost_variant', 'lost_staging', 'damaged', 'stray'] as const;
export type FindingKind = (typeof findingKinds)[number];

/**
 * `none`: nothing can bring it back, or it is not ours. `possible`: would be mended with `repair`. `rebuilding`: its variants are being
 * made anew. `under_way`: a job of the attachment is unfinished, an earlier repair among them. `scheduled`: sent to the clean-ups.
 */
export type Remedy = 'none' | 'possible' | 'rebuilding' | 'under_way' | 'scheduled';

export interface Finding {
  readonly kind: FindingKind;
  /** Null for a stray: no row knows it. */
  readonly attachmentId: string | null;
  readonly key: string;
  /** One sentence for operators. */
  readonly detail: string;
  readonly repair: Remedy;
}

export interface Progress {
  /** Rows looked at. */
  readonly attachments: number;
  /** Objects that rows name, looked for. */
  readonly objects: number;
  /** Objects that the storage listed. */
  readonly listed: number;
}

export interface Report extends Progress {
  /** The first `findingsMax`; `counts` has all of them. */
  readonly findings: readonly Finding[];
  readonly counts: Readonly<Record<FindingKind, number>>;
  /** Findings whose repair was asked for now. */
  readonly repaired: number;
  /** Strays among them whose key is none of ours: told, left alone, and no fault of anything. */
  readonly alien: number;
  /** False when the signal ended it early. */
  readonly complete: boolean;
}

export interface SweepReport {
  /** The first `findingsMax` of each; `found` and `bytes` count all of them. */
  readonly staging: readonly Stray[];
  readonly published: readonly Stray[];
  /** In neither folder of ours: never touched. */
  readonly elsewhere: readonly Stray[];
  readonly found: Readonly<Record<Place, number>>;
  readonly bytes: number;
  /** Sent to the clean-ups; 0 of a dry run. */
  readonly scheduled: number;
  readonly listed: number;
  readonly complete: boolean;
}

/** Findings and strays that a report lists. */
export const findingsMax = 1000;

export interface Doctor {
  /**
   * Examines everything. Without `repair` nothing is written. `deep` reads every object that a row names and compares its digest.
   * An ended `signal` gives the report as far as it came. Rejects when the storage or the store stays away.
   */
  examine(
    options: { repair: boolean; deep: boolean; who: string; onProgress?: (done: Progress) => void },
    signal: AbortSignal,
  ): Promise<Report>;
  /** Only the objects that no row names: what the janitor looks for by itself from time to time. A dry run writes nothing. */
  sweep(
    options: { dryRun: boolean; onProgress?: (done: { listed: number }) => void },
    signal: AbortSignal,
  ): Promise<SweepReport>;
}

/** Rows read at once, and how many of them are looked at beside one another: a question to a store takes its time, not ours. */
const rowsMax = 200;
const besideMax = 8;

export function createDoctor(deps: DoctorDeps, settings: DoctorSettings): Doctor {
  const { store, log } = deps;
  const strays = createStrays(deps, settings);

  async function examine(options: Parameters<Doctor['examine']>[0], signal: AbortSignal): Promise<Report> {
    const told = createTold(options.onProgress);
    const patiently = createPatience(deps, signal);
    const examination = createExamination(deps, { ...options, patiently, tell: told.tell }, signal);

    async function rowsToObjects() {
      let after: string | null = null;
      do {
        signal.throwIfAborted();
        const from: string | null = after;
        const rows: readonly Audited[] = await patiently(() => store.audit({ after: from, limit: rowsMax }));
        await beside(rows, besideMax, async (row) => {
          signal.throwIfAborted();
          const objects = await examination.row(row);
          told.progress({ attachments: 1, objects, listed: 0 });
        });
        after = rows.at(-1)?.id ?? null;
      } while (after !== null);
    }

    async function objectsToRows() {
      await eachPage(patiently, signal, async (_place, page) => {
        if (options.repair) await patiently(() => strays.schedule(page.strays, { unknown: true }));
        for (const stray of page.strays) told.tell(strayFinding(stray, options.repair));
        told.progress({ attachments: 0, objects: 0, listed: page.listed });
      });
    }

    const complete = await untilAborted(signal, async () => {
      await rowsToObjects();
      await objectsToRows();
    });
    const report = { ...told.report(), complete };
    const { findings: _findings, ...sums } = report;
    log.info(sums, 'doctor: examined');
    return report;
  }

  async function sweep(options: Parameters<Doctor['sweep']>[0], signal: AbortSignal): Promise<SweepReport> {
    const lists: Readonly<Record<Place, Stray[]>> = { staging: [], published: [], elsewhere: [] };
    const found = { staging: 0, published: 0, elsewhere: 0 };
    const sums = { bytes: 0, scheduled: 0, listed: 0 };
    const patiently = createPatience(deps, signal);
    const complete = await untilAborted(signal, () =>
      eachPage(patiently, signal, async (place, page) => {
        if (!options.dryRun) sums.scheduled += await patiently(() => strays.schedule(page.strays, { unknown: true }));
        for (const stray of page.strays) {
          if (lists[place].length < findingsMax) lists[place].push(stray);
          found[place] += 1;
          sums.bytes += stray.size;
        }
        sums.listed += page.listed;
        options.onProgress?.({ listed: sums.listed });
      }),
    );
    log.info({ ...sums, ...found, dryRun: options.dryRun, complete }, 'doctor: swept');
    return { ...lists, found, ...sums, complete };
  }

  async function eachPage(
    patiently: Patience,
    signal: AbortSignal,
    work: (place: Place, page: StrayPage) => Promise<void>,
  ) {
    for (const place of places) {
      let after: string | null = null;
      do {
        signal.throwIfAborted();
        const from: string | null = after;
        const page: StrayPage = await patiently(() => strays.page(place, from));
        await work(place, page);
        after = page.next;
      } while (after !== null);
    }
  }

  return { examine, sweep };
}

function strayFinding(stray: Stray, repair: boolean): Finding {
  const since = `${stray.size} bytes, since ${stray.modifiedAt.toISOString()}`;
  const base = { kind: 'stray', attachmentId: null, key: stray.key } as const;
  if (!stray.ours) return { ...base, detail: `no key of ours, left alone: ${since}`, repair: 'none' };
  const why = isOfUnknown(stray) ? 'no row knows its attachment' : 'no row names it';
  return { ...base, detail: `${why}: ${since}`, repair: repair ? 'scheduled' : 'possible' };
}

/** False when `signal` ended the work before its own end. */
async function untilAborted(signal: AbortSignal, work: () => Promise<void>): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    if (!signal.aborted) throw error;
    return false;
  }
}

/** What was found so far: all of it counted, the first of it listed. */
function createTold(onProgress: (done: Progress) => void = () => {}) {
  const findings: Finding[] = [];
  const counts: Record<FindingKind, number> = {
    lost_original: 0,
    lost_variant: 0,
    lost_staging: 0,
    damaged: 0,
    stray: 0,
  };
  let repaired = 0;
  let alien = 0;
  let done: Progress = { attachments: 0, objects: 0, listed: 0 };
  return {
    tell(finding: Finding) {
      counts[finding.kind] += 1;
      if (finding.repair === 'rebuilding' || finding.repair === 'scheduled') repaired += 1;
      if (finding.kind === 'stray' && finding.repair === 'none') alien += 1;
      if (findings.length < findingsMax) findings.push(finding);
    },
    progress(more: Progress) {
      done = {
        attachments: done.attachments + more.attachments,
        objects: done.objects + more.objects,
        listed: done.listed + more.listed,
      };
      onProgress(done);
    },
    report: () => ({ ...done, findings, counts, repaired, alien }),
  };
}

/** Works on all items, at most `most` at once. The first failure ends it, after what runs. */
async function beside<T>(items: readonly T[], most: number, work: (item: T) => Promise<void>): Promise<void> {
  let at = 0;
  let failed = false;
  const lane = async () => {
    while (!failed && at < items.length) {
      const item = items[at] as T;
      at += 1;
      await work(item).catch((error: unknown) => {
        failed = true;
        throw error;
      });
    }
  };
  const ends = await Promise.allSettled(Array.from({ length: Math.min(most, items.length) }, lane));
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
}
