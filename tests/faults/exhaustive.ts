/**
 * Every single fault, and every pair of faults, at every effect of one upload: from its first request to its clean-up.
 *
 * The second fault is set in the schedule that the first one makes, so that the faults of repairs are among the pairs. Polls that
 * find nothing are left out: a fault of theirs is a fault of nothing.
 */
import type { Violation } from './invariants.ts';
import { play } from './stage.ts';
import { type Fate, plannedFates, type Step } from './world.ts';

export interface Planned {
  readonly plan: ReadonlyMap<number, Fate>;
  readonly violation: Violation | null;
}

/** Sites that only ask, and whose answer changes nothing but the pace. */
const questions: ReadonlySet<string> = new Set([
  ...['store.untilDueMs', 'store.recentPace', 'store.countAnnounced', 'store.queue', 'store.expire', 'store.retire'],
  ...['store.knownAttachments', 'store.feedReprocessing', 'store.load'],
]);

/** Lasts long enough for every repair: a re-ring, a lease, a visibility. */
const faultMs = 20 * 60_000;

async function playPlan(plan: ReadonlyMap<number, Fate>) {
  return await play({ seed: 1, fates: plannedFates(plan), faultMs, uploads: 1, family: 'plain' });
}

/** The faults that may befall the effects of a schedule from `from` on, before all is done. */
function faultsOf(steps: readonly Step[], from: number): [number, Fate][] {
  return steps
    .slice(from)
    .filter(({ site, idle }) => !idle && !questions.has(site))
    .flatMap(({ number, allowed }) => allowed.map((fate): [number, Fate] => [number, fate]));
}

/**
 * Plays all singles, then all pairs whose first fault is of the part `part` of `parts`. `on` hears of each schedule. Answers how many
 * there were.
 */
export async function playAll(
  { part, parts, pairs }: { part: number; parts: number; pairs: boolean },
  on: (played: Planned) => void,
): Promise<{ singles: number; pairs: number }> {
  const base = await playPlan(new Map());
  if (base.violation) throw base.violation;
  const counts = { singles: 0, pairs: 0 };
  const singles = faultsOf(base.steps, 0).filter((_, number) => number % parts === part);
  for (const [number, fate] of singles) {
    const plan = new Map([[number, fate]]);
    const { violation, steps } = await playPlan(plan);
    counts.singles += 1;
    on({ plan, violation });
    if (!pairs || violation) continue;
    for (const [second, next] of faultsOf(steps, number + 1)) {
      const both = new Map([...plan, [second, next] as const]);
      const outcome = await playPlan(both);
      counts.pairs += 1;
      on({ plan: both, violation: outcome.violation });
    }
  }
  return counts;
}
