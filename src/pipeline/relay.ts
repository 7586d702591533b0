/**
 * Step 2 of 8, relay: from a due bell to a message in the broker. Before it: accept, or any other writer of `ring_at`.
 * After it: the worker's claim.
 *
 * Durable when a round returns: the message, and the row's mark that says so.
 * Dies after taking, before the confirm: the bell rings again after `takenMs`. Dies between confirm and mark: it rings
 * twice, and the claim absorbs the second. Repaired by the bell in both cases; the relay itself holds nothing.
 */
import { describe } from '../errors.ts';
import type { Breaker } from './breaker.ts';
import { encodeRing, ringId } from './job.ts';
import { type Broker, BrokerError, type Clock, type Log, type Meter, type Reach, type Signals } from './ports.ts';
import { type Store, StoreError, type TakenRing } from './store.ts';

export interface RelaySettings {
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
const waitRefreshMs = 5000;

export function createRelay(deps: RelayDeps, settings: RelaySettings): Relay {
  const { store, broker, breakers, clock, log, meter, reach } = deps;
  let wake: AbortController | null = null;
  let disrupted = false;
  const poke = () => wake?.abort();
  let baseMs = settings.reringMs;
  let baseAtMs = Number.NEGATIVE_INFINITY;

  async function run(stop: AbortSignal) {
    const offSignal = deps.signals.listen('due', poke);
    const offBroker = broker.onDisrupted(() => {
      disrupted = true;
      poke();
    });
    stop.addEventListener('abort', poke, { once: true });
    let idleMs = idleFloorMs;
    while (!stop.aborted) {
      await breakers.store.closed(stop);
      await breakers.broker.closed(stop);
      // Armed before the round: a poke during it is not lost.
      wake = new AbortController();
      try {
        const rung = await round();
        idleMs = rung > 0 ? idleFloorMs : Math.min(idleMs * 2, idleCapMs);
        if (rung === 0) await clock.sleep(await untilDueMs(idleMs), wake.signal);
      } catch (error) {
        log.warn({ error: describe(error) }, 'relay: the store did not answer');
        meter.count('relay_faults_total', { dependency: 'store' });
        breakers.store.trip();
      }
    }
    offSignal();
    offBroker();
  }

  /** Due bells that find no place in a full window must not turn the loop hot: then the floor is waited. */
  async function untilDueMs(capMs: number): Promise<number> {
    return (await store.untilDueMs(capMs)) || idleFloorMs;
  }

  /** One batch; answers how many bells it took. */
  async function round(): Promise<number> {
    if (disrupted) {
      disrupted = false;
      const again = await store.ringAgain(settings.brokerWindow);
      log.info({ again }, 'relay: the broker was disrupted, announced jobs ring again');
      meter.count('bells_hastened_total', { reason: 'disrupted' }, again);
    }
    const rings = await store.takeDue({ limit: batchMax, window: settings.brokerWindow, takenMs: settings.takenMs });
    if (rings.length === 0) return 0;
    await reach('relay.taken', rings[0]?.jobId ?? '');
    await refreshBase();
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
    try {
      const jitter = 0.8 + 0.4 * clock.random();
      const marked = await store.markRung(ring, { baseMs, capMs: settings.reringCapMs, jitter });
      meter.count('bells_rung_total', { marked: String(marked), again: String(ring.again) });
    } catch (error) {
      // Not marked: it rings once more than needed.
      if (!(error instanceof StoreError)) throw error;
      log.warn({ job: ring.jobId, error: describe(error) }, 'relay: not marked');
    }
    await reach('relay.marked', ring.jobId);
  }

  /** Re-rings wait for three times what claims wait lately: under load a slow queue is not a lost message. */
  async function refreshBase() {
    if (clock.monotonicMs() - baseAtMs < waitRefreshMs) return;
    baseMs = Math.max(settings.reringMs, 3 * (await store.recentPace()).waitMs);
    baseAtMs = clock.monotonicMs();
  }

  return { run };
}
