/**
 * Step 2 of 8, relay: from a due bell to a message in the broker. Before it: accept, or any other writer of `ring_at`.
 * After it: the worker's claim.
 *
 * Durable when a round returns: the messages; soon after, of those that nobody has claimed, the row's mark that says so.
 * Dies after taking, before the confirm: the bell rings again after `takenMs`. Dies between confirm and mark: it rings
 * twice, and the claim absorbs the second. Repaired by the bell in both cases; the relay itself holds nothing.
 *
 * Between confirm and mark lies a part of `takenMs`: what is claimed by then, nearly everything, needs no mark, and its row is written once
 * less. Whoever stops the relay waits for the marks that are left, not for their time.
 */
import { describe } from '../errors.ts';
import type { Breaker } from './breaker.ts';
import { encodeRing, ringId } from './job.ts';
import { type Broker, BrokerError, type Clock, type Log, type Meter, type Reach, type Signals } from './ports.ts';
import { type Store, StoreError, type TakenRing } from './store.ts';

export interface RelaySettings {
  /** What the window may grow to: jobs announced and unclaimed. */
  readonly brokerWindow: number;
  readonly publishTimeoutMs: number;
  readonly takenMs: number;
  readonly reringMs: number;
  readonly reringCapMs: number;
}

export interface RelayDeps {
  readonly store: Store;
  readonly broker: Broker;
  readonly signals: Signals;
  readonly breakers: { readonly store: Breaker; readonly broker: Breaker };
  readonly clock: Clock;
  readonly log: Log;
  readonly meter: Meter;
  readonly reach: Reach;
}

export interface Relay {
  /** Announces due bells until `stop` aborts; then finishes the round that runs and resolves. Never rejects. */
  run(stop: AbortSignal): Promise<void>;
}

/** Bells taken at once: small, so that a dead relay leaves few to wait for `takenMs`. */
const batchMax = 64;
const idleFloorMs = 200;
const idleCapMs = 2000;

/**
 * What is announced cannot be overtaken any more, so a newcomer waits for all of it: two seconds of work at the pace of late,
 * or 32 jobs, a full round for eight workers of four slots. With all 1,000 places open from the start, a flood stood in front
 * of everybody for minutes. Two seconds are ten times the longest pause between two rounds with work waiting.
 */
const windowSeconds = 2;
const windowFloor = 32;
/** The pace is a mean of five seconds: asked for once a second it is fresh enough. */
const paceMs = 1000;
/**
 * The shortest pause of a relay whose window is full. Workers make places at any moment and tell nobody, so the pause follows
 * them: the shortest again when a quarter of the window was claimed in the last one, else doubled, up to the idle floor.
 */
const fullFloorMs = 10;
/** Longest time from a confirmation to its mark. */
const markMsMax = 1000;

export function createRelay(deps: RelayDeps, settings: RelaySettings): Relay {
  const { store, broker, breakers, clock, log, meter, reach } = deps;
  let wake: AbortController | null = null;
  let disrupted = false;
  const poke = () => wake?.abort();
  let pace = { waitMs: 0, claimsPerSecond: 0 };
  let paceAtMs = Number.NEGATIVE_INFINITY;
  let idleMs = idleFloorMs;
  let full = false;
  let fullMs = fullFloorMs;
  /** Confirmed and not marked yet, in this order. */
  let confirmed: { readonly ring: TakenRing; readonly atMs: number }[] = [];
  // Well before the ring that a mark puts off.
  const markMs = Math.floor(
    Math.min(markMsMax, (settings.takenMs - settings.publishTimeoutMs) / 2, settings.takenMs / 8),
  );

  async function run(stop: AbortSignal) {
    const offSignal = deps.signals.listen('due', () => {
      if (!full) poke();
    });
    const offBroker = broker.onDisrupted(() => {
      disrupted = true;
      poke();
    });
    stop.addEventListener('abort', poke, { once: true });
    let taken = 0;
    while (!stop.aborted) {
      await breakers.store.closed(stop);
      // What is confirmed is confirmed: while nothing can be published its bells would ring once more.
      if (breakers.broker.isOpen()) await markLeft();
      await breakers.broker.closed(stop);
      // Armed before the round: a poke during it is not lost.
      wake = new AbortController();
      try {
        const rung = await round();
        taken += rung;
        if (markIsDueInMs() <= 0) await markAll();
        if (rung > 0) continue;
        await clock.sleep(Math.min(await pauseAfter(taken), markIsDueInMs()), wake.signal);
        taken = 0;
      } catch (error) {
        log.warn({ error: describe(error) }, 'relay: the store did not answer');
        meter.count('relay_faults_total', { dependency: 'store' });
        breakers.store.trip();
      }
      full = false;
    }
    await markLeft();
    offSignal();
    offBroker();
  }

  /** Until the next bell at most. A bell that is due and was not taken found no place: nor would another that is set now. */
  async function pauseAfter(taken: number): Promise<number> {
    idleMs = taken > 0 ? idleFloorMs : Math.min(idleMs * 2, idleCapMs);
    const untilDueMs = await store.untilDueMs(idleMs);
    full = untilDueMs === 0;
    const claimedFast = !full || taken * 4 >= windowNow();
    fullMs = claimedFast ? fullFloorMs : Math.min(fullMs * 2, idleFloorMs);
    return full ? fullMs : untilDueMs;
  }

  /** One batch; answers how many bells it took. */
  async function round(): Promise<number> {
    if (disrupted) {
      disrupted = false;
      const again = await store.ringAgain(settings.brokerWindow);
      log.info({ again }, 'relay: the broker was disrupted, announced jobs ring again');
      meter.count('bells_hastened_total', { reason: 'disrupted' }, again);
    }
    await refreshPace();
    const rings = await store.takeDue({ limit: batchMax, window: windowNow(), takenMs: settings.takenMs });
    if (rings.length === 0) return 0;
    await reach('relay.taken', rings[0]?.jobId ?? '');
    await Promise.all(rings.map(announce));
    return rings.length;
  }

  async function announce(ring: TakenRing) {
    try {
      await broker.publish(ringId(ring), encodeRing(ring), { timeoutMs: settings.publishTimeoutMs });
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error;
      log.warn(
        { job: ring.jobId, ring: ring.ring, fault: error.fault, error: describe(error) },
        'relay: not confirmed',
      );
      meter.count('relay_faults_total', { dependency: 'broker' });
      // Taking more now would only wear bells out.
      breakers.broker.trip();
      return;
    }
    await reach('relay.published', ring.jobId);
    confirmed.push({ ring, atMs: clock.monotonicMs() });
  }

  /** 0: the first of them has waited for its time. */
  function markIsDueInMs(): number {
    const [first] = confirmed;
    return first ? Math.max(0, Math.ceil(first.atMs + markMs - clock.monotonicMs())) : Number.POSITIVE_INFINITY;
  }

  async function markAll() {
    const all = confirmed;
    confirmed = [];
    await Promise.all(all.map(({ ring }) => mark(ring)));
  }

  /** Outside of a round nobody looks after what may be thrown. */
  async function markLeft() {
    await markAll().catch((error: unknown) => log.warn({ error: describe(error) }, 'relay: not marked'));
  }

  async function mark(ring: TakenRing) {
    try {
      const jitter = 0.8 + 0.4 * clock.random();
      // Under load a slow queue is not a lost message: three times what claims wait of late.
      const baseMs = Math.max(settings.reringMs, 3 * pace.waitMs);
      const marked = await store.markRung(ring, { baseMs, capMs: settings.reringCapMs, jitter });
      meter.count('bells_rung_total', { marked: String(marked), again: String(ring.again) });
    } catch (error) {
      // Not marked: it rings once more than needed.
      if (!(error instanceof StoreError)) throw error;
      log.warn({ job: ring.jobId, error: describe(error) }, 'relay: not marked');
    }
    await reach('relay.marked', ring.jobId);
  }

  async function refreshPace() {
    if (clock.monotonicMs() - paceAtMs < paceMs) return;
    pace = await store.recentPace();
    paceAtMs = clock.monotonicMs();
  }

  function windowNow(): number {
    const paced = Math.ceil(windowSeconds * pace.claimsPerSecond);
    return Math.min(Math.max(paced, windowFloor), settings.brokerWindow);
  }

  return { run };
}
