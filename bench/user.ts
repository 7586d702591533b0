/**
 * A user of the product on kept-alive connections: uploads, looks, waits. Plain `node:http`, because what the client spends
 * is taken from the same cores as what is measured.
 */
import { randomBytes } from 'node:crypto';
import { Agent, type IncomingHttpHeaders, request } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { onEnd, type Scope } from '../tests/support/on-end.ts';

export interface Uploading {
  readonly contentType: string;
  readonly fileName: string;
  /** As a form with one file instead of a raw body. */
  readonly multipart?: boolean;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Uploaded {
  readonly status: number;
  /** Of the attachment; empty unless the status is 202. */
  readonly id: string;
  readonly headers: IncomingHttpHeaders;
}

/** An attachment as its owner sees it. */
export interface View {
  readonly id: string;
  readonly state: 'queued' | 'processing' | 'ready' | 'failed';
  readonly attempts: number;
  readonly error_code: string | null;
  readonly created_at: string;
  readonly ready_at: string | null;
}

export interface BenchUser {
  readonly token: string;
  /** Any status is an answer; rejects when the connection fails. */
  upload(bytes: Uint8Array, how: Uploading): Promise<Uploaded>;
  state(id: string): Promise<View>;
  /**
   * Resolves when all are `ready`; rejects when one failed, or after `deadlineMs` (5 min). It waits by long-polls, one after the
   * other, so it costs the API one cheap request an attachment; a server that is away for a while is asked again.
   */
  untilReady(ids: string | readonly string[], options?: { deadlineMs?: number }): Promise<readonly View[]>;
}

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

export interface Asking {
  readonly method: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Uint8Array;
}

export type Ask = (path: string, asking: Asking) => Promise<Answer>;

const answerMsMax = 120_000;
/** Of a long-poll: less than the 30 s that the product allows. */
const waitSeconds = 20;

/** Connections to `url()`, kept alive until `scope` ends. The URL is asked anew for each request. */
export function connectTo(url: () => string, scope: Scope): Ask {
  const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY });
  onEnd(scope, () => agent.destroy());
  return (path, { method, headers = {}, body }) =>
    new Promise((resolve, reject) => {
      const length = body === undefined ? {} : { 'content-length': String(body.length) };
      const options = { method, agent, headers: { ...length, ...headers }, timeout: answerMsMax };
      const sending = request(new URL(path, url()), options, (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.once('error', reject);
        response.once('end', () => {
          const { statusCode = 0, headers: received } = response;
          resolve({ status: statusCode, headers: received, text: Buffer.concat(chunks).toString('utf8') });
        });
      });
      sending.once('timeout', () => sending.destroy(new Error(`No answer to ${method} ${path} in ${answerMsMax} ms`)));
      sending.once('error', reject);
      sending.end(body);
    });
}

/** Registers somebody new. */
export async function registerUser(ask: Ask): Promise<BenchUser> {
  const account = { handle: `u${randomBytes(8).toString('hex')}`, password: randomBytes(12).toString('hex') };
  const body = Buffer.from(JSON.stringify(account));
  const made = await ask('/v1/users', { method: 'POST', headers: { 'content-type': 'application/json' }, body });
  if (made.status !== 201) throw new Error(`Expected 201 for a new user, received ${made.status}: ${made.text}`);
  const { token } = JSON.parse(made.text) as { token: string };
  const authorization = `Bearer ${token}`;

  const look = async (path: string): Promise<View> => {
    const { status, text } = await ask(path, { method: 'GET', headers: { authorization } });
    if (status !== 200) throw new Error(`Expected 200 for ${path}, received ${status}: ${text}`);
    return JSON.parse(text) as View;
  };

  return {
    token,
    async upload(bytes, how) {
      const { path, headers, body } = how.multipart ? asForm(bytes, how) : asRaw(bytes, how);
      const sent = { authorization, ...headers, ...how.headers };
      const answer = await ask(path, { method: 'POST', headers: sent, body });
      const id = answer.status === 202 ? (JSON.parse(answer.text) as View).id : '';
      return { status: answer.status, id, headers: answer.headers };
    },
    state: (id) => look(`/v1/attachments/${id}`),
    async untilReady(ids, { deadlineMs = 300_000 } = {}) {
      const endMs = performance.now() + deadlineMs;
      const views: View[] = [];
      for (const id of [ids].flat()) views.push(await waitFor(id, look, endMs));
      return views;
    },
  };
}

async function waitFor(id: string, look: (path: string) => Promise<View>, endMs: number): Promise<View> {
  for (let last = 'it was never seen'; ; ) {
    const leftMs = endMs - performance.now();
    if (leftMs <= 0) throw new Error(`Waited in vain until ${id} is ready: ${last}`);
    const seconds = Math.min(waitSeconds, Math.ceil(leftMs / 1000));
    try {
      const view = await look(`/v1/attachments/${id}?wait=${seconds}`);
      if (view.state === 'ready') return view;
      last = `it is ${view.state}`;
      if (view.state === 'failed') endMs = 0;
      if (view.error_code !== null) last += ` with ${view.error_code}`;
    } catch (error) {
      if (!isConnectionError(error)) throw error;
      last = `the server does not answer (${error.code})`;
      await pause(50);
    }
  }
}

function isConnectionError(error: unknown): error is NodeJS.ErrnoException {
  return ['ECONNREFUSED', 'ECONNRESET', 'EPIPE'].includes((error as NodeJS.ErrnoException).code ?? '');
}

function asRaw(bytes: Uint8Array, { contentType, fileName }: Uploading) {
  const path = `/v1/attachments?filename=${encodeURIComponent(fileName)}`;
  return { path, headers: { 'content-type': contentType }, body: bytes };
}

/** The body of a form with one file, as a browser writes it (RFC 7578). `fileName` must not need quoting. */
export function asForm(bytes: Uint8Array, { contentType, fileName }: Uploading) {
  const boundary = `bench-${randomBytes(12).toString('hex')}`;
  const disposition = `Content-Disposition: form-data; name="file"; filename="${fileName}"`;
  const head = `--${boundary}\r\n${disposition}\r\nContent-Type: ${contentType}\r\n\r\n`;
  const body = Buffer.concat([Buffer.from(head), bytes, Buffer.from(`\r\n--${boundary}--\r\n`)]);
  return { path: '/v1/attachments', headers: { 'content-type': `multipart/form-data; boundary=${boundary}` }, body };
}
