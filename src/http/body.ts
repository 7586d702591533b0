/**
 * The bytes of a request as they come, one chunk at a time and only when asked: the back-pressure of uploads. Nothing is
 * read before the first chunk is asked for, and stopping in the middle leaves the connection usable for an answer.
 */
import type { IncomingMessage } from 'node:http';
import { SkrepkaError } from '../errors.ts';

/**
 * Yields the body's chunks. Throws `request_timeout` when the client sends nothing for `stallMs` while it is waited for,
 * `upload_expired` when it has not ended within `wholeMs` of the first question, and `malformed_body` when it is gone before the
 * end. Storage that is slow costs the client none of the stall's time.
 */
export async function* readBody(
  request: IncomingMessage,
  { stallMs, wholeMs = Number.POSITIVE_INFINITY }: { stallMs: number; wholeMs?: number },
): AsyncGenerator<Buffer> {
  const startedMs = performance.now();
  // Not the stream's own iterator: that one destroys the socket on an early stop, and with it the answer.
  while (!request.readableEnded) {
    // Whatever the bytes are: a form can trickle through its fields and never come to its file.
    if (performance.now() - startedMs > wholeMs) throw new SkrepkaError('upload_expired');
    const chunk = request.read() as Buffer | null;
    if (chunk !== null) yield chunk;
    else await somethingCame(request, stallMs);
  }
}

function somethingCame(request: IncomingMessage, stallMs: number): Promise<void> {
  return new Promise((resolve, reject) => {
    // The events may have been before the first question.
    if (request.destroyed) return reject(gone());
    const timer = setTimeout(() => settle(new SkrepkaError('request_timeout', { log: 'the upload stalled' })), stallMs);
    const onCame = () => settle(null);
    const onGone = () => settle(request.readableEnded ? null : gone());
    function settle(error: SkrepkaError | null) {
      clearTimeout(timer);
      request.off('readable', onCame).off('end', onCame).off('error', onGone).off('close', onGone);
      if (error) reject(error);
      else resolve();
    }
    request.on('readable', onCame).on('end', onCame).on('error', onGone).on('close', onGone);
  });
}

export function gone(): SkrepkaError {
  return new SkrepkaError('malformed_body', { log: 'the client went away' });
}
