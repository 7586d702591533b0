/**
 * Clean-ups of a test in the order that makes sense: what was made last goes first.
 *
 * Node runs `after` hooks in the order of registration, which would remove a folder before the server that writes to it.
 */

/** What has an end: a test's context, or the `test` module for a whole file. */
export interface Scope {
  after(clean: () => Promise<void>): void;
}

const stacks = new WeakMap<Scope, (() => Promise<unknown> | unknown)[]>();

/** Runs `clean` when `t` ends, before everything that was registered here earlier. All run, the first failure is reported. */
export function onEnd(t: Scope, clean: () => Promise<unknown> | unknown): void {
  const known = stacks.get(t);
  if (known) {
    known.push(clean);
    return;
  }
  const stack = [clean];
  stacks.set(t, stack);
  t.after(async () => {
    const failures: unknown[] = [];
    for (let next = stack.pop(); next !== undefined; next = stack.pop()) {
      try {
        await next();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  });
}
