/**
 * The invariants of `docs/failures.md`, asked after every effect and once more when all is quiet.
 *
 * Each compares the store's rows, the objects and what was answered; none knows how the pipeline works inside. What cannot be
 * seen in rows (who ended a message, what was confirmed) is noticed at the moment of the effect.
 */
import { createHash } from 'node:crypto';
import { variantNames } from '../../src/pipeline/attachment.ts';
import { type Attempt, decodeRing } from '../../src/pipeline/job.ts';
import { replayHistory } from '../../src/postgres/history.ts';
import type { Bells, Objects } from './engines.ts';
import { isNamed } from './store-keeping.ts';
import {
  type AttachmentRow,
  attemptOf,
  isUnfinished,
  type JobRow,
  jobsOf,
  type Moments,
  type Tables,
} from './store-tables.ts';
import type { Process, World } from './world.ts';

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
  readonly limits: { readonly backlogMax: number; readonly overshootMax: number };
}

export interface Invariants {
  /** Every row and object that matters now. */
  check(): void;
  /** When nothing is left to do. */
  checkQuiet(): void;
  /** The store's verbs, watched: fences, zombies, marks. */
  watch(moments: Moments): Moments;
  /** A process ends a message. */
  ended(process: Process, verb: string, body: Uint8Array): void;
  /** A process claimed an attempt of a job, or was refused one. */
  claimed(process: Process, jobId: string, attempt: Attempt | null): void;
  removed(key: string): void;
}

export function createInvariants(observed: Observed): Invariants {
  const { tables, objects, answered } = observed;
  const marks = createHighWaterMarks();
  const holding = new Map<string, { attempts: Attempt[]; refusals: number }>();
  const holdingOf = (process: Process, jobId: string) => {
    const key = `${process.name} ${jobId}`;
    const held = holding.get(key) ?? { attempts: [], refusals: 0 };
    holding.set(key, held);
    return held;
  };
  const expected = new Map<string, string>();

  function check(): void {
    for (const one of answered) expected.set(one.id, sha256(one.source));
    for (const one of answered) checkAnswered(one);
    checkKeys(answered);
    checkBacklog(observed);
    for (const job of tables.jobs.values()) {
      marks.check(job.id, 'I9', 'fence', job.fence);
      marks.check(job.id, 'I9', 'rings', job.rings);
      checkBell(job);
      checkHistory(tables, job);
    }
    for (const attachment of tables.attachments.values()) {
      marks.check(attachment.id, 'I10', 'version', attachment.pipelineVersion);
      checkPublished(objects, attachment);
    }
  }

  function checkAnswered(one: Answered): void {
    const row = tables.attachments.get(one.id);
    if (!row) throw new Violation('I1', `${one.id} was answered with 202 and has no row`);
    if (row.deletedAt !== null) return;
    const digest = expected.get(one.id);
    const holds = (key: string) => objects.stored.get(key)?.sha256 === digest;
    const jobs = jobsOf(tables, one.id);
    const first = jobs.filter((job) => job.origin === 'upload');
    if (first.length !== 1) throw new Violation('I2', `${one.id} has ${first.length} jobs of its upload`);
    if (new Set(jobs.map((job) => job.version)).size !== jobs.length)
      throw new Violation('I4', `${one.id} has two jobs of a version`);
    if (row.state === 'ready') return;
    if (row.state === 'failed') {
      if (row.errorCode === 'staging_lost' || row.errorCode === 'staging_corrupt') {
        throw new Violation('I1', `${one.id} failed with ${row.errorCode}, and nothing was ever lost by the storage`);
      }
      return;
    }
    if (!first.some(isUnfinished))
      throw new Violation('I1', `${one.id} is ${row.state} and no job of it is unfinished`);
    if (!holds(row.stagingKey)) throw new Violation('I1', `${one.id} is ${row.state} and its bytes are gone`);
  }

  return {
    check,
    checkQuiet: () => checkQuiet(observed, check),
    watch: (moments) => watchVerbs(observed, moments),
    claimed(process, jobId, attempt) {
      const held = holdingOf(process, jobId);
      const isKnown = held.attempts.some((one) => one.attemptId === attempt?.attemptId);
      if (attempt) {
        if (!isKnown) held.attempts.push(attempt);
      } else held.refusals += 1;
    },
    ended(process, verb, body) {
      const ring = decodeRing(body);
      if (!ring || body.length > 1024) throw new Violation('I25', 'a message is no ring, or longer than 1 KiB');
      const held = holdingOf(process, ring.jobId);
      const job = tables.jobs.get(ring.jobId);
      const isCurrent = (one: Attempt) => job?.fence === one.fence && job.attemptId === one.attemptId;
      if (verb === 'extend' && !held.attempts.some(isCurrent)) {
        throw new Violation(
          'I13',
          `${process.name} held the message of ${ring.jobId} back although its attempt is over`,
        );
      }
      if (verb !== 'ack') return;
      // A worker may hold several deliveries of one job: each ack needs an end of its own, or a claim that was refused.
      const over = held.attempts.findIndex((one) => isOver(tables, one));
      if (over !== -1) held.attempts.splice(over, 1);
      else if (held.refusals > 0) held.refusals -= 1;
      else {
        const invariant = held.attempts.some(isCurrent) ? 'I15' : 'I13';
        throw new Violation(invariant, `${process.name} acked ${ring.jobId} before an end of its attempt was durable`);
      }
    },
    removed(key) {
      if (isNamed(tables, key)) throw new Violation('I20', `${key} was deleted, and a row names it or may come to`);
      const attachment = tables.attachments.get(key.split('/')[1] ?? '');
      const isKept = key.startsWith('staging/') && attachment?.deletedAt === null && attachment.stagingGoneAt === null;
      if (isKept) throw new Violation('I20', `${key} was deleted and may still be rendered from`);
    },
  };

  function checkBell(job: JobRow): void {
    if (isUnfinished(job) !== (job.ringAt !== null))
      throw new Violation('I1', `the bell of ${job.id} does not fit ${job.state}`);
    if ((job.state === 'processing') !== (job.leaseUntil !== null)) {
      throw new Violation('I12', `the lease of ${job.id} does not fit ${job.state}`);
    }
    if (job.confirmed > job.rings) throw new Violation('I14', `${job.id} has more marks than rings`);
    if (job.rungAt !== null && job.rings === 0) throw new Violation('I14', `${job.id} was marked and never rung`);
  }
}

/** Whether the history tells that an attempt ended by its own worker's word, or with its attachment. */
function isOver(tables: Tables, attempt: Attempt): boolean {
  const events = tables.events.get(attempt.jobId) ?? [];
  return events.some(({ fence, reason }) => fence === attempt.fence && reason !== 'claimed' && reason !== 'crashed');
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

function checkBacklog({ tables, limits }: Observed): void {
  const queued = [...tables.jobs.values()].filter(
    (job) => job.state === 'queued' && job.origin === 'upload' && job.attempts === 0 && job.generation === 1,
  );
  if (queued.length > limits.backlogMax + limits.overshootMax) {
    throw new Violation(
      'I5',
      `${queued.length} accepted jobs wait, ${limits.backlogMax} + ${limits.overshootMax} are allowed`,
    );
  }
}

function checkHistory(tables: Tables, job: JobRow): void {
  if (job.historyGoneAt !== null) return;
  let told: ReturnType<typeof replayHistory>;
  try {
    told = replayHistory((tables.events.get(job.id) ?? []).map((event) => ({ ...event, at: new Date(event.at) })));
  } catch (error) {
    throw new Violation('I22', `${job.id}: ${(error as Error).message}`);
  }
  for (const name of ['state', 'fence', 'attempts', 'failures', 'crashes', 'releases'] as const) {
    if (told[name] !== job[name]) {
      throw new Violation('I22', `the history of ${job.id} tells ${name} ${told[name]}, its row ${job[name]}`);
    }
  }
  const events = tables.events.get(job.id) ?? [];
  const settled = events.filter((event) => event.reason === 'settled').length;
  const rebuilt = events.filter((event) => event.reason === 'rebuilding').length;
  if (settled > 1 + rebuilt) throw new Violation('I7', `${job.id} was settled ${settled} times`);
}

function checkPublished(objects: Objects, row: AttachmentRow): void {
  if (row.state !== 'ready' || row.deletedAt !== null) return;
  const names = row.variants.map(({ name }) => name).sort();
  const declared = row.kind === 'image' ? [...variantNames].sort() : [];
  if (JSON.stringify(names) !== JSON.stringify(declared))
    throw new Violation('I7', `${row.id} shows ${names.join(', ')}`);
  const original = objects.stored.get(row.originalKey ?? '');
  if (original?.sha256 !== row.sha256) throw new Violation('I11', `the original of ${row.id} is gone or changed`);
  for (const variant of row.variants) {
    if (objects.stored.get(variant.key)?.sha256 !== variant.sha256) {
      throw new Violation('I11', `${variant.name} of ${row.id} is gone or changed`);
    }
  }
}

/* -------------------------------------------------------------------- quiet */

function checkQuiet({ tables, objects }: Observed, check: () => void): void {
  check();
  for (const job of tables.jobs.values()) {
    if (isUnfinished(job)) throw new Violation('I6', `${job.id} is ${job.state} when all is quiet`);
  }
  for (const row of tables.attachments.values()) {
    const source = Buffer.from(objects.stored.get(row.originalKey ?? '')?.bytes ?? []).toString();
    if (row.deletedAt !== null || row.state === 'ready') continue;
    const staged = Buffer.from(objects.stored.get(row.stagingKey)?.bytes ?? []).toString() || source;
    const isBad = /^IMG (corrupt|crash|killer)/.test(staged) || staged === '';
    const isUnlucky = row.errorCode === 'worker_lost';
    if (!isBad && !isUnlucky)
      throw new Violation('I18', `${row.id} failed with ${row.errorCode}, and its picture is good`);
  }
  const left = strayOf(tables, objects);
  if (left !== null) {
    const row = tables.attachments.get(left.split('/')[1] ?? '');
    throw new Violation(row && row.deletedAt !== null ? 'I26' : 'I19', `${left} is left, and no row names it`);
  }
  for (const key of namedKeys(tables)) {
    if (!objects.stored.has(key)) throw new Violation('I19', `${key} is named and not there`);
  }
}

function namedKeys(tables: Tables): string[] {
  const living = [...tables.attachments.values()].filter((row) => row.deletedAt === null);
  return living.flatMap((row) => [
    ...row.variants.map(({ key }) => key),
    ...(row.originalKey === null ? [] : [row.originalKey]),
    ...(row.stagingGoneAt === null ? [row.stagingKey] : []),
  ]);
}

/** An object that no row names; null when there is none. */
export function strayOf(tables: Tables, objects: Objects): string | null {
  const named = new Set(namedKeys(tables));
  return [...objects.stored.keys()].find((key) => !named.has(key)) ?? null;
}

/* ------------------------------------------------------------------ moments */

const ends = ['settle', 'fail', 'release', 'renew'] as const;

/** Verbs that are guarded by a fence change nothing for a zombie; a mark follows a confirmation; a claim, the end of a lease. */
function watchVerbs({ tables, objects, bells }: Observed, moments: Moments): Moments {
  const watched = { ...moments };
  for (const verb of ends) {
    const act = moments[verb] as (attempt: Attempt, ...more: unknown[]) => unknown;
    (watched as Record<string, unknown>)[verb] = (attempt: Attempt, ...more: unknown[]) => {
      const job = tables.jobs.get(attempt.jobId);
      const isOwn =
        job &&
        isUnfinished(job) &&
        job.attemptId !== null &&
        sameAttempt(attemptOf(job), attempt) &&
        job.state === 'processing';
      const before = isOwn ? null : rowsOf(tables, attempt);
      const answer = act(attempt, ...more);
      if (before !== null && rowsOf(tables, attempt) !== before) {
        throw new Violation('I8', `a ${verb} of an attempt that is over changed ${attempt.jobId}`);
      }
      return answer;
    };
  }
  watched.claim = (request) => {
    const job = tables.jobs.get(request.jobId);
    const leased = job?.state === 'processing' && (job.leaseUntil as number) > tables.nowMs();
    const answer = moments.claim(request);
    if (leased && answer.kind === 'claimed')
      throw new Violation('I12', `${request.jobId} was claimed under a living lease`);
    if (
      answer.kind === 'claimed' &&
      job &&
      (job.crashes > request.budgets.crashesMax || job.failures >= request.budgets.attemptsMax)
    ) {
      throw new Violation('I6', `${request.jobId} was claimed beyond its budget`);
    }
    return answer;
  };
  watched.markRung = (ring, options) => {
    if (!bells.published.has(`${ring.jobId}:${ring.ring}`)) {
      throw new Violation('I14', `ring ${ring.ring} of ${ring.jobId} is marked and the broker never had it`);
    }
    const job = tables.jobs.get(ring.jobId);
    const before = job?.ringAt ?? null;
    const isRelays = job?.rungAt !== null && job?.rings === ring.ring;
    const answer = moments.markRung(ring, options);
    if (!isRelays && (job?.ringAt ?? null) !== before)
      throw new Violation('I17', `a late mark moved the bell of ${ring.jobId}`);
    return answer;
  };
  watched.accept = (upload) => {
    const object = objects.stored.get(upload.stagingKey);
    const answer = moments.accept(upload);
    if (
      answer.kind === 'accepted' &&
      object?.sha256 !== upload.sha256 &&
      !tables.attachments.get(upload.id)?.stagingGoneAt
    ) {
      throw new Violation('I3', `${upload.id} was committed without its bytes`);
    }
    return answer;
  };
  return watched;
}

const sameAttempt = (a: Attempt, b: Attempt) => a.fence === b.fence && a.attemptId === b.attemptId;

function rowsOf(tables: Tables, attempt: Attempt): string {
  return JSON.stringify([tables.jobs.get(attempt.jobId), tables.attachments.get(attempt.attachmentId)]);
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
