/**
 * Who may read metrics, and the small server of a process without the API: `/metrics` and `/health/live`, nothing else.
 *
 * It answers without the framework, which such a process does not load, and takes nothing but a request line and headers.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, SkrepkaError } from '../errors.ts';
import type { Log } from '../pipeline/ports.ts';
import { problemOf, problemType } from './problems.ts';

export interface Metrics {
  readonly contentType: string;
  render(): Promise<string>;
}

/** From this very machine and not through a proxy on it, which would make everybody local; or with the token, when there is one. */
export function mayReadMetrics(
  { headers, socket }: Pick<IncomingMessage, 'headers' | 'socket'>,
  token: string,
): boolean {
  const address = socket.remoteAddress ?? '';
  const loopback = address === '::1' || /^(?:::ffff:)?127\./.test(address);
  if (loopback && headers.forwarded === undefined && headers['x-forwarded-for'] === undefined) return true;
  const given = /^bearer +(.+)$/i.exec(headers.authorization ?? '')?.[1];
  if (token === '' || given === undefined) return false;
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given), digest(token));
}

export interface MetricsServer {
  readonly port: number;
  close(): Promise<void>;
}

export interface MetricsServerSettings {
  readonly host: string;
  /** Above 0; tests pass 0 for a free one. */
  readonly metricsPort: number;
  readonly metricsToken: string;
}

/** Longest wait for a request's headers, and for the next request of a connection. */
const patienceMs = 10_000;
const connectionsMax = 32;

/** `away`: what this process has to wait for now. Resolves when it listens. Rejects with the socket's own error, e.g. `EADDRINUSE`. */
export async function serveMetrics(
  deps: { metrics: Metrics; log: Log; away?: () => readonly string[] },
  settings: MetricsServerSettings,
): Promise<MetricsServer> {
  const server = createServer(
    { headersTimeout: patienceMs, requestTimeout: patienceMs, keepAliveTimeout: patienceMs, maxHeaderSize: 8192 },
    (request, response) => {
      // A body is of no interest to any answer.
      request.resume();
      answer(deps, settings, request, response).catch((error: unknown) => refuse(deps.log, response, error));
    },
  );
  server.maxConnections = connectionsMax;
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host: settings.host, port: settings.metricsPort }, resolve);
  });
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

async function answer(
  { metrics, away = () => [] }: { metrics: Metrics; away?: () => readonly string[] },
  { metricsToken }: MetricsServerSettings,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const path = (request.url ?? '').split('?', 1)[0];
  if (path !== '/metrics' && path !== '/health/live') throw new SkrepkaError('not_found');
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    throw new SkrepkaError('method_not_allowed', { members: { allow: 'GET, HEAD' } });
  }
  if (path === '/health/live') {
    // Who waits lives all the same: nothing that restarts it would bring back what is away.
    const waitsFor = away();
    const health = { status: 'ok', ...(waitsFor.length > 0 && { waits_for: waitsFor }) };
    return send(response, 200, 'application/json; charset=utf-8', JSON.stringify(health));
  }
  if (!mayReadMetrics(request, metricsToken)) throw new SkrepkaError('unauthorized');
  send(response, 200, metrics.contentType, await metrics.render());
}

function refuse(log: Log, response: ServerResponse, thrown: unknown): void {
  const error = thrown instanceof SkrepkaError ? thrown : new SkrepkaError('internal', { cause: thrown });
  if (error.code === 'internal') log.error({ error: describe(error) }, 'metrics could not be told');
  const { status, headers, body } = problemOf(error, null);
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  send(response, status, problemType, JSON.stringify(body));
}

function send(response: ServerResponse, status: number, contentType: string, text: string): void {
  response.setHeader('cache-control', 'no-store');
  response.setHeader('x-content-type-options', 'nosniff');
  response.writeHead(status, { 'content-type': contentType, 'content-length': Buffer.byteLength(text) });
  // Node leaves the body of an answer to HEAD out by itself.
  response.end(text);
}
