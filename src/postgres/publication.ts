/**
 * What a settle publishes: the result of an attempt becomes what the attachment shows.
 *
 * `publishFirst` is nearly every settle, whole and in one statement, which serves all that came while the one before was under way. `replace` is for whoever holds both locks and has seen
 * that a newer version, or the published one once more, is wanted.
 */
import type { Attempt } from '../pipeline/job.ts';
import type { Result } from '../pipeline/store.ts';
import { addCleanup } from './cleanups.ts';
import { anyPlace, type Db } from './pool.ts';

/** A result to be published, and who says so. */
export interface Publication {
  readonly attempt: Attempt;
  readonly result: Result;
  readonly who: string;
}

/**
 * processing → succeeded, its attachment → ready, and staging goes: for each publication by itself, and at most one of an
 * attachment. False: its guard does not hold, or did not hold when the statement began, or its attachment is locked; nothing is written
 * for it. Guard: nothing published yet, not deleted; `fence`, `attempt_id`, `processing`, and no rebuild. Rejects `StoreError`.
 *
 * The order of locks is that of the data: no row of `jobs` is updated before a row of the CTE `made` is there, and
 * none is there before its attachment is locked. Whoever changed either row while this waited for it has committed by then, and READ
 * COMMITTED looks at the guard again with the row as it is now: what was deleted or published meanwhile is no row of
 * `made`, and a job that was cancelled, or claimed again after its lease ended, is not updated. All that follows takes
 * its rows from `job`. The last update finds the attachment as it was when the statement began, which can be older than
 * what was locked, and is led on to the locked row, which nobody changes any more.
 *
 * No circle of waiting, although it locks many: as for claims.
 */
export async function publishFirst(db: Db, publications: readonly Publication[]): Promise<readonly boolean[]> {
  // Two versions of one attachment would both be the first.
  const firsts = new Map(publications.map((one) => [one.attempt.attachmentId, one]));
  const { rows } = await db.query<{ attempt_id: string }>(publishText, valuesOf([...firsts.values()]));
  const published = new Set(rows.map((row) => row.attempt_id));
  return publications.map(
    (one) => firsts.get(one.attempt.attachmentId) === one && published.has(one.attempt.attemptId),
  );
}

const publishText = `
  with asked as materialized (
    select *
    from unnest(
      $1::uuid[], $2::uuid[], $3::int[], $4::uuid[], $5::text[], $6::text[], $7::int[], $8::int[], $9::int[],
      $10::text[], $11::text[]
    )
      with ordinality as asked (
        attachment_id, job_id, fence, attempt_id, who, original_key, width, height, frames, placeholder, variants, n
      )
    where n ${anyPlace}
  ),
  made as materialized (
    select asked.*, attachment.*
    from asked
    cross join lateral (
      select pipeline_version, staging_key
      from attachments
      where id = asked.attachment_id
        and pipeline_version = 0
        and original_key is null
        and deleted_at is null
      for no key update skip locked
    ) attachment
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
    from made
    where jobs.id = made.job_id
      and jobs.attachment_id = made.attachment_id
      and jobs.version > made.pipeline_version
      and jobs.fence = made.fence
      and jobs.attempt_id = made.attempt_id
      and jobs.state = 'processing'
      and not jobs.rebuild
    returning jobs.id, jobs.version, made.*
  ),
  event as (
    insert into job_events (job_id, from_state, to_state, fence, who, reason)
    select id, 'processing', 'succeeded', fence, who, 'settled'
    from job
  ),
  variant as (
    insert into variants (attachment_id, name, pipeline_version, content_type, width, height, size, sha256, key)
    select job.attachment_id, one.name, job.version, one.content_type, one.width, one.height, one.size,
      one.sha256, one.key
    from job
    cross join jsonb_to_recordset(job.variants::jsonb)
      as one (name text, content_type text, width int, height int, size bigint, sha256 text, key text)
  ),
  cleanup as (
    insert into cleanups (key, not_before, passes, reason)
    select staging_key, now(), 0, 'published'
    from job
  )
  update attachments
  set state = 'ready',
      pipeline_version = job.version,
      original_key = job.original_key,
      width = job.width,
      height = job.height,
      frames = job.frames,
      placeholder = job.placeholder,
      error_code = null,
      staging_gone_at = coalesce(attachments.staging_gone_at, now()),
      ready_at = coalesce(attachments.ready_at, now()),
      updated_at = now()
  from job
  where attachments.id = job.attachment_id
  returning job.attempt_id`;

/** A column each, as `unnest` reads them. */
function valuesOf(publications: readonly Publication[]): readonly unknown[] {
  const column = (of: (one: Publication) => unknown) => publications.map(of);
  return [
    column(({ attempt }) => attempt.attachmentId),
    column(({ attempt }) => attempt.jobId),
    column(({ attempt }) => attempt.fence),
    column(({ attempt }) => attempt.attemptId),
    column(({ who }) => who),
    column(({ result }) => result.originalKey),
    column(({ result }) => result.width),
    column(({ result }) => result.height),
    column(({ result }) => result.frames),
    column(({ result }) => result.placeholder),
    column(({ result }) => variantsOf(result)),
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
