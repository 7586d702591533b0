/**
 * What accepting an upload costs on an idle machine: ours against a bare server that only makes the bytes durable.
 *
 * One client sends one upload after the other, so a latency is that of the work and not of a line. Each run begins with a new
 * PostgreSQL, new folders and new processes; what a process spends is read after its first uploads, when its code is warm.
 */
import { fork } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { startEmbedded } from '../../src/postgres/embedded.ts';
import { onEnd, type Scope } from '../../tests/support/on-end.ts';
import { type BenchUser, openProduct } from '../product.ts';
import type { Ground } from '../references/bare-upload.ts';
import type { Bound, Figures, Ratio, Row, Side } from '../row.ts';
import { withScope } from '../scope.ts';
import { type Body, formOf, rawOf, uploadBytes } from '../upload-body.ts';
import { cpuMsOf, median, percentile } from '../usage.ts';
import { type Ask, connectTo } from '../user.ts';

/** `key` begins the names of the figures. */
interface Kind {
  readonly key: string;
  readonly words: string;
  readonly size: number;
  readonly form: boolean;
}

const kinds: readonly Kind[] = [
  { key: 'small', words: '200 KB raw', size: 200 * 1024, form: false },
  { key: 'smallForm', words: '200 KB multipart', size: 200 * 1024, form: true },
  { key: 'large', words: '5 MB raw', size: 5 * 1024 * 1024, form: false },
  { key: 'largeForm', words: '5 MB multipart', size: 5 * 1024 * 1024, form: true },
];

/** Uploads of each kind that are measured, and before them those that warm it up, by whether they are small. */
interface Amount {
  readonly small: { readonly warm: number; readonly measured: number };
  readonly large: { readonly warm: number; readonly measured: number };
}
const whole: Amount = { small: { warm: 150, measured: 400 }, large: { warm: 15, measured: 60 } };
const little: Amount = { small: { warm: 40, measured: 80 }, large: { warm: 3, measured: 10 } };

/** Nobody has more than this many uploads waiting at once, far below what one user may: what is read of them stays short. */
const uploadsPerUser = 40;

const ours = 'Skrepka';
const bare = 'bare server';

export const row: Row = {
  name: 'accept',
  title: 'Accepting an upload on an idle machine',
  about:
    'One upload after the other against a bare Node server that hashes, writes, fsyncs, renames, fsyncs the folder and makes one INSERT, ' +
    'with the same PostgreSQL and the same durability. Ours authenticates, admits, recognises the content and records attachment, job and history besides. ' +
    'The bare server reads no forms, so multipart of ours stands against raw of its. CPU is that of the server process and of PostgreSQL.',
  rounds: 5,
  missing: () => null,
  async open(_scope, { quick }) {
    const amount = quick ? little : whole;
    const sides: readonly Side[] = [
      { name: bare, run: () => withScope((scope) => runBare(scope, amount)) },
      { name: ours, run: () => withScope((scope) => runOurs(scope, amount)) },
    ];
    return { sides, ratios: kinds.flatMap(ratiosOf), bounds: kinds.flatMap(boundsOf) };
  },
};

function ratiosOf({ key, words, form }: Kind): Ratio[] {
  const between = { ours, reference: bare } as const;
  const against = key.replace('Form', '');
  const one = (figure: string) => ({ ...between, figure: `${key}${figure}`, referenceFigure: `${against}${figure}` });
  return [
    { name: `${words}: CPU`, ...one('CpuMs'), goal: { atMost: form ? 1.75 : 1.25 }, kind: 'cpu' },
    { name: `${words}: p50`, ...one('P50Ms'), goal: { atMost: 1.25 }, kind: 'wall' },
    { name: `${words}: p95`, ...one('P95Ms'), goal: { atMost: 1.5 }, kind: 'wall' },
  ];
}

/** Told for readers: where the time on the processor goes. */
function boundsOf({ key, words }: Kind): Bound[] {
  const one = (name: string, figure: string): Bound => ({ name: `${words}: ${name}`, side: ours, figure, unit: 'ms' });
  return [one('CPU of the API', `${key}ServerCpuMs`), one('CPU of PostgreSQL', `${key}PostgresCpuMs`)];
}

/* ---------------------------------------------------------------------- sides */

interface Place {
  readonly ask: Ask;
  readonly server: number;
  readonly postgres: number;
  /** Called before each upload: what it sends beside its body. */
  headers(): Readonly<Record<string, string>>;
}

async function runOurs(scope: Scope, amount: Amount): Promise<Figures> {
  // Nobody takes the jobs, so that what is spent is spent on accepting. The limits are those of production.
  const product = await openProduct(scope, { roles: [['api']], settings: { MAX_PENDING_PER_USER: '200' } });
  const users: BenchUser[] = [];
  const each = amount.small.warm + amount.small.measured + amount.large.warm + amount.large.measured;
  for (let made = 0; made < Math.ceil((2 * each) / uploadsPerUser); made += 1) users.push(await product.user());
  await product.untilCalm();
  let sent = 0;
  return await measureAll(kinds, amount, {
    ask: connectTo(() => product.url, scope),
    server: product.processes.api,
    postgres: product.processes.postgres,
    headers() {
      const user = users[sent % users.length];
      sent += 1;
      return { authorization: `Bearer ${user?.token}` };
    },
  });
}

async function runBare(scope: Scope, amount: Amount): Promise<Figures> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-bench-'));
  onEnd(scope, () => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const postgres = await startEmbedded({ dir: path.join(folder, 'postgres'), log: silent });
  onEnd(scope, () => postgres.stop());
  const server = fork(path.resolve(import.meta.dirname, '../references/bare-upload.ts'), { execArgv: [] });
  const ended = new Promise<void>((resolve) => server.once('exit', () => resolve()));
  onEnd(scope, async () => {
    server.kill('SIGKILL');
    await ended;
  });
  const listening = new Promise<{ url: string }>((resolve) => server.once('message', (word) => resolve(word as never)));
  const ground: Ground = { databaseUrl: postgres.url, dir: path.join(folder, 'uploads') };
  server.send(ground);
  const early = ended.then(() => {
    throw new Error('The bare server ended before it listened');
  });
  early.catch(() => undefined);
  const { url } = await Promise.race([listening, early]);
  const ask = connectTo(() => url, scope);
  const place = { ask, server: server.pid ?? 0, postgres: postgres.pid, headers: () => ({}) };
  return await measureAll(
    kinds.filter(({ form }) => !form),
    amount,
    place,
  );
}

const silent = { debug() {}, info() {}, warn() {}, error() {} };

/* ------------------------------------------------------------------ measuring */

async function measureAll(all: readonly Kind[], amount: Amount, place: Place): Promise<Figures> {
  const figures: Record<string, number> = {};
  for (const kind of all) {
    const bytes = uploadBytes(kind.size);
    const { warm, measured } = kind.key.startsWith('small') ? amount.small : amount.large;
    const body = kind.form ? formOf(bytes) : rawOf(bytes);
    await send(place, body, warm);
    Object.assign(figures, await measure(place, body, measured, kind.key));
  }
  return figures;
}

async function measure(place: Place, body: Body, count: number, key: string): Promise<Figures> {
  const serverBefore = await cpuMsOf([place.server]);
  const postgresBefore = await cpuMsOf([place.postgres]);
  const latencies = await send(place, body, count);
  const serverCpuMs = ((await cpuMsOf([place.server])) - serverBefore) / count;
  const postgresCpuMs = ((await cpuMsOf([place.postgres])) - postgresBefore) / count;
  const sorted = latencies.toSorted((one, other) => one - other);
  return {
    [`${key}CpuMs`]: serverCpuMs + postgresCpuMs,
    [`${key}ServerCpuMs`]: serverCpuMs,
    [`${key}PostgresCpuMs`]: postgresCpuMs,
    [`${key}P50Ms`]: median(sorted),
    [`${key}P95Ms`]: percentile(sorted, 95),
  };
}

/** One after the other; answers how long each took, ms. */
async function send({ ask, headers }: Place, body: Body, count: number): Promise<number[]> {
  const latencies: number[] = [];
  for (let sent = 0; sent < count; sent += 1) {
    const own = headers();
    const sentAtMs = performance.now();
    const answer = await ask(body.path, { method: 'POST', headers: { ...body.headers, ...own }, body: body.bytes });
    latencies.push(performance.now() - sentAtMs);
    if (answer.status !== 202) throw new Error(`Expected 202 for an upload, received ${answer.status}: ${answer.text}`);
  }
  return latencies;
}
