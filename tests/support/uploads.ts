/**
 * The real HTTP server with a real intake for tests of uploads and downloads: real database, real file blobs, real
 * recognition of types. No worker runs: `publish` and `fail` settle a job by hand.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import type { TestContext } from 'node:test';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import { createSniffer } from '../../src/drivers/sniffer-file-type.ts';
import type { HttpDeps, HttpSettings } from '../../src/http/app.ts';
import { createAccept } from '../../src/pipeline/accept.ts';
import { createAdmission } from '../../src/pipeline/admission.ts';
import { attemptPrefix, stagingKey, type Variant, type VariantName } from '../../src/pipeline/attachment.ts';
import type { Blobs, Reach, Signals } from '../../src/pipeline/ports.ts';
import type { Claim, Store } from '../../src/pipeline/store.ts';
import { type Account, type Answer, apiSettings, type Body, startApi } from './api.ts';
import { onEnd } from './on-end.ts';
import { createPoints, faulty } from './ports-fake.ts';
import { budgets, newClaim } from './store.ts';
import { until } from './until.ts';

export const sha256 = (bytes: Uint8Array | string) => createHash('sha256').update(bytes).digest('hex');

/** The beginning of a real PNG, which is all that recognition looks at, and a body that tells pictures apart. */
export function png(word = 'a', size = 0): Buffer {
  const head = Buffer.from('89504e470d0a1a0a0000000d494844520000000100000001080200000090776d', 'hex');
  return Buffer.concat([head, Buffer.from(word), Buffer.alloc(size, word)]);
}

export interface UploadOptions {
  readonly settings?: Partial<HttpSettings>;
  readonly deps?: (real: HttpDeps) => Partial<HttpDeps>;
}

export type Uploads = Awaited<ReturnType<typeof startUploads>>;

export async function startUploads(t: TestContext, options: UploadOptions = {}) {
  const dir = await mkdtemp(join(tmpdir(), 'skrepka-http-'));
  t.after(() => rm(dir, { recursive: true, force: true }));
  const objects = join(dir, 'objects');
  const blobs = faulty(createFileBlobs({ dir: objects }));
  const signals = createLocalSignals();
  const points = createPoints();
  let store = faulty({} as Store);
  const api = await startApi(t, {
    ...(options.settings && { settings: options.settings }),
    deps(real) {
      store = faulty(real.store);
      const own = { store: store.port, blobs: blobs.port, signals, reach: points.reach };
      const deps = withIntake(real, options.settings ?? {}, own);
      return { ...deps, ...options.deps?.(deps) };
    },
  });
  const ada = await api.account('ada');

  /** Rows, jobs, keys and objects: all that an upload may leave behind. */
  const remains = async () => {
    const count = async (table: string) =>
      Number((await api.pool.query(`select count(*) from ${table}`)).rows[0].count);
    return {
      attachments: await count('attachments'),
      jobs: await count('jobs'),
      keys: await count('idempotency_keys'),
      files: (await filesBelow(objects)).length,
    };
  };

  return {
    ...api,
    /** The store that server and intake call, with plans for failures. */
    faults: store,
    ada,
    blobs,
    signals,
    points,
    remains,
    ...settlements(api, blobs.port, signals),
    send: sender(api.url, ada),
  };
}

export const nothing = { attachments: 0, jobs: 0, keys: 0, files: 0 };

/** For what is removed after an answer, or after the end of its connection. */
export async function untilNothing(uploads: Uploads): Promise<void> {
  await until('nothing is left', async () => JSON.stringify(await uploads.remains()) === JSON.stringify(nothing));
}

function withIntake(
  real: HttpDeps,
  changed: Partial<HttpSettings>,
  parts: Pick<HttpDeps, 'store' | 'blobs' | 'signals'> & { reach: Reach },
): HttpDeps {
  const clock = createSystemClock();
  const { log, meter } = real;
  const { store, blobs, signals, reach } = parts;
  const settings = { ...apiSettings, ...changed, reservationMs: 3000, spacingMs: 1000, pipelineVersion: 1 };
  const admission = createAdmission({ store, clock, log, meter }, settings);
  const accept = createAccept(
    { store, admission, blobs, sniffer: createSniffer(), clock, log, reach, meter },
    settings,
  );
  const metrics = { contentType: 'text/plain; version=0.0.4; charset=utf-8', render: async () => 'up 1\n' };
  const broker = { health: async () => undefined, depth: async () => ({ waiting: 0, inFlight: 0 }) };
  return { ...real, store, blobs, broker, accept, signals, clock, metrics };
}

/** Every file below a folder, temporary ones included, without its mark; none when the folder is not there. */
async function filesBelow(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { recursive: true, withFileTypes: true }).catch(() => []);
  const files = entries.filter((entry) => entry.isFile() && entry.name !== '.skrepka');
  return files.map((entry) => join(entry.parentPath, entry.name));
}

/** Signals that reach listeners of this process at once. */
function createLocalSignals(): Signals & { listeners: () => number } {
  const all = new Set<(id: string | null) => void>();
  return {
    announce(topic, id) {
      if (topic === 'changed') for (const listener of all) listener(id ?? null);
    },
    listen(_topic, listener) {
      all.add(listener);
      return () => void all.delete(listener);
    },
    async close() {},
    listeners: () => all.size,
  };
}

/* ---------------------------------------------------------- jobs, settled by hand */

function settlements(
  { pool, store }: Pick<Awaited<ReturnType<typeof startApi>>, 'pool' | 'store'>,
  blobs: Blobs,
  signals: Signals,
) {
  async function claim(id: string): Promise<Claim> {
    const { rows } = await pool.query('select id from jobs where attachment_id = $1', [id]);
    const result = await store.claim(newClaim(rows[0].id));
    return result.kind === 'claimed' ? result.claim : assert.fail(JSON.stringify(result));
  }
  return {
    claim,
    /** Publishes the staged original and three small variants, as a worker would. */
    async publish(id: string): Promise<void> {
      const { attempt, kind } = await claim(id);
      const prefix = attemptPrefix(id, attempt.version, attempt.fence, attempt.attemptId);
      await blobs.copy(stagingKey(id), `${prefix}original.bin`);
      const variants =
        kind === 'file' ? [] : await Promise.all(variantTypes.map((type) => putVariant(blobs, prefix, type)));
      const seen = kind === 'file' ? null : 1;
      const settled = await store.settle(
        attempt,
        {
          originalKey: `${prefix}original.bin`,
          width: seen,
          height: seen,
          frames: seen,
          placeholder: kind === 'file' ? null : 'AAAA',
          variants,
        },
        { graceMs: 0, replacedMs: 0, who: 'test' },
      );
      assert.equal(settled, 'ready');
      signals.announce('changed', id);
    },
    async fail(id: string): Promise<void> {
      const { attempt } = await claim(id);
      const failure = { code: 'corrupt_image', detail: 'inside /secret', retryMs: 0 } as const;
      assert.equal(await store.fail(attempt, failure, { budgets, graceMs: 0, who: 'test' }), 'failed');
      signals.announce('changed', id);
    },
  };
}

const variantTypes: readonly [VariantName, string][] = [
  ['thumbnail', 'image/jpeg'],
  ['crop', 'image/jpeg'],
  ['optimized', 'image/webp'],
];

async function putVariant(blobs: Blobs, prefix: string, [name, contentType]: [VariantName, string]): Promise<Variant> {
  const bytes = Buffer.from(`${name} of ${prefix}`);
  const key = `${prefix}${name}.bin`;
  await blobs.put(key, Readable.from([bytes]));
  return { name, contentType, width: 1, height: 1, size: bytes.length, sha256: sha256(bytes), key };
}

/* --------------------------------------------------------------------- requests */

/** Uploads as `ada`: `send(bytes, headers, query)` raw, or a `FormData`. */
function sender(url: string, ada: Account) {
  return async (
    body: NonNullable<RequestInit['body']>,
    headers: Record<string, string> = {},
    query = '',
  ): Promise<Answer> => {
    const response = await fetch(`${url}/v1/attachments${query}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${ada.token}`, ...headers },
      body,
      ...(body instanceof ReadableStream ? { duplex: 'half' } : {}),
    } as RequestInit);
    const answer = (await response.json()) as Body;
    return { status: response.status, headers: response.headers, body: answer, isEmpty: false };
  };
}

/** A connection on which a test says every byte itself, and reads what comes back. */
export async function dial(t: TestContext, url: string) {
  const socket: Socket = connect({ port: Number(new URL(url).port), host: '127.0.0.1' });
  // Before its server, which would wait for it.
  onEnd(t, () => void socket.destroy());
  let received = '';
  let closed = false;
  socket.setEncoding('latin1').on('data', (text: string) => {
    received += text;
  });
  socket
    .on('error', () => undefined)
    .on('close', () => {
      closed = true;
    });
  await new Promise<void>((resolve) => socket.once('connect', resolve));
  return {
    socket,
    received: () => received,
    /** Resolves when the text has arrived. */
    until: (text: string) => until(`"${text}" in ${JSON.stringify(received)}`, () => received.includes(text)),
    untilClosed: (withinMs = 10_000) => until('the connection closed', () => closed, { deadlineMs: withinMs }),
    /** Writes with back-pressure. */
    write: (bytes: Uint8Array | string) =>
      new Promise<void>((resolve, reject) => socket.write(bytes, (error) => (error ? reject(error) : resolve()))),
  };
}

/** The head of an upload request, ready to be followed by its body. */
export function uploadHead(token: string, headers: Record<string, string | number>): string {
  const lines = Object.entries({ host: 'x', authorization: `Bearer ${token}`, ...headers });
  return `POST /v1/attachments HTTP/1.1\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n`;
}

type Field = string | readonly [bytes: Uint8Array, name: string, type: string];

/** A form with its fields in the given order; a field is a text, or a file with its name and type. */
export function form(...all: readonly Readonly<Record<string, Field>>[]): FormData {
  const data = new FormData();
  for (const [name, field] of all.flatMap((each) => Object.entries(each))) {
    if (typeof field === 'string') data.append(name, field);
    else data.append(name, new File([Uint8Array.from(field[0])], field[1], { type: field[2] }));
  }
  return data;
}
