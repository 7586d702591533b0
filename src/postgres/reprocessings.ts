/**
 * Reprocessing: bringing ready attachments to a newer pipeline version, one asked for by name or all of them by a wish.
 *
 * A wish is a row. Whoever leads the janitor feeds its jobs little by little, so that they never stand in the way of
 * uploads; how far it is can be read at any time, and a feeder that dies leaves a cursor and the jobs that it committed.
 * Only pictures are brought up: a `file` has no variants, so no version is newer for it than the one it was published
 * with, and it is counted nowhere here.
 */
import { newId } from '../ids.ts';
import type { Registry, Reprocessed, Reprocessing } from '../pipeline/registry.ts';
import { lockAttachment, lockJob, replayLocked } from './generations.ts';
import { type Db, type Pool, single, transaction } from './pool.ts';
import { onlyRow } from './rows.ts';

/**
 * A job of `version` (`reprocessed`), or a new generation of the failed one. Guard: ready, not deleted, a picture that is
 * published below `version`, and no unfinished job of it. Rejects `StoreError`.
 */
export function reprocess(
  pool: Pool,
  attachmentId: string,
  { version, who }: Parameters<Registry['reprocess']>[1],
): Promise<Reprocessed> {
  return transaction(pool, async (db) => {
    const attachment = await lockAttachment(db, attachmentId);
    if (!attachment || attachment.deleted) return 'not_found';
    if (attachment.state !== 'ready') return 'not_ready';
    if (attachment.kind !== 'image' || attachment.version >= version) return 'current';
    const job = await lockJob(db, { attachmentId, version });
    if (!job) {
      await makeJobs(db, [attachmentId], version, who);
      return 'made';
    }
    if (job.state === 'queued' || job.state === 'processing') return 'exists';
    if (job.state !== 'failed') {
      throw new Error(`Expected no ${job.state} job of version ${version} above what ${attachmentId} shows`);
    }
    await replayLocked(db, attachment, job, { who, spacingMs: null });
    return 'replayed';
  });
}

/** nothing → queued. Guard: the attachments are locked, ready, and have no job of the version. Its turn is now. */
async function makeJobs(db: Db, attachmentIds: readonly string[], version: number, who: string): Promise<number> {
  const { rowCount } = await db.query(
    `with wanted as (
       select attachments.id, attachments.owner_id, made.job_id
       from unnest($1::uuid[], $2::uuid[]) as made (attachment_id, job_id)
       join attachments on attachments.id = made.attachment_id
     ),
     job as (
       insert into jobs (id, attachment_id, owner_id, version, origin, state, ring_at)
       select job_id, id, owner_id, $3, 'reprocess', 'queued', now()
       from wanted
       on conflict (attachment_id, version) do nothing
       returning id
     )
     insert into job_events (job_id, from_state, to_state, fence, who, reason)
     select id, null, 'queued', 0, $4, 'reprocessed'
     from job`,
    [attachmentIds, attachmentIds.map(newId), version, who],
  );
  return rowCount ?? 0;
}

/**
 * Writes the wish down. An open one of the same version goes on as it is, or, when failed jobs are to be retried now and
 * were not before, begins anew. An open one of another version ends: the newest wish is the one that counts, which is
 * also how one is taken back. Rejects `StoreError`.
 */
export async function askReprocessing(
  pool: Pool,
  { version, retryFailed, who }: Parameters<Registry['askReprocessing']>[0],
): Promise<Reprocessing> {
  await transaction(pool, async (db) => {
    await lockWishes(db);
    await db.query(
      `update reprocessings
       set done_at = now()
       where version <> $1
         and done_at is null`,
      [version],
    );
    await db.query(
      `insert into reprocessings (version, asked_by, retry_failed)
       values ($1, $2, $3)
       on conflict (version) do update
       set asked_at = now(),
           asked_by = excluded.asked_by,
           retry_failed = excluded.retry_failed,
           after_id = null,
           done_at = null
       where reprocessings.done_at is not null
          or (excluded.retry_failed and not reprocessings.retry_failed)`,
      [version, who, retryFailed],
    );
  });
  const asked = await reprocessing(pool, version);
  if (!asked) throw new Error(`Expected the wish for version ${version} that was just written, received none`);
  return asked;
}

/** One asker or feeder at a time, so that there is one open wish and its window is counted by one. Readers pass. */
async function lockWishes(db: Db): Promise<void> {
  await db.query('lock table reprocessings in share row exclusive mode');
}

/** How a wish stands, all figures of one moment. */
export async function reprocessing(pool: Pool, version: number): Promise<Reprocessing | null> {
  const { rows } = await single<{
    version: number;
    asked_at: Date;
    asked_by: string;
    retry_failed: boolean;
    done_at: Date | null;
    remaining: number;
    unfinished: number;
    succeeded: number;
    failed: number;
  }>(
    pool,
    `select wish.version, wish.asked_at, wish.asked_by, wish.retry_failed, wish.done_at, waiting.remaining, made.*
     from reprocessings wish
     cross join lateral (
       select count(*) as remaining
       from attachments
       where state = 'ready'
         and kind = 'image'
         and deleted_at is null
         and pipeline_version < wish.version
         and not exists (
           select
           from jobs
           where jobs.attachment_id = attachments.id
             and jobs.version = wish.version
         )
     ) waiting
     cross join lateral (
       select count(*) filter (where state in ('queued', 'processing')) as unfinished,
         count(*) filter (where state = 'succeeded') as succeeded,
         count(*) filter (where state = 'failed') as failed
       from jobs
       where origin = 'reprocess'
         and version = wish.version
     ) made
     where wish.version = $1`,
    [version],
    { writes: false },
  );
  const [row] = rows;
  if (!row) return null;
  const { remaining, unfinished, succeeded, failed } = row;
  return {
    version: row.version,
    askedAt: row.asked_at,
    askedBy: row.asked_by,
    retryFailed: row.retry_failed,
    doneAt: row.done_at,
    remaining,
    unfinished,
    succeeded,
    failed,
  };
}

/** Ready pictures below `version`, whatever jobs they have. */
export async function countBelow(pool: Pool, version: number): Promise<number> {
  const row = onlyRow(
    await single<{ below: number }>(
      pool,
      `select count(*) as below
       from attachments
       where state = 'ready'
         and kind = 'image'
         and deleted_at is null
         and pipeline_version < $1`,
      [version],
      { writes: false },
    ),
  );
  return row.below;
}

/**
 * Makes the next jobs of the open wish, at most `limit`, and moves its cursor. At the end of a pass the wish is done, or
 * goes round once more for what became ready behind the cursor. Rejects `StoreError`.
 *
 * Bound: feeders take turns, and each counts what those before it committed, so that they never make more than `window`
 * unfinished jobs together. What operators ask for one by one is not held back: it counts, and takes the feeders' places.
 */
export async function feedReprocessing(
  pool: Pool,
  { window, limit }: Parameters<Registry['feedReprocessing']>[0],
): Promise<number> {
  // The janitor asks in every round, and nearly always there is no wish: no lock for that.
  const open = await single(pool, 'select from reprocessings where done_at is null', [], { writes: false });
  if (open.rowCount === 0) return 0;
  return transaction(pool, async (db) => {
    await lockWishes(db);
    const wish = await openWish(db);
    const room = wish ? Math.min(limit, window - (await countUnfinished(db))) : 0;
    if (!wish || room <= 0) return 0;
    const candidates = await nextCandidates(db, wish, room);
    if (candidates.length === 0) {
      await endPass(db, wish);
      return 0;
    }
    const made = await feed(db, wish, candidates);
    await db.query('update reprocessings set after_id = $2 where version = $1', [wish.version, candidates.at(-1)]);
    return made;
  });
}

interface Wish {
  readonly version: number;
  readonly after: string | null;
  readonly askedBy: string;
}

async function openWish(db: Db): Promise<Wish | null> {
  const { rows } = await db.query<{ version: number; after_id: string | null; asked_by: string }>(
    'select version, after_id, asked_by from reprocessings where done_at is null',
  );
  const [row] = rows;
  return row ? { version: row.version, after: row.after_id, askedBy: row.asked_by } : null;
}

async function countUnfinished(db: Db): Promise<number> {
  const { rows } = await db.query<{ unfinished: number }>(
    `select count(*) as unfinished
     from jobs
     where origin = 'reprocess'
       and state in ('queued', 'processing')`,
  );
  return onlyRow({ rows }).unfinished;
}

/**
 * What is wanted of `attachments`, of a wish of version `$1`: no job of it yet or, where failed ones are retried, one that
 * had failed before the wish was asked. Those that fail again are left, or a pass would never end.
 */
const wanted = `
  attachments.state = 'ready'
  and attachments.kind = 'image'
  and attachments.deleted_at is null
  and attachments.pipeline_version < $1
  and not exists (
    select
    from jobs
    where jobs.attachment_id = attachments.id
      and jobs.version = $1
      and not exists (
        select
        from reprocessings wish
        where wish.version = $1
          and wish.retry_failed
          and jobs.state = 'failed'
          and jobs.finished_at < wish.asked_at
      )
  )`;

/** In the order of their ids, behind the cursor. Not locked yet: that none is left can only be seen without locks. */
async function nextCandidates(db: Db, wish: Wish, limit: number): Promise<readonly string[]> {
  const { rows } = await db.query<{ id: string }>(
    `select id
     from attachments
     where ${wanted}
       and id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
     order by id
     limit $3`,
    [wish.version, wish.after, limit],
  );
  return rows.map((row) => row.id);
}

/** Done when nothing is wanted any more; otherwise round again, for what became ready behind the cursor meanwhile. */
async function endPass(db: Db, wish: Wish): Promise<void> {
  await db.query(
    `update reprocessings
     set after_id = null,
         done_at = case when not exists (select from attachments where ${wanted}) then now() end
     where version = $1`,
    [wish.version],
  );
}

/** Locks the candidates, drops those that are not wanted any more, and makes or replays their jobs. */
async function feed(db: Db, wish: Wish, candidates: readonly string[]): Promise<number> {
  const { rows } = await db.query<{ id: string; job_id: string | null }>(
    `select attachments.id,
       (select jobs.id from jobs where jobs.attachment_id = attachments.id and jobs.version = $1) as job_id
     from attachments
     where attachments.id = any($2::uuid[])
       and ${wanted}
     order by attachments.id
     for no key update of attachments`,
    [wish.version, candidates],
  );
  let made = await makeJobs(
    db,
    rows.filter((row) => row.job_id === null).map((row) => row.id),
    wish.version,
    wish.askedBy,
  );
  for (const { id, job_id } of rows) {
    if (job_id === null) continue;
    const attachment = await lockAttachment(db, id);
    const job = await lockJob(db, { id: job_id });
    // Read before the lock was held: somebody may have replayed it meanwhile.
    if (!attachment || job?.state !== 'failed') continue;
    await replayLocked(db, attachment, job, { who: wish.askedBy, spacingMs: null });
    made += 1;
  }
  return made;
}
