/**
 * The history of a job, `job_events`: the closed set of its reasons, and how they add up to the row.
 *
 * Every transition writes one event in its own statement or transaction, with the states it joins and the fence after
 * it. Reading a job's events in order of their id gives its state, fence and counters back; whatever cannot be explained
 * so was not written by this program. The same set stands in the CHECK constraint of `job_events.reason`.
 */
import type { JobState } from '../pipeline/job.ts';
import type { JobEvent } from '../pipeline/registry.ts';

type Counter = 'attempts' | 'failures' | 'crashes' | 'releases';

interface Reason {
  readonly from: readonly (JobState | null)[];
  readonly to: JobState;
  /** What the transition adds one to. */
  readonly adds: readonly Counter[];
  /** Whether the fence grows by one; it stays otherwise. */
  readonly fences: boolean;
  /** Whether a new generation begins: all counters but `attempts` start at zero. */
  readonly renews: boolean;
}

const reason = (
  from: readonly (JobState | null)[],
  to: JobState,
  adds: readonly Counter[],
  { fences = false, renews = false } = {},
): Reason => ({ from, to, adds, fences, renews });

export const jobReasons = {
  accepted: reason([null], 'queued', []),
  claimed: reason(['queued'], 'processing', ['attempts'], { fences: true }),
  /** Claimed again after a lease that ended without a word. */
  crashed: reason(['processing'], 'processing', ['attempts', 'crashes'], { fences: true }),
  /** The claim that found the crash budget spent: no attempt begins. */
  exhausted: reason(['processing'], 'failed', ['crashes']),
  retried: reason(['processing'], 'queued', ['failures']),
  failed: reason(['processing'], 'failed', ['failures']),
  released: reason(['processing'], 'queued', ['releases']),
  settled: reason(['processing'], 'succeeded', []),
  superseded: reason(['processing'], 'superseded', []),
  cancelled: reason(['queued', 'processing'], 'cancelled', []),
  /** A job of a newer version for a ready attachment. */
  reprocessed: reason([null], 'queued', []),
  /** A new generation of a failed job: counters start again, the fence goes on. */
  replayed: reason(['failed'], 'queued', [], { renews: true }),
  /** A new generation of the published version's job, because variants were lost; `failed` where the rebuild before failed. */
  rebuilding: reason(['succeeded', 'failed'], 'queued', [], { renews: true }),
} as const satisfies Record<string, Reason>;

export type JobReason = keyof typeof jobReasons;

/** What the history says a job's row must hold. */
export interface Replayed {
  readonly state: JobState | null;
  readonly generation: number;
  readonly fence: number;
  readonly attempts: number;
  readonly failures: number;
  readonly crashes: number;
  readonly releases: number;
}

/**
 * Adds a job's events up, oldest first. Throws where one does not follow from those before it.
 *
 * `gone`: retention removed earlier ones (`history_gone_at`). What is left begins with a new generation, since only an
 * ended job loses its events: that event's own word is taken for the state and the fence before it. State, fence,
 * failures, crashes and releases are the row's then; `generation` and `attempts` lack what came before. Without any event
 * left, nothing is explained: `state` is null.
 */
export function replayHistory(events: readonly JobEvent[], { gone = false } = {}): Replayed {
  let row: Replayed = { state: null, generation: 1, fence: 0, attempts: 0, failures: 0, crashes: 0, releases: 0 };
  const [first] = events;
  if (gone && first) {
    if (!isReason(first.reason) || !jobReasons[first.reason].renews) {
      throw new Error(`Expected a new generation first after events were removed, received ${first.reason}`);
    }
    row = { ...row, state: first.from, fence: first.fence };
  }
  for (const event of events) {
    const known: Reason | undefined = isReason(event.reason) ? jobReasons[event.reason] : undefined;
    if (!known) throw new Error(`Expected a known reason for an event, received ${event.reason}`);
    if (event.from !== row.state || !known.from.includes(event.from) || event.to !== known.to) {
      throw new Error(`Expected ${event.reason} to follow from ${row.state}, received ${event.from} → ${event.to}`);
    }
    const fence = row.fence + (known.fences ? 1 : 0);
    if (event.fence !== fence) throw new Error(`Expected fence ${fence} for ${event.reason}, received ${event.fence}`);
    const added = (counter: Counter) =>
      (known.renews && counter !== 'attempts' ? 0 : row[counter]) + (known.adds.includes(counter) ? 1 : 0);
    row = {
      state: known.to,
      generation: row.generation + (known.renews ? 1 : 0),
      fence,
      attempts: added('attempts'),
      failures: added('failures'),
      crashes: added('crashes'),
      releases: added('releases'),
    };
  }
  return row;
}

function isReason(value: string): value is JobReason {
  return Object.hasOwn(jobReasons, value);
}
