/**
 * New generations of a finished job: a failed one is replayed, a succeeded one makes lost variants anew.
 *
 * A generation is another chance for the same row, never a second row. Failures, strikes, crashes and releases start at
 * zero; `attempts`, `rings` and `fence` go on, because message ids, keys and the guards of zombies are made of them.
 * Like every transition that touches both, these lock the attachment first and the job second.
 */
import { isId } from '../ids.ts';
import type { Kind } from '../pipeline/attachment.ts';
import type { JobState } from '../pipeline/job.ts';
import type { Rebuild, Registry, Replay } from '../pipeline/registry.ts';
import { setAttachmentState } from './claims.ts';
import type { JobReason } from './history.ts';
import { type Db, type Pool, transaction } from './pool.ts';
import { toAttachmentState, toJobState, toKind } from './shapes.ts';
import { nextTurn } from './turns.ts';

/** What a new generation did, and the attachment whose state it changed, or null. */
export interface Begun<Kind> {
  readonly kind: Kind;
  readonly changed: string | null;
}

/**
 * failed → queued (`replayed`), and with it the attachment of a first version. Guard: failed, not deleted, nothing at
 * least as new published, and the source still there: staging for a first version, else the published original. The job
 * of a rebuild that failed is a rebuild again. Rejects `StoreError`.
 */
export function replay(pool: Pool, jobId: string, options: Parameters<Registry['replay']>[1]): Promise<Begun<Replay>> {
  if (!isId(jobId)) return Promise.resolve({ kind: 'not_found', changed: null });
  return transaction(pool, async (db) => {
    const attachment = await lockAttachment(db, await attachmentOf(db, jobId));
    if (!attachment) return { kind: 'not_found', changed: null };
    const job = await lockJob(db, { id: jobId });
    if (!job) throw new Error(`Expected the job ${jobId}, which is never removed, received none`);
    const refusal = refuseReplay(attachment, job);
    if (refusal) return { kind: refusal, changed: null };
    return { kind: 'replayed', changed: await replayLocked(db, attachment, job, options) };
  });
}

function refuseReplay(attachment: LockedAttachment, job: LockedJob): Exclude<Replay, 'replayed' | 'not_found'> | null {
  if (attachment.deleted) return 'job_ended';
  if (job.state === 'succeeded') return 'already_succeeded';
  if (job.state === 'queued' || job.state === 'processing') return 'job_unfinished';
  if (job.state !== 'failed' || attachment.version > job.version) return 'job_ended';
  return attachment.sourceGone ? 'staging_gone' : null;
}

/**
 * failed → queued, for whoever holds both locks and has seen that it may be. Its turn is `spacingMs` after the last of
 * its owner's, as on accept; null: now. Answers the attachment whose state it changed, or null.
 */
export async function replayLocked(
  db: Db,
  attachment: LockedAttachment,
  job: LockedJob,
  { who, spacingMs }: { who: string; spacingMs: number | null },
): Promise<string | null> {
  const rebuild = attachment.version === job.version;
  await beginGeneration(db, job, { reason: 'replayed', who, spacingMs, rebuild });
  if (attachment.version > 0) return null;
  await setAttachmentState(db, attachment.id, 'queued', null);
  return attachment.id;
}

/**
 * succeeded → queued (`rebuilding`), also failed → queued where an earlier rebuild failed. The attachment stays ready with
 * its rows until the settle replaces them. Guard: ready, not deleted, and `keys` are those of its variants, in any order.
 */
export function rebuild(
  pool: Pool,
  attachmentId: string,
  { keys, who }: Parameters<Registry['rebuild']>[1],
): Promise<Rebuild> {
  return transaction(pool, async (db) => {
    const attachment = await lockAttachment(db, attachmentId);
    if (!attachment || attachment.deleted) return 'not_found';
    if (attachment.state !== 'ready') return 'not_ready';
    const job = await lockJob(db, { attachmentId, version: attachment.version });
    if (job?.state === 'queued' || job?.state === 'processing') return 'job_unfinished';
    const current = await db.query<{ key: string }>('select key from variants where attachment_id = $1', [
      attachmentId,
    ]);
    if (
      !sameSet(
        keys,
        current.rows.map((row) => row.key),
      )
    )
      return 'changed';
    if (job?.state !== 'succeeded' && job?.state !== 'failed') {
      throw new Error(`Expected an ended job of the published version of ${attachmentId}, received ${job?.state}`);
    }
    await beginGeneration(db, job, { reason: 'rebuilding', who, spacingMs: null, rebuild: true });
    return 'rebuilding';
  });
}

function sameSet(some: readonly string[], others: readonly string[]): boolean {
  const set = new Set(some);
  return set.size === others.length && others.every((one) => set.has(one));
}

export interface LockedAttachment {
  readonly id: string;
  readonly ownerId: string;
  readonly state: string;
  readonly kind: Kind;
  /** What is published now, 0 for nothing. */
  readonly version: number;
  readonly deleted: boolean;
  /** Nothing is left to render from. */
  readonly sourceGone: boolean;
}

/** Locks the attachment against every transition. Null for an unknown or malformed id. */
export async function lockAttachment(db: Db, id: string | null): Promise<LockedAttachment | null> {
  if (!isId(id)) return null;
  const { rows } = await db.query<{
    id: string;
    owner_id: string;
    state: string;
    kind: string;
    pipeline_version: number;
    deleted: boolean;
    source_gone: boolean;
  }>(
    `select id, owner_id, state, kind, pipeline_version, deleted_at is not null as deleted,
       original_key is null and staging_gone_at is not null as source_gone
     from attachments
     where id = $1
     for no key update`,
    [id],
  );
  const [row] = rows;
  if (!row) return null;
  return {
    id: row.id,
    ownerId: row.owner_id,
    state: toAttachmentState(row.state),
    kind: toKind(row.kind),
    version: row.pipeline_version,
    deleted: row.deleted,
    sourceGone: row.source_gone,
  };
}

/** Which attachment a job is of never changes, so it needs no lock. */
async function attachmentOf(db: Db, jobId: string): Promise<string | null> {
  const { rows } = await db.query<{ attachment_id: string }>('select attachment_id from jobs where id = $1', [jobId]);
  return rows[0]?.attachment_id ?? null;
}

export interface LockedJob {
  readonly id: string;
  readonly version: number;
  readonly state: JobState;
}

/** By its id, or as the one of an attachment and version. Guard: the attachment is locked. */
export async function lockJob(
  db: Db,
  name: { id: string } | { attachmentId: string; version: number },
): Promise<LockedJob | null> {
  const { rows } = await db.query<{ id: string; version: number; state: string }>(
    `select id, version, state
     from jobs
     where id = $1
        or (attachment_id = $2 and version = $3)
     for no key update`,
    'id' in name ? [name.id, null, null] : [null, name.attachmentId, name.version],
  );
  const [row] = rows;
  return row ? { id: row.id, version: row.version, state: toJobState(row.state) } : null;
}

/** finished → queued, with the bell set to now. Guard: locked, and seen to be in a state that `reason` may leave. */
async function beginGeneration(
  db: Db,
  job: LockedJob,
  options: { reason: JobReason & ('replayed' | 'rebuilding'); who: string; spacingMs: number | null; rebuild: boolean },
): Promise<void> {
  await db.query(
    `with job as (
       update jobs
       set state = 'queued',
           generation = generation + 1,
           rebuild = $5,
           failures = 0,
           strikes = 0,
           crashes = 0,
           releases = 0,
           confirmed = 0,
           error_code = null,
           error_detail = null,
           not_before = now(),
           ring_at = now(),
           rung_at = null,
           turn = case
             when $6::float8 is null then now()
             else ${nextTurn({ owner: 'jobs.owner_id', origin: 'jobs.origin', spacingMs: '$6' })}
           end,
           updated_at = now(),
           finished_at = null
       where id = $1
       returning id, fence
     )
     insert into job_events (job_id, from_state, to_state, fence, who, reason)
     select id, $2, 'queued', fence, $4, $3
     from job`,
    [job.id, job.state, options.reason, options.who, options.rebuild, options.spacingMs],
  );
}
