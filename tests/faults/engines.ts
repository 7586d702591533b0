/**
 * The engines of the simulation: an object storage and a broker that keep their port's promise and no more.
 *
 * Both are servers: they outlive the processes. The storage lets a put land long after its caller gave up. The broker does not
 * fence acks, hands out in any order, forgets everything on `wipe`, and goes back to an earlier moment, sequence numbers
 * included, on `rollBack`.
 */
import { createHash } from 'node:crypto';
import { type BlobEntry, BlobError } from '../../src/pipeline/ports.ts';
import type { World } from './world.ts';

interface StoredObject {
  readonly bytes: Uint8Array;
  readonly sha256: string;
  readonly modifiedAtMs: number;
}

export interface Objects {
  readonly stored: ReadonlyMap<string, StoredObject>;
  put(key: string, bytes: Uint8Array): { size: number };
  get(key: string): StoredObject;
  copy(from: string, to: string): void;
  remove(keys: readonly string[]): void;
  /** A fault of the storage itself: nobody deleted it. */
  lose(key: string): void;
  list(prefix: string, after: string | undefined, limit: number): { objects: BlobEntry[]; next: string | null };
}

export function createObjects(world: Pick<World, 'nowMs'>, onRemove: (key: string) => void): Objects {
  const stored = new Map<string, StoredObject>();
  const get = (key: string): StoredObject => {
    const found = stored.get(key);
    if (!found) throw new BlobError('missing', `no object ${key}`);
    return found;
  };
  return {
    stored,
    put(key, bytes) {
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      stored.set(key, { bytes, sha256, modifiedAtMs: world.nowMs() });
      return { size: bytes.length };
    },
    get,
    copy(from, to) {
      stored.set(to, { ...get(from), modifiedAtMs: world.nowMs() });
    },
    remove(keys) {
      for (const key of keys) {
        if (stored.has(key)) onRemove(key);
        stored.delete(key);
      }
    },
    lose: (key) => void stored.delete(key),
    list(prefix, after, limit) {
      const keys = [...stored.keys()]
        .filter((key) => key.startsWith(prefix) && (after === undefined || key > after))
        .sort();
      const page = keys.slice(0, limit);
      const objects = page.map((key) => {
        const { bytes, modifiedAtMs } = get(key);
        return { key, size: bytes.length, modifiedAt: new Date(modifiedAtMs) };
      });
      return { objects, next: keys.length > limit ? (page.at(-1) ?? null) : null };
    },
  };
}

/* ------------------------------------------------------------------ broker */

interface Message {
  readonly sequence: number;
  readonly id: string;
  readonly body: Uint8Array;
  visibleAtMs: number;
  deliveries: number;
}

/** Who waits for a message: `take` is called with one when there is one, and answers whether it was wanted. */
export interface Asker {
  readonly visibilityMs: number;
  take(message: { sequence: number; body: Uint8Array; deliveries: number }): void;
}

export interface Bells {
  publish(id: string, body: Uint8Array): void;
  ask(asker: Asker): () => void;
  ack(sequence: number): void;
  nak(sequence: number, delayMs: number): void;
  extend(sequence: number, visibilityMs: number): void;
  depth(): { waiting: number; inFlight: number };
  onDisrupted(listener: () => void): () => void;
  wipe(): void;
  rollBack(): void;
  /** For so long it confirms what it is given and keeps nothing. */
  swallow(ms: number): void;
  /** Ids that were confirmed or may have been, in order. */
  readonly published: ReadonlySet<string>;
}

export function createBells(world: World): Bells {
  let messages = new Map<number, Message>();
  let sequence = 0;
  let earlier = { messages: new Map<number, Message>(), sequence: 0 };
  const askers = new Set<Asker>();
  const listeners = new Set<() => void>();
  const published = new Set<string>();
  let swallowsUntilMs = 0;

  /** Gives visible messages to those who ask, in any order: at most one a moment, so that all interleave. */
  function handOut(): void {
    const visible = [...messages.values()].filter((message) => message.visibleAtMs <= world.nowMs());
    if (askers.size === 0 || visible.length === 0) return;
    const message = world.pick(visible);
    const asker = world.pick([...askers]);
    askers.delete(asker);
    message.visibleAtMs = world.nowMs() + asker.visibilityMs;
    message.deliveries += 1;
    asker.take({ sequence: message.sequence, body: message.body, deliveries: message.deliveries });
    soon(asker.visibilityMs + 1);
    soon(world.between(1, 5));
  }

  const soon = (delayMs: number) => void world.after(delayMs, handOut);

  function tell(): void {
    // A client may not notice: then only starvation or the bell itself brings the jobs back.
    for (const listener of listeners) if (world.random() < 0.7) world.after(world.between(1, 3_000), listener);
  }

  return {
    published,
    publish(id, body) {
      sequence += 1;
      published.add(id);
      if (swallowsUntilMs > world.nowMs()) return;
      messages.set(sequence, { sequence, id, body, visibleAtMs: world.nowMs(), deliveries: 0 });
      if (world.random() < 0.1) earlier = { messages: structuredClone(messages), sequence };
      soon(world.between(1, 200));
    },
    ask(asker) {
      askers.add(asker);
      soon(world.between(1, 5));
      return () => askers.delete(asker);
    },
    // Not fenced, like real ones: whoever has it out, and whatever message has the number now.
    ack: (number) => void messages.delete(number),
    nak(number, delayMs) {
      const message = messages.get(number);
      if (!message) return;
      message.visibleAtMs = world.nowMs() + delayMs;
      soon(delayMs + 1);
    },
    extend(number, visibilityMs) {
      const message = messages.get(number);
      if (!message) return;
      message.visibleAtMs = world.nowMs() + visibilityMs;
      soon(visibilityMs + 1);
    },
    depth() {
      const inFlight = [...messages.values()].filter((message) => message.visibleAtMs > world.nowMs()).length;
      return { waiting: messages.size - inFlight, inFlight };
    },
    onDisrupted(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    wipe() {
      messages.clear();
      tell();
    },
    swallow(ms) {
      swallowsUntilMs = world.nowMs() + ms;
    },
    rollBack() {
      messages = structuredClone(earlier.messages);
      sequence = earlier.sequence;
      tell();
      soon(1);
    },
  };
}
