/** The charts of the experiment. Each is left out where the cells give nothing to draw. */
import { barChart, type Line, lineChart, type Panel } from '../chart.ts';
import type { Machine } from '../machine.ts';
import { type Cell, type Setting, type SizeName, settingText, sizes } from './design.ts';
import { type CellSummary, type Figures, figureOf, type LoadSummary, type Spread } from './summary.ts';
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
    settings(ground),
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
  const loads = [...new Set(cells.flatMap((cell) => cell.loads.map(({ load }) => load)))].sort((a, b) => a - b);
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
    title: 'Offered more than it can do, the service goes on doing about what it can',
    y: 'ready per second [share of the capacity]',
    marks: [{ axis: 'y', at: 1, label: 'capacity' }],
    reading(figures, cell) {
      const capacity = figureOf(cell.figures, 'capacityPerSecond');
      return capacity === null ? null : scaled(figures.readyPerSecond, 1 / capacity);
    },
  });

const ready = (told: Told): Drawn | null =>
  overLoad(told, {
    name: 'ready',
    title: 'Who is accepted waits no longer than the bounded backlog takes (3 s of work), however much is offered',
    y: 'time to ready, p95 [s]',
    reading: (figures) => scaled(figures['taken.readyMs.p95'], 1 / 1000),
  });

const accepted = (told: Told): Drawn | null =>
  overLoad(told, {
    name: 'accepted',
    title: 'How long the 202 takes, body included, counted from the intended moment of sending',
    y: '202, p95 [ms]',
    reading: (figures) => figures['taken.acceptMs.p95'] ?? null,
  });

const refusals = (told: Told): Drawn | null =>
  overLoad(told, {
    name: 'refusals',
    title: 'How long a refusal takes, counted from the intended moment of sending',
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
    title: 'The backlog fills at once, stays at its bound while the load lasts, and drains when it ends',
    y: 'waiting [share of MAX_BACKLOG]',
    value: 'queued',
  });

const age = (told: Told): Drawn | null =>
  overTime(told, {
    name: 'age',
    title: 'The oldest that waits is as old as the bounded backlog lets it become',
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

/** Of one setting: as many renders as cores without deliveries held ahead, which the fractions of the grid play at all sizes. */
function cpu({ cells }: Told): Drawn | null {
  const shown = cells.filter(
    ({ cell }) => cell.setting.prefetch === 0 && cell.setting.concurrency === middleConcurrency(cells),
  );
  const groups = shown.flatMap((cell) =>
    cell.loads.map(({ load, figures }) => ({
      name: `${sizeText(cell.cell.size)}, ${cell.cell.broker}, at ${load}`,
      bars: roles.map(([key, name]) => ({ name, value: (figureOf(figures, `shares.${key}`) ?? 0) * 100 })),
    })),
  );
  if (groups.length === 0) return null;
  const title =
    'Who takes the cores: with more refusals the API and the load take more of them, and rendering gets the rest';
  const subtitle = `RENDER_CONCURRENCY/PREFETCH ${settingText(shown[0]?.cell.setting as Setting)}; the offered load in multiples of the capacity; medians.`;
  return {
    name: 'cpu',
    about: title,
    svg: barChart({ title, subtitle, value: { label: 'share of all cores [%]' }, groups }),
  };
}

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
  const title = 'Memory goes to render children: it grows with their number and with the picture, not with the load';
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

/** Latency against resources: what each setting can do, and how long one waits with it when there is room. */
function settings({ cells }: Told): Drawn | null {
  const groups = [...cells]
    .sort((one, other) => bySize(one.cell.size) - bySize(other.cell.size))
    .flatMap((cell) => {
      const quiet = cell.loads[0];
      const capacity = cell.figures.capacityPerSecond;
      if (!quiet || !capacity || quiet.load >= 1) return [];
      const name = `${sizeText(cell.cell.size)}, ${lineName(cell.cell)}`;
      return [
        {
          name,
          bars: [
            barOf('capacity [pictures/s]', capacity),
            barOf('p95 to ready at half load [ms]', quiet.figures['taken.readyMs.p95']),
          ],
        },
      ];
    });
  if (groups.length === 0) return null;
  const title = 'What a setting can do, and how long one waits with it while there is room';
  const value = { label: 'pictures per second, or ms (logarithmic)', kind: 'log', min: 1 } as const;
  return { name: 'settings', about: title, svg: barChart({ title, value, groups }) };
}

/* --------------------------------------------------------------------------------- crowds */

function flood({ crowds }: Told): Drawn | null {
  const groups = crowds.flatMap(({ cell, figures }) => {
    const second = (name: string) => scaled(figures[`crowd.${name}`], 1 / 1000) ?? undefined;
    const [bystander, flooding] = [second('bystander.readyMs.p95'), second('flood.readyMs.p50')];
    if (!bystander || !flooding) return [];
    return [{ name: lineName(cell), bars: [barOf('bystander, p95', bystander), barOf('flood, median', flooding)] }];
  });
  if (groups.length === 0) return null;
  const title = 'Behind one user’s flood, another user waits for what is announced already, not for all of it';
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
  const title =
    'After a burst everybody comes back when told to: an empty queue before the end is time that Retry-After wasted';
  const panels = [{ title: '', lines }];
  return {
    name: 'burst',
    about: title,
    svg: lineChart({ title, x: { label: 'time [s]' }, y: { label: 'waiting [jobs]' }, panels }),
  };
}
