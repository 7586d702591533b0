/**
 * The processes of a schedule, each with unchanged modules of the pipeline on ports of its own, and what starts them again.
 *
 * A process that dies is replaced by another one a little later, as an orchestrator does. One that drains ends by itself first.
 */
import type { Config } from '../../src/config.ts';
import { type Accept, createAccept } from '../../src/pipeline/accept.ts';
import { createAdmission } from '../../src/pipeline/admission.ts';
import { createBreaker } from '../../src/pipeline/breaker.ts';
import { createJanitor } from '../../src/pipeline/janitor.ts';
import type { Attempt } from '../../src/pipeline/job.ts';
import type { Log, Meter } from '../../src/pipeline/ports.ts';
import { newestVersion, recipes } from '../../src/pipeline/recipe.ts';
import { createRelay } from '../../src/pipeline/relay.ts';
import { createWorker } from '../../src/pipeline/worker.ts';
import type { Bells, Objects } from './engines.ts';
import type { Invariants } from './invariants.ts';
import {
  blobsOf,
  brokerOf,
  clockOf,
  createAnnouncements,
  type Disk,
  imagesOf,
  type Leads,
  reachOf,
  scratchOf,
  storeOf,
} from './ports.ts';
import type { Moments } from './store-tables.ts';
import type { Process, World } from './world.ts';

export const roles = ['api', 'relay', 'worker', 'janitor'] as const;
export type Role = (typeof roles)[number];

export interface Actor {
  readonly role: Role;
  readonly process: Process;
  /** Of an API. */
  readonly accept: Accept | null;
  readonly stop: AbortController;
  readonly abort: AbortController;
  /** Resolves when its loops have ended by themselves. */
  readonly over: Promise<void>;
}

export interface Cast {
  startAll(): void;
  /** Living actors of a role that are awake. */
  awake(role: Role): Actor[];
  living(): Actor[];
  /** A drain, as SIGTERM asks for it: `hurry` gives running attempts back. */
  drain(actor: Actor, hurry: boolean): void;
  /** Ends all actors of a role for good. */
  retire(role: Role): void;
}

/** What the code itself calls unexpected must not happen, whatever fate does. */
const logOf = (world: World): Log => ({
  debug() {},
  info() {},
  warn() {},
  error(fields, text) {
    if (text.includes('unexpected')) world.fail(new Error(`${text} ${JSON.stringify(fields)}`));
  },
});
const deaf: Meter = { count() {}, observe() {}, gauge() {} };
const sniffer = {
  headBytes: 16,
  sniff: async (head: Uint8Array) =>
    Buffer.from(head).toString('latin1').startsWith('IMG') ? { contentType: 'image/jpeg' } : null,
};

/** Two of each: an API runs a relay of its own, as under `npm start`. */
export const wholeCast: readonly Role[] = ['api', 'api', 'relay', 'worker', 'worker', 'janitor', 'janitor'];
/** As few as can repair each other. */
export const smallCast: readonly Role[] = ['api', 'worker', 'worker', 'janitor'];

export function createCast(parts: {
  readonly world: World;
  readonly config: Config;
  readonly moments: Moments;
  readonly bells: Bells;
  readonly objects: Objects;
  readonly newId: () => string;
  readonly invariants: Invariants;
  readonly places: readonly Role[];
}): Cast {
  const { world, config } = parts;
  const announcements = createAnnouncements(world);
  const leads: Leads = new Map();
  const actors = new Set<Actor>();
  const retired = new Set<Role>();
  let number = 0;

  function start(role: Role): void {
    if (retired.has(role)) return;
    number += 1;
    const process = world.start(`${role}-${number}`);
    let isOver = false;
    const again = () => {
      if (isOver) return;
      isOver = true;
      for (const actor of actors) if (actor.process === process) actors.delete(actor);
      world.after(world.between(500, 15_000), () => start(role));
    };
    // Before anything of it runs: its first effect may be its last.
    process.onDeath.push(again);
    const actor = createActor(role, process, { ...parts, announcements, leads });
    if (process.alive) actors.add(actor);
    void actor.over.then(again);
  }

  return {
    startAll: () => parts.places.forEach(start),
    awake: (role) => [...actors].filter((actor) => actor.role === role && actor.process.pausedUntilMs <= world.nowMs()),
    living: () => [...actors],
    drain(actor, hurry) {
      actor.stop.abort();
      world.after(hurry ? 1 : config.drainMs, () => world.in(actor.process, () => actor.abort.abort()));
    },
    retire(role) {
      retired.add(role);
      for (const actor of actors) if (actor.role === role) world.crash(actor.process);
    },
  };
}

type Given = Parameters<typeof createCast>[0] & {
  readonly announcements: ReturnType<typeof createAnnouncements>;
  readonly leads: Leads;
};

function createActor(role: Role, process: Process, given: Given): Actor {
  const { world, config, moments, bells, objects, newId, invariants, announcements, leads } = given;
  const stop = new AbortController();
  const abort = new AbortController();
  const clock = clockOf(world, process, newId);
  const signals = announcements(process);
  const store = storeOf(world, process, { moments, signals, leads });
  const blobs = blobsOf(world, process, objects);
  const broker = brokerOf(world, process, bells, (verb, body) => {
    try {
      invariants.ended(process, verb, body);
    } catch (error) {
      world.fail(error);
    }
  });
  const deps = { clock, log: logOf(world), meter: deaf };
  const breakers = {
    store: createBreaker('store', () => store.health(), deps, config),
    storage: createBreaker('storage', () => blobs.health(), deps, config),
    broker: createBreaker('broker', () => broker.health(), deps, config),
  };
  const shared = { ...deps, store, blobs, broker, signals, breakers, reach: reachOf(world, process) };
  // Builds of two versions take uploads side by side.
  const pipelineVersion = world.between(1, newestVersion);
  const settings = { ...config, pipelineVersion };
  let accept: Accept | null = null;
  const loops: Promise<void>[] = [];
  if (role === 'api') {
    const admission = createAdmission(shared, settings);
    accept = createAccept({ ...shared, admission, sniffer }, settings);
  }
  if (role === 'api' || role === 'relay') loops.push(createRelay(shared, settings).run(stop.signal));
  if (role === 'janitor') loops.push(createJanitor(shared, settings).run(stop.signal));
  if (role === 'worker') loops.push(runWorker(process, given, shared, { stop: stop.signal, abort: abort.signal }));
  return { role, process, accept, stop, abort, over: Promise.all(loops).then(() => undefined) };
}

function runWorker(
  process: Process,
  { world, config, invariants }: Given,
  shared: Omit<Parameters<typeof createWorker>[0], 'images' | 'scratch' | 'who'>,
  signals: { stop: AbortSignal; abort: AbortSignal },
): Promise<void> {
  const disk: Disk = new Map();
  const images = imagesOf(world, process, disk);
  const scratch = scratchOf(world, process, disk);
  const { retryFloorMs: floorMs, retryBaseMs: baseMs, retryCapMs: capMs } = config;
  const settings = { ...config, floorMs, baseMs, capMs, versions: [...recipes.keys()] };
  const store = new Proxy(shared.store, {
    get(target, verb, receiver) {
      const act = Reflect.get(target, verb, receiver) as (
        ...given: never[]
      ) => Promise<{ kind: string; claim?: unknown }>;
      if (verb !== 'claim' && verb !== 'readAttempt') return act;
      return async (...given: never[]) => {
        const answer = await act(...given);
        const attempt = (answer.claim as { attempt: Attempt } | undefined)?.attempt ?? null;
        const [asked] = given as unknown as [string | { jobId: string }];
        const jobId = typeof asked === 'string' ? asked : asked.jobId;
        // An attempt that was read back after an unknown outcome is held as well; one that was not found is no refusal.
        if (attempt || verb === 'claim') invariants.claimed(process, jobId, attempt);
        return answer;
      };
    },
  });
  return createWorker({ ...shared, store, images, scratch, who: process.name }, settings).run(signals);
}
