/** What is kept of a run and told of it: files, tables, sentences, charts. */
import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { chartOf, keep, markdown, type RowResult, readResults, shortfalls } from '../../bench/results.ts';
import { judgeBound, judgeRatio, type Round } from '../../bench/rounds.ts';
import type { Bound, Ratio } from '../../bench/row.ts';

const ratio: Ratio = {
  name: 'CPU of one',
  ours: 'Skrepka',
  reference: 'bare | loop',
  figure: 'cpuMs',
  goal: { atMost: 1.25 },
  kind: 'cpu',
};
const bound: Bound = { name: 'peak', side: 'Skrepka', figure: 'peakMiB', unit: 'MiB', goal: { atMost: 40 } };

const round = (own: number, after = 100): Round => [
  { side: 'bare | loop', figures: { cpuMs: 100 }, wallMs: 5 },
  { side: 'Skrepka', figures: { cpuMs: own, peakMiB: own / 4 }, wallMs: 5 },
  { side: 'bare | loop', figures: { cpuMs: after }, wallMs: 5 },
];

interface Change extends Partial<RowResult> {
  readonly ratioOf?: Partial<Ratio>;
}

function result(rounds: readonly Round[], { ratioOf = {}, ...change }: Change = {}): RowResult {
  const quick = change.quick ?? false;
  return {
    row: 'accept',
    title: 'Accepting an upload',
    about: 'One after the other.',
    quick,
    startedAt: '2026-11-20T10:00:00.123Z',
    seconds: 90,
    tree: { commit: '0123456789abcdef', clean: true },
    machine: { cpu: 'A CPU', cores: 2, memoryMiB: 4096, system: 'Debian', kernel: '6.1', fileSystem: 'ext4' },
    load: { before: 0.1, during: [1.5, 2] },
    versions: { node: 'v24', postgres: '18.4', engines: { 'nats-server': '2.9' }, packages: { sharp: '0.35' } },
    ratios: [judgeRatio({ ...ratio, ...ratioOf }, rounds, { quick })],
    bounds: [judgeBound(bound, rounds, { quick })],
    rounds,
    ...change,
  };
}

const steady = (own: number) => Array.from({ length: 3 }, () => round(own));
const noisy = [round(110), round(110, 200), round(110, 200)];

async function folder(t: TestContext): Promise<string> {
  const made = await mkdtemp(path.join(tmpdir(), 'skrepka-results-'));
  t.after(() => rm(made, { recursive: true, force: true }));
  return path.join(made, 'out');
}

describe('the folder of results', () => {
  test('keeps the raw figures of every round, the machine, the versions and the commit', async (t) => {
    const out = await folder(t);
    const given = result(steady(120));
    await keep(out, given);
    const { rows } = JSON.parse(await readFile(path.join(out, 'results.json'), 'utf8')) as { rows: RowResult[] };
    assert.deepEqual(rows, [given]);
    assert.equal(rows[0]?.rounds[2]?.[1]?.figures.cpuMs, 120);
  });

  test('keeps the rows that were not run this time, and replaces the one that was', async (t) => {
    const out = await folder(t);
    await keep(out, result(steady(120)));
    await keep(out, result(steady(100), { row: 'render' }));
    await keep(out, result(steady(110)));
    const table = await readFile(path.join(out, 'results.md'), 'utf8');
    assert.deepEqual(
      (await readResults(out)).map(({ row, ratios }) => [row, ratios[0]?.value]),
      [
        ['accept', 1.1],
        ['render', 1],
      ],
    );
    assert.match(table, /\| accept \|.*\*\*1\.1\*\*/);
    assert.match(table, /\| render \|.*\*\*1\*\*/);
    assert.deepEqual((await readdir(out)).sort(), ['accept.svg', 'render.svg', 'results.json', 'results.md', 'rows']);
  });

  test('has no chart of a row any more that has nothing to draw', async (t) => {
    const out = await folder(t);
    await keep(out, result(steady(120)));
    await keep(out, result(noisy, { bounds: [] }));
    assert.deepEqual((await readdir(out)).sort(), ['results.json', 'results.md', 'rows']);
  });

  test('that is not there yet holds no rows', async (t) => {
    assert.deepEqual(await readResults(await folder(t)), []);
  });
});

describe('the table', () => {
  test('has row, ratio, both sides, median with its range, goal, verdict and rounds, in one line', () => {
    const text = markdown([result([round(110), round(120), round(130)])]);
    const line =
      '| accept | CPU of one | cpu | Skrepka: 120 | bare \\| loop: 100 | **1.2** (1.1 to 1.3) | ≤ 1.25 | yes | 3 of 3 |';
    assert.ok(text.includes(line), text);
    assert.ok(text.includes('| accept | peak | **32.5 MiB** (27.5 to 32.5) | ≤ 40 MiB | yes |'), text);
  });

  test('says too noisy, and no figure, where too few rounds are left', () => {
    const text = markdown([result(noisy)]);
    const line = '| accept | CPU of one | cpu | Skrepka | bare \\| loop | too noisy | ≤ 1.25 | too noisy | 1 of 3 |';
    assert.ok(text.includes(line), text);
  });

  test('tells a missed gate from a missed goal of wall-clock time', () => {
    assert.match(markdown([result(steady(130))]), /\| \*\*no\*\* \| 3 of 3 \|/);
    assert.match(markdown([result(steady(130), { ratioOf: { kind: 'wall' } })]), /\| no \(told\) \| 3 of 3 \|/);
  });

  test('says of a quick row that it is not judged', () => {
    const text = markdown([result([round(900)], { quick: true })]);
    assert.match(text, /accept \*\(quick\)\*.*\*\*9\*\*.*not judged/);
    assert.match(text, /did too little work to be judged/);
  });

  test('says where and when each row was measured, and whether the tree was clean', () => {
    const text = markdown([
      result(steady(1)),
      result(steady(1), { row: 'b', tree: { commit: 'f'.repeat(40), clean: false } }),
    ]);
    assert.ok(
      text.includes(
        '| accept | 2026-11-20T10:00:00Z | 1.5 min | 0123456789 | 2 × A CPU, 4 GiB, ext4, Debian, Linux 6.1 | 0.1; 2 at most | v24 | 18.4 | nats-server 2.9 |',
      ),
      text,
    );
    assert.ok(text.includes('| ffffffffff with changes |'), text);
  });
});

describe('what fails the command', () => {
  test('is a sentence with the row, the figure and the goal for each gate that is missed', () => {
    assert.deepEqual(shortfalls(result(steady(170))), [
      'accept: CPU of one is 1.7, asked is ≤ 1.25.',
      'accept: peak is 42.5 MiB, asked is ≤ 40 MiB.',
    ]);
  });

  test('is a gate that could not be judged, with the rounds that are needed', () => {
    assert.deepEqual(shortfalls(result(noisy)), [
      'accept: CPU of one cannot be judged: 1 of 3 rounds were quiet enough, and 3 are needed.',
    ]);
  });

  test('is never a goal of wall-clock time, nor a ratio without a goal', () => {
    assert.deepEqual(shortfalls(result(steady(130), { ratioOf: { kind: 'wall' } })), []);
    const { goal: _, ...told } = ratio;
    const judged = judgeRatio(told, steady(900), { quick: false });
    assert.deepEqual(shortfalls({ row: 'accept', ratios: [judged], bounds: [] }), []);
  });

  test('is nothing where all gates are met', () => {
    assert.deepEqual(shortfalls(result(steady(110))), []);
  });
});

describe('the chart of a row', () => {
  test('has a bar for each ratio, with its goal', () => {
    const chart = chartOf(result(steady(120)));
    assert.match(chart ?? '', /Accepting an upload/);
    assert.match(chart ?? '', /CPU of one/);
    assert.match(chart ?? '', /goal ≤ 1\.25/);
  });

  test('has the bounds where there are no ratios', () => {
    const chart = chartOf(result(steady(120), { ratios: [] }));
    assert.match(chart ?? '', /measured \[MiB\]/);
    assert.match(chart ?? '', /peak/);
  });

  test('is none where nothing was told, rather than an empty one', () => {
    assert.equal(chartOf(result(noisy)), null);
  });

  test('says that a quick row is not judged', () => {
    assert.match(chartOf(result([round(120)], { quick: true })) ?? '', /Quick, not judged\./);
  });
});
