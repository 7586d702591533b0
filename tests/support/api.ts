/**
 * The real HTTP server on a real database, listening on a free port, for tests of routes that need nothing else: broker,
 * object storage and the intake throw as soon as anybody touches them.
 */
import assert from 'node:assert/strict';
import { createHash, randomBytes, scryptSync } from 'node:crypto';
import type { TestContext } from 'node:test';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import type { HttpDeps, HttpSettings } from '../../src/http/app.ts';
import { createServer } from '../../src/http/server.ts';
import { newId } from '../../src/ids.ts';
import type { Role } from '../../src/pipeline/message.ts';
import type { Log } from '../../src/pipeline/ports.ts';
import { createPeople } from '../../src/postgres/people.ts';
import { startStore } from './store.ts';

/** The members that tests read. A claim that nothing checks: a missing one is undefined, and fails its assertion. */
export interface Body {
  readonly [member: string]: unknown;
  readonly id: string;
  readonly handle: string;
  readonly token: string;
  readonly text: string;
  readonly user: Body;
  readonly items: readonly Body[];
  readonly next_cursor: string | null;
  readonly attachment_ids: readonly string[];
  readonly members: readonly Body[];
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  /** Parsed JSON; an empty object for an empty body. */
  readonly body: Body;
  readonly isEmpty: boolean;
}

interface Sending {
  readonly token?: string;
  /** Sent as JSON, unless it is a string, which is sent as it is. */
  readonly json?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Account {
  readonly id: string;
  readonly handle: string;
  readonly token: string;
}

export const apiSettings: HttpSettings = {
  host: '127.0.0.1',
  port: 0,
  uploadBytesMax: 1024 * 1024,
  uploadMsMax: 3_600_000,
  stallMs: 10_000,
  backlogMax: 10_000,
  stagingBytesMax: 1024 ** 3,
  uploadsMax: 256,
  pendingPerUserMax: 100,
  uploadsPerUserMax: 64,
  uploadsPerMinuteMax: 10_000,
  waitsMax: 100,
  waitsPerUserMax: 100,
  pixelsMax: 50_000_000,
  pixelsMaxAvif: 16_000_000,
  framesMax: 500,
  scansMax: 64,
  delivery: 'stream',
  presignSeconds: 60,
  metricsToken: '',
  registration: 'open',
  idempotencyMs: 86_400_000,
  sessionMs: 30 * 86_400_000,
  loginFailuresMax: 3,
  loginWindowMs: 900_000,
  graceMs: 0,
  pipelineVersion: 0,
  spacingMs: 1000,
};

/** `deps` replaces parts by what a test makes of the real ones. */
export async function startApi(
  t: TestContext,
  options: { settings?: Partial<HttpSettings>; deps?: (real: HttpDeps) => Partial<HttpDeps> } = {},
) {
  const world = await startStore(t);
  const people = createPeople({ pool: world.pool });
  const { log, lines } = recordingLog();
  /** Names of the counters that grew, in order. */
  const counts: string[] = [];
  const real: HttpDeps = {
    store: world.store,
    people,
    blobs: untouchable('blobs'),
    broker: untouchable('broker'),
    accept: untouchable('accept'),
    signals: world.signals,
    log,
    meter: { count: (name) => counts.push(name), observe() {}, gauge() {} },
    metrics: untouchable('metrics'),
    clock: createSystemClock(),
  };
  const server = await createServer({ ...real, ...options.deps?.(real) }, { ...apiSettings, ...options.settings });
  t.after(() => server.close());
  const { url } = await server.listen();

  /** An account with the password `password of <handle>`, cheaply hashed, and a live token. */
  const account = async (handle: string, role: Role = 'user'): Promise<Account> => {
    const user = await people.createUser({
      id: newId(),
      handle,
      passwordHash: cheapHash(`password of ${handle}`),
      role,
    });
    assert.ok(user);
    const token = `skr_${randomBytes(32).toString('base64url')}`;
    const tokenHash = createHash('sha256').update(token).digest();
    await people.createSession({ tokenHash, userId: user.id, ttlMs: 3_600_000 });
    return { id: user.id, handle, token };
  };

  return { ...world, url, people, lines, counts, account, call: caller(url), close: () => server.close() };
}

/** Sends a request over a real connection: `call('POST /v1/chats', { token, json })`. */
function caller(url: string) {
  return async (line: string, { token, json, headers = {} }: Sending = {}): Promise<Answer> => {
    const [method = '', path = ''] = line.split(' ');
    const response = await fetch(`${url}${path}`, {
      method,
      headers: {
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        ...(json === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(json === undefined ? {} : { body: typeof json === 'string' ? json : JSON.stringify(json) }),
    });
    const text = await response.text();
    const body = JSON.parse(text === '' ? '{}' : text) as Body;
    return { status: response.status, headers: response.headers, body, isEmpty: text === '' };
  };
}

/** A refusal is a problem of the catalogue with the status that it was sent with; `field` where one is to blame. */
export function assertProblem(answer: Answer, status: number, code: string, field?: string): void {
  const shown = JSON.stringify(answer.body);
  assert.equal(answer.status, status, shown);
  assert.equal(answer.headers.get('content-type'), 'application/problem+json; charset=utf-8');
  assert.equal(answer.body.code, code, shown);
  assert.equal(answer.body.status, status, shown);
  assert.equal(answer.body.type, `/problems/${code}`);
  if (field !== undefined) assert.equal(answer.body.field, field, shown);
}

/** The encoded form of `src/http/password.ts` at a cost that a test can pay a hundred times. */
function cheapHash(password: string): string {
  const salt = randomBytes(16);
  const key = scryptSync(password, salt, 32, { N: 16, r: 8, p: 1 });
  const unpadded = (bytes: Buffer) => bytes.toString('base64').replace(/=+$/, '');
  return `$scrypt$ln=4,r=8,p=1$${unpadded(salt)}$${unpadded(key)}`;
}

function untouchable<T extends object>(name: string): T {
  return new Proxy({} as T, {
    get(_target, member) {
      throw new Error(`Nothing here may touch ${name}.${String(member)}`);
    },
    ownKeys: () => [],
  });
}

function recordingLog(): { log: Log; lines: string[] } {
  const lines: string[] = [];
  const write = (level: string) => (fields: object, text: string) => {
    lines.push(`${level} ${text} ${JSON.stringify(fields)}`);
  };
  return { log: { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') }, lines };
}
