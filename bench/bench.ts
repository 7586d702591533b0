/**
 * `npm run bench`: ours against what a user would pick instead, row by row, in rounds. See `bench/README.md`.
 *
 * A row is a module below `bench/rows/`. Its results are written as soon as it ends, so an interruption costs the row that runs,
 * and nothing that it started stays behind.
 */
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { describeMachine, describeTree, describeVersions, load } from './machine.ts';
import { keep, type RowResult, readResults, shortfalls, unitOf, valueText } from './results.ts';
import { judgeBound, judgeRatio, type Progress, playRounds } from './rounds.ts';
import type { Row } from './row.ts';
import { interrupt, isInterrupted, withScope } from './scope.ts';

const help = `Usage: npm run bench -- [options]

Measures Skrepka beside a reference, in rounds, on this machine: leave it alone meanwhile. Writes every figure, a table
and charts. Judges ratios within a round; a round in which the reference disagrees with itself does not count.

  --rows A,B       only these rows; all others keep the results that lie in the folder
  --rounds N       rounds of each row, 1 to 100 (each row's own number; fewer than 3 can judge no ratio)
  --quick          as little work as shows that the rows run, one round, nothing judged; a few minutes
  --out DIR        where results go (bench/results; with --quick bench/.cache/quick)
  --list           tells the rows, and what is missing for them here
  --help           this text

Exit code: 0 every gate is met, 1 one is missed or cannot be judged, or a row failed, 2 the options make no sense or
something is missing for a row that was named, 130 interrupted.`;

const rowsDir = path.join(import.meta.dirname, 'rows');
const interruptedCode = 130;

process.exitCode = await main();
// What an interrupted row still waits for keeps nobody waiting.
if (isInterrupted()) process.exit();

interface Wish {
  readonly rows: readonly string[];
  readonly named: boolean;
  readonly rounds: number | null;
  readonly quick: boolean;
  readonly out: string;
  readonly list: boolean;
  readonly help: boolean;
}

async function main(): Promise<number> {
  const wish = understand(rowNames());
  if (typeof wish === 'string') {
    console.error(`${wish}\n\n${help}`);
    return 2;
  }
  if (wish.help) {
    console.log(help);
    return 0;
  }
  const rows = await Promise.all(wish.rows.map(loadRow));
  if (wish.list) return list(rows);
  const absent = rows.filter((row) => row.missing() !== null);
  for (const row of absent) console.error(`${row.name}: left out, because this machine lacks it: ${row.missing()}`);
  if (wish.named && absent.length > 0) return 2;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
  return await playAll(
    rows.filter((row) => !absent.includes(row)),
    wish,
  );
}

/* ------------------------------------------------------------------- options */

/** What is wished for, or the sentence that says why it cannot be. */
function understand(known: readonly string[]): Wish | string {
  try {
    const { values } = parseArgs({
      options: {
        rows: { type: 'string' },
        rounds: { type: 'string' },
        quick: { type: 'boolean', default: false },
        out: { type: 'string' },
        list: { type: 'boolean', default: false },
        help: { type: 'boolean', default: false },
      },
    });
    const rows = values.rows === undefined ? known : [...new Set(values.rows.split(','))];
    const unknown = rows.filter((row) => !known.includes(row));
    if (unknown.length > 0) return `Expected rows of ${known.join(', ')}, received "${unknown.join('", "')}".`;
    const rounds = values.rounds === undefined ? null : Number(values.rounds);
    if (rounds !== null && !(Number.isInteger(rounds) && rounds >= 1 && rounds <= 100)) {
      return `Expected a whole number from 1 to 100 for --rounds, received "${values.rounds}".`;
    }
    const usual = path.join(import.meta.dirname, values.quick ? '.cache/quick' : 'results');
    const { quick, list: isList, help: isHelp } = values;
    const out = path.resolve(values.out ?? usual);
    return { rows, named: values.rows !== undefined, rounds, quick, out, list: isList, help: isHelp };
  } catch (error) {
    return (error as Error).message;
  }
}

function rowNames(): readonly string[] {
  return readdirSync(rowsDir)
    .filter((name) => name.endsWith('.ts'))
    .map((name) => path.basename(name, '.ts'))
    .sort();
}

async function loadRow(name: string): Promise<Row> {
  const { row } = (await import(path.join(rowsDir, `${name}.ts`))) as { row?: Row };
  if (row?.name === name) return row;
  throw new Error(`Expected bench/rows/${name}.ts to export the row "${name}", received "${row?.name}"`);
}

function list(rows: readonly Row[]): number {
  for (const row of rows) {
    const missing = row.missing();
    console.log(`${row.name} (${row.rounds} rounds): ${row.title}${missing ? `. Missing here: ${missing}` : ''}`);
  }
  return 0;
}

/* ------------------------------------------------------------------- playing */

async function playAll(rows: readonly Row[], wish: Wish): Promise<number> {
  const place = { machine: await describeMachine(), versions: await describeVersions(), tree: await describeTree() };
  const busy = load();
  if (busy > 0.5)
    console.error(`This machine is not idle: its load is ${busy}. Figures will be worse, and fewer rounds will count.`);
  const secondsBefore = await secondsOf(wish);
  const shortcomings: string[] = [];
  for (const [at, row] of rows.entries()) {
    const later = rows.slice(at + 1).map(({ name }) => secondsBefore.get(name) ?? null);
    try {
      const result = { ...(await playRow(row, wish, createTelling(row, at, rows.length, later))), ...place };
      await keep(wish.out, result);
      tell(result);
      if (!wish.quick) shortcomings.push(...shortfalls(result));
    } catch (error) {
      if (isInterrupted()) {
        console.error(`Interrupted: ${row.name} and what follows it were not measured; results of others are kept.`);
        return interruptedCode;
      }
      console.error(error);
      shortcomings.push(`${row.name}: failed: ${(error as Error).message}`);
    }
  }
  console.log(`Results: ${path.relative(process.cwd(), path.join(wish.out, 'results.md'))}`);
  for (const sentence of shortcomings) console.log(sentence);
  return shortcomings.length === 0 ? 0 : 1;
}

async function playRow(
  row: Row,
  wish: Wish,
  telling: Telling,
): Promise<Omit<RowResult, 'machine' | 'versions' | 'tree'>> {
  const { quick } = wish;
  const startedAt = new Date();
  const before = load();
  const during: number[] = [];
  telling.say('opening');
  const { measured, rounds } = await withScope(async (scope) => {
    const opened = await row.open(scope, { quick, say: telling.say });
    const onRun = (progress: Progress) => {
      if (progress.run === 0 && progress.round > 0) during.push(load());
      telling.progress(progress, count);
    };
    const count = wish.rounds ?? (quick ? 1 : row.rounds);
    const played = await playRounds(opened, { rounds: count, onRun });
    during.push(load());
    return { measured: opened, rounds: played };
  });
  return {
    row: row.name,
    title: row.title,
    about: row.about,
    quick,
    startedAt: startedAt.toISOString(),
    seconds: Math.round((Date.now() - startedAt.getTime()) / 1000),
    load: { before, during },
    ratios: measured.ratios.map((ratio) => judgeRatio(ratio, rounds, { quick })),
    bounds: measured.bounds.map((bound) => judgeBound(bound, rounds, { quick })),
    ...(measured.notes ? { notes: measured.notes } : {}),
    rounds,
  };
}

/** How long each row took the last time, for the time that is left. */
async function secondsOf({ out, quick }: Wish): Promise<ReadonlyMap<string, number>> {
  const known = (await readResults(out)).filter((result) => result.quick === quick);
  return new Map(known.map(({ row, seconds }) => [row, seconds]));
}

/* ------------------------------------------------------------------- telling */

interface Telling {
  say(line: string): void;
  progress(progress: Progress, rounds: number): void;
}

/** On the error stream: the other one is for what came out. `later`: seconds of the rows that follow, null where not known. */
function createTelling(row: Row, at: number, rows: number, later: readonly (number | null)[]): Telling {
  const say = (line: string) => console.error(`… ${row.name} (row ${at + 1} of ${rows}): ${line}`);
  return {
    say,
    progress({ round, run, runs, side, leftMs }, rounds) {
      const known = later.filter((seconds) => seconds !== null).reduce((sum, seconds) => sum + seconds, 0);
      const unknown = later.filter((seconds) => seconds === null).length;
      const rest = unknown === 0 ? '' : ` and ${unknown} ${unknown === 1 ? 'row' : 'rows'} of unknown length`;
      const left = leftMs === null ? '' : `; about ${timeText(leftMs / 1000 + known)}${rest} left`;
      say(`round ${round + 1} of ${rounds}, run ${run + 1} of ${runs}: ${side}${left}`);
    },
  };
}

function timeText(seconds: number): string {
  return seconds < 90 ? `${Math.ceil(seconds)} s` : `${Math.ceil(seconds / 60)} min`;
}

function tell({ row, ratios, bounds }: RowResult): void {
  for (const judged of [...ratios, ...bounds]) {
    const { name, value, verdict, kept, played } = judged;
    const told = value === null ? '' : ` ${valueText(value, unitOf(judged))}`;
    console.log(`${row}: ${name}:${told} (${verdict}, ${kept} of ${played} rounds)`);
  }
}
