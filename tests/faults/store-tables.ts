/**
 * The rows of the store's model, and what all its verbs share. Times are milliseconds of the database's clock.
 *
 * The model has the verbs of the store's port without their promises: a verb is one transaction, so it happens at one moment
 * or not at all. `tests/faults/store-model.test.ts` compares it with the SQL on PostgreSQL, verb by verb.
 */
import type { Code } from '../../src/errors.ts';
import type { Attachment, AttachmentState, Kind, Variant } from '../../src/pipeline/attachment.ts';
import { attemptPrefix } from '../../src/pipeline/attachment.ts';
import type { Attempt, JobState } from '../../src/pipeline/job.ts';
import type { JobOrigin } from '../../src/pipeline/registry.ts';
import type { Claim, Store } from '../../src/pipeline/store.ts';
import type { JobReason } from '../../src/postgres/history.ts';

/** The verbs of the port, each as one moment. */
export type Moments = {
  [Verb in Exclude<keyof Store, 'lead' | 'close' | 'health'>]: (
    ...given: Parameters<Store[Verb]>
  ) => Awaited<ReturnType<Store[Verb]>>;
};

export interface AttachmentRow {
  readonly id: string;
  readonly ownerId: string;
  state: AttachmentState;
  readonly kind: Kind;
  readonly fileName: string;
  readonly contentType: string;
  readonly size: number;
  readonly sha256: string;
  alt: string | null;
  width: number | null;
  height: number | null;
  frames: number | null;
  placeholder: string | null;
  pipelineVersion: number;
  errorCode: Code | null;
  readonly stagingKey: string;
  stagingGoneAt: number | null;
  originalKey: string | null;
  readonly createdAt: number;
  updatedAt: number;
  readyAt: number | null;
  deletedAt: number | null;
  variants: readonly Variant[];
}

export interface JobRow {
  readonly id: string;
  readonly attachmentId: string;
  readonly ownerId: string;
  readonly version: number;
  readonly origin: JobOrigin;
  state: JobState;
  notBefore: number;
  leaseUntil: number | null;
  ringAt: number | null;
  rungAt: number | null;
  turn: number;
  rings: number;
  confirmed: number;
  fence: number;
  attemptId: string | null;
  worker: string | null;
  attempts: number;
  failures: number;
  strikes: number;
  crashes: number;
  releases: number;
  generation: number;
  rebuild: boolean;
  errorCode: Code | null;
  errorDetail: string | null;
  readonly traceparent: string | null;
  waitedMs: number | null;
  readonly createdAt: number;
  updatedAt: number;
  claimedAt: number | null;
  finishedAt: number | null;
  historyGoneAt: number | null;
}

export interface EventRow {
  readonly at: number;
  readonly from: JobState | null;
  readonly to: JobState;
  readonly fence: number;
  readonly who: string;
  readonly reason: JobReason;
  readonly code: Code | null;
  readonly detail: string | null;
}

export interface CleanupRow {
  readonly id: string;
  readonly key: string;
  notBefore: number;
  passes: number;
  readonly reason: string;
}

export interface KeyRow {
  token: string;
  leaseUntil: number;
  fingerprint: string | null;
  resultId: string | null;
  expiresAt: number | null;
}

export interface WishRow {
  readonly version: number;
  askedAt: number;
  askedBy: string;
  retryFailed: boolean;
  afterId: string | null;
  doneAt: number | null;
}

export interface Tables {
  readonly attachments: Map<string, AttachmentRow>;
  readonly jobs: Map<string, JobRow>;
  readonly events: Map<string, EventRow[]>;
  readonly cleanups: Map<string, CleanupRow>;
  /** They are numbered by it. */
  cleanupsMade: number;
  readonly keys: Map<string, KeyRow>;
  readonly wishes: Map<number, WishRow>;
  nowMs(): number;
  newId(): string;
}

export function createTables({ nowMs, newId }: Pick<Tables, 'nowMs' | 'newId'>): Tables {
  return {
    attachments: new Map(),
    jobs: new Map(),
    events: new Map(),
    cleanups: new Map(),
    cleanupsMade: 0,
    keys: new Map(),
    wishes: new Map(),
    nowMs,
    newId,
  };
}

export function addCleanup(
  tables: Tables,
  { key, afterMs, passes, reason }: { key: string; afterMs: number; passes: number; reason: string },
): void {
  tables.cleanupsMade += 1;
  const id = String(tables.cleanupsMade);
  tables.cleanups.set(id, { id, key, notBefore: tables.nowMs() + afterMs, passes, reason });
}

export function addEvent(
  tables: Tables,
  job: JobRow,
  event: { from: JobState | null; who: string; reason: JobReason; code?: Code | null; detail?: string | null },
): void {
  const known = tables.events.get(job.id) ?? [];
  tables.events.set(job.id, known);
  known.push({
    at: tables.nowMs(),
    from: event.from,
    to: job.state,
    fence: job.fence,
    who: event.who,
    reason: event.reason,
    code: event.code ?? null,
    detail: event.detail ?? null,
  });
}

export function newJob(
  tables: Tables,
  wish: Pick<JobRow, 'id' | 'attachmentId' | 'ownerId' | 'version' | 'origin' | 'traceparent' | 'turn'>,
): JobRow {
  const now = tables.nowMs();
  const job: JobRow = {
    ...wish,
    state: 'queued',
    notBefore: now,
    leaseUntil: null,
    ringAt: now,
    rungAt: null,
    rings: 0,
    confirmed: 0,
    fence: 0,
    attemptId: null,
    worker: null,
    attempts: 0,
    failures: 0,
    strikes: 0,
    crashes: 0,
    releases: 0,
    generation: 1,
    rebuild: false,
    errorCode: null,
    errorDetail: null,
    waitedMs: null,
    createdAt: now,
    updatedAt: now,
    claimedAt: null,
    finishedAt: null,
    historyGoneAt: null,
  };
  tables.jobs.set(job.id, job);
  return job;
}

const frontLagMs = 10 * 60_000;

/** A step after the last turn of the owner's unfinished jobs, or the front of those who wait, at most so far back. */
export function nextTurn(
  tables: Tables,
  { ownerId, origin }: Pick<JobRow, 'ownerId' | 'origin'>,
  spacingMs: number,
): number {
  const now = tables.nowMs();
  const same = [...tables.jobs.values()].filter((job) => job.origin === origin);
  const waiting = same.filter((job) => job.state === 'queued' && job.rungAt === null && (job.ringAt as number) <= now);
  const mine = same.filter((job) => job.ownerId === ownerId && isUnfinished(job) && !job.rebuild);
  const front = Math.min(now, ...waiting.map(({ turn }) => turn));
  return Math.max(front, now - frontLagMs, ...mine.map(({ turn }) => turn + spacingMs));
}

export const isUnfinished = (job: JobRow) => job.state === 'queued' || job.state === 'processing';

/** Ends a job: no lease, no bell. */
export function finish(tables: Tables, job: JobRow, state: JobState): void {
  job.state = state;
  job.leaseUntil = null;
  job.ringAt = null;
  job.rungAt = null;
  job.updatedAt = tables.nowMs();
  job.finishedAt = tables.nowMs();
}

/** Queues a job that was processing or finished, claimable at `atMs`. */
export function queueAgain(tables: Tables, job: JobRow, atMs: number): void {
  job.state = 'queued';
  job.leaseUntil = null;
  job.notBefore = atMs;
  job.ringAt = atMs;
  job.rungAt = null;
  job.updatedAt = tables.nowMs();
  job.finishedAt = null;
}

/** The attachment of a first version moves along with its job. */
export function moveFirst(
  tables: Tables,
  attachment: AttachmentRow,
  state: AttachmentState,
  errorCode: Code | null,
): void {
  if (attachment.pipelineVersion !== 0) return;
  attachment.state = state;
  attachment.errorCode = errorCode;
  attachment.updatedAt = tables.nowMs();
}

export function attachmentOf(tables: Tables, job: JobRow): AttachmentRow {
  const attachment = tables.attachments.get(job.attachmentId);
  if (!attachment) throw new Error(`the job ${job.id} has no attachment`);
  return attachment;
}

export function jobsOf(tables: Tables, attachmentId: string): JobRow[] {
  return [...tables.jobs.values()].filter((job) => job.attachmentId === attachmentId);
}

export function attemptOf(job: JobRow): Attempt {
  if (job.attemptId === null) throw new Error(`the job ${job.id} has no attempt`);
  const { id: jobId, attachmentId, version, fence, attemptId } = job;
  return { jobId, attachmentId, version, fence, attemptId };
}

export function prefixOf(attempt: Attempt): string {
  return attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);
}

export function claimOf(tables: Tables, job: JobRow): Claim {
  const attachment = attachmentOf(tables, job);
  return {
    attempt: attemptOf(job),
    kind: attachment.kind,
    contentType: attachment.contentType,
    size: attachment.size,
    sha256: attachment.sha256,
    stagingKey: attachment.stagingKey,
    originalKey: attachment.originalKey,
    failures: job.failures,
    crashes: job.crashes,
    traceparent: job.traceparent,
  };
}

/** An attachment as readers see it. */
export function viewOf(tables: Tables, row: AttachmentRow): Attachment {
  const newest = jobsOf(tables, row.id).sort((a, b) => b.version - a.version)[0];
  const { stagingKey: _key, stagingGoneAt: _gone, deletedAt: _deleted, createdAt, updatedAt, readyAt, ...rest } = row;
  return {
    ...rest,
    attempts: newest?.attempts ?? 0,
    createdAt: new Date(createdAt),
    updatedAt: new Date(updatedAt),
    readyAt: readyAt === null ? null : new Date(readyAt),
  };
}
