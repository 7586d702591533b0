/**
 * The invariants of a moment: what the store's verbs change for whom, and what a process does on the strength of what it knows.
 *
 * What cannot be seen in rows (who ended a message, what was confirmed to whom) is noticed at the moment of the effect.
 */
import { type Attempt, decodeRing } from '../../src/pipeline/job.ts';
import { isGood, isHurt, type Observed, Violation } from './invariants.ts';
import { attemptOf, isUnfinished, jobsOf, type Moments, type Tables } from './store-tables.ts';
import type { Process, World } from './world.ts';

/* ------------------------------------------------------------------ the store */

const ends = ['settle', 'fail', 'release', 'renew'] as const;

/** The verbs, watched: a zombie changes nothing, a claim follows the end of a lease, a mark touches no bell but the relay's. */
export function watchVerbs(observed: Observed, moments: Moments): Moments {
  return ending(observed.world, {
    ...moments,
    ...watchEnds(observed, moments),
    ...watchClaim(observed, moments),
    ...watchRelay(observed, moments),
    ...watchAccept(observed, moments),
  });
}

/** A violation ends the run: whoever called must not be able to take it for a failure and go on. */
function ending<T extends object>(world: World, verbs: T): T {
  const entries = Object.entries(verbs).map(([name, act]) => [
    name,
    (...given: unknown[]) => {
      try {
        return (act as (...given: unknown[]) => unknown)(...given);
      } catch (error) {
        if (error instanceof Violation) world.fail(error);
        throw error;
      }
    },
  ]);
  return Object.fromEntries(entries) as T;
}

function watchEnds(observed: Observed, moments: Moments): Partial<Moments> {
  const { tables, sources } = observed;
  const watched: Record<string, unknown> = {};
  for (const verb of ends) {
    const act = moments[verb] as (attempt: Attempt, ...more: unknown[]) => unknown;
    watched[verb] = (attempt: Attempt, ...more: unknown[]) => {
      const job = tables.jobs.get(attempt.jobId);
      const isOwn = job?.state === 'processing' && job.attemptId !== null && sameAttempt(attemptOf(job), attempt);
      const before = isOwn ? null : rowsOf(tables, attempt);
      const failures = job?.failures ?? 0;
      const answer = act(attempt, ...more);
      if (before !== null && rowsOf(tables, attempt) !== before) {
        throw new Violation('I8', `a ${verb} of an attempt that is over changed ${attempt.jobId}`);
      }
      const isSpent = job !== undefined && job.failures > failures;
      if (isSpent && isGood(sources.get(attempt.attachmentId) ?? '') && !isHurt(observed, attempt.attachmentId)) {
        throw new Violation('I18', `a failure was counted to ${attempt.jobId}, and its picture is good`);
      }
      return answer;
    };
  }
  return watched as Partial<Moments>;
}

function watchClaim({ tables }: Observed, moments: Moments): Pick<Moments, 'claim'> {
  return {
    claim(request) {
      const job = tables.jobs.get(request.jobId);
      const leased = job?.state === 'processing' && (job.leaseUntil as number) > tables.nowMs();
      const answer = moments.claim(request);
      if (answer.kind !== 'claimed' || !job) return answer;
      if (leased) throw new Violation('I12', `${request.jobId} was claimed under a living lease`);
      if (job.crashes > request.budgets.crashesMax || job.failures >= request.budgets.attemptsMax)
        throw new Violation('I6', `${request.jobId} was claimed beyond its budget`);
      return answer;
    },
  };
}

/** A mark puts the next ring off by no less than the settings say, and until then the same bell is not taken again. */
function watchRelay({ tables, bells, settings }: Observed, moments: Moments): Pick<Moments, 'markRung' | 'takeDue'> {
  const marked = new Map<string, number>();
  return {
    markRung(ring, options) {
      if (!bells.published.has(`${ring.jobId}:${ring.ring}`)) {
        throw new Violation('I14', `ring ${ring.ring} of ${ring.jobId} is marked and the broker never had it`);
      }
      const job = tables.jobs.get(ring.jobId);
      const before = job?.ringAt ?? null;
      const confirmed = job?.confirmed ?? 0;
      const isRelays = job?.rungAt !== null && job?.rings === ring.ring;
      const isDue = before !== null && before <= tables.nowMs();
      const answer = moments.markRung(ring, options);
      if (!isRelays && (job?.ringAt ?? null) !== before)
        throw new Violation('I17', `a late mark moved the bell of ${ring.jobId}`);
      if (isDue && job?.ringAt !== before)
        throw new Violation('I16', `a late mark put off the bell of ${ring.jobId}, which was to ring at once`);
      if (!answer || !job) return answer;
      const least = 0.8 * Math.min(settings.reringCapMs, settings.reringMs * 2 ** Math.min(confirmed, 40));
      const untilMs = (job.ringAt as number) - tables.nowMs();
      if (untilMs < least) throw new Violation('I17', `${ring.jobId} rings again after ${untilMs} ms, not ${least}`);
      if (untilMs > 1.2 * Math.max(settings.reringCapMs, least))
        throw new Violation('I16', `${ring.jobId} rings again after ${untilMs} ms: a lost message would wait too long`);
      marked.set(ring.jobId, job.ringAt as number);
      return answer;
    },
    takeDue(options) {
      const bellsNow = new Map([...tables.jobs.values()].map((job) => [job.id, job.ringAt]));
      const taken = moments.takeDue(options);
      if (options.takenMs < settings.takenMs)
        throw new Violation('I17', `a bell is taken for ${options.takenMs} ms only`);
      for (const { jobId } of taken) {
        const ringAt = bellsNow.get(jobId) ?? 0;
        if (marked.get(jobId) === ringAt && ringAt > tables.nowMs())
          throw new Violation('I17', `${jobId} was rung before its time`);
      }
      return taken;
    },
  };
}

function watchAccept({ tables, objects, sources, lost }: Observed, moments: Moments): Pick<Moments, 'accept'> {
  const ids = new Map<string, string>();
  return {
    accept(upload) {
      const object = objects.stored.get(upload.stagingKey);
      const isNew = !tables.attachments.has(upload.id);
      const answer = moments.accept(upload);
      if (answer.kind !== 'accepted' || !isNew) return answer;
      if (lost.has(upload.stagingKey)) return answer;
      if (object?.sha256 !== upload.sha256) throw new Violation('I3', `${upload.id} was committed without its bytes`);
      sources.set(upload.id, Buffer.from(object.bytes).toString());
      // No two uploads of the simulation have the same bytes, and none without a key is sent twice.
      const name = `${upload.ownerId} ${upload.sha256}`;
      const known = ids.get(name);
      if (known) throw new Violation('I4', `one upload was taken in twice, as ${known} and ${upload.id}`);
      ids.set(name, upload.id);
      return answer;
    },
  };
}

const sameAttempt = (a: Attempt, b: Attempt) => a.fence === b.fence && a.attemptId === b.attemptId;

function rowsOf(tables: Tables, attempt: Attempt): string {
  return JSON.stringify([tables.jobs.get(attempt.jobId), tables.attachments.get(attempt.attachmentId)]);
}

/* -------------------------------------------------------------- the processes */

type Held = Pick<Attempt, 'attachmentId' | 'version' | 'fence' | 'attemptId'>;

/** What a process is about to do, told before it is done. Each ends the run when it must not, and throws. */
export interface Watch {
  publishes(process: Process, id: string, body: Uint8Array): void;
  confirmed(process: Process, id: string): void;
  marks(process: Process, id: string): void;
  /** Announced bells ring again; `why` as the pipeline's metric has it. */
  hastens(process: Process, why: 'disrupted' | 'starved'): void;
  disrupted(process: Process): void;
  /** It was given an attempt of a job, or was refused one. */
  claimed(process: Process, jobId: string, attempt: Attempt | null): void;
  /** It stores an object, or writes an end that its lease must cover. */
  writes(process: Process, attempt: Held): void;
  /** It ends a message, or holds it back. */
  ends(process: Process, verb: string, body: Uint8Array): void;
  /** An upload was refused with this code. */
  refused(code: string): void;
}

const messageNames: ReadonlySet<string> = new Set(['v', 'job', 'ring', 'traceparent']);
/** No upload of the simulation is at fault itself, and an unknown commit is no refusal. */
const passing: ReadonlySet<string> = new Set([
  ...['unavailable', 'storage_unavailable', 'overloaded', 'too_many_uploads', 'idempotency_in_flight'],
]);

export function createWatch(observed: Observed): Watch {
  const { tables, world, settings } = observed;
  const confirmations = new Set<string>();
  const disruptions = new Map<string, number>();
  const starvedAtMs = new Map<string, number>();
  return ending(world, {
    ...watchDeliveries(observed),
    publishes(_process: Process, id: string, body: Uint8Array) {
      const ring = decodeRing(body);
      const names = ring ? Object.keys(JSON.parse(Buffer.from(body).toString()) as object) : [];
      if (!ring || id !== `${ring.jobId}:${ring.ring}` || !names.every((name) => messageNames.has(name)))
        throw new Violation('I25', `a message holds more than a ring, or less: ${Buffer.from(body)}`);
    },
    confirmed: (process: Process, id: string) => void confirmations.add(`${process.name} ${id}`),
    marks(process: Process, id: string) {
      if (!confirmations.has(`${process.name} ${id}`))
        throw new Violation('I14', `${process.name} marks ${id} before the broker confirmed it`);
    },
    disrupted: (process: Process) => void disruptions.set(process.name, (disruptions.get(process.name) ?? 0) + 1),
    hastens(process: Process, why: 'disrupted' | 'starved') {
      if (why === 'disrupted') {
        const left = (disruptions.get(process.name) ?? 0) - 1;
        disruptions.set(process.name, left);
        if (left < 0)
          throw new Violation('I17', `${process.name} makes all ring again, and nothing disrupted the broker`);
        return;
      }
      const before = starvedAtMs.get(process.name) ?? process.startedAtMs;
      starvedAtMs.set(process.name, world.nowMs());
      if (world.nowMs() - before < settings.starvedMs - 1)
        throw new Violation('I17', `${process.name} hastens bells again after ${world.nowMs() - before} ms`);
    },
    writes(process: Process, { attachmentId, version, fence, attemptId }: Held) {
      const job = jobsOf(tables, attachmentId).find((one) => one.version === version);
      // Nobody tells a worker that an attachment was deleted, and an end of unknown outcome is said again.
      if (!job || job.state === 'cancelled' || isOver(tables, { jobId: job.id, fence })) return;
      const isLeased = job.attemptId === attemptId && (job.leaseUntil ?? Number.POSITIVE_INFINITY) > tables.nowMs();
      if (!isLeased) throw new Violation('I13', `${process.name} writes for ${job.id} although its lease is over`);
    },
    refused(code: string) {
      if (!passing.has(code))
        throw new Violation('I3', `an upload was refused with ${code}, and nothing is wrong with it`);
    },
  } satisfies Watch);
}

/** Each ack needs an end of its own: of an attempt, or a claim that was refused. A message is held back only for a living attempt. */
function watchDeliveries({ tables }: Observed): Pick<Watch, 'claimed' | 'ends'> {
  const holding = new Map<string, { attempts: Attempt[]; refusals: number }>();
  const holdingOf = (process: Process, jobId: string) => {
    const key = `${process.name} ${jobId}`;
    const held = holding.get(key) ?? { attempts: [], refusals: 0 };
    holding.set(key, held);
    return held;
  };
  return {
    claimed(process, jobId, attempt) {
      const held = holdingOf(process, jobId);
      if (!attempt) held.refusals += 1;
      else if (!held.attempts.some((one) => one.attemptId === attempt.attemptId)) held.attempts.push(attempt);
    },
    ends(process, verb, body) {
      const ring = decodeRing(body);
      if (!ring) throw new Violation('I25', 'a message is no ring, or longer than 1 KiB');
      const held = holdingOf(process, ring.jobId);
      const job = tables.jobs.get(ring.jobId);
      const isCurrent = (one: Attempt) => job?.fence === one.fence && job.attemptId === one.attemptId;
      if (verb === 'extend' && !held.attempts.some(isCurrent)) {
        throw new Violation('I13', `${process.name} held ${ring.jobId} back although its attempt is over`);
      }
      if (verb !== 'ack') return;
      const over = held.attempts.findIndex((one) => isOver(tables, one));
      if (over !== -1) held.attempts.splice(over, 1);
      else if (held.refusals > 0) held.refusals -= 1;
      else {
        const invariant = held.attempts.some(isCurrent) ? 'I15' : 'I13';
        throw new Violation(invariant, `${process.name} acked ${ring.jobId} before an end of its attempt was durable`);
      }
    },
  };
}

/** Whether the history tells that an attempt ended by its own worker's word, or with its attachment. */
function isOver(tables: Tables, attempt: Pick<Attempt, 'jobId' | 'fence'>): boolean {
  const events = tables.events.get(attempt.jobId) ?? [];
  return events.some(({ fence, reason }) => fence === attempt.fence && reason !== 'claimed' && reason !== 'crashed');
}

/** Whether a job could have been done for so long and nobody did it. */
export function waitsSince(tables: Tables, sinceMs: number): boolean {
  return [...tables.jobs.values()].some((job) => {
    if (!isUnfinished(job) || job.updatedAt > sinceMs) return false;
    return (job.state === 'queued' ? job.notBefore : (job.leaseUntil as number)) <= sinceMs;
  });
}
