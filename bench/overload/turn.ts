/**
 * Plays one turn: one repeat of one cell, from an empty product to figures, between two calibrations.
 *
 * The capacity is measured first, by a closed loop; the offered loads are multiples of it. Each begins with an empty queue and
 * ends when everything accepted is finished, so what one leaves behind is never part of the next.
 */

import { seeded } from '../../tests/support/pictures.ts';
import { withScope } from '../scope.ts';
import { type Calibration, calibrate, type Noise, noiseIn } from './calibration.ts';
import { type Crowd, playCrowd } from './crowd.ts';
import {
  backlogSeconds,
  type Cell,
  cellId,
  type Grid,
  poisson,
  type SizeName,
  seedOf,
  shuffled,
  type Turn,
} from './design.ts';
import {
  acceptedIn,
  type Fate,
  type Kept,
  keptOf,
  type Lag,
  lagOf,
  type Memory,
  memoryOf,
  ratePerSecond,
  readPerRefusal,
  rounded,
  type Shares,
  sharesOf,
  type Taken,
  takenOf,
} from './figures.ts';
import type { Arrival, Played } from './load-process.ts';
import { openStage, type Stage } from './stage.ts';
import { type QueueSample, spentBy, startWatching } from './watch.ts';

export interface PlayedLoad {
  /** Multiple of the capacity. */
  readonly load: number;
  readonly offeredPerSecond: number;
  /** Null: too few to tell. */
  readonly readyPerSecond: number | null;
  /** From the end of the load until the queue was empty. */
  readonly drainPerSecond: number | null;
  /** Both as shares of the capacity that was measured in the same turn: a machine that changes between turns changes neither. */
  readonly ofCapacity: { readonly ready: number | null; readonly drain: number | null };
  readonly taken: Taken;
  readonly kept: Kept;
  readonly lag: Lag;
  readonly memory: Memory | null;
  readonly shares: Shares;
  /** The deepest queue as a share of `MAX_BACKLOG`, and the median wait as a share of what a full one takes at the capacity. */
  readonly ofBound: { readonly depth: number; readonly wait: number | null };
  /** Bytes that the API read for a refusal. */
  readonly readPerRefusal: number | null;
  /** Of attachments that were ready while the load ran: ms of all of ours. */
  readonly cpuMsPerReady: number | null;
  /** The queue over time, from the load's beginning until it is empty again. */
  readonly queue: readonly QueueSample[];
}

export interface PlayedTurn {
  readonly cell: Cell;
  readonly repeat: number;
  readonly seed: number;
  readonly backlogMax: number;
  readonly capacityPerSecond: number;
  /** Clients of the closed loop that found no place: then `MAX_BACKLOG` was too low for this capacity, and the turn does not count. */
  readonly closedRefused: number;
  /** Of the closed loop, whose clients wait for their own upload alone. */
  readonly closedReadyMs: Taken['readyMs'];
  /** Empty for a crowd. */
  readonly loads: readonly PlayedLoad[];
  readonly crowd: Crowd | null;
  readonly noise: Noise;
  readonly tookMs: number;
}

export interface Probe {
  readonly capacityPerSecond: number;
}

export interface Around {
  readonly grid: Grid;
  readonly seed: number;
  readonly cores: number;
  readonly pictures: Readonly<Record<SizeName, string>>;
  /** Aborted: a turn ends what it started and rejects. */
  readonly signal: AbortSignal;
  say(line: string): void;
}

/** Sentences that say why its figures do not count; none: they do. */
export function doubtsAbout(
  { noise, closedRefused, capacityPerSecond, backlogMax }: PlayedTurn,
  first: Calibration,
): readonly string[] {
  const found = [...noiseIn(first, noise)];
  if (closedRefused > 0) {
    found.push(`a backlog of ${backlogMax} was too short for the capacity of ${capacityPerSecond.toFixed(1)} a second`);
  }
  return found;
}

const users = 10;
/** No cell has fewer places than this: the closed loop has to fit. */
const backlogLeast = 12;

/** The capacity without a bound of ours: closed loop on a product of its own. */
export async function playProbe(cell: Cell, around: Around): Promise<Probe> {
  return await withScope(async (scope) => {
    const stage = await openStage(scope, cell, { users, settings: {} });
    const closed = await interruptible(around.signal, () => playClosed(stage, cell, around.grid.times.probeMs, around));
    return { capacityPerSecond: closed.perSecond };
  });
}

export async function playTurn(turn: Turn, probe: Probe, around: Around): Promise<PlayedTurn> {
  const beganMs = performance.now();
  const before = await calibrate();
  around.signal.throwIfAborted();
  const played = await playBetween(turn, probe, around);
  const after: Calibration = await calibrate();
  const { othersShare, ...rest } = played;
  return { ...rest, noise: { before, after, othersShare }, tookMs: Math.round(performance.now() - beganMs) };
}

async function playBetween({ cell, repeat }: Turn, probe: Probe, around: Around) {
  const { times } = around.grid;
  const seed = seedOf(around.seed, { cell, repeat });
  const seconds = cell.kind === 'crowd' ? times.crowdBacklogMs / 1000 : backlogSeconds;
  const backlogMax = Math.max(backlogLeast, Math.round(seconds * probe.capacityPerSecond));
  const pendingMax = Math.max(backlogLeast, Math.round((times.crowdPendingMs / 1000) * probe.capacityPerSecond));
  const settings = {
    MAX_BACKLOG: String(backlogMax),
    ...(cell.kind === 'crowd' ? { MAX_PENDING_PER_USER: String(pendingMax) } : {}),
  };
  return await withScope(async (scope) => {
    const stage = await openStage(scope, cell, { users, settings });
    return await interruptible(around.signal, async () => {
      const closed = await playClosed(stage, cell, times.capacityMs, around);
      const base = {
        cell,
        repeat,
        seed,
        backlogMax,
        capacityPerSecond: closed.perSecond,
        closedReadyMs: closed.readyMs,
        closedRefused: closed.refused,
      };
      if (cell.kind === 'crowd') {
        const play = { capacityPerSecond: closed.perSecond, picture: around.pictures[cell.size], times, seed };
        const crowd = await playCrowd(stage, play, around);
        return { ...base, loads: [], crowd, othersShare: crowd.shares.others };
      }
      const loads: PlayedLoad[] = [];
      for (const load of shuffled(around.grid.loads, seeded(seed))) {
        const offered = { cell, backlogMax, load, closed, seed: seed + Math.round(load * 1000) };
        const played = await playLoad(stage, offered, around);
        around.say(sentenceOf(played));
        loads.push(played);
      }
      loads.sort((one, other) => one.load - other.load);
      return { ...base, loads, crowd: null, othersShare: Math.max(...loads.map(({ shares }) => shares.others)) };
    });
  });
}

/** Rejects as soon as `signal` is aborted; what still runs then ends with its scope, and nobody waits for it. */
async function interruptible<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  signal.throwIfAborted();
  let stop = () => {};
  const interrupted = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener('abort', stop);
  });
  const working = work();
  working.catch(() => {});
  try {
    return await Promise.race([working, interrupted]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

/** For who waits: whether it counts is decided when the turn is over. */
function sentenceOf({ load, offeredPerSecond, readyPerSecond, taken }: PlayedLoad): string {
  const wait = taken.readyMs === null ? '' : `, p95 to ready ${(taken.readyMs.p95 / 1000).toFixed(1)} s`;
  const offered = `offered ${offeredPerSecond} a second (${load} times): ${readyPerSecond ?? '?'} ready a second`;
  return `${offered}${wait}, ${taken.refusals.count} of ${taken.sent} refused`;
}

/* ----------------------------------------------------------------------------- closed */

interface Closed {
  readonly perSecond: number;
  readonly refused: number;
  readonly readyMs: Taken['readyMs'];
  /** What the API reads for each accepted upload besides its body. */
  readonly besidesBytes: number;
}

/**
 * As few clients as leave no slot idle: one in every slot, and four whose uploads wait or are on their way. More would meet `MAX_BACKLOG`
 * where pictures are large, because admission counts what it let in within the last second as waiting still.
 */
const clientsFor = ({ setting }: Cell): number => setting.concurrency + 4;

async function playClosed(stage: Stage, cell: Cell, durationMs: number, around: Around): Promise<Closed> {
  const { warmMs } = around.grid.times;
  const before = await spentBy(stage.cast);
  const played = await stage.load.play({
    url: stage.product.url,
    tokens: stage.tokens,
    picture: around.pictures[cell.size],
    play: { kind: 'closed', clients: clientsFor(cell), durationMs },
  });
  const after = await spentBy(stage.cast);
  const fates = await stage.fatesOf(played.sent);
  const moments = readyMoments(fates);
  const perSecond = ratePerSecond(moments, played.beganAt + warmMs, played.beganAt + durationMs);
  if (perSecond === null) throw new Error(`${cellId(cell)} made too few pictures to tell its capacity`);
  const accepted = acceptedIn(played.sent);
  const bodies = accepted.reduce((sum, { one }) => sum + one.size, 0);
  const besidesBytes = (after.apiReadBytes - before.apiReadBytes - bodies) / Math.max(1, accepted.length);
  const taken = takenOf(played.sent, fates);
  return { perSecond, refused: taken.refusals.count, readyMs: taken.readyMs, besidesBytes };
}

const readyMoments = (fates: ReadonlyMap<string, Fate>): readonly number[] =>
  [...fates.values()].flatMap(({ readyAt }) => readyAt ?? []);

/* ------------------------------------------------------------------------------- open */

interface Offered {
  readonly cell: Cell;
  readonly backlogMax: number;
  readonly load: number;
  readonly closed: Closed;
  readonly seed: number;
}

async function playLoad(stage: Stage, offered: Offered, around: Around): Promise<PlayedLoad> {
  const { cell, backlogMax, load, closed, seed } = offered;
  const { loadMs } = around.grid.times;
  const arrivals = arrivalsOf(load * closed.perSecond, loadMs, seed);
  const watching = startWatching(stage.db, stage.cast);
  const before = await spentBy(stage.cast);
  const played = await stage.load.play({
    url: stage.product.url,
    tokens: stage.tokens,
    picture: around.pictures[cell.size],
    play: { kind: 'open', arrivals, durationMs: loadMs },
  });
  const after = await spentBy(stage.cast);
  await stage.untilDrained();
  const { queue, memory } = await watching.stop();
  const fates = await stage.fatesOf(played.sent);
  const [taken, lag] = [takenOf(played.sent, fates), lagOf(queue)];
  const shares = sharesOf(before, after, around.cores);
  const inTime = readyMoments(fates).filter((at) => at <= after.atMs).length;
  const oursMs =
    (shares.api + shares.worker + shares.children + shares.postgres + shares.broker) *
    around.cores *
    (after.atMs - before.atMs);
  const moments = readyMoments(fates);
  const ready = ratePerSecond(moments, played.beganAt + around.grid.times.warmMs, played.beganAt + loadMs);
  const drain = load > 1 ? drainRate(played, fates, { cell, loadMs }) : null;
  const share = (rate: number | null) => (rate === null ? null : rounded(rate / closed.perSecond));
  return {
    load,
    offeredPerSecond: rounded(load * closed.perSecond),
    readyPerSecond: ready,
    drainPerSecond: drain,
    ofCapacity: { ready: share(ready), drain: share(drain) },
    taken,
    ofBound: {
      depth: rounded(lag.depthMax / backlogMax),
      wait: taken.readyMs === null ? null : rounded((taken.readyMs.p50 * closed.perSecond) / (backlogMax * 1000)),
    },
    kept: keptOf(played.sent, fates),
    lag,
    memory: memoryOf(memory),
    shares,
    readPerRefusal: readPerRefusal(played.sent, after.apiReadBytes - before.apiReadBytes, closed.besidesBytes),
    cpuMsPerReady: inTime === 0 ? null : rounded(oursMs / inTime),
    queue,
  };
}

/** All users alike; every other client asks before it sends its body, as `curl` does, the others send at once, as browsers do. */
function arrivalsOf(perSecond: number, durationMs: number, seed: number): readonly Arrival[] {
  const random = seeded(seed);
  return poisson(perSecond, durationMs, random).map((atMs) => ({
    atMs,
    user: Math.floor(random() * users),
    expect: random() < 0.5,
    patient: false,
  }));
}

/** The last few are left out: by then some slots had nothing to do. */
function drainRate(
  { beganAt, sent }: Played,
  fates: ReadonlyMap<string, Fate>,
  { cell, loadMs }: { readonly cell: Cell; readonly loadMs: number },
): number | null {
  // An accepted upload that was sent in the last moment is still accepted after the end.
  const from = Math.max(beganAt + loadMs, ...acceptedIn(sent).map(({ at }) => at));
  const after = [...readyMoments(fates)].filter((at) => at >= from).sort((one, other) => one - other);
  return ratePerSecond(after.slice(0, -cell.setting.concurrency), from, Number.POSITIVE_INFINITY);
}
