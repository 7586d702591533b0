/**
 * The doctor: compares what rows say with what the storage has, in both directions, and repairs what can be repaired.
 *
 * Rows → objects: every object that a row names is looked for, and with `deep` read. Objects → rows: every object is looked
 * up. Things move meanwhile, so a finding is told only when its row was read again and still says the same. The doctor
 * deletes and renders nothing itself: it asks for a rebuild, and sends strays to the clean-ups, where each key is looked up once more.
 * It runs in the storage's and the database's time, page by page; several at once, beside everything else, do no harm.
 */
import type { Blobs, Clock, Log } from './ports.ts';
import type { Store } from './store.ts';
import type { Stray } from './strays.ts';

export interface DoctorSettings {
  /** Age below which an object under `attachments/` is left alone. */
  readonly graceMs: number;
  /** Age below which an object under `staging/` is left alone. */
  readonly orphanMs: number;
}

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
  /** False when the signal ended it early. */
  readonly complete: boolean;
}

export interface SweepReport {
  /** The first `findingsMax` of each; `found` and `bytes` count all of them. */
  readonly staging: readonly Stray[];
  readonly published: readonly Stray[];
  readonly found: { readonly staging: number; readonly published: number };
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

export function createDoctor(_deps: DoctorDeps, _settings: DoctorSettings): Doctor {
  return {
    async examine() {
      throw new Error('in the making');
    },
    async sweep() {
      throw new Error('in the making');
    },
  };
}
