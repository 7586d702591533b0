/** The design of the experiment with overload: which cells are played, in which order, and when uploads arrive. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  type Cell,
  cellId,
  gridOf,
  poisson,
  probeId,
  seedOf,
  settingsFor,
  settingText,
  sizes,
  turnsOf,
} from '../../bench/overload/design.ts';
import { seeded } from '../support/pictures.ts';

const loadsOf = (name: 'fractional' | 'full') => gridOf(name, 2).cells.filter(({ kind }) => kind === 'loads');
const counts = (cells: readonly Cell[], by: (cell: Cell) => string) => Map.groupBy(cells, by);

describe('the fraction of the grid', () => {
  test('meets every setting with every size, and every broker with every setting and every size', () => {
    const cells = loadsOf('fractional');
    assert.equal(cells.length, 12);
    assert.equal(counts(cells, ({ setting, size }) => `${settingText(setting)} ${size}`).size, 4 * sizes.length);
    assert.equal(counts(cells, ({ setting, broker }) => `${settingText(setting)} ${broker}`).size, 4 * 2);
    assert.equal(counts(cells, ({ size, broker }) => `${size} ${broker}`).size, sizes.length * 2);
  });

  test('has twice as many renders, and deliveries held ahead, beside neither on the same broker at every size', () => {
    const [, all, twice, ahead] = settingsFor(2);
    const places = (setting: typeof all) =>
      loadsOf('fractional')
        .filter((cell) => settingText(cell.setting) === settingText(setting))
        .map(({ broker, size }) => `${broker} ${size}`)
        .sort();
    assert.deepEqual(places(ahead), places(all));
    assert.deepEqual(places(twice), places(all));
  });

  test('is offered from half to ten times the capacity, three times over', () => {
    const { loads, repeats } = gridOf('fractional', 2);
    assert.deepEqual([loads[0], loads.at(-1)], [0.5, 10]);
    assert.ok(repeats >= 3);
  });
});

describe('the whole grid', () => {
  test('has every combination once', () => {
    const cells = loadsOf('full');
    assert.equal(cells.length, 4 * sizes.length * 2);
    assert.equal(new Set(cells.map(cellId)).size, cells.length);
  });
});

describe('the order of turns', () => {
  test('plays each cell once before any of them again', () => {
    const grid = gridOf('fractional', 2);
    const turns = turnsOf(grid, 5);
    for (let block = 0; block < grid.repeats; block += 1) {
      const played = turns.slice(block * grid.cells.length, (block + 1) * grid.cells.length);
      assert.equal(new Set(played.map(({ cell }) => cellId(cell))).size, grid.cells.length);
      assert.ok(played.every(({ repeat }) => repeat === block + 1));
    }
  });

  test('is the same for the same seed and another for another', () => {
    const grid = gridOf('fractional', 2);
    const names = (seed: number) => turnsOf(grid, seed).map(({ cell }) => cellId(cell));
    assert.deepEqual(names(5), names(5));
    assert.notDeepEqual(names(5), names(6));
  });

  test('gives every turn numbers of its own', () => {
    const turns = turnsOf(gridOf('full', 2), 1);
    assert.equal(new Set(turns.map((turn) => seedOf(1, turn))).size, turns.length);
  });

  test('probes a crowd’s capacity together with that of the loads', () => {
    const [loads, crowd] = gridOf('quick', 2).cells;
    assert.ok(loads && crowd && loads.kind !== crowd.kind);
    assert.equal(probeId(loads), probeId(crowd));
    assert.notEqual(cellId(loads), cellId(crowd));
  });
});

describe('arrivals', () => {
  test('are as many as the rate says, and as irregular as chance makes them', () => {
    const moments = poisson(100, 60_000, seeded(3));
    const gaps = moments.slice(1).map((at, index) => at - (moments[index] ?? 0));
    const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
    const spread = Math.sqrt(gaps.reduce((sum, gap) => sum + (gap - mean) ** 2, 0) / gaps.length);
    assert.ok(Math.abs(moments.length - 6000) < 4 * Math.sqrt(6000), `${moments.length} arrivals`);
    assert.ok(Math.abs(spread / mean - 1) < 0.1, `gaps deviate by ${spread / mean} of their mean`);
    assert.ok(gaps.every((gap) => gap >= 0) && moments.every((at) => at >= 0 && at < 60_000));
  });

  test('come again at the same moments from the same seed', () => {
    assert.deepEqual(poisson(10, 5000, seeded(1)), poisson(10, 5000, seeded(1)));
  });
});
