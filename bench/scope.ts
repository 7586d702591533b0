/** A scope for one run of a side: what it registers ends with the run, the newest first, also when the run fails. */
import type { Scope } from '../tests/support/on-end.ts';

export async function withScope<T>(work: (scope: Scope) => Promise<T>): Promise<T> {
  const ends: (() => Promise<void>)[] = [];
  const scope: Scope = { after: (end) => void ends.push(end) };
  try {
    return await work(scope);
  } finally {
    for (const end of ends.reverse()) await end();
  }
}
