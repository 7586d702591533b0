/** Plays many schedules on all cores and adds up what came of them. */
import { fork } from 'node:child_process';
import { availableParallelism, setPriority } from 'node:os';
import path from 'node:path';
import type { Order, Share } from './player.ts';

const niceness = 10;
const root = path.resolve(import.meta.dirname, '../..');

export interface PlayOptions {
  readonly signal?: AbortSignal;
  /** Of all so far, whenever a share has ended. */
  readonly onShare?: (sofar: Share) => void;
}

/** Shares `orders` out, as many at once as there are cores; keeps sums only, however many there are. Rejects when a player dies. */
export async function playOrders(orders: Iterable<Order>, { signal, onShare }: PlayOptions = {}): Promise<Share> {
  const waiting = orders[Symbol.iterator]();
  let sum: Share = nothing;
  async function work(): Promise<void> {
    for (let next = waiting.next(); !next.done; next = waiting.next()) {
      signal?.throwIfAborted();
      const share = await playApart(next.value, { signal });
      sum = add(sum, share);
      onShare?.(sum);
    }
  }
  await Promise.all(Array.from({ length: availableParallelism() }, work));
  return sum;
}

/** `count` seeds from `first` on, in shares of at most 250: a share that finds much ends early. */
export function* seedOrders(first: number, count: number): Generator<Order> {
  const size = Math.max(1, Math.min(250, Math.ceil(count / availableParallelism())));
  for (let at = 0; at < count; at += size) {
    yield { kind: 'seeds', first: first + at, count: Math.min(size, count - at), violationsMax: 5 };
  }
}

export function* exhaustiveOrders(pairs: boolean): Generator<Order> {
  const parts = 8 * availableParallelism();
  for (let part = 0; part < parts; part += 1) yield { kind: 'exhaustive', part, parts, pairs };
}

/**
 * One order in a process of its own. `folder`: of the repository, or of a copy. Rejects when the player dies before it has said what
 * it played, with the end of what it wrote.
 */
export async function playApart(
  order: Order,
  { folder = root, signal, env = {} }: { folder?: string; signal?: AbortSignal; env?: Record<string, string> } = {},
): Promise<Share> {
  return await new Promise((resolve, reject) => {
    const child = fork(path.join(folder, 'tests/faults/player.ts'), [JSON.stringify(order)], {
      cwd: folder,
      execArgv: [],
      // The runner of Node takes a child of a test for one of its own files.
      env: { ...process.env, NODE_TEST_CONTEXT: undefined, NODE_OPTIONS: undefined, ...env },
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      signal,
    });
    // Simulated time waits for nobody; the tests beside it wait for processes, with deadlines.
    if (child.pid !== undefined) setPriority(child.pid, niceness);
    let said = '';
    child.stderr?.on('data', (text: Buffer) => {
      said = (said + text).slice(-4000);
    });
    child.once('message', (share) => resolve(share as Share));
    child.once('error', reject);
    child.once('close', (code) => reject(new Error(`a player ended with ${code} before it had played:\n${said}`)));
  });
}

const nothing: Share = { played: 0, steps: 0, answered: 0, singles: 0, pairs: 0, verbs: 0, counts: {}, violations: [] };
/** Of a night in which everything is broken, only the first. */
const violationsMax = 100;

function add(a: Share, b: Share): Share {
  const counts = { ...a.counts };
  for (const [name, count] of Object.entries(b.counts)) counts[name] = (counts[name] ?? 0) + count;
  return {
    played: a.played + b.played,
    steps: a.steps + b.steps,
    answered: a.answered + b.answered,
    singles: a.singles + b.singles,
    pairs: a.pairs + b.pairs,
    verbs: a.verbs + b.verbs,
    counts,
    violations: [...a.violations, ...b.violations].slice(0, violationsMax),
  };
}
