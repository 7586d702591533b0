/** What operators see of the queue: figures over all, pages of jobs, one job with its history. Reads only. */
import { isId } from '../ids.ts';
import type { JobEvent, JobView, Page, QueueView } from '../pipeline/registry.ts';
import type { Store } from '../pipeline/store.ts';
import { cursorId, pageOf } from './cursor.ts';
import { type Pool, single } from './pool.ts';
import { onlyRow } from './rows.ts';
import { type EventRow, type JobRow, jobColumns, toJobEvent, toJobView } from './shapes.ts';

interface QueueRow {
  queued: number;
  due: number;
  announced: number;
  processing: number;
  failed: number;
  oldest_seconds: number | null;
  oldest_due_seconds: number | null;
  staging_bytes: number;
  oldest_staging_seconds: number | null;
  accepted: number;
  finished: number;
  cleanups: number;
}

/**
 * An id below any that was made within the last minute, as SQL: good enough to find the candidates by an index of ids. They carry the
 * clock of the process that made them, so this is of ten minutes further back, and `created_at` has to be compared as well.
 */
export const idBeforeLastMinute = `(
  lpad(to_hex((extract(epoch from now() - interval '11 minutes') * 1000)::bigint), 12, '0')
  || repeat('0', 20)
)::uuid`;

/** Rates are means over the last minute, of uploads those that were accepted; the oldest age is since acceptance. */
export async function queue(pool: Pool): Promise<QueueView> {
  const row = onlyRow(
    await single<QueueRow>(
      pool,
      `select waiting.*, staging.*,
         extract(epoch from now() - least(
           waiting.oldest_due_at,
           (select min(lease_until) from jobs where state = 'processing' and lease_until <= now())
         ))::float8 as oldest_due_seconds,
         (select count(*) from jobs where state = 'processing') as processing,
         (select count(*) from jobs where state = 'failed') as failed,
         (
           select count(*)
           from jobs
           where id > ${idBeforeLastMinute}
             and created_at > now() - interval '1 minute'
             and origin = 'upload'
         ) as accepted,
         (select count(*) from jobs where finished_at > now() - interval '1 minute') as finished,
         (select count(*) from cleanups) as cleanups
       from (
         select count(*) as queued,
           count(*) filter (where not_before <= now()) as due,
           count(*) filter (where rung_at is not null) as announced,
           extract(epoch from now() - min(created_at))::float8 as oldest_seconds,
           min(not_before) filter (where not_before <= now()) as oldest_due_at
         from jobs
         where state = 'queued'
       ) waiting
       cross join (
         select coalesce(sum(size), 0)::bigint as staging_bytes,
           extract(epoch from now() - min(created_at))::float8 as oldest_staging_seconds
         from attachments
         where staging_gone_at is null
       ) staging`,
      [],
      { writes: false },
    ),
  );
  return {
    queued: row.queued,
    due: row.due,
    announced: row.announced,
    processing: row.processing,
    failed: row.failed,
    oldestQueuedSeconds: row.oldest_seconds,
    oldestDueSeconds: row.oldest_due_seconds,
    stagingBytes: row.staging_bytes,
    oldestStagingSeconds: row.oldest_staging_seconds,
    acceptedPerSecond: row.accepted / 60,
    finishedPerSecond: row.finished / 60,
    cleanups: row.cleanups,
  };
}

/** Newest first. */
export async function listJobs(pool: Pool, filter: Parameters<Store['listJobs']>[0]): Promise<Page<JobView>> {
  const { rows } = await single<JobRow>(
    pool,
    `select ${jobColumns}
     from jobs
     where ($1::text is null or jobs.state = $1)
       and ($2::text is null or jobs.error_code = $2)
       and ($5::uuid is null or jobs.owner_id = $5)
       and ($6::uuid is null or jobs.attachment_id = $6)
       and ($3::uuid is null or jobs.id < $3)
     order by jobs.id desc
     limit $4`,
    [
      filter.state,
      filter.errorCode,
      cursorId(filter.cursor),
      filter.limit + 1,
      filter.ownerId,
      filter.attachmentId ?? null,
    ],
    { writes: false, replan: true },
  );
  return pageOf(rows.map(toJobView), filter.limit);
}

/** A job and its events, oldest first, of one moment. */
export async function job(pool: Pool, id: string): Promise<{ job: JobView; events: readonly JobEvent[] } | null> {
  if (!isId(id)) return null;
  const { rows } = await single<JobRow & { events: EventRow[] }>(
    pool,
    `select ${jobColumns},
       array(
         select to_jsonb(job_events)
         from job_events
         where job_events.job_id = jobs.id
         order by job_events.id
       ) as events
     from jobs
     where jobs.id = $1`,
    [id],
    { writes: false },
  );
  const [row] = rows;
  return row ? { job: toJobView(row), events: row.events.map(toJobEvent) } : null;
}
