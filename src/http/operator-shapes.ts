/** What operators are shown: the queue, jobs, attempts, events, replays and reprocessing. The command line shows the same with `--json`. */
import { type Code, catalogue } from '../errors.ts';
import { jobStates } from '../pipeline/job.ts';
import type { AttemptView, Replayed } from '../pipeline/operate.ts';
import type { JobEvent, JobView, QueueView, Reprocessing } from '../pipeline/registry.ts';
import type { HttpSettings } from './app.ts';
import { Id, nullable, ref, type Static, Time, Type } from './schemas.ts';

const count = Type.Integer();
const seconds = (description: string) => nullable(Type.Number({ description }));

/* ------------------------------------------------------------------------- jobs */

export const JobState = Type.Enum([...jobStates]);
export const ErrorCode = Type.Enum(Object.keys(catalogue) as Code[]);

export const JobShape = Type.Object(
  {
    id: Id,
    attachment_id: Id,
    owner_id: Id,
    version: Type.Integer({ description: 'The pipeline version that it makes.' }),
    origin: Type.Enum(['upload', 'reprocess']),
    generation: Type.Integer({
      description:
        '1, and one more with every replay or rebuild. `failures`, `crashes` and `releases` are those of this generation.',
    }),
    state: JobState,
    attempts: Type.Integer({ description: 'Claims.' }),
    failures: Type.Integer({ description: 'Attempts that a worker ended as failed.' }),
    crashes: Type.Integer({ description: 'Leases that ended without a word.' }),
    releases: Type.Integer({ description: 'Claims given back through no fault of the job.' }),
    rings: Type.Integer({ description: 'Announcements.' }),
    fence: Type.Integer(),
    error_code: nullable(Type.String()),
    error_detail: nullable(Type.String({ description: 'For operators; may name keys and hosts.' })),
    worker: nullable(Type.String({ description: 'Who claimed it last.' })),
    not_before: Time,
    lease_until: nullable(Time),
    ring_at: nullable(Time),
    created_at: Time,
    updated_at: Time,
    finished_at: nullable(Time),
  },
  { $id: 'Job' },
);

export const AttemptShape = Type.Object({
  fence: Type.Integer(),
  generation: Type.Integer({ description: 'That of the job at the time.' }),
  worker: Type.String(),
  started_at: Time,
  ended_at: nullable(Time),
  outcome: Type.String({
    description:
      '`running`, `settled`, `retried`, `failed`, `released`, `superseded`, `cancelled`, or `crashed`: its lease ended without a word.',
  }),
  code: nullable(Type.String()),
  detail: nullable(Type.String({ description: 'For operators; may name keys and hosts.' })),
});

export const EventShape = Type.Object({
  at: Time,
  from: nullable(Type.String()),
  to: JobState,
  fence: Type.Integer(),
  who: Type.String({ description: '`operator <handle>` for what an operator did.' }),
  reason: Type.String(),
  code: nullable(Type.String()),
  detail: nullable(Type.String()),
});

export function shapeJob(job: JobView): Static<typeof JobShape> {
  return {
    id: job.id,
    attachment_id: job.attachmentId,
    owner_id: job.ownerId,
    version: job.version,
    origin: job.origin,
    generation: job.generation,
    state: job.state,
    attempts: job.attempts,
    failures: job.failures,
    crashes: job.crashes,
    releases: job.releases,
    rings: job.rings,
    fence: job.fence,
    error_code: job.errorCode,
    error_detail: job.errorDetail,
    worker: job.worker,
    not_before: job.notBefore.toISOString(),
    lease_until: job.leaseUntil?.toISOString() ?? null,
    ring_at: job.ringAt?.toISOString() ?? null,
    created_at: job.createdAt.toISOString(),
    updated_at: job.updatedAt.toISOString(),
    finished_at: job.finishedAt?.toISOString() ?? null,
  };
}

export function shapeAttempt(attempt: AttemptView): Static<typeof AttemptShape> {
  const { startedAt, endedAt, ...same } = attempt;
  return { ...same, started_at: startedAt.toISOString(), ended_at: endedAt?.toISOString() ?? null };
}

export function shapeEvent(event: JobEvent): Static<typeof EventShape> {
  return { ...event, at: event.at.toISOString() };
}

/* ----------------------------------------------------------- replay, reprocessing */

export const ReplayedShape = Type.Object({
  matched: Type.Integer({ description: 'Failed jobs that fitted when it began.' }),
  replayed: count,
  skipped: Type.Record(Type.String(), count, {
    description:
      'By why nothing was changed: `staging_gone`, `job_ended`, `job_unfinished`, `already_succeeded`, `not_found`.',
  }),
});

export function shapeReplayed({ matched, replayed, skipped }: Replayed): Static<typeof ReplayedShape> {
  return { matched, replayed, skipped: { ...skipped } };
}

export const ReprocessingShape = Type.Object(
  {
    version: count,
    asked_at: Time,
    asked_by: Type.String(),
    retry_failed: Type.Boolean({ description: 'Whether failed jobs of the version are replayed on the way.' }),
    done_at: nullable(Type.String({ format: 'date-time', description: 'When the last job was made; null before.' })),
    remaining: Type.Integer({ description: 'Ready attachments below the version that have no job of it yet.' }),
    unfinished: count,
    succeeded: count,
    failed: count,
  },
  { $id: 'Reprocessing', description: 'A wish to bring all ready attachments to a version, and how far it is.' },
);

/** A wish, or null when nobody asked for the version. */
export const MaybeReprocessing = Type.Union([ref(ReprocessingShape), Type.Null()]);

export function shapeReprocessing(wish: Reprocessing | null): Static<typeof ReprocessingShape> | null {
  if (wish === null) return null;
  return {
    version: wish.version,
    asked_at: wish.askedAt.toISOString(),
    asked_by: wish.askedBy,
    retry_failed: wish.retryFailed,
    done_at: wish.doneAt?.toISOString() ?? null,
    remaining: wish.remaining,
    unfinished: wish.unfinished,
    succeeded: wish.succeeded,
    failed: wish.failed,
  };
}

/* ------------------------------------------------------------------------ queue */

const QueueLimits = Type.Object(
  {
    backlog_max: Type.Integer({ description: 'Waiting uploads, above which new ones are answered 503.' }),
    staging_bytes_max: Type.Integer({ description: 'Bytes not published yet, above which 503.' }),
    uploads_max: Type.Integer({ description: 'Uploads that one API process receives at once, above which 503.' }),
    pending_per_user_max: Type.Integer({ description: 'Unfinished uploads of a user, above which 429.' }),
    uploads_per_user_max: Type.Integer({
      description: 'Uploads of a user at once in one API process, above which 429.',
    }),
    uploads_per_minute_max: Type.Integer({ description: 'Accepted uploads of a user in a minute, above which 429.' }),
  },
  { description: 'Of admission, as the answering process has them.' },
);

export const QueueShape = Type.Object({
  queued: Type.Integer({ description: 'Jobs that wait.' }),
  due: Type.Integer({ description: 'Of these, how many could be claimed now.' }),
  announced: Type.Integer({ description: 'Queued jobs that are announced and not claimed yet.' }),
  in_flight: Type.Integer({ description: 'Jobs that a worker holds.' }),
  failed: count,
  oldest_queued_seconds: seconds('Age of the oldest job that waits.'),
  oldest_due_seconds: seconds('Since when the longest due job could have been claimed.'),
  staging_bytes: Type.Integer({ description: 'Originals that are not published and not given up.' }),
  oldest_staging_seconds: seconds('Age of the oldest of them.'),
  accepted_per_second: Type.Number({ description: 'Over the last minute.' }),
  finished_per_second: Type.Number({ description: 'Over the last minute.' }),
  cleanups: Type.Integer({ description: 'Keys and prefixes that wait to be deleted.' }),
  limits: QueueLimits,
  reprocessing: MaybeReprocessing,
});

export type QueueLimitSettings = Pick<
  HttpSettings,
  'backlogMax' | 'stagingBytesMax' | 'uploadsMax' | 'pendingPerUserMax' | 'uploadsPerUserMax' | 'uploadsPerMinuteMax'
>;

export function shapeQueue(
  queue: QueueView,
  wish: Reprocessing | null,
  settings: QueueLimitSettings,
): Static<typeof QueueShape> {
  return {
    queued: queue.queued,
    due: queue.due,
    announced: queue.announced,
    in_flight: queue.processing,
    failed: queue.failed,
    oldest_queued_seconds: queue.oldestQueuedSeconds,
    oldest_due_seconds: queue.oldestDueSeconds,
    staging_bytes: queue.stagingBytes,
    oldest_staging_seconds: queue.oldestStagingSeconds,
    accepted_per_second: queue.acceptedPerSecond,
    finished_per_second: queue.finishedPerSecond,
    cleanups: queue.cleanups,
    limits: {
      backlog_max: settings.backlogMax,
      staging_bytes_max: settings.stagingBytesMax,
      uploads_max: settings.uploadsMax,
      pending_per_user_max: settings.pendingPerUserMax,
      uploads_per_user_max: settings.uploadsPerUserMax,
      uploads_per_minute_max: settings.uploadsPerMinuteMax,
    },
    reprocessing: shapeReprocessing(wish),
  };
}
