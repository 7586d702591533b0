/** The charts of the benchmarks: what a reader needs is there, lies where it should, and nothing is drawn from figures that are none. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type BarChart, barChart, type LineChart, lineChart } from '../../bench/chart.ts';
import { numberText, scaleOf } from '../../bench/chart-scale.ts';

const lines: LineChart = {
  title: 'The wait grows with the load',
  subtitle: 'Medians of three',
  x: { label: 'offered load [times]', kind: 'log', ticks: [0.5, 1, 10] },
  y: { label: 'wait [ms]' },
  panels: ['small', 'large'].map((title) => ({
    title,
    lines: [
      { name: 'one', points: [0.5, 1, 10].map((x) => ({ x, y: x * 10, low: x * 9, high: x * 12 })) },
      { name: 'two', points: [0.5, 1, 10].map((x) => ({ x, y: x === 1 ? null : x })) },
    ],
    marks: [{ axis: 'y', at: 80, label: 'limit' }],
  })),
};

const bars: BarChart = {
  title: 'Ours beside theirs',
  value: { label: 'ratio' },
  groups: [
    { name: 'rows & more', bars: [{ name: 'ours', value: 0.5, low: 0.4, high: 0.6 }], mark: { at: 1, label: 'goal' } },
    { name: 'others', bars: [{ name: 'ours', value: null }] },
  ],
};

const textsOf = (svg: string) => [...svg.matchAll(/<text[^>]*>([^<]*)<\/text>/g)].map(([, text]) => text);
const widthsOf = (svg: string) => [...svg.matchAll(/<rect class="bar[^"]*" x="\d[\d.]*" y="[\d.]+" width="([\d.]+)"/g)];

describe('a chart of lines', () => {
  test('says its title, its axes with units, its panels and marks, and each line once', () => {
    const texts = textsOf(lineChart(lines));
    for (const text of ['The wait grows with the load', 'Medians of three', 'small', 'large'])
      assert.ok(texts.includes(text), text);
    for (const text of ['offered load [times]', 'wait [ms]', 'limit'])
      assert.equal(texts.filter((each) => each === text).length, 2);
    for (const name of ['one', 'two']) assert.equal(texts.filter((each) => each === name).length, 1);
  });

  test('breaks a line where a point has no value, and draws a band where repeats differ', () => {
    const svg = lineChart(lines);
    // Of each panel: one whole line, and one in two parts; two samples in the legend.
    assert.equal([...svg.matchAll(/<polyline/g)].length, 2 * 3 + 2);
    assert.equal([...svg.matchAll(/<polygon class="band/g)].length, 2);
  });

  test('puts a larger value higher and a larger load further to the right', () => {
    const [, points = ''] =
      /<polyline class="line s0" points="([^"]+)"\/>(?:<circle)/.exec(lineChart(lines).split('small')[1] ?? '') ?? [];
    const places = points.split(' ').map((each) => each.split(',').map(Number));
    assert.equal(places.length, 3);
    assert.ok((places[2]?.[0] ?? 0) > (places[0]?.[0] ?? 0));
    assert.ok((places[2]?.[1] ?? 0) < (places[0]?.[1] ?? 0));
  });

  test('refuses a value that is no number, and nothing at all', () => {
    const with_ = (y: number) => ({
      ...lines,
      panels: [{ title: '', lines: [{ name: 'one', points: [{ x: 1, y }] }] }],
    });
    assert.throws(() => lineChart(with_(Number.NaN)), /finite value on an axis, received NaN/);
    assert.throws(() => lineChart({ ...lines, panels: [{ title: '', lines: [] }], x: { label: '' } }), /received none/);
  });

  test('follows the preference of the reader for light or dark', () => {
    assert.match(lineChart(lines), /@media \(prefers-color-scheme:dark\)/);
  });
});

describe('a chart of bars', () => {
  test('has a bar as long as its value, its number, and the goal of its group', () => {
    const svg = barChart(bars);
    // The legend's sample, and the one that was measured.
    const [, bar] = widthsOf(svg);
    const whole = widthsOf(barChart({ ...bars, groups: [{ name: 'rows', bars: [{ name: 'ours', value: 1 }] }] }))[1];
    assert.ok(Number(bar?.[1]) > 0 && Number(bar?.[1]) < Number(whole?.[1]));
    const texts = textsOf(svg);
    for (const text of ['0.5', 'goal', 'ratio', 'Ours beside theirs', 'others']) assert.ok(texts.includes(text), text);
  });

  test('says that a bar was not measured instead of drawing none', () => {
    assert.ok(textsOf(barChart(bars)).includes('not measured'));
  });

  test('escapes what a name may hold', () => {
    assert.ok(textsOf(barChart(bars)).includes('rows &amp; more'));
  });
});

describe('an axis', () => {
  test('begins at nothing, ends above the largest value, and has round numbers', () => {
    const scale = scaleOf([3, 87], { kind: 'linear' });
    assert.deepEqual([scale.min, scale.max], [0, 100]);
    assert.deepEqual(scale.ticks, [0, 20, 40, 60, 80, 100]);
    assert.equal(scale.at(50), 0.5);
  });

  test('holds what is below nothing', () => {
    const scale = scaleOf([-3, 5], { kind: 'linear' });
    assert.ok(scale.min <= -3 && scale.at(-3) >= 0);
  });

  test('has the same distance for the same factor when it is logarithmic', () => {
    const scale = scaleOf([0.3, 800], { kind: 'log' });
    assert.deepEqual([scale.min, scale.max], [0.2, 1000]);
    assert.ok(Math.abs(scale.at(20) - scale.at(2) - (scale.at(200) - scale.at(20))) < 1e-9);
    assert.deepEqual(scale.ticks, [1, 10, 100, 1000]);
  });

  test('refuses nothing and less on a logarithmic axis', () => {
    assert.throws(() => scaleOf([0, 1], { kind: 'log' }), /above 0 on a log axis, received 0/);
  });

  test('gives a single value room', () => {
    for (const kind of ['linear', 'log'] as const) {
      const scale = scaleOf([7], { kind });
      assert.ok(scale.max > scale.min && scale.at(7) >= 0 && scale.at(7) <= 1, kind);
    }
    assert.ok(Number.isFinite(scaleOf([0, 0], { kind: 'linear' }).at(0)));
  });

  test('shows three digits that matter', () => {
    assert.deepEqual([0, 0.05, 1.234, 87.66, 1234.5].map(numberText), ['0', '0.05', '1.23', '87.7', '1,235']);
  });
});
