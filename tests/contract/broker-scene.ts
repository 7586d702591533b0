/** What the cases of the broker suite work with: a harness, the driver's traits, and the verbs of their sentences. */
import assert from 'node:assert/strict';
import { type Broker, BrokerError, type Consumer, type Delivery } from '../../src/pipeline/ports.ts';
import { until } from '../support/until.ts';

export interface BrokerTraits {
  /** Visibility of the deliveries in the suite, the shortest that the broker keeps well. */
  readonly visibilityMs: number;
  /**
   * The same for a delivery that is extended. A server that redelivers by its own clock does so by right when this process
   * stands still for 0.6 of it. Default: `visibilityMs`.
   */
  readonly extendedMs?: number;
  /** `deliveries` grows with every hand-over. */
  readonly countsDeliveries: boolean;
  /** A late ack of an earlier delivery leaves the message of its successor alone. */
  readonly fencesAcks: boolean;
  /** A second publish of an id that is still held adds nothing. */
  readonly dropsDuplicates: boolean;
}

/** One queue of a case, and its server. */
export interface BrokerHarness {
  /** A client with connections of its own, prepared. */
  open(): Promise<Broker>;
  /** Stops the server in order. It keeps what it holds. */
  stop(): Promise<void>;
  /** Ends the server without a word (SIGKILL). It keeps what it confirmed. */
  kill(): Promise<void>;
  /** Starts the stopped or killed server again, with what it kept. */
  start(): Promise<void>;
  /** All it held is gone, as after a restart without its volume; it runs again when this resolves. Clients were not told. */
  wipe(): Promise<void>;
  /** Breaks every connection of the clients; the server goes on. */
  cut(): Promise<void>;
  /** Takes one message in a process of its own, which is killed with it in hand. */
  takeAndDie(visibilityMs: number): Promise<void>;
  /** Removes queue and connections; the server may stay for the next case. */
  close(): Promise<void>;
}

/** What a case works with: clients are closed when it ends. */
export interface Scene {
  readonly harness: BrokerHarness;
  readonly traits: BrokerTraits;
  open(): Promise<Broker>;
}

export type Promised = (title: string, body: (scene: Scene) => Promise<void>) => void;

/** Long enough for any broker to reconnect on a busy machine; no case waits for all of it. */
export const patienceMs = 30_000;
export const publishMs = 5_000;
/** Far beyond the length of a case: what comes within one is no redelivery. */
export const longMs = 120_000;

const bytes = (text: string) => new TextEncoder().encode(text);
export const text = (delivery: Delivery | null) => (delivery ? new TextDecoder().decode(delivery.body) : null);

export const publish = (broker: Broker, id: string) => broker.publish(id, bytes(id), { timeoutMs: publishMs });

/** The next delivery; fails the case when none comes. */
export async function receive(consumer: Consumer): Promise<Delivery> {
  const delivery = await consumer.next(AbortSignal.timeout(patienceMs));
  assert.ok(delivery, `expected a delivery within ${patienceMs} ms`);
  return delivery;
}

/** Fails the case when anything comes within `ms`. */
export async function nothing(consumer: Consumer, ms: number): Promise<void> {
  assert.equal(text(await consumer.next(AbortSignal.timeout(Math.max(1, Math.round(ms))))), null);
}

/** Publishes until it is confirmed: what a relay does through an outage. */
export async function publishInTheEnd(broker: Broker, id: string): Promise<void> {
  // A confirmation that is late makes it unknown and stored, and the repetition doubles it where ids are not compared.
  const attempt = () => publish(broker, id);
  const faults = new Set<string>();
  await until(`${id} is published`, () =>
    attempt().then(
      () => true,
      (error) => {
        assert.ok(error instanceof BrokerError, String(error));
        faults.add(error.fault);
        return false;
      },
    ),
  );
  assert.ok(!faults.has('refused'), 'an outage is no refusal');
}

/** A promise of the first disruption from now on. */
export function disruption(broker: Broker): { happened: Promise<void>; count: () => number } {
  const { promise, resolve } = Promise.withResolvers<void>();
  let count = 0;
  broker.onDisrupted(() => {
    count += 1;
    resolve();
  });
  const late = AbortSignal.timeout(patienceMs);
  const happened = Promise.race([
    promise,
    new Promise<void>((_, reject) => {
      late.addEventListener('abort', () => reject(new Error('expected a disruption to be reported')), { once: true });
    }),
  ]);
  return { happened, count: () => count };
}

export const isFault = (faults: readonly string[]) => (error: unknown) =>
  error instanceof BrokerError && faults.includes(error.fault);

export const patient = { prefetch: 0, visibilityMs: longMs };
