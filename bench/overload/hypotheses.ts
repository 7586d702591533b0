/**
 * The hypothesis as sentences that data can refute, each with the arithmetic that judges it. `hypothesis.md` holds the same
 * sentences with their reasons, written before the first run; a test holds the two together.
 */
import { crowdLoad, settingsFor } from './design.ts';
import { type CellSummary, type Figures, figureOf, type Pair, pairsOf } from './summary.ts';

export interface Verdict {
  readonly verdict: 'holds' | 'refuted' | 'not tested';
  /** The figures that decided, the worst one first. */
  readonly because: string;
}

export interface Hypothesis {
  readonly id: string;
  readonly sentence: string;
  judge(cells: readonly CellSummary[], cores: number): Verdict;
}

export const hypotheses: readonly Hypothesis[] = [
  {
    id: 'H1',
    sentence: 'At 2 times the capacity, at least 0.95 of the capacity becomes ready per second, in every cell.',
    judge: (cells) =>
      atLeast(
        0.95,
        throughput(cells, (load) => load === 2, false),
        'of the capacity',
      ),
  },
  {
    id: 'H2',
    sentence:
      'At 10 times the capacity, at least 0.85 of the capacity becomes ready per second of the cores that the load itself leaves, in every cell.',
    judge: (cells) =>
      atLeast(
        0.85,
        throughput(cells, (load) => load === 10, true),
        'of the capacity, per core left',
      ),
  },
  {
    id: 'H3',
    sentence: 'The p95 of the 202 stays under 250 ms at every load, in every cell.',
    judge: (cells) =>
      atMost(
        250,
        each(cells, () => true, 'taken.acceptMs.p95'),
        'ms',
      ),
  },
  {
    id: 'H4',
    sentence: 'The p95 of a refusal stays under 100 ms from 2 times the capacity on, in every cell.',
    judge: (cells) =>
      atMost(
        100,
        each(cells, (load) => load >= 2, 'taken.refusals.latencyMs.p95'),
        'ms',
      ),
  },
  {
    id: 'H5',
    sentence: 'Who asks before sending a body is refused with none of it sent.',
    judge: (cells) =>
      atMost(
        0,
        each(cells, () => true, 'taken.refusals.bodyBytesAsked.max', 'most'),
        'bytes sent',
      ),
  },
  {
    id: 'H6',
    sentence: 'For a refusal the API reads at most 272 KiB on average, however large the picture is.',
    judge: (cells) =>
      atMost(
        272 * 1024,
        each(cells, (load) => load >= 2, 'readPerRefusal'),
        'bytes read',
      ),
  },
  {
    id: 'H7',
    sentence: 'No refusal comes without Retry-After, and no connection breaks before its answer was read.',
    judge: (cells) =>
      atMost(
        0,
        each(cells, () => true, 'taken.refusals.withoutRetryAfter', 'most'),
        'without it',
      ),
  },
  {
    id: 'H8',
    sentence: 'With one API process, never more than MAX_BACKLOG wait.',
    judge: (cells) =>
      atMost(
        1,
        each(cells, () => true, 'ofBound.depth', 'most'),
        'of MAX_BACKLOG',
      ),
  },
  {
    id: 'H9',
    sentence:
      'From 2 times the capacity on, the median time to ready is at most 1.25 times MAX_BACKLOG divided by the capacity.',
    judge: (cells) =>
      atMost(
        1.25,
        each(cells, (load) => load >= 2, 'ofBound.wait'),
        'of MAX_BACKLOG / capacity',
      ),
  },
  {
    id: 'H10',
    sentence: 'After an overload, the queue drains at 0.95 of the capacity or more.',
    judge: (cells) =>
      atLeast(
        0.95,
        each(cells, () => true, 'ofCapacity.drain'),
        'of the capacity',
      ),
  },
  {
    id: 'H11',
    sentence: 'Nothing accepted is lost: each is ready, or failed with a code, with the digest of what was sent.',
    judge: (cells) => atMost(0, [...each(cells, () => true, 'kept.lost', 'most'), ...crowds(cells, lostOf)], 'lost'),
  },
  {
    id: 'H12',
    sentence: 'The bell does not amplify: at most 1.05 announcements a job, at every load.',
    judge: (cells) =>
      atMost(
        1.05,
        each(cells, () => true, 'kept.ringsPerJob'),
        'rings a job',
      ),
  },
  {
    id: 'H13',
    sentence: 'Deliveries held ahead change the capacity by less than 5 percent.',
    judge: (cells, cores) => {
      const [, all, , ahead] = settingsFor(cores);
      return between(0.95, 1.05, ratios(pairsOf(cells, ahead, all), capacityOf), 'of the capacity without');
    },
  },
  {
    id: 'H14',
    sentence: 'As many renders at once as cores have at least 1.6 times the capacity of one.',
    judge: (cells, cores) => {
      const [one, all] = settingsFor(cores);
      return atLeast(1.6, ratios(pairsOf(cells, all, one), capacityOf), 'of the capacity of one');
    },
  },
  {
    id: 'H15',
    sentence:
      'Twice as many renders as cores add less than 5 percent of capacity, and cost at least 1.5 times the memory of children.',
    judge: (cells, cores) => {
      const [, all, twice] = settingsFor(cores);
      const capacity = atMost(1.05, ratios(pairsOf(cells, twice, all), capacityOf), 'of the capacity');
      const memory = atLeast(1.5, ratios(pairsOf(cells, twice, all), childrenOf), 'of the memory');
      return both(capacity, memory);
    },
  },
  {
    id: 'H16',
    sentence: `Behind a flood of ${crowdLoad.flood} times the capacity from one user, another user is never refused, and waits at the p95 at most 0.6 of the median of the flood.`,
    judge: (cells) =>
      both(
        atMost(0, crowds(cells, refusedBystanders), 'refused'),
        atMost(0.6, crowds(cells, bystanderShare), 'of the flood’s median'),
      ),
  },
  {
    id: 'H17',
    sentence: 'Of those who come back when Retry-After says, at least 0.8 are accepted the first time they do.',
    judge: (cells) =>
      atLeast(
        0.8,
        crowds(cells, (crowd) => figureOf(crowd, `${patience}.acceptedAtFirstReturn`)),
        'of them',
      ),
  },
  {
    id: 'H18',
    sentence: 'While they wait, at least 0.9 of the capacity is used, from the burst to its last picture.',
    judge: (cells) => atLeast(0.9, crowds(cells, usedShare), 'of the capacity'),
  },
];

/* ------------------------------------------------------------------------- judgements */

interface Value {
  readonly of: string;
  readonly value: number;
}

const told = (value: number): string => String(Number(value.toPrecision(3)));

function judged(
  values: readonly Value[],
  holds: (value: number) => boolean,
  unit: string,
  worst: Value | undefined,
): Verdict {
  if (worst === undefined) return { verdict: 'not tested', because: 'no cell has figures for it' };
  const breaking = values.filter(({ value }) => !holds(value)).length;
  const verdict = breaking === 0 ? 'holds' : 'refuted';
  const share = breaking === 0 ? `all ${values.length} comply` : `${breaking} of ${values.length} do not`;
  return { verdict, because: `${share}; worst ${told(worst.value)} ${unit} (${worst.of})` };
}

const least = (values: readonly Value[]) => values.toSorted((one, other) => one.value - other.value)[0];
const most = (values: readonly Value[]) => values.toSorted((one, other) => other.value - one.value)[0];

const atLeast = (bound: number, values: readonly Value[], unit: string): Verdict =>
  judged(values, (value) => value >= bound, unit, least(values));

const atMost = (bound: number, values: readonly Value[], unit: string): Verdict =>
  judged(values, (value) => value <= bound, unit, most(values));

function between(low: number, high: number, values: readonly Value[], unit: string): Verdict {
  const farthest = most(values.map(({ of, value }) => ({ of, value: Math.max(value / high, low / value) })));
  const worst = values.find(({ of }) => of === farthest?.of);
  return judged(values, (value) => value >= low && value <= high, unit, worst);
}

function both(one: Verdict, other: Verdict): Verdict {
  const all = [one, other];
  const verdict = (['refuted', 'not tested', 'holds'] as const).find((each) => all.some((v) => v.verdict === each));
  return { verdict: verdict ?? 'not tested', because: all.map(({ because }) => because).join('; and ') };
}

/* ----------------------------------------------------------------------------- values */

function each(
  cells: readonly CellSummary[],
  which: (load: number) => boolean,
  name: string,
  end: 'median' | 'most' = 'median',
): readonly Value[] {
  return cells.flatMap(({ id, loads }) =>
    loads
      .filter(({ load }) => which(load))
      .flatMap(({ load, figures }) => {
        const spread = figures[name];
        return spread ? [{ of: `${id} at ${load}`, value: spread[end] }] : [];
      }),
  );
}

const capacityOf = (cell: CellSummary): number | null => figureOf(cell.figures, 'capacityPerSecond');

/** At the highest load: by then every child has had its largest picture. */
const childrenOf = (cell: CellSummary): number | null => figureOf(cell.loads.at(-1)?.figures, 'memory.childrenMiB');

const divided = (one: number | null, other: number | null): number | null =>
  one === null || other === null || other === 0 ? null : one / other;

/** In shares of the capacity. */
function throughput(
  cells: readonly CellSummary[],
  which: (load: number) => boolean,
  perCoreLeft: boolean,
): readonly Value[] {
  return cells.flatMap(({ id, loads }) =>
    loads
      .filter(({ load }) => which(load))
      .flatMap(({ load, figures }) => {
        const share = figureOf(figures, 'ofCapacity.ready');
        if (share === null) return [];
        const taken = (figureOf(figures, 'shares.load') ?? 0) + (figureOf(figures, 'shares.watcher') ?? 0);
        return [{ of: `${id} at ${load}`, value: perCoreLeft ? share / (1 - taken) : share }];
      }),
  );
}

function ratios(pairs: readonly Pair[], figure: (cell: CellSummary) => number | null): readonly Value[] {
  return pairs.flatMap(({ one, other, alike }) => {
    const value = divided(figure(one), figure(other));
    const of = `${one.id} beside ${other.id}${alike ? '' : ', on different brokers'}`;
    return value === null ? [] : [{ of, value }];
  });
}

/* ----------------------------------------------------------------------------- crowds */

const patience = 'crowd.patience';

function crowds(cells: readonly CellSummary[], figure: (crowd: Figures) => number | null): readonly Value[] {
  return cells
    .filter(({ cell }) => cell.kind === 'crowd')
    .flatMap(({ id, figures }) => {
      const value = figure(figures);
      return value === null ? [] : [{ of: id, value }];
    });
}

function lostOf(crowd: Figures): number | null {
  const lost = [crowd['crowd.floodKept.lost']?.most, crowd['crowd.patienceKept.lost']?.most];
  return lost.every((each) => each === undefined) ? null : lost.reduce<number>((sum, each) => sum + (each ?? 0), 0);
}

const refusedBystanders = (crowd: Figures): number | null => crowd['crowd.bystander.refusals.count']?.most ?? null;

const bystanderShare = (crowd: Figures): number | null =>
  divided(figureOf(crowd, 'crowd.bystander.readyMs.p95'), figureOf(crowd, 'crowd.flood.readyMs.p50'));

const usedShare = (crowd: Figures): number | null =>
  divided(figureOf(crowd, `${patience}.readyPerSecond`), figureOf(crowd, 'capacityPerSecond'));
