/**
 * The ports of one simulated process: every call is an effect of the world, on the store's model, the storage and the broker.
 *
 * What a call that goes wrong answers is what the drivers' contracts say: `unavailable` when it certainly did nothing or only
 * read, `unknown` when it may have happened.
 */
import { Readable } from 'node:stream';
import { BlobError, type Blobs, type Broker, BrokerError, type Clock, type Signals } from '../../src/pipeline/ports.ts';
import { type Store, StoreError } from '../../src/pipeline/store.ts';
import type { Bells, Objects } from './engines.ts';
import type { Watch } from './invariants-verbs.ts';
import type { Moments } from './store-tables.ts';
import type { Fate, Manner, Process, World } from './world.ts';

/* ------------------------------------------------------------------- clock */

/** A fixed moment of 2026, so that ids and dates are the same in every run. */
export const epochMs = Date.UTC(2026, 0, 1);

export function createIds(world: World): () => string {
  let number = 0;
  const hex = (length: number) => Array.from({ length }, () => Math.floor(world.random() * 16).toString(16)).join('');
  return () => {
    number += 1;
    const time = (epochMs + Math.floor(world.nowMs())).toString(16).padStart(12, '0');
    return `${time.slice(0, 8)}-${time.slice(8)}-7${(number % 4096).toString(16).padStart(3, '0')}-8${hex(3)}-${hex(12)}`;
  };
}

export function clockOf(world: World, process: Process, newId: () => string): Clock {
  const zeroMs = world.between(0, 1_000_000);
  const skewMs = world.between(-2_000, 2_000);
  return {
    monotonicMs: () => zeroMs + world.nowMs(),
    wallMs: () => epochMs + world.nowMs() + skewMs,
    random: () => world.random(),
    newId,
    sleep: (ms, signal) =>
      new Promise((resolve) => {
        if (!process.alive) return;
        if (signal?.aborted) return resolve();
        const over = () => {
          signal?.removeEventListener('abort', over);
          callOff();
          resolve();
        };
        const callOff = world.after(ms, () => world.wake(process, over));
        signal?.addEventListener('abort', over, { once: true });
      }),
  };
}

/* ------------------------------------------------------------------- store */

/** Verbs of the store that change nothing. */
export const reads: ReadonlySet<string> = new Set([
  ...[
    'arrive',
    'load',
    'countAnnounced',
    'recentPace',
    'untilDueMs',
    'readAttempt',
    'dueCleanups',
    'namedAmong',
    'awaitingCleanup',
  ],
  ...['knownAttachments', 'attachmentFor', 'acceptedAttachment', 'listAttachments', 'queue', 'listJobs', 'job'],
  ...['failedJobs', 'countFailed', 'reprocessing', 'countBelow', 'audit', 'audited', 'health'],
]);

/** After which the driver wakes relays by itself. */
const announcing: ReadonlySet<string> = new Set([
  'accept',
  'fail',
  'release',
  'replay',
  'reprocess',
  'rebuild',
  'feedReprocessing',
]);

export const ofReads: Manner = {
  fates: ['before', 'slow', 'crash_before', 'crash_after', 'pause'],
  before: () => new StoreError('unavailable', 'simulated: not asked'),
  unknown: () => new StoreError('unavailable', 'simulated: no answer'),
};
export const ofWrites: Manner = {
  fates: ['before', 'lost', 'slow', 'late', 'crash_before', 'crash_after', 'pause'],
  before: () => new StoreError('unavailable', 'simulated: not sent'),
  unknown: () => new StoreError('unknown', 'simulated: no answer'),
};

/** The lead under a name: a process, and how it hears that another has it now. */
export type Leads = Map<string, { readonly process: Process; readonly lost: () => void }>;

/** `told` is what the driver announces by itself once a verb has come through. */
export function storeOf(
  world: World,
  process: Process,
  { moments, signals, leads }: { moments: Moments; signals: Signals; leads: Leads },
): Store {
  const verbs = new Proxy({} as Store, {
    get(_target, verb: string) {
      if (verb === 'close') return async () => {};
      if (verb === 'health') return () => world.effect(process, 'store.health', ofReads, () => undefined);
      if (verb === 'lead') return (name: string, work: (signal: AbortSignal) => Promise<void>) => lead(name, work);
      return async (...given: never[]) => {
        const manner = reads.has(verb) ? ofReads : ofWrites;
        const act = (moments as unknown as Record<string, (...given: never[]) => unknown>)[verb];
        if (!act) {
          world.fail(new Error(`the model has no verb ${verb}`));
          return await new Promise(() => {});
        }
        const answer = await world.effect(process, `store.${verb}`, manner, () => act(...given));
        if (announcing.has(verb)) signals.announce('due');
        return answer;
      };
    },
  });

  async function lead(name: string, work: (signal: AbortSignal) => Promise<void>): Promise<boolean> {
    const lost = new AbortController();
    const isMine = await world.effect(process, 'store.lead', ofReads, () => {
      const held = leads.get(name);
      // A leader that sleeps may lose its connection, and with it the lock; it hears of that when it is awake.
      const isFree = !held?.process.alive || held.process.pausedUntilMs > world.nowMs();
      if (!isFree) return false;
      held?.lost();
      leads.set(name, {
        process,
        lost: () => world.after(world.between(1, 5_000), () => world.in(process, () => lost.abort())),
      });
      return true;
    });
    if (!isMine) return false;
    try {
      await work(lost.signal);
      return true;
    } finally {
      if (leads.get(name)?.process === process) leads.delete(name);
    }
  }
  return verbs;
}

/** Wakes sleepers of all processes, unless the announcement is lost on its way. */
export function createAnnouncements(world: World) {
  const listeners = new Set<{ topic: string; process: Process; hear: (id: string | null) => void }>();
  return (process: Process): Signals => ({
    announce(topic, id) {
      for (const one of listeners) {
        if (one.topic !== topic || !one.process.alive || world.random() < 0.2) continue;
        world.after(world.between(1, 50), () => world.in(one.process, () => one.hear(id ?? null)));
      }
    },
    listen(topic, hear) {
      const one = { topic, process, hear };
      listeners.add(one);
      return () => listeners.delete(one);
    },
    close: async () => {},
  });
}

/* ------------------------------------------------------------------- blobs */

const away = (what: string) => () => new BlobError('unavailable', `simulated: ${what}`);
const ofObjects = (fates: readonly Fate[]): Manner => ({ fates, before: away('not sent'), unknown: away('no answer') });
export const toRead = ofObjects(['before', 'slow', 'crash_before', 'crash_after', 'pause']);
export const toWrite = ofObjects(['before', 'lost', 'slow', 'late', 'twice', 'crash_before', 'crash_after', 'pause']);

/** `onWrite` hears of every object that is about to be stored. */
export function blobsOf(
  world: World,
  process: Process,
  objects: Objects,
  onWrite: (process: Process, key: string) => void,
): Blobs {
  const effect = <T>(verb: string, manner: Manner, happen: () => T) =>
    world.effect(process, `blobs.${verb}`, manner, happen);
  return {
    prepare: async () => {},
    async put(key, body, options) {
      const chunks: Uint8Array[] = [];
      for await (const chunk of body) {
        options?.signal?.throwIfAborted();
        chunks.push(chunk);
      }
      options?.signal?.throwIfAborted();
      onWrite(process, key);
      const answer = await effect('put', toWrite, () => objects.put(key, Buffer.concat(chunks)));
      if (!options?.verify) return answer;
      return { size: (await effect('head', toRead, () => objects.stored.get(key)))?.bytes.length ?? 0 };
    },
    async open(key, range) {
      if (range) throw new Error('the simulation reads whole objects');
      const { bytes } = await effect('open', toRead, () => objects.get(key));
      return { size: bytes.length, body: Readable.from([bytes]) };
    },
    head: (key) =>
      effect('head', toRead, () => {
        const found = objects.stored.get(key);
        return found ? { size: found.bytes.length } : null;
      }),
    copy(from, to) {
      onWrite(process, to);
      return effect('copy', toWrite, () => objects.copy(from, to));
    },
    deleteMany: (keys) => effect('deleteMany', toWrite, () => objects.remove(keys)),
    list: (prefix, options = {}) =>
      effect('list', toRead, () => objects.list(prefix, options.after, options.limit ?? 1000)),
    presign: async () => null,
    health: () => effect('health', toRead, () => undefined),
    close: async () => {},
  };
}

/* ------------------------------------------------------------------ broker */

const ofBroker = (fates: readonly Fate[]): Manner => ({
  fates,
  before: () => new BrokerError('unavailable', 'simulated: not sent'),
  unknown: () => new BrokerError('unknown', 'simulated: no confirmation'),
});
export const toPublish = ofBroker(['before', 'lost', 'slow', 'late', 'twice', 'crash_before', 'crash_after', 'pause']);
export const toAsk = ofBroker(['before', 'slow']);
export const toEnd = ofBroker(['before', 'lost', 'late', 'twice', 'crash_before', 'crash_after', 'pause']);

export function brokerOf(world: World, process: Process, bells: Bells, watch: Watch): Broker {
  const effect = (verb: string, manner: Manner, happen: () => void) =>
    world.effect(process, `broker.${verb}`, manner, happen);
  return {
    prepare: async () => {},
    async publish(id, body) {
      watch.publishes(process, id, body);
      await effect('publish', toPublish, () => bells.publish(id, body));
      watch.confirmed(process, id);
    },
    async consumer({ visibilityMs }) {
      return {
        next: (signal) =>
          new Promise((resolve) => {
            if (!process.alive) return;
            if (signal.aborted) return resolve(null);
            const leave = bells.ask({
              visibilityMs,
              take: ({ sequence, body, deliveries }) => {
                const hand = () => {
                  signal.removeEventListener('abort', gone);
                  const end = (verb: string, happen: () => void) => {
                    watch.ends(process, verb, body);
                    return effect(verb, toEnd, happen);
                  };
                  resolve({
                    body,
                    deliveries,
                    ack: () => end('ack', () => bells.ack(sequence)),
                    nak: (delayMs) => end('nak', () => bells.nak(sequence, delayMs)),
                    extend: () => end('extend', () => bells.extend(sequence, visibilityMs)),
                  });
                };
                world.after(world.between(1, 20), () => world.in(process, hand));
              },
            });
            const gone = () => {
              leave();
              resolve(null);
            };
            process.onDeath.push(leave);
            signal.addEventListener('abort', gone, { once: true });
          }),
        close: async () => {},
      };
    },
    onDisrupted: (listener) =>
      bells.onDisrupted(() =>
        world.in(process, () => {
          watch.disrupted(process);
          listener();
        }),
      ),
    depth: async () => bells.depth(),
    health: () => effect('health', toAsk, () => {}),
    close: async () => {},
  };
}
