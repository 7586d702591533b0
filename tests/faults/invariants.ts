/**
 * The invariants of `docs/failures.md`, asked after every effect that may have changed something. `invariants-verbs.ts` has those
 * of a moment (who wrote, who acked), `invariants-quiet.ts` those of the end.
 *
 * Each compares the store's rows, the objects and what was answered; none knows how the pipeline works inside.
 */
import { createHash } from 'node:crypto';
import { variantNames } from '../../src/pipeline/attachment.ts';
import { replayHistory } from '../../src/postgres/history.ts';
import type { Bells, Objects } from './engines.ts';
import { isNamed } from './store-keeping.ts';
import { type AttachmentRow, isUnfinished, type JobRow, jobsOf, type Tables } from './store-tables.ts';
import type { World } from './world.ts';

export class Violation extends Error {
  readonly invariant: string;
  constructor(invariant: string, sentence: string) {
    super(`${invariant}: ${sentence}`);
    this.name = 'Violation';
    this.invariant = invariant;
  }
}

/** An upload that was answered with 202. */
export interface Answered {
  readonly id: string;
  readonly userId: string;
  readonly source: string;
  readonly key: string | null;
}

export interface Observed {
  readonly world: World;
  readonly tables: Tables;
  readonly objects: Objects;
  readonly bells: Bells;
  /** What was answered with 202, in order. */
  readonly answered: Answered[];
  /** What was ever committed: attachment → the bytes that were sent. */
  readonly sources: Map<string, string>;
  /** Uploads that may wait at most, by now. */
  backlogMax(): number;
  readonly settings: {
    readonly takenMs: number;
    readonly reringMs: number;
    readonly reringCapMs: number;
    readonly starvedMs: number;
  };
  /** Keys that the storage lost behind everybody's back. */
  readonly lost: ReadonlySet<string>;
}

/** Whether the storage lost something of this attachment: then only honesty is owed. */
export function isHurt({ lost }: Pick<Observed, 'lost'>, id: string): boolean {
  if (lost.size === 0) return false;
  return [...lost].some((key) => key.split('/')[1] === id);
}

/** Whether nothing but misfortune keeps this picture from being ready. */
export function isGood(source: string): boolean {
  return !/^IMG (corrupt|crash|killer)/.test(source);
}

export interface Invariants {
  /** Every row and object that matters now. */
  check(): void;
  removed(key: string): void;
}

export function createInvariants(observed: Observed): Invariants {
  const { tables, objects, answered } = observed;
  const marks = createHighWaterMarks();
  const digests = new Map<string, string>();
  const told = new Map<string, string>();

  function check(): void {
    for (const one of answered) checkAnswered(one);
    checkKeys(answered);
    checkBacklog(observed);
    for (const job of tables.jobs.values()) {
      marks.check(job.id, 'I9', 'fence', job.fence);
      marks.check(job.id, 'I9', 'rings', job.rings);
      checkBell(job);
      checkHistory(job);
    }
    for (const attachment of tables.attachments.values()) {
      marks.check(attachment.id, 'I10', 'version', attachment.pipelineVersion);
      checkPublished(observed, attachment);
    }
  }

  function digestOf(one: Answered): string {
    const known = digests.get(one.id) ?? sha256(one.source);
    digests.set(one.id, known);
    return known;
  }

  function checkAnswered(one: Answered): void {
    const row = tables.attachments.get(one.id);
    if (!row) throw new Violation('I1', `${one.id} was answered with 202 and has no row`);
    if (row.deletedAt !== null) return;
    const jobs = jobsOf(tables, one.id);
    const first = jobs.filter((job) => job.origin === 'upload');
    if (first.length !== 1) throw new Violation('I2', `${one.id} has ${first.length} jobs of its upload`);
    if (new Set(jobs.map((job) => job.version)).size !== jobs.length)
      throw new Violation('I4', `${one.id} has two jobs of a version`);
    if (row.state === 'ready' || isHurt(observed, one.id)) return;
    if (row.state === 'failed') {
      if (row.errorCode === 'staging_lost' || row.errorCode === 'staging_corrupt') {
        throw new Violation('I1', `${one.id} failed with ${row.errorCode}, and nothing was ever lost by the storage`);
      }
      return;
    }
    if (!first.some(isUnfinished))
      throw new Violation('I1', `${one.id} is ${row.state} and no job of it is unfinished`);
    if (objects.stored.get(row.stagingKey)?.sha256 !== digestOf(one))
      throw new Violation('I1', `${one.id} is ${row.state} and its bytes are gone`);
  }

  /** The history explains the row: looked at whenever one of them has changed. */
  function checkHistory(job: JobRow): void {
    if (job.historyGoneAt !== null) return;
    const events = tables.events.get(job.id) ?? [];
    const counters = [job.state, job.fence, job.attempts, job.failures, job.crashes, job.releases];
    const now = `${events.length} ${counters.join(' ')}`;
    if (told.get(job.id) === now) return;
    told.set(job.id, now);
    explain(tables, job);
  }

  return {
    check,
    removed(key) {
      if (isNamed(tables, key)) throw new Violation('I20', `${key} was deleted, and a row names it or may come to`);
      const attachment = tables.attachments.get(key.split('/')[1] ?? '');
      const isKept = key.startsWith('staging/') && attachment?.deletedAt === null && attachment.stagingGoneAt === null;
      if (isKept) throw new Violation('I20', `${key} was deleted and may still be rendered from`);
    },
  };
}

function checkBell(job: JobRow): void {
  if (isUnfinished(job) !== (job.ringAt !== null))
    throw new Violation('I1', `the bell of ${job.id} does not fit ${job.state}`);
  if ((job.state === 'processing') !== (job.leaseUntil !== null)) {
    throw new Violation('I12', `the lease of ${job.id} does not fit ${job.state}`);
  }
  if (job.confirmed > job.rings) throw new Violation('I14', `${job.id} has more marks than rings`);
  if (job.rungAt !== null && job.rings === 0) throw new Violation('I14', `${job.id} was marked and never rung`);
}

function checkKeys(answered: readonly Answered[]): void {
  const ids = new Map<string, string>();
  for (const { userId, key, source, id } of answered) {
    if (key === null) continue;
    const name = `${userId} ${key} ${source}`;
    const known = ids.get(name) ?? id;
    if (known !== id) throw new Violation('I4', `one key, two attachments: ${known} and ${id}`);
    ids.set(name, id);
  }
}

function checkBacklog({ tables, backlogMax }: Observed): void {
  let waiting = 0;
  for (const job of tables.jobs.values()) {
    if (job.state === 'queued' && job.origin === 'upload' && job.attempts === 0 && job.generation === 1) waiting += 1;
  }
  const most = backlogMax();
  if (waiting > most) throw new Violation('I5', `${waiting} accepted jobs wait, and ${most} are the most there may be`);
}

function explain(tables: Tables, job: JobRow): void {
  const events = tables.events.get(job.id) ?? [];
  let told: ReturnType<typeof replayHistory>;
  try {
    told = replayHistory(events.map((event) => ({ ...event, at: new Date(event.at) })));
  } catch (error) {
    throw new Violation('I22', `${job.id}: ${(error as Error).message}`);
  }
  for (const name of ['state', 'fence', 'attempts', 'failures', 'crashes', 'releases'] as const) {
    if (told[name] !== job[name]) {
      throw new Violation('I22', `the history of ${job.id} tells ${name} ${told[name]}, its row ${job[name]}`);
    }
  }
  const settled = events.filter((event) => event.reason === 'settled').length;
  const rebuilt = events.filter((event) => event.reason === 'rebuilding').length;
  if (settled > 1 + rebuilt) throw new Violation('I7', `${job.id} was settled ${settled} times`);
}

const shown = [...variantNames].sort();

function checkPublished({ objects, lost }: Observed, row: AttachmentRow): void {
  if (row.state !== 'ready' || row.deletedAt !== null) return;
  const declared = row.kind === 'image' ? shown : [];
  const names = row.variants.map(({ name }) => name).sort();
  if (names.length !== declared.length || names.some((name, at) => name !== declared[at]))
    throw new Violation('I7', `${row.id} shows ${names.join(', ')}`);
  const isWhole = (key: string, digest: string) => objects.stored.get(key)?.sha256 === digest || lost.has(key);
  if (!isWhole(row.originalKey ?? '', row.sha256))
    throw new Violation('I11', `the original of ${row.id} is gone or changed`);
  for (const variant of row.variants) {
    if (!isWhole(variant.key, variant.sha256)) {
      throw new Violation('I11', `${variant.name} of ${row.id} is gone or changed`);
    }
  }
}

function createHighWaterMarks() {
  const highest = new Map<string, number>();
  return {
    check(id: string, invariant: string, name: string, value: number): void {
      const key = `${id} ${name}`;
      const known = highest.get(key) ?? 0;
      if (value < known) throw new Violation(invariant, `${name} of ${id} went from ${known} back to ${value}`);
      highest.set(key, value);
    },
  };
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}
