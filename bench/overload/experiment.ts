/**
 * `npm run experiment:overload`: plays the cells of a grid, one turn after the other, and writes figures, charts and verdicts.
 *
 * Everything that it starts lies on free ports of loopback and in temporary folders, and ends with it.
 */
import { rm } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { describeMachine, describeTree, describeVersions } from '../machine.ts';
import { withScope } from '../scope.ts';
import { type Calibration, calibrate } from './calibration.ts';
import {
  type Cell,
  expectedMs,
  type Grid,
  type GridName,
  gridNames,
  gridOf,
  settingText,
  type Turn,
  turnsOf,
} from './design.ts';
import { type Folder, FolderRefusal, openFolder, usualFolder } from './folder.ts';
import { writeResults } from './report.ts';
import { makePictures, missing } from './stage.ts';
import { type Around, doubtsAbout, type PlayedTurn, type Probe, playProbe, playTurn } from './turn.ts';

const help = `Usage: npm run experiment:overload -- [options]

Offers a service on this machine from half to ten times what it can do, and measures what becomes of it: throughput, waits,
refusals, memory, recovery, fairness. bench/overload/hypothesis.md says what is expected. Leave the machine alone meanwhile:
a cell that met noise is played again once, and gives no figures when it meets it again.

  --grid fractional      half of all combinations, three repeats: about 40 minutes (the default)
  --grid full            all of them, more loads, five repeats: a night
  --quick                one small cell and one crowd, once: about a minute; shows that it runs, and proves nothing
  --seed N               what arrivals, pictures and the order of cells are drawn from (1)
  --out DIR              where results go: without it the first of bench/results/overload, overload-2, … that holds no experiment,
                         with --resume and --report the last that does, with --quick bench/.cache/overload, made anew
  --resume               goes on with the experiment in that folder: what stands there is not played again
  --report               plays nothing: writes the results of what stands in the folder anew
  --help                 this text

Writes DIR/results.json, DIR/results.md, charts as SVG, and DIR/cells/ with all that was recorded.
Ctrl-C ends the turn that is played; the folder keeps those before it.

Exit code: 0 written, 1 interrupted, failed, or too noisy to report all cells, 2 the options make no sense or something is missing.`;

interface Asked {
  readonly grid: GridName;
  readonly seed: number;
  readonly out: string;
  /** Whatever stands there is of an earlier quick one. */
  readonly anew: boolean;
  readonly resume: boolean;
  readonly report: boolean;
}

process.exitCode = await main();

async function main(): Promise<number> {
  const asked = understand();
  if (asked === 'help') {
    console.log(help);
    return 0;
  }
  if (typeof asked === 'string') {
    console.error(`${asked}\n\n${help}`);
    return 2;
  }
  const lacking = missing();
  if (lacking !== null && asked.grid !== 'quick' && !asked.report) {
    console.error(`JetStream is not installed: ${lacking}`);
    return 2;
  }
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => interrupted.abort(new Error(signal)));
  try {
    return await play(asked, interrupted.signal);
  } catch (error) {
    if (error instanceof FolderRefusal) {
      console.error(error.message);
      return 2;
    }
    if (!interrupted.signal.aborted) throw error;
    console.error(
      `Interrupted. Go on with: npm run experiment:overload -- ${whatOf(asked)} --out ${near(asked.out)} --resume`,
    );
    return 1;
  }
}

function understand(): Asked | string {
  try {
    const { values } = parseArgs({
      options: {
        grid: { type: 'string', default: 'fractional' },
        quick: { type: 'boolean', default: false },
        seed: { type: 'string', default: '1' },
        out: { type: 'string' },
        resume: { type: 'boolean', default: false },
        report: { type: 'boolean', default: false },
        help: { type: 'boolean', default: false },
      },
    });
    if (values.help) return 'help';
    const grid = gridNames.find((name) => name === (values.quick ? 'quick' : values.grid));
    if (grid === undefined) return `--grid is one of fractional and full, received ${values.grid}`;
    if (!/^\d{1,9}$/.test(values.seed))
      return `--seed is a whole number of at most nine digits, received ${values.seed}`;
    const resume = values.resume || values.report;
    const bench = path.resolve(import.meta.dirname, '..');
    const usual = () => (grid === 'quick' ? path.join(bench, '.cache/overload') : usualFolder(bench, resume));
    const out = values.out === undefined ? usual() : path.resolve(values.out);
    const anew = grid === 'quick' && values.out === undefined && !resume;
    return { grid, seed: Number(values.seed), out, anew, resume, report: values.report };
  } catch (error) {
    return (error as Error).message;
  }
}

function whatOf({ grid, seed }: Asked): string {
  return `${grid === 'quick' ? '--quick' : `--grid ${grid}`} --seed ${seed}`;
}

function near(dir: string): string {
  const relative = path.relative(process.cwd(), dir);
  return relative.startsWith('..') ? dir : relative;
}

async function play(asked: Asked, signal: AbortSignal): Promise<number> {
  const cores = availableParallelism();
  const grid = gridOf(asked.grid, cores);
  if (asked.anew) await rm(asked.out, { recursive: true, force: true });
  const tree = await describeTree(asked.out);
  const { folder, head } = await openFolder(
    asked.out,
    { grid: asked.grid, seed: asked.seed, cores },
    {
      resume: asked.resume,
      tree: asked.report ? null : tree,
      begin: async () => ({
        ...{ grid: asked.grid, seed: asked.seed, cores },
        startedAt: new Date().toISOString(),
        machine: await describeMachine(),
        versions: await describeVersions(),
        tree,
        calibration: await calibrate(),
      }),
    },
  );
  if (!asked.report) {
    console.log(`Results go to ${near(asked.out)}`);
    await withScope(async (scope) => {
      const pictures = await makePictures(scope, asked.seed);
      const around = { grid, seed: asked.seed, cores, pictures, signal, say: () => {} };
      await playTurns({ folder, around, first: head.calibration });
    });
  }
  const turns: PlayedTurn[] = [];
  for (const turn of turnsOf(grid, asked.seed)) {
    const played = await folder.turn(turn);
    if (played !== null) turns.push(played);
  }
  const source = { command: `npm run experiment:overload -- ${whatOf(asked)}`, head };
  return (await writeResults(folder, { grid, turns, source })) ? 0 : 1;
}

/* ------------------------------------------------------------------------------ turns */

interface Playing {
  readonly folder: Folder;
  readonly around: Around;
  readonly first: Calibration;
}

/** Those that met noise, or failed, stand at the end of the line once more: by then whatever it was may be over. */
async function playTurns({ folder, around, first }: Playing): Promise<void> {
  const open: { readonly turn: Turn; readonly again: boolean }[] = [];
  for (const turn of turnsOf(around.grid, around.seed)) {
    if ((await folder.turn(turn)) === null) open.push({ turn, again: false });
  }
  const tally = createTally(around.grid);
  const say = (line: string) => console.log(`    ${line}`);
  for (let at = 1, next = open.shift(); next !== undefined; at += 1, next = open.shift()) {
    const { turn, again } = next;
    const leftMs = [turn, ...open.map((each) => each.turn)].reduce((sum, each) => sum + tally.expectedMs(each), 0);
    const which = `[${at} of ${at + open.length}] ${titleOf(turn)}${again ? ', again' : ''}`;
    console.log(`${which}; about ${minutes(leftMs)} left`);
    const beganMs = performance.now();
    const played = await playOnce(turn, { folder, around: { ...around, say } });
    tally.took(turn, performance.now() - beganMs);
    const doubts = played === null ? ['it failed'] : doubtsAbout(played, first);
    for (const sentence of doubts) say(`does not count: ${sentence}`);
    if (doubts.length > 0 && !again && around.grid.repeats > 1) {
      open.push({ turn, again: true });
      // A probe that met noise would spoil the second time as well.
      if (played !== null && played.closedRefused > 0) await folder.forgetProbe(turn.cell);
      say('it will be played again once, at the end');
    } else if (played !== null) await folder.writeTurn(turn, played);
  }
}

/** Null when it failed, which is told: a night is not given up for one turn. */
async function playOnce(turn: Turn, { folder, around }: Omit<Playing, 'first'>): Promise<PlayedTurn | null> {
  try {
    return await playTurn(turn, await probeOf(turn.cell, { folder, around }), around);
  } catch (error) {
    if (around.signal.aborted) throw error;
    console.error(error);
    return null;
  }
}

async function probeOf(cell: Cell, { folder, around }: Omit<Playing, 'first'>): Promise<Probe> {
  const known = await folder.probe(cell);
  if (known !== null) return known;
  const probe = await playProbe(cell, around);
  await folder.writeProbe(cell, probe);
  return probe;
}

function titleOf({ cell, repeat }: Turn): string {
  const what = cell.kind === 'crowd' ? 'crowds' : 'loads';
  return `${what} on ${cell.broker}, concurrency and prefetch ${settingText(cell.setting)}, ${cell.size} pictures, repeat ${repeat}`;
}

/** How long turns take, against what the design says: the machine's own pace. */
function createTally(grid: Grid) {
  let [took, expected] = [0, 0];
  return {
    took(turn: Turn, ms: number) {
      took += ms;
      expected += expectedMs(grid, turn);
    },
    expectedMs: (turn: Turn) => expectedMs(grid, turn) * (expected === 0 ? 1 : took / expected),
  };
}

function minutes(ms: number): string {
  if (ms < 90_000) return `${Math.max(1, Math.round(ms / 1000))} s`;
  return ms < 120 * 60_000 ? `${Math.round(ms / 60_000)} min` : `${(ms / 3_600_000).toFixed(1)} h`;
}
