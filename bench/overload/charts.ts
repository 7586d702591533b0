/** The charts of the experiment. Each is left out where the cells give nothing to draw. */
import { barChart, type Line, lineChart, type Panel } from '../chart.ts';
import type { Machine } from '../machine.ts';
import { type Cell, type SizeName, settingText, sizes } from './design.ts';
import type { CellSummary, Figures, LoadSummary, Spread } from './summary.ts';
import type { PlayedTurn } from './turn.ts';

export interface Drawn {
  /** Of its file, without its ending. */
  readonly name: string;
  /** Its title. */
  readonly about: string;
  readonly svg: string;
}

interface Ground {
  readonly turns: readonly PlayedTurn[];
  readonly machine: Machine;
}

export function charts(all: readonly CellSummary[], { turns, machine }: Ground): readonly Drawn[] {
  const told = all.filter(({ refused }) => refused.length === 0);
  const cells = told.filter(({ loads }) => loads.length > 0);
  const crowds = told.filter(({ cell }) => cell.kind === 'crowd');
  const repeats = Math.max(0, ...told.map((cell) => cell.repeats));
  const subtitle = `${repeats === 1 ? 'One repeat' : `Medians of ${repeats} repeats, bands from the least to the most`}; lines: broker and RENDER_CONCURRENCY/PREFETCH; ${machine.cores} cores, which the load shares.`;
  const ground = { cells, crowds, turns, subtitle };
  return [
    throughput(ground),
    ready(ground),
    accepted(ground),
    refusals(ground),
    depth(ground),
    age(ground),
    cpu(ground),
    memory(ground),
    capacity(ground),
    quiet(ground),
    flood(ground),
    burst(ground),
  ].flatMap((drawn) => drawn ?? []);
}

interface Told {
  readonly cells: readonly CellSummary[];
  readonly crowds: readonly CellSummary[];
  readonly turns: readonly PlayedTurn[];
  readonly subtitle: string;
}

const lineName = ({ broker, setting }: Cell): string => `${broker} ${settingText(setting)}`;

/* ------------------------------------------------------------------------ over the load */

type Reading = (figures: Figures, cell: CellSummary) => Spread | null;

/** A panel for each size, a line for each broker and setting, the loads along the axis. */
function overLoad(
  { cells, subtitle }: Told,
  {
    name,
    title,
    y,
    reading,
    marks,
  }: { name: string; title: string; y: string; reading: Reading; marks?: Panel['marks'] },
): Drawn | null {
  const loads = loadsOf(cells);
  const panels = sizes.flatMap((size) => {
    const lines = cells.filter(({ cell }) => cell.size === size.name).flatMap((cell) => lineOf(cell, reading) ?? []);
    return lines.length === 0 ? [] : [{ title: `${size.width} × ${size.height}`, lines, ...(marks ? { marks } : {}) }];
  });
  if (panels.length === 0) return null;
  const kind = name === 'throughput' ? 'linear' : 'log';
  const x = { label: 'offered load [times the capacity]', kind: 'log', ticks: loads } as const;
  return { name, about: title, svg: lineChart({ title, subtitle, x, y: { label: y, kind }, panels }) };
}

function lineOf(cell: CellSummary, reading: Reading): Line | null {
  const points = cell.loads.flatMap(({ load, figures }: LoadSummary) => {
    const spread = reading(figures, cell);
    return spread && spread.least > 0 ? [{ x: load, y: spread.median, low: spread.least, high: spread.most }] : [];
  });
  return points.length === 0 ? null : { name: lineName(cell.cell), points };
}

const scaled = (spread: Spread | undefined, by: number): Spread | null =>
  spread ? { median: spread.median * by, least: spread.least * by, most: spread.most * by } : null;

const throughput = (told: Told): Drawn | null =>
  overLoad(told, {
    name: 'throughput',
    title: 'What becomes ready as more is offered: a line that stays flat above 1 is calm, a falling one is collapse',
    y: 'ready [share of the capacity]',
    marks: [{ axis: 'y', at: 1, label: 'capacity' }],
    reading: (figures) => figures['ofCapacity.ready'] ?? null,
  });

const ready = (told: Told): Drawn | null =>
  overLoad(told, {
    name: 'ready',
    title: 'How long an accepted picture takes to become ready: a line that stays flat above 1 is a bounded wait',
    y: 'time to ready, p95 [s]',
    reading: (figures) => scaled(figures['taken.readyMs.p95'], 1 / 1000),
  });

const accepted = (told: Told): Drawn | null =>
  overLoad(told, {
    name: 'accepted',
    title: 'How long the 202 takes as more is offered, the body included, from the intended moment of sending',
    y: '202, p95 [ms]',
    reading: (figures) => figures['taken.acceptMs.p95'] ?? null,
  });

const refusals = (told: Told): Drawn | null =>
  overLoad(told, {
    name: 'refusals',
    title: 'How long a refusal takes as more is offered, from the intended moment of sending',
    y: 'refusal, p95 [ms]',
    reading: (figures) => figures['taken.refusals.latencyMs.p95'] ?? null,
  });

/* ------------------------------------------------------------------------ over the time */

/** Of each size the first repeat at the highest load, of every broker and setting. */
function overTime(
  { turns, cells }: Told,
  { name, title, y, value }: { name: string; title: string; y: string; value: 'queued' | 'oldestMs' },
): Drawn | null {
  const panels = sizes.flatMap((size) => {
    const told = cells.filter(({ cell }) => cell.size === size.name);
    const lines = told.flatMap((cell) => courseOf(cell, turns, value) ?? []);
    return lines.length === 0 ? [] : [{ title: `${size.width} × ${size.height}`, lines }];
  });
  if (panels.length === 0) return null;
  const load = Math.max(...cells.flatMap((cell) => cell.loads.map((each) => each.load)));
  const subtitle = `The first quiet repeat at ${load} times the capacity; the load ends where the fall begins.`;
  return { name, about: title, svg: lineChart({ title, subtitle, x: { label: 'time [s]' }, y: { label: y }, panels }) };
}

function courseOf(summary: CellSummary, turns: readonly PlayedTurn[], value: 'queued' | 'oldestMs'): Line | null {
  const turn = turns.find(
    ({ cell }) => cell.kind === 'loads' && lineName(cell) === lineName(summary.cell) && cell.size === summary.cell.size,
  );
  const load = turn?.loads.at(-1);
  if (!turn || !load) return null;
  const points = load.queue.map((sample) => ({
    x: sample.atMs / 1000,
    y: value === 'queued' ? sample.queued / turn.backlogMax : sample.oldestMs / 1000,
  }));
  return { name: lineName(summary.cell), plain: true, points };
}

const depth = (told: Told): Drawn | null =>
  overTime(told, {
    name: 'depth',
    title: 'How full the backlog is over time: it may not pass 1, and falls when the load ends',
    y: 'waiting [share of MAX_BACKLOG]',
    value: 'queued',
  });

const age = (told: Told): Drawn | null =>
  overTime(told, {
    name: 'age',
    title: 'How long the oldest has been waiting, over time: the backlog is bounded at 3 s of work',
    y: 'age of the oldest [s]',
    value: 'oldestMs',
  });

/* ------------------------------------------------------------------------------ resources */

const roles = [
  ['api', 'API'],
  ['worker', 'worker'],
  ['children', 'render children'],
  ['postgres', 'PostgreSQL'],
  ['broker', 'JetStream'],
  ['load', 'the load itself'],
] as const;

/** Of one setting: as many renders as cores without deliveries held ahead, on the first broker that has it. */
function cpu({ cells }: Told): Drawn | null {
  const concurrency = middleConcurrency(cells);
  const panels = sizes.flatMap(({ name }) => {
    const shown = cells.find(
      ({ cell: { size, setting } }) => size === name && setting.prefetch === 0 && setting.concurrency === concurrency,
    );
    if (!shown) return [];
    const lines = roles.map(([key, role]) => ({
      name: role,
      points: shown.loads.flatMap(({ load, figures }) => {
        const share = scaled(figures[`shares.${key}`], 100);
        return share ? [{ x: load, y: share.median, low: share.least, high: share.most }] : [];
      }),
    }));
    return [{ title: `${sizeText(name)}, ${shown.cell.broker}`, lines }];
  });
  if (panels.length === 0) return null;
  const title = 'Who takes the cores as more is offered: what refusals and the load itself take is lost to rendering';
  const subtitle = `RENDER_CONCURRENCY/PREFETCH ${concurrency}/0. Medians of the repeats, bands from the least to the most.`;
  const x = { label: 'offered load [times the capacity]', kind: 'log', ticks: loadsOf(cells) } as const;
  return {
    name: 'cpu',
    about: title,
    svg: lineChart({ title, subtitle, x, y: { label: 'share of all cores [%]' }, panels }),
  };
}

const loadsOf = (cells: readonly CellSummary[]): readonly number[] =>
  [...new Set(cells.flatMap((cell) => cell.loads.map(({ load }) => load)))].sort((a, b) => a - b);

function middleConcurrency(cells: readonly CellSummary[]): number {
  const all = [...new Set(cells.map(({ cell }) => cell.setting.concurrency))].sort((a, b) => a - b);
  return all[Math.floor((all.length - 1) / 2)] ?? 0;
}

function memory({ cells }: Told): Drawn | null {
  const parts = [
    ['apiMiB', 'API'],
    ['workerMiB', 'worker'],
    ['childrenMiB', 'render children'],
  ] as const;
  const ordered = [...cells].sort((one, other) => bySize(one.cell.size) - bySize(other.cell.size));
  const groups = ordered.flatMap((cell) => {
    const last = cell.loads.at(-1);
    const bars = parts.map(([key, name]) => barOf(name, last?.figures[`memory.${key}`]));
    return bars.every(({ value }) => value === null)
      ? []
      : [{ name: `${sizeText(cell.cell.size)}, ${lineName(cell.cell)}`, bars }];
  });
  if (groups.length === 0) return null;
  const title = 'Where the memory is: children hold pictures, so it grows with their number and with the size';
  const subtitle =
    'The most that was resident at the highest load; whiskers from the least to the most of the repeats.';
  return {
    name: 'memory',
    about: title,
    svg: barChart({ title, subtitle, value: { label: 'resident [MiB]' }, groups }),
  };
}

function barOf(name: string, spread: Spread | undefined) {
  if (!spread) return { name, value: null };
  return { name, value: spread.median, low: spread.least, high: spread.most };
}

const bySize = (size: SizeName): number => sizes.findIndex(({ name }) => name === size);

function sizeText(size: SizeName): string {
  const { width, height } = sizes.find(({ name }) => name === size) ?? sizes[0];
  return `${width} × ${height}`;
}

/** A bar for each cell that has the figure, sizes together. */
function bySetting(
  { cells }: Told,
  { name, title, label, reading }: { name: string; title: string; label: string; reading: Reading },
) {
  const groups = [...cells]
    .sort((one, other) => bySize(one.cell.size) - bySize(other.cell.size))
    .flatMap((cell) => {
      const spread = reading(cell.loads[0]?.figures ?? {}, cell);
      return spread
        ? [{ name: `${sizeText(cell.cell.size)}, ${lineName(cell.cell)}`, bars: [barOf(cell.cell.size, spread)] }]
        : [];
    });
  if (groups.length === 0) return null;
  return { name, about: title, svg: barChart({ title, subtitle: settingsTold, value: { label }, groups }) };
}

const settingsTold =
  'Broker and RENDER_CONCURRENCY/PREFETCH. Medians, whiskers from the least to the most of the repeats.';

const capacity = (told: Told): Drawn | null =>
  bySetting(told, {
    name: 'capacity',
    title: 'What each setting can do: ready pictures per second in a closed loop',
    label: 'capacity [pictures/s]',
    reading: (_, cell) => cell.figures.capacityPerSecond ?? null,
  });

const quiet = (told: Told): Drawn | null =>
  bySetting(told, {
    name: 'quiet',
    title: 'How long one waits with each setting while half of its capacity is free',
    label: 'time to ready at half the capacity, p95 [ms]',
    reading: (figures, cell) => ((cell.loads[0]?.load ?? 1) < 1 ? (figures['taken.readyMs.p95'] ?? null) : null),
  });

/* --------------------------------------------------------------------------------- crowds */

function flood({ crowds }: Told): Drawn | null {
  const groups = crowds.flatMap(({ cell, figures }) => {
    const second = (name: string) => scaled(figures[`crowd.${name}`], 1 / 1000) ?? undefined;
    const [bystander, flooding] = [second('bystander.readyMs.p95'), second('flood.readyMs.p50')];
    if (!bystander || !flooding) return [];
    return [{ name: lineName(cell), bars: [barOf('bystander, p95', bystander), barOf('flood, median', flooding)] }];
  });
  if (groups.length === 0) return null;
  const title = 'How long a bystander waits behind the flood of one user, beside the flood itself';
  return { name: 'flood', about: title, svg: barChart({ title, value: { label: 'time to ready [s]' }, groups }) };
}

function burst({ crowds, turns }: Told): Drawn | null {
  const lines = crowds.flatMap((summary): Line[] => {
    const turn = turns.find(({ cell }) => cell.kind === 'crowd' && lineName(cell) === lineName(summary.cell));
    const queue = turn?.crowd?.patienceQueue ?? [];
    return [
      {
        name: lineName(summary.cell),
        plain: true,
        points: queue.map(({ atMs, queued }) => ({ x: atMs / 1000, y: queued })),
      },
    ];
  });
  if (!lines.some(({ points }) => points.length > 0)) return null;
  const title = 'A burst whose clients come back when Retry-After says: an empty queue before the end is wasted time';
  const panels = [{ title: '', lines }];
  return {
    name: 'burst',
    about: title,
    svg: lineChart({ title, x: { label: 'time [s]' }, y: { label: 'waiting [jobs]' }, panels }),
  };
}
