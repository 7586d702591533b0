/** How the demonstrations talk to a server: over HTTP as anyone would, with nothing imported from `src`. */
import assert from 'node:assert/strict';

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly bytes: Buffer;
  /** The body as JSON, or null when it is none. */
  readonly json: Record<string, unknown> | null;
}

export interface Ask {
  readonly token?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent as it is. */
  readonly body?: Uint8Array | FormData;
  /** Sent as JSON. */
  readonly json?: unknown;
}

export interface HttpClient {
  ask(method: string, path: string, ask?: Ask): Promise<Answer>;
}

/** The server at `baseUrl` did not answer at all. */
export class NoAnswer extends Error {
  constructor(baseUrl: string, cause: unknown) {
    super(
      `No server answers at ${baseUrl}. Start one with "npm start", or name another one: BASE_URL=http://host:port`,
      {
        cause,
      },
    );
    this.name = 'NoAnswer';
  }
}

/** An answer takes at most this long; the longest wait that we ask for is 20 s. */
const answerMsMax = 40_000;

/** Rejects `NoAnswer` when the connection fails. Never follows a redirect. */
export function createHttpClient(baseUrl: string): HttpClient {
  return {
    async ask(method, path, { token, headers = {}, body, json } = {}) {
      const given = json === undefined ? body : JSON.stringify(json);
      const noAnswer = (error: unknown) => {
        throw new NoAnswer(baseUrl, error);
      };
      const response = await fetch(new URL(path, baseUrl), {
        method,
        redirect: 'manual',
        signal: AbortSignal.timeout(answerMsMax),
        headers: {
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          ...(json === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(given === undefined ? {} : { body: given as NonNullable<RequestInit['body']> }),
      }).catch(noAnswer);
      const bytes = Buffer.from(await response.arrayBuffer().catch(noAnswer));
      return { status: response.status, headers: response.headers, bytes, json: parsed(response, bytes) };
    },
  };
}

/** Answers the answer when it has the expected status; otherwise fails with the problem that the server told. */
export function expectStatus(answer: Answer, expected: number): Answer {
  const problem = answer.json?.code === undefined ? '' : ` (${answer.json.code}: ${answer.json.detail})`;
  assert.equal(answer.status, expected, `expected ${expected}, received ${answer.status}${problem}`);
  return answer;
}

function parsed(response: Response, bytes: Buffer): Record<string, unknown> | null {
  if (!/^application\/(problem\+)?json\b/.test(response.headers.get('content-type') ?? '')) return null;
  return JSON.parse(bytes.toString('utf8')) as Record<string, unknown>;
}
