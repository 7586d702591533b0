/** What the experiment with overload says in the end: medians of quiet repeats, verdicts, defaults, and the folder they lie in. */
import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import type { Calibration } from '../../bench/overload/calibration.ts';
import { charts } from '../../bench/overload/charts.ts';
import { choicesOf } from '../../bench/overload/defaults.ts';
import { type Cell, gridOf, settingsFor } from '../../bench/overload/design.ts';
import { type Head, openFolder, usualFolder } from '../../bench/overload/folder.ts';
import { hypotheses } from '../../bench/overload/hypotheses.ts';
import { type CellSummary, flat, summarise } from '../../bench/overload/summary.ts';
import type { PlayedLoad, PlayedTurn } from '../../bench/overload/turn.ts';

const cores = 2;
const first: Calibration = { loopMs: 100, fsyncMs: 0.5 };
const even = (value: number) => ({ count: 10, p50: value, p95: value, p99: value, max: value });

/** A load as a calm service answers it. */
function loadOf(load: number, capacity: number, rest: Partial<PlayedLoad> = {}): PlayedLoad {
  const refused = load > 1;
  return {
    ...{
      load,
      offeredPerSecond: load * capacity,
      readyPerSecond: Math.min(load, 1) * capacity,
      drainPerSecond: refused ? capacity : null,
    },
    taken: {
      ...{ sent: 100, accepted: 90, acceptMs: even(20), readyMs: even(refused ? 3000 : 200), senderLateMs: even(1) },
      refusals: {
        ...{ count: refused ? 10 : 0, codes: {}, latencyMs: refused ? even(9) : null, withoutRetryAfter: 0 },
        ...{
          retryAfterSeconds: refused ? even(2) : null,
          bodyBytesAsked: refused ? even(0) : null,
          bodyBytesUnasked: null,
        },
      },
    },
    kept: { ready: 90, failed: {}, lost: [], ringsPerJob: 1, attemptsPerJob: 1 },
    lag: { depthMax: refused ? 30 : 2, ageMsMax: 3000, ageMs: even(3000), unfinishedMax: 32 },
    memory: { apiMiB: 100, workerMiB: 80, childrenMiB: 120 },
    shares: {
      ...{ api: 0.1, worker: 0.02, children: 0.7, postgres: 0.05, broker: 0 },
      load: 0.05,
      watcher: 0.01,
      others: 0.02,
    },
    ofBound: { depth: refused ? 1 : 0.1, wait: refused ? 1 : 0.1 },
    ofCapacity: { ready: Math.min(load, 1), drain: refused ? 1 : null },
    ...{ readPerRefusal: refused ? 1000 : null, cpuMsPerReady: 90 },
    queue: [0, 1, 2].map((at) => ({ atMs: at * 200, queued: at, processing: 1, oldestMs: at * 10 })),
    ...rest,
  };
}

function turnOf(cell: Cell, repeat: number, capacity: number, rest: Partial<PlayedTurn> = {}): PlayedTurn {
  return {
    ...{
      cell,
      repeat,
      seed: 1,
      backlogMax: 30,
      capacityPerSecond: capacity,
      closedReadyMs: even(100),
      closedRefused: 0,
      crowd: null,
    },
    loads: [0.5, 2, 10].map((load) => loadOf(load, capacity)),
    ...{ noise: { before: first, after: first, othersShare: 0.01 }, tookMs: 1000 },
    ...rest,
  };
}

const [one, all, twice, ahead] = settingsFor(cores);
const cellOf = (setting = all, size: Cell['size'] = 'medium'): Cell => ({
  kind: 'loads',
  broker: 'embedded',
  setting,
  size,
});
const repeatsOf = (cell: Cell, capacities: readonly number[], rest: Partial<PlayedTurn> = {}) =>
  capacities.map((capacity, index) => turnOf(cell, index + 1, capacity, rest));
const summaryOf = (turns: readonly PlayedTurn[]) => summarise(turns, { first, repeats: 3 });

function judge(id: string, cells: readonly CellSummary[]) {
  const found = hypotheses.find((each) => each.id === id);
  assert.ok(found, id);
  return found.judge(cells, cores);
}

describe('a summary', () => {
  test('has the median of the repeats with the least and the most', () => {
    const [cell] = summaryOf(repeatsOf(cellOf(), [10, 14, 11]));
    assert.deepEqual(cell?.figures.capacityPerSecond, { median: 11, least: 10, most: 14 });
    assert.deepEqual(
      cell?.loads.map(({ load }) => load),
      [0.5, 2, 10],
    );
    assert.equal(cell?.loads[1]?.figures['taken.acceptMs.p95']?.median, 20);
  });

  test('refuses figures where fewer than three repeats were quiet, and says why', () => {
    const turns = repeatsOf(cellOf(), [10, 11, 12]);
    const noisy = {
      ...(turns[2] as PlayedTurn),
      noise: { before: first, after: { ...first, loopMs: 200 }, othersShare: 0 },
    };
    const [cell] = summaryOf([...turns.slice(0, 2), noisy]);
    assert.deepEqual([cell?.figures, cell?.loads, cell?.repeats], [{}, [], 2]);
    assert.match(cell?.refused.join() ?? '', /2 of 3 repeats.*repeat 3: the loop after it differs 2\.00 times/);
  });

  test('does not count a turn whose backlog was too short for its capacity', () => {
    const [cell] = summaryOf(repeatsOf(cellOf(), [10, 11, 12], { closedRefused: 4 }));
    assert.match(cell?.refused.join() ?? '', /a backlog of 30 was too short/);
  });

  test('names a figure by its path, counts lists and leaves out what is null', () => {
    assert.deepEqual(flat({ a: 1, b: { c: 2, d: null, e: ['x', 'y'] }, f: 'text' }), { a: 1, 'b.c': 2, 'b.e': 2 });
  });
});

describe('the hypothesis', () => {
  test('was written down with the same sentences that are judged', async () => {
    const text = await readFile(path.resolve(import.meta.dirname, '../../bench/overload/hypothesis.md'), 'utf8');
    const written = [...text.matchAll(/^- \*\*(H\d+)\*\* (.+)$/gm)].map(([, id, sentence]) => `${id} ${sentence}`);
    assert.deepEqual(
      written,
      hypotheses.map(({ id, sentence }) => `${id} ${sentence}`),
    );
  });

  test('is not tested where no cell has figures', () => {
    for (const { id } of hypotheses) assert.equal(judge(id, []).verdict, 'not tested', id);
  });

  test('holds of a service that stays calm', () => {
    const cells = summaryOf(repeatsOf(cellOf(), [10, 10, 10]));
    for (let number = 1; number <= 12; number += 1)
      assert.equal(judge(`H${number}`, cells).verdict, 'holds', `H${number}`);
  });

  test('is refuted by a single cell that does otherwise, which is named', () => {
    const spoilt: readonly [string, Partial<PlayedLoad>][] = [
      ['H2', { ofCapacity: { ready: 0.78, drain: 1 } }],
      ['H3', { taken: { ...loadOf(10, 10).taken, acceptMs: even(251) } }],
      ['H6', { readPerRefusal: 300_000 }],
      ['H8', { ofBound: { depth: 1.01, wait: 1 } }],
      ['H9', { ofBound: { depth: 1, wait: 1.3 } }],
      ['H10', { ofCapacity: { ready: 1, drain: 0.9 } }],
      ['H11', { kept: { ...loadOf(10, 10).kept, lost: ['an id'] } }],
      ['H12', { kept: { ...loadOf(10, 10).kept, ringsPerJob: 1.1 } }],
    ];
    for (const [id, rest] of spoilt) {
      const cells = summaryOf([
        ...repeatsOf(cellOf(all, 'small'), [10, 10, 10]),
        ...repeatsOf(cellOf(all, 'large'), [10, 10, 10], { loads: [loadOf(10, 10, rest)] }),
      ]);
      const { verdict, because } = judge(id, cells);
      assert.equal(verdict, 'refuted', id);
      assert.match(because, /loads-embedded-2-0-large at 10/, id);
    }
  });

  test('allows a share of the cores to the load before it compares what is left', () => {
    const busy = { ...loadOf(10, 10).shares, load: 0.3, watcher: 0 };
    const loads = [loadOf(10, 10, { ofCapacity: { ready: 0.6, drain: 1 }, shares: busy })];
    assert.equal(judge('H2', summaryOf(repeatsOf(cellOf(), [10, 10, 10], { loads }))).verdict, 'holds');
  });

  test('compares settings on the same broker and size', () => {
    const of = (setting: typeof all, capacity: number) => repeatsOf(cellOf(setting), [capacity, capacity, capacity]);
    const cells = summaryOf([...of(one, 5), ...of(all, 10), ...of(twice, 10.2), ...of(ahead, 10.1)]);
    assert.equal(judge('H13', cells).verdict, 'holds');
    assert.equal(judge('H14', cells).verdict, 'holds');
    // Its children hold no more memory here.
    assert.equal(judge('H15', cells).verdict, 'refuted');
    assert.equal(judge('H13', summaryOf([...of(all, 10), ...of(ahead, 10.6)])).verdict, 'refuted');
  });
});

describe('the defaults', () => {
  const choice = (cells: readonly CellSummary[], setting: string) =>
    choicesOf(cells, cores).find((each) => each.setting === setting);
  const of = (setting: typeof all, capacity: number) => repeatsOf(cellOf(setting), [capacity, capacity, capacity]);

  test('are the least that nothing beats by more than a twentieth', () => {
    const cells = summaryOf([...of(one, 5), ...of(all, 10), ...of(twice, 10.4), ...of(ahead, 10.4)]);
    assert.match(choice(cells, 'RENDER_CONCURRENCY')?.value ?? '', /^0 \(one a core/);
    assert.equal(choice(cells, 'PREFETCH')?.value, '0');
  });

  test('follow the figures where more is better', () => {
    const cells = summaryOf([...of(one, 5), ...of(all, 10), ...of(twice, 12), ...of(ahead, 11)]);
    assert.equal(choice(cells, 'RENDER_CONCURRENCY')?.value, String(twice.concurrency));
    assert.equal(choice(cells, 'PREFETCH')?.value, String(ahead.prefetch));
  });

  test('bound the backlog by what is worth waiting for', () => {
    assert.equal(choice(summaryOf(of(all, 10)), 'MAX_BACKLOG')?.value, '9000');
  });

  test('are not said where nothing was compared', () => {
    assert.deepEqual(choicesOf([], cores), []);
  });
});

describe('the charts', () => {
  test('are drawn of every grid that has figures, and of none', () => {
    const turns = gridOf('fractional', cores)
      .cells.filter(({ kind }) => kind === 'loads')
      .flatMap((cell) => repeatsOf(cell, [9, 10, 11]));
    const machine = { cpu: '', cores, memoryMiB: 0, system: '', kernel: '', fileSystem: '' };
    const names = charts(summaryOf(turns), { turns, machine }).map(({ name }) => name);
    for (const name of [
      'throughput',
      'ready',
      'accepted',
      'refusals',
      'depth',
      'age',
      'cpu',
      'memory',
      'capacity',
      'quiet',
    ]) {
      assert.ok(names.includes(name), name);
    }
    assert.deepEqual(charts([], { turns: [], machine }), []);
  });
});

describe('the folder of an experiment', () => {
  const about = { grid: 'fractional', seed: 1, cores } as const;
  const tree = { commit: 'abc', clean: true };
  const begin = async (): Promise<Head> => ({
    ...{ ...about, startedAt: '2026-01-01T00:00:00Z', tree, calibration: first },
    machine: { cpu: '', cores, memoryMiB: 0, system: '', kernel: '', fileSystem: '' },
    versions: { node: '', postgres: '', engines: {}, packages: {} },
  });
  const turn = { cell: cellOf(), repeat: 1 };

  async function emptyFolder(t: TestContext): Promise<string> {
    const dir = await mkdtemp(path.join(tmpdir(), 'skrepka-overload-'));
    t.after(() => rm(dir, { recursive: true, force: true }));
    return path.join(dir, 'results');
  }

  test('keeps a turn for who resumes', async (t) => {
    const dir = await emptyFolder(t);
    const { folder } = await openFolder(dir, about, { resume: false, tree, begin });
    assert.equal(await folder.turn(turn), null);
    const played = turnOf(turn.cell, 1, 10);
    await folder.writeTurn(turn, played);
    const again = await openFolder(dir, about, {
      resume: true,
      tree,
      begin: () => Promise.reject(new Error('it has begun')),
    });
    assert.deepEqual(await again.folder.turn(turn), played);
    assert.equal(await again.folder.turn({ ...turn, repeat: 2 }), null);
    assert.deepEqual(again.head.calibration, first);
    assert.ok((await readdir(path.join(dir, 'cells'))).every((name) => name.endsWith('.json')));
  });

  test('is not played over without being told to resume', async (t) => {
    const dir = await emptyFolder(t);
    await openFolder(dir, about, { resume: false, tree, begin });
    await assert.rejects(
      openFolder(dir, about, { resume: false, tree, begin }),
      /holds an experiment: go on with it by --resume/,
    );
  });

  test('is not gone on with for another seed, grid or number of cores', async (t) => {
    const dir = await emptyFolder(t);
    await openFolder(dir, about, { resume: false, tree, begin });
    for (const other of [{ seed: 2 }, { grid: 'full' as const }, { cores: 4 }]) {
      await assert.rejects(
        openFolder(dir, { ...about, ...other }, { resume: true, tree, begin }),
        /and .+ is asked for/,
      );
    }
  });

  test('is not gone on with by another commit, or by files that were changed; results are written anew by any', async (t) => {
    const dir = await emptyFolder(t);
    await openFolder(dir, about, { resume: false, tree, begin });
    for (const other of [{ commit: 'def' }, { clean: false }, { commit: null }]) {
      const resumed = openFolder(dir, about, { resume: true, tree: { ...tree, ...other }, begin });
      await assert.rejects(resumed, /holds an experiment of commit abc, and this is .+: check that one out/);
    }
    const { head } = await openFolder(dir, about, { resume: true, tree: null, begin });
    assert.deepEqual(head.tree, tree);
  });

  test('is a new one for each experiment, and the last one for who goes on, when nobody names it', async (t) => {
    const bench = await emptyFolder(t);
    const usual = (resume: boolean) => path.relative(bench, usualFolder(bench, resume));
    for (const [number, name] of ['results/overload', 'results/overload-2', 'results/overload-3'].entries()) {
      assert.equal(usual(false), name);
      if (number > 0) assert.notEqual(usual(true), name);
      await openFolder(path.join(bench, name), about, { resume: false, tree, begin });
      assert.equal(usual(true), name);
    }
  });

  test('is refused to whoever goes on where nothing began, and is not made then', async (t) => {
    const dir = await emptyFolder(t);
    await assert.rejects(openFolder(dir, about, { resume: true, tree: null, begin }), /holds no experiment/);
    await assert.rejects(readdir(dir), { code: 'ENOENT' });
  });

  test('is refused when its cells belong to nobody knows what', async (t) => {
    const dir = await emptyFolder(t);
    await openFolder(dir, about, { resume: false, tree, begin });
    await writeFile(path.join(dir, 'cells', 'some.json'), '{}');
    await rm(path.join(dir, 'experiment.json'));
    await assert.rejects(openFolder(dir, about, { resume: true, tree, begin }), /nothing is known about/);
  });
});
