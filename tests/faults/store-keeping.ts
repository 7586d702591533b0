/** The model's verbs of the janitor and of operators: clean-ups, retention, replay, reprocessing, rebuilding, audits. */
import { isId } from '../../src/ids.ts';
import type { JobState } from '../../src/pipeline/job.ts';
import type { Audited, QueueView, Replay, Reprocessing } from '../../src/pipeline/registry.ts';
import {
  type AttachmentRow,
  addCleanup,
  addEvent,
  attachmentOf,
  attemptOf,
  isUnfinished,
  type JobRow,
  jobsOf,
  type Moments,
  moveFirst,
  newJob,
  nextTurn,
  prefixOf,
  queueAgain,
  type Tables,
} from './store-tables.ts';

type KeepingVerbs = Pick<
  Moments,
  | 'dueCleanups'
  | 'namedAmong'
  | 'awaitingCleanup'
  | 'passedCleanup'
  | 'knownAttachments'
  | 'expire'
  | 'retire'
  | 'addCleanups'
>;

export function keepingVerbs(tables: Tables): KeepingVerbs {
  const { attachments, cleanups, keys, nowMs } = tables;
  return {
    dueCleanups: (limit) =>
      [...cleanups.values()]
        .filter((row) => row.notBefore <= nowMs())
        .sort((a, b) => a.notBefore - b.notBefore || Number(a.id) - Number(b.id))
        .slice(0, limit)
        .map(({ id, key, passes }) => ({ id, key, passes })),
    namedAmong: (asked) => new Set(asked.filter((key) => isNamed(tables, key))),
    awaitingCleanup(asked) {
      const waiting = [...cleanups.values()].map(({ key }) => key);
      return new Set(
        asked.filter((key) => waiting.some((one) => (one.endsWith('/') ? key.startsWith(one) : key === one))),
      );
    },
    passedCleanup(cleanup, againMs) {
      const row = cleanups.get(cleanup.id);
      if (!row || row.passes !== cleanup.passes) return;
      if (row.passes === 0) cleanups.delete(row.id);
      row.passes -= 1;
      row.notBefore = nowMs() + againMs;
    },
    knownAttachments: (ids) => new Set(ids.filter((id) => attachments.has(id))),
    expire(limit) {
      const over = [...keys].filter(([, row]) => (row.expiresAt ?? row.leaseUntil) <= nowMs()).slice(0, limit);
      for (const [name] of over) keys.delete(name);
      return over.length;
    },
    retire: ({ failedMs, historyMs, limit }) => ({
      staging: retireStaging(tables, failedMs, limit),
      histories: retireHistories(tables, historyMs, limit),
    }),
    addCleanups(asked, { afterMs, passes, reason }) {
      for (const key of asked) addCleanup(tables, { key, afterMs, passes, reason });
    },
  };
}

export function isNamed(tables: Tables, key: string): boolean {
  const [root, id] = key.split('/');
  if ((root !== 'staging' && root !== 'attachments') || !isId(id)) return false;
  const row = tables.attachments.get(id);
  if (!row || row.deletedAt !== null) return false;
  if (row.originalKey === key || row.variants.some((variant) => variant.key === key)) return true;
  if (row.stagingGoneAt === null && row.stagingKey === key) return true;
  return jobsOf(tables, id).some((job) => job.state === 'processing' && key.startsWith(prefixOf(attemptOf(job))));
}

function retireStaging(tables: Tables, failedMs: number, limit: number): number {
  const before = tables.nowMs() - failedMs;
  const over = [...tables.attachments.values()]
    .filter((row) => row.stagingGoneAt === null && row.state === 'failed' && row.createdAt <= before)
    .filter((row) => jobsOf(tables, row.id).every((job) => job.finishedAt !== null && job.finishedAt <= before))
    .sort((a, b) => a.createdAt - b.createdAt)
    .slice(0, limit);
  for (const attachment of over) {
    attachment.stagingGoneAt = tables.nowMs();
    addCleanup(tables, { key: attachment.stagingKey, afterMs: 0, passes: 0, reason: 'retired' });
  }
  return over.length;
}

function retireHistories(tables: Tables, historyMs: number, limit: number): number {
  const before = tables.nowMs() - historyMs;
  const over = [...tables.jobs.values()]
    .filter((job) => job.finishedAt !== null && job.finishedAt <= before)
    .filter((job) => (job.finishedAt as number) > (job.historyGoneAt ?? 0))
    .sort((a, b) => (a.finishedAt as number) - (b.finishedAt as number))
    .slice(0, limit);
  for (const job of over) {
    job.historyGoneAt = tables.nowMs();
    tables.events.delete(job.id);
  }
  return over.length;
}

/* ---------------------------------------------------------------- operators */

type OperatorVerbs = Pick<
  Moments,
  | 'queue'
  | 'replay'
  | 'failedJobs'
  | 'countFailed'
  | 'reprocess'
  | 'askReprocessing'
  | 'reprocessing'
  | 'countBelow'
  | 'feedReprocessing'
  | 'rebuild'
  | 'audit'
  | 'audited'
>;

export function operatorVerbs(tables: Tables): OperatorVerbs {
  const { attachments, jobs, wishes, nowMs } = tables;
  const failed = (filter: Parameters<Moments['countFailed']>[0]) =>
    [...jobs.values()]
      .filter((job) => {
        const ageMs = nowMs() - (job.finishedAt ?? nowMs());
        return (
          job.state === 'failed' &&
          (filter.errorCode === null || job.errorCode === filter.errorCode) &&
          (filter.ownerId === null || job.ownerId === filter.ownerId) &&
          (filter.olderThanMs === null || ageMs >= filter.olderThanMs) &&
          (filter.youngerThanMs === null || ageMs < filter.youngerThanMs)
        );
      })
      .sort(
        (a, b) =>
          Number(isRefused(a)) - Number(isRefused(b)) ||
          (a.finishedAt as number) - (b.finishedAt as number) ||
          (a.id < b.id ? -1 : 1),
      );
  /** What a replay would refuse comes after all others. */
  const isRefused = (job: JobRow): boolean => {
    const { deletedAt, pipelineVersion, originalKey, stagingGoneAt } = attachmentOf(tables, job);
    return deletedAt !== null || pipelineVersion > job.version || (originalKey === null && stagingGoneAt !== null);
  };
  return {
    queue: () => queue(tables),
    replay: (jobId, options) => replay(tables, jobId, options),
    failedJobs: (filter, limit) =>
      failed(filter)
        .slice(0, limit)
        .map(({ id }) => id),
    countFailed: (filter) => failed(filter).length,
    reprocess(attachmentId, { version, who }) {
      const attachment = attachments.get(attachmentId);
      if (!attachment || attachment.deletedAt !== null) return 'not_found';
      if (attachment.state !== 'ready') return 'not_ready';
      if (attachment.kind !== 'image' || attachment.pipelineVersion >= version) return 'current';
      const job = jobsOf(tables, attachmentId).find((one) => one.version === version);
      if (!job) {
        addReprocessing(tables, attachment, version, who);
        return 'made';
      }
      if (isUnfinished(job)) return 'exists';
      replayJob(tables, attachment, job, { who, spacingMs: null });
      return 'replayed';
    },
    askReprocessing({ version, retryFailed, who }) {
      for (const other of wishes.values()) if (other.version !== version) other.doneAt ??= nowMs();
      const known = wishes.get(version);
      if (!known || known.doneAt !== null || (retryFailed && !known.retryFailed)) {
        wishes.set(version, { version, askedAt: nowMs(), askedBy: who, retryFailed, afterId: null, doneAt: null });
      }
      return wishOf(tables, version) as Reprocessing;
    },
    reprocessing: (version) => wishOf(tables, version),
    countBelow: (version) => below(tables, version).length,
    feedReprocessing: (options) => feed(tables, options),
    rebuild(attachmentId, { keys, who }) {
      const attachment = attachments.get(attachmentId);
      if (!attachment || attachment.deletedAt !== null) return 'not_found';
      if (attachment.state !== 'ready') return 'not_ready';
      const job = jobsOf(tables, attachmentId).find((one) => one.version === attachment.pipelineVersion);
      if (job && isUnfinished(job)) return 'job_unfinished';
      const shown = attachment.variants.map(({ key }) => key);
      if (shown.length !== new Set(keys).size || !shown.every((key) => keys.includes(key))) return 'changed';
      if (!job) throw new Error(`no job of the published version of ${attachmentId}`);
      newGeneration(tables, job, { from: job.state, who, reason: 'rebuilding', turn: nowMs(), rebuild: true });
      return 'rebuilding';
    },
    audit: ({ after, limit }) =>
      [...attachments.values()]
        .filter((row) => row.deletedAt === null && (after === null || row.id > after))
        .sort((a, b) => (a.id < b.id ? -1 : 1))
        .slice(0, limit)
        .map(toAudited),
    audited(id) {
      const row = attachments.get(id);
      return row && row.deletedAt === null ? toAudited(row) : null;
    },
  };
}

function queue(tables: Tables): QueueView {
  const now = tables.nowMs();
  const jobs = [...tables.jobs.values()];
  const queued = jobs.filter((job) => job.state === 'queued');
  const due = queued.filter((job) => job.notBefore <= now);
  const over = jobs.filter((job) => job.state === 'processing' && (job.leaseUntil as number) <= now);
  const staged = [...tables.attachments.values()].filter((row) => row.stagingGoneAt === null);
  const oldest = (times: number[]) => (times.length === 0 ? null : (now - Math.min(...times)) / 1000);
  const lately = (times: (number | null)[]) => times.filter((at) => at !== null && at > now - 60_000).length / 60;
  return {
    queued: queued.length,
    due: due.length,
    announced: queued.filter((job) => job.rungAt !== null).length,
    processing: jobs.filter((job) => job.state === 'processing').length,
    failed: jobs.filter((job) => job.state === 'failed').length,
    oldestQueuedSeconds: oldest(queued.map((job) => job.createdAt)),
    oldestDueSeconds: oldest([...due.map((job) => job.notBefore), ...over.map((job) => job.leaseUntil as number)]),
    stagingBytes: staged.reduce((sum, row) => sum + row.size, 0),
    oldestStagingSeconds: oldest(staged.map((row) => row.createdAt)),
    acceptedPerSecond: lately(jobs.filter((job) => job.origin === 'upload').map((job) => job.createdAt)),
    finishedPerSecond: lately(jobs.map((job) => job.finishedAt)),
    cleanups: tables.cleanups.size,
  };
}

function replay(tables: Tables, jobId: string, options: { who: string; spacingMs: number }): Replay {
  const job = tables.jobs.get(jobId);
  if (!job) return 'not_found';
  const attachment = attachmentOf(tables, job);
  if (attachment.deletedAt !== null) return 'job_ended';
  if (job.state === 'succeeded') return 'already_succeeded';
  if (isUnfinished(job)) return 'job_unfinished';
  if (job.state !== 'failed' || attachment.pipelineVersion > job.version) return 'job_ended';
  if (attachment.originalKey === null && attachment.stagingGoneAt !== null) return 'staging_gone';
  replayJob(tables, attachment, job, options);
  return 'replayed';
}

function replayJob(
  tables: Tables,
  attachment: AttachmentRow,
  job: JobRow,
  { who, spacingMs }: { who: string; spacingMs: number | null },
): void {
  const turn = spacingMs === null ? tables.nowMs() : nextTurn(tables, job, spacingMs);
  const rebuild = attachment.pipelineVersion === job.version;
  newGeneration(tables, job, { from: 'failed', who, reason: 'replayed', turn, rebuild });
  moveFirst(tables, attachment, 'queued', null);
}

/** Counters start again; fence, rings and attempts go on. */
function newGeneration(
  tables: Tables,
  job: JobRow,
  to: { from: JobState; who: string; reason: 'replayed' | 'rebuilding'; turn: number; rebuild: boolean },
): void {
  job.generation += 1;
  job.failures = 0;
  job.strikes = 0;
  job.crashes = 0;
  job.releases = 0;
  job.confirmed = 0;
  job.errorCode = null;
  job.errorDetail = null;
  job.turn = to.turn;
  job.rebuild = to.rebuild;
  queueAgain(tables, job, tables.nowMs());
  addEvent(tables, job, to);
}

function addReprocessing(tables: Tables, attachment: AttachmentRow, version: number, who: string): void {
  const { id: attachmentId, ownerId } = attachment;
  const wish = { id: tables.newId(), attachmentId, ownerId, version, origin: 'reprocess', traceparent: null } as const;
  const job = newJob(tables, { ...wish, turn: tables.nowMs() });
  addEvent(tables, job, { from: null, who, reason: 'reprocessed' });
}

function below(tables: Tables, version: number): AttachmentRow[] {
  return [...tables.attachments.values()]
    .filter((row) => row.state === 'ready' && row.kind === 'image' && row.deletedAt === null)
    .filter((row) => row.pipelineVersion < version)
    .sort((a, b) => (a.id < b.id ? -1 : 1));
}

function feed(tables: Tables, { window, limit }: { window: number; limit: number }): number {
  const wish = [...tables.wishes.values()].find((one) => one.doneAt === null);
  const unfinished = [...tables.jobs.values()].filter((job) => job.origin === 'reprocess' && isUnfinished(job)).length;
  const room = Math.min(limit, window - unfinished);
  if (!wish || room <= 0) return 0;
  const jobOf = (row: AttachmentRow) => jobsOf(tables, row.id).find((job) => job.version === wish.version);
  const wanted = below(tables, wish.version).filter((row) => {
    const job = jobOf(row);
    return !job || (wish.retryFailed && job.state === 'failed' && (job.finishedAt as number) < wish.askedAt);
  });
  const candidates = wanted.filter((row) => wish.afterId === null || row.id > wish.afterId).slice(0, room);
  if (candidates.length === 0) {
    wish.afterId = null;
    if (wanted.length === 0) wish.doneAt = tables.nowMs();
    return 0;
  }
  for (const attachment of candidates) {
    const job = jobOf(attachment);
    if (job) replayJob(tables, attachment, job, { who: wish.askedBy, spacingMs: null });
    else addReprocessing(tables, attachment, wish.version, wish.askedBy);
    wish.afterId = attachment.id;
  }
  return candidates.length;
}

function wishOf(tables: Tables, version: number): Reprocessing | null {
  const wish = tables.wishes.get(version);
  if (!wish) return null;
  const made = [...tables.jobs.values()].filter((job) => job.version === version && job.origin === 'reprocess');
  const count = (isOf: (job: JobRow) => boolean) => made.filter(isOf).length;
  return {
    version,
    askedAt: new Date(wish.askedAt),
    askedBy: wish.askedBy,
    retryFailed: wish.retryFailed,
    doneAt: wish.doneAt === null ? null : new Date(wish.doneAt),
    remaining: below(tables, version).filter((row) => !jobsOf(tables, row.id).some((job) => job.version === version))
      .length,
    unfinished: count(isUnfinished),
    succeeded: count((job) => job.state === 'succeeded'),
    failed: count((job) => job.state === 'failed'),
  };
}

function toAudited(row: AttachmentRow): Audited {
  return {
    id: row.id,
    ownerId: row.ownerId,
    state: row.state,
    kind: row.kind,
    version: row.pipelineVersion,
    size: row.size,
    sha256: row.sha256,
    stagingKey: row.stagingGoneAt === null ? row.stagingKey : null,
    originalKey: row.originalKey,
    variants: row.variants.map(({ name, key, size, sha256 }) => ({ name, key, size, sha256 })),
  };
}
