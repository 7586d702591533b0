/**
 * The store's port: the truth. Every verb is one transition or one read; a transition says in its answer whether it
 * happened, and callers must look. The driver is `src/postgres/`, and there is no other.
 *
 * Time: every `…Ms` is added to the database's clock by the database. Guards are named beside each verb.
 * Faults: a verb that certainly did nothing rejects `StoreError('unavailable')`; one that may have committed rejects
 * `StoreError('unknown')`, and the caller reads back or leaves it to the bell.
 */
import type { Code } from '../errors.ts';
import type { Attachment, AttachmentState, Kind, Variant } from './attachment.ts';
import type { Attempt, Budgets, JobState, Ring } from './job.ts';
import type { Page, PageRequest, Registry } from './registry.ts';

export class StoreError extends Error {
  readonly fault: 'unavailable' | 'unknown';
  constructor(fault: 'unavailable' | 'unknown', message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'StoreError';
    this.fault = fault;
  }
}

/* ------------------------------------------------------------ step 1: accept */

export type KeyScope = 'attachment' | 'message';

export interface KeyName {
  readonly userId: string;
  readonly scope: KeyScope;
  readonly key: string;
}

/**
 * `reserved`: the caller holds the key under `token` until the lease ends. `in_flight`: somebody else does.
 * `answered`: the request was answered; `fingerprint` tells whether it was the same one, `resultId` what came of it.
 */
export type Reservation =
  | { readonly kind: 'reserved' }
  | { readonly kind: 'in_flight'; readonly retryAfterSeconds: number }
  | { readonly kind: 'answered'; readonly fingerprint: string; readonly resultId: string };

export interface NewAttachment {
  readonly id: string;
  readonly jobId: string;
  readonly ownerId: string;
  readonly kind: Kind;
  readonly fileName: string;
  readonly contentType: string;
  readonly size: number;
  readonly sha256: string;
  readonly alt: string | null;
  readonly stagingKey: string;
  readonly version: number;
  readonly traceparent: string | null;
  /** From `admit`, on the database clock. */
  readonly startedAt: string;
  readonly uploadMsMax: number;
  /** How far apart the turns of one user's waiting jobs are: what makes places fair among users. */
  readonly spacingMs: number;
  /** The reservation that this answers, if the request had a key. */
  readonly reservation:
    | (KeyName & { readonly token: string; readonly fingerprint: string; readonly keepMs: number })
    | null;
}

/** What admission control knows of a user when an upload begins, and the beginning itself on the database clock. */
export interface Arrival {
  readonly startedAt: string;
  /** Unfinished jobs of the user's uploads. A rebuild is the doctor's wish, not theirs, and not in it. */
  readonly pending: number;
  /** Uploads of the user that were accepted within the last minute. */
  readonly lately: number;
}

/** What admission control knows of the whole system. */
export interface Load {
  /** Queued jobs of uploads. Reprocessing has its own throttle, and rebuilds are repairs: neither is in it. */
  readonly queued: number;
  /** Bytes of originals that are still to be published. Failed ones are kept for a replay and do not count: they would refuse everybody's uploads for days. */
  readonly stagingBytes: number;
  /** Finished jobs: the mean of the last minute or that of the last ten seconds, whichever is greater. */
  readonly finishedPerSecond: number;
}

/** `too_old`: longer on its way than `uploadMsMax`. `reservation_lost`: its key is no longer held under its token. In both cases nothing was written. */
export type Acceptance =
  | { readonly kind: 'accepted'; readonly attachment: Attachment }
  | { readonly kind: 'too_old' }
  | { readonly kind: 'reservation_lost' };

/* --------------------------------------------------------------- step 2: relay */

/** `again`: it was announced before, the broker confirmed that, and nobody has claimed it since. */
export type TakenRing = Ring & { readonly again: boolean };

/* --------------------------------------------------------------- step 3: claim */

export interface Claim {
  readonly attempt: Attempt;
  readonly kind: Kind;
  readonly contentType: string;
  readonly size: number;
  readonly sha256: string;
  readonly stagingKey: string;
  /** Set when a version was published before: then it is the source, and it is not copied again. */
  readonly originalKey: string | null;
  readonly failures: number;
  readonly crashes: number;
  readonly traceparent: string | null;
}

/** How late a claim was, on the database clock: milliseconds since the job could have been claimed, and since its upload was accepted. */
export interface Waited {
  readonly dueMs: number;
  readonly acceptedMs: number;
}

/**
 * `waited` is null for a claim that was read back. `finished`: the job is over or unknown. `leased`: somebody holds it. `not_yet`: its time has not come. `exhausted`: the
 * claim found the crash budget spent and failed the job. `unsupported`: this build lacks the recipe; the bell was set to ring later.
 */
export type ClaimResult =
  | { readonly kind: 'claimed'; readonly claim: Claim; readonly waited: Waited | null }
  | { readonly kind: 'refused'; readonly reason: 'finished' | 'leased' | 'not_yet' | 'exhausted' | 'unsupported' };

/* -------------------------------------------------------------- step 6: settle */

export interface Result {
  /** The published original: this attempt's copy, or null when an earlier version's is kept. */
  readonly originalKey: string | null;
  readonly width: number | null;
  readonly height: number | null;
  readonly frames: number | null;
  readonly placeholder: string | null;
  readonly variants: readonly Variant[];
}

/** `lost`: the guard did not hold, nothing was written. `superseded`: a version at least as new is published. `cancelled`: the attachment was deleted. In the last two the attempt's objects went to the clean-ups. */
export type Settled = 'ready' | 'superseded' | 'cancelled' | 'lost';
export type Failed = 'retried' | 'failed' | 'cancelled' | 'lost';

/** What the row says of an attempt whose last write had an unknown outcome. */
export type AttemptTrace =
  | { readonly kind: 'running'; readonly claim: Claim }
  | { readonly kind: 'ended'; readonly jobState: JobState }
  | { readonly kind: 'lost' };

/* --------------------------------------------------------------- step 8: clean */

/** A key to delete or, when it ends in `/`, a prefix under which all is deleted. `passes` still to come after this one: a delayed PUT may land late. */
export interface Cleanup {
  readonly id: string;
  readonly key: string;
  readonly passes: number;
}

export interface Store extends Registry {
  /* 1 accept */
  /** The beginning of an upload, and what its user has under way. A read: who decides is `admission.ts`. */
  arrive(userId: string): Promise<Arrival>;
  load(): Promise<Load>;
  /** Reserves a key for `leaseMs`. Guard: no unexpired answer, no live lease of another token. */
  reserve(name: KeyName & { token: string; leaseMs: number }): Promise<Reservation>;
  /** Prolongs a reservation. Guard: unanswered and held under this token. */
  extendReservation(name: KeyName & { token: string; leaseMs: number }): Promise<boolean>;
  /** Gives a key back after a refusal. Guard: as above. */
  dropReservation(name: KeyName & { token: string }): Promise<void>;
  /**
   * Attachment, job (its bell and its turn set), history and the answered key, in one statement. Announces `due` by itself after it
   * committed. The turn is that of the first job that waits or, when this user has uploads unfinished, `spacingMs` after the last of theirs.
   */
  accept(upload: NewAttachment): Promise<Acceptance>;

  /* 2 relay */
  /**
   * Takes due bells, at most `limit`, and of queued jobs that need a new place no more than `window` leaves: uploads before
   * reprocessing, by their turn, so that one user's many do not stand before another's one. Guard:
   * unfinished and `ring_at` over. Sets `rings + 1`, `ring_at` to `takenMs` from now and `rung_at`. Nothing stays locked.
   */
  takeDue(options: { limit: number; window: number; takenMs: number }): Promise<readonly TakenRing[]>;
  /**
   * After the broker confirmed. Guard: `rings = ring.ring and rung_at is not null`, and the bell is not due. Next ring after `base · 2^confirmed`,
   * at most `capMs`, times `jitter`. False: the guard does not hold, or the row is locked; then it is left as it is.
   */
  markRung(ring: Ring, options: { baseMs: number; capMs: number; jitter: number }): Promise<boolean>;
  /** Makes announced, unclaimed jobs due again, those of dead attempts among them, oldest announcement first, at most `limit`. Answers how many. */
  ringAgain(limit: number): Promise<number>;
  /** Announced and unclaimed jobs: those that the window counts, and those whose attempt died. */
  countAnnounced(): Promise<number>;
  /** `waitMs`: mean wait between ring and claim of recent claims, 0 without any. `claimsPerSecond`: mean of the last five seconds. */
  recentPace(): Promise<{ waitMs: number; claimsPerSecond: number }>;
  /** Milliseconds until the next bell is due, at most `capMs`; 0 when one is due. */
  untilDueMs(capMs: number): Promise<number>;

  /* 3 claim */
  /**
   * Guard: `queued` and `not_before` over, or `processing` and `lease_until` over (a crash). Sets `fence + 1`, the attempt,
   * `attempts + 1`, the lease, `ring_at` to lease end + margin; the dead attempt's prefix goes to the clean-ups.
   */
  claim(request: {
    jobId: string;
    attemptId: string;
    worker: string;
    leaseMs: number;
    marginMs: number;
    versions: readonly number[];
    budgets: Budgets;
    /** After which the prefix of a dead attempt is cleaned. */
    graceMs: number;
    /** After which the bell rings again when this build lacks the recipe. */
    unsupportedMs: number;
  }): Promise<ClaimResult>;
  /** Reads back an attempt after an unknown outcome. */
  readAttempt(jobId: string, attemptId: string): Promise<AttemptTrace>;
  /** Guard: fence, attempt id, `processing`. False: the lease is lost. */
  renew(attempt: Attempt, options: { leaseMs: number; marginMs: number }): Promise<boolean>;

  /* 6 settle */
  /** Guard: fence, attempt id, `processing`, attachment not deleted, `pipeline_version < version` or, for a rebuild, equal. Locks attachment, then job. Announces `changed` after it committed. */
  settle(
    attempt: Attempt,
    result: Result,
    options: { graceMs: number; replacedMs: number; who: string },
  ): Promise<Settled>;
  /** Ends an attempt with a failure: `failures + 1`, and `failed` or `queued` again after `retryMs`. Guard: fence, attempt id, `processing`. The attempt's prefix goes to the clean-ups. */
  fail(
    attempt: Attempt,
    failure: { code: Code; detail: string; retryMs: number },
    options: { budgets: Budgets; graceMs: number; who: string },
  ): Promise<Failed>;
  /** Gives a claim back without a failure: `releases + 1`, `queued` after `delayMs`. Guard: fence, attempt id, `processing`. */
  release(
    attempt: Attempt,
    options: { reason: string; delayMs: number; graceMs: number; who: string },
  ): Promise<'released' | 'cancelled' | 'lost'>;

  /* 8 clean, janitor */
  /** Runs `work` while this process is the only one that leads under `name`; resolves false at once when another leads. `work`'s signal aborts when the lead is lost. */
  lead(name: string, work: (signal: AbortSignal) => Promise<void>): Promise<boolean>;
  dueCleanups(limit: number): Promise<readonly Cleanup[]>;
  /** Of these keys, those that a living row names or that belong to an attempt that may still settle. They must not be deleted. */
  namedAmong(keys: readonly string[]): Promise<ReadonlySet<string>>;
  /** Of these keys, those for which a clean-up waits, by the key itself or by a prefix of it. They are accounted for, and may be readable until then. */
  awaitingCleanup(keys: readonly string[]): Promise<ReadonlySet<string>>;
  /** A pass is over: `passes − 1` and again after `againMs`, or the row goes. */
  passedCleanup(cleanup: Cleanup, againMs: number): Promise<void>;
  /** Of these attachment ids, those that have a row. A staging object without one is an orphan. */
  knownAttachments(ids: readonly string[]): Promise<ReadonlySet<string>>;
  /** Removes expired idempotency keys and sessions, at most `limit` each. Answers how many rows went. */
  expire(limit: number): Promise<number>;
  /**
   * Ends what is kept for a time only, at most `limit` of each; answers how many. `staging`: failed uploads older than `failedMs`:
   * commits `staging_gone_at` under the lock of their row, with the clean-up of the object. `histories`: events of jobs that finished
   * longer than `historyMs` ago; `history_gone_at` says so in the row.
   */
  retire(options: {
    failedMs: number;
    historyMs: number;
    limit: number;
  }): Promise<{ staging: number; histories: number }>;
  /** Sends keys to the clean-ups. The pass that deletes looks each of them up again. */
  addCleanups(keys: readonly string[], options: { afterMs: number; passes: number; reason: string }): Promise<void>;

  /* reads and edits */
  /** An attachment that this user may read: its owner, or a member of a chat in which a message carries it. Deleted: null. */
  attachmentFor(userId: string, id: string): Promise<Attachment | null>;
  /** What a key was answered with, for its owner, also when it was deleted since. */
  acceptedAttachment(ownerId: string, id: string): Promise<Attachment | null>;
  listAttachments(ownerId: string, filter: { state: AttachmentState | null } & PageRequest): Promise<Page<Attachment>>;
  /** Guard: owned and not deleted. */
  editAlt(ownerId: string, id: string, alt: string | null): Promise<Attachment | null>;
  /** Ends access, cancels the job, sends every recorded key and the attachment's whole prefix to the clean-ups; leaves a tombstone. False: not this owner's, or gone already. */
  deleteAttachment(ownerId: string, id: string, options: { graceMs: number }): Promise<boolean>;
  /** Resolves when PostgreSQL answers and its schema has all that this build needs; rejects `unavailable`. */
  health(): Promise<void>;
  close(): Promise<void>;
}
