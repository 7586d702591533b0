/**
 * The registry: what operators see and ask of the store. A part of the store's port, in a file of its own for its length.
 *
 * Every verb that changes something is one guarded transaction, says what happened, and changes nothing when it is asked again.
 */
import type { Code } from '../errors.ts';
import type { AttachmentState, Kind, VariantName } from './attachment.ts';
import type { JobState } from './job.ts';

export type JobOrigin = 'upload' | 'reprocess';

export interface JobView {
  readonly id: string;
  readonly attachmentId: string;
  readonly ownerId: string;
  readonly version: number;
  readonly origin: JobOrigin;
  /** 1, and one more with every replay or rebuild. */
  readonly generation: number;
  readonly state: JobState;
  readonly attempts: number;
  readonly failures: number;
  readonly crashes: number;
  readonly releases: number;
  readonly rings: number;
  readonly fence: number;
  readonly errorCode: Code | null;
  /** For operators: may name keys and hosts, never credentials. */
  readonly errorDetail: string | null;
  readonly worker: string | null;
  readonly notBefore: Date;
  readonly leaseUntil: Date | null;
  readonly ringAt: Date | null;
  readonly createdAt: Date;
  readonly updatedAt: Date;
  readonly finishedAt: Date | null;
  /** When retention removed the events from before; null while all are kept. */
  readonly historyGoneAt: Date | null;
}

export interface JobEvent {
  readonly at: Date;
  readonly from: JobState | null;
  readonly to: JobState;
  readonly fence: number;
  readonly who: string;
  readonly reason: string;
  readonly code: Code | null;
  /** For operators: may name keys and hosts, never credentials. */
  readonly detail: string | null;
}

export interface QueueView {
  /** Jobs waiting, of which `due` could be claimed now. */
  readonly queued: number;
  readonly due: number;
  /** Queued jobs that are announced and not claimed yet: what the broker should hold. */
  readonly announced: number;
  readonly processing: number;
  readonly failed: number;
  readonly oldestQueuedSeconds: number | null;
  /** For how long the longest due job could have been claimed; one whose lease has ended is due again. */
  readonly oldestDueSeconds: number | null;
  /** Originals that are not published and not given up. */
  readonly stagingBytes: number;
  readonly oldestStagingSeconds: number | null;
  /** Over the last minute. */
  readonly acceptedPerSecond: number;
  readonly finishedPerSecond: number;
  readonly cleanups: number;
}

export interface Page<T> {
  readonly items: readonly T[];
  readonly nextCursor: string | null;
}

/** Newest first. `cursor` is the opaque `nextCursor` of the page before; a malformed one rejects `validation` with field `cursor`. */
export interface PageRequest {
  readonly limit: number;
  readonly cursor: string | null;
}

export interface JobFilter {
  readonly state: JobState | null;
  readonly errorCode: Code | null;
  readonly ownerId: string | null;
  /** One attachment has a job for each version that was made of it. */
  readonly attachmentId?: string | null;
}

/** Failed jobs, oldest failure first. Ages count from when they failed; null: any. */
export interface FailedFilter {
  readonly errorCode: Code | null;
  readonly ownerId: string | null;
  readonly olderThanMs: number | null;
  readonly youngerThanMs: number | null;
}

/**
 * `replayed`: failed → queued in a new generation. All others changed nothing: `already_succeeded`; `job_unfinished`: queued or
 * running, also by an earlier replay; `job_ended`: superseded, cancelled, its attachment was deleted, or a newer version is published;
 * `staging_gone`: nothing is left to render from; `not_found`.
 */
export type Replay = 'replayed' | 'already_succeeded' | 'job_unfinished' | 'job_ended' | 'staging_gone' | 'not_found';

/**
 * A wish to bring all ready attachments to `version`, and how far it is. One for each version, of which at most one is open; asking
 * again goes on with it. Only pictures are brought up and counted: a `file` has no variants, so no version is newer for it.
 */
export interface Reprocessing {
  readonly version: number;
  readonly askedAt: Date;
  readonly askedBy: string;
  /** Whether failed jobs of the version are replayed on the way. */
  readonly retryFailed: boolean;
  /** When nothing was left to make, or another version was asked for; null while the wish is open. */
  readonly doneAt: Date | null;
  /** Ready attachments below the version that have no job of it yet. */
  readonly remaining: number;
  /** Jobs of the version that reprocessing made, by how they stand. */
  readonly unfinished: number;
  readonly succeeded: number;
  readonly failed: number;
}

/**
 * `made`: a new job. `replayed`: a failed job of the version. `exists`: a job of the version is unfinished. `current`: published at it or
 * above, or a `file`. `not_ready`: nothing is published yet.
 */
export type Reprocessed = 'made' | 'replayed' | 'exists' | 'current' | 'not_ready' | 'not_found';

/** `rebuilding`: its job is queued again, to make the published version's variants anew. Nothing changed otherwise: `job_unfinished`; `not_ready`; `changed`: the set is not that of `keys` any more. */
export type Rebuild = 'rebuilding' | 'job_unfinished' | 'not_ready' | 'changed' | 'not_found';

/** What a row says must be in the storage. */
export interface Audited {
  readonly id: string;
  readonly ownerId: string;
  readonly kind: Kind;
  readonly state: AttachmentState;
  readonly version: number;
  readonly size: number;
  readonly sha256: string;
  /** Null once published or given up. */
  readonly stagingKey: string | null;
  readonly originalKey: string | null;
  readonly variants: readonly {
    readonly name: VariantName;
    readonly key: string;
    readonly size: number;
    readonly sha256: string;
  }[];
}

export interface Registry {
  queue(): Promise<QueueView>;
  listJobs(filter: JobFilter & PageRequest): Promise<Page<JobView>>;
  job(id: string): Promise<{ job: JobView; events: readonly JobEvent[] } | null>;

  /**
   * failed → queued: a new generation, with failures, strikes, crashes and releases at zero and the error cleared; `attempts`, `rings`
   * and `fence` go on. The attachment of a first version goes failed → queued with it; the job of a rebuild that failed is a rebuild
   * again. Its turn is `spacingMs` after its owner's last, as on accept. Guard, under the locks of attachment, then job: failed, not
   * deleted, nothing newer published, and its source still there: staging of a first version, else the published original.
   * Announces `due` and `changed`.
   */
  replay(jobId: string, options: { who: string; spacingMs: number }): Promise<Replay>;
  /**
   * Ids of failed jobs, for a replay of many: oldest failure first, and those that a replay would refuse after all others, so that they
   * never fill an answer in front of what can be replayed.
   */
  failedJobs(filter: FailedFilter, limit: number): Promise<readonly string[]>;
  /** All that match, also what a replay would refuse. */
  countFailed(filter: FailedFilter): Promise<number>;

  /** A job of `version` for one ready attachment; a failed one of that version is replayed. Not held back by any window. Its turn is now. Announces `due`. */
  reprocess(attachmentId: string, options: { version: number; who: string }): Promise<Reprocessed>;
  /**
   * Writes the wish down. A finished one begins anew, since more may have become ready at an older version meanwhile; so does an open one
   * when `retryFailed` was not asked before. Otherwise an open one is left as it is. Open wishes for other versions end: their jobs that
   * exist go on, and no more are made. Asking for the version that everything has is how a wish is taken back.
   */
  askReprocessing(options: { version: number; retryFailed: boolean; who: string }): Promise<Reprocessing>;
  /** How a wish stands; null when nobody asked for this version. */
  reprocessing(version: number): Promise<Reprocessing | null>;
  /** Ready pictures below `version`, whatever jobs they have. */
  countBelow(version: number): Promise<number>;
  /**
   * Makes the next jobs of the open wish, at most `limit`, while fewer than `window` jobs of reprocessing are unfinished. Answers how many;
   * 0 also when a pass has come to its end, and the next call tells whether another is needed. Failed jobs of the version are replayed
   * where the wish says so, each at most once for each asking. Feeders at once take turns and never pass `window` together; what was
   * asked for one by one counts and is not held back. Announces `due`.
   */
  feedReprocessing(options: { window: number; limit: number }): Promise<number>;
  /**
   * succeeded → queued, or failed → queued where an earlier rebuild failed: the job of the published version makes its variants anew. The
   * attachment stays ready with its rows until then, also when the rebuild fails. Guard: ready, not deleted, and `keys` are those of its
   * variants, in any order. Its turn is now. Announces `due`.
   */
  rebuild(attachmentId: string, options: { keys: readonly string[]; who: string }): Promise<Rebuild>;

  /** Living attachments after the id `after`, in the order of their ids. */
  audit(options: { after: string | null; limit: number }): Promise<readonly Audited[]>;
  /** Null once it is deleted, or for an unknown id. */
  audited(id: string): Promise<Audited | null>;
}
