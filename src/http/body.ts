/**
 * The bytes of a request as they come, one chunk at a time and only when asked: the back-pressure of uploads. Nothing is
 * read before the first chunk is asked for, and stopping in the middle leaves the connection usable for an answer.
 */
import type { IncomingMessage } from 'node:http';
import { SkrepkaError } from '../errors.ts';
import { giveBack } from '../pipeline/blob-body.ts';

export interface BodySettings {
  /** Longest wait for the client while it is waited for. */
  readonly stallMs: number;
  /** Longest time for the whole body. */
  readonly wholeMs: number;
  /** Bytes at most, and with what more of them are refused. */
  readonly limit?: { readonly bytes: number; exceeded(): SkrepkaError };
}

export interface RequestBody {
  /**
   * The chunks, each of which is valid until the next one is asked for: its memory is given back then. Throws `request_timeout` when
   * the client sends nothing for `stallMs` while it is waited for, `upload_expired` when it has not ended within `wholeMs` of the first
   * question, and `malformed_body` when it is gone before the end. Storage that is slow costs the client none of the stall's time.
   */
  readonly bytes: AsyncGenerator<Buffer>;
  /** Lets go of the request, wherever it was left. Before it is answered: who listens keeps Node from passing the rest by. */
  stop(): void;
}

export function readBody(request: IncomingMessage, settings: BodySettings): RequestBody {
  const { wholeMs, limit } = settings;
  const arrivals = watch(request, settings.stallMs);

  async function* bytes(): AsyncGenerator<Buffer> {
    const startedMs = performance.now();
    let size = 0;
    arrivals.start();
    // Not the stream's own iterator: that one destroys the socket on an early stop, and with it the answer.
    while (!request.readableEnded) {
      // Whatever the bytes are: a form can trickle through its fields and never come to its file.
      if (performance.now() - startedMs > wholeMs) throw new SkrepkaError('upload_expired');
      const chunk = request.read() as Buffer | null;
      if (chunk === null) {
        await arrivals.next();
        continue;
      }
      size += chunk.length;
      if (limit && size > limit.bytes) throw limit.exceeded();
      yield chunk;
      giveBack(chunk);
    }
  }

  return { bytes: bytes(), stop: arrivals.stop };
}

/** Listens from `start` to `stop`: to begin and to end it anew for each chunk costs more than the chunk. */
function watch(request: IncomingMessage, stallMs: number) {
  let waiting: { resolve: () => void; reject: (error: SkrepkaError) => void } | null = null;
  let timer: NodeJS.Timeout | undefined;
  const settle = (error: SkrepkaError | null) => {
    clearTimeout(timer);
    const settled = waiting;
    waiting = null;
    if (error) settled?.reject(error);
    else settled?.resolve();
  };
  const onCame = () => settle(null);
  const onGone = () => settle(request.readableEnded ? null : gone());
  // Timers come before sockets: where this process itself stood still, the client's bytes lie there unread. They are looked at first.
  const onStall = () => {
    const stalled = waiting;
    setImmediate(() => {
      if (waiting === stalled) settle(new SkrepkaError('request_timeout', { log: 'the upload stalled' }));
    });
  };
  return {
    start() {
      request.on('readable', onCame).on('end', onCame).on('error', onGone).on('close', onGone);
    },
    /** Resolves when there is something to read, or the end. */
    next(): Promise<void> {
      return new Promise((resolve, reject) => {
        // The events may have been before the question.
        if (request.destroyed) return reject(gone());
        waiting = { resolve, reject };
        timer = setTimeout(onStall, stallMs);
      });
    },
    stop() {
      clearTimeout(timer);
      waiting = null;
      request.off('readable', onCame).off('end', onCame).off('error', onGone).off('close', onGone);
    },
  };
}

export function gone(): SkrepkaError {
  return new SkrepkaError('malformed_body', { log: 'the client went away' });
}
