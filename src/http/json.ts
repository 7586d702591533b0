/** Reads the JSON bodies of the small routes: bounded in bytes and time, strict UTF-8. Uploads never come here. */
import type { IncomingMessage } from 'node:http';
import { SkrepkaError } from '../errors.ts';
import { inviteBody } from './connections.ts';

export const jsonBytesMax = 64 * 1024;
const jsonMs = 30_000;

/**
 * The parsed body; undefined for an empty one. Throws `body_too_large`, before reading where the length is declared,
 * `malformed_body`, and `request_timeout` after 30 s.
 */
export async function readJson(request: IncomingMessage): Promise<unknown> {
  if (Number(request.headers['content-length']) > jsonBytesMax) throw tooLarge();
  inviteBody(request);
  const timer = AbortSignal.timeout(jsonMs);
  const bytes = await collect(request, timer);
  if (bytes.length === 0) return undefined;
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (error) {
    throw new SkrepkaError('malformed_body', { cause: error });
  }
}

function collect(request: IncomingMessage, timer: AbortSignal): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  return new Promise((resolve, reject) => {
    const onData = (chunk: Buffer) => {
      size += chunk.length;
      if (size > jsonBytesMax) finish(tooLarge());
      else chunks.push(chunk);
    };
    const onEnd = () => finish(null);
    const onClose = () => finish(new SkrepkaError('malformed_body', { log: 'the client went away in its body' }));
    const onTime = () => finish(new SkrepkaError('request_timeout'));
    function finish(error: SkrepkaError | null) {
      request.off('data', onData).off('end', onEnd).off('error', onClose).off('close', onClose);
      timer.removeEventListener('abort', onTime);
      // An aborted request still emits errors that nobody waits for.
      request.on('error', () => undefined);
      if (error === null) return resolve(Buffer.concat(chunks, size));
      request.pause();
      reject(error);
    }
    timer.addEventListener('abort', onTime);
    request.on('data', onData).on('end', onEnd).on('error', onClose).on('close', onClose);
  });
}

const tooLarge = () => new SkrepkaError('body_too_large', { members: { limit: jsonBytesMax } });
