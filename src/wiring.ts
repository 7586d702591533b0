/**
 * Builds the parts of a process by hand, top to bottom, and starts roles. Which driver is which: here and in `wiring-engines.ts`.
 *
 * Everything a role needs from the outside may be away when it starts and come back later; only the API listens at once,
 * so that its health can say what is missing. The other roles begin when the database has a schema for this build.
 */
import { hostname } from 'node:os';
import path from 'node:path';
import packageFile from '../package.json' with { type: 'json' };
import type { Config } from './config.ts';
import { createSystemClock } from './drivers/clock-system.ts';
import { createSharpImages } from './drivers/images-sharp.ts';
import { createFileScratch } from './drivers/scratch-file.ts';
import { describe, StartError } from './errors.ts';
import { createHealth } from './http/health.ts';
import { type MetricsServer, serveMetrics } from './http/metrics.ts';
import type { HttpServer } from './http/server.ts';
import { createAccept } from './pipeline/accept.ts';
import { createAdmission } from './pipeline/admission.ts';
import { createBreaker } from './pipeline/breaker.ts';
import { createJanitor } from './pipeline/janitor.ts';
import {
  type Blobs,
  type Broker,
  BrokerError,
  type Clock,
  type Images,
  type Reach,
  type Scratch,
  type Signals,
} from './pipeline/ports.ts';
import { newestVersion, recipes } from './pipeline/recipe.ts';
import { createRelay } from './pipeline/relay.ts';
import type { Store } from './pipeline/store.ts';
import { createWorker } from './pipeline/worker.ts';
import { schemaProblem } from './postgres/migrate.ts';
import { createPeople } from './postgres/people.ts';
import { createPool, type Pool } from './postgres/pool.ts';
import { createSignals } from './postgres/signals.ts';
import { createStore } from './postgres/store.ts';
import type { Role } from './roles.ts';
import { portSentence } from './supervisor.ts';
import type { Telemetry } from './telemetry.ts';
import { buildBlobs, buildBroker, requireDatabase, requireEngines } from './wiring-engines.ts';
import { tellSystem } from './wiring-gauges.ts';

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
  readonly scratch: Scratch;
  readonly breakers: ReturnType<typeof buildBreakers>;
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
  requireEngines(config);
  requireDatabase(config);
  const parts = await buildParts(wanted, config, telemetry, reach);
  const stop = new AbortController();
  const abort = new AbortController();
  const images = wanted.includes('worker') ? buildImages(parts, renderScript) : null;
  const http = wanted.includes('api') ? await buildHttp(parts) : null;
  const listening = await http?.listen().catch(async (error: unknown) => {
    await release(parts, images);
    throw new StartError(portSentence((error as NodeJS.ErrnoException).code ?? describe(error), config), error);
  });
  const told = await listenForMetrics(wanted, parts).catch(async (error: unknown) => {
    await release(parts, images);
    throw error;
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
      // To the last: a drain is something to look at.
      await told?.close();
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
  const blobs = await buildBlobs(config, pool);
  const scratch = createFileScratch({ dir: path.join(config.dataDir, 'scratch'), roomBytes: config.uploadBytesMax });
  const clock = createSystemClock();
  const breakers = buildBreakers({ store, blobs, broker, scratch, clock, telemetry, config });
  return { pool, signals, store, broker, blobs, scratch, breakers, clock, reach, telemetry, config };
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
  const admission = createAdmission({ store, clock, log, meter }, config);
  const accept = createAccept(
    { store, admission, blobs, sniffer: createSniffer(), clock, log, meter, reach: parts.reach },
    config,
  );
  tellSystem(telemetry, { store, broker, health: createHealth({ store, blobs, broker, log }) }, config);
  const people = createPeople({ pool: parts.pool });
  return await createServer({ store, people, blobs, broker, accept, signals, log, meter, metrics, clock }, config);
}

/** The API tells its metrics itself; a process without it does so on METRICS_PORT. Rejects `StartError`. */
async function listenForMetrics(
  wanted: readonly Role[],
  { telemetry, breakers, config }: Parts,
): Promise<MetricsServer | null> {
  const { log, meter, metrics } = telemetry;
  const pipelineVersion = String(config.pipelineVersion || newestVersion);
  meter.gauge('build_info', 1, {
    version: packageFile.version,
    node: process.version,
    pipeline_version: pipelineVersion,
  });
  if (wanted.includes('api') || config.metricsPort === 0) return null;
  try {
    const away = () => Object.entries(breakers).flatMap(([name, breaker]) => (breaker.isOpen() ? [name] : []));
    return await serveMetrics({ log, metrics, away }, config);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? describe(error);
    const { host, metricsPort: port } = config;
    throw new StartError(portSentence(code, { host, port }, 'METRICS_PORT'), error);
  }
}

async function startLoops(
  wanted: readonly Role[],
  parts: Parts,
  images: Images | null,
  ends: { stop: AbortSignal; abort: AbortSignal },
): Promise<void> {
  const { broker, breakers, config, telemetry } = parts;
  const { log, meter } = telemetry;
  const shared = { ...parts, log, meter };
  await untilSchema(parts, ends.stop);
  await until('the storage is prepared', () => parts.blobs.prepare(), parts, ends.stop);
  const running: Promise<void>[] = [];
  if (wanted.includes('janitor')) running.push(createJanitor(shared, config).run(ends.stop));
  await until('the broker is prepared', () => broker.prepare(), parts, ends.stop);
  if (wanted.includes('relay')) running.push(createRelay(shared, config).run(ends.stop));
  if (images) {
    const settings = { ...config, versions: [...recipes.keys()] } satisfies object;
    const retry = { floorMs: config.retryFloorMs, baseMs: config.retryBaseMs, capMs: config.retryCapMs };
    const who = `${hostname()}:${process.pid}`;
    running.push(createWorker({ ...shared, images, who }, { ...settings, ...retry }).run(ends));
  }
  await Promise.all(running);
  for (const breaker of Object.values(breakers)) breaker.end();
}

function buildBreakers(parts: Omit<Parts, 'pool' | 'signals' | 'reach' | 'breakers'>) {
  const { store, blobs, broker, scratch, clock, config, telemetry } = parts;
  const deps = { clock, log: telemetry.log, meter: telemetry.meter };
  return {
    store: createBreaker('store', () => store.health(), deps, config),
    storage: createBreaker('storage', () => blobs.health(), deps, config),
    broker: createBreaker('broker', () => broker.health(), deps, config),
    disk: createBreaker('disk', () => scratch.health(), deps, config),
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
