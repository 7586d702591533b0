/**
 * Claims of jobs: beginning an attempt, prolonging its lease, reading it back.
 *
 * A claim locks the attachment first and the job second, like every transition that touches both. Waiting for either
 * lock can only make its `now()`, the start of the transaction, too early: a lease that ended meanwhile counts as
 * running, and the bell rings again.
 *
 * Nearly every claim is of a queued job that is due, and is done by one statement, which serves all claims that came while the one
 * before it was under way. What that one finds nothing to do for is looked at again from the start, lock by lock, which also tells
 * why it is refused.
 */
import { inBatches } from '../batches.ts';
import { attemptPrefix } from '../pipeline/attachment.ts';
import type { Attempt } from '../pipeline/job.ts';
import type { AttemptTrace, ClaimResult, Store } from '../pipeline/store.ts';
import { addCleanup } from './cleanups.ts';
import { anyPlace, committing, type Db, ownStatement, type Pool, single, transaction } from './pool.ts';
import { onlyRow } from './rows.ts';
import { type ClaimRow, toClaim, toJobState } from './shapes.ts';

type Request = Parameters<Store['claim']>[0];

export interface Claimed {
  readonly result: ClaimResult;
  /** The attachment whose state this claim changed, or null. */
  readonly changed: string | null;
}

/**
 * Begins an attempt, or says why not. Guard: `queued` and `not_before` over, or `processing` and `lease_until` over (the
 * attempt before died: `crashes + 1`, its prefix to the clean-ups), and the recipe of the job's version in `versions`.
 * A crash that spends the budget fails the job instead. Rejects `StoreError`.
 */
export function createClaim(pool: Pool): (request: Request) => Promise<Claimed> {
  const begin = inBatches((requests: readonly Request[]) => beginQueued(committing(pool), requests), ownStatement);
  return async (request) => {
    const row = await begin(request);
    // Read here: a row that this build cannot read is the fault of its own call, and not of the others in its batch.
    return row ? asClaimed(row) : await transaction(pool, (db) => claimLocked(db, request));
  };
}

async function claimLocked(db: Db, request: Request): Promise<Claimed> {
  const job = await lockJob(db, request.jobId);
  const refused = (reason: Extract<ClaimResult, { kind: 'refused' }>['reason'], changed: string | null = null) => ({
    result: { kind: 'refused', reason } as const,
    changed,
  });
  if (!job) return refused('finished');
  const state = toJobState(job.state);
  if (state !== 'queued' && state !== 'processing') return refused('finished');
  if (state === 'queued' && !job.may_begin) return refused('not_yet');
  if (state === 'processing' && !job.lease_over) return refused('leased');
  if (!request.versions.includes(job.version)) {
    await postpone(db, job.id, request.unsupportedMs);
    return refused('unsupported');
  }
  if (state === 'queued') {
    const [begun] = await beginQueued(db, [request]);
    if (!begun) throw new Error(`Expected the locked and due job ${job.id} to begin, received none`);
    return asClaimed(begun);
  }
  await cleanDeadAttempt(db, job, request.graceMs);
  if (job.crashes + 1 >= request.budgets.crashesMax) {
    const first = job.pipeline_version === 0 ? job.attachment_id : null;
    await exhaust(db, job.id, request.worker);
    if (first) await setAttachmentState(db, first, 'failed', 'worker_lost');
    return refused('exhausted', first);
  }
  const row = await beginCrashed(db, request);
  const waited = { dueMs: job.due_ms ?? 0, acceptedMs: job.accepted_ms };
  return { result: { kind: 'claimed', claim: toClaim(row), waited }, changed: null };
}

interface LockedJob {
  id: string;
  attachment_id: string;
  state: string;
  version: number;
  fence: number;
  attempt_id: string | null;
  crashes: number;
  may_begin: boolean;
  lease_over: boolean | null;
  /** Since its lease ended, below 0 before that; null: it has none. */
  due_ms: number | null;
  pipeline_version: number;
  accepted_ms: number;
}

/** Two statements, because the order of locks inside one is the planner's. A job never changes its attachment. */
async function lockJob(db: Db, jobId: string): Promise<LockedJob | null> {
  const attachment = await db.query<{ pipeline_version: number; accepted_ms: number }>(
    `select pipeline_version,
       (extract(epoch from now() - created_at) * 1000)::float8 as accepted_ms
     from attachments
     where id = (select attachment_id from jobs where id = $1)
     for no key update`,
    [jobId],
  );
  const [locked] = attachment.rows;
  if (!locked) return null;
  const job = await db.query<Omit<LockedJob, 'pipeline_version' | 'accepted_ms'>>(
    `select id, attachment_id, state, version, fence, attempt_id, crashes,
       not_before <= now() as may_begin,
       lease_until <= now() as lease_over,
       (extract(epoch from now() - lease_until) * 1000)::float8 as due_ms
     from jobs
     where id = $1
     for no key update`,
    [jobId],
  );
  return { ...onlyRow(job), ...locked };
}

/** No transition: the job waits for a build with its recipe, and its place in the window goes to another. */
async function postpone(db: Db, jobId: string, unsupportedMs: number): Promise<void> {
  await db.query(
    `update jobs
     set ring_at = now() + $2 * interval '1 millisecond',
         rung_at = null
     where id = $1`,
    [jobId, unsupportedMs],
  );
}

async function cleanDeadAttempt(db: Db, job: LockedJob, graceMs: number): Promise<void> {
  if (job.attempt_id === null) throw new Error(`Expected an attempt of the processing job ${job.id}, received none`);
  const key = attemptPrefix(job.attachment_id, job.version, job.fence, job.attempt_id);
  await addCleanup(db, { key, afterMs: graceMs, passes: 1, reason: 'crashed' });
}

/** processing → failed (`exhausted`). Guard: locked and seen to be processing with its lease over. */
async function exhaust(db: Db, jobId: string, worker: string): Promise<void> {
  await db.query(
    `with job as (
       update jobs
       set state = 'failed',
           rebuild = false,
           crashes = crashes + 1,
           lease_until = null,
           ring_at = null,
           rung_at = null,
           error_code = 'worker_lost',
           error_detail = 'the lease of ' || coalesce(worker, 'an unnamed worker') || ' ended without a word',
           updated_at = now(),
           finished_at = now()
       where id = $1
       returning id, fence, error_detail
     )
     insert into job_events (job_id, from_state, to_state, fence, who, reason, code, detail)
     select id, 'processing', 'failed', fence, $2, 'exhausted', 'worker_lost', error_detail
     from job`,
    [jobId, worker],
  );
}

/** What a claim makes of a job, of the row `request`. */
const begun = `
  state = 'processing',
  fence = fence + 1,
  attempt_id = request.attempt_id,
  worker = request.worker,
  attempts = attempts + 1,
  confirmed = 0,
  lease_until = now() + request.lease_ms * interval '1 millisecond',
  ring_at = now() + (request.lease_ms + request.margin_ms) * interval '1 millisecond',
  waited_ms = case
    when rung_at is not null
    then greatest(0, least(extract(epoch from now() - rung_at) * 1000, 2147483647))::int
  end,
  rung_at = null,
  claimed_at = now(),
  updated_at = now()`;

/** What a worker needs to know, of the row `job` and of one with the attachment's columns. */
const claimColumns = (attachment: string) => `
  job.id as job_id, job.attachment_id, job.version, job.fence, job.attempt_id, job.failures, job.crashes,
  job.traceparent, ${attachment}.kind, ${attachment}.content_type, ${attachment}.size, ${attachment}.sha256,
  ${attachment}.staging_key, ${attachment}.original_key`;

/**
 * queued → processing (`claimed`), and with it the attachment of a first version, for each request by itself. Null: its guard does
 * not hold, or did not hold when the statement began, or its attachment is locked; nothing is written for it. Guard: `queued`,
 * `not_before` over, and a recipe for its version.
 *
 * The order of locks is that of the data: no row of `jobs` is updated before a row of the CTE `request` is there, and
 * none is there before its attachment is locked. Whoever changed the job while this waited for it has committed by then, and
 * READ COMMITTED looks at the guard again with the row as it is now: a job that was claimed, cancelled or put off
 * meanwhile is not updated. The attachment's row is the locked one, which nobody changes any more, and what is set of the
 * job is computed from the newest row. A job that came to be claimable meanwhile is not seen: the caller looks again.
 *
 * No circle of waiting, although it locks many: it never waits for an attachment, and who holds the lock of a job but not of its attachment
 * waits for nothing. Of several requests for one job one gets it.
 */
async function beginQueued(db: Db, requests: readonly Request[]): Promise<readonly (BegunRow | null)[]> {
  const { rows } = await db.query<BegunRow>(
    `with asked as materialized (
       select *
       from unnest($1::uuid[], $2::uuid[], $3::text[], $4::float8[], $5::float8[], $6::text[])
         with ordinality as asked (job_id, attempt_id, worker, lease_ms, margin_ms, versions, n)
       where n ${anyPlace}
     ),
     request as materialized (
       select asked.*, attachment.*
       from asked
       cross join lateral (
         select id as attachment_id, pipeline_version, kind, content_type, size, sha256, staging_key, original_key,
           created_at as accepted_at
         from attachments
         where id = (select attachment_id from jobs where id = asked.job_id)
         for no key update skip locked
       ) attachment
     ),
     job as (
       update jobs
       set ${begun}
       from request
       where jobs.id = request.job_id
         and jobs.attachment_id = request.attachment_id
         and jobs.state = 'queued'
         and jobs.not_before <= now()
         and jobs.version = any(request.versions::int[])
       returning jobs.*, request.pipeline_version
     ),
     moved as (
       update attachments
       set state = 'processing',
           error_code = null,
           updated_at = now()
       from job
       where attachments.id = job.attachment_id
         -- Of the locked row: asked of the table itself, the planner may read all of it for those with nothing published.
         and job.pipeline_version = 0
       returning attachments.id
     ),
     event as (
       insert into job_events (job_id, from_state, to_state, fence, who, reason)
       select id, 'queued', 'processing', fence, worker, 'claimed'
       from job
     )
     select ${claimColumns('request')},
       (extract(epoch from now() - job.not_before) * 1000)::float8 as due_ms,
       (extract(epoch from now() - request.accepted_at) * 1000)::float8 as accepted_ms,
       exists (select from moved where moved.id = job.attachment_id) as moved
     from job
     join request on request.job_id = job.id and request.attempt_id = job.attempt_id`,
    [
      requests.map(({ jobId }) => jobId),
      requests.map(({ attemptId }) => attemptId),
      requests.map(({ worker }) => worker),
      requests.map(({ leaseMs }) => leaseMs),
      requests.map(({ marginMs }) => marginMs),
      requests.map(({ versions }) => `{${versions.join()}}`),
    ],
  );
  const byAttempt = new Map(rows.map((row) => [row.attempt_id, row]));
  return requests.map(({ attemptId }) => byAttempt.get(attemptId) ?? null);
}

type BegunRow = ClaimRow & { readonly due_ms: number; readonly accepted_ms: number; readonly moved: boolean };

function asClaimed(row: BegunRow): Claimed {
  const waited = { dueMs: row.due_ms, acceptedMs: row.accepted_ms };
  return { result: { kind: 'claimed', claim: toClaim(row), waited }, changed: row.moved ? row.attachment_id : null };
}

/** processing → processing (`crashed`). Guard: locked and seen to be claimable. */
async function beginCrashed(db: Db, request: Request): Promise<ClaimRow> {
  return onlyRow(
    await db.query<ClaimRow>(
      `with request as (
         select $2::uuid as attempt_id, $3::text as worker, $4::float8 as lease_ms, $5::float8 as margin_ms
       ),
       job as (
         update jobs
         set ${begun},
             crashes = crashes + 1
         from request
         where id = $1
         returning jobs.*
       ),
       event as (
         insert into job_events (job_id, from_state, to_state, fence, who, reason)
         select id, 'processing', 'processing', fence, worker, 'crashed'
         from job
       )
       select ${claimColumns('attachment')}
       from job
       join attachments as attachment on attachment.id = job.attachment_id`,
      [request.jobId, request.attemptId, request.worker, request.leaseMs, request.marginMs],
    ),
  );
}

/** Moves the attachment of a first version along with its job. Guard: locked, and nothing published yet. */
export async function setAttachmentState(
  db: Db,
  id: string,
  state: 'queued' | 'failed',
  errorCode: string | null,
): Promise<void> {
  await db.query(
    `update attachments
     set state = $2,
         error_code = $3,
         updated_at = now()
     where id = $1
       and pipeline_version = 0`,
    [id, state, errorCode],
  );
}

/**
 * Prolongs a lease. Guard: fence, attempt id, `processing`; one that ended and that nobody claimed yet is still its
 * holder's. False: the lease is lost. Rejects `StoreError`.
 */
export async function renew(
  pool: Pool,
  attempt: Attempt,
  options: { leaseMs: number; marginMs: number },
): Promise<boolean> {
  const { rowCount } = await single(
    pool,
    `update jobs
     set lease_until = now() + $4 * interval '1 millisecond',
         ring_at = now() + ($4 + $5) * interval '1 millisecond',
         rung_at = null
     where id = $1
       and fence = $2
       and attempt_id = $3
       and state = 'processing'`,
    [attempt.jobId, attempt.fence, attempt.attemptId, options.leaseMs, options.marginMs],
    { writes: true },
  );
  return rowCount === 1;
}

/** What became of an attempt whose last write had an unknown outcome. `lost`: another attempt came after it, or it never began. */
export async function readAttempt(pool: Pool, jobId: string, attemptId: string): Promise<AttemptTrace> {
  const { rows } = await single<ClaimRow & { state: string }>(
    pool,
    `select jobs.state, jobs.id as job_id, jobs.attachment_id, jobs.version, jobs.fence, jobs.attempt_id, jobs.failures,
       jobs.crashes, jobs.traceparent, attachments.kind, attachments.content_type, attachments.size,
       attachments.sha256, attachments.staging_key, attachments.original_key
     from jobs
     join attachments on attachments.id = jobs.attachment_id
     where jobs.id = $1
       and jobs.attempt_id = $2`,
    [jobId, attemptId],
    { writes: false },
  );
  const [row] = rows;
  if (!row) return { kind: 'lost' };
  const jobState = toJobState(row.state);
  return jobState === 'processing' ? { kind: 'running', claim: toClaim(row) } : { kind: 'ended', jobState };
}
