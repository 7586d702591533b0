/**
 * Rounds: who runs when, which rounds count, and which ratio comes out of them.
 *
 * The machine changes its speed while we measure, so sides are compared within a round only, and every reference runs twice in
 * it, before and after the others. Where its two figures are too far apart, the machine was not the same throughout, and the round
 * says nothing about that ratio. What is left is told by its median; where too little is left, nothing is told.
 */
import type { Bound, Figures, Goal, Measured, Ratio, Side } from './row.ts';
import { median } from './usage.ts';

/** One run of one side. */
export interface Run {
  readonly side: string;
  readonly figures: Figures;
  readonly wallMs: number;
}

/** In the order of play. */
export type Round = readonly Run[];

/** `told`: nothing is asked of it. `not judged`: too little work was done to say (`--quick`). */
export type Verdict = 'met' | 'missed' | 'too noisy' | 'told' | 'not judged';

export interface Judged {
  readonly name: string;
  readonly goal: Goal | null;
  /** Missing it fails the command. */
  readonly gate: boolean;
  readonly verdict: Verdict;
  readonly played: number;
  readonly kept: number;
  /** Ratio, or figure of a bound; null where nothing is told. */
  readonly value: number | null;
  /** Least and most of the rounds that were kept. */
  readonly low: number | null;
  readonly high: number | null;
}

export interface JudgedRatio extends Judged {
  readonly kind: Ratio['kind'];
  readonly ours: string;
  readonly reference: string;
  readonly figure: string;
  /** Medians of the kept rounds, in the figure's own unit. */
  readonly oursValue: number | null;
  readonly referenceValue: number | null;
  /** Round by round. `spread`: how far the reference was from itself, 0.1 for 10 %; null where that cannot be said. */
  readonly rounds: readonly { readonly ratio: number | null; readonly spread: number | null; readonly kept: boolean }[];
}

export interface JudgedBound extends Judged {
  readonly side: string;
  readonly figure: string;
  readonly unit: Bound['unit'];
}

/** A round is dropped where the larger of the two figures of its reference is more than this times the other, less one. */
export const spreadMax = 0.15;
/** And at least half of those that were played. */
export const keptMin = 3;

export interface Progress {
  /** From 0. */
  readonly round: number;
  /** Of the round, from 0. */
  readonly run: number;
  readonly runs: number;
  readonly side: string;
  /** Null before every side ran once. */
  readonly leftMs: number | null;
}

/** Plays all rounds. Rejects with the first failure of a side: without its figure there is nothing to compare. */
export async function playRounds(
  measured: Measured,
  { rounds, onRun }: { rounds: number; onRun(progress: Progress): void },
): Promise<readonly Round[]> {
  check(measured);
  const order = orderOf(measured);
  const played: Run[][] = [];
  for (let round = 0; round < rounds; round += 1) {
    const runs: Run[] = [];
    played.push(runs);
    for (const [run, side] of order.entries()) {
      const left = [...order.slice(run), ...Array.from({ length: rounds - round - 1 }, () => order).flat()];
      onRun({ round, run, runs: order.length, side: side.name, leftMs: leftMsOf(left, played.flat()) });
      const startedAt = performance.now();
      const figures = await side.run();
      runs.push({ side: side.name, figures, wallMs: Math.round(performance.now() - startedAt) });
    }
  }
  return played;
}

/** References, all others, references again the other way round: every reference lies around what it is compared with. */
export function orderOf({ sides, ratios }: Pick<Measured, 'sides' | 'ratios'>): readonly Side[] {
  const isReference = ({ name }: Side) => ratios.some(({ reference }) => reference === name);
  const references = sides.filter(isReference);
  return [...references, ...sides.filter((side) => !isReference(side)), ...references.toReversed()];
}

function leftMsOf(left: readonly Side[], played: readonly Run[]): number | null {
  let sum = 0;
  for (const { name } of left) {
    const own = played.filter(({ side }) => side === name).map(({ wallMs }) => wallMs);
    if (own.length === 0) return null;
    sum += median(own);
  }
  return sum;
}

/** Throws where a row names what it does not have: found before an hour is spent on it. */
function check({ sides, ratios, bounds }: Measured): void {
  const names = new Set(sides.map(({ name }) => name));
  if (names.size !== sides.length) throw new Error(`Expected sides of different names, received ${[...names]}`);
  for (const kind of [ratios, bounds]) {
    const titles = kind.map(({ name }) => name);
    const twice = titles.find((title, at) => titles.indexOf(title) !== at);
    if (twice !== undefined) throw new Error(`Expected names that are given once, received "${twice}" twice`);
  }
  if (ratios.length + bounds.length === 0) throw new Error('Expected a ratio or a bound, received none');
  const asked = [...ratios.flatMap(({ ours, reference }) => [ours, reference]), ...bounds.map(({ side }) => side)];
  const unknown = asked.find((name) => !names.has(name));
  if (unknown !== undefined) throw new Error(`Expected one of the sides ${[...names].join(', ')}, received ${unknown}`);
}

/* ------------------------------------------------------------------ judging */

/** The median of the ratios of those rounds in which the reference agreed with itself. Throws where a side lacks the figure. */
export function judgeRatio(ratio: Ratio, played: readonly Round[], { quick }: { quick: boolean }): JudgedRatio {
  const { name, ours, reference, figure, referenceFigure = figure, goal = null, kind } = ratio;
  const compared = played.map((round) => {
    const own = mean(figuresOf(round, ours, figure));
    const theirs = figuresOf(round, reference, referenceFigure);
    const spread = spreadOf(theirs);
    const quotient = own / mean(theirs);
    const kept = spread !== null && spread <= spreadMax && Number.isFinite(quotient);
    return { own, theirs: mean(theirs), ratio: Number.isFinite(quotient) ? quotient : null, spread, kept };
  });
  const kept = compared.filter((round) => round.kept);
  const ratios = kept.flatMap((round) => round.ratio ?? []);
  const enough = quick ? kept.length > 0 : isEnough(kept.length, played.length);
  const value = enough ? median(ratios) : null;
  return {
    name,
    kind,
    ours,
    reference,
    figure,
    goal,
    gate: kind === 'cpu' && goal !== null,
    verdict: verdictOf(value, goal, quick),
    played: played.length,
    kept: kept.length,
    value,
    ...rangeOf(enough ? ratios : []),
    oursValue: enough ? median(kept.map(({ own }) => own)) : null,
    referenceValue: enough ? median(kept.map(({ theirs }) => theirs)) : null,
    rounds: compared.map(({ ratio: quotient, spread, kept: isKept }) => ({ ratio: quotient, spread, kept: isKept })),
  };
}

/**
 * Times and shares are told by their median. What must hold every time, a count of lost work or a ceiling of memory, is told by
 * the worst round: a median would hide the one in which it did not hold.
 */
export function judgeBound(bound: Bound, played: readonly Round[], { quick }: { quick: boolean }): JudgedBound {
  const { name, side, figure, unit, goal = null } = bound;
  const values = played.flatMap((round) => figuresOf(round, side, figure));
  const everyTime = goal !== null && (unit === 'count' || unit === 'MiB');
  const value = everyTime ? worst(values, goal) : median(values);
  return {
    name,
    side,
    figure,
    unit,
    goal,
    // Wall-clock time is told, on a machine that others may use as well.
    gate: goal !== null && unit !== 'ms',
    verdict: verdictOf(value, goal, quick),
    played: played.length,
    kept: played.length,
    value,
    ...rangeOf(values),
  };
}

export function isMet(value: number, goal: Goal): boolean {
  return 'atLeast' in goal ? value >= goal.atLeast : value <= goal.atMost;
}

function verdictOf(value: number | null, goal: Goal | null, quick: boolean): Verdict {
  if (value === null) return 'too noisy';
  if (goal === null) return 'told';
  if (quick) return 'not judged';
  return isMet(value, goal) ? 'met' : 'missed';
}

function isEnough(kept: number, played: number): boolean {
  return kept >= keptMin && kept * 2 >= played;
}

function worst(values: readonly number[], goal: Goal): number {
  return 'atLeast' in goal ? Math.min(...values) : Math.max(...values);
}

function rangeOf(values: readonly number[]): { low: number | null; high: number | null } {
  return values.length === 0 ? { low: null, high: null } : { low: Math.min(...values), high: Math.max(...values) };
}

/** Of every run of the side in this round. */
function figuresOf(round: Round, side: string, figure: string): number[] {
  const values = round.filter((run) => run.side === side).map(({ figures }) => figures[figure]);
  if (values.length === 0) throw new Error(`Expected a run of ${side}, found none`);
  return values.map((value) => {
    if (typeof value === 'number' && Number.isFinite(value)) return value;
    throw new Error(`Expected a number for ${figure} of ${side}, received ${value}`);
  });
}

/** 0 where both are the same; null where one of them is 0 or less, which has no size to compare. */
function spreadOf(values: readonly number[]): number | null {
  const least = Math.min(...values);
  return least > 0 ? Math.max(...values) / least - 1 : null;
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
