/**
 * The whole pipeline in one process for tests: the real store on a fresh PostgreSQL database, real file blobs, the memory
 * broker, fake pictures. Every port is wrapped by `faulty`, times are short, and all is removed when the test ends.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import { createFileScratch } from '../../src/drivers/scratch-file.ts';
import { newId } from '../../src/ids.ts';
import { type Accept, type AcceptDeps, createAccept, type Upload } from '../../src/pipeline/accept.ts';
import { createAdmission } from '../../src/pipeline/admission.ts';
import { createBreaker } from '../../src/pipeline/breaker.ts';
import { createJanitor } from '../../src/pipeline/janitor.ts';
import type { Blobs, Broker, Clock, Images, Log, Meter, Scratch, Signals } from '../../src/pipeline/ports.ts';
import { recipes } from '../../src/pipeline/recipe.ts';
import { createRelay } from '../../src/pipeline/relay.ts';
import type { Store } from '../../src/pipeline/store.ts';
import { createWorker } from '../../src/pipeline/worker.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { createStore } from '../../src/postgres/store.ts';
import { createMemoryBroker } from './broker-memory.ts';
import { onEnd } from './on-end.ts';
import { createPainter, createPoints, createTally, fakeSniffer, faulty, silent } from './ports-fake.ts';
import { freshDatabase } from './postgres.ts';
import { until } from './until.ts';

export const quick = {
  uploadBytesMax: 1024 * 1024,
  uploadMsMax: 3_600_000,
  backlogMax: 10_000,
  stagingBytesMax: 1024 ** 3,
  uploadsMax: 256,
  pendingPerUserMax: 1000,
  uploadsPerUserMax: 64,
  uploadsPerMinuteMax: 10_000,
  idempotencyMs: 60_000,
  reservationMs: 900,
  spacingMs: 1000,
  pipelineVersion: 1,
  brokerWindow: 1000,
  publishTimeoutMs: 400,
  takenMs: 500,
  reringMs: 400,
  reringCapMs: 2000,
  renderConcurrency: 2,
  prefetch: 0,
  visibilityMs: 32_000,
  leaseMs: 30_000,
  renewMs: 250,
  leaseReserveMs: 300,
  leaseMarginMs: 20,
  starvedMs: 300,
  unsupportedMs: 60_000,
  versions: [...recipes.keys()],
  floorMs: 10,
  baseMs: 10,
  capMs: 50,
  attemptsMax: 5,
  crashesMax: 3,
  graceMs: 50,
  replacedMs: 50,
  releaseMs: 50,
  breakerFloorMs: 20,
  breakerCapMs: 200,
  janitorMs: 50,
  sweepMs: 100,
  orphanMs: 86_400_000,
  reprocessWindow: 100,
  failedRetentionMs: 7 * 86_400_000,
  historyRetentionMs: 90 * 86_400_000,
  deepSweepMs: 86_400_000,
};
export type Settings = typeof quick;

/** Signals that only reach listeners of this process. */
function localSignals(): Signals {
  const listeners = new Map<string, Set<(id: string | null) => void>>();
  const of = (topic: string) => listeners.get(topic) ?? listeners.set(topic, new Set()).get(topic) ?? new Set();
  return {
    announce: (topic, id) => {
      for (const listener of of(topic)) listener(id ?? null);
    },
    listen(topic, listener) {
      of(topic).add(listener);
      return () => void of(topic).delete(listener);
    },
    async close() {},
  };
}

export async function createPipeline(t: TestContext, change: Partial<Settings> = {}, images: Images = createPainter()) {
  const settings = { ...quick, ...change };
  const dir = await mkdtemp(join(tmpdir(), 'skrepka-pipeline-'));
  const { pool } = await freshDatabase(t);
  const clock = createSystemClock();
  const signals = localSignals();
  const store = faulty(createStore({ pool, signals }));
  const blobs = faulty(createFileBlobs({ dir: join(dir, 'objects') }));
  const scratch = faulty(createFileScratch({ dir: join(dir, 'scratch') }));
  const memory = createMemoryBroker();
  const broker = faulty(memory);
  const meter = createTally();
  const points = createPoints();
  const log = silent;
  const breakers = standBreakers(
    { store: store.port, storage: blobs.port, broker: broker.port, disk: scratch.port },
    { clock, log, meter },
    settings,
  );
  const shared = {
    breakers,
    store: store.port,
    blobs: blobs.port,
    clock,
    log,
    meter,
    reach: points.reach,
  };
  const accept = createIntake(shared, settings);

  const user = await addUser(pool);

  const stops: (() => Promise<void>)[] = [];
  // Before the database goes: a pool that is ended under a worker may never come to its end.
  onEnd(t, async () => {
    await Promise.all(stops.map((stop) => stop()));
    for (const breaker of Object.values(breakers)) breaker.end();
    await blobs.port.close();
    await rm(dir, { recursive: true, force: true });
  });

  function startRelay() {
    const stop = new AbortController();
    const relay = createRelay({ ...shared, broker: broker.port, signals }, settings);
    const over = relay.run(stop.signal);
    return ends(stop, over);
  }
  function startWorker(change: Partial<Settings> & { images?: Images; who?: string } = {}) {
    const stop = new AbortController();
    const abort = new AbortController();
    const deps = {
      ...shared,
      broker: memory.open(),
      scratch: scratch.port,
      images: change.images ?? images,
      who: change.who ?? 'worker-1',
    };
    const worker = createWorker(deps, { ...settings, ...change });
    const over = worker.run({ stop: stop.signal, abort: abort.signal });
    const end = ends(stop, over, () => abort.abort());
    const drain = () => {
      stop.abort();
      return over;
    };
    return { worker, drain, abort: () => abort.abort(), end };
  }
  function startJanitor() {
    const stop = new AbortController();
    return ends(stop, createJanitor(shared, settings).run(stop.signal));
  }
  function ends(stop: AbortController, over: Promise<void>, also = () => {}) {
    const end = async () => {
      stop.abort();
      also();
      await over;
    };
    stops.push(end);
    return end;
  }

  const upload = uploadsBy(user, accept);

  return {
    settings,
    pool,
    store,
    blobs,
    scratch,
    broker,
    memory,
    meter,
    points,
    signals,
    clock,
    user,
    dir,
    accept,
    upload,
    /** Uploads through another process: its admission knows what the store says, and what itself let in. */
    uploadElsewhere: (own = clock) => uploadsBy(user, createIntake({ ...shared, clock: own }, settings)),
    ...questionsTo(pool, store.port, blobs.port, user),
    startRelay,
    startWorker,
    startJanitor,
  };
}

/** The intake of one process, with an admission of its own. */
function createIntake(deps: Omit<AcceptDeps, 'admission' | 'sniffer'>, settings: Settings): Accept {
  return createAccept({ ...deps, admission: createAdmission(deps, settings), sniffer: fakeSniffer }, settings);
}

async function addUser(pool: Pool): Promise<string> {
  const user = newId();
  const handle = `u${user.slice(-12)}`;
  await pool.query(`insert into users (id, handle, password_hash, role) values ($1, $2, 'x', 'user')`, [user, handle]);
  return user;
}

function standBreakers(
  ports: { store: Store; storage: Blobs; broker: Broker; disk: Scratch },
  deps: { clock: Clock; log: Log; meter: Meter },
  settings: Settings,
) {
  return {
    store: createBreaker('store', () => ports.store.health(), deps, settings),
    storage: createBreaker('storage', () => ports.storage.health(), deps, settings),
    broker: createBreaker('broker', () => ports.broker.health(), deps, settings),
    disk: createBreaker('disk', () => ports.disk.health(), deps, settings),
  };
}

/** An upload with what most tests leave as it is. */
function uploadsBy(user: string, accept: Accept) {
  return (bytes: string | AsyncIterable<Uint8Array>, more: Partial<Upload> = {}) =>
    accept.accept(
      {
        userId: user,
        fileName: 'a.jpg',
        declaredType: null,
        declaredSize: null,
        sizeMax: null,
        idempotencyKey: null,
        traceparent: null,
        signal: new AbortController().signal,
        trailer: async () => ({ alt: null, sha256: null }),
        ...more,
      },
      typeof bytes === 'string' ? chunks(bytes) : bytes,
    );
}

/** What a test asks of rows and objects. */
function questionsTo(pool: Pool, store: Store, blobs: Blobs, user: string) {
  const jobOf = async (attachmentId: string) =>
    (await pool.query('select * from jobs where attachment_id = $1', [attachmentId])).rows[0];
  const attachment = async (id: string) => {
    const found = await store.attachmentFor(user, id);
    if (!found) throw new Error(`no attachment ${id}`);
    return found;
  };
  const untilState = (id: string, state: string) =>
    until(`attachment ${state}`, async () => {
      const found = await attachment(id);
      return found.state === state && found;
    });
  const keys = async (prefix = '') => (await blobs.list(prefix)).objects.map((object) => object.key);
  return { jobOf, attachment, untilState, keys };
}

export async function* chunks(text: string, sizeMax = 7): AsyncGenerator<Uint8Array> {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += sizeMax) yield bytes.subarray(at, at + sizeMax);
}
