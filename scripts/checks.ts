/** Counted checks for the demonstrations: the first one that fails ends the run. */
import assert from 'node:assert/strict';

/** Something was not as promised. The message is the sentence to print. */
export class CheckFailed extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'CheckFailed';
  }
}

export interface Checks {
  readonly count: number;
  /** Runs `work` and tells that it held, with the note that it answers. Rejects `CheckFailed` when it throws an assertion. */
  check<T>(title: string, work: () => Promise<{ note?: string; value: T }>): Promise<T>;
}

/** `held` is called after each check that held, with its number from 1. */
export function createChecks(held: (number: number, text: string) => void): Checks {
  let count = 0;
  return {
    get count() {
      return count;
    },
    async check(title, work) {
      try {
        const { note, value } = await work();
        count += 1;
        held(count, note === undefined ? title : `${title} (${note})`);
        return value;
      } catch (error) {
        if (!(error instanceof assert.AssertionError)) throw error;
        throw new CheckFailed(`${count + 1}. ${title}: this did not hold. ${error.message}`, error);
      }
    },
  };
}
