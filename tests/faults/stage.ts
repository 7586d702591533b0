/**
 * One schedule: the cast, clients and operators around it, and fate.
 *
 * In the fault phase uploads come and troubles happen (`clients.ts`, `troubles.ts`), and effects have the fates that the schedule
 * gives them. Then everything heals, and everything must finish within a bound, with nothing left over.
 */
import { type Config, loadConfig } from '../../src/config.ts';
import { reading } from '../../src/pipeline/admission.ts';
import { type Cast, createCast, type Role, roles, smallCast, wholeCast } from './cast.ts';
import { client } from './clients.ts';
import { type Bells, createBells, createObjects, type Objects } from './engines.ts';
import { type Answered, createInvariants, type Observed, Violation } from './invariants.ts';
import { checkQuiet, strayOf } from './invariants-quiet.ts';
import { createWatch, type Watch, watchVerbs } from './invariants-verbs.ts';
import { createIds, epochMs, reads } from './ports.ts';
import { acceptVerbs, claimVerbs, relayVerbs } from './store-accept.ts';
import { endVerbs } from './store-ends.ts';
import { keepingVerbs, operatorVerbs } from './store-keeping.ts';
import { createTables, isUnfinished, type Moments, type Tables } from './store-tables.ts';
import { doctorsVisit, troubles } from './troubles.ts';
import { createWorld, type Fates, type Step, type World } from './world.ts';

/**
 * `usual`: deletes, replays, wipes, drains and what else may come. `flood`: more uploads than are let in. `losses`: the storage
 * loses objects, and a doctor mends what can be mended. `older`: of every two workers one is of an older build. `plain`: only uploads
 * and the fates of their effects, with few processes.
 */
export const families = ['usual', 'flood', 'losses', 'older', 'plain'] as const;
export type Family = (typeof families)[number];

export interface Play {
  readonly seed: number;
  readonly fates: Fates;
  /** How long faults and troubles go on, virtual time. */
  readonly faultMs: number;
  readonly uploads: number;
  readonly family: Family;
  /** The broker forgets everything at these times. Of a plain play, which has no other trouble. */
  readonly wipesAtMs?: readonly number[];
}

export interface Outcome {
  readonly violation: Violation | null;
  readonly steps: readonly Step[];
  /** How often a fate befell a site: `site fate` → count. */
  readonly counts: ReadonlyMap<string, number>;
  readonly answered: number;
  readonly virtualMs: number;
  /** When the last upload was answered and the last job finished for the first time; null when a violation came before. */
  readonly doneAtMs: number | null;
  /** What became of each upload, by its bytes: state, code, version, and the names of its pictures. */
  readonly ends: ReadonlyMap<string, string>;
}

const minuteMs = 60_000;
/** After the faults. A bell may have been put off to the cap of re-rings, 30 min, and be answered by a job with budgets to spend. */
const healMs = 3 * 60 * minuteMs;
/** Nothing that was sent comes later than this. */
const lateMs = 3 * minuteMs;
/** A job that nobody does is asked after this often, when workers are free. */
const noticeEveryMs = 15_000;

/** The defaults of production; only what is kept for a day is kept for less, so that quiet comes sooner. */
const usual = {
  MAX_UPLOAD_TIME: '10m',
  ORPHAN_AGE: '10m',
  JANITOR_INTERVAL: '30s',
  SWEEP_INTERVAL: '5m',
  DEEP_SWEEP_INTERVAL: '5m',
  REPLACED_GRACE: '5m',
  RENDER_CONCURRENCY: '2',
  RENDER_MEMORY: '600MiB',
};
const config: Config = loadConfig(usual);
const narrow: Config = loadConfig({ ...usual, MAX_BACKLOG: '4', MAX_UPLOADS: '3', MAX_UPLOADS_PER_USER: '3' });

const casts: Readonly<Record<Family, readonly Role[]>> = {
  usual: wholeCast,
  flood: ['api', 'worker', 'janitor'],
  losses: wholeCast,
  older: wholeCast,
  plain: smallCast,
};

export interface Scene {
  readonly world: World;
  readonly config: Config;
  readonly tables: Tables;
  readonly moments: Moments;
  readonly bells: Bells;
  readonly objects: Objects;
  readonly cast: Cast;
  readonly watch: Watch;
  readonly lost: Set<string>;
  readonly answered: Answered[];
  /** Uploads that their client has not given up and that were not answered. */
  readonly asking: Set<string>;
}

/** Plays one schedule to its end, or to the first violation. Throws what is no violation: a fault of the simulation itself. */
export async function play(wish: Play): Promise<Outcome> {
  const { scene, observed, check } = setScene(wish);
  const { world, cast, tables } = scene;
  let violation: Violation | null = null;
  let doneAtMs: number | null = null;
  try {
    cast.startAll();
    begin(scene, wish);
    doneAtMs = await finish(scene, wish);
    check();
    checkQuiet(observed, cast.drained);
  } catch (error) {
    if (!(error instanceof Violation)) throw error;
    violation = error;
  }
  for (const role of roles) cast.retire(role);
  const { steps, counts } = world;
  const ends = endsOf(tables, observed.sources);
  return { violation, steps, counts, answered: scene.answered.length, virtualMs: world.nowMs(), doneAtMs, ends };
}

function setScene({ seed, fates, family }: Play): { scene: Scene; observed: Observed; check: () => void } {
  const answered: Answered[] = [];
  const lost = new Set<string>();
  const nowMs = () => epochMs + world.nowMs();
  const world: World = createWorld({ seed, fates, check: (step) => mayHaveChanged(step) && invariants.check() });
  const newId = createIds(world);
  const tables = createTables({ nowMs, newId });
  const bells = createBells(world);
  const objects = createObjects({ nowMs }, (key) => fatal(world, () => invariants.removed(key)));
  const settings = family === 'flood' ? narrow : config;
  // n processes may pass the limit by (n − 1) × (64 + MAX_UPLOADS); one that died counts, what it sent may still come.
  const backlogMax = () =>
    settings.backlogMax + (cast.started('api') - 1) * (reading.admissionsMax + settings.uploadsMax);
  const sources = new Map<string, string>();
  const observed: Observed = { world, tables, objects, bells, answered, sources, backlogMax, settings, lost };
  const invariants = createInvariants(observed);
  const moments = watchVerbs(observed, verbsOf(tables));
  const watch = createWatch(observed);
  const cast: Cast = createCast({
    ...{ world, config: settings, moments, bells, objects, newId, watch, observed },
    places: casts[family],
    olderWorkers: family === 'older',
    version: family === 'plain' ? 1 : null,
  });
  const asking = new Set<string>();
  const scene = { world, config: settings, tables, moments, bells, objects, cast, watch, lost, answered, asking };
  return { scene, observed, check: invariants.check };
}

/** What is thrown here ends the run: it must not reach the code that is watched. */
export function fatal(world: World, check: () => void): void {
  try {
    check();
  } catch (error) {
    world.fail(error);
  }
}

/** Reads change nothing, nor do most polls; what happens between two effects is seen at the next. */
function mayHaveChanged({ site, idle }: Step): boolean {
  const [port, verb = ''] = site.split('.');
  if (port === 'blobs') return verb === 'put' || verb === 'copy' || verb === 'deleteMany';
  return port === 'store' && !reads.has(verb) && verb !== 'lead' && !(idle && verb === 'takeDue');
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

function begin(scene: Scene, { family, uploads, faultMs, wipesAtMs = [] }: Play): void {
  const { world, bells, cast, asking } = scene;
  const within = { usual: faultMs / 2, losses: faultMs / 2, older: faultMs / 2, flood: 15_000, plain: 0 }[family];
  for (let number = 0; number < uploads; number += 1) {
    asking.add(`upload ${number}`);
    world.after(family === 'plain' ? 100 : world.between(0, within), () => client(scene, number));
  }
  for (const atMs of wipesAtMs) world.after(atMs, () => bells.wipe());
  if (family === 'plain') return;
  troubles(scene, { faultMs, losses: family === 'losses' });
  const notice = (): void => {
    fatal(world, () => cast.checkNoticed());
    world.after(noticeEveryMs, notice);
  };
  world.after(noticeEveryMs, notice);
}

/** Answers when all was done for the first time. */
async function finish(scene: Scene, { faultMs, family }: Play): Promise<number> {
  const { world, tables, objects, cast, asking } = scene;
  const isDone = () => asking.size === 0 && [...tables.jobs.values()].every((job) => !isUnfinished(job));
  if (family !== 'plain') {
    await world.run(() => false, faultMs);
    world.heal();
  }
  const done = async () => {
    if (await world.run(isDone, world.nowMs() + healMs)) return;
    const left = [...tables.jobs.values()].filter(isUnfinished).map((job) => JSON.stringify(job));
    const what = [...left, ...asking].join(', ');
    throw new Violation('I6', `not everything has finished ${healMs / minuteMs} minutes after the last fault: ${what}`);
  };
  await done();
  const doneAtMs = world.nowMs();
  // What still comes late is waited for, by all who may do wrong with it; then only a janitor is needed.
  // Of a single upload only its commit can, after its client has given up.
  if (family !== 'plain' || scene.answered.length === 0) {
    await world.run(() => false, world.nowMs() + lateMs);
    // Of a wish to reprocess, for instance, jobs are made as late as that.
    await done();
  }
  world.heal();
  if (family === 'losses') {
    const visit = doctorsVisit(scene);
    await world.run(() => visit.isOver(), world.nowMs() + healMs);
    visit.check();
    await done();
  }
  for (const role of ['api', 'relay', 'worker'] as const) cast.retire(role);
  await world.run(() => false, world.nowMs() + lateMs);
  const isClean = () => tables.cleanups.size === 0 && strayOf({ tables, objects }) === null;
  await world.run(isClean, world.nowMs() + 60 * minuteMs);
  return doneAtMs;
}

function endsOf(tables: Tables, sources: ReadonlyMap<string, string>): ReadonlyMap<string, string> {
  const rows = [...tables.attachments.values()].map((row): [string, string] => {
    const { state, errorCode, pipelineVersion, variants } = row;
    const names = variants.map(({ name }) => name).sort();
    return [sources.get(row.id) ?? '', [state, errorCode, `version ${pipelineVersion}`, ...names].join(' ')];
  });
  return new Map(rows);
}
