/**
 * One schedule: the cast, clients and operators around it, and fate.
 *
 * In the fault phase uploads come with keys and are sent again until they are answered, attachments are deleted, failed jobs
 * replayed, a newer version asked for, the broker wiped and rolled back, processes crash, sleep and drain. Then everything
 * heals, and everything must finish within a bound, with nothing left over.
 */
import { type Config, loadConfig } from '../../src/config.ts';
import { SkrepkaError } from '../../src/errors.ts';
import type { Upload } from '../../src/pipeline/accept.ts';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import { type Cast, createCast, roles, smallCast, wholeCast } from './cast.ts';
import { type Bells, createBells, createObjects, type Objects } from './engines.ts';
import { type Answered, createInvariants, type Invariants, strayOf, Violation } from './invariants.ts';
import { createIds, epochMs } from './ports.ts';
import { acceptVerbs, claimVerbs, relayVerbs } from './store-accept.ts';
import { endVerbs } from './store-ends.ts';
import { keepingVerbs, operatorVerbs } from './store-keeping.ts';
import { createTables, isUnfinished, type Moments, type Tables } from './store-tables.ts';
import { createWorld, type Fates, type Step, type World } from './world.ts';

export interface Play {
  readonly seed: number;
  readonly fates: Fates;
  /** How long faults and troubles go on, virtual time. */
  readonly faultMs: number;
  readonly uploads: number;
  /** Without deletes, replays, wipes and drains, and with few processes: only the uploads and the fates of their effects. */
  readonly plain?: boolean;
}

export interface Outcome {
  readonly violation: Violation | null;
  readonly steps: readonly Step[];
  /** How often a fate befell a site: `site fate` → count. */
  readonly counts: ReadonlyMap<string, number>;
  readonly answered: number;
  readonly virtualMs: number;
}

const minuteMs = 60_000;
/** After the faults. A bell may have been put off to the cap of re-rings, 30 min, and be answered by a job with budgets to spend. */
const healMs = 3 * 60 * minuteMs;
/** Nothing that was sent comes later than this. */
const lateMs = 3 * minuteMs;
const userIds = ['019b0000-0000-7000-8000-00000000000a', '019b0000-0000-7000-8000-00000000000b'] as const;

/** The defaults of production; only what is kept for a day is kept for less, so that quiet comes sooner. */
const config: Config = loadConfig({
  MAX_UPLOAD_TIME: '10m',
  ORPHAN_AGE: '10m',
  JANITOR_INTERVAL: '30s',
  SWEEP_INTERVAL: '5m',
  DEEP_SWEEP_INTERVAL: '5m',
  REPLACED_GRACE: '5m',
  RENDER_CONCURRENCY: '2',
  RENDER_MEMORY: '600MiB',
});

interface Scene {
  readonly world: World;
  readonly tables: Tables;
  readonly moments: Moments;
  readonly bells: Bells;
  readonly objects: Objects;
  readonly cast: Cast;
  readonly answered: Answered[];
  /** Uploads that their client has not given up and that were not answered. */
  readonly asking: Set<string>;
}

/** Plays one schedule to its end, or to the first violation. Throws what is no violation: a fault of the simulation itself. */
export async function play({ seed, fates, faultMs, uploads, plain = false }: Play): Promise<Outcome> {
  const answered: Answered[] = [];
  const nowMs = () => epochMs + world.nowMs();
  const world: World = createWorld({ seed, fates, check: () => invariants.check() });
  const newId = createIds(world);
  const tables = createTables({ nowMs, newId });
  const bells = createBells(world);
  const objects = createObjects({ nowMs }, (key) => invariants.removed(key));
  const limits = { backlogMax: config.backlogMax, overshootMax: 2 * (64 + config.uploadsMax) };
  const invariants: Invariants = createInvariants({ world, tables, objects, bells, answered, limits });
  const moments = invariants.watch(verbsOf(tables));
  const cast = createCast({
    ...{ world, config, moments, bells, objects, newId, invariants },
    places: plain ? smallCast : wholeCast,
  });
  const scene: Scene = { world, tables, moments, bells, objects, cast, answered, asking: new Set() };
  let violation: Violation | null = null;
  try {
    cast.startAll();
    for (let number = 0; number < uploads; number += 1) {
      scene.asking.add(`upload ${number}`);
      world.after(plain ? 100 : world.between(0, faultMs / 2), () => client(scene, number));
    }
    if (!plain) troubles(scene, faultMs);
    await finish(scene, { seed, fates, faultMs, uploads, plain });
    invariants.checkQuiet();
  } catch (error) {
    if (!(error instanceof Violation)) throw error;
    violation = error;
  }
  for (const role of roles) cast.retire(role);
  return { violation, steps: world.steps, counts: world.counts, answered: answered.length, virtualMs: world.nowMs() };
}

function verbsOf(tables: Tables): Moments {
  return {
    ...acceptVerbs(tables),
    ...relayVerbs(tables),
    ...claimVerbs(tables),
    ...endVerbs(tables),
    ...keepingVerbs(tables),
    ...operatorVerbs(tables),
  } as Moments;
}

async function finish(
  { world, tables, objects, cast, asking }: Scene,
  { faultMs, plain = false }: Play,
): Promise<void> {
  const isDone = () => asking.size === 0 && [...tables.jobs.values()].every((job) => !isUnfinished(job));
  if (!plain) {
    await world.run(() => false, faultMs);
    world.heal();
  }
  if (!(await world.run(isDone, faultMs + healMs))) {
    const left = [...tables.jobs.values()].filter(isUnfinished).map((job) => JSON.stringify(job));
    const what = [...left, ...asking].join(', ');
    throw new Violation('I6', `not everything has finished ${healMs / minuteMs} minutes after the last fault: ${what}`);
  }
  // What still comes late is waited for, by all who may do wrong with it; then only a janitor is needed.
  if (!plain) await world.run(() => false, world.nowMs() + lateMs);
  world.heal();
  for (const role of ['api', 'relay', 'worker'] as const) cast.retire(role);
  await world.run(() => false, world.nowMs() + lateMs);
  const isClean = () => tables.cleanups.size === 0 && strayOf(tables, objects) === null;
  await world.run(isClean, world.nowMs() + 60 * minuteMs);
}

/* ----------------------------------------------------------------- clients */

const pictures = ['good', 'good', 'good', 'good', 'slow', 'corrupt', 'crash', 'killer'] as const;

/** Sends one upload until it is answered, or until it has lost its patience. The same key, the same bytes. */
function client(scene: Scene, number: number): void {
  const { world, cast, asking } = scene;
  const kind = number < 4 ? 'good' : world.pick(pictures);
  const source = world.random() < 0.1 ? `text ${number}` : `IMG ${kind} ${number}`;
  const userId = world.pick(userIds);
  const key = world.random() < 0.8 ? `key-${number}` : null;
  const name = `upload ${number}`;
  let tries = 0;

  function send(): void {
    tries += 1;
    // Without a key it cannot know whether it was taken, so it does not send twice.
    if (tries > (key === null ? 1 : 40)) {
      asking.delete(name);
      return;
    }
    const apis = cast.awake('api');
    const api = apis.length === 0 ? null : world.pick(apis);
    let isOver = false;
    const next = (delayMs: number) => {
      if (isOver) return;
      isOver = true;
      world.after(delayMs, send);
    };
    // Nobody there, or no answer: sent again with its key.
    world.after(30_000, () => next(1));
    if (!api?.accept) {
      next(2_000);
      return;
    }
    api.accept.accept(uploadOf(userId, source, key), chunks(source)).then(
      ({ attachment }) => {
        if (!api.process.alive) return;
        scene.answered.push({ id: attachment.id, userId, source, key });
        if (isOver) return;
        isOver = true;
        asking.delete(name);
      },
      (error: unknown) => {
        if (!(error instanceof SkrepkaError)) throw error;
        next(1_000 * (error.retryAfterSeconds ?? 2));
      },
    );
  }
  send();
}

function uploadOf(userId: string, source: string, key: string | null): Upload {
  return {
    userId,
    fileName: 'a.jpg',
    declaredType: null,
    declaredSize: source.length,
    sizeMax: source.length,
    idempotencyKey: key,
    traceparent: null,
    signal: new AbortController().signal,
    trailer: async () => ({ alt: null, sha256: null }),
  };
}

async function* chunks(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text.slice(0, 5));
  yield Buffer.from(text.slice(5));
}

/* ---------------------------------------------------------------- troubles */

/** What users, operators and machines do meanwhile, besides the fates of single effects. */
function troubles(scene: Scene, faultMs: number): void {
  const { world, tables, moments, bells, cast } = scene;
  const someJob = () => world.pick([...tables.jobs.values()]);
  const acts: readonly (() => void)[] = [
    () => bells.wipe(),
    () => bells.rollBack(),
    () => {
      const row = world.pick([...tables.attachments.values()]);
      if (row) moments.deleteAttachment(row.ownerId, row.id, { graceMs: config.graceMs });
    },
    () => {
      const job = someJob();
      if (job) moments.replay(job.id, { who: 'operator', spacingMs: config.spacingMs });
    },
    () => {
      const row = world.pick([...tables.attachments.values()]);
      if (row) {
        const keys = row.variants.map(({ key }) => key);
        moments.rebuild(row.id, { keys, who: 'doctor' });
      }
    },
    () => void moments.askReprocessing({ version: newestVersion, retryFailed: world.random() < 0.5, who: 'operator' }),
    () => {
      const actor = world.pick(cast.living());
      if (actor) cast.drain(actor, world.random() < 0.5);
    },
    () => {
      const actor = world.pick(cast.living());
      if (actor) world.pause(actor.process, world.between(10_000, 120_000));
    },
    () => {
      const actor = world.pick(cast.living());
      if (actor) world.crash(actor.process);
    },
  ];
  const count = world.between(2, 10);
  for (let number = 0; number < count; number += 1) world.after(world.between(0, faultMs), world.pick(acts));
}
