/** Writes what the turns of an experiment say: results.json, results.md and the charts. */
import { charts } from './charts.ts';
import { type Choice, choicesOf } from './defaults.ts';
import { type Grid, settingText } from './design.ts';
import { type Folder, type Head, nameOf } from './folder.ts';
import { hypotheses, type Verdict } from './hypotheses.ts';
import { type CellSummary, type Figures, figureOf, summarise } from './summary.ts';
import type { PlayedTurn } from './turn.ts';

export interface Source {
  readonly command: string;
  readonly head: Head;
}

export interface Reported {
  readonly grid: Grid;
  readonly turns: readonly PlayedTurn[];
  readonly source: Source;
}

interface Judged {
  readonly id: string;
  readonly sentence: string;
  readonly verdict: Verdict;
}

/** False where a cell was too noisy for figures. */
export async function writeResults(folder: Folder, { grid, turns, source }: Reported): Promise<boolean> {
  const cells = summarise(turns, { first: source.head.calibration, repeats: grid.repeats });
  const { cores } = source.head;
  const judged = hypotheses.map(({ id, sentence, judge }) => ({ id, sentence, verdict: judge(cells, cores) }));
  const choices = choicesOf(cells, cores);
  const results = { ...source, grid, cells, hypotheses: judged, defaults: choices };
  await folder.writeResult('results.json', `${JSON.stringify(results, null, 1)}\n`);
  const drawn = charts(cells, { turns, machine: source.head.machine });
  for (const { name, svg } of drawn) await folder.writeResult(`${name}.svg`, svg);
  const names = drawn.map(({ name, about }) => ({ name, about }));
  await folder.writeResult('results.md', markdown({ grid, turns, source }, { cells, judged, choices, names }));
  tell(folder.path, { cells, judged, choices });
  return cells.every(({ refused }) => refused.length === 0);
}

interface Found {
  readonly cells: readonly CellSummary[];
  readonly judged: readonly Judged[];
  readonly choices: readonly Choice[];
}

function tell(dir: string, { cells, judged, choices }: Found): void {
  console.log('\nThe hypothesis:');
  for (const { id, sentence, verdict } of judged) {
    console.log(`  ${id.padEnd(3)} ${verdict.verdict.padEnd(10)} ${sentence}\n      ${verdict.because}`);
  }
  console.log('\nThe defaults that these figures support:');
  for (const { setting, value, why } of choices) console.log(`  ${setting} ${value}: ${why}`);
  for (const { id, refused } of cells) {
    if (refused.length > 0) console.log(`\nToo noisy to give figures: ${id}: ${refused.join('; ')}`);
  }
  console.log(`\nWritten to ${dir}`);
}

/* --------------------------------------------------------------------------- markdown */

function markdown(
  { grid, turns, source }: Reported,
  { cells, judged, choices, names }: Found & { readonly names: readonly { name: string; about: string }[] },
): string {
  const { head } = source;
  const { machine, versions } = head;
  const refused = cells.filter((cell) => cell.refused.length > 0);
  const packages = ['sharp', 'libvips', 'pg', '@nats-io/jetstream', 'fastify'];
  const installed = packages.map((name) => `${name} ${versions.packages[name] ?? '?'}`);
  const servers = Object.entries(versions.engines).map(([name, version]) => `${name} ${version}`);
  return [
    '# The queue under overload: results',
    '',
    `Written by \`${source.command}\`; the recorded cells are in \`cells/\`, all figures in \`results.json\`.`,
    '',
    `- Begun ${head.startedAt}; grid ${grid.name}, ${grid.repeats} repeats, ${turns.length} turns, seed ${head.seed}`,
    `- Played by ${nameOf(head.tree)}`,
    `- Machine: ${machine.cpu}, ${machine.cores} cores, ${machine.memoryMiB} MiB, ${machine.system}, kernel ${machine.kernel}, ${machine.fileSystem}`,
    `- Node ${versions.node}, PostgreSQL ${versions.postgres}, ${[...servers, ...installed].join(', ')}`,
    `- Calibration when it began: loop ${head.calibration.loopMs.toFixed(0)} ms, fsync ${head.calibration.fsyncMs.toFixed(2)} ms`,
    '',
    ...(refused.length === 0 ? [] : ['## Too noisy to give figures', '']),
    ...refused.map(({ id, refused: why }) => `- \`${id}\`: ${why.join('; ')}`),
    ...(refused.length === 0 ? [] : ['']),
    '## The hypothesis',
    '',
    '| | sentence | verdict | because |',
    '|---|---|---|---|',
    ...judged.map((one) => `| ${one.id} | ${one.sentence} | **${one.verdict.verdict}** | ${one.verdict.because} |`),
    '',
    '## The defaults that these figures support',
    '',
    ...choices.map(({ setting, value, why }) => `- \`${setting}\` **${value}**: ${why}`),
    '',
    '## Charts',
    '',
    ...names.map(({ name, about }) => `![${about}](${name}.svg)\n`),
    '## Loads',
    '',
    'Medians of the repeats. Latencies count from the intended moment of sending; p50 / p95 / p99.',
    '',
    ...table(loadColumns, loadRows(cells)),
    '',
    '## Crowds',
    '',
    ...table(crowdColumns, crowdRows(cells)),
    '',
  ].join('\n');
}

function table(columns: readonly string[], rows: readonly (readonly string[])[]): readonly string[] {
  const line = (fields: readonly string[]) => `| ${fields.join(' | ')} |`;
  return [line(columns), line(columns.map(() => '---')), ...rows.map(line)];
}

const loadColumns = [
  ...['broker', 'setting', 'size', 'load', 'offered/s', 'ready/s', 'of capacity', 'refused', 'ready [ms]', '202 [ms]'],
  ...['refusal [ms]', 'Retry-After [s]', 'depth', 'bound', 'oldest [s]', 'drain/s', 'rings', 'lost'],
  ...['API MiB', 'worker MiB', 'children MiB', 'CPU ms per ready', 'load’s share'],
];

function text(value: number | null, digits = 3): string {
  return value === null ? '–' : String(Number(value.toPrecision(digits)));
}

const three = (figures: Figures, name: string): string =>
  ['p50', 'p95', 'p99'].map((p) => text(figureOf(figures, `${name}.${p}`))).join(' / ');

function loadRows(cells: readonly CellSummary[]): readonly (readonly string[])[] {
  return cells.flatMap(({ cell, loads, backlogMax }) =>
    loads.map(({ load, figures }) => {
      const of = (name: string) => figureOf(figures, name);
      const [sent, refused, oldest, share] = ['taken.sent', 'taken.refusals.count', 'lag.ageMsMax', 'shares.load'].map(
        of,
      );
      return [
        ...[
          cell.broker,
          settingText(cell.setting),
          cell.size,
          String(load),
          text(of('offeredPerSecond')),
          text(of('readyPerSecond')),
        ],
        text(of('ofCapacity.ready')),
        sent && refused !== null && refused !== undefined ? `${text((100 * refused) / sent)} %` : '–',
        ...[
          three(figures, 'taken.readyMs'),
          three(figures, 'taken.acceptMs'),
          three(figures, 'taken.refusals.latencyMs'),
        ],
        ...[text(of('taken.refusals.retryAfterSeconds.p50')), text(of('lag.depthMax')), String(backlogMax)],
        text(oldest === null || oldest === undefined ? null : oldest / 1000),
        ...[text(of('drainPerSecond')), text(of('kept.ringsPerJob')), text(figures['kept.lost']?.most ?? null)],
        ...['memory.apiMiB', 'memory.workerMiB', 'memory.childrenMiB', 'cpuMsPerReady'].map((name) => text(of(name))),
        share === null || share === undefined ? '–' : `${text(share * 100)} %`,
      ];
    }),
  );
}

const crowdColumns = [
  ...['broker', 'setting', 'size', 'capacity/s', 'flood ready [ms]', 'bystander ready [ms]', 'bystander refused'],
  ...['burst: clients', 'refused at first', 'accepted at first return', 'told [s]', 'needed [s]', 'ready/s', 'lost'],
];

function crowdRows(cells: readonly CellSummary[]): readonly (readonly string[])[] {
  return cells
    .filter(({ cell, refused }) => cell.kind === 'crowd' && refused.length === 0)
    .map(({ cell, figures }) => {
      const of = (name: string) => text(figureOf(figures, `crowd.${name}`));
      const lost = ['floodKept', 'patienceKept'].map((name) => figures[`crowd.${name}.lost`]?.most ?? 0);
      return [
        ...[cell.broker, settingText(cell.setting), cell.size, text(figureOf(figures, 'capacityPerSecond'))],
        ...[
          three(figures, 'crowd.flood.readyMs'),
          three(figures, 'crowd.bystander.readyMs'),
          of('bystander.refusals.count'),
        ],
        ...['clients', 'refusedAtFirst', 'acceptedAtFirstReturn'].map((name) => of(`patience.${name}`)),
        ...[three(figures, 'crowd.patience.toldSeconds'), three(figures, 'crowd.patience.neededSeconds')],
        ...[of('patience.readyPerSecond'), String(lost.reduce((sum, each) => sum + each, 0))],
      ];
    });
}
