/**
 * The ends of an attempt: settled, failed or released, in one transaction each.
 *
 * All of them hold the same guard, in `lockAttempt` and for a first version in `publishFirst`: fence, attempt id and
 * `processing`, compared under the locks of attachment and job, in this order. Where it does not hold nothing is written, except that the objects of an attempt
 * which ended with its attachment's deletion go to the clean-ups.
 */
import { inBatches } from '../batches.ts';
import { type Code, catalogue, SkrepkaError } from '../errors.ts';
import { attemptPrefix } from '../pipeline/attachment.ts';
import { type Attempt, endsJob } from '../pipeline/job.ts';
import type { Failed, Result, Settled, Store } from '../pipeline/store.ts';
import { setAttachmentState } from './claims.ts';
import { addCleanup } from './cleanups.ts';
import type { JobReason } from './history.ts';
import { committing, type Db, ownStatement, type Pool, transaction } from './pool.ts';
import { type Publication, publishFirst, replace } from './publication.ts';

/** What an end did, and whether the attachment's state changed. */
export interface End<Kind> {
  readonly kind: Kind;
  readonly changed: boolean;
}

/**
 * processing → succeeded: the attachment shows this version from the commit on. processing → superseded where a version
 * at least as new is published. Guard: see above; not deleted; `pipeline_version < version` or, for a rebuild, equal: it
 * replaces the set of the very version that is published. A first version is published by one statement; what that finds
 * nothing to do for is looked at again from the start, lock by lock. Rejects `StoreError`; an `internal` error when the
 * result does not fit the attempt, an impossible state.
 */
export function createSettle(pool: Pool) {
  const publish = inBatches(
    (publications: readonly Publication[]) => publishFirst(committing(pool), publications),
    ownStatement,
  );
  return async (attempt: Attempt, result: Result, options: Parameters<Store['settle']>[2]): Promise<End<Settled>> => {
    assertOwnKeys(attempt, result);
    if (result.originalKey !== null && (await publish({ attempt, result, who: options.who }))) {
      return { kind: 'ready', changed: true };
    }
    return await transaction(pool, (db) => settleLocked(db, attempt, result, options));
  };
}

async function settleLocked(
  db: Db,
  attempt: Attempt,
  result: Result,
  options: Parameters<Store['settle']>[2],
): Promise<End<Settled>> {
  const held = await lockAttempt(db, attempt);
  if (held.kind === 'cancelled') await cleanAttempt(db, attempt, options.graceMs, 'cancelled');
  if (held.kind !== 'held') return { kind: held.kind, changed: false };
  if (held.rebuild ? held.pipelineVersion > held.version : held.pipelineVersion >= held.version) {
    await endJob(db, attempt, 'superseded', 'superseded', options.who, null);
    await cleanAttempt(db, attempt, options.graceMs, 'superseded');
    return { kind: 'superseded', changed: false };
  }
  if (held.originalKey === null) {
    await publishLocked(db, attempt, result, options.who);
  } else {
    await replace(db, attempt, result, { version: held.version, replacedMs: options.replacedMs });
    await endJob(db, attempt, 'succeeded', 'settled', options.who, null);
  }
  return { kind: 'ready', changed: true };
}

/** Nothing is published yet, seen under both locks, so nothing keeps a first result from it but itself. */
async function publishLocked(db: Db, attempt: Attempt, result: Result, who: string): Promise<void> {
  const [done] = result.originalKey === null ? [] : await publishFirst(db, [{ attempt, result, who }]);
  if (done) return;
  throw new SkrepkaError('internal', { log: `Expected an original in the first result of ${attempt.attachmentId}` });
}

/**
 * processing → failed where the failure ends the job, else → queued (`retried`). `failures + 1`, and `strikes + 1` for a
 * code that is permanent from its second occurrence on. Only a first version takes its attachment along; staging is kept.
 */
export function fail(
  pool: Pool,
  attempt: Attempt,
  failure: { code: Code; detail: string; retryMs: number },
  options: Parameters<Store['fail']>[2],
): Promise<End<Failed>> {
  return transaction(pool, async (db) => {
    const held = await lockAttempt(db, attempt);
    if (held.kind === 'lost') return { kind: 'lost', changed: false };
    await cleanAttempt(db, attempt, options.graceMs, held.kind === 'held' ? 'failed' : 'cancelled');
    if (held.kind === 'cancelled') return { kind: 'cancelled', changed: false };
    const strikes = held.strikes + (catalogue[failure.code].fate === 'twice' ? 1 : 0);
    await countFailure(db, attempt, strikes, failure);
    const first = held.pipelineVersion === 0;
    const why = { code: failure.code, detail: failure.detail };
    if (endsJob(failure.code, held.failures + 1, strikes, options.budgets)) {
      await endJob(db, attempt, 'failed', 'failed', options.who, why);
      if (first) await setAttachmentState(db, attempt.attachmentId, 'failed', failure.code);
      return { kind: 'failed', changed: first };
    }
    await requeue(db, attempt, 'retried', failure.retryMs, options.who, why);
    if (first) await setAttachmentState(db, attempt.attachmentId, 'queued', null);
    return { kind: 'retried', changed: first };
  });
}

/** processing → queued (`released`): `releases + 1`, no failure, claimable after `delayMs`. */
export function release(
  pool: Pool,
  attempt: Attempt,
  options: Parameters<Store['release']>[1],
): Promise<End<'released' | 'cancelled' | 'lost'>> {
  return transaction(pool, async (db) => {
    const held = await lockAttempt(db, attempt);
    if (held.kind === 'lost') return { kind: 'lost', changed: false };
    await cleanAttempt(db, attempt, options.graceMs, held.kind === 'held' ? 'released' : 'cancelled');
    if (held.kind === 'cancelled') return { kind: 'cancelled', changed: false };
    await requeue(db, attempt, 'released', options.delayMs, options.who, { code: null, detail: options.reason });
    const first = held.pipelineVersion === 0;
    if (first) await setAttachmentState(db, attempt.attachmentId, 'queued', null);
    return { kind: 'released', changed: first };
  });
}

interface Held {
  readonly kind: 'held';
  readonly version: number;
  readonly rebuild: boolean;
  readonly failures: number;
  readonly strikes: number;
  /** Of the attachment: what is published now, 0 for nothing. */
  readonly pipelineVersion: number;
  readonly originalKey: string | null;
}

/**
 * The guard of every end, under the locks of attachment, then job. The state alone would let a zombie fail its successor,
 * the fence alone would let a late release reopen a finished job, and the random attempt id covers a database that was
 * restored to an earlier time.
 */
async function lockAttempt(db: Db, attempt: Attempt): Promise<Held | { kind: 'cancelled' } | { kind: 'lost' }> {
  const attachments = await db.query<{
    pipeline_version: number;
    original_key: string | null;
    deleted: boolean;
  }>(
    `select pipeline_version, original_key, deleted_at is not null as deleted
     from attachments
     where id = $1
     for no key update`,
    [attempt.attachmentId],
  );
  const jobs = await db.query<{ version: number; rebuild: boolean; failures: number; strikes: number }>(
    `select version, rebuild, failures, strikes
     from jobs
     where id = $1
       and attachment_id = $2
       and fence = $3
       and attempt_id = $4
       and state = 'processing'
     for no key update`,
    [attempt.jobId, attempt.attachmentId, attempt.fence, attempt.attemptId],
  );
  const [attachment] = attachments.rows;
  const [job] = jobs.rows;
  if (!attachment || !job) return { kind: (await wasCancelled(db, attempt)) ? 'cancelled' : 'lost' };
  if (attachment.deleted) throw new Error(`Expected no running job of the deleted attachment ${attempt.attachmentId}`);
  return {
    kind: 'held',
    ...job,
    pipelineVersion: attachment.pipeline_version,
    originalKey: attachment.original_key,
  };
}

/** Whether this very attempt ran when its attachment was deleted. */
async function wasCancelled(db: Db, attempt: Attempt): Promise<boolean> {
  const { rowCount } = await db.query(
    `select
     from jobs
     where id = $1
       and attachment_id = $2
       and fence = $3
       and attempt_id = $4
       and state = 'cancelled'`,
    [attempt.jobId, attempt.attachmentId, attempt.fence, attempt.attemptId],
  );
  return rowCount === 1;
}

/** An attempt names only what lies in its own folder: anything else could be cleaned away behind the attachment's back. */
function assertOwnKeys(attempt: Attempt, result: Result): void {
  const prefix = attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);
  const keys = result.variants.map((variant) => variant.key);
  if (result.originalKey !== null) keys.push(result.originalKey);
  const foreign = keys.find((key) => !key.startsWith(prefix));
  if (foreign === undefined) return;
  throw new SkrepkaError('internal', { log: `Expected keys below ${prefix} in a result, received ${foreign}` });
}

async function cleanAttempt(db: Db, attempt: Attempt, graceMs: number, reason: string): Promise<void> {
  const key = attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);
  await addCleanup(db, { key, afterMs: graceMs, passes: 1, reason });
}

interface Why {
  readonly code: Code | null;
  readonly detail: string;
}

/** Guard: locked by `lockAttempt`. */
async function countFailure(db: Db, attempt: Attempt, strikes: number, failure: Why): Promise<void> {
  await db.query(
    `update jobs
     set failures = failures + 1,
         strikes = $2,
         error_code = $3,
         error_detail = $4
     where id = $1`,
    [attempt.jobId, strikes, failure.code, legible(failure.detail)],
  );
}

/** processing → finished. The attempt id stays behind for `readAttempt`. Guard: locked by `lockAttempt`. */
async function endJob(
  db: Db,
  attempt: Attempt,
  state: 'succeeded' | 'superseded' | 'failed',
  reason: JobReason & ('settled' | 'superseded' | 'failed'),
  who: string,
  why: Why | null,
): Promise<void> {
  await db.query(
    `with job as (
       update jobs
       set state = $2,
           rebuild = false,
           lease_until = null,
           ring_at = null,
           rung_at = null,
           error_code = $5,
           error_detail = $6,
           updated_at = now(),
           finished_at = now()
       where id = $1
       returning id, fence
     )
     insert into job_events (job_id, from_state, to_state, fence, who, reason, code, detail)
     select id, 'processing', $2, fence, $4, $3, $5, $6
     from job`,
    [attempt.jobId, state, reason, who, why?.code ?? null, why ? legible(why.detail) : null],
  );
}

/** processing → queued. Guard: locked by `lockAttempt`. */
async function requeue(
  db: Db,
  attempt: Attempt,
  reason: JobReason & ('retried' | 'released'),
  delayMs: number,
  who: string,
  why: Why,
): Promise<void> {
  await db.query(
    `with job as (
       update jobs
       set state = 'queued',
           releases = releases + case when $2 = 'released' then 1 else 0 end,
           lease_until = null,
           not_before = now() + $3 * interval '1 millisecond',
           ring_at = now() + $3 * interval '1 millisecond',
           rung_at = null,
           updated_at = now()
       where id = $1
       returning id, fence
     )
     insert into job_events (job_id, from_state, to_state, fence, who, reason, code, detail)
     select id, 'processing', 'queued', fence, $4, $2, $5, $6
     from job`,
    [attempt.jobId, reason, delayMs, who, why.code, legible(why.detail)],
  );
}

const detailLengthMax = 2000;

/** A detail as PostgreSQL can keep it: a decoder's output may hold NUL, which would turn the failure into another one. */
function legible(detail: string): string {
  return detail.replaceAll('\0', '\uFFFD').slice(0, detailLengthMax);
}
