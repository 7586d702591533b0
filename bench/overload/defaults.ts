/** The defaults that the figures support, each with the figures that say so. */

import { median } from '../usage.ts';
import { backlogSeconds, type Setting, settingsFor, settingText, sizes } from './design.ts';
import { type CellSummary, figureOf, pairsOf } from './summary.ts';

export interface Choice {
  /** As `docs/configuration.md` names it. */
  readonly setting: string;
  readonly value: string;
  readonly why: string;
}

/** What is this much better is better; less is not worth its price. */
const worth = 0.05;
/** How long somebody who was told 202 may have to wait. */
const waitMinutes = 15;

export function choicesOf(cells: readonly CellSummary[], cores: number): readonly Choice[] {
  return [concurrencyOf(cells, cores), prefetchOf(cells, cores), backlogOf(cells, cores)].flatMap(
    (choice) => choice ?? [],
  );
}

/** Capacity of one setting divided by that of another, the median over what can be compared; null: nothing can. */
function gain(cells: readonly CellSummary[], one: Setting, other: Setting): number | null {
  return middle(cells, one, other, (cell) => figureOf(cell.figures, 'capacityPerSecond'));
}

function middle(
  cells: readonly CellSummary[],
  one: Setting,
  other: Setting,
  figure: (cell: CellSummary) => number | null,
): number | null {
  const ratios = pairsOf(cells, one, other).flatMap((pair) => {
    const [ours, theirs] = [figure(pair.one), figure(pair.other)];
    return ours === null || theirs === null || theirs === 0 ? [] : [ours / theirs];
  });
  return ratios.length === 0 ? null : median(ratios);
}

const waitAt = (load: number) => (cell: CellSummary) =>
  figureOf(cell.loads.find((each) => each.load === load)?.figures, 'taken.readyMs.p95');

const memory = (cell: CellSummary) => figureOf(cell.loads.at(-1)?.figures, 'memory.childrenMiB');

/** The least that no larger one beats by more than it is worth. */
function concurrencyOf(cells: readonly CellSummary[], cores: number): Choice | null {
  const [one, all, twice] = settingsFor(cores);
  const [more, most] = [gain(cells, all, one), gain(cells, twice, all)];
  if (more === null || most === null) return null;
  const chosen = most > 1 + worth ? twice : more > 1 + worth ? all : one;
  const value = chosen === all ? `0 (one a core, here ${all.concurrency})` : String(chosen.concurrency);
  const cost = middle(cells, twice, all, memory);
  const wait = middle(cells, twice, all, waitAt(0.5));
  const why = [
    `${all.concurrency} renders at once have ${times(more)} the capacity of one, ${twice.concurrency} have ${times(most)} that of ${all.concurrency}`,
    cost === null ? null : `${times(cost)} the memory of its children`,
    wait === null ? null : `${times(wait)} its p95 of the time to ready at half load`,
  ];
  return { setting: 'RENDER_CONCURRENCY', value, why: why.filter((each) => each !== null).join(', with ') };
}

function prefetchOf(cells: readonly CellSummary[], cores: number): Choice | null {
  const [, all, , ahead] = settingsFor(cores);
  const more = gain(cells, ahead, all);
  if (more === null) return null;
  const crowd = (setting: Setting) =>
    cells.find(
      ({ cell }) =>
        cell.kind === 'crowd' && cell.broker === 'jetstream' && settingText(cell.setting) === settingText(setting),
    );
  const waited = [all, ahead].map((setting) => figureOf(crowd(setting)?.figures, 'crowd.bystander.readyMs.p95'));
  const [without, held] = waited;
  const fairness =
    typeof without === 'number' && typeof held === 'number'
      ? `; behind a flood another user waits ${seconds(held)} at the p95 with it and ${seconds(without)} without`
      : '';
  return {
    setting: 'PREFETCH',
    value: String(more > 1 + worth ? ahead.prefetch : 0),
    why: `${ahead.prefetch} deliveries held ahead have ${times(more)} the capacity of none${fairness}`,
  };
}

/** A bound on jobs is a bound on waiting only together with a rate. */
function backlogOf(cells: readonly CellSummary[], cores: number): Choice | null {
  const [, all] = settingsFor(cores);
  const rates = sizes.flatMap(({ name }) => {
    const found = cells.flatMap(({ cell, figures }) =>
      cell.size === name && settingText(cell.setting) === settingText(all)
        ? (figureOf(figures, 'capacityPerSecond') ?? [])
        : [],
    );
    return found.length === 0 ? [] : [{ name, perSecond: median(found) }];
  });
  const middleRate = rates.find(({ name }) => name === 'medium') ?? rates[0];
  if (!middleRate) return null;
  const bound = Number((middleRate.perSecond * waitMinutes * 60).toPrecision(2));
  const waits = rates.map(({ name, perSecond }) => `${(bound / perSecond / 60).toFixed(0)} min for ${name} pictures`);
  return {
    setting: 'MAX_BACKLOG',
    value: String(bound),
    why: `at most ${waitMinutes} minutes of ${middleRate.name} pictures for one worker like this (${waits.join(', ')}); the cells had ${backlogSeconds} s, and waited as long as that says`,
  };
}

const times = (ratio: number): string => `${ratio.toFixed(2)} times`;
const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;
