/**
 * Attachments: accepting, reading, editing and deleting them.
 *
 * Accepting is step 1's one statement. Readers never see a tombstone, and whoever reads is compared in the statement
 * that reads: its owner, or a member of a chat in which a message that is not deleted carries it.
 */
import { isId } from '../ids.ts';
import type { Attachment } from '../pipeline/attachment.ts';
import type { Page } from '../pipeline/registry.ts';
import type { Acceptance, Arrival, Load, NewAttachment, Store } from '../pipeline/store.ts';
import { addCleanup } from './cleanups.ts';
import { cursorId, pageOf } from './cursor.ts';
import { type Db, type Pool, single, transaction } from './pool.ts';
import { idBeforeLastMinute } from './queue.ts';
import { onlyRow } from './rows.ts';
import { type AttachmentRow, attachmentColumns, toAttachment } from './shapes.ts';
import { nextTurn } from './turns.ts';

/**
 * The beginning of an upload on the database's clock, and what its user has under way.
 *
 * An upload is recent by `created_at`, the database's clock; its id finds the candidates by the owner's index. `offset 0` keeps
 * the planner to that, should there be an index of `created_at`: by such a one it read the uploads of all users.
 */
export async function arrive(pool: Pool, userId: string): Promise<Arrival> {
  const row = onlyRow(
    await single<{ now: Date; pending: number; lately: number }>(
      pool,
      `select now() as now,
         (
           select count(*)
           from jobs
           where owner_id = $1
             and state in ('queued', 'processing')
             and origin = 'upload'
             and not rebuild
         ) as pending,
         (
           select count(*)
           from (
             select created_at
             from jobs
             where owner_id = $1
               and id > ${idBeforeLastMinute}
               and origin = 'upload'
             offset 0
           ) candidates
           where created_at > now() - interval '1 minute'
         ) as lately`,
      [userId],
      { writes: false },
    ),
  );
  return { startedAt: row.now.toISOString(), pending: row.pending, lately: row.lately };
}

/** What the whole system has to do, for admission: asked once a second by every API process, so each figure comes from an index alone. */
export async function load(pool: Pool): Promise<Load> {
  const row = onlyRow(
    await single<{ queued: number; staging_bytes: number; last_minute: number; last_seconds: number }>(
      pool,
      `select
         (select count(*) from jobs where state = 'queued' and origin = 'upload' and not rebuild) as queued,
         (
           select coalesce(sum(size), 0)::bigint
           from attachments
           where staging_gone_at is null
             and state <> 'failed'
         ) as staging_bytes,
         count(*) as last_minute,
         count(*) filter (where finished_at > now() - interval '10 seconds') as last_seconds
       from jobs
       where finished_at > now() - interval '1 minute'`,
      [],
      { writes: false },
    ),
  );
  return {
    queued: row.queued,
    stagingBytes: row.staging_bytes,
    // A minute alone would call a service slow that began to work, after a rest, seconds ago.
    finishedPerSecond: Math.max(row.last_minute / 60, row.last_seconds / 10),
  };
}

/**
 * nothing → queued: attachment, job with its bell set, history and the answered key, all or nothing. Guard: the upload is
 * younger than `uploadMsMax`, and its key unanswered and held under its token.
 *
 * Sent again after an unknown outcome it makes nothing twice: the ids are the caller's, and the row that is there is the
 * answer. Rejects `StoreError`.
 */
export async function accept(pool: Pool, upload: NewAttachment): Promise<Acceptance> {
  const outcome = onlyRow(await single<AcceptRow>(pool, acceptSql, acceptValues(upload), { writes: true }));
  if (!outcome.accepted) {
    const before = await acceptedAttachment(pool, upload.ownerId, upload.id);
    if (before) return { kind: 'accepted', attachment: before };
    return { kind: outcome.in_time ? 'reservation_lost' : 'too_old' };
  }
  return { kind: 'accepted', attachment: toAttachment({ ...outcome, attempts: 0, variants: [] }) };
}

type AcceptRow = Omit<AttachmentRow, 'attempts' | 'variants'> & { in_time: boolean; accepted: boolean };

/** One statement, 1,570 commits a second from one client; BEGIN, three INSERTs and COMMIT made half of that. */
const acceptSql = `
  with in_time as materialized (
    select
    where $12::timestamptz > now() - $13::float8 * interval '1 millisecond'
  ),
  answered as (
    update idempotency_keys
    set fingerprint = $18,
        result_id = $1,
        expires_at = now() + $19::float8 * interval '1 millisecond'
    where user_id = $14
      and scope = $15
      and key = $16
      and token = $17
      and fingerprint is null
      and exists (select from in_time)
    returning token
  ),
  allowed as materialized (
    select
    from in_time
    where $17::uuid is null
       or exists (select from answered)
  ),
  attachment as (
    insert into attachments (id, owner_id, state, kind, file_name, content_type, size, sha256, alt, staging_key)
    select $1, $3, 'queued', $4, $5, $6, $7, $8, $9, $10
    from allowed
    on conflict (id) do nothing
    returning *
  ),
  job as (
    insert into jobs (id, attachment_id, owner_id, version, origin, state, ring_at, traceparent, turn)
    select $2, id, owner_id, $11, 'upload', 'queued', now(), $20,
      ${nextTurn({ owner: '$3', origin: "'upload'", spacingMs: '$21' })}
    from attachment
    returning id
  ),
  event as (
    insert into job_events (job_id, from_state, to_state, fence, who, reason)
    select id, null, 'queued', 0, 'api', 'accepted'
    from job
  )
  select exists (select from in_time) as in_time, attachment.id is not null as accepted, attachment.*
  from (select) one
  left join attachment on true`;

function acceptValues(upload: NewAttachment): readonly unknown[] {
  const { reservation } = upload;
  return [
    upload.id,
    upload.jobId,
    upload.ownerId,
    upload.kind,
    upload.fileName,
    upload.contentType,
    upload.size,
    upload.sha256,
    upload.alt,
    upload.stagingKey,
    upload.version,
    upload.startedAt,
    upload.uploadMsMax,
    reservation?.userId ?? null,
    reservation?.scope ?? null,
    reservation?.key ?? null,
    reservation?.token ?? null,
    reservation?.fingerprint ?? null,
    reservation?.keepMs ?? null,
    upload.traceparent,
    upload.spacingMs,
  ];
}

/** Guard: not deleted, and the user's own or carried by a living message of a chat in which the user is. */
export async function attachmentFor(pool: Pool, userId: string, id: string): Promise<Attachment | null> {
  if (!isId(id)) return null;
  const { rows } = await single<AttachmentRow>(
    pool,
    `select ${attachmentColumns}
     from attachments
     where attachments.id = $2
       and attachments.deleted_at is null
       and (
         attachments.owner_id = $1
         or exists (
           select
           from message_attachments
           join messages on messages.id = message_attachments.message_id
           join chat_members on chat_members.chat_id = messages.chat_id
           where message_attachments.attachment_id = attachments.id
             and messages.deleted_at is null
             and chat_members.user_id = $1
         )
       )`,
    [userId, id],
    { writes: false },
  );
  return rows[0] ? toAttachment(rows[0]) : null;
}

/** Guard: the owner's. The only reader of tombstones: what a key was answered with is answered again. */
export async function acceptedAttachment(pool: Pool, ownerId: string, id: string): Promise<Attachment | null> {
  const { rows } = await single<AttachmentRow>(
    pool,
    `select ${attachmentColumns}
     from attachments
     where attachments.id = $2
       and attachments.owner_id = $1`,
    [ownerId, id],
    { writes: false },
  );
  return rows[0] ? toAttachment(rows[0]) : null;
}

/** The owner's living attachments, newest first. */
export async function listAttachments(
  pool: Pool,
  ownerId: string,
  filter: Parameters<Store['listAttachments']>[1],
): Promise<Page<Attachment>> {
  const { rows } = await single<AttachmentRow>(
    pool,
    `select ${attachmentColumns}
     from attachments
     where attachments.owner_id = $1
       and attachments.deleted_at is null
       and ($2::text is null or attachments.state = $2)
       and ($3::uuid is null or attachments.id < $3)
     order by attachments.id desc
     limit $4`,
    [ownerId, filter.state, cursorId(filter.cursor), filter.limit + 1],
    { writes: false, replan: true },
  );
  return pageOf(rows.map(toAttachment), filter.limit);
}

/** Guard: owned and not deleted. */
export async function editAlt(pool: Pool, ownerId: string, id: string, alt: string | null): Promise<Attachment | null> {
  if (!isId(id)) return null;
  const { rows } = await single<AttachmentRow>(
    pool,
    `update attachments
     set alt = $3,
         updated_at = now()
     where attachments.id = $2
       and attachments.owner_id = $1
       and attachments.deleted_at is null
     returning ${attachmentColumns}`,
    [ownerId, id, alt],
    { writes: true },
  );
  return rows[0] ? toAttachment(rows[0]) : null;
}

/**
 * any state → tombstone, its unfinished jobs → cancelled. Guard: owned and not deleted. Locks attachment, then jobs.
 *
 * The whole folder goes to the clean-ups at once when no attempt runs, and once more after `graceMs`: a put that was on
 * its way may land late, from a running attempt or from one that died. Rejects `StoreError`.
 */
export function deleteAttachment(pool: Pool, ownerId: string, id: string, graceMs: number): Promise<boolean> {
  if (!isId(id)) return Promise.resolve(false);
  return transaction(pool, async (db) => {
    const { rows } = await db.query<{ staging_key: string }>(
      `select staging_key
       from attachments
       where id = $1
         and owner_id = $2
         and deleted_at is null
       for no key update`,
      [id, ownerId],
    );
    const [attachment] = rows;
    if (!attachment) return false;
    const running = await cancelJobs(db, id);
    await db.query(
      `update attachments
       set deleted_at = now(),
           staging_gone_at = coalesce(staging_gone_at, now()),
           updated_at = now()
       where id = $1`,
      [id],
    );
    await db.query('delete from variants where attachment_id = $1', [id]);
    const folder = `attachments/${id}/`;
    await addCleanup(db, { key: attachment.staging_key, afterMs: 0, passes: 0, reason: 'deleted' });
    if (!running) await addCleanup(db, { key: folder, afterMs: 0, passes: 0, reason: 'deleted' });
    await addCleanup(db, { key: folder, afterMs: graceMs, passes: 1, reason: 'deleted' });
    return true;
  });
}

/** queued, processing → cancelled. Answers whether one of them was processing. Guard: the attachment is locked. */
async function cancelJobs(db: Db, attachmentId: string): Promise<boolean> {
  const { rows } = await db.query<{ from_state: string }>(
    `with unfinished as materialized (
       select id, state
       from jobs
       where attachment_id = $1
         and state in ('queued', 'processing')
       order by id
       for no key update
     ),
     job as (
       update jobs
       set state = 'cancelled',
           rebuild = false,
           lease_until = null,
           ring_at = null,
           rung_at = null,
           updated_at = now(),
           finished_at = now()
       from unfinished
       where jobs.id = unfinished.id
       returning jobs.id, jobs.fence, unfinished.state as from_state
     ),
     event as (
       insert into job_events (job_id, from_state, to_state, fence, who, reason)
       select id, from_state, 'cancelled', fence, 'owner', 'cancelled'
       from job
     )
     select from_state
     from job`,
    [attachmentId],
  );
  return rows.some((row) => row.from_state === 'processing');
}
