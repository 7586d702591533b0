/**
 * What a job is: states, allowed transitions, counters, the delay before a retry, and the message that rings its bell. Pure.
 *
 * The words `fence`, `lease`, `bell` and `ring` are those of `docs/ARCHITECTURE.md`.
 */
import { type Code, catalogue } from '../errors.ts';
import { isId, isTraceparent } from '../ids.ts';

export const jobStates = ['queued', 'processing', 'succeeded', 'failed', 'superseded', 'cancelled'] as const;
export type JobState = (typeof jobStates)[number];

/** From → to, with what does it. `null` is "no row yet". */
export const jobTransitions: readonly { from: JobState | null; to: JobState; by: string }[] = [
  { from: null, to: 'queued', by: 'accept, reprocess' },
  { from: 'queued', to: 'processing', by: 'claim' },
  { from: 'processing', to: 'processing', by: 'claim after a lease ended (crash)' },
  { from: 'processing', to: 'queued', by: 'retry, release' },
  { from: 'processing', to: 'succeeded', by: 'settle' },
  { from: 'processing', to: 'superseded', by: 'settle of an older version' },
  { from: 'processing', to: 'failed', by: 'settle, claim of a spent budget' },
  { from: 'queued', to: 'cancelled', by: 'delete' },
  { from: 'processing', to: 'cancelled', by: 'delete' },
  { from: 'failed', to: 'queued', by: 'replay, rebuild after a failed one' },
  { from: 'succeeded', to: 'queued', by: 'rebuild of lost variants' },
];

/** Where an attempt stands: every write of its result compares all of these with the row. */
export interface Attempt {
  readonly jobId: string;
  readonly attachmentId: string;
  readonly version: number;
  readonly fence: number;
  readonly attemptId: string;
}

/** Budgets of one generation of a job. `releases` has none: they are not the job's fault. */
export interface Budgets {
  /** Failures handled by a worker until the job is failed. */
  readonly attemptsMax: number;
  /** Leases that ended without a word until the job is failed with `worker_lost`. */
  readonly crashesMax: number;
}

export interface RetrySettings {
  readonly floorMs: number;
  readonly baseMs: number;
  readonly capMs: number;
}

/**
 * Full jitter with a floor: `floor + random(0, min(cap, base · 2^failures))`.
 * `failures` counts those before this one; `random` is in [0, 1). Answers whole milliseconds.
 */
export function retryDelayMs(failures: number, settings: RetrySettings, random: number): number {
  const ceiling = Math.min(settings.capMs, settings.baseMs * 2 ** Math.min(failures, 40));
  return settings.floorMs + Math.floor(random * ceiling);
}

/**
 * Whether a failure with this code ends the job. `failures` counts all handled failures including this one,
 * `strikes` those whose fate is `twice`, including this one.
 */
export function endsJob(code: Code, failures: number, strikes: number, budgets: Budgets): boolean {
  const { fate } = catalogue[code];
  if (fate === 'permanent') return true;
  if (fate === 'twice' && strikes >= 2) return true;
  return failures >= budgets.attemptsMax;
}

/** One ring of a job's bell: all that ever travels through a broker. Ids and a trace context, nothing else. */
export interface Ring {
  readonly jobId: string;
  /** Grows with every announcement of the job. */
  readonly ring: number;
  readonly traceparent: string | null;
}

/** The broker's message id of a ring. Brokers may use it to drop duplicates; nothing depends on it. */
export function ringId(ring: Ring): string {
  return `${ring.jobId}:${ring.ring}`;
}

/** The wire form of a ring, `contracts/job.schema.json`: under 1 KiB by construction. */
export function encodeRing(ring: Ring): Uint8Array {
  const body = {
    v: 1,
    job: ring.jobId,
    ring: ring.ring,
    ...(ring.traceparent ? { traceparent: ring.traceparent } : {}),
  };
  return new TextEncoder().encode(JSON.stringify(body));
}

/** The ring in a message, or null when it is not one: a foreign message is acked away and logged, never retried. */
export function decodeRing(bytes: Uint8Array): Ring | null {
  if (bytes.length > 1024) return null;
  let body: unknown;
  try {
    body = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch {
    return null;
  }
  if (typeof body !== 'object' || body === null) return null;
  const { v, job, ring, traceparent } = body as Record<string, unknown>;
  if (v !== 1 || !isId(job) || !Number.isSafeInteger(ring) || (ring as number) < 1) return null;
  return { jobId: job, ring: ring as number, traceparent: isTraceparent(traceparent) ? traceparent : null };
}
