/**
 * Step 3 of 8, claim, and the life of an attempt around steps 4 to 7. Before it: the relay's message. After it: render.
 *
 * Durable when a claim returns: fence, attempt and lease. Dies in it: the lease ends, the bell rings, the next claim counts
 * a crash. A claim of unknown outcome is read back by its attempt id. One attempt at a time holds a job; everything it
 * writes is fenced, and an attempt that lost its lease is silent: brokers do not fence acks, so a late one would remove
 * its successor's message.
 */
import { describe } from '../errors.ts';
import { decodeRing, type Ring } from './job.ts';
import {
  giveUp,
  Interrupted,
  type Interruption,
  type Outcome,
  type OutcomeDeps,
  type OutcomeSettings,
  settle,
  storeObjects,
} from './outcome.ts';
import type { Broker, Consumer, Delivery } from './ports.ts';
import { type RenderDeps, type Rendered, render } from './render.ts';
import { type Claim, type ClaimResult, StoreError } from './store.ts';

export interface WorkerSettings extends OutcomeSettings {
  readonly renderConcurrency: number;
  readonly prefetch: number;
  readonly visibilityMs: number;
  readonly leaseMs: number;
  readonly renewMs: number;
  readonly leaseReserveMs: number;
  readonly leaseMarginMs: number;
  readonly starvedMs: number;
  /** How long a job waits for a build that has its recipe. */
  readonly unsupportedMs: number;
  /** Pipeline versions whose recipes this build has. */
  readonly versions: readonly number[];
}

export type WorkerDeps = OutcomeDeps & RenderDeps & { readonly broker: Broker };

export interface Worker {
  /**
   * Takes and works until `stop` aborts, then finishes what runs; when `abort` aborts, breaks it off and gives it back.
   * Resolves when nothing runs any more. Never rejects.
   */
  run(signals: { stop: AbortSignal; abort: AbortSignal }): Promise<void>;
  /** Attempts running now. */
  busy(): number;
}

export function createWorker(deps: WorkerDeps, settings: WorkerSettings): Worker {
  const { store, broker, clock, log, meter, reach } = deps;
  const gate = createGate(settings.renderConcurrency, (busy) => meter.gauge('worker_slots_busy', busy));
  let lastDeliveryMs = clock.monotonicMs();
  /** Since when a slot is free and nothing was there to do. */
  let hungryMs = clock.monotonicMs();
  let connected = false;
  /** Without any of these no attempt comes to an end. */
  const needed = [deps.breakers.store, deps.breakers.storage, deps.breakers.disk];

  async function run({ stop, abort }: { stop: AbortSignal; abort: AbortSignal }) {
    meter.gauge('worker_slots', settings.renderConcurrency);
    meter.gauge('worker_slots_busy', 0);
    meter.gauge('worker_starved_seconds', 0);
    const watch = watchStarvation(stop);
    await prepareScratch(stop);
    const consumer = await connect(stop);
    if (!consumer) return watch;
    connected = true;
    const slots = Array.from({ length: settings.renderConcurrency }, () => keepSlot(consumer, { stop, abort }));
    await Promise.all(slots);
    await watch;
    fed();
    await consumer.close().catch(() => undefined);
  }

  /** One slot, one delivery after the other. As many ask as slots are free, so that a broker can answer them together. */
  async function keepSlot(consumer: Consumer, { stop, abort }: { stop: AbortSignal; abort: AbortSignal }) {
    while (!stop.aborted) {
      // A free slot first, then a delivery: what a busy worker holds nobody else can take.
      await gate.open(stop);
      // And nothing is taken while what every attempt needs is away.
      for (const breaker of needed) await breaker.closed(stop);
      const delivery = stop.aborted ? null : await consumer.next(stop);
      if (!delivery) continue;
      lastDeliveryMs = clock.monotonicMs();
      const awayMs = Math.max(...needed.map((breaker) => breaker.mayCloseInMs()));
      // While this one waited for it, a job that runs alone has come, or a dependency has gone.
      if (stop.aborted || awayMs > 0 || !gate.enter()) {
        await delivery.nak(awayMs).catch(() => undefined);
        continue;
      }
      await handle(delivery, abort)
        .catch((error: unknown) => log.error({ error: describe(error) }, 'worker: a delivery ended unexpectedly'))
        .finally(() => {
          // A full worker was not hungry: its wait begins with the slot that is free again.
          if (!gate.idle()) fed();
          gate.leave();
        });
    }
  }

  /** A worker without a disk of its own would only burn through jobs: it waits, and says so. */
  async function prepareScratch(stop: AbortSignal) {
    while (!stop.aborted) {
      try {
        return await deps.scratch.sweep();
      } catch (error) {
        log.error({ error: describe(error) }, 'worker: its disk cannot be used, nothing is taken');
        await clock.sleep(settings.releaseMs, stop);
      }
    }
  }

  async function connect(stop: AbortSignal): Promise<Consumer | null> {
    while (!stop.aborted) {
      try {
        return await broker.consumer({ prefetch: settings.prefetch, visibilityMs: settings.visibilityMs });
      } catch (error) {
        log.warn({ error: describe(error) }, 'worker: no broker yet');
        await clock.sleep(1000, stop);
      }
    }
    return null;
  }

  function fed() {
    hungryMs = clock.monotonicMs();
    meter.gauge('worker_starved_seconds', 0);
  }

  /**
   * Free slots and nothing delivered while jobs wait. Announced ones the broker may have lost: they ring again. And it is
   * told, because it never is in order: a job waits, and who could do it gets nothing.
   */
  async function watchStarvation(stop: AbortSignal) {
    while (!stop.aborted) {
      await clock.sleep(settings.starvedMs, stop);
      // Whoever does not ask is not starved: the breakers have a metric of their own.
      if (!gate.idle() || needed.some((breaker) => breaker.isOpen())) fed();
      const hungryForMs = clock.monotonicMs() - hungryMs;
      if (stop.aborted || hungryForMs < settings.starvedMs) continue;
      try {
        meter.gauge('worker_starved_seconds', (await waitingMs(hungryForMs)) / 1000);
        const silentMs = clock.monotonicMs() - lastDeliveryMs;
        if (!connected || silentMs < settings.starvedMs || (await store.countAnnounced()) === 0) continue;
        const again = await store.ringAgain(settings.renderConcurrency);
        meter.count('bells_hastened_total', { reason: 'starved' }, again);
        log.info({ again }, 'worker: starved, announced jobs ring again');
      } catch (error) {
        log.debug({ error: describe(error) }, 'worker: the store did not answer');
      }
    }
  }

  /** For how long a job has waited of the time in which this worker could have done it. */
  async function waitingMs(hungryForMs: number): Promise<number> {
    // Mostly nothing waits at all, and this question is the cheaper one.
    if ((await store.untilDueMs(1)) > 0 && (await store.countAnnounced()) === 0) return 0;
    return Math.min(hungryForMs, ((await store.queue()).oldestDueSeconds ?? 0) * 1000);
  }

  async function handle(delivery: Delivery, abort: AbortSignal) {
    const ring = decodeRing(delivery.body);
    if (!ring) {
      log.warn({}, 'worker: a message that is no ring was removed');
      return ended(delivery);
    }
    const startMs = clock.monotonicMs();
    const result = await claim(ring, startMs + settings.leaseMs - settings.leaseReserveMs, abort);
    // Whether it was claimed is not known and the store is away: the broker brings it again, the lease ends by itself.
    if (!result) return;
    if (result.kind === 'refused') {
      meter.count('claims_refused_total', { reason: result.reason });
      if (result.reason === 'exhausted') {
        meter.count('attempt_failures_total', { code: 'worker_lost', outcome: 'failed' });
      }
      // The bell remembers what is not finished; holding the message would only block a place.
      return ended(delivery);
    }
    const { claim: claimed, waited } = result;
    fed();
    if (waited) meter.observe('claim_wait_seconds', waited.dueMs / 1000);
    const outcome = await attempt(claimed, delivery, startMs, abort);
    meter.count('attempts_total', { outcome });
    if (outcome === 'ready') {
      const tookMs = clock.monotonicMs() - startMs;
      meter.observe('attempt_seconds', tookMs / 1000);
      // Of a first version: somebody has waited for it since the 202.
      const isFirst = claimed.originalKey === null;
      if (waited && isFirst) meter.observe('ready_seconds', (waited.acceptedMs + tookMs) / 1000);
    }
    if (outcome === 'lost') return;
    await ended(delivery);
    await reach('worker.acked', ring.jobId);
  }

  /** A lost ack only means a redelivery, which finds a finished job. */
  async function ended(delivery: Delivery) {
    await delivery.ack().catch((error: unknown) => log.debug({ error: describe(error) }, 'worker: the ack was lost'));
  }

  async function claim(ring: Ring, deadlineMs: number, abort: AbortSignal): Promise<ClaimResult | null> {
    const attemptId = clock.newId();
    const request = {
      jobId: ring.jobId,
      attemptId,
      worker: deps.who,
      leaseMs: settings.leaseMs,
      marginMs: settings.leaseMarginMs,
      versions: settings.versions,
      budgets: settings,
      graceMs: settings.graceMs,
      unsupportedMs: settings.unsupportedMs,
    };
    try {
      return await store.claim(request);
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      log.warn({ job: ring.jobId, fault: error.fault, error: describe(error) }, 'worker: claim not answered');
      if (error.fault === 'unavailable') {
        deps.breakers.store.trip();
        return null;
      }
    }
    while (!abort.aborted && clock.monotonicMs() < deadlineMs) {
      try {
        const trace = await store.readAttempt(ring.jobId, attemptId);
        return trace.kind === 'running' ? { kind: 'claimed', claim: trace.claim, waited: null } : null;
      } catch (error) {
        if (!(error instanceof StoreError)) throw error;
        await clock.sleep(250, abort);
      }
    }
    return null;
  }

  async function attempt(claim: Claim, delivery: Delivery, startMs: number, abort: AbortSignal): Promise<Outcome> {
    const { attempt: at } = claim;
    log.info(
      { job: at.jobId, attachment: at.attachmentId, fence: at.fence, crashes: claim.crashes },
      'worker: claimed',
    );
    const lease = keepLease(claim, delivery, startMs, abort);
    let rendered: Rendered | null = null;
    let aloneLeave: (() => void) | null = null;
    try {
      await reach('worker.claimed', at.jobId);
      // What brought a worker down once may do so again: it takes nobody else's work with it, not even another suspect's.
      if (claim.crashes > 0) aloneLeave = await gate.alone(lease.signal);
      rendered = await render(claim, deps, lease.signal);
      const result = await storeObjects(claim, rendered, deps, lease.signal);
      const outcome = await settle(claim, result, deps, settings, lease.signal);
      log.info({ job: at.jobId, attachment: at.attachmentId, fence: at.fence, outcome }, 'worker: settled');
      return outcome;
    } catch (error) {
      const cause = lease.signal.aborted ? lease.signal.reason : error;
      // Awaited here: until it has ended the lease is kept, and its deadline watched.
      return await giveUp(claim, cause, deps, settings, lease.signal);
    } finally {
      lease.end();
      aloneLeave?.();
      await rendered?.dir?.remove().catch(() => undefined);
    }
  }

  /**
   * Renews the lease from here, never from what renders, and tells the broker only after the store agreed. The worker's
   * own deadline is (start of the renewal + lease − reserve) on its own monotonic clock: also when the store is silent.
   */
  function keepLease(claim: Claim, delivery: Delivery, startMs: number, abort: AbortSignal) {
    const broken = new AbortController();
    const over = new AbortController();
    let deadlineMs = startMs + settings.leaseMs - settings.leaseReserveMs;
    const breakOff = (why: Interruption) => {
      if (over.signal.aborted) return;
      const fields = { job: claim.attempt.jobId, fence: claim.attempt.fence, why };
      log.warn(fields, 'worker: the attempt is broken off');
      meter.count('leases_broken_total', { why });
      broken.abort(new Interrupted(why));
      over.abort();
    };
    const drain = () => breakOff('drain');
    if (abort.aborted) drain();
    abort.addEventListener('abort', drain, { once: true });

    async function renew() {
      while (!over.signal.aborted) {
        await clock.sleep(settings.renewMs, over.signal);
        if (over.signal.aborted) return;
        const calledMs = clock.monotonicMs();
        try {
          const held = await store.renew(claim.attempt, {
            leaseMs: settings.leaseMs,
            marginMs: settings.leaseMarginMs,
          });
          if (!held) return breakOff('lost');
          deadlineMs = Math.max(deadlineMs, calledMs + settings.leaseMs - settings.leaseReserveMs);
          if (!over.signal.aborted) void delivery.extend().catch(() => undefined);
        } catch (error) {
          log.warn({ job: claim.attempt.jobId, error: describe(error) }, 'worker: not renewed');
        }
      }
    }
    // Beside the renewals, not among them: one that hangs must not hide the deadline.
    async function watchDeadline() {
      while (!over.signal.aborted) {
        const leftMs = deadlineMs - clock.monotonicMs();
        if (leftMs <= 0) return breakOff('expired');
        await clock.sleep(leftMs, over.signal);
      }
    }
    const loops = Promise.all([renew(), watchDeadline()]);
    void loops.catch((error: unknown) => {
      log.error({ error: describe(error) }, 'worker: the renewal ended unexpectedly');
      breakOff('expired');
    });
    return {
      signal: broken.signal,
      end() {
        over.abort();
        abort.removeEventListener('abort', drain);
      },
    };
  }

  return { run, busy: gate.busy };
}

/** Slots, and the right of one attempt to run alone: then none is taken, and it starts when all others have ended. */
function createGate(slotsMax: number, onHeld: (held: number) => void) {
  let held = 0;
  let lone = false;
  const waiters = new Set<() => void>();
  const changed = () => {
    for (const wake of [...waiters]) wake();
  };
  const isOpen = () => held < slotsMax && !lone;

  async function until(condition: () => boolean, signal: AbortSignal) {
    while (!condition() && !signal.aborted) {
      await new Promise<void>((resolve) => {
        const wake = () => {
          waiters.delete(wake);
          signal.removeEventListener('abort', wake);
          resolve();
        };
        waiters.add(wake);
        signal.addEventListener('abort', wake, { once: true });
      });
    }
  }

  return {
    busy: () => held,
    idle: isOpen,
    open: (signal: AbortSignal) => until(isOpen, signal),
    enter() {
      if (!isOpen()) return false;
      held += 1;
      onHeld(held);
      return true;
    },
    leave() {
      held -= 1;
      onHeld(held);
      changed();
    },
    /**
     * Turns a held slot into the lone one; throws the signal's reason. Answers how to end it, before the slot is left. Throws
     * `Interrupted` where another was claimed at the same moment and is it already: one that waited beside it would be charged
     * with its crash.
     */
    async alone(signal: AbortSignal) {
      if (lone) throw new Interrupted('alone');
      lone = true;
      const leave = () => {
        lone = false;
        changed();
      };
      changed();
      await until(() => held === 1, signal);
      if (!signal.aborted) return leave;
      leave();
      throw signal.reason;
    },
  };
}
