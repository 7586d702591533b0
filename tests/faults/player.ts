/**
 * A process that plays a share of the schedules and tells its parent what came of them: seeds by number, all faults of one upload,
 * or the twins on a PostgreSQL.
 *
 * Started by `play-all.ts`: simulations need one core each and nothing else.
 */
import { AssertionError } from 'node:assert';
import { playAll } from './exhaustive.ts';
import { playSeed } from './schedule.ts';

/** What a share had. `counts` are faults by site; `singles` and `pairs` only of the exhaustive part, `verbs` only of twins. */
export interface Share {
  readonly played: number;
  readonly steps: number;
  readonly answered: number;
  readonly singles: number;
  readonly pairs: number;
  readonly verbs: number;
  readonly counts: Readonly<Record<string, number>>;
  /** The first of each share. */
  readonly violations: readonly Found[];
}

export interface Found {
  /** How to play it again: `--seed 17`, the faults by the number of their effect, or the sequence of twins. */
  readonly schedule: string;
  /** Null of twins: there model and PostgreSQL differ. */
  readonly invariant: string | null;
  readonly sentence: string;
}

export type Order =
  | { readonly kind: 'seeds'; readonly first: number; readonly count: number; readonly violationsMax: number }
  | { readonly kind: 'exhaustive'; readonly part: number; readonly parts: number; readonly pairs: boolean }
  /** Sequences of `verbs` verbs, until one differs. `SKREPKA_TEST_POSTGRES` names the server. */
  | { readonly kind: 'twins'; readonly sequences: number; readonly verbs: number };

/** Enough to see a kind of violation; more of it only costs time. */
const violationsMax = 5;
const none: Share = { played: 0, steps: 0, answered: 0, singles: 0, pairs: 0, verbs: 0, counts: {}, violations: [] };

export async function playShare(order: Order): Promise<Share> {
  if (order.kind === 'exhaustive') return await playExhaustive(order);
  return order.kind === 'seeds' ? await playSeeds(order) : await playTwins(order);
}

async function playSeeds(order: Order & { kind: 'seeds' }): Promise<Share> {
  const counts: Record<string, number> = {};
  const violations: Found[] = [];
  const sums = { played: 0, steps: 0, answered: 0 };
  for (let seed = order.first; seed < order.first + order.count && violations.length < order.violationsMax; seed += 1) {
    const { violation, steps, answered, counts: struck } = await playSeed(seed);
    sums.played += 1;
    sums.steps += steps.length;
    sums.answered += answered;
    for (const [name, count] of struck) counts[name] = (counts[name] ?? 0) + count;
    if (!violation) continue;
    violations.push({ schedule: `--seed ${seed}`, invariant: violation.invariant, sentence: violation.message });
  }
  return { ...none, ...sums, counts, violations };
}

async function playExhaustive(order: Order & { kind: 'exhaustive' }): Promise<Share> {
  const violations: Found[] = [];
  let played = 0;
  const { singles, pairs } = await playAll(order, ({ plan, violation }) => {
    played += 1;
    if (!violation || violations.length >= violationsMax) return;
    const schedule = [...plan].map(([number, fate]) => `effect ${number} ${fate}`).join(', ');
    violations.push({ schedule, invariant: violation.invariant, sentence: violation.message });
  });
  return { ...none, played, singles, pairs, violations };
}

async function playTwins(order: Order & { kind: 'twins' }): Promise<Share> {
  // Loaded here only: the others need no database, and what tests share of it expects to be in a test.
  const { pairOfTwins } = await import('./twins-pair.ts');
  let verbs = 0;
  for (let seed = 1; seed <= order.sequences; seed += 1) {
    const ends: (() => Promise<void>)[] = [];
    try {
      const { twins } = await pairOfTwins({ after: (end) => void ends.push(end) }, seed);
      for (let number = 0; number < order.verbs; number += 1) {
        verbs += 1;
        await twins.step();
      }
    } catch (error) {
      if (!(error instanceof AssertionError)) throw error;
      const found = { schedule: `sequence ${seed}`, invariant: null, sentence: error.message };
      return { ...none, played: seed, verbs, violations: [found] };
    } finally {
      for (const end of ends) await end();
    }
  }
  return { ...none, played: order.sequences, verbs };
}

const [order] = process.argv.slice(2);
if (order !== undefined && process.send) {
  const share = await playShare(JSON.parse(order) as Order);
  process.send(share, undefined, undefined, () => process.exit(0));
}
