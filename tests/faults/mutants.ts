/**
 * The mutants: one guard taken out of a copy of the source at a time. The fault suite must catch every one of them; what it would
 * not catch, it does not prove.
 *
 * `mutants-pipeline.ts` has those that die in the simulation, whose modules of `src/pipeline/` are the real ones; `mutants-postgres.ts`
 * those of the SQL, which die on a real PostgreSQL because the store's model no longer agrees with it. `mutants-play.ts` plays them.
 */
import { pipelineMutants } from './mutants-pipeline.ts';
import { postgresMutants } from './mutants-postgres.ts';

export interface Patch {
  /** Path from the root of the repository. */
  readonly file: string;
  /** Stands in the file exactly once. */
  readonly find: string;
  readonly replace: string;
}

export interface Mutant {
  /** What is wrong with it, as a sentence without a full stop. */
  readonly name: string;
  /** The invariants that may be seen to break, the one that is meant first. */
  readonly kills: readonly [string, ...string[]];
  /** `seeds`: the simulation. `twins`: model and PostgreSQL, side by side. `test`: a test that is there anyway. */
  readonly by: 'seeds' | 'twins' | Test;
  readonly patches: readonly Patch[];
}

export interface Test {
  readonly file: string;
  /** Of the test's title. */
  readonly title: string;
}

export const mutants: readonly Mutant[] = [...pipelineMutants, ...postgresMutants];
