/** Bodies on their way to and from an S3 store: cut into parts, and watched while they come. */
import { Readable } from 'node:stream';
import { interruptible } from '../../pipeline/blob-body.ts';
import type { BlobError } from '../../pipeline/ports.ts';

const firstBytes = 64 * 1024;

/**
 * Parts of exactly `partBytes`, the last one shorter and never empty. One buffer for all of them, which grows to a part and
 * no further: a part is valid until the next one is asked for. Errors of the body and the signal's reason pass unchanged.
 */
export async function* partsOf(
  body: AsyncIterable<Uint8Array>,
  partBytes: number,
  signal: AbortSignal | undefined,
): AsyncGenerator<Buffer> {
  let held = Buffer.allocUnsafe(Math.min(firstBytes, partBytes));
  let size = 0;
  for await (const chunk of interruptible(body, signal)) {
    for (let rest = chunk; rest.length > 0; ) {
      const taken = rest.subarray(0, partBytes - size);
      rest = rest.subarray(taken.length);
      if (size + taken.length > held.length) {
        const grown = Buffer.allocUnsafe(Math.min(partBytes, Math.max(2 * held.length, size + taken.length)));
        held.copy(grown, 0, 0, size);
        held = grown;
      }
      // Copied, not kept by reference: a body may reuse its buffer as soon as it is asked for more.
      held.set(taken, size);
      size += taken.length;
      if (size < partBytes) continue;
      yield held;
      size = 0;
    }
  }
  if (size > 0) yield held.subarray(0, size);
}

/**
 * The same bytes; a download that breaks off, or sends nothing for `silenceMs` while it is waited for, ends with
 * `fault(error)`. A time-out of the socket would not do: it cannot tell a store that is silent from a reader that is slow.
 */
export function watched(source: Readable, silenceMs: number, fault: (error: unknown) => BlobError): Readable {
  let timer: NodeJS.Timeout | undefined;
  const unwatch = () => clearTimeout(timer);
  const body = new Readable({
    read() {
      unwatch();
      timer = setTimeout(() => body.destroy(fault(new Error(`Nothing came for ${silenceMs} ms`))), silenceMs);
      source.resume();
    },
    destroy(error, done) {
      unwatch();
      source.destroy();
      done(error);
    },
  });
  // A body may break off before anybody reads it. Whoever does gets the error then; nobody must not end the process.
  body.on('error', () => {});
  source.pause();
  source.on('data', (chunk: Buffer) => {
    // `push` asks for more by `read` at once or later; until then nobody waits.
    unwatch();
    source.pause();
    body.push(chunk);
  });
  source.on('end', () => {
    unwatch();
    body.push(null);
  });
  source.on('error', (error) => body.destroy(fault(error)));
  source.on('close', () => {
    if (!source.readableEnded && !body.destroyed) body.destroy(fault(new Error('The connection was closed')));
  });
  return body;
}
