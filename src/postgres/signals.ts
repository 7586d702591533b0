/**
 * Signals by LISTEN and NOTIFY: wakes the sleepers of this and every other process a few milliseconds after a change.
 *
 * Each NOTIFY is a statement of its own, never part of a transaction of the store: one inside it would hold a lock of the
 * whole PostgreSQL instance until the commit. Lossy by contract, so a failed NOTIFY is only logged.
 */
import { randomBytes } from 'node:crypto';
import { describe } from '../errors.ts';
import type { Log, Signals, Topic } from '../pipeline/ports.ts';
import { type Listener, listen, type Pool, single } from './pool.ts';

const channels: Readonly<Record<Topic, string>> = { due: 'skrepka_due', changed: 'skrepka_changed' };
/**
 * What is announced within this time after a NOTIFY shares the next; the first after a silence goes with its turn of the event loop.
 * Each wakes every session that listens to anything in the database, under a lock of the whole instance.
 */
const debounceMs = 10;
/** For bells that this process listens for itself: it was told at once and rings them; others only help. */
const ownBellsMs = 50;
/** A payload must be shorter than 8000 bytes: 200 ids of 36 characters and a comma, and the sender. */
const idsPerPayload = 200;

interface Waiting {
  readonly ids: Set<string>;
  /** Announced without an id as well: everything may have changed. */
  any: boolean;
  timer: NodeJS.Timeout | null;
  sentAtMs: number;
}

export function createSignals(deps: { pool: Pool; url: string; log?: Log }): Signals {
  const sender = randomBytes(6).toString('hex');
  const listeners: Record<Topic, Set<(id: string | null) => void>> = { due: new Set(), changed: new Set() };
  const waiting: Record<Topic, Waiting> = {
    due: { ids: new Set(), any: false, timer: null, sentAtMs: Number.NEGATIVE_INFINITY },
    changed: { ids: new Set(), any: false, timer: null, sentAtMs: Number.NEGATIVE_INFINITY },
  };
  const sending = new Set<Promise<void>>();
  let connection: Listener | null = null;
  let closed = false;

  function tell(topic: Topic, id: string | null): void {
    for (const listener of [...listeners[topic]]) {
      try {
        listener(id);
      } catch (error) {
        deps.log?.error({ topic, reason: describe(error) }, 'a listener of a signal threw');
      }
    }
  }

  function flush(topic: Topic): void {
    const batch = waiting[topic];
    const ids = [...batch.ids];
    const payloads: string[] = batch.any ? [''] : [];
    for (let at = 0; at < ids.length; at += idsPerPayload) payloads.push(ids.slice(at, at + idsPerPayload).join(','));
    batch.ids.clear();
    batch.any = false;
    batch.timer = null;
    batch.sentAtMs = performance.now();
    for (const payload of payloads) {
      const sent = notify(deps.pool, channels[topic], `${sender}:${payload}`)
        .catch((error) => deps.log?.debug({ topic, reason: describe(error) }, 'a signal was not sent'))
        .finally(() => sending.delete(sent));
      sending.add(sent);
    }
  }

  function receive(channel: string, payload: string): void {
    const topic = channel === channels.due ? 'due' : 'changed';
    const colon = payload.indexOf(':');
    // Listeners of the sender's own process were told at once.
    if (payload.slice(0, colon) === sender) return;
    const ids = payload.slice(colon + 1);
    if (ids === '') tell(topic, null);
    else for (const id of ids.split(',')) tell(topic, id);
  }

  function connectOnce(): void {
    connection ??= listen({
      url: deps.url,
      name: 'skrepka signals',
      channels: Object.values(channels),
      onMessage: receive,
      // Signals may have been missed since the connection was lost, so everybody looks.
      onConnected: (again) => {
        if (!again) return;
        tell('due', null);
        tell('changed', null);
      },
      onLost: (error) => deps.log?.warn({ reason: describe(error) }, 'signals lost their connection; reconnecting'),
    });
  }

  return {
    announce(topic, id) {
      if (closed) return;
      const batch = waiting[topic];
      if (id === undefined) batch.any = true;
      else batch.ids.add(id);
      const apartMs = topic === 'due' && listeners.due.size > 0 ? ownBellsMs : debounceMs;
      const waitMs = batch.sentAtMs + apartMs - performance.now();
      batch.timer ??= setTimeout(() => flush(topic), Math.max(0, waitMs));
      queueMicrotask(() => tell(topic, id ?? null));
    },
    listen(topic, listener) {
      if (closed) return () => {};
      listeners[topic].add(listener);
      connectOnce();
      return () => listeners[topic].delete(listener);
    },
    async close() {
      closed = true;
      for (const topic of ['due', 'changed'] as const) {
        listeners[topic].clear();
        const { timer } = waiting[topic];
        if (timer === null) continue;
        clearTimeout(timer);
        flush(topic);
      }
      await Promise.all([connection?.close(), ...sending]);
    },
  };
}

async function notify(pool: Pool, channel: string, payload: string): Promise<void> {
  // Prepared, as every statement: to plan it costs more than to do it.
  await single(pool, 'select pg_notify($1, $2)', [channel, payload], { writes: true });
}
