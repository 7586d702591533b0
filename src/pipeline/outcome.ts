/**
 * Steps 5 to 7 of 8, store, settle, ack: from finished pictures to a published attachment. Before it: render. After it: clean.
 *
 * Durable: after store, objects that no row names; after settle, the result. Dies while storing: the objects stay below the
 * prefix of a dead attempt, which the next claim sends to the clean-ups. Dies before the settle: the lease ends and the
 * bell rings. Dies between settle and ack: the redelivery finds a finished job and is acked. An unknown outcome of a settle
 * is settled again under the same guard, then read back.
 */
import { type Code, catalogue, describe, SkrepkaError } from '../errors.ts';
import { attemptPrefix, type Variant } from './attachment.ts';
import type { Breaker } from './breaker.ts';
import { type Attempt, type JobState, type RetrySettings, retryDelayMs } from './job.ts';
import { both, verifyStored } from './original.ts';
import {
  BlobError,
  type Blobs,
  type Clock,
  ImagesError,
  type Log,
  type Meter,
  type Reach,
  type RenderedVariant,
  type ScratchDir,
  ScratchError,
} from './ports.ts';
import type { Rendered } from './render.ts';
import { type Claim, type Failed, type Result, type Settled, type Store, StoreError } from './store.ts';

export interface OutcomeSettings extends RetrySettings {
  readonly attemptsMax: number;
  readonly crashesMax: number;
  readonly graceMs: number;
  readonly replacedMs: number;
  readonly releaseMs: number;
}

export interface OutcomeDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly meter: Meter;
  readonly reach: Reach;
  /** `disk`: the worker's own, where originals and variants lie while it works on them. */
  readonly breakers: { readonly store: Breaker; readonly storage: Breaker; readonly disk: Breaker };
  /** Names this worker in the history. */
  readonly who: string;
}

/**
 * How an attempt ended, as far as this worker may know. After `lost` it is silent: no ack, no nak, no further put.
 * All others are durable, and the delivery may be acked.
 */
export type Outcome = Settled | Failed | 'released';

/**
 * Why the work of an attempt was broken off. `lost`: the store said so. `expired`: its own deadline passed. `drain`: this worker ends.
 * `alone`: it has to run alone, and so has another one here.
 */
export type Interruption = 'lost' | 'expired' | 'drain' | 'alone';

export class Interrupted extends Error {
  readonly why: Interruption;
  constructor(why: Interruption) {
    super(`the attempt was broken off: ${why}`);
    this.name = 'Interrupted';
    this.why = why;
  }
}

/**
 * Step 5. Puts every variant under keys of this attempt, then reads each back and compares size and digest; the original was
 * stored beside the rendering. Throws `SkrepkaError('storage_unavailable')`, `BlobError` or the signal's reason, and puts
 * nothing any more then.
 */
export async function storeObjects(
  claim: Claim,
  rendered: Rendered,
  deps: OutcomeDeps,
  signal: AbortSignal,
): Promise<Result> {
  const { attempt } = claim;
  const startedMs = deps.clock.monotonicMs();
  const prefix = attemptPrefix(attempt.attachmentId, attempt.version, attempt.fence, attempt.attemptId);
  const variants: Variant[] = [];
  // Two at once, the largest first: then the small ones together take about as long as that one.
  const left = [...(rendered.rendering?.variants ?? [])].sort((one, other) => other.size - one.size);
  const store = async ({ path, ...picture }: RenderedVariant) => {
    signal.throwIfAborted();
    const key = `${prefix}${picture.name}.${picture.contentType === 'image/webp' ? 'webp' : 'jpg'}`;
    const body = (rendered.dir as ScratchDir).read(path);
    await deps.blobs.put(key, body, { contentType: picture.contentType, signal });
    await verifyStored(deps.blobs, key, picture, signal);
    variants.push({ ...picture, key });
    await deps.reach('worker.storing', attempt.jobId);
  };
  const lane = async () => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      await store(next).catch((error: unknown) => {
        left.length = 0;
        throw error;
      });
    }
  };
  await both(lane(), lane());
  signal.throwIfAborted();
  deps.meter.observe('store_seconds', (deps.clock.monotonicMs() - startedMs) / 1000);
  await deps.reach('worker.stored', attempt.jobId);
  const { width = null, height = null, frames = null, placeholder = null } = rendered.rendering ?? {};
  return { originalKey: rendered.originalKey, width, height, frames, placeholder, variants };
}

/** Step 6. Repeats the guarded settle while its outcome is unknown and the lease holds. */
export async function settle(
  claim: Claim,
  result: Result,
  deps: OutcomeDeps,
  settings: OutcomeSettings,
  signal: AbortSignal,
): Promise<Settled> {
  const options = { graceMs: settings.graceMs, replacedMs: settings.replacedMs, who: deps.who };
  const startedMs = deps.clock.monotonicMs();
  const outcome = await insist(claim, deps, signal, () => deps.store.settle(claim.attempt, result, options));
  deps.meter.observe('settle_seconds', (deps.clock.monotonicMs() - startedMs) / 1000);
  await deps.reach('worker.settled', claim.attempt.jobId);
  if (outcome === 'succeeded') return 'ready';
  return outcome === 'superseded' || outcome === 'cancelled' || outcome === 'ready' ? outcome : 'lost';
}

/** Ends an attempt that did not come to a result, by what stopped it. Never throws. */
export async function giveUp(
  claim: Claim,
  error: unknown,
  deps: OutcomeDeps,
  settings: OutcomeSettings,
  signal: AbortSignal,
): Promise<Outcome> {
  const fields = { job: claim.attempt.jobId, attachment: claim.attempt.attachmentId, fence: claim.attempt.fence };
  if (error instanceof Interrupted) {
    if (error.why === 'lost') return 'lost';
    deps.log.warn({ ...fields, why: error.why }, 'worker: gives its claim back');
    return release(claim, { why: error.why, reason: error.why, delayMs: 0 }, deps, settings);
  }
  if (error instanceof StoreError || (error instanceof BlobError && error.fault === 'unavailable')) {
    const dependency = error instanceof StoreError ? 'store' : 'storage';
    const breaker = deps.breakers[dependency];
    breaker.trip();
    deps.log.warn({ ...fields, error: describe(error) }, 'worker: a dependency is down, gives its claim back');
    const delayMs = Math.max(settings.releaseMs, breaker.mayCloseInMs());
    return release(claim, { why: dependency, reason: `${dependency} is down`, delayMs }, deps, settings);
  }
  if (error instanceof ScratchError || error instanceof ImagesError) {
    const part = error instanceof ScratchError ? 'disk' : 'renderer';
    // A full disk fails the next picture as well: without the breaker it took and gave back twenty jobs a second.
    if (part === 'disk') deps.breakers.disk.trip();
    deps.log.error({ ...fields, error: describe(error) }, `worker: its own ${part} failed, gives its claim back`);
    const reason = `the ${part} of the worker failed`;
    const delayMs =
      part === 'disk' ? Math.max(settings.releaseMs, deps.breakers.disk.mayCloseInMs()) : settings.releaseMs;
    return release(claim, { why: part, reason, delayMs }, deps, settings);
  }
  const code: Code =
    error instanceof SkrepkaError ? error.code : error instanceof BlobError ? 'storage_unavailable' : 'internal';
  const known: Code = catalogue[code].fate === 'caller' ? 'internal' : code;
  const outcome = await fail(claim, known, describe(error), deps, settings, signal);
  const said = { ...fields, code: known, error: describe(error), outcome };
  // Whoever deletes an attachment takes its objects from under the attempt: nothing is wrong with anything.
  if (outcome === 'cancelled') deps.log.info(said, 'worker: the attachment was deleted under the attempt');
  else deps.log.warn(said, 'worker: the attempt failed');
  if (outcome === 'retried' || outcome === 'failed') {
    deps.meter.count('attempt_failures_total', { code: known, outcome });
  }
  return outcome;
}

async function fail(
  claim: Claim,
  code: Code,
  detail: string,
  deps: OutcomeDeps,
  settings: OutcomeSettings,
  signal: AbortSignal,
): Promise<Outcome> {
  const retryMs = retryDelayMs(claim.failures, settings, deps.clock.random());
  const options = { budgets: settings, graceMs: settings.graceMs, who: deps.who };
  try {
    const outcome = await insist(claim, deps, signal, () =>
      deps.store.fail(claim.attempt, { code, detail, retryMs }, options),
    );
    if (outcome === 'queued') return 'retried';
    return outcome === 'retried' || outcome === 'failed' || outcome === 'cancelled' ? outcome : 'lost';
  } catch (error) {
    deps.log.warn({ job: claim.attempt.jobId, error: describe(error) }, 'worker: the failure could not be recorded');
    return 'lost';
  }
}

/** Fenced, so it is safe even after the lease's end; tried once, since the bell does the same later. */
async function release(
  claim: Claim,
  { why, reason, delayMs }: { why: string; reason: string; delayMs: number },
  deps: OutcomeDeps,
  settings: OutcomeSettings,
): Promise<Outcome> {
  deps.meter.count('releases_total', { why });
  try {
    return await deps.store.release(claim.attempt, { reason, delayMs, graceMs: settings.graceMs, who: deps.who });
  } catch (error) {
    deps.log.warn({ job: claim.attempt.jobId, error: describe(error) }, 'worker: the release could not be recorded');
    return 'lost';
  }
}

/**
 * Repeats one guarded write until its outcome is known. A guard that fails after an unknown outcome is read back: it may
 * have been this very write that came through. Throws the signal's reason when the lease ends meanwhile.
 */
async function insist<T extends string>(
  claim: Claim,
  deps: OutcomeDeps,
  signal: AbortSignal,
  write: () => Promise<T>,
): Promise<T | JobState> {
  const { attempt } = claim;
  let unknown = false;
  for (;;) {
    signal.throwIfAborted();
    try {
      const outcome = await write();
      return outcome === 'lost' && unknown ? ((await ownEnd(attempt, deps)) ?? outcome) : outcome;
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      unknown ||= error.fault === 'unknown';
      deps.log.warn({ job: attempt.jobId, fault: error.fault, error: describe(error) }, 'worker: outcome not known');
      await deps.clock.sleep(250, signal);
      // Where the process stood still meanwhile, its deadline is over as well: that has its turn before another write.
      await deps.clock.sleep(0, signal);
      if (!signal.aborted) continue;
      // A renewal is refused after this very write came through, too: reading it back is no write of a zombie.
      const ended = unknown ? await ownEnd(attempt, deps).catch(() => null) : null;
      if (!ended) throw signal.reason;
      return ended;
    }
  }
}

/** The state in which this attempt's own write left the job; null when it was not this attempt that ended it. */
async function ownEnd(attempt: Attempt, deps: OutcomeDeps): Promise<JobState | null> {
  const trace = await deps.store.readAttempt(attempt.jobId, attempt.attemptId);
  return trace.kind === 'ended' ? trace.jobState : null;
}
