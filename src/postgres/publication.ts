/**
 * What a settle publishes: the result of an attempt becomes what the attachment shows.
 *
 * `publishFirst` is nearly every settle, whole and in one statement. `replace` is for whoever holds both locks and has seen
 * that a newer version, or the published one once more, is wanted.
 */
import type { Attempt } from '../pipeline/job.ts';
import type { Result } from '../pipeline/store.ts';
import { addCleanup } from './cleanups.ts';
import type { Db } from './pool.ts';

/**
 * processing → succeeded, its attachment → ready, and staging goes. False: the guard does not hold, or did not hold when
 * the statement began; nothing is written. Guard: nothing published yet, not deleted; `fence`, `attempt_id`, `processing`, and
 * no rebuild. Rejects `StoreError`.
 *
 * The order of locks is that of the data: no row of `jobs` is updated before a row of the CTE `attachment` is there, and
 * none is there before it is locked. Whoever changed either row while this waited for it has committed by then, and READ
 * COMMITTED looks at the guard again with the row as it is now: what was deleted or published meanwhile is no row of
 * `attachment`, and a job that was cancelled, or claimed again after its lease ended, is not updated. All that follows takes
 * its rows from `job`. The last update finds the attachment as it was when the statement began, which can be older than
 * what was locked, and is led on to the locked row, which nobody changes any more.
 */
export async function publishFirst(db: Db, attempt: Attempt, result: Result, who: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `with attachment as materialized (
       select id, pipeline_version, staging_key
       from attachments
       where id = $1
         and pipeline_version = 0
         and original_key is null
         and deleted_at is null
       for no key update
     ),
     job as (
       update jobs
       set state = 'succeeded',
           lease_until = null,
           ring_at = null,
           rung_at = null,
           error_code = null,
           error_detail = null,
           updated_at = now(),
           finished_at = now()
       from attachment
       where jobs.id = $2
         and jobs.attachment_id = attachment.id
         and jobs.version > attachment.pipeline_version
         and jobs.fence = $3
         and jobs.attempt_id = $4
         and jobs.state = 'processing'
         and not jobs.rebuild
       returning jobs.id, jobs.attachment_id, jobs.version, jobs.fence, attachment.staging_key
     ),
     event as (
       insert into job_events (job_id, from_state, to_state, fence, who, reason)
       select id, 'processing', 'succeeded', fence, $5, 'settled'
       from job
     ),
     variant as (
       insert into variants (attachment_id, name, pipeline_version, content_type, width, height, size, sha256, key)
       select job.attachment_id, made.name, job.version, made.content_type, made.width, made.height, made.size,
         made.sha256, made.key
       from job
       cross join jsonb_to_recordset($11::jsonb)
         as made (name text, content_type text, width int, height int, size bigint, sha256 text, key text)
     ),
     cleanup as (
       insert into cleanups (key, not_before, passes, reason)
       select staging_key, now(), 0, 'published'
       from job
     )
     update attachments
     set state = 'ready',
         pipeline_version = job.version,
         original_key = $6,
         width = $7,
         height = $8,
         frames = $9,
         placeholder = $10,
         error_code = null,
         staging_gone_at = coalesce(attachments.staging_gone_at, now()),
         ready_at = coalesce(attachments.ready_at, now()),
         updated_at = now()
     from job
     where attachments.id = job.attachment_id`,
    firstValues(attempt, result, who),
  );
  return rowCount === 1;
}

function firstValues(attempt: Attempt, result: Result, who: string): readonly unknown[] {
  return [
    attempt.attachmentId,
    attempt.jobId,
    attempt.fence,
    attempt.attemptId,
    who,
    result.originalKey,
    result.width,
    result.height,
    result.frames,
    result.placeholder,
    variantsOf(result),
  ];
}

/** Replaces what the attachment shows, by version `version`. The original that is published stays. */
export async function replace(
  db: Db,
  attempt: Attempt,
  result: Result,
  { version, replacedMs }: { version: number; replacedMs: number },
): Promise<void> {
  await db.query(
    `with replaced as (
       delete from variants
       where attachment_id = $1
       returning key
     )
     insert into cleanups (key, not_before, reason)
     select key, now() + $2 * interval '1 millisecond', 'replaced'
     from replaced`,
    [attempt.attachmentId, replacedMs],
  );
  await insertVariants(db, attempt.attachmentId, version, result);
  await db.query(
    `update attachments
     set state = 'ready',
         pipeline_version = $2,
         width = $3,
         height = $4,
         frames = $5,
         placeholder = $6,
         error_code = null,
         updated_at = now()
     where id = $1`,
    [attempt.attachmentId, version, result.width, result.height, result.frames, result.placeholder],
  );
  if (result.originalKey === null) return;
  // Copied although an earlier version's original is kept: no row names this one.
  await addCleanup(db, { key: result.originalKey, afterMs: 0, passes: 0, reason: 'replaced' });
}

async function insertVariants(db: Db, attachmentId: string, version: number, result: Result): Promise<void> {
  await db.query(
    `insert into variants (attachment_id, name, pipeline_version, content_type, width, height, size, sha256, key)
     select $1, made.name, $2, made.content_type, made.width, made.height, made.size, made.sha256, made.key
     from jsonb_to_recordset($3::jsonb)
       as made (name text, content_type text, width int, height int, size bigint, sha256 text, key text)`,
    [attachmentId, version, variantsOf(result)],
  );
}

/** As `jsonb_to_recordset` reads them. */
function variantsOf({ variants }: Result): string {
  return JSON.stringify(
    variants.map(({ name, contentType, width, height, size, sha256, key }) => ({
      name,
      content_type: contentType,
      width,
      height,
      size,
      sha256,
      key,
    })),
  );
}
