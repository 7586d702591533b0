/**
 * What the repeats of each cell say together: the median of every figure with the least and the most, or a refusal to say anything
 * where too few repeats were quiet.
 */
import { median } from '../usage.ts';
import type { Calibration } from './calibration.ts';
import { type Cell, cellId, type Setting, settingText } from './design.ts';
import { rounded } from './figures.ts';
import { doubtsAbout, type PlayedTurn } from './turn.ts';

export interface Spread {
  readonly median: number;
  readonly least: number;
  readonly most: number;
}

/** By path: `taken.acceptMs.p95`, `shares.api`, `kept.lost` (how many). A figure that no repeat has is not there. */
export type Figures = Readonly<Record<string, Spread>>;

export interface LoadSummary {
  readonly load: number;
  readonly figures: Figures;
}

export interface CellSummary {
  readonly id: string;
  readonly cell: Cell;
  /** Repeats that count. */
  readonly repeats: number;
  /** Why there are no figures; empty: there are. */
  readonly refused: readonly string[];
  readonly backlogMax: number;
  /** `capacityPerSecond`, `closedReadyMs.p50`, and `crowd.…`. */
  readonly figures: Figures;
  readonly loads: readonly LoadSummary[];
}

/** Fewer quiet ones than this (or than were asked for) give no figures. */
const repeatsLeast = 3;

export function summarise(
  turns: readonly PlayedTurn[],
  { first, repeats }: { readonly first: Calibration; readonly repeats: number },
): readonly CellSummary[] {
  const byCell = Map.groupBy(turns, ({ cell }) => cellId(cell));
  return [...byCell]
    .sort(([one], [other]) => one.localeCompare(other))
    .map(([id, all]) => {
      const quiet = all.filter((turn) => doubtsAbout(turn, first).length === 0);
      const least = Math.min(repeatsLeast, repeats);
      const cell = (all[0] as PlayedTurn).cell;
      const backlogMax = (all[0] as PlayedTurn).backlogMax;
      if (quiet.length < least) {
        const why = all.flatMap((turn) => doubtsAbout(turn, first).map((each) => `repeat ${turn.repeat}: ${each}`));
        const few = `${quiet.length} of ${repeats} repeats were played and quiet, ${least} are needed`;
        return { id, cell, repeats: quiet.length, refused: [few, ...why], backlogMax, figures: {}, loads: [] };
      }
      const loads = [...new Set(quiet.flatMap((turn) => turn.loads.map(({ load }) => load)))].sort((a, b) => a - b);
      return {
        id,
        cell,
        repeats: quiet.length,
        refused: [],
        backlogMax,
        figures: spreadsOf(
          quiet.map(({ capacityPerSecond, closedReadyMs, crowd }) => flat({ capacityPerSecond, closedReadyMs, crowd })),
        ),
        loads: loads.map((load) => ({
          load,
          figures: spreadsOf(
            quiet.flatMap((turn) => turn.loads.filter((each) => each.load === load).map((each) => flat(each))),
          ),
        })),
      };
    });
}

/** All numbers of a record by their path. Of a list its length counts; what is null is left out. */
export function flat(record: object, before = ''): Readonly<Record<string, number>> {
  const all: Record<string, number> = {};
  for (const [name, value] of Object.entries(record) as [string, unknown][]) {
    const path = `${before}${name}`;
    if (typeof value === 'number') all[path] = value;
    else if (Array.isArray(value)) all[path] = value.length;
    else if (typeof value === 'object' && value !== null) Object.assign(all, flat(value, `${path}.`));
  }
  return all;
}

function spreadsOf(records: readonly Readonly<Record<string, number>>[]): Figures {
  const names = [...new Set(records.flatMap((record) => Object.keys(record)))];
  return Object.fromEntries(
    names.map((name) => {
      const values = records.flatMap((record) => record[name] ?? []);
      return [name, { median: rounded(median(values)), least: Math.min(...values), most: Math.max(...values) }];
    }),
  );
}

/* ------------------------------------------------------------------------- questions */

export const figureOf = (figures: Figures | undefined, name: string): number | null => figures?.[name]?.median ?? null;

export const loadOf = (cell: CellSummary, load: number): Figures | undefined =>
  cell.loads.find((each) => each.load === load)?.figures;

export interface Pair {
  readonly one: CellSummary;
  readonly other: CellSummary;
  /** On the same broker: then nothing but the setting differs. */
  readonly alike: boolean;
}

/**
 * Cells of `one` beside those of `other` with the same size and broker. A fraction of the grid may hold none; then those of
 * the same size, whatever their broker.
 */
export function pairsOf(cells: readonly CellSummary[], one: Setting, other: Setting): readonly Pair[] {
  const of = (setting: Setting) =>
    cells.filter(({ cell, loads }) => loads.length > 0 && settingText(cell.setting) === settingText(setting));
  const all = of(one).flatMap((each) =>
    of(other)
      .filter(({ cell }) => cell.size === each.cell.size)
      .map((beside) => ({ one: each, other: beside, alike: beside.cell.broker === each.cell.broker })),
  );
  const alike = all.filter((pair) => pair.alike);
  return alike.length > 0 ? alike : all;
}
