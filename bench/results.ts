/**
 * What is kept of a run: one JSON file a row with every raw figure, and what is made of all rows that lie in the folder,
 * `results.json`, `results.md` and a chart a row. Rows that were not run this time stay as they were.
 */
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { barChart } from './chart.ts';
import { numberText } from './chart-scale.ts';
import type { Machine, Tree, Versions } from './machine.ts';
import { type Judged, type JudgedBound, type JudgedRatio, keptMin, type Round, spreadMax } from './rounds.ts';
import type { Goal } from './row.ts';

export interface RowResult {
  readonly row: string;
  readonly title: string;
  readonly about: string;
  /** Too little work was done to judge. */
  readonly quick: boolean;
  /** RFC 3339, UTC. */
  readonly startedAt: string;
  readonly seconds: number;
  readonly tree: Tree;
  readonly machine: Machine;
  /** Averages of a minute: before the row, and after each of its rounds. */
  readonly load: { readonly before: number; readonly during: readonly number[] };
  readonly versions: Versions;
  readonly ratios: readonly JudgedRatio[];
  readonly bounds: readonly JudgedBound[];
  readonly notes?: readonly string[];
  /** All raw figures, in the order of play. */
  readonly rounds: readonly Round[];
}

/** Below the folder of the results. */
const rowsFolder = 'rows';

/** Keeps one row, and makes everything else anew from all rows that are there. */
export async function keep(out: string, result: RowResult): Promise<void> {
  await write(path.join(out, rowsFolder, `${result.row}.json`), json(result));
  const all = await readResults(out);
  await write(path.join(out, 'results.json'), json({ rows: all }));
  await write(path.join(out, 'results.md'), markdown(all));
  const chart = chartOf(result);
  const file = path.join(out, `${result.row}.svg`);
  if (chart === null) await rm(file, { force: true });
  else await write(file, chart);
}

/** All rows that lie in the folder, by name. */
export async function readResults(out: string): Promise<readonly RowResult[]> {
  const folder = path.join(out, rowsFolder);
  const names = (await readdir(folder).catch(() => [])).filter((name) => name.endsWith('.json')).sort();
  return await Promise.all(
    names.map(async (name) => JSON.parse(await readFile(path.join(folder, name), 'utf8')) as RowResult),
  );
}

/** A sentence for each gate that was missed, or that could not be judged. */
export function shortfalls({ row, ratios, bounds }: Pick<RowResult, 'row' | 'ratios' | 'bounds'>): readonly string[] {
  const sentence = (judged: JudgedRatio | JudgedBound) => {
    const { name, verdict, value, goal, kept, played } = judged;
    if (!judged.gate || goal === null) return [];
    const asked = goalText(goal, unitOf(judged));
    if (verdict === 'missed' && value !== null) {
      return [`${row}: ${name} is ${valueText(value, unitOf(judged))}, asked is ${asked}.`];
    }
    if (verdict !== 'too noisy') return [];
    const needed = `${Math.max(keptMin, Math.ceil(played / 2))} are needed`;
    return [`${row}: ${name} cannot be judged: ${kept} of ${played} rounds were quiet enough, and ${needed}.`];
  };
  return [...ratios.flatMap(sentence), ...bounds.flatMap(sentence)];
}

/** `≤ 1.25`, `≥ 40 MiB`. */
export function goalText(goal: Goal | null, unit = ''): string {
  if (goal === null) return '–';
  return 'atLeast' in goal ? `≥ ${valueText(goal.atLeast, unit)}` : `≤ ${valueText(goal.atMost, unit)}`;
}

export function valueText(value: number, unit = ''): string {
  return unit === '' || unit === 'count' ? numberText(value) : `${numberText(value)} ${unit}`;
}

export function unitOf(judged: JudgedRatio | JudgedBound): string {
  return 'unit' in judged ? judged.unit : '';
}

/* ------------------------------------------------------------------ Markdown */

/** The tables of these rows, the charts that lie beside them, and where each was measured. */
export function markdown(all: readonly RowResult[]): string {
  const ratios = all.flatMap((result) => result.ratios.map((ratio) => ratioLine(result, ratio)));
  const bounds = all.flatMap((result) => result.bounds.map((bound) => boundLine(result, bound)));
  const parts = [
    '# Benchmarks',
    `Written by \`npm run bench\`; \`bench/README.md\` says how it measures. A ratio is ours over the reference, within one round; the median is told, and
the least and the most in brackets. The reference runs twice a round, and a round whose two figures differ by more than ${spreadMax * 100} % counts
for nothing; fewer than ${keptMin} rounds that count, or less than half, are *too noisy*. Ratios of time on the processor and bounds other than of
wall-clock time are gates; wall-clock time is told with its goal beside them.`,
    ...(all.some(({ quick }) => quick)
      ? ['**Rows marked *quick* did too little work to be judged: they show that they run.**']
      : []),
    ...(ratios.length > 0 ? ['## Ours over the reference', table(ratioHead, ratios)] : []),
    ...(bounds.length > 0 ? ['## Bounds', table(boundHead, bounds)] : []),
    '## Rows',
    ...all.flatMap(rowParts),
    '## Where and when',
    table(placeHead, all.map(placeLine)),
  ];
  return `${parts.join('\n\n')}\n`;
}

const ratioHead = ['Row', 'Ratio', 'Kind', 'Ours', 'Reference', 'Median', 'Goal', 'Met', 'Rounds kept'];
const boundHead = ['Row', 'Bound', 'Measured', 'Goal', 'Met'];
const placeHead = [
  'Row',
  'Measured',
  'Took',
  'Commit',
  'Machine',
  'Load before; during',
  'Node',
  'PostgreSQL',
  'Engines',
];

function ratioLine(result: RowResult, ratio: JudgedRatio): string[] {
  const { name, kind, ours, reference, oursValue, referenceValue, goal, kept, played } = ratio;
  const side = (title: string, value: number | null) => (value === null ? title : `${title}: ${numberText(value)}`);
  const told = ratio.value === null ? 'too noisy' : `**${numberText(ratio.value)}**${rangeText(ratio)}`;
  const figures = [side(ours, oursValue), side(reference, referenceValue)];
  return [rowName(result), name, kind, ...figures, told, goalText(goal), metText(ratio), `${kept} of ${played}`];
}

function boundLine(result: RowResult, bound: JudgedBound): string[] {
  const { name, value, unit, goal } = bound;
  const told = value === null ? 'too noisy' : `**${valueText(value, unit)}**${rangeText(bound)}`;
  return [rowName(result), name, told, goalText(goal, unit), metText(bound)];
}

function rangeText({ low, high, kept }: Judged): string {
  return low === null || high === null || kept < 2 ? '' : ` (${numberText(low)} to ${numberText(high)})`;
}

function rowName({ row, quick }: RowResult): string {
  return quick ? `${row} *(quick)*` : row;
}

function metText({ verdict, gate }: Judged): string {
  if (verdict === 'met') return 'yes';
  if (verdict === 'missed') return gate ? '**no**' : 'no (told)';
  return verdict === 'told' ? '–' : verdict;
}

function rowParts(result: RowResult): string[] {
  const { row, title, about, notes = [] } = result;
  const chart = chartOf(result) === null ? [] : [`![${title}](${row}.svg)`];
  const told = notes.length === 0 ? [] : [notes.map((note) => `- ${note}`).join('\n')];
  return [`### ${row}: ${title}`, about, ...chart, ...told];
}

function placeLine({ row, startedAt, seconds, tree, machine, load, versions }: RowResult): string[] {
  const commit = tree.commit === null ? 'none' : `${tree.commit.slice(0, 10)}${tree.clean ? '' : ' with changes'}`;
  const { cpu, cores, memoryMiB, system, kernel, fileSystem } = machine;
  const place = `${cores} × ${cpu}, ${numberText(Math.round(memoryMiB / 1024))} GiB, ${fileSystem}, ${system}, Linux ${kernel}`;
  const engines = Object.entries(versions.engines).map((entry) => entry.join(' '));
  const { before, during } = load;
  const loads = `${before}; ${during.length > 0 ? Math.max(...during) : before} at most`;
  const minutes = `${numberText(seconds / 60)} min`;
  const [date = ''] = startedAt.split('.');
  return [row, `${date}Z`, minutes, commit, place, loads, versions.node, versions.postgres, engines.join(', ') || '–'];
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  return [line(head), `|${head.map(() => '---|').join('')}`, ...rows.map(line)].join('\n');
}

/* --------------------------------------------------------------------- chart */

/** Bars of the ratios; of the bounds where a row has nothing else and one unit. Null where no bar can be drawn. */
export function chartOf(result: RowResult): string | null {
  const { title, ratios, bounds, tree, machine, quick } = result;
  const units = new Set(bounds.map(({ unit }) => unit));
  const drawn: readonly (JudgedRatio | JudgedBound)[] = ratios.length > 0 ? ratios : units.size === 1 ? bounds : [];
  const values = drawn.flatMap(({ value, low, high }) => [value, low, high]).filter((value) => value !== null);
  if (values.length === 0) return null;
  const isRatio = ratios.length > 0;
  const all = [...values, ...drawn.flatMap(({ goal }) => (goal === null ? [] : (Object.values(goal) as number[])))];
  // Ratios of 0.02 and of 30 in one chart: on a linear axis the one that matters is a line's breadth.
  const kind = Math.min(...all) > 0 && Math.max(...all) / Math.min(...all) > 50 ? 'log' : 'linear';
  const where = `${machine.cores} × ${machine.cpu}, ${tree.commit?.slice(0, 10) ?? 'no commit'}`;
  const what = isRatio
    ? `Medians of ours over the reference, whiskers from the least to the most of the rounds that count.`
    : `What was measured, whiskers from the least to the most.`;
  return barChart({
    title,
    subtitle: `${quick ? 'Quick, not judged. ' : ''}${what} ${where}`,
    value: { kind, label: isRatio ? 'ours ÷ reference' : `measured [${[...units][0]}]` },
    groups: drawn.map((judged) => ({
      name: judged.name,
      bars: [
        {
          name: isRatio ? `ours ÷ ${(judged as JudgedRatio).reference}` : (judged as JudgedBound).side,
          value: judged.value,
          ...(judged.low !== null && judged.high !== null ? { low: judged.low, high: judged.high } : {}),
        },
      ],
      ...(judged.goal === null
        ? {}
        : { mark: { at: Object.values(judged.goal)[0] as number, label: `goal ${goalText(judged.goal)}` } }),
    })),
  });
}

/* --------------------------------------------------------------------- files */

function json(value: unknown): string {
  return `${JSON.stringify(value, null, 1)}\n`;
}

/** Whole or not at all: an interrupted run leaves the file as it was. */
async function write(file: string, text: string): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true });
  await writeFile(`${file}.new`, text);
  await rename(`${file}.new`, file);
}
