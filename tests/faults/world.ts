/**
 * The world of the simulation: virtual time, processes that crash and sleep, and the fate of every external effect.
 *
 * One event after another, in the order of virtual time; between two of them all promises settle. Everything random comes
 * from the seed, so a seed is a schedule. An effect (a statement, a publish, a put) has two moments: when it happens where
 * it happens, and when its caller hears of it. Its fate decides about both, and a crash may come before, between or after.
 */
import { turn } from '../support/turn.ts';

/**
 * `ok`. `before`: refused, nothing happened. `lost`: it happened, the answer is an error. `slow`: it happens and answers
 * late. `late`: the caller hears an error first, and then it happens. `twice`: it happens, is answered, and happens again
 * later. `crash_before`: the caller dies with it unsent. `crash_after`: it happens, and the caller dies without the answer.
 * `pause`: it happens, and the caller sleeps past its lease before it hears of it.
 */
export const fates = ['ok', 'before', 'lost', 'slow', 'late', 'twice', 'crash_before', 'crash_after', 'pause'] as const;
export type Fate = (typeof fates)[number];

/** Which fates an effect can have besides `ok`, and what its caller hears. */
export interface Manner {
  readonly fates: readonly Fate[];
  readonly before: () => Error;
  /** Of an effect that may have happened. */
  readonly unknown: () => Error;
}

export interface Process {
  readonly name: string;
  alive: boolean;
  /** Virtual time until which it sleeps; 0 of one that never slept. */
  pausedUntilMs: number;
  readonly startedAtMs: number;
  /** Effects of its that went wrong. */
  faults: number;
  /** Called once when it dies. */
  readonly onDeath: (() => void)[];
}

export interface Step {
  readonly number: number;
  readonly atMs: number;
  readonly process: string;
  readonly site: string;
  readonly fate: Fate;
  /** The fates that it could have had besides `ok`. */
  readonly allowed: readonly Fate[];
  /** It found nothing to do, as most polls do. */
  idle: boolean;
}

export interface Fates {
  /** The fate of effect number `number` at `site`. */
  of(site: string, allowed: readonly Fate[], number: number): Fate;
}

export interface World {
  nowMs(): number;
  /** Uniform in [0, 1), from the seed. */
  random(): number;
  /** A number from `min` to `max`, both included. */
  between(min: number, max: number): number;
  pick<T>(from: readonly T[]): T;
  /** Calls `event` at `atMs` of virtual time. Answers how to call it off. */
  at(atMs: number, event: () => void): () => void;
  after(delayMs: number, event: () => void): () => void;
  start(name: string): Process;
  crash(process: Process): void;
  pause(process: Process, ms: number): void;
  /** Runs `event` in a process when it is awake; never when it is dead. */
  in(process: Process, event: () => void): void;
  /** The same for a timer. Of what came while a process slept, its timers go first: its own deadline before late answers. */
  wake(process: Process, event: () => void): void;
  /** One external effect of a process. Never settles once the process is dead. */
  effect<T>(process: Process, site: string, manner: Manner, happen: () => T): Promise<T>;
  /** Runs events until `done` says so, none is left, or virtual time passes `untilMs`. Answers whether `done`. */
  run(done: () => boolean, untilMs: number): Promise<boolean>;
  /** Ends the run with this error: a fault of the simulation, or something that must never happen. */
  fail(error: unknown): void;
  /** No fault from now on. */
  heal(): void;
  readonly steps: readonly Step[];
  /** How often a fault happened at a site: `site fate` → count. */
  readonly counts: ReadonlyMap<string, number>;
}

/** How long a paused process sleeps: past a lease of 45 s. */
const pauseMs = { min: 50_000, max: 120_000 };
const lateMs = { min: 1_000, max: 90_000 };

export function createWorld(options: {
  readonly seed: number;
  readonly fates: Fates;
  /** After every effect: the place of the invariants. Throws when one does not hold. */
  readonly check: (step: Step) => void;
}): World {
  const random = createRandom(options.seed);
  const events = createQueue();
  const steps: Step[] = [];
  const counts = new Map<string, number>();
  let nowMs = 0;
  let healing = false;
  let broken: unknown = null;

  const between = (min: number, max: number) => min + Math.floor(random() * (max - min + 1));
  const at = (atMs: number, event: () => void) => events.add(Math.max(atMs, nowMs), event);
  const after = (delayMs: number, event: () => void) => at(nowMs + delayMs, event);

  function inProcess(process: Process, event: () => void): void {
    if (!process.alive) return;
    if (process.pausedUntilMs > nowMs) at(process.pausedUntilMs, () => inProcess(process, event));
    else event();
  }

  function wake(process: Process, event: () => void): void {
    if (!process.alive) return;
    // A moment before everything else that waits for the end of the sleep.
    if (process.pausedUntilMs > nowMs + 0.5) at(process.pausedUntilMs - 0.5, () => wake(process, event));
    else event();
  }

  function crash(process: Process): void {
    if (!process.alive) return;
    process.alive = false;
    for (const end of process.onDeath) end();
  }

  function effect<T>(process: Process, site: string, manner: Manner, happen: () => T): Promise<T> {
    if (!process.alive) return new Promise(() => {});
    const number = steps.length;
    const fate = healing ? 'ok' : options.fates.of(site, manner.fates, number);
    const step: Step = { number, atMs: nowMs, process: process.name, site, fate, allowed: manner.fates, idle: false };
    steps.push(step);
    if (fate !== 'ok') process.faults += 1;
    const known = `${site} ${fate}`;
    counts.set(known, (counts.get(known) ?? 0) + 1);
    return new Promise<T>((resolve, reject) => {
      const hear = (delayMs: number, say: () => void) => after(delayMs, () => inProcess(process, say));
      const once = (): (() => void) => {
        try {
          const value = happen();
          step.idle = value === 0 || value === false || (Array.isArray(value) && value.length === 0);
          return () => resolve(value);
        } catch (error) {
          return () => reject(error as Error);
        } finally {
          judge(step);
        }
      };
      const send = (delayMs: number, then: (answer: () => void) => void) => after(delayMs, () => then(once()));
      const quickMs = between(1, 8);
      follow(fate, { process, quickMs, hear, send, resolve, reject, manner });
    });
  }

  function follow<T>(
    fate: Fate,
    call: {
      process: Process;
      quickMs: number;
      hear: (delayMs: number, say: () => void) => void;
      send: (delayMs: number, then: (answer: () => void) => void) => void;
      resolve: (value: T) => void;
      reject: (error: Error) => void;
      manner: Manner;
    },
  ): void {
    const { process, quickMs, hear, send, reject, manner } = call;
    const answered = (answer: () => void) => hear(between(1, 4), answer);
    if (fate === 'ok') send(quickMs, answered);
    else if (fate === 'slow') send(between(200, 20_000), answered);
    else if (fate === 'before') hear(quickMs, () => reject(manner.before()));
    else if (fate === 'lost') send(quickMs, () => hear(between(1, 4), () => reject(manner.unknown())));
    else if (fate === 'late') {
      hear(between(1, 500), () => reject(manner.unknown()));
      send(between(lateMs.min, lateMs.max), () => {});
    } else if (fate === 'twice') {
      send(quickMs, answered);
      send(quickMs + between(1, lateMs.max), () => {});
    } else if (fate === 'crash_before') crash(process);
    else if (fate === 'crash_after') {
      send(quickMs, () => crash(process));
    } else {
      send(quickMs, (answer) => {
        process.pausedUntilMs = Math.max(process.pausedUntilMs, nowMs + between(pauseMs.min, pauseMs.max));
        answered(answer);
      });
    }
  }

  function judge(step: Step): void {
    if (broken !== null) return;
    try {
      options.check(step);
    } catch (error) {
      broken = error;
    }
  }

  return {
    nowMs: () => nowMs,
    random,
    between,
    pick: (from) => from[Math.floor(random() * from.length)] as (typeof from)[number],
    at,
    after,
    start: (name) => ({ name, alive: true, pausedUntilMs: 0, startedAtMs: nowMs, faults: 0, onDeath: [] }),
    crash,
    pause: (process, ms) => {
      process.pausedUntilMs = Math.max(process.pausedUntilMs, nowMs + ms);
    },
    in: inProcess,
    wake,
    effect,
    async run(done, untilMs) {
      while (!done()) {
        const next = events.take(untilMs);
        if (!next) return done();
        nowMs = next.atMs;
        next.event();
        // All that can go on without an event does so before the next one.
        await turn();
        if (broken !== null) throw broken;
      }
      return true;
    },
    fail(error) {
      broken ??= error;
    },
    heal: () => {
      healing = true;
    },
    steps,
    counts,
  };
}

/* ------------------------------------------------------------------ random */

/** Mulberry32: small, and the same everywhere. Uniform in [0, 1). */
export function createRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** Fates drawn from a seed of their own: `rate` of the effects have one, and no more than `crashesMax` of them kill. */
export function drawnFates(seed: number, options: { rate: number; crashesMax: number }): Fates {
  const random = createRandom(seed ^ 0x5bd1e995);
  let crashes = 0;
  return {
    of(_site, allowed) {
      const drawn = random();
      const which = random();
      if (drawn >= options.rate || allowed.length === 0) return 'ok';
      const fate = allowed[Math.floor(which * allowed.length)] ?? 'ok';
      if (!fate.startsWith('crash')) return fate;
      crashes += 1;
      return crashes > options.crashesMax ? 'ok' : fate;
    },
  };
}

/** Exactly these fates at these effects. */
export function plannedFates(plan: ReadonlyMap<number, Fate>): Fates {
  return { of: (_site, allowed, number) => planned(plan.get(number), allowed) };
}

/** This fate at the first effect at this site, and none elsewhere. */
export function fateAt(where: string, fate: Fate): Fates {
  let struck = false;
  return {
    of(site, allowed) {
      if (struck || site !== where || !allowed.includes(fate)) return 'ok';
      struck = true;
      return fate;
    },
  };
}

function planned(fate: Fate | undefined, allowed: readonly Fate[]): Fate {
  return fate !== undefined && allowed.includes(fate) ? fate : 'ok';
}

/* ------------------------------------------------------------------- queue */

interface Event {
  readonly atMs: number;
  readonly order: number;
  event: () => void;
}

/** A binary heap by time, then by the order of adding. */
function createQueue() {
  const heap: Event[] = [];
  let order = 0;
  const isBefore = (a: Event, b: Event) => a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
  const swap = (a: number, b: number) => {
    const one = heap[a] as Event;
    heap[a] = heap[b] as Event;
    heap[b] = one;
  };

  function up(at: number): void {
    for (let child = at; child > 0; ) {
      const parent = (child - 1) >> 1;
      if (!isBefore(heap[child] as Event, heap[parent] as Event)) return;
      swap(child, parent);
      child = parent;
    }
  }

  function down(): void {
    for (let parent = 0; ; ) {
      const left = 2 * parent + 1;
      if (left >= heap.length) return;
      const right = left + 1;
      const least = right < heap.length && isBefore(heap[right] as Event, heap[left] as Event) ? right : left;
      if (!isBefore(heap[least] as Event, heap[parent] as Event)) return;
      swap(least, parent);
      parent = least;
    }
  }

  return {
    add(atMs: number, event: () => void): () => void {
      const entry: Event = { atMs, order, event };
      order += 1;
      heap.push(entry);
      up(heap.length - 1);
      return () => {
        entry.event = () => {};
      };
    },
    /** The first event that is not after `untilMs`. */
    take(untilMs: number): Event | null {
      const first = heap[0];
      if (!first || first.atMs > untilMs) return null;
      const last = heap.pop() as Event;
      if (heap.length > 0) {
        heap[0] = last;
        down();
      }
      return first;
    },
  };
}
