/**
 * Retention: ends what is kept for a time only, the originals of failed uploads and the events of finished jobs.
 *
 * Both compete with a replay, and whoever is first wins. Staging goes under the locks that a replay takes, attachment,
 * then job; a history under the lock of its job. What somebody has locked is passed over: the next round asks again.
 */
import type { Store } from '../pipeline/store.ts';
import { type Pool, single, transaction } from './pool.ts';

type Options = Parameters<Store['retire']>[0];

/** One batch of each. Rejects `StoreError`. */
export async function retire(pool: Pool, options: Options): Promise<{ staging: number; histories: number }> {
  return { staging: await retireStaging(pool, options), histories: await retireHistories(pool, options) };
}

/**
 * Gives up the originals of failed uploads: `staging_gone_at`, committed together with the clean-up that deletes the
 * object. From then on a replay answers `staging_gone`. Guard: nothing published, failed, and its job failed longer than
 * `failedMs` ago; seen again under both locks, since a replay may have come and failed since the first look.
 */
function retireStaging(pool: Pool, { failedMs, limit }: Options): Promise<number> {
  return transaction(pool, async (db) => {
    const attachments = await db.query<{ id: string }>(
      `select id
       from attachments
       where staging_gone_at is null
         -- Nothing failed before it began: the oldest part of the index of staging has all that there is to find.
         and created_at <= now() - $1 * interval '1 millisecond'
         and state = 'failed'
         and not exists (
           select
           from jobs
           where jobs.attachment_id = attachments.id
             and (jobs.finished_at is null or jobs.finished_at > now() - $1 * interval '1 millisecond')
         )
       order by created_at
       limit $2
       for no key update skip locked`,
      [failedMs, limit],
    );
    if (attachments.rowCount === 0) return 0;
    const { rowCount } = await db.query(
      `with failed as materialized (
         select attachment_id
         from jobs
         where attachment_id = any($1::uuid[])
           and state = 'failed'
           and finished_at <= now() - $2 * interval '1 millisecond'
         order by id
         for no key update
       ),
       gone as (
         update attachments
         set staging_gone_at = now()
         from failed
         where attachments.id = failed.attachment_id
         returning attachments.staging_key
       )
       insert into cleanups (key, reason)
       select staging_key, 'retired'
       from gone`,
      [attachments.rows.map(({ id }) => id), failedMs],
    );
    return rowCount ?? 0;
  });
}

/**
 * Removes the events of jobs that finished longer than `historyMs` ago; `history_gone_at` says in the row that they are
 * missing. Answers how many jobs. Guard: finished, and since the history was last removed. A job that is replayed later
 * has events again, from its replay on, which go in their own time.
 */
async function retireHistories(pool: Pool, { historyMs, limit }: Options): Promise<number> {
  const { rowCount } = await single(
    pool,
    `with finished as materialized (
       select id
       from jobs
       where finished_at > coalesce(history_gone_at, '-infinity')
         and finished_at <= now() - $1 * interval '1 millisecond'
       order by finished_at
       limit $2
       for no key update skip locked
     ),
     gone as (
       delete from job_events
       using finished
       where job_events.job_id = finished.id
     )
     update jobs
     set history_gone_at = now()
     from finished
     where jobs.id = finished.id`,
    [historyMs, limit],
    { writes: true },
  );
  return rowCount ?? 0;
}
