/**
 * Our way of queueing for the row `queue`: the pipeline of production, in two processes as `skrepka start` has them, on the
 * embedded broker. What is replaced is what the row is not about: pictures are not rendered, and bytes are not kept.
 *
 * The store of objects forgets what it is given and answers the same 200 bytes to every question, so that all the reading
 * and hashing around it still happens; the references move no bytes at all.
 */
import { createHash } from 'node:crypto';
import path from 'node:path';
import { Readable } from 'node:stream';
import { type Config, loadConfig } from '../../src/config.ts';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import { createAccept } from '../../src/pipeline/accept.ts';
import { createAdmission } from '../../src/pipeline/admission.ts';
import { createBreaker } from '../../src/pipeline/breaker.ts';
import { createJanitor } from '../../src/pipeline/janitor.ts';
import type { Blobs, Images, Scratch, Sniffer } from '../../src/pipeline/ports.ts';
import { recipes } from '../../src/pipeline/recipe.ts';
import { createRelay } from '../../src/pipeline/relay.ts';
import { createWorker } from '../../src/pipeline/worker.ts';
import { migrate } from '../../src/postgres/migrate.ts';
import { createPool } from '../../src/postgres/pool.ts';
import { createSignals } from '../../src/postgres/signals.ts';
import { createStore } from '../../src/postgres/store.ts';
import type { Role } from '../../src/roles.ts';
import { createTelemetry } from '../../src/telemetry.ts';
import { buildBroker } from '../../src/wiring-engines.ts';
import type { QueueSide } from '../queue-side.ts';
import { once } from '../references/uploads.ts';

export const producersMax = 64;

export const ours: QueueSide = {
  async prepare({ databaseUrl }) {
    await migrate(databaseUrl);
    await once(databaseUrl, async (client) => {
      for (let producer = 0; producer < producersMax; producer += 1) {
        await client.query(`insert into users (id, handle, password_hash, role) values ($1, $2, 'x', 'user')`, [
          userOf(producer),
          `producer${producer}`,
        ]);
      }
    });
  },

  async openApi({ databaseUrl }) {
    const parts = await buildParts(databaseUrl, ['api', 'relay', 'janitor']);
    const { config } = parts;
    const accept = createAccept({ ...parts, admission: createAdmission(parts, config), sniffer }, config);
    await parts.broker.prepare();
    const stop = new AbortController();
    const running = [createRelay(parts, config).run(stop.signal), createJanitor(parts, config).run(stop.signal)];
    return {
      async upload(producer) {
        await accept.accept(uploadOf(producer), whole(bytes));
      },
      async close() {
        stop.abort();
        await Promise.all(running);
        await parts.close();
      },
    };
  },

  async openWorker({ databaseUrl }, { slots, onDone }) {
    const parts = await buildParts(databaseUrl, ['worker']);
    const { config } = parts;
    await parts.broker.prepare();
    const stop = new AbortController();
    const worker = createWorker(
      {
        ...parts,
        images,
        scratch,
        who: `bench:${process.pid}`,
        // The last point of a job: its settle is durable and its delivery acknowledged.
        reach: async (point) => (point === 'worker.acked' ? onDone() : undefined),
      },
      {
        ...config,
        renderConcurrency: slots,
        versions: [...recipes.keys()],
        floorMs: config.retryFloorMs,
        baseMs: config.retryBaseMs,
        capMs: config.retryCapMs,
      },
    );
    const running = worker.run({ stop: stop.signal, abort: new AbortController().signal });
    return {
      async close() {
        stop.abort();
        await running;
        await parts.close();
      },
    };
  },

  count: ({ databaseUrl }) =>
    once(databaseUrl, async (client) => {
      const { rows } = await client.query<{ ready: number; queued: number }>(
        `select (select count(*) from attachments where state = 'ready')::int as ready,
           (select count(*) from jobs where state <> 'succeeded')::int as queued`,
      );
      return rows[0] ?? { ready: 0, queued: 0 };
    }),
};

/** As `wiring.ts` builds them. */
async function buildParts(databaseUrl: string, roles: readonly Role[]) {
  const config: Config = { ...loadConfig(), ...unlimited, databaseUrl };
  const { log, meter } = createTelemetry({ level: 'warn', service: roles.join(','), roles });
  const pool = createPool({ url: databaseUrl, max: config.databasePoolMax, name: `skrepka ${roles.join(',')}` });
  const signals = createSignals({ pool, url: databaseUrl, log });
  const store = createStore({ pool, signals });
  const broker = await buildBroker(config, pool, log);
  const clock = createSystemClock();
  const breakers = {
    store: createBreaker('store', () => store.health(), { clock, log, meter }, config),
    storage: createBreaker('storage', () => blobs.health(), { clock, log, meter }, config),
    broker: createBreaker('broker', () => broker.health(), { clock, log, meter }, config),
    disk: createBreaker('disk', () => scratch.health(), { clock, log, meter }, config),
  };
  return {
    config,
    store,
    broker,
    blobs,
    signals,
    breakers,
    clock,
    log,
    meter,
    reach: async () => {},
    async close() {
      for (const breaker of Object.values(breakers)) breaker.end();
      await broker.close();
      await signals.close();
      await store.close();
      await pool.end();
    },
  };
}

/** The row is about the pace of work, not about who may send how much. */
const unlimited = { backlogMax: 1e6, pendingPerUserMax: 1e6, uploadsPerMinuteMax: 1e6 };

const userOf = (producer: number) => `00000000-0000-7000-8000-${String(producer).padStart(12, '0')}`;

const uploadOf = (producer: number) => ({
  userId: userOf(producer),
  fileName: 'a.jpg',
  declaredType: 'image/jpeg',
  declaredSize: bytes.length,
  sizeMax: bytes.length,
  idempotencyKey: null,
  traceparent: null,
  signal: new AbortController().signal,
  trailer: async () => ({ alt: null, sha256: null }),
});

/* ----------------------------------------------------- what is not measured */

const bytes = Buffer.alloc(200, 'skrepka');
const sha256 = createHash('sha256').update(bytes).digest('hex');

/** Each reader gets its own: whoever has read a chunk may give its memory back. */
async function* whole(all: Uint8Array): AsyncGenerator<Uint8Array> {
  yield Uint8Array.from(all);
}

async function drained(body: AsyncIterable<Uint8Array>): Promise<{ size: number }> {
  let size = 0;
  for await (const chunk of body) size += chunk.length;
  return { size };
}

const sniffer: Sniffer = { headBytes: 16, sniff: async () => ({ contentType: 'image/jpeg' }) };

const blobs: Blobs = {
  async prepare() {},
  put: (_key, body) => drained(body),
  open: async () => ({ size: bytes.length, body: Readable.from([Uint8Array.from(bytes)]) }),
  head: async () => ({ size: bytes.length }),
  async copy() {},
  async deleteMany() {},
  list: async () => ({ objects: [], next: null }),
  presign: async () => null,
  async health() {},
  async close() {},
};

const scratch: Scratch = {
  async sweep() {},
  async health() {},
  open: async (attemptId) => ({
    path: path.join('/nowhere', attemptId),
    async write(name, body) {
      const hash = createHash('sha256');
      let size = 0;
      for await (const chunk of body) {
        hash.update(chunk);
        size += chunk.length;
      }
      return { path: path.join('/nowhere', attemptId, name), size, sha256: hash.digest('hex') };
    },
    read: () => whole(bytes),
    async remove() {},
  }),
};

const images: Images = {
  render: async ({ outputDir, recipe }) => ({
    width: 40,
    height: 30,
    frames: 1,
    placeholder: 'AAAA',
    variants: recipe.variants.map(({ name, format }) => ({
      name,
      path: path.join(outputDir, name),
      contentType: `image/${format}`,
      width: 10,
      height: 10,
      size: bytes.length,
      sha256,
    })),
  }),
  async close() {},
};
