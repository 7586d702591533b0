/** Waiting for a condition with a deadline: what a test does instead of sleeping. */
import { setImmediate as turn, setTimeout as wait } from 'node:timers/promises';

/** Asks until the answer is truthy, and gives it. Rejects after `deadlineMs` with what was waited for. */
export async function until<T>(
  what: string,
  ask: () => T | Promise<T>,
  { deadlineMs = 20_000, everyMs = 20 }: { deadlineMs?: number; everyMs?: number } = {},
): Promise<Exclude<T, false | null | undefined | 0 | ''>> {
  const endMs = performance.now() + deadlineMs;
  while (true) {
    const isOver = performance.now() > endMs;
    // Where this process stood still, what it waits for may lie in a socket that the loop has not looked at.
    if (isOver) await turn();
    const answer = await ask();
    if (answer) return answer as Exclude<T, false | null | undefined | 0 | ''>;
    if (isOver) throw new Error(`Waited ${deadlineMs} ms until ${what}`);
    await wait(everyMs);
  }
}
