/**
 * A bound on the time that something takes, for what the timers of this process end. It counts the time in which this process
 * ran: while the machine stands still, for seconds on a busy one, no timer of the product can fire either. It says nothing of a product
 * that holds up its own thread without computing.
 */
import assert from 'node:assert/strict';

/** How often the clock is looked at, and what counts of a wait between two looks that is no work of this process. */
const looks = { everyMs: 25, countMs: 100 };

/** Answers what `work` answers, and rejects as it does. Fails unless that takes less than `boundMs`. */
export async function within<T>(what: string, boundMs: number, work: () => Promise<T>): Promise<T> {
  let ranMs = 0;
  let lookedMs = performance.now();
  let spent = process.cpuUsage();
  const look = (): void => {
    const nowMs = performance.now();
    const { user, system } = process.cpuUsage(spent);
    // What this process computed is its own time, however long it did not look.
    ranMs += Math.min(nowMs - lookedMs, Math.max(looks.countMs, (user + system) / 1000));
    [lookedMs, spent] = [nowMs, process.cpuUsage()];
  };
  const timer = setInterval(look, looks.everyMs);
  try {
    const answer = await work();
    look();
    assert.ok(ranMs < boundMs, `expected that ${what} within ${boundMs} ms, received it after ${Math.round(ranMs)} ms`);
    return answer;
  } finally {
    clearInterval(timer);
  }
}
