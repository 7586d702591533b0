/** Counted checks for the demonstrations: one line each, the first failed one ends the run. */
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
  /** Runs `work` and prints a line: `title`, and what it answers. Rejects `CheckFailed` when it throws an assertion. */
  check<T>(title: string, work: () => Promise<{ note?: string; value: T }>): Promise<T>;
}

/** `print` gets finished lines. */
export function createChecks(print: (line: string) => void): Checks {
  let count = 0;
  return {
    get count() {
      return count;
    },
    async check(title, work) {
      try {
        const { note, value } = await work();
        count += 1;
        print(`ok ${String(count).padStart(2)}  ${title}${note === undefined ? '' : `  (${note})`}`);
        return value;
      } catch (error) {
        if (!(error instanceof assert.AssertionError)) throw error;
        throw new CheckFailed(`not ok ${count + 1}  ${title}: ${error.message}`, error);
      }
    },
  };
}
