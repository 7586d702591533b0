/**
 * The only file that knows which driver is which: builds the parts of a process by hand, top to bottom, and starts roles.
 *
 * Everything a role needs from the outside may be away when it starts and come back later; only the API listens at once,
 * so that its health can say what is missing. The other roles begin when the database has a schema for this build.
 */
import { hostname } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Config } from './config.ts';
import { createFileBlobs } from './drivers/blobs-file.ts';
import { type BrokerSql, createPostgresBroker } from './drivers/broker-postgres.ts';
import { createSystemClock } from './drivers/clock-system.ts';
import { createSharpImages } from './drivers/images-sharp.ts';
import { createFileScratch } from './drivers/scratch-file.ts';
import { describe, StartError } from './errors.ts';
import { ensureOperator } from './http/auth.ts';
import type { HttpServer } from './http/server.ts';
import { createAccept } from './pipeline/accept.ts';
import { createBreaker } from './pipeline/breaker.ts';
import { createJanitor } from './pipeline/janitor.ts';
import {
  type Blobs,
  type Broker,
  BrokerError,
  type Clock,
  type Images,
  type Log,
  type Reach,
  type Signals,
} from './pipeline/ports.ts';
import { recipes } from './pipeline/recipe.ts';
import { createRelay } from './pipeline/relay.ts';
import type { Store } from './pipeline/store.ts';
import { createWorker } from './pipeline/worker.ts';
import { startEmbedded } from './postgres/embedded.ts';
import { migrate, schemaProblem } from './postgres/migrate.ts';
import { createPeople } from './postgres/people.ts';
import { createPool, listen, type Pool, single } from './postgres/pool.ts';
import { createSignals } from './postgres/signals.ts';
import { createStore } from './postgres/store.ts';
import type { Role } from './roles.ts';
import { portSentence, supervise } from './supervisor.ts';
import type { Telemetry } from './telemetry.ts';

export interface Running {
  /** Where the API listens; null without that role. */
  readonly url: string | null;
  /** Takes nothing new, lets finish what runs until `hurry` aborts, then gives it back. Resolves when all is released. */
  stop(hurry: AbortSignal): Promise<void>;
}

interface Parts {
  readonly pool: Pool;
  readonly signals: Signals;
  readonly store: Store;
  readonly broker: Broker;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly reach: Reach;
  readonly telemetry: Telemetry;
  readonly config: Config;
}

/** Starts the roles in this process. Rejects `StartError` when the configuration or the port does not allow it. */
export async function run(
  wanted: readonly Role[],
  config: Config,
  { telemetry, reach = async () => {}, renderScript }: { telemetry: Telemetry; reach?: Reach; renderScript?: URL },
): Promise<Running> {
  requireDatabase(config.databaseUrl);
  const parts = await buildParts(wanted, config, telemetry, reach);
  const stop = new AbortController();
  const abort = new AbortController();
  const images = wanted.includes('worker') ? buildImages(parts, renderScript) : null;
  const http = wanted.includes('api') ? await buildHttp(parts) : null;
  const listening = await http?.listen().catch(async (error: unknown) => {
    await release(parts, images);
    throw new StartError(portSentence((error as NodeJS.ErrnoException).code ?? describe(error), config), error);
  });
  const working = startLoops(wanted, parts, images, { stop: stop.signal, abort: abort.signal });
  return {
    url: listening?.url ?? null,
    async stop(hurry) {
      stop.abort();
      const giveUp = () => {
        abort.abort();
        http?.app.server.closeAllConnections();
      };
      hurry.addEventListener('abort', giveUp, { once: true });
      if (hurry.aborted) giveUp();
      await Promise.all([working, http?.close()]);
      hurry.removeEventListener('abort', giveUp);
      await release(parts, images);
    },
  };
}

async function buildParts(wanted: readonly Role[], config: Config, telemetry: Telemetry, reach: Reach): Promise<Parts> {
  const { log } = telemetry;
  const name = `skrepka ${wanted.join(',')}`;
  const pool = createPool({ url: config.databaseUrl, max: config.databasePoolMax, name });
  const signals = createSignals({ pool, url: config.databaseUrl, log });
  const store = createStore({ pool, signals });
  const broker = await buildBroker(config, pool, log);
  const blobs = await buildBlobs(config);
  return { pool, signals, store, broker, blobs, clock: createSystemClock(), reach, telemetry, config };
}

/** A driver of an engine is loaded only where it is used: some are large. */
async function buildBlobs(config: Config): Promise<Blobs> {
  const { blobsUrl, dataDir } = config;
  if (blobsUrl === 'file:') return createFileBlobs({ dir: path.join(dataDir, 'blobs') });
  if (blobsUrl.startsWith('file:///')) return createFileBlobs({ dir: fileURLToPath(blobsUrl) });
  const bucket = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\/?$/.exec(blobsUrl)?.[1];
  if (bucket !== undefined) return (await import('./drivers/blobs-s3.ts')).createS3Blobs({ ...config, bucket });
  throw new StartError('Expected "file:", "file:///folder" or "s3://bucket" for BLOBS_URL, received something else.');
}

async function buildBroker(config: Config, pool: Pool, log: Log): Promise<Broker> {
  const { brokerUrl: url, brokerName: name, brokerReplicas: replicas } = config;
  const scheme = url.slice(0, url.indexOf(':'));
  switch (scheme) {
    case 'postgres':
    case 'postgresql':
      return createPostgresBroker({ sql: brokerSql(config, pool), log });
    case 'nats':
    case 'nats+tls':
      return (await import('./drivers/broker-nats.ts')).createNatsBroker({ url, name, replicas, log });
    case 'amqp':
    case 'amqps':
      return (await import('./drivers/broker-rabbitmq.ts')).createRabbitBroker({ url, name, replicas, log });
    case 'valkey':
    case 'valkeys':
    case 'redis':
    case 'rediss':
      return (await import('./drivers/broker-valkey.ts')).createValkeyBroker({ url, name, log });
    default:
      throw new StartError(
        'Expected postgres:, nats:, nats+tls:, amqp:, amqps:, valkey:, valkeys:, redis: or rediss: for BROKER_URL, received another scheme.',
      );
  }
}

/** The embedded broker lives in the store's database, or in any other: it takes no part in the store's transactions. */
function brokerSql({ brokerUrl, databaseUrl, databasePoolMax }: Config, storePool: Pool): BrokerSql {
  const own = brokerUrl !== 'postgres:';
  if (own && !/^postgres(ql)?:\/\//.test(brokerUrl)) {
    throw new StartError('Expected "postgres:" or "postgres://…" for BROKER_URL, received another scheme.');
  }
  const url = own ? brokerUrl : databaseUrl;
  const pool = own ? createPool({ url, max: databasePoolMax, name: 'skrepka broker' }) : storePool;
  return {
    query: (text, values) => single(pool, text, values, { writes: true }),
    listen: (channel, on) =>
      listen({
        url,
        name: 'skrepka broker',
        channels: [channel],
        onMessage: on.heard,
        onConnected: on.connected,
        onLost: on.lost,
      }),
    close: async () => {
      if (own) await pool.end();
    },
  };
}

/** Only tests pass a script: a child that misbehaves on request. */
function buildImages({ config, telemetry }: Parts, script?: URL): Images {
  return createSharpImages(
    { log: telemetry.log, meter: telemetry.meter },
    {
      children: config.renderConcurrency,
      warmSpare: 1,
      // Uploads go before pictures: at this niceness the p95 of a small upload stayed at 12 ms instead of 294.
      niceness: 10,
      ...(script === undefined ? {} : { script }),
      limits: {
        pixelsMax: config.pixelsMax,
        pixelsMaxAvif: config.pixelsMaxAvif,
        framesMax: config.framesMax,
        scansMax: config.scansMax,
        timeoutMs: config.renderTimeoutMs,
        memoryBytes: config.renderMemoryBytes,
      },
    },
  );
}

async function buildHttp(parts: Parts): Promise<HttpServer> {
  const { store, blobs, broker, signals, clock, config, telemetry } = parts;
  const { log, meter, metrics } = telemetry;
  // Loaded here: no other role needs the framework, and its supervisor even less.
  const [{ createServer }, { createSniffer }] = await Promise.all([
    import('./http/server.ts'),
    import('./drivers/sniffer-file-type.ts'),
  ]);
  const accept = createAccept(
    { store, blobs, sniffer: createSniffer(), clock, log, meter, reach: parts.reach },
    config,
  );
  telemetry.gauges(queueGauges, async () => {
    const queue = await store.queue();
    return {
      jobs_queued: queue.queued,
      jobs_due: queue.due,
      jobs_announced: queue.announced,
      jobs_processing: queue.processing,
      jobs_failed: queue.failed,
      jobs_oldest_queued_seconds: queue.oldestQueuedSeconds ?? 0,
      cleanups_waiting: queue.cleanups,
    };
  });
  const people = createPeople({ pool: parts.pool });
  return await createServer({ store, people, blobs, broker, accept, signals, log, meter, metrics, clock }, config);
}

const queueGauges = {
  jobs_queued: 'Jobs waiting.',
  jobs_due: 'Jobs that could be claimed now.',
  jobs_announced: 'Jobs announced and not yet claimed.',
  jobs_processing: 'Jobs under a lease.',
  jobs_failed: 'Jobs that failed and are kept.',
  jobs_oldest_queued_seconds: 'Age of the oldest waiting job.',
  cleanups_waiting: 'Objects or prefixes waiting to be deleted.',
};

async function startLoops(
  wanted: readonly Role[],
  parts: Parts,
  images: Images | null,
  ends: { stop: AbortSignal; abort: AbortSignal },
): Promise<void> {
  const { broker, clock, config, telemetry } = parts;
  const { log, meter } = telemetry;
  const breakers = buildBreakers(parts);
  const shared = { ...parts, breakers, log, meter };
  await untilSchema(parts, ends.stop);
  await until('the storage is prepared', () => parts.blobs.prepare(), parts, ends.stop);
  const running: Promise<void>[] = [];
  if (wanted.includes('janitor')) running.push(createJanitor(shared, config).run(ends.stop));
  await until('the broker is prepared', () => broker.prepare(), parts, ends.stop);
  if (wanted.includes('relay')) running.push(createRelay(shared, config).run(ends.stop));
  if (images) {
    const scratch = createFileScratch({ dir: path.join(config.dataDir, 'scratch') });
    const settings = { ...config, versions: [...recipes.keys()] } satisfies object;
    const retry = { floorMs: config.retryFloorMs, baseMs: config.retryBaseMs, capMs: config.retryCapMs };
    const who = `${hostname()}:${process.pid}`;
    running.push(createWorker({ ...shared, images, scratch, who, clock }, { ...settings, ...retry }).run(ends));
  }
  await Promise.all(running);
  for (const breaker of Object.values(breakers)) breaker.end();
}

function buildBreakers({ store, blobs, broker, clock, config, telemetry }: Parts) {
  const deps = { clock, log: telemetry.log, meter: telemetry.meter };
  return {
    store: createBreaker('store', () => store.health(), deps, config),
    storage: createBreaker('storage', () => blobs.health(), deps, config),
    broker: createBreaker('broker', () => broker.health(), deps, config),
  };
}

async function untilSchema(parts: Parts, stop: AbortSignal): Promise<void> {
  const check = async () => {
    const problem = await schemaProblem(parts.pool);
    if (problem) throw new Error(problem);
  };
  await until('the database has a schema for this build', check, parts, stop);
}

/** Tries until it works or `stop` aborts, and says in the log what is waited for. */
async function until(what: string, attempt: () => Promise<void>, parts: Parts, stop: AbortSignal): Promise<void> {
  for (let delayMs = 200; !stop.aborted; delayMs = Math.min(delayMs * 2, 5_000)) {
    try {
      await attempt();
      return;
    } catch (error) {
      // No waiting mends a stream or queue of another shape.
      if (error instanceof BrokerError && error.fault === 'refused') throw new StartError(error.message, error);
      parts.telemetry.log.warn({ reason: describe(error) }, `waiting until ${what}`);
      await parts.clock.sleep(delayMs, stop);
    }
  }
}

/** Releases what `buildParts` took, in the reverse order of dependence. */
async function release(parts: Parts, images: Images | null): Promise<void> {
  await images?.close();
  await parts.broker.close();
  await parts.signals.close();
  await parts.blobs.close();
  await parts.store.close();
  if (!parts.pool.ended) await parts.pool.end();
}

/* --------------------------------------------------------------------- verbs */

/** `skrepka start`. Answers the exit code; rejects `StartError`. */
export async function startEverything(config: Config, { log }: Telemetry): Promise<number> {
  return await supervise(
    {
      log,
      print: (line) => console.log(line),
      startDatabase: (options) => startEmbedded({ dir: path.join(config.dataDir, 'postgres'), log, ...options }),
      migrate,
      ensureOperator: makeOperator,
    },
    config,
  );
}

/** `skrepka migrate`. Answers what was applied; rejects `StartError`. */
export async function migrateDatabase(config: Config): Promise<readonly string[]> {
  requireDatabase(config.databaseUrl);
  try {
    const applied = await migrate(config.databaseUrl);
    await prepareStorage(config);
    return applied;
  } catch (error) {
    if (error instanceof StartError) throw error;
    throw new StartError(`The database of DATABASE_URL cannot be migrated: ${describe(error)}.`, error);
  }
}

/** The bucket, where there is one. */
async function prepareStorage(config: Config): Promise<void> {
  const blobs = await buildBlobs(config);
  try {
    await blobs.prepare();
  } catch (error) {
    throw new StartError(`The storage of BLOBS_URL cannot be prepared: ${describe(error)}.`, error);
  } finally {
    await blobs.close();
  }
}

function requireDatabase(databaseUrl: string): void {
  if (databaseUrl !== '') return;
  throw new StartError(
    'DATABASE_URL is not set: give the URL of a PostgreSQL, or run "skrepka start", which brings its own.',
  );
}

/** On a connection of its own: nothing else runs yet. */
async function makeOperator(url: string): Promise<{ handle: string; password: string } | null> {
  const pool = createPool({ url, max: 1, name: 'skrepka start' });
  try {
    return await ensureOperator(createPeople({ pool }));
  } finally {
    await pool.end();
  }
}
