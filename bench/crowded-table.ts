/**
 * A database in which so many uploads have happened: rows made by SQL, as the product leaves them.
 *
 * Of the jobs one in ten waits, at most a full backlog (`MAX_BACKLOG`), as if they had come ten a second until now; four are being worked
 * on; all others ended over the last 30 days, 96 % succeeded, 2 % failed and 2 % cancelled with their attachment. There is an owner for
 * every 50 jobs, at most 2,000: each has five jobs waiting, whatever the size, because that is another matter than the table's size.
 */
import type { Db, Pool } from '../src/postgres/pool.ts';

const jobsPerOwner = 50;
const ownersMax = 2_000;
const backlogMax = 10_000;
const processing = 4;
const chunk = 20_000;

/** Ids of those who own the uploads. Takes about four minutes for a million. */
export async function fillTable(pool: Pool, jobs: number, say: (line: string) => void): Promise<readonly string[]> {
  const owners = await addOwners(pool, Math.min(ownersMax, jobs / jobsPerOwner));
  const client = await pool.connect();
  try {
    // The rows are right by their making: neither foreign keys nor the disk are asked for each.
    await client.query('set session_replication_role = replica');
    await client.query('set synchronous_commit = off');
    await client.query('set statement_timeout = 0');
    for (let from = 1; from <= jobs; from += chunk) {
      await addRows(client, { from, to: Math.min(jobs, from + chunk - 1), jobs, owners });
      if (from % (5 * chunk) === 1 && jobs > chunk)
        say(`${Math.min(jobs, from + chunk - 1)} of ${jobs} jobs are in the table`);
    }
  } finally {
    client.release(true);
  }
  return owners;
}

async function addOwners(pool: Pool, count: number): Promise<readonly string[]> {
  const { rows } = await pool.query<{ id: string }>(
    `insert into users (id, handle, password_hash, role)
     select gen_random_uuid(), 'owner' || n, 'x', 'user'
     from generate_series(1, $1::int) n
     returning id`,
    [count],
  );
  return rows.map(({ id }) => id);
}

interface Chunk {
  readonly from: number;
  readonly to: number;
  readonly jobs: number;
  readonly owners: readonly string[];
}

/** Job number 1 is the oldest. Ids are UUIDv7 of the time of creation; what is random in them is a digest of the number. */
async function addRows(db: Db, { from, to, jobs, owners }: Chunk): Promise<void> {
  const waiting = Math.min(Math.round(jobs / 10), backlogMax);
  await db.query(
    `with made as materialized (
       select n,
         ($5::uuid[])[1 + n % cardinality($5::uuid[])] as owner_id,
         case
           when n > $3::int - $4::int then now() - ($3::int - n) * interval '100 milliseconds'
           else now() - interval '30 days' + (interval '30 days' - interval '20 minutes') * n / $3::int
         end as created_at,
         case
           when n > $3::int - $4::int then 'queued'
           when n > $3::int - $4::int - $6::int then 'processing'
           when n % 47 = 1 then 'failed'
           when n % 47 = 2 then 'cancelled'
           else 'succeeded'
         end as state
       from generate_series($1::int, $2::int) n
     ),
     named as materialized (
       select *,
         lpad(to_hex((extract(epoch from created_at) * 1000)::bigint), 12, '0') || '7' as time,
         md5('attachment' || n) as one,
         md5('job' || n) as other
       from made
     ),
     upload as materialized (
       select *,
         (time || substr(one, 1, 3) || '8' || substr(one, 4, 15))::uuid as attachment_id,
         (time || substr(other, 1, 3) || '8' || substr(other, 4, 15))::uuid as job_id,
         other::uuid as attempt_id
       from named
     ),
     ${attachmentRows},
     ${jobRows},
     ${variantRows},
     ${eventRows}
     select count(*)
     from upload`,
    [from, to, jobs, waiting, owners, processing],
  );
}

const attachmentRows = `
  attachment as (
    insert into attachments (
      id, owner_id, state, kind, file_name, content_type, size, sha256, width, height, frames, placeholder, pipeline_version, error_code,
      staging_key, staging_gone_at, original_key, created_at, updated_at, ready_at, deleted_at
    )
    select attachment_id, owner_id,
      case state when 'succeeded' then 'ready' when 'cancelled' then 'queued' else state end,
      'image', 'IMG_' || n || '.jpg', 'image/jpeg', 100000 + n % 5000000, one || other,
      case when state = 'succeeded' then 4032 end, case when state = 'succeeded' then 3024 end,
      case when state = 'succeeded' then 1 end, case when state = 'succeeded' then '1QcSHQRnh493V4dIh4eXh1h4kJUI' end,
      case when state = 'succeeded' then 1 else 0 end,
      case when state = 'failed' then 'corrupt_image' end,
      'staging/' || attachment_id,
      case when state in ('succeeded', 'cancelled') or (state = 'failed' and created_at < now() - interval '7 days') then created_at end,
      case when state = 'succeeded' then 'attachments/' || attachment_id || '/v1.1-' || attempt_id || '/original.jpg' end,
      created_at, created_at,
      case when state = 'succeeded' then created_at + interval '2 seconds' end,
      case when state = 'cancelled' then created_at end
    from upload
  )`;

const jobRows = `
  job as (
    insert into jobs (
      id, attachment_id, owner_id, version, state, ring_at, rings, fence, attempt_id, worker, attempts, lease_until, error_code,
      waited_ms, created_at, updated_at, claimed_at, finished_at, turn
    )
    select job_id, attachment_id, owner_id, 1, state,
      case state when 'queued' then created_at when 'processing' then now() + interval '1 day' end,
      case when state = 'queued' then 0 else 1 end,
      case when state = 'queued' then 0 else 1 end,
      case when state <> 'queued' then attempt_id end,
      case when state <> 'queued' then 'worker-1' end,
      case when state = 'queued' then 0 else 1 end,
      case when state = 'processing' then now() + interval '1 day' end,
      case when state = 'failed' then 'corrupt_image' end,
      case when state <> 'queued' then 20 end,
      created_at, created_at,
      case when state <> 'queued' then created_at + interval '1 second' end,
      case when state not in ('queued', 'processing') then created_at + interval '2 seconds' end,
      created_at
    from upload
  )`;

const variantRows = `
  variant as (
    insert into variants (attachment_id, name, pipeline_version, content_type, width, height, size, sha256, key)
    select attachment_id, name, 1, 'image/jpeg', 256, 192, 9000 + n % 1000, other || one,
      'attachments/' || attachment_id || '/v1.1-' || attempt_id || '/' || name || '.jpg'
    from upload
    cross join unnest(array['thumbnail', 'crop', 'optimized']) name
    where state = 'succeeded'
    order by n, name
  )`;

const eventRows = `
  event as (
    insert into job_events (job_id, at, from_state, to_state, fence, who, reason)
    select job_id, created_at, step.from_state, step.to_state, step.fence, step.who, step.reason
    from upload
    cross join lateral (
      values (null, 'queued', 0, 'api', 'accepted'),
        ('queued', 'processing', 1, 'worker-1', 'claimed'),
        ('processing', state, 1, 'worker-1', case state when 'succeeded' then 'settled' else state end)
    ) step (from_state, to_state, fence, who, reason)
    where step.fence = 0
       or (state <> 'queued' and step.reason = 'claimed')
       or state not in ('queued', 'processing')
  )`;
