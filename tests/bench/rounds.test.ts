/** Which sides run when, which rounds count, and what comes out of them. Figures are made up; nothing is measured. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { judgeBound, judgeRatio, orderOf, type Progress, playRounds, type Round } from '../../bench/rounds.ts';
import type { Bound, Figures, Measured, Ratio, Side } from '../../bench/row.ts';

const cpu: Ratio = {
  name: 'CPU',
  ours: 'ours',
  reference: 'bare',
  figure: 'cpuMs',
  goal: { atMost: 1.25 },
  kind: 'cpu',
};
const whole = { quick: false };

/** A round in which the reference gave `before` and `after`, and ours gave `own` between them. */
const round = (before: number, own: number, after: number): Round => [
  { side: 'bare', figures: { cpuMs: before }, wallMs: 1 },
  { side: 'ours', figures: { cpuMs: own }, wallMs: 1 },
  { side: 'bare', figures: { cpuMs: after }, wallMs: 1 },
];

const side = (name: string, run: () => Promise<Figures> = async () => ({ cpuMs: 1 })): Side => ({ name, run });
const measured = (change: Partial<Measured>): Measured => ({
  sides: [side('bare'), side('ours')],
  ratios: [cpu],
  bounds: [],
  ...change,
});

describe('the order of a round', () => {
  const order = (sides: readonly string[], ratios: readonly Partial<Ratio>[]) =>
    orderOf({ sides: sides.map((name) => side(name)), ratios: ratios.map((one) => ({ ...cpu, ...one })) })
      .map(({ name }) => name)
      .join(' ');

  test('has the reference before and after all others', () => {
    assert.equal(order(['ours', 'bare', 'other'], [{}]), 'bare ours other bare');
  });

  test('lays several references around the others, the later one inside', () => {
    const ratios = [{}, { name: 'second', reference: 'slow' }];
    assert.equal(order(['ours', 'bare', 'slow'], ratios), 'bare slow ours slow bare');
  });

  test('plays a side twice that is the reference of one ratio and ours of another', () => {
    const ratios = [{ reference: 'idle' }, { name: 'second', ours: 'idle', reference: 'bare' }];
    assert.equal(order(['bare', 'idle', 'ours'], ratios), 'bare idle ours idle bare');
  });

  test('plays sides without a ratio once', () => {
    assert.equal(order(['api', 'child'], []), 'api child');
  });
});

describe('playing', () => {
  test('keeps every figure of every run in the order of play', async () => {
    let count = 0;
    const counting = async () => ({ cpuMs: ++count });
    const sides = [side('bare', counting), side('ours', counting)];
    const played = await playRounds(measured({ sides }), { rounds: 2, onRun() {} });
    assert.deepEqual(
      played.map((runs) => runs.map(({ side: name, figures }) => `${name} ${figures.cpuMs}`)),
      [
        ['bare 1', 'ours 2', 'bare 3'],
        ['bare 4', 'ours 5', 'bare 6'],
      ],
    );
  });

  test('tells how far it is, and the time that is left once every side has run', async () => {
    const seen: Progress[] = [];
    await playRounds(measured({}), { rounds: 2, onRun: (progress) => seen.push(progress) });
    assert.deepEqual(
      seen.map(({ round: at, run, runs, side: name }) => [at, run, runs, name]),
      [0, 1].flatMap((at) => ['bare', 'ours', 'bare'].map((name, run) => [at, run, 3, name])),
    );
    assert.deepEqual(
      seen.map(({ leftMs }) => leftMs === null),
      [true, true, false, false, false, false],
    );
  });

  test('ends with the failure of a side, and invents no figure', async () => {
    const sides = [side('bare'), side('ours', () => Promise.reject(new Error('no disk')))];
    await assert.rejects(playRounds(measured({ sides }), { rounds: 3, onRun() {} }), /no disk/);
  });

  test('refuses a row that names what it lacks, before anything runs', async () => {
    let ran = false;
    const watched = side('bare', async () => {
      ran = true;
      return { cpuMs: 1 };
    });
    const play = (change: Partial<Measured>) =>
      playRounds(measured({ sides: [watched, side('ours')], ...change }), { rounds: 1, onRun() {} });
    const bound: Bound = { name: 'peak', side: 'nobody', figure: 'miB', unit: 'MiB' };
    await assert.rejects(play({ ratios: [{ ...cpu, reference: 'nobody' }] }), /bare, ours, received nobody/);
    await assert.rejects(play({ bounds: [bound] }), /received nobody/);
    await assert.rejects(play({ ratios: [cpu, cpu] }), /received "CPU" twice/);
    await assert.rejects(play({ sides: [watched, watched] }), /different names/);
    await assert.rejects(play({ ratios: [] }), /a ratio or a bound/);
    assert.equal(ran, false);
  });
});

describe('a ratio', () => {
  test('is ours over the mean of the two runs of its reference, within a round', () => {
    const judged = judgeRatio(cpu, [round(95, 120, 105), round(95, 110, 105), round(95, 130, 105)], whole);
    assert.equal(judged.value, 1.2);
    assert.deepEqual([judged.low, judged.high, judged.verdict], [1.1, 1.3, 'met']);
    assert.deepEqual([judged.oursValue, judged.referenceValue], [120, 100]);
  });

  test('is the median of the rounds, so one odd round changes nothing', () => {
    const judged = judgeRatio(cpu, [round(100, 110, 100), round(100, 900, 100), round(100, 120, 100)], whole);
    assert.equal(judged.value, 1.2);
  });

  test('leaves out a round in which the reference differs from itself by more than 15 %', () => {
    const quiet = [round(100, 110, 100), round(100, 120, 115), round(115, 110, 100)];
    const judged = judgeRatio(cpu, [...quiet, round(100, 500, 115.1), round(115.1, 500, 100)], whole);
    assert.deepEqual([judged.kept, judged.played], [3, 5]);
    assert.deepEqual(
      judged.rounds.map(({ kept }) => kept),
      [true, true, true, false, false],
    );
    assert.ok(Number(judged.high) < 2);
  });

  test('is too noisy, and no figure, where fewer than three rounds are left', () => {
    const noisy = round(100, 110, 200);
    const judged = judgeRatio(cpu, [round(100, 110, 100), round(100, 110, 100), noisy], whole);
    assert.deepEqual([judged.verdict, judged.value, judged.low, judged.oursValue], ['too noisy', null, null, null]);
    assert.equal(judgeRatio(cpu, [round(1, 1, 1), round(1, 1, 1)], whole).verdict, 'too noisy');
  });

  test('is too noisy where less than half of the rounds are left', () => {
    const rounds = (noisy: number) => [
      ...Array.from({ length: 3 }, () => round(100, 110, 100)),
      ...Array.from({ length: noisy }, () => round(100, 110, 200)),
    ];
    assert.equal(judgeRatio(cpu, rounds(3), whole).verdict, 'met');
    assert.equal(judgeRatio(cpu, rounds(4), whole).verdict, 'too noisy');
  });

  test('has no round where the reference gave nothing to compare with', () => {
    const judged = judgeRatio(cpu, [round(0, 5, 0), round(0, 5, 3)], whole);
    assert.deepEqual(
      judged.rounds.map(({ kept, spread }) => [kept, spread]),
      [
        [false, null],
        [false, null],
      ],
    );
  });

  test('can be of a figure that its reference calls otherwise', () => {
    const rounds = Array.from({ length: 3 }, () => round(100, 110, 100));
    const renamed = { ...cpu, figure: 'formMs', referenceFigure: 'cpuMs' };
    const ours = rounds.map((runs) =>
      runs.map((run) => (run.side === 'ours' ? { ...run, figures: { formMs: 50 } } : run)),
    );
    assert.equal(judgeRatio(renamed, ours, whole).value, 0.5);
  });

  test('without its figure, or with one that is no number, is an error', () => {
    assert.throws(() => judgeRatio({ ...cpu, figure: 'wallMs' }, [round(1, 1, 1)], whole), /wallMs of ours.*undefined/);
    assert.throws(() => judgeRatio(cpu, [round(1, Number.NaN, 1)], whole), /cpuMs of ours, received NaN/);
  });

  test('meets its goal at the goal, and misses it beyond', () => {
    const verdict = (own: number, goal: Ratio['goal']) =>
      judgeRatio(
        { ...cpu, ...(goal ? { goal } : {}) },
        Array.from({ length: 3 }, () => round(100, own, 100)),
        whole,
      ).verdict;
    assert.deepEqual([verdict(125, { atMost: 1.25 }), verdict(126, { atMost: 1.25 })], ['met', 'missed']);
    assert.deepEqual([verdict(95, { atLeast: 0.95 }), verdict(94, { atLeast: 0.95 })], ['met', 'missed']);
  });

  test('is a gate when it is of time on the processor and has a goal', () => {
    const rounds = Array.from({ length: 3 }, () => round(100, 200, 100));
    const { goal: _, ...told } = cpu;
    const judged = [cpu, { ...cpu, kind: 'wall' as const }, told].map((ratio) => judgeRatio(ratio, rounds, whole));
    assert.deepEqual(
      judged.map(({ gate, verdict }) => [gate, verdict]),
      [
        [true, 'missed'],
        [false, 'missed'],
        [false, 'told'],
      ],
    );
  });

  test('is shown and not judged after a quick run', () => {
    const judged = judgeRatio(cpu, [round(100, 900, 100)], { quick: true });
    assert.deepEqual([judged.value, judged.verdict], [9, 'not judged']);
  });
});

describe('a bound', () => {
  const rounds = [10, 30, 20].map((value): Round => [{ side: 'ours', figures: { it: value }, wallMs: 1 }]);
  const bound = (unit: Bound['unit'], goal?: Bound['goal']) =>
    judgeBound({ name: 'it', side: 'ours', figure: 'it', unit, ...(goal ? { goal } : {}) }, rounds, whole);

  test('of time or share is its median', () => {
    assert.equal(bound('ms', { atMost: 25 }).value, 20);
    assert.equal(bound('%', { atMost: 25 }).verdict, 'met');
  });

  test('of memory or a count is its worst round, because it must hold in each', () => {
    assert.deepEqual([bound('MiB', { atMost: 25 }).value, bound('MiB', { atMost: 25 }).verdict], [30, 'missed']);
    assert.deepEqual([bound('count', { atLeast: 15 }).value, bound('count', { atLeast: 15 }).verdict], [10, 'missed']);
  });

  test('without a goal is told, by its median', () => {
    assert.deepEqual([bound('MiB').value, bound('MiB').verdict, bound('MiB').gate], [20, 'told', false]);
  });

  test('is a gate unless it is wall-clock time', () => {
    const gates = (['ms', 'MiB', '%', 'count'] as const).map((unit) => bound(unit, { atMost: 1 }).gate);
    assert.deepEqual(gates, [false, true, true, true]);
  });
});
