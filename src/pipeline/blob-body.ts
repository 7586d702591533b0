/** A body on its way into object storage or out of it, for every driver of the `Blobs` port. Pure. */

/**
 * Frees the memory of a chunk that was read and is nobody else's, as those of a request or of an opened object are. It lies outside of the
 * heap, where only the collector finds it: of an upload of 1 GB tens of MiB lay about, and full collections for the sake of chunks
 * were nearly half of what an upload of 5 MB cost, and a fifth of what a worker did itself. Not that of a slice: it has others.
 */
export function giveBack({ buffer, byteLength }: Uint8Array): void {
  if (byteLength > 0 && buffer instanceof ArrayBuffer && buffer.byteLength === byteLength) buffer.transfer(0);
}

/**
 * The body, ended early when the signal aborts. A body that hangs cannot hold the put: neither `next` nor `return` is
 * awaited then. One listener for the whole body: racing every chunk against one promise would grow with each. No generator:
 * its own three promises a chunk cost as much as the rest.
 */
export function interruptible(
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal | undefined,
): AsyncIterable<Uint8Array> {
  return { [Symbol.asyncIterator]: () => interrupted(body[Symbol.asyncIterator](), signal) };
}

function interrupted(
  iterator: AsyncIterator<Uint8Array>,
  signal: AbortSignal | undefined,
): AsyncIterator<Uint8Array, undefined> {
  let interrupt: ((reason: unknown) => void) | null = null;
  let left = false;
  const onAbort = () => {
    leave();
    interrupt?.(signal?.reason);
  };
  signal?.addEventListener('abort', onAbort);

  /** `ended`: the body came to its end, and need not be told that nobody wants more of it. */
  function leave(ended = false): void {
    signal?.removeEventListener('abort', onAbort);
    if (left) return;
    left = true;
    if (!ended) void Promise.resolve(iterator.return?.()).catch(() => {});
  }

  function step(resolve: (step: IteratorResult<Uint8Array, undefined>) => void, reject: (reason: unknown) => void) {
    if (signal?.aborted) {
      leave();
      return reject(signal.reason);
    }
    interrupt = reject;
    iterator.next().then(
      ({ done, value }) => {
        if (done === true) leave(true);
        resolve(done === true ? { done, value: undefined } : { done: false, value });
      },
      (error: unknown) => {
        leave(true);
        reject(error);
      },
    );
  }

  return {
    next: () => new Promise(step),
    async return() {
      leave();
      return { done: true, value: undefined };
    },
  };
}
