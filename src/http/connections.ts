/**
 * What happens below a request, on its connection: errors before there is one, `Expect: 100-continue`, and refusals that
 * leave while the body is still on its way.
 */
import { type IncomingMessage, type Server, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import { type Code, SkrepkaError } from '../errors.ts';
import { problemOf } from './problems.ts';

/**
 * A refused body is read on this far, and its connection kept open this long, so that the answer is not lost in a connection
 * reset. What a client sends beyond that stays in its own buffers until it has read the answer and stops.
 */
const lingerBytesMax = 256 * 1024;
const lingerMs = 2000;

/* ------------------------------------------------------------------ before a request */

const socketCodes: Readonly<Record<string, Code>> = {
  HPE_HEADER_OVERFLOW: 'headers_too_large',
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 'headers_too_large',
  ERR_HTTP_REQUEST_TIMEOUT: 'request_timeout',
};

/** Answers what Node's parser refused, where the socket can still be written, and closes it. */
export function answerBrokenConnection(error: Error & { code?: string }, socket: Socket): void {
  // Nothing may be written into an answer that has begun: it would become part of somebody's file.
  const busy = (socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage;
  if (error.code === 'ECONNRESET' || !socket.writable || busy?.headersSent) {
    socket.destroy();
    return;
  }
  const code = socketCodes[error.code ?? ''] ?? 'malformed_request';
  const { status, headers, body } = problemOf(new SkrepkaError(code), null);
  const text = JSON.stringify(body);
  const lines = Object.entries({ ...headers, 'content-length': String(Buffer.byteLength(text)), connection: 'close' });
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n${text}`,
    () => socket.destroy(),
  );
}

/* --------------------------------------------------------------------- 100-continue */

const expecting = new WeakMap<IncomingMessage, ServerResponse>();

/** Node would answer `100 Continue` by itself, before anything is decided: take that over. */
export function holdContinue(server: Server): void {
  server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
    expecting.set(request, response);
    server.emit('request', request, response);
  });
  // RFC 9110, section 10.1.1: another expectation may be ignored.
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    server.emit('request', request, response);
  });
}

/** Invites the body, if the client waits to be invited. Call it right before the first read; later calls do nothing. */
export function inviteBody(request: IncomingMessage): void {
  const response = expecting.get(request);
  expecting.delete(request);
  if (response && !response.headersSent) response.writeContinue();
}

/* ------------------------------------------------------------------- early refusals */

/** True while bytes of the request's body may still come. */
export function bodyIsOpen(request: IncomingMessage): boolean {
  const announced = request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length']) > 0;
  return announced && !request.complete && !request.destroyed;
}

/**
 * Sends a whole answer at once, reads a bounded rest of the body, then closes the connection: at the end of the body, when the
 * client closes it, or after a while. Closing at once would reset it, and a client that is still sending would see the
 * reset instead of the answer.
 */
export async function answerAndClose(
  request: IncomingMessage,
  response: ServerResponse,
  answer: { status: number; headers: Readonly<Record<string, string | number | string[] | undefined>>; text: string },
): Promise<void> {
  for (const [name, value] of Object.entries(answer.headers)) if (value !== undefined) response.setHeader(name, value);
  response.writeHead(answer.status, { connection: 'close', 'content-length': Buffer.byteLength(answer.text) });
  response.write(answer.text);
  await lingering(request);
  response.end();
}

function lingering(request: IncomingMessage): Promise<void> {
  return new Promise((resolve) => {
    let bytes = 0;
    const timer = setTimeout(done, lingerMs);
    function onData(chunk: Buffer) {
      bytes += chunk.length;
      if (bytes > lingerBytesMax) request.off('data', onData).pause();
    }
    function done() {
      clearTimeout(timer);
      request.off('data', onData).off('end', done).off('close', done);
      request.pause();
      resolve();
    }
    request.on('data', onData).on('end', done).on('close', done);
    request.resume();
  });
}
