/** A body on its way into object storage, for every driver of the `Blobs` port. Pure. */

/**
 * The body, ended early when the signal aborts. A body that hangs cannot hold the put: neither `next` nor `return` is
 * awaited then. One listener for the whole body: racing every chunk against one promise would grow with each.
 */
export async function* interruptible(
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal | undefined,
): AsyncGenerator<Uint8Array> {
  const iterator = body[Symbol.asyncIterator]();
  let interrupt: ((reason: unknown) => void) | null = null;
  const onAbort = () => interrupt?.(signal?.reason);
  signal?.addEventListener('abort', onAbort);
  let ended = false;
  try {
    for (;;) {
      signal?.throwIfAborted();
      const step = await new Promise<IteratorResult<Uint8Array>>((resolve, reject) => {
        interrupt = reject;
        iterator.next().then(resolve, (error: unknown) => {
          ended = true;
          reject(error);
        });
      });
      ended = step.done === true;
      if (step.done) return;
      yield step.value;
    }
  } finally {
    signal?.removeEventListener('abort', onAbort);
    if (!ended) void Promise.resolve(iterator.return?.()).catch(() => {});
  }
}
