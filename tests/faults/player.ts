/**
 * A process that plays a share of the schedules and tells its parent what came of them: seeds by number, or all faults of one upload.
 *
 * Started by `play-all.ts`: simulations need one core each and nothing else.
 */
import { playAll } from './exhaustive.ts';
import { playSeed } from './schedule.ts';

/** What a share had: `counts` are faults by site. `singles` and `pairs` only of the exhaustive part. */
export interface Share {
  readonly played: number;
  readonly steps: number;
  readonly answered: number;
  readonly singles: number;
  readonly pairs: number;
  readonly counts: Readonly<Record<string, number>>;
  readonly violations: readonly { readonly schedule: string; readonly sentence: string }[];
}

export type Order =
  | { readonly kind: 'seeds'; readonly first: number; readonly count: number; readonly step: number }
  | { readonly kind: 'exhaustive'; readonly part: number; readonly parts: number; readonly pairs: boolean };

/** Enough to see a kind of violation; more of it only costs time. */
const violationsMax = 5;

export async function playShare(order: Order): Promise<Share> {
  const counts: Record<string, number> = {};
  const violations: { schedule: string; sentence: string }[] = [];
  const sums = { played: 0, steps: 0, answered: 0, singles: 0, pairs: 0 };
  if (order.kind === 'exhaustive') {
    const { singles, pairs } = await playAll(order, ({ plan, violation }) => {
      sums.played += 1;
      if (violation)
        violations.push({ schedule: [...plan].map((fault) => fault.join(' ')).join(', '), sentence: violation });
    });
    return { ...sums, singles, pairs, counts, violations };
  }
  for (let number = 0; number < order.count && violations.length < violationsMax; number += 1) {
    const seed = order.first + number * order.step;
    const outcome = await playSeed(seed);
    sums.played += 1;
    sums.steps += outcome.steps.length;
    sums.answered += outcome.answered;
    for (const [name, count] of outcome.counts) counts[name] = (counts[name] ?? 0) + count;
    if (outcome.violation) violations.push({ schedule: `--seed ${seed}`, sentence: outcome.violation.message });
  }
  return { ...sums, counts, violations };
}

const [order] = process.argv.slice(2);
if (order !== undefined && process.send) {
  const share = await playShare(JSON.parse(order) as Order);
  process.send(share, undefined, undefined, () => process.exit(0));
}
