/**
 * The ports: what the pipeline needs from the outside, and the promise each driver must keep.
 *
 * Drivers live in `src/drivers/` and `src/postgres/`; `tests/contract/` holds one suite a port that every driver passes.
 * The store's port is long and has its own file, `store.ts`. No module of the pipeline reads a clock, draws a random
 * number, touches a file or opens a socket except through these.
 */
import type { Readable } from 'node:stream';
import type { VariantName } from './attachment.ts';
import type { Ring } from './job.ts';
import type { Recipe } from './recipe.ts';

export interface Clock {
  /** Milliseconds on a clock that never goes back. Its zero means nothing. */
  monotonicMs(): number;
  /** Milliseconds since 1970 by this machine's clock: only for ages of a day, never for leases. */
  wallMs(): number;
  /** Uniform in [0, 1). */
  random(): number;
  /** A fresh UUIDv7. */
  newId(): string;
  /** Resolves after `ms`, or as soon as `signal` aborts. Never rejects. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

/** The places at which a test may stop or kill a process. Production passes a function that does nothing. */
export type Point =
  | 'accept.stored'
  | 'accept.committed'
  | 'relay.taken'
  | 'relay.published'
  | 'relay.marked'
  | 'worker.claimed'
  | 'worker.downloaded'
  | 'worker.rendered'
  | 'worker.storing'
  | 'worker.stored'
  | 'worker.settled'
  | 'worker.acked'
  | 'janitor.deleting';
export type Reach = (point: Point, subject: string) => Promise<void>;

export interface Log {
  debug(fields: object, text: string): void;
  info(fields: object, text: string): void;
  warn(fields: object, text: string): void;
  error(fields: object, text: string): void;
}

/* ------------------------------------------------------------------ blobs */

/** `missing`: no object has the key. `unavailable`: the store did not answer or refused as a whole. `broken`: it answered, but this object could not be read or written. */
export type BlobFault = 'missing' | 'unavailable' | 'broken';

export class BlobError extends Error {
  readonly fault: BlobFault;
  constructor(fault: BlobFault, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'BlobError';
    this.fault = fault;
  }
}

export interface BlobEntry {
  readonly key: string;
  readonly size: number;
  readonly modifiedAt: Date;
}

/** An inclusive byte range, as in HTTP: `{ start: 0, end: 0 }` is the first byte. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

/**
 * Object storage. Keys are lower-case ids, digits, `.`, `-` and `/`; a driver refuses any other with a `TypeError`.
 * Every failure is a `BlobError`, except that a body which throws makes `put` reject with that very error.
 */
export interface Blobs {
  /** Creates or verifies what the driver needs (a bucket, a folder). Rejects with one clear sentence. Safe to call from every process at once. */
  prepare(): Promise<void>;
  /**
   * Stores a body of unknown length under `key`. All or nothing: until it resolves, readers see the old object or none,
   * also when the process is killed. When it resolves, the object is durable. Rejects and leaves nothing when the body
   * throws or `signal` aborts. An existing object is replaced. Of the body a chunk is valid until the next one is asked for. With
   * `verify` the size is that of the object as the store tells it afterwards; without, it is what the body had.
   */
  put(
    key: string,
    body: AsyncIterable<Uint8Array>,
    options?: { contentType?: string; signal?: AbortSignal; verify?: boolean },
  ): Promise<{ size: number }>;
  /**
   * Opens an object or a range of it. `size` is that of the whole object. The chunks belong to whoever reads them. Rejects `missing`; a
   * range past its end is clipped, and one that starts past it rejects `broken`.
   */
  open(key: string, range?: ByteRange): Promise<{ size: number; body: Readable }>;
  /** The object's size, or null when there is none. */
  head(key: string): Promise<{ size: number } | null>;
  /** Copies inside the store without moving bytes through this process. Durable when it resolves. Rejects `missing`. The copy outlives its source. */
  copy(from: string, to: string): Promise<void>;
  /** Deletes; keys without an object are fine. */
  deleteMany(keys: readonly string[]): Promise<void>;
  /**
   * Objects whose key starts with `prefix`, in key order, from the first after `after` on. `next` is what to pass as `after`, null at the
   * end. What others have put there is listed too, under names that may be no keys of ours, and control characters among them.
   */
  list(
    prefix: string,
    options?: { after?: string; limit?: number },
  ): Promise<{ objects: readonly BlobEntry[]; next: string | null }>;
  /** A URL that reads the object for `expiresSeconds`, with type and disposition pinned; null where the driver has no URLs. */
  presign(
    key: string,
    options: { expiresSeconds: number; contentType: string; disposition: string },
  ): Promise<string | null>;
  /** Resolves when the store can be read and written; rejects `unavailable`. */
  health(): Promise<void>;
  close(): Promise<void>;
}

/* ----------------------------------------------------------------- broker */

/** `unavailable`: not stored, or the broker is out of reach. `unknown`: no confirmation came in time, it may be stored. `refused`: the broker said no (full, too large). */
export type BrokerFault = 'unavailable' | 'unknown' | 'refused';

export class BrokerError extends Error {
  readonly fault: BrokerFault;
  constructor(fault: BrokerFault, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'BrokerError';
    this.fault = fault;
  }
}

/** One hand-over of a message. Ending it twice is harmless; what was not ended comes again after the visibility time-out or the consumer's death. */
export interface Delivery {
  readonly body: Uint8Array;
  /** 1 for the first hand-over where the broker counts them. */
  readonly deliveries: number;
  /** Done: never deliver again. Resolves when the broker has it durably, or rejects; either way the caller goes on. */
  ack(): Promise<void>;
  /** Not done: deliver again, not before `delayMs`. */
  nak(delayMs: number): Promise<void>;
  /** Still at it: starts the visibility time-out anew. */
  extend(): Promise<void>;
}

export interface Consumer {
  /**
   * The next delivery, or null when `signal` aborts or the consumer is closed. Call it only with a free slot: a delivery
   * handed out counts as held from then on. Waits through outages; never rejects for one.
   */
  next(signal: AbortSignal): Promise<Delivery | null>;
  /** Stops taking. Deliveries already handed out can still be ended. What was prefetched and not handed out goes back. */
  close(): Promise<void>;
}

/** A bell, not the truth: anything it holds may be lost, doubled, delayed or reordered without changing a result. */
export interface Broker {
  /** Creates or verifies what the driver needs on the server. Safe to call from every process at once. Rejects with one clear sentence when what is there does not fit. */
  prepare(): Promise<void>;
  /** Resolves when the broker has stored the message durably. `timeoutMs` after which it rejects `unknown`. Publishing the same id twice is harmless. */
  publish(id: string, body: Uint8Array, options: { timeoutMs: number }): Promise<void>;
  /** `prefetch`: deliveries fetched ahead of `next()`; 0 fetches none. `visibilityMs`: after which an unended delivery comes again. */
  consumer(options: { prefetch: number; visibilityMs: number }): Promise<Consumer>;
  /** Called when what was announced may be gone: reconnected, or the stream is a new one. Answers how to stop listening. */
  onDisrupted(listener: () => void): () => void;
  /** Messages waiting and handed out, as far as the broker tells. */
  depth(): Promise<{ waiting: number; inFlight: number }>;
  /** Resolves when the broker can be reached; rejects `unavailable`. */
  health(): Promise<void>;
  close(): Promise<void>;
}

/* ---------------------------------------------------------------- pictures */

export interface RenderLimits {
  readonly pixelsMax: number;
  readonly pixelsMaxAvif: number;
  readonly framesMax: number;
  readonly scansMax: number;
  /** Time of one render in which its worker ran, after which its child is killed. */
  readonly timeoutMs: number;
  /** RLIMIT_DATA of a child, bytes. */
  readonly memoryBytes: number;
}

export interface RenderedVariant {
  readonly name: VariantName;
  /** Absolute path of the finished file, inside the task's folder. */
  readonly path: string;
  readonly contentType: string;
  readonly width: number;
  readonly height: number;
  readonly size: number;
  /** Lower-case hex. */
  readonly sha256: string;
}

/** `width` and `height` as a person sees them, after orientation, of one frame. `placeholder` is a ThumbHash in base64. */
export interface Rendering {
  readonly width: number;
  readonly height: number;
  readonly frames: number;
  readonly placeholder: string;
  readonly variants: readonly RenderedVariant[];
}

/** No picture can be rendered here at the moment: no child starts, or the driver is closed. No job's fault. */
export class ImagesError extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'ImagesError';
  }
}

export interface Images {
  /**
   * Probes and renders the picture at `sourcePath` into files inside `outputDir`. Rejects with a `SkrepkaError` whose code
   * is `corrupt_image`, `too_many_pixels`, `too_many_frames`, `too_many_scans`, `render_timeout`, `render_memory` or
   * `render_crashed`; with `ScratchError` where the disk takes no output, and `ImagesError` where else it is not the picture's
   * doing; with the signal's reason when `signal` aborts, after the child was killed. The caller is never blocked and never
   * dies of a picture.
   */
  render(
    task: { sourcePath: string; outputDir: string; contentType: string; recipe: Recipe },
    signal: AbortSignal,
  ): Promise<Rendering>;
  /** Ends all children. */
  close(): Promise<void>;
}

/** The worker's own disk failed: no picture's fault, so no job is spent on it. */
export class ScratchError extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'ScratchError';
  }
}

/** A private folder for one attempt on the worker's own disk. Its own failures reject `ScratchError`. */
export interface ScratchDir {
  readonly path: string;
  /** Writes a stream to a new file, hashing and counting. Rejects with the body's own error. */
  write(name: string, body: AsyncIterable<Uint8Array>): Promise<{ path: string; size: number; sha256: string }>;
  /** Reads a file of the folder. A piece is valid until the next one is asked for. */
  read(path: string): AsyncIterable<Uint8Array>;
  remove(): Promise<void>;
}

export interface Scratch {
  open(attemptId: string): Promise<ScratchDir>;
  /** Makes the folder usable and removes what a dead worker left. Called before anything is taken; rejects `ScratchError`. */
  sweep(): Promise<void>;
  /** Resolves when there is room for another original, seen by writing as much and removing it; rejects `ScratchError`. */
  health(): Promise<void>;
}

/** What the first bytes of a file are. Never trusts a name or a declared type. */
export interface Sniffer {
  /** How many leading bytes `sniff` wants at most. */
  readonly headBytes: number;
  sniff(head: Uint8Array): Promise<{ contentType: string } | null>;
}

/* ----------------------------------------------------------------- signals */

/** `due`: a job's bell is due. `changed`: the attachment with this id changed its state. */
export type Topic = 'due' | 'changed';

/** Wakes sleepers early. Lossy by contract: every listener also polls. Never sent inside a transaction of the store. */
export interface Signals {
  /** Fire and forget, debounced. */
  announce(topic: Topic, id?: string): void;
  listen(topic: Topic, listener: (id: string | null) => void): () => void;
  close(): Promise<void>;
}

/* ----------------------------------------------------------------- metrics */

/** What the pipeline tells about itself. Names are those of `docs/operations.md`; labels are closed sets, never ids or user text. */
export interface Meter {
  count(name: string, labels?: Readonly<Record<string, string>>, by?: number): void;
  observe(name: string, seconds: number, labels?: Readonly<Record<string, string>>): void;
  /** What is true now; stays until it is told anew. */
  gauge(name: string, value: number, labels?: Readonly<Record<string, string>>): void;
}

export type { Ring };
