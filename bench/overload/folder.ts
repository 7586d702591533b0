/**
 * The folder of one experiment: a file for what it is about, one for each probe and each turn, and the results made of them.
 *
 * A file is written under another name and renamed, so an interrupted experiment leaves whole files alone, and `--resume` takes
 * up where it ended. An experiment that is about something else (seed, grid, machine), or of another commit, is not gone on with.
 */
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { Machine, Tree, Versions } from '../machine.ts';
import type { Calibration } from './calibration.ts';
import { type Cell, cellId, type GridName, probeId, type Turn } from './design.ts';
import type { PlayedTurn, Probe } from './turn.ts';

/** Whatever differs in it makes another experiment. */
export interface About {
  readonly grid: GridName;
  readonly seed: number;
  readonly cores: number;
}

/** What an experiment began with; the results name it, whenever they are written. */
export interface Head extends About {
  readonly startedAt: string;
  readonly machine: Machine;
  readonly versions: Versions;
  readonly tree: Tree;
  /** What the machine did when it began; all later calibrations are compared with it. */
  readonly calibration: Calibration;
}

export interface Folder {
  readonly path: string;
  /** Null: not played yet. */
  probe(cell: Cell): Promise<Probe | null>;
  turn(turn: Turn): Promise<PlayedTurn | null>;
  writeProbe(cell: Cell, probe: Probe): Promise<void>;
  forgetProbe(cell: Cell): Promise<void>;
  writeTurn(turn: Turn, played: PlayedTurn): Promise<void>;
  /** A text beside the cells. */
  writeResult(name: string, text: string): Promise<void>;
}

/** Says in a sentence why the folder cannot be used. */
export class FolderRefusal extends Error {}

const headName = 'experiment.json';

/** Where results go when nobody says: for a new experiment a folder that holds none, so that none is played over; for an old one the last. */
export function usualFolder(bench: string, resume: boolean): string {
  const folderOf = (number: number) => path.join(bench, 'results', number === 1 ? 'overload' : `overload-${number}`);
  let free = 1;
  while (existsSync(path.join(folderOf(free), headName))) free += 1;
  return folderOf(resume ? Math.max(1, free - 1) : free);
}

/**
 * `begin` is asked only when nothing stands there. `tree` is what would play: where it is null, nothing will be played, and the
 * commit that an experiment began with does not matter. Rejects `FolderRefusal`.
 */
export async function openFolder(
  dir: string,
  about: About,
  { resume, tree, begin }: { readonly resume: boolean; readonly tree: Tree | null; begin(): Promise<Head> },
): Promise<{ readonly folder: Folder; readonly head: Head }> {
  const cells = path.join(dir, 'cells');
  const headFile = path.join(dir, headName);
  const known = await readJson<Head>(headFile);
  if (known !== null && !resume) {
    throw new FolderRefusal(`${dir} holds an experiment: go on with it by --resume, or name another folder by --out`);
  }
  if (known === null && (await readdir(cells).catch(() => [])).length > 0) {
    throw new FolderRefusal(
      `${dir} holds cells of an experiment that nothing is known about: name another folder by --out`,
    );
  }
  if (known === null && resume) throw new FolderRefusal(`${dir} holds no experiment`);
  for (const name of ['grid', 'seed', 'cores'] as const) {
    if (known !== null && known[name] !== about[name]) {
      throw new FolderRefusal(
        `${dir} holds an experiment with ${name} ${known[name]}, and ${about[name]} is asked for`,
      );
    }
  }
  if (known !== null && known.tree === undefined) {
    throw new FolderRefusal(
      `${dir} holds an experiment that does not tell what played it: name another folder by --out`,
    );
  }
  if (known !== null && tree !== null && nameOf(known.tree) !== nameOf(tree)) {
    throw new FolderRefusal(
      `${dir} holds an experiment of ${nameOf(known.tree)}, and this is ${nameOf(tree)}: check that one out, or name another folder by --out`,
    );
  }
  await mkdir(cells, { recursive: true });
  const head = known ?? (await begin());
  if (known === null) await writeWhole(headFile, json(head));
  const probeFile = (cell: Cell) => path.join(cells, `${probeId(cell)}.probe.json`);
  const turnFile = ({ cell, repeat }: Turn) => path.join(cells, `${cellId(cell)}.${repeat}.json`);
  const folder: Folder = {
    path: dir,
    probe: (cell) => readJson<Probe>(probeFile(cell)),
    turn: (turn) => readJson<PlayedTurn>(turnFile(turn)),
    writeProbe: (cell, probe) => writeWhole(probeFile(cell), json(probe)),
    forgetProbe: (cell) => rm(probeFile(cell), { force: true }),
    writeTurn: (turn, played) => writeWhole(turnFile(turn), json(played)),
    writeResult: (name, text) => writeWhole(path.join(dir, name), text),
  };
  return { folder, head };
}

/** What a reader calls the sources that played. */
export function nameOf({ commit, clean }: Tree): string {
  return commit === null ? 'no commit' : `commit ${commit}${clean ? '' : ', with changes that are not in it'}`;
}

const json = (value: unknown): string => `${JSON.stringify(value, null, 1)}\n`;

async function writeWhole(file: string, text: string): Promise<void> {
  const making = `${file}.making`;
  await writeFile(making, text);
  await rename(making, file);
}

async function readJson<T>(file: string): Promise<T | null> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as T;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}
