/**
 * One upload as a client sends it: the head, then the body as the connection takes it, and whatever answer comes, also in
 * the middle of the body. Counts how much of the body went out before the answer.
 */
import { type Agent, type IncomingMessage, request } from 'node:http';

export interface Upload {
  readonly url: URL;
  readonly agent: Agent;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: readonly Buffer[];
  /** `Expect: 100-continue`: the body waits for the invitation. */
  readonly expect: boolean;
}

export interface Try {
  /** Ms since 1970, as all moments here. */
  readonly sentAt: number;
  readonly answeredAt: number;
  /** 0: the connection broke before an answer was read. */
  readonly status: number;
  /** Of the problem, or of the connection's error. */
  readonly code: string | null;
  readonly retryAfterSeconds: number | null;
  /** Of the attachment that was accepted. */
  readonly id: string | null;
  /** Bytes of the body that the connection had taken when the answer came; the system holds some of them back. */
  readonly bodyBytes: number;
}

const answerMsMax = 120_000;
/** As a client reads a file: the rest is not taken from disk before the connection wants it. */
const chunkBytes = 64 * 1024;

/** Moments that never go back, on the scale of `Date.now()`. */
const origin = Date.now() - performance.now();
export const nowMs = (): number => origin + performance.now();

/** Every outcome is a `Try`; it does not reject. */
export function sendUpload({ url, agent, headers, body, expect }: Upload): Promise<Try> {
  return new Promise((resolve) => {
    const sentAt = nowMs();
    let bodyBytes = 0;
    let answeredAt: number | null = null;
    const length = body.reduce((sum, part) => sum + part.length, 0);
    const sending = request(url, {
      method: 'POST',
      agent,
      headers: { ...headers, 'content-length': String(length), ...(expect ? { expect: '100-continue' } : {}) },
      timeout: answerMsMax,
    });
    const end = (status: number, code: string | null, rest: Partial<Try> = {}) =>
      resolve({
        sentAt,
        answeredAt: answeredAt ?? nowMs(),
        status,
        code,
        retryAfterSeconds: null,
        id: null,
        bodyBytes,
        ...rest,
      });

    const chunks = body.flatMap((part) => slices(part, chunkBytes));
    function push(): void {
      for (let chunk = chunks.shift(); chunk !== undefined; chunk = chunks.shift()) {
        const { length: bytes } = chunk;
        const goOn = sending.write(chunk, (error) => {
          if (!error && answeredAt === null) bodyBytes += bytes;
        });
        if (!goOn) return void sending.once('drain', push);
      }
      sending.end();
    }
    sending.once('response', (response) => {
      answeredAt = nowMs();
      chunks.length = 0;
      void readText(response).then((text) => {
        const { id, code } = understood(text);
        const retryAfter = response.headers['retry-after'];
        // What was not sent is not wanted any more: the connection cannot carry another request.
        if (!sending.writableFinished) sending.destroy();
        end(response.statusCode ?? 0, code, {
          id,
          retryAfterSeconds: retryAfter === undefined ? null : Number(retryAfter),
        });
      });
    });
    sending.once('timeout', () => sending.destroy(new Error('no answer')));
    sending.on('error', (error: NodeJS.ErrnoException) => {
      if (answeredAt === null) end(0, error.code ?? error.message);
    });
    if (expect) {
      sending.once('continue', push);
      sending.flushHeaders();
    } else push();
  });
}

function slices(part: Buffer, bytes: number): Buffer[] {
  const all: Buffer[] = [];
  for (let from = 0; from < part.length; from += bytes) all.push(part.subarray(from, from + bytes));
  return all;
}

/** What came before the connection broke is what there is. */
async function readText(response: IncomingMessage): Promise<string> {
  let text = '';
  try {
    for await (const chunk of response.setEncoding('utf8')) text += chunk;
  } catch {}
  return text;
}

function understood(text: string): { id: string | null; code: string | null } {
  try {
    const { id = null, code = null } = JSON.parse(text) as { id?: string; code?: string };
    return { id, code };
  } catch {
    return { id: null, code: null };
  }
}
