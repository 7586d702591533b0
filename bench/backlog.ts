/**
 * A backlog that is accepted at once: step 1 of the pipeline without its HTTP, by our own store and object storage. An upload's object is a
 * copy of one that was put before, on the side of the store, so that thousands of pictures are accepted in seconds.
 */

import { createHash } from 'node:crypto';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { createFileBlobs } from '../src/drivers/blobs-file.ts';
import { newId, newTraceparent } from '../src/ids.ts';
import { stagingKey } from '../src/pipeline/attachment.ts';
import type { Blobs } from '../src/pipeline/ports.ts';
import { newestVersion } from '../src/pipeline/recipe.ts';
import type { Store } from '../src/pipeline/store.ts';
import { createPool, type Pool } from '../src/postgres/pool.ts';
import { createStore } from '../src/postgres/store.ts';
import { onEnd, type Scope } from '../tests/support/on-end.ts';
import type { Picture } from './pictures.ts';
import type { Product } from './product.ts';
import type { Figures } from './row.ts';

/** One upload that became ready. */
export interface Ended {
  /** Milliseconds since 1970, of the database's clock. */
  readonly readyAt: number;
  /** Leases of it that ended without a word. */
  readonly crashes: number;
}

export interface Backlog {
  /** How many pictures the mix has: every block of so many is the same work. */
  readonly block: number;
  /** Durable, all of it, when it resolves. Counting and waiting are about these from then on. */
  accept(count: number): Promise<void>;
  countReady(): Promise<number>;
  /** Rejects when one failed, or after `deadlineMs`. */
  untilAllReady(options: { deadlineMs: number }): Promise<readonly Ended[]>;
  /** Compares all rows that were ever accepted here with all objects. */
  examine(): Promise<{ lost: number; doubled: number }>;
}

/** Of production: `FAIR_SPACING`, `MAX_UPLOAD_TIME`. */
const spacingMs = 1_000;
const uploadMsMax = 3_600_000;
const acceptedAtOnce = 8;
const silent = { announce() {}, listen: () => () => {}, close: async () => {} };

/** Of one user, in a product that keeps its objects in a folder. */
export async function openBacklog(
  scope: Scope,
  product: Pick<Product, 'databaseUrl' | 'dataDir'>,
  mix: readonly Pick<Picture, 'name' | 'contentType' | 'bytes'>[],
): Promise<Backlog> {
  const pool = createPool({ url: product.databaseUrl, max: acceptedAtOnce, name: 'bench' });
  const store = createStore({ pool, signals: silent });
  const blobs = createFileBlobs({ dir: path.join(product.dataDir, 'blobs') });
  onEnd(scope, async () => {
    await store.close();
    await pool.end();
  });
  const ownerId = newId();
  await pool.query(`insert into users (id, handle, password_hash, role) values ($1, 'backlog', 'x', 'user')`, [
    ownerId,
  ]);
  const sources = await Promise.all(mix.map((picture) => putSource(blobs, picture)));
  let ids: string[] = [];

  async function acceptOne(at: number): Promise<string> {
    const source = sources[at % sources.length];
    if (!source) throw new Error('Expected pictures, received none');
    const id = newId();
    await blobs.copy(source.key, stagingKey(id));
    const { now } = await firstRow<{ now: Date }>(pool, 'select now() as now', []);
    const { fileName, contentType, size, sha256 } = source;
    const upload = {
      id,
      jobId: newId(),
      ownerId,
      kind: 'image',
      fileName,
      contentType,
      size,
      sha256,
      alt: null,
    } as const;
    const { kind } = await store.accept({
      ...upload,
      stagingKey: stagingKey(id),
      version: newestVersion,
      traceparent: newTraceparent(),
      startedAt: now.toISOString(),
      uploadMsMax,
      spacingMs,
      reservation: null,
    });
    if (kind !== 'accepted') throw new Error(`Expected an upload to be accepted, received ${kind}`);
    return id;
  }

  return {
    block: mix.length,
    async accept(count) {
      ids = [];
      for (let at = 0; at < count; at += acceptedAtOnce) {
        const next = Array.from({ length: Math.min(acceptedAtOnce, count - at) }, (_, nth) => acceptOne(at + nth));
        ids.push(...(await Promise.all(next)));
      }
    },
    countReady: () => countReady(pool, ids),
    async untilAllReady({ deadlineMs }) {
      const endMs = performance.now() + deadlineMs;
      while ((await countReady(pool, ids)) < ids.length) {
        if (performance.now() > endMs) throw new Error(`Not all of ${ids.length} were ready within ${deadlineMs} ms`);
        await pause(200);
      }
      return await endsOf(pool, ids);
    },
    examine: () => examine(pool, store, blobs),
  };
}

/** Outside of what the janitor looks through. */
async function putSource(blobs: Blobs, { name, contentType, bytes }: Pick<Picture, 'name' | 'contentType' | 'bytes'>) {
  const key = `bench/${newId()}`;
  await blobs.put(key, one(bytes));
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  return { key, fileName: name, contentType, size: bytes.length, sha256 };
}

async function* one(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}

async function firstRow<T extends object>(pool: Pool, text: string, values: readonly unknown[]): Promise<T> {
  const { rows } = await pool.query<T>(text, [...values]);
  if (!rows[0]) throw new Error('Expected a row, received none');
  return rows[0];
}

async function countReady(pool: Pool, ids: readonly string[]): Promise<number> {
  const { ready, failed } = await firstRow<{ ready: number; failed: string | null }>(
    pool,
    `select count(*) filter (where state = 'ready')::int as ready,
       min(error_code) filter (where state = 'failed') as failed
     from attachments
     where id >= $1
       and id <= $2`,
    [ids[0], ids.at(-1)],
  );
  if (failed !== null) throw new Error(`Expected every upload to become ready, one failed with ${failed}`);
  return ready;
}

async function endsOf(pool: Pool, ids: readonly string[]): Promise<readonly Ended[]> {
  const { rows } = await pool.query<Ended>(
    `select (extract(epoch from finished_at) * 1000)::float8 as "readyAt", crashes
     from jobs
     where attachment_id = any ($1::uuid[])`,
    [ids],
  );
  return rows;
}

/* ----------------------------------------------------------------------- rates */

/**
 * Rates before and after a kill, in jobs a second, and what the kill cost. The first `skip` that became ready count for nothing: the workers
 * were starting. The time after it begins with the kill itself.
 */
export function ratesOf(ended: readonly Ended[], killedAt: number, skip: number): Figures {
  const at = ended.map(({ readyAt }) => readyAt).sort((one, other) => one - other);
  const before = at.filter((readyAt) => readyAt <= killedAt);
  const after = at.slice(before.length);
  const steady = (before.length - skip) / (killedAt - (before[skip - 1] ?? Number.NaN));
  const drain = after.length / ((after.at(-1) ?? Number.NaN) - killedAt);
  const crashed = ended.filter(({ crashes }) => crashes > 0);
  return {
    steadyPerSecond: 1000 * steady,
    drainPerSecond: 1000 * drain,
    drainPercent: (100 * drain) / steady,
    firstReadyMs: (after[0] ?? Number.NaN) - killedAt,
    crashed: crashed.length,
    crashedReadyMs: Math.max(0, ...crashed.map(({ readyAt }) => readyAt - killedAt)),
  };
}

/* ------------------------------------------------------------------- examining */

interface Named {
  readonly id: string;
  readonly state: string;
  readonly jobs: number;
  readonly settled: number;
  /** Key and size of the original and the variants. */
  readonly objects: readonly { readonly key: string; readonly size: number }[];
}

/**
 * Every row names one original and three variants that are there in full, one job made them, once; and every object is named, or
 * waits for its clean-up, as those of a dead attempt do.
 */
async function examine(pool: Pool, store: Store, blobs: Blobs): Promise<{ lost: number; doubled: number }> {
  const rows = await namedObjects(pool);
  const sizes = await sizesOf(blobs, ['attachments/', 'staging/']);
  const isWhole = ({ state, objects }: Named) =>
    state === 'ready' && objects.length >= 4 && objects.every(({ key, size }) => sizes.get(key) === size);
  const lost = rows.filter((row) => !isWhole(row)).length;
  const doubledRows = rows.filter(({ jobs, settled, objects }) => jobs > 1 || settled > 1 || objects.length > 4).length;
  const named = new Set(rows.flatMap(({ objects }) => objects.map(({ key }) => key)));
  const others = [...sizes.keys()].filter((key) => !named.has(key));
  const waiting = await store.awaitingCleanup(others);
  const strays = others.filter((key) => !waiting.has(key)).length;
  return { lost, doubled: doubledRows + strays };
}

async function namedObjects(pool: Pool): Promise<readonly Named[]> {
  const { rows } = await pool.query<Named>(
    `select attachments.id, attachments.state,
       (select count(*) from jobs where jobs.attachment_id = attachments.id) as jobs,
       (
         select count(*)
         from job_events
         join jobs on jobs.id = job_events.job_id
         where jobs.attachment_id = attachments.id
           and job_events.reason = 'settled'
       ) as settled,
       (
         select coalesce(jsonb_agg(jsonb_build_object('key', named.key, 'size', named.size)), '[]')
         from (
           select attachments.original_key as key, attachments.size
           where attachments.original_key is not null
           union all
           select variants.key, variants.size
           from variants
           where variants.attachment_id = attachments.id
         ) named
       ) as objects
     from attachments`,
  );
  return rows;
}

async function sizesOf(blobs: Blobs, prefixes: readonly string[]): Promise<ReadonlyMap<string, number>> {
  const sizes = new Map<string, number>();
  for (const prefix of prefixes) {
    for (let after: string | null = ''; after !== null; ) {
      const page: Awaited<ReturnType<Blobs['list']>> = await blobs.list(prefix, { after, limit: 1000 });
      for (const { key, size } of page.objects) sizes.set(key, size);
      after = page.next;
    }
  }
  return sizes;
}
