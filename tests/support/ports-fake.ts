/**
 * Fakes behind ports, for pipeline tests: a painter that writes small real files instead of rendering, a silent log, and
 * `faulty`, which makes single calls of any port fail before, after or instead of doing their work.
 */
import { createHash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Images, Log, Meter, Point, Reach, Sniffer } from '../../src/pipeline/ports.ts';

export const silent: Log = { debug() {}, info() {}, warn() {}, error() {} };

type Labels = Readonly<Record<string, string>>;

/**
 * Keeps what was told, so that a test can ask. `labels` are the ones to look for; others may stand beside them. `counted` adds
 * up, `observed` lists the seconds in order, `gauged` lists what a gauge was set to in order.
 */
export function createTally() {
  const told: { name: string; labels: Labels; value: number }[] = [];
  const tell = (name: string, value: number, labels: Labels = {}) => void told.push({ name, labels, value });
  const values = (name: string, wanted: Labels = {}) =>
    told
      .filter((one) => one.name === name && Object.entries(wanted).every(([key, value]) => one.labels[key] === value))
      .map(({ value }) => value);
  const meter: Meter = {
    count: (name, labels, by = 1) => tell(name, by, labels),
    observe: (name, seconds, labels) => tell(name, seconds, labels),
    gauge: (name, value, labels) => tell(name, value, labels),
  };
  return {
    ...meter,
    counted: (name: string, labels?: Labels) => values(name, labels).reduce((sum, value) => sum + value, 0),
    observed: values,
    gauged: values,
    told: (): readonly Readonly<{ name: string; labels: Labels }>[] => told,
  };
}

/** Recognises by the first bytes like the real one, but only `IMG` (a JPEG here) and nothing else. */
export const fakeSniffer: Sniffer = {
  headBytes: 16,
  sniff: async (head) =>
    Buffer.from(head).toString('latin1').startsWith('IMG') ? { contentType: 'image/jpeg' } : null,
};

/** Writes one file a variant whose content names the recipe's version. `before` runs first: the place to fail or to wait. */
export function createPainter(
  before: (signal: AbortSignal) => Promise<void> = async () => {},
): Images & { renders: number } {
  return {
    renders: 0,
    async render({ outputDir, recipe }, signal) {
      this.renders += 1;
      await before(signal);
      const variants = await Promise.all(
        recipe.variants.map(async ({ name, format }) => {
          const bytes = Buffer.from(`${name} of version ${recipe.version}`);
          const path = join(outputDir, `${name}.out`);
          await writeFile(path, bytes);
          const sha256 = createHash('sha256').update(bytes).digest('hex');
          return { name, path, contentType: `image/${format}`, width: 10, height: 10, size: bytes.length, sha256 };
        }),
      );
      return { width: 40, height: 30, frames: 1, placeholder: 'AAAA', variants };
    },
    async close() {},
  };
}

/** `before`: fails without doing it. `after`: does it, then fails. `answer`: does it, then says something else. `hang`: never answers. A function: runs before it. */
export type Plan =
  | { before: () => Error }
  | { after: () => Error }
  | { answer: unknown }
  | { hang: true }
  | { first: (args: readonly unknown[]) => Promise<void> };

/**
 * Wraps a port. `plan(verb, …)` arms the next calls of a verb, one plan a call; calls without a plan pass through.
 * `calls(verb)` counts those that were made.
 */
export function faulty<T extends object>(port: T) {
  const plans = new Map<string, Plan[]>();
  const counts = new Map<string, number>();
  const wrapped = new Proxy(port, {
    get(target, verb, receiver) {
      const value = Reflect.get(target, verb, receiver) as unknown;
      if (typeof value !== 'function' || typeof verb !== 'string') return value;
      return (...args: unknown[]) => {
        counts.set(verb, (counts.get(verb) ?? 0) + 1);
        const plan = plans.get(verb)?.shift();
        const act = () => Reflect.apply(value, target, args) as unknown;
        return plan ? follow(plan, act, args) : act();
      };
    },
  });
  return {
    port: wrapped,
    plan(verb: keyof T & string, ...more: Plan[]) {
      plans.set(verb, [...(plans.get(verb) ?? []), ...more]);
    },
    calls: (verb: keyof T & string) => counts.get(verb) ?? 0,
  };
}

async function follow(plan: Plan, act: () => unknown, args: readonly unknown[]): Promise<unknown> {
  if ('before' in plan) throw plan.before();
  if ('hang' in plan) return new Promise(() => {});
  if ('first' in plan) {
    await plan.first(args);
    return act();
  }
  await act();
  if ('answer' in plan) return plan.answer;
  throw plan.after();
}

/** A place where whoever calls `wait` is held: `reached` resolves when somebody does, and they go on at `pass`. */
export function createHold() {
  const arrival = Promise.withResolvers<void>();
  const gate = Promise.withResolvers<void>();
  const wait = async () => {
    arrival.resolve();
    await gate.promise;
  };
  return { wait, reached: arrival.promise, pass: () => gate.resolve() };
}

/** Named points under a test's control: `reached` resolves when one is; what is held there goes on at `pass`. */
export function createPoints() {
  const held = new Map<Point, () => Promise<void>>();
  const reach: Reach = async (point) => {
    const wait = held.get(point);
    held.delete(point);
    await wait?.();
  };
  return {
    reach,
    /** Holds the next passage of a point. */
    hold(point: Point): { reached: Promise<void>; pass: () => void } {
      const { wait, reached, pass } = createHold();
      held.set(point, wait);
      return { reached, pass };
    },
  };
}

/** How long a piece of work takes; never a wait for something to have happened. */
export const takes = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));
