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
import type { Clock, Log, Meter } from '../../src/pipeline/ports.ts';
import { newestVersion, recipes } from '../../src/pipeline/recipe.ts';
import { createRelay } from '../../src/pipeline/relay.ts';
import type { Store } from '../../src/pipeline/store.ts';
import { createWorker } from '../../src/pipeline/worker.ts';
import type { Bells, Objects } from './engines.ts';
import { type Observed, Violation } from './invariants.ts';
import { type Watch, waitsSince } from './invariants-verbs.ts';
import { blobsOf, brokerOf, clockOf, createAnnouncements, type Leads, storeOf } from './ports.ts';
import { type Disk, imagesOf, reachOf, scratchOf } from './ports-worker.ts';
import type { Moments } from './store-tables.ts';
import { keysWatched, storeWatched } from './watched.ts';
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
  /** Processes that were drained, and that nothing befell in their whole life. */
  readonly drained: ReadonlySet<string>;
  /** Ends all actors of a role for good. */
  retire(role: Role): void;
  /** Throws when a worker that has nothing to do does not tell that jobs wait. */
  checkNoticed(): void;
  /** A process for an operator's verb, with the ports of the others. */
  hire(name: string): { process: Process; ports: Pick<Shared, 'store' | 'blobs' | 'clock' | 'log'> };
  /** How many of a role have been started so far. */
  started(role: Role): number;
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
const sniffer = {
  headBytes: 16,
  sniff: async (head: Uint8Array) =>
    Buffer.from(head).toString('latin1').startsWith('IMG') ? { contentType: 'image/jpeg' } : null,
};

/** Two of each: an API runs a relay of its own, as under `npm start`. */
export const wholeCast: readonly Role[] = ['api', 'api', 'relay', 'worker', 'worker', 'janitor', 'janitor'];
/** As few as can repair each other. */
export const smallCast: readonly Role[] = ['api', 'worker', 'worker', 'janitor'];

interface Given {
  readonly world: World;
  readonly config: Config;
  readonly moments: Moments;
  readonly bells: Bells;
  readonly objects: Objects;
  readonly newId: () => string;
  readonly watch: Watch;
  readonly observed: Observed;
  readonly places: readonly Role[];
  /** The last worker's place has a build with the first recipe only. */
  readonly olderWorkers: boolean;
  /** The version of new uploads; null: each API draws its own, as builds of two versions do that run side by side. */
  readonly version: number | null;
}

/** After its grace a drain takes no longer: undisturbed, or with calls of its last effects that are slow. */
const leaveMs = { undisturbed: 2_000, disturbed: 180_000 };
/** A worker that idles for so long knows of jobs that wait as long. */
const noticeMs = 30_000;

export function createCast(given: Given): Cast {
  const { world, config, watch } = given;
  const backstage = { ...given, announcements: createAnnouncements(world), leads: new Map() };
  const actors = new Set<Actor>();
  const retired = new Set<Role>();
  const counts = new Map<Role, number>();
  const drained = new Set<string>();
  const workers = new Map<Process, Worked>();
  let number = 0;

  function start(role: Role, place: number): void {
    if (retired.has(role)) return;
    number += 1;
    counts.set(role, (counts.get(role) ?? 0) + 1);
    const process = world.start(`${role}-${number}`);
    let isOver = false;
    const again = () => {
      if (isOver) return;
      isOver = true;
      workers.delete(process);
      for (const actor of actors) if (actor.process === process) actors.delete(actor);
      world.after(world.between(500, 15_000), () => start(role, place));
    };
    // Before anything of it runs: its first effect may be its last.
    process.onDeath.push(again);
    const worked: Worked = { starvedSeconds: 0, busyAtMs: world.nowMs() };
    const isOlder = given.olderWorkers && role === 'worker' && place === given.places.lastIndexOf('worker');
    const actor = createActor(role, process, { ...backstage, worked, isOlder });
    if (process.alive) actors.add(actor);
    if (process.alive && role === 'worker') workers.set(process, worked);
    void actor.over.then(() => {
      if (process.alive && actor.stop.signal.aborted && isUntouched(process)) drained.add(process.name);
      again();
    });
  }

  /** Throws unless the actor has left `afterMs` after its grace, or was not itself. */
  function leavesIn(actor: Actor, graceMs: number, afterMs: number): void {
    world.after(graceMs + afterMs, () => {
      const { process } = actor;
      const mayBeSlow = afterMs === leaveMs.undisturbed ? !isUntouched(process) : process.pausedUntilMs > 0;
      if (!process.alive || !actors.has(actor) || mayBeSlow) return;
      world.fail(new Violation('I21', `${process.name} is still there ${afterMs} ms after the grace of its drain`));
    });
  }

  return {
    startAll: () => given.places.forEach(start),
    awake: (role) => [...actors].filter((actor) => actor.role === role && actor.process.pausedUntilMs <= world.nowMs()),
    living: () => [...actors],
    drained,
    drain(actor, hurry) {
      if (actor.stop.signal.aborted) return;
      actor.stop.abort();
      const graceMs = hurry ? 1 : config.drainMs;
      world.after(graceMs, () => world.in(actor.process, () => actor.abort.abort()));
      for (const afterMs of Object.values(leaveMs)) leavesIn(actor, graceMs, afterMs);
    },
    retire(role) {
      retired.add(role);
      for (const actor of actors) if (actor.role === role) world.crash(actor.process);
    },
    checkNoticed() {
      // A job that waits for a build with its recipe is put off, and nobody's slots are free for it.
      if (given.olderWorkers) return;
      if (!waitsSince(given.observed.tables, given.observed.tables.nowMs() - noticeMs)) return;
      for (const [process, { starvedSeconds, busyAtMs }] of workers) {
        const isFree = world.nowMs() - busyAtMs > noticeMs && isUntouched(process);
        if (isFree && starvedSeconds === 0)
          throw new Violation('I23', `a job waits, ${process.name} has nothing to do, and no metric tells it`);
      }
    },
    hire(name) {
      number += 1;
      const process = world.start(`${name}-${number}`);
      const { clock, log, store, blobs } = portsOf(process, { ...backstage, worked: null }, watch);
      return { process, ports: { clock, log, store, blobs } };
    },
    started: (role) => counts.get(role) ?? 0,
  };
}

const isUntouched = ({ faults, pausedUntilMs }: Process) => faults === 0 && pausedUntilMs === 0;

/** What a worker tells and when it last had something to do. */
interface Worked {
  starvedSeconds: number;
  busyAtMs: number;
}

type Backstage = Given & {
  readonly announcements: ReturnType<typeof createAnnouncements>;
  readonly leads: Leads;
  readonly worked: Worked | null;
};

type Shared = ReturnType<typeof portsOf>;

function portsOf(process: Process, given: Backstage, watch: Watch) {
  const { world, config, moments, bells, objects, newId, announcements, leads, worked } = given;
  const clock: Clock = clockOf(world, process, newId);
  const signals = announcements(process);
  const store: Store = storeWatched(storeOf(world, process, { moments, signals, leads }), process, watch);
  const blobs = blobsOf(world, process, objects, keysWatched(watch));
  const broker = brokerOf(world, process, bells, watch);
  const meter: Meter = {
    count() {},
    observe() {},
    gauge(name, value) {
      if (!worked) return;
      if (name === 'worker_starved_seconds') worked.starvedSeconds = value;
      if (name === 'worker_slots_busy') worked.busyAtMs = value > 0 ? Number.POSITIVE_INFINITY : world.nowMs();
    },
  };
  const deps = { clock, log: logOf(world), meter };
  const breakers = {
    store: createBreaker('store', () => store.health(), deps, config),
    storage: createBreaker('storage', () => blobs.health(), deps, config),
    broker: createBreaker('broker', () => broker.health(), deps, config),
  };
  return { ...deps, store, blobs, broker, signals, breakers, reach: reachOf(world, process) };
}

function createActor(role: Role, process: Process, given: Backstage & { readonly isOlder: boolean }): Actor {
  const { world, config } = given;
  const stop = new AbortController();
  const abort = new AbortController();
  const shared = portsOf(process, given, given.watch);
  const drawn = world.between(1, newestVersion);
  const settings = { ...config, pipelineVersion: given.version ?? drawn };
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
  { world, config, isOlder }: Backstage & { readonly isOlder: boolean },
  shared: Shared,
  signals: { stop: AbortSignal; abort: AbortSignal },
): Promise<void> {
  const disk: Disk = new Map();
  const images = imagesOf(world, process, disk);
  const scratch = scratchOf(world, process, disk);
  const breakers = { ...shared.breakers, disk: createBreaker('disk', () => scratch.health(), shared, config) };
  const { retryFloorMs: floorMs, retryBaseMs: baseMs, retryCapMs: capMs } = config;
  const versions = isOlder ? [1] : [...recipes.keys()];
  const settings = { ...config, floorMs, baseMs, capMs, versions };
  return createWorker({ ...shared, breakers, images, scratch, who: process.name }, settings).run(signals);
}
