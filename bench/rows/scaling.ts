/**
 * What the queue's verbs cost in a table of a hundred jobs, and of a thousand times a thousand.
 *
 * The real store on a real server, one database a size. A cycle accepts some uploads, takes and marks as many bells, claims and settles
 * what was taken, reads as many lists, and removes as many jobs as it ended, so that the table stays as large as it was.
 */
import { randomUUID } from 'node:crypto';
import { newId, newTraceparent } from '../../src/ids.ts';
import { attemptPrefix, stagingKey, variantNames } from '../../src/pipeline/attachment.ts';
import type { Attempt, Ring } from '../../src/pipeline/job.ts';
import type { NewAttachment, Result, Store } from '../../src/pipeline/store.ts';
import { migrate } from '../../src/postgres/migrate.ts';
import { createPool, type Pool } from '../../src/postgres/pool.ts';
import { createStore } from '../../src/postgres/store.ts';
import { onEnd, type Scope } from '../../tests/support/on-end.ts';
import { type Read, readsOf } from '../../tests/support/plans.ts';
import { fillTable } from '../crowded-table.ts';
import { type BenchPostgres, startPostgres } from '../postgres.ts';
import type { Bound, Figures, Ratio, Row } from '../row.ts';
import { sessionsOf, spentMsOf } from '../server-time.ts';

const sizes = [100, 1_000, 10_000, 100_000, 1_000_000] as const;
/** Jobs that a cycle moves by each verb; few, so that the smallest table stays about as small. */
const batch = 20;
const connections = 4;
/** Less than the least that an owner has ready. */
const listed = 30;
const poolName = 'scaling';
const tables = 'users, attachments, jobs, job_events, variants';

const verbs = ['accept', 'relay', 'claim', 'list'] as const;
type Verb = (typeof verbs)[number];
const words: Readonly<Record<Verb, string>> = {
  accept: 'accept',
  relay: 'take and mark',
  claim: 'claim and settle',
  list: 'list of 30',
};

export const row: Row = {
  name: 'scaling',
  title: 'A hundred to a million jobs in the table',
  about:
    'Rates of the store of `src/postgres`, four connections at once, in tables whose rows were made by SQL: up to 10,000 waiting, 96 % of the rest succeeded, with their attachments, variants and histories. ' +
    'The reference is the table of 100 jobs. CPU is that of the sessions, so a rate per second of it does not depend on the disk. Autovacuum runs as it is shipped.',
  rounds: 5,
  missing: () => null,
  async open(scope, { quick, say }) {
    const postgres = await startPostgres(scope);
    const played = quick ? sizes.slice(0, 3) : sizes;
    const cycles = quick ? 6 : 50;
    const all: Table[] = [];
    for (const jobs of played) all.push(await openTable(scope, postgres, jobs, say));
    const largest = all.at(-1);
    if (!largest) throw new Error('Expected a table, made none');
    const plans = await plansOf(largest);
    return {
      sides: all.map((table) => ({
        name: nameOf(table.jobs),
        run: async () => ({ ...(await play(table, cycles)), ...(table === largest ? plans.figures : {}) }),
      })),
      ratios: played.slice(1).flatMap(ratiosOf),
      bounds: quick ? [] : boundsOf(nameOf(largest.jobs)),
      notes: plans.lines,
    };
  },
};

const nameOf = (jobs: number) => `10^${Math.round(Math.log10(jobs))} jobs`;

function ratiosOf(jobs: number): Ratio[] {
  const between = { ours: nameOf(jobs), reference: nameOf(sizes[0]), goal: { atLeast: 0.9 } } as const;
  return verbs.flatMap((verb): Ratio[] => [
    { name: `${nameOf(jobs)}: ${words[verb]}, a CPU second`, ...between, figure: `${verb}PerCpuSecond`, kind: 'cpu' },
    { name: `${nameOf(jobs)}: ${words[verb]}, a second`, ...between, figure: `${verb}PerSecond`, kind: 'wall' },
  ]);
}

function boundsOf(side: string): Bound[] {
  return [
    { name: 'tables read as a whole', side, figure: 'wholeReads', unit: 'count', goal: { atMost: 0 } },
    { name: 'rows that one read of a verb looks at', side, figure: 'rowsRead', unit: 'count', goal: { atMost: 200 } },
    {
      name: 'reads of the load that are not of an index alone',
      side,
      figure: 'loadRowReads',
      unit: 'count',
      goal: { atMost: 0 },
    },
  ];
}

/* --------------------------------------------------------------------- tables */

interface Table {
  readonly jobs: number;
  readonly pool: Pool;
  readonly store: Store;
  readonly owners: readonly string[];
  /** Whose turn it is. */
  next: number;
}

const silent = { announce() {}, listen: () => () => {}, close: async () => {} };

async function openTable(
  scope: Scope,
  postgres: BenchPostgres,
  jobs: number,
  say: (line: string) => void,
): Promise<Table> {
  const { url } = await postgres.create();
  await migrate(url);
  const pool = createPool({ url, max: connections, name: poolName });
  const store = createStore({ pool, signals: silent });
  onEnd(scope, async () => {
    await store.close();
    await pool.end();
  });
  const owners = await fillTable(pool, jobs, say);
  await tidy(url);
  return { jobs, pool, store, owners, next: 0 };
}

/** What a server that has run for a while has done long since. */
async function tidy(url: string): Promise<void> {
  const pool = createPool({ url, max: 1, name: 'vacuum', statementMs: 0 });
  try {
    await pool.query(`vacuum (analyze) ${tables}`);
    await pool.query('checkpoint');
  } finally {
    await pool.end();
  }
}

const ownerOf = (table: Table): string => {
  table.next += 1;
  // A stride without a common divisor: all owners, none twice in a row.
  return table.owners[(table.next * 7919) % table.owners.length] ?? '';
};

/* --------------------------------------------------------------------- cycles */

async function play(table: Table, cycles: number): Promise<Figures> {
  const spent = new Map<Verb, { cpuMs: number; wallMs: number }>(verbs.map((verb) => [verb, { cpuMs: 0, wallMs: 0 }]));
  await cycle(table, async (_verb, work) => await work());
  const sessions = await sessionsOf(table.pool, poolName);
  for (let played = 0; played < cycles; played += 1) {
    await cycle(table, async (verb, work) => {
      const [cpuMs, wallMs] = [spentMsOf(sessions), performance.now()];
      const result = await work();
      const sum = spent.get(verb);
      if (sum) sum.wallMs += performance.now() - wallMs;
      if (sum) sum.cpuMs += spentMsOf(sessions) - cpuMs;
      return result;
    });
  }
  const figures: Record<string, number> = {};
  for (const [verb, { cpuMs, wallMs }] of spent) {
    figures[`${verb}PerCpuSecond`] = (1000 * cycles * batch) / cpuMs;
    figures[`${verb}PerSecond`] = (1000 * cycles * batch) / wallMs;
  }
  return figures;
}

async function cycle(table: Table, timed: <T>(verb: Verb, work: () => Promise<T>) => Promise<T>): Promise<void> {
  const { store } = table;
  await timed('accept', () => inParallel(batch, () => acceptOne(store, ownerOf(table))));
  const rings = await timed('relay', async () => {
    const taken = await takeDue(store);
    await inParallel(taken.length, (at) => markRung(store, taken[at]));
    return taken;
  });
  if (rings.length !== batch) throw new Error(`Expected ${batch} due jobs, took ${rings.length}`);
  const settled = await timed('claim', () => inParallel(batch, (at) => claimAndSettle(store, rings[at]?.jobId ?? '')));
  await timed('list', () => inParallel(batch, () => listOne(store, ownerOf(table))));
  await remove(table.pool, settled);
}

/** Does `count` pieces of work, as many at once as there are connections. */
async function inParallel<T>(count: number, work: (at: number) => Promise<T>): Promise<T[]> {
  const results: T[] = [];
  let next = 0;
  const lane = async () => {
    for (let at = next++; at < count; at = next++) results[at] = await work(at);
  };
  await Promise.all(Array.from({ length: connections }, lane));
  return results;
}

/* ---------------------------------------------------------------------- verbs */

/** As admission and accept do for one upload. */
async function acceptOne(store: Store, ownerId: string): Promise<void> {
  const { startedAt } = await store.arrive(ownerId);
  const { kind } = await store.accept(newUpload(ownerId, startedAt));
  if (kind !== 'accepted') throw new Error(`Expected an upload to be accepted, received ${kind}`);
}

function newUpload(ownerId: string, startedAt: string): NewAttachment {
  const id = newId();
  const facts = {
    kind: 'image',
    fileName: 'cat.jpg',
    contentType: 'image/jpeg',
    size: 4_321,
    sha256: 'a'.repeat(64),
  } as const;
  const times = { startedAt, uploadMsMax: 3_600_000, spacingMs: 1_000 };
  const names = { id, jobId: newId(), ownerId, stagingKey: stagingKey(id), traceparent: newTraceparent() };
  return { ...names, ...facts, ...times, alt: null, version: 1, reservation: null };
}

const takeDue = (store: Store) => store.takeDue({ limit: batch, window: 1_000, takenMs: 10_000 });

async function markRung(store: Store, ring: Ring | undefined): Promise<void> {
  if (ring) await store.markRung(ring, { baseMs: 30_000, capMs: 60_000, jitter: 1 });
}

/** Answers the job. */
async function claimAndSettle(store: Store, jobId: string): Promise<string> {
  const result = await store.claim({
    jobId,
    attemptId: randomUUID(),
    worker: 'worker-1',
    leaseMs: 45_000,
    marginMs: 500,
    versions: [1],
    budgets: { attemptsMax: 5, crashesMax: 3 },
    graceMs: 60_000,
    unsupportedMs: 60_000,
  });
  if (result.kind !== 'claimed') throw new Error(`Expected a claim, received ${result.reason}`);
  const options = { graceMs: 60_000, replacedMs: 120_000, who: 'worker-1' };
  const settled = await store.settle(result.claim.attempt, resultOf(result.claim.attempt), options);
  if (settled !== 'ready') throw new Error(`Expected a result to be settled, received ${settled}`);
  return jobId;
}

function resultOf(attempt: Attempt): Result {
  const prefix = attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);
  const sha256 = 'b'.repeat(64);
  const picture = { contentType: 'image/jpeg', width: 256, height: 192, size: 9_000, sha256 };
  const variants = variantNames.map((name) => ({ name, ...picture, key: `${prefix}${name}.jpg` }));
  const facts = { width: 4032, height: 3024, frames: 1, placeholder: '1QcSHQRnh493V4dIh4eXh1h4kJUI' };
  return { originalKey: `${prefix}original.jpg`, ...facts, variants };
}

/** Of ready ones, so that a page is the same work however many wait. */
async function listOne(store: Store, ownerId: string, state: 'ready' | null = 'ready'): Promise<void> {
  const { items } = await store.listAttachments(ownerId, { state, cursor: null, limit: listed });
  if (items.length < listed) throw new Error(`Expected a full page, received ${items.length}`);
}

/** Not a verb of the product, which keeps its jobs: the table stays as large as it is measured. */
async function remove(pool: Pool, jobIds: readonly string[]): Promise<void> {
  await pool.query(
    `with event as (
       delete from job_events where job_id = any ($1::uuid[])
     ),
     job as (
       delete from jobs where id = any ($1::uuid[]) returning attachment_id
     ),
     variant as (
       delete from variants using job where variants.attachment_id = job.attachment_id
     )
     delete from attachments using job where attachments.id = job.attachment_id`,
    [jobIds],
  );
  await pool.query(`delete from cleanups`);
}

/* ---------------------------------------------------------------------- plans */

/** How every verb reads, in words and in figures. It leaves the table as large as it was. */
async function plansOf({ pool, owners, jobs, next, store }: Table): Promise<Plans> {
  const table = { pool, owners, jobs, next, store };
  const seen = new Map<string, readonly Read[]>();
  const see = async <T>(what: string, work: (store: Store) => Promise<T>): Promise<T> => {
    const result: T[] = [];
    const reads = await readsOf(pool, async (watched) => {
      result.push(await work(createStore({ pool: watched, signals: silent })));
    });
    seen.set(what, reads);
    return result[0] as T;
  };
  await see('load', (watched) => watched.load());
  await see('accept', (watched) => acceptOne(watched, ownerOf(table)));
  await inParallel(batch - 1, () => acceptOne(store, ownerOf(table)));
  const rings = await see('take', takeDue);
  await see('mark', (watched) => markRung(watched, rings[0]));
  await see('relay’s questions', async (watched) => {
    await watched.untilDueMs(2_000);
    await watched.recentPace();
    await watched.countAnnounced();
  });
  await see('claim and settle', (watched) => claimAndSettle(watched, rings[0]?.jobId ?? ''));
  await inParallel(batch - 1, (at) => claimAndSettle(store, rings[at + 1]?.jobId ?? ''));
  await see('list', (watched) => listOne(watched, ownerOf(table)));
  await see('list of all states', (watched) => listOne(watched, ownerOf(table), null));
  const ended = rings.map(({ jobId }) => jobId);
  await remove(pool, ended);
  const all = [...seen.values()].flat();
  const verbsOnly = [...seen].filter(([what]) => !['load', 'relay’s questions'].includes(what));
  return {
    lines: [...seen].map(([what, reads]) => `${nameOf(jobs)}, ${what}: ${reads.map(readText).join('; ')}`),
    figures: {
      wholeReads: all.filter(({ how }) => how === 'Seq Scan').length,
      rowsRead: Math.max(...verbsOnly.flatMap(([, reads]) => reads.map(({ rows }) => rows))),
      loadRowReads: (seen.get('load') ?? []).filter(
        ({ how, heapFetches }) => how !== 'Index Only Scan' || heapFetches > 0,
      ).length,
    },
  };
}

interface Plans {
  readonly lines: readonly string[];
  readonly figures: Figures;
}

function readText({ how, where, rows, heapFetches }: Read): string {
  return `${how} of ${where}, ${rows} rows${heapFetches > 0 ? `, ${heapFetches} heap fetches` : ''}`;
}
