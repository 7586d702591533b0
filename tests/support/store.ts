/**
 * The store on a fresh database with one account, for tests: short words for accepting, claiming and ending jobs, reads of
 * the raw rows, and time travel by moving a row's times instead of waiting.
 */
import assert from 'node:assert/strict';
import { createHash, randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import { attemptPrefix, stagingKey, variantNames } from '../../src/pipeline/attachment.ts';
import type { Attempt } from '../../src/pipeline/job.ts';
import type { Signals } from '../../src/pipeline/ports.ts';
import type { Claim, NewAttachment, Result, Store } from '../../src/pipeline/store.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { createStore } from '../../src/postgres/store.ts';
import { freshDatabase } from './postgres.ts';
import { until } from './until.ts';

export const times = { leaseMs: 45_000, marginMs: 2_000, graceMs: 60_000, unsupportedMs: 90_000, replacedMs: 120_000 };
export const budgets = { attemptsMax: 5, crashesMax: 3 };
const hour = 3_600_000;

type ClaimRequest = Parameters<Store['claim']>[0];
export type Row = Record<string, unknown>;

export async function startStore(t: TestContext, options: { poolMax?: number } = {}) {
  const { pool, url } = await freshDatabase(t, options);
  const told: string[] = [];
  const signals: Signals = {
    announce: (topic, id) => void told.push(id === undefined ? topic : `${topic} ${id}`),
    listen: () => () => {},
    close: async () => {},
  };
  const store = createStore({ pool, signals }, { leadCheckMs: 50 });
  const owner = await addUser(pool, 'owner');

  const accept = async (change: Partial<NewAttachment> = {}) => {
    const upload = newUpload(owner, change);
    const acceptance = await store.accept(upload);
    assert.equal(acceptance.kind, 'accepted');
    return { id: upload.id, jobId: upload.jobId, upload };
  };
  const claim = (jobId: string, change: Partial<ClaimRequest> = {}) => store.claim(newClaim(jobId, change));
  const claimed = async (jobId: string, change: Partial<ClaimRequest> = {}): Promise<Claim> => {
    const result = await claim(jobId, change);
    assert.equal(result.kind, 'claimed', JSON.stringify(result));
    return result.kind === 'claimed' ? result.claim : assert.fail();
  };
  const ready = async (change: Partial<NewAttachment> = {}) => {
    const accepted = await accept(change);
    const { attempt } = await claimed(accepted.jobId);
    const result = resultOf(attempt);
    assert.equal(await settle(store, attempt, result), 'ready');
    return { ...accepted, attempt, result };
  };
  /** An upload that ended with `code`, at once unless it is one that is tried again. */
  const failed = async (change: Partial<NewAttachment> = {}, code: Parameters<typeof fail>[2] = 'corrupt_image') => {
    const accepted = await accept(change);
    const { attempt } = await claimed(accepted.jobId);
    assert.equal(await fail(store, attempt, code), 'failed');
    return { ...accepted, attempt };
  };
  /** A job of another version for the same attachment, as reprocessing makes it. */
  const addJob = async (attachmentId: string, version: number) => {
    const jobId = newId();
    await pool.query(
      `with job as (
         insert into jobs (id, attachment_id, owner_id, version, origin, state, ring_at)
         values ($1, $2, $3, $4, 'reprocess', 'queued', now())
         returning id
       )
       insert into job_events (job_id, from_state, to_state, fence, who, reason)
       select id, null, 'queued', 0, 'test', 'reprocessed' from job`,
      [jobId, attachmentId, owner, version],
    );
    return jobId;
  };

  return {
    pool,
    url,
    store,
    signals,
    told,
    owner,
    accept,
    claim,
    claimed,
    ready,
    failed,
    addJob,
    ...reads(pool),
    ...travel(pool),
  };
}

export async function addUser(pool: Pool, handle: string): Promise<string> {
  const id = newId();
  await pool.query(`insert into users (id, handle, password_hash, role) values ($1, $2, 'x', 'user')`, [id, handle]);
  return id;
}

export function newUpload(ownerId: string, change: Partial<NewAttachment> = {}): NewAttachment {
  const id = change.id ?? newId();
  return {
    id,
    jobId: newId(),
    ownerId,
    kind: 'image',
    fileName: 'cat.jpg',
    contentType: 'image/jpeg',
    size: 4_321,
    sha256: digest(id),
    alt: null,
    stagingKey: stagingKey(id),
    version: 1,
    traceparent: null,
    startedAt: new Date().toISOString(),
    uploadMsMax: hour,
    spacingMs: 1_000,
    reservation: null,
    ...change,
  };
}

export function newClaim(jobId: string, change: Partial<ClaimRequest> = {}): ClaimRequest {
  const { leaseMs, marginMs, graceMs, unsupportedMs } = times;
  const versions = [1, 2, 3];
  return {
    jobId,
    attemptId: randomUUID(),
    worker: 'worker-1',
    leaseMs,
    marginMs,
    versions,
    budgets,
    graceMs,
    unsupportedMs,
    ...change,
  };
}

/** The result of an attempt that rendered everything; `withOriginal` false where an earlier version's original is kept. */
export function resultOf(attempt: Attempt, { withOriginal = true } = {}): Result {
  const prefix = attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);
  return {
    originalKey: withOriginal ? `${prefix}original.jpg` : null,
    width: 400,
    height: 300,
    frames: 1,
    placeholder: 'AAAA',
    variants: variantNames.map((name) => ({
      name,
      contentType: name === 'optimized' ? 'image/webp' : 'image/jpeg',
      width: 40,
      height: 30,
      size: 99,
      sha256: digest(name),
      key: `${prefix}${name}.${name === 'optimized' ? 'webp' : 'jpg'}`,
    })),
  };
}

export const settle = (store: Store, attempt: Attempt, result: Result = resultOf(attempt)) =>
  store.settle(attempt, result, { graceMs: times.graceMs, replacedMs: times.replacedMs, who: 'worker-1' });
export const fail = (
  store: Store,
  attempt: Attempt,
  code: Parameters<Store['fail']>[1]['code'] = 'internal',
  retryMs = 5_000,
) =>
  store.fail(
    attempt,
    { code, detail: `because of ${code}`, retryMs },
    { budgets, graceMs: times.graceMs, who: 'worker-1' },
  );
export const release = (store: Store, attempt: Attempt, delayMs = 0) =>
  store.release(attempt, { reason: 'drain', delayMs, graceMs: times.graceMs, who: 'worker-1' });

export function digest(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

/** The options of a replay in these tests. */
export const byOperator = { who: 'operator', spacingMs: 1_000 };

function reads(pool: Pool) {
  const one = async (text: string, id: string): Promise<Row> => {
    const { rows } = await pool.query<Row>(text, [id]);
    return rows[0] ?? assert.fail(`no row ${id}`);
  };
  return {
    jobRow: (id: string) => one('select * from jobs where id = $1', id),
    attachmentRow: (id: string) => one('select * from attachments where id = $1', id),
    /** Seconds from the database's now to a time of a job's row; null for a null. */
    secondsTo: async (id: string, column: 'ring_at' | 'lease_until' | 'not_before') => {
      const row = await one(
        `select extract(epoch from ring_at - now())::float8 as ring_at,
           extract(epoch from lease_until - now())::float8 as lease_until,
           extract(epoch from not_before - now())::float8 as not_before
         from jobs where id = $1`,
        id,
      );
      return row[column] as number | null;
    },
    /** A job's turn, in milliseconds since 1970. */
    turnOf: async (id: string) => ((await one('select turn from jobs where id = $1', id)).turn as Date).getTime(),
    /** Resolves once `count` statements wait for a lock that another transaction holds. */
    untilLocked: (count = 1) =>
      until(`${count} wait for a lock`, async () => {
        const waiting = await pool.query(
          `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        );
        return (waiting.rowCount ?? 0) >= count;
      }),
    cleanups: async () =>
      (
        await pool.query<{ key: string; passes: number; reason: string; seconds: number }>(
          `select key, passes, reason, round(extract(epoch from not_before - created_at))::int as seconds
           from cleanups order by id`,
        )
      ).rows,
    /** Everything that a write of the store could change, to prove that one changed nothing. */
    everything: async () => {
      const tables = await pool.query<{ content: unknown }>(
        `select jsonb_build_array(
           (select jsonb_agg(to_jsonb(one) order by one.id) from attachments one),
           (select jsonb_agg(to_jsonb(one) order by one.id) from jobs one),
           (select jsonb_agg(to_jsonb(one) order by one.key) from variants one),
           (select jsonb_agg(to_jsonb(one) order by one.id) from job_events one),
           (select jsonb_agg(to_jsonb(one) order by one.id) from cleanups one),
           (select jsonb_agg(to_jsonb(one) order by one.key) from idempotency_keys one),
           (select jsonb_agg(to_jsonb(one) order by one.version) from reprocessings one)
         ) as content`,
      );
      return JSON.stringify(tables.rows[0]?.content);
    },
  };
}

function travel(pool: Pool) {
  const move = (assignment: string) => async (jobId: string) => {
    const { rowCount } = await pool.query(`update jobs set ${assignment} where id = $1`, [jobId]);
    assert.equal(rowCount, 1);
  };
  return {
    endLease: move(`lease_until = now() - interval '1 second', ring_at = now() - interval '1 millisecond'`),
    endWait: move(`not_before = now() - interval '1 second', ring_at = now() - interval '1 millisecond'`),
    dueBell: move(`ring_at = now() - interval '1 millisecond'`),
  };
}
