/**
 * The design of the experiment: its factors, which of their combinations each grid plays, in which order, and how long that takes.
 *
 * A cell is a broker, a setting and a size; it is played in repeats, each on a product of its own, with all offered loads one
 * after the other. Repeats are blocks: every cell is played once before any is played again, in an order drawn from the seed,
 * so a machine that changes over the hour changes all cells alike.
 */
import { seeded } from '../../tests/support/pictures.ts';

export const brokers = ['embedded', 'jetstream'] as const;
export type Broker = (typeof brokers)[number];

/** RENDER_CONCURRENCY and PREFETCH of the worker. */
export interface Setting {
  readonly concurrency: number;
  readonly prefetch: number;
}

/** Pictures are JPEGs like photographs; each upload has bytes of its own. */
export const sizes = [
  { name: 'small', width: 640, height: 480 },
  { name: 'medium', width: 2000, height: 1500 },
  { name: 'large', width: 4000, height: 3000 },
] as const;
export type SizeName = (typeof sizes)[number]['name'];

/** Which experiment a cell plays: offered loads one after the other, or a flood with a bystander and then a patient burst. */
export type Kind = 'loads' | 'crowd';

export interface Cell {
  readonly kind: Kind;
  readonly broker: Broker;
  readonly setting: Setting;
  readonly size: SizeName;
}

export interface Times {
  /** Closed loop without a bound, once a cell: what `MAX_BACKLOG` of its repeats is made of. */
  readonly probeMs: number;
  /** Closed loop at the beginning of every repeat: what its offered loads are multiples of. */
  readonly capacityMs: number;
  readonly loadMs: number;
  /** Of both closed loops and each load: not measured. */
  readonly warmMs: number;
  readonly floodMs: number;
  readonly burstMs: number;
  /** Of the crowd, in ms of work at the capacity: `MAX_BACKLOG`, and `MAX_PENDING_PER_USER`, what one user may have of it. */
  readonly crowdBacklogMs: number;
  readonly crowdPendingMs: number;
}

export const gridNames = ['fractional', 'full', 'quick'] as const;
export type GridName = (typeof gridNames)[number];

export interface Grid {
  readonly name: GridName;
  readonly cells: readonly Cell[];
  /** Multiples of the capacity. */
  readonly loads: readonly number[];
  readonly repeats: number;
  readonly times: Times;
}

/** `MAX_BACKLOG` in seconds of work at the capacity: short enough that each load above it reaches the bound within a cell. */
export const backlogSeconds = 3;
/** The flood's and the burst's multiple of the capacity. */
export const crowdLoad = { flood: 4, burst: 8 } as const;
export const bystanderPerSecond = 2;

/** One, as many as cores, twice as many; and as many as cores with deliveries held ahead. Neighbours in it differ in one factor. */
export function settingsFor(cores: number): readonly [one: Setting, cores: Setting, twice: Setting, ahead: Setting] {
  const all = Math.max(2, cores);
  return [
    { concurrency: 1, prefetch: 0 },
    { concurrency: all, prefetch: 0 },
    { concurrency: 2 * all, prefetch: 0 },
    { concurrency: all, prefetch: 4 * all },
  ];
}

/** The relay announces 2 s of work at once; a crowd that may have no more than that would show nothing of the fair order behind it. */
const times: Readonly<Record<GridName, Times>> = {
  quick: {
    ...{ probeMs: 2000, capacityMs: 2500, loadMs: 2500, warmMs: 600 },
    ...{ floodMs: 4000, burstMs: 600, crowdBacklogMs: 3500, crowdPendingMs: 3000 },
  },
  fractional: {
    ...{ probeMs: 4000, capacityMs: 5500, loadMs: 6000, warmMs: 1200 },
    ...{ floodMs: 10_000, burstMs: 1600, crowdBacklogMs: 8000, crowdPendingMs: 6000 },
  },
  full: {
    ...{ probeMs: 15_000, capacityMs: 30_000, loadMs: 40_000, warmMs: 5000 },
    ...{ floodMs: 40_000, burstMs: 3000, crowdBacklogMs: 12_000, crowdPendingMs: 9000 },
  },
};

export function gridOf(name: GridName, cores: number): Grid {
  const [one, all, twice, ahead] = settingsFor(cores);
  const crowd: readonly Cell[] = [
    { kind: 'crowd', broker: 'embedded', setting: all, size: 'small' },
    { kind: 'crowd', broker: 'jetstream', setting: all, size: 'small' },
    { kind: 'crowd', broker: 'jetstream', setting: ahead, size: 'small' },
  ];
  if (name === 'quick') {
    const cell = { broker: 'embedded', setting: all, size: 'small' } as const;
    const cells: readonly Cell[] = [
      { kind: 'loads', ...cell },
      { kind: 'crowd', ...cell },
    ];
    return { name, cells, loads: [2, 10], repeats: 1, times: times.quick };
  }
  const everything = [one, all, twice, ahead].flatMap((setting, s) =>
    sizes.flatMap(({ name: size }, z) =>
      brokers.map((broker, b) => ({
        half: (z + b + (s === 0 ? 1 : 0)) % 2,
        cell: { kind: 'loads', broker, setting, size } as const,
      })),
    ),
  );
  if (name === 'full') {
    const cells = [...everything.map(({ cell }) => cell), ...crowd];
    return { name, cells, loads: [0.5, 1, 2, 4, 10], repeats: 5, times: times.full };
  }
  // Half of it: every setting meets every size, every broker every setting and every size. All settings but the one with a single
  // render are on the same broker at each size, so nothing but the setting differs between them.
  const cells = [...everything.filter(({ half }) => half === 0).map(({ cell }) => cell), ...crowd];
  return { name, cells, loads: [0.5, 1, 2, 10], repeats: 3, times: times.fractional };
}

export const settingText = ({ concurrency, prefetch }: Setting): string => `${concurrency}/${prefetch}`;

/** Also the name of its files. */
export function cellId({ kind, broker, setting, size }: Cell): string {
  return `${kind}-${broker}-${setting.concurrency}-${setting.prefetch}-${size}`;
}

/** What is probed once for all cells that differ in nothing but their kind. */
export const probeId = (cell: Cell): string => cellId({ ...cell, kind: 'loads' }).replace('loads-', '');

export interface Turn {
  readonly cell: Cell;
  /** From 1. */
  readonly repeat: number;
}

/** Every cell once in each block, drawn from the seed. */
export function turnsOf(grid: Grid, seed: number): readonly Turn[] {
  return Array.from({ length: grid.repeats }, (_, block) => {
    const random = seeded(seed + block * 7919);
    return shuffled(grid.cells, random).map((cell) => ({ cell, repeat: block + 1 }));
  }).flat();
}

/** Of one turn: its numbers and the order of its loads. Another turn has another, the same turn always the same. */
export function seedOf(seed: number, turn: Turn): number {
  let mixed = seed | 0;
  for (const letter of `${cellId(turn.cell)}.${turn.repeat}`) {
    mixed = Math.imul(mixed ^ (letter.codePointAt(0) ?? 0), 0x01000193);
  }
  return mixed >>> 0;
}

export function shuffled<T>(items: readonly T[], random: () => number): readonly T[] {
  const all = [...items];
  for (let last = all.length - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * (last + 1));
    [all[last], all[other]] = [all[other] as T, all[last] as T];
  }
  return all;
}

/** Starting, stopping, two calibrations, and what an empty queue takes to be seen. */
const turnMs = 9000;
const drainMs = backlogSeconds * 1000 + 1000;

/** About how long the turn takes, before one of its kind was timed. */
export function expectedMs(grid: Grid, { cell, repeat }: Turn): number {
  const { probeMs, capacityMs, loadMs, floodMs, burstMs, crowdPendingMs } = grid.times;
  const base = turnMs + capacityMs + (repeat === 1 && cell.kind === 'loads' ? probeMs + 6000 : 0);
  if (cell.kind === 'crowd') return base + floodMs + crowdPendingMs + burstMs * (crowdLoad.burst + 2);
  return base + grid.loads.reduce((sum, load) => sum + loadMs + (load > 1 ? drainMs : 1500), 0);
}

/**
 * Moments of arrival in ms from the beginning, ascending, as a Poisson process of that rate has them: nobody who sends waits
 * for anybody's answer.
 */
export function poisson(ratePerSecond: number, durationMs: number, random: () => number): readonly number[] {
  const moments: number[] = [];
  for (let atMs = 0; ; ) {
    atMs += (-Math.log(1 - random()) * 1000) / ratePerSecond;
    if (atMs >= durationMs) return moments;
    moments.push(atMs);
  }
}
