/**
 * Object storage in memory, for tests: it passes the suite of the `Blobs` port, and it misbehaves on request, one call at
 * a time: fails, breaks off, waits, or does its work and loses the answer.
 */
import { Readable } from 'node:stream';
import { checkBlobKey, checkBlobPrefix } from '../../src/pipeline/blob-key.ts';
import { BlobError, type BlobFault, type Blobs } from '../../src/pipeline/ports.ts';

export type BlobCall = 'put' | 'open' | 'head' | 'copy' | 'deleteMany' | 'list' | 'health';

/**
 * `fail`: rejects and does nothing. `tear`: a put takes this many bytes of its body, keeps nothing and rejects; an open
 * answers a stream that breaks off after them. `delay`: waits before doing anything. `lose_answer`: does everything, then rejects.
 */
export type Misbehaviour =
  | { readonly kind: 'fail'; readonly fault: BlobFault }
  | { readonly kind: 'tear'; readonly afterBytes: number }
  | { readonly kind: 'delay'; readonly until: Promise<unknown> }
  | { readonly kind: 'lose_answer' };

export interface MemoryBlobs extends Blobs {
  /** What is stored, for looking at and for damaging. */
  readonly objects: Map<string, { bytes: Buffer; modifiedAt: Date }>;
  /** The next call of this kind whose key fits misbehaves, once. Later requests queue behind earlier ones. `deleteMany` fits by its first key, `copy` by its target, `list` by its prefix. */
  misbehave(call: BlobCall, how: Misbehaviour, fits?: (key: string) => boolean): void;
}

interface Plan {
  readonly call: BlobCall;
  readonly how: Misbehaviour;
  readonly fits: (key: string) => boolean;
}

/** An empty store. */
export function createMemoryBlobs(): MemoryBlobs {
  const objects: MemoryBlobs['objects'] = new Map();
  const plans: Plan[] = [];

  function take(call: BlobCall, key: string): Misbehaviour | null {
    const at = plans.findIndex((plan) => plan.call === call && plan.fits(key));
    return at === -1 ? null : (plans.splice(at, 1)[0]?.how ?? null);
  }

  /** Runs one call under what was planned for it. */
  async function behave<T>(call: BlobCall, key: string, work: (tearAfter: number | null) => Promise<T>): Promise<T> {
    const how = take(call, key);
    if (how?.kind === 'fail') throw new BlobError(how.fault, `Told to fail: ${call} ${key}`);
    if (how?.kind === 'delay') await how.until;
    const result = await work(how?.kind === 'tear' ? how.afterBytes : null);
    if (how?.kind === 'lose_answer') throw new BlobError('unavailable', `Told to lose the answer: ${call} ${key}`);
    return result;
  }

  function find(key: string): { bytes: Buffer; modifiedAt: Date } {
    const object = objects.get(key);
    if (object === undefined) throw new BlobError('missing', `No object ${key}`);
    return object;
  }

  return {
    objects,
    misbehave(call, how, fits = () => true) {
      plans.push({ call, how, fits });
    },

    async prepare() {},
    async put(key, body, options = {}) {
      checkBlobKey(key);
      return await behave('put', key, async (tearAfter) => {
        const bytes = await gather(body, tearAfter, options.signal);
        objects.set(key, { bytes, modifiedAt: new Date() });
        return { size: bytes.length };
      });
    },

    async open(key, range) {
      checkBlobKey(key);
      return await behave('open', key, async (tearAfter) => {
        const { bytes } = find(key);
        if (range !== undefined && (range.start >= bytes.length || range.end < range.start)) {
          throw new BlobError('broken', `Expected a range inside ${bytes.length} bytes`);
        }
        // A copy: whoever reads a chunk may free its memory.
        const part = Buffer.from(range === undefined ? bytes : bytes.subarray(range.start, range.end + 1));
        return { size: bytes.length, body: Readable.from(slices(part, tearAfter), { objectMode: false }) };
      });
    },

    async head(key) {
      checkBlobKey(key);
      return await behave('head', key, async () => {
        const object = objects.get(key);
        return object === undefined ? null : { size: object.bytes.length };
      });
    },

    async copy(from, to) {
      checkBlobKey(from);
      checkBlobKey(to);
      await behave('copy', to, async () => {
        objects.set(to, { bytes: find(from).bytes, modifiedAt: new Date() });
      });
    },

    async deleteMany(keys) {
      for (const key of keys) checkBlobKey(key);
      await behave('deleteMany', keys[0] ?? '', async () => {
        for (const key of keys) objects.delete(key);
      });
    },

    async list(prefix, { after = '', limit = 1000 } = {}) {
      checkBlobPrefix(prefix);
      return await behave('list', prefix, async () => {
        const found = [...objects]
          .filter(([key]) => key.startsWith(prefix) && key > after)
          .sort(([a], [b]) => (a < b ? -1 : 1))
          .map(([key, { bytes, modifiedAt }]) => ({ key, size: bytes.length, modifiedAt }));
        const page = found.slice(0, limit);
        return { objects: page, next: found.length > limit ? (page.at(-1)?.key ?? null) : null };
      });
    },

    async presign() {
      return null;
    },

    async health() {
      await behave('health', '', async () => {});
    },

    async close() {},
  };
}

async function gather(body: AsyncIterable<Uint8Array>, tearAfter: number | null, signal: AbortSignal | undefined) {
  signal?.throwIfAborted();
  const parts: Buffer[] = [];
  let size = 0;
  const aborted = Promise.withResolvers<never>();
  aborted.promise.catch(() => {});
  const onAbort = () => aborted.reject(signal?.reason);
  signal?.addEventListener('abort', onAbort);
  const iterator = body[Symbol.asyncIterator]();
  try {
    for (;;) {
      const step = await Promise.race([iterator.next(), aborted.promise]);
      if (step.done) return Buffer.concat(parts);
      parts.push(Buffer.from(step.value));
      size += step.value.length;
      if (tearAfter !== null && size >= tearAfter) throw new BlobError('unavailable', 'Told to break off');
    }
  } finally {
    signal?.removeEventListener('abort', onAbort);
    void Promise.resolve(iterator.return?.()).catch(() => {});
  }
}

async function* slices(bytes: Buffer, tearAfter: number | null): AsyncGenerator<Buffer> {
  const end = tearAfter === null ? bytes.length : Math.min(tearAfter, bytes.length);
  for (let at = 0; at < end; at += 65_536) yield bytes.subarray(at, Math.min(at + 65_536, end));
  if (tearAfter !== null) throw new BlobError('broken', 'Told to break off');
}
