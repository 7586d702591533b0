/**
 * What a row of the benchmarks is: sides that do the same work, and what is asked of their figures.
 *
 * A row never judges itself: it measures, and `bench/rounds.ts` decides which rounds count and which ratio comes out.
 */
import type { Scope } from '../tests/support/on-end.ts';

/** What one run of one side gave, by name: milliseconds, bytes, counts or counts a second, as the name says (`cpuMs`, `p95Ms`, `perSecond`). */
export type Figures = Readonly<Record<string, number>>;

/** One way of doing the work. `run` does all of it once and answers its figures; it leaves nothing behind for the next. */
export interface Side {
  readonly name: string;
  run(): Promise<Figures>;
}

/** Inclusive. */
export type Goal = { readonly atLeast: number } | { readonly atMost: number };

/** Ours divided by the reference, of one figure, within one round. */
export interface Ratio {
  /** For readers: `ready images a second`. Unique in its row. */
  readonly name: string;
  /** The sides' names. */
  readonly ours: string;
  readonly reference: string;
  readonly figure: string;
  /** Where the reference calls its figure otherwise. */
  readonly referenceFigure?: string;
  /** None: it is told, and asked nothing. */
  readonly goal?: Goal;
  /** Time on the processor is what is asked for on a shared machine; wall-clock time is told beside it. */
  readonly kind: 'cpu' | 'wall';
}

/** A figure of ours that is compared with no other side: `VmHWM` of a process, an overhead in milliseconds. */
export interface Bound {
  readonly name: string;
  readonly side: string;
  readonly figure: string;
  readonly unit: 'ms' | 'MiB' | '%' | 'count';
  readonly goal?: Goal;
}

export interface Measured {
  readonly sides: readonly Side[];
  readonly ratios: readonly Ratio[];
  readonly bounds: readonly Bound[];
  /** Lines for readers of the results, below the row: what figures cannot say. */
  readonly notes?: readonly string[];
}

export interface Row {
  /** In a command: `--rows render,accept`. */
  readonly name: string;
  /** For readers. */
  readonly title: string;
  /** What is compared with what, and what was left equal, in a sentence or two. */
  readonly about: string;
  /** How many rounds are played unless `--rounds` says otherwise. */
  readonly rounds: number;
  /** The command that installs what this machine lacks for it, or null. */
  missing(): string | null;
  /** Starts what all rounds share; it is gone when `scope` ends. `quick`: as little work as shows that the row runs. */
  open(scope: Scope, options: { readonly quick: boolean; say(line: string): void }): Promise<Measured>;
}
