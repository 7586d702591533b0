/** Plays many schedules on all cores and adds up what came of them. */
import { fork } from 'node:child_process';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import type { Order, Share } from './player.ts';

const player = path.join(import.meta.dirname, 'player.ts');

/** Shares `orders` out, as many at once as there are cores. Rejects when a player dies. */
export async function playOrders(orders: readonly Order[], signal?: AbortSignal): Promise<Share> {
  const waiting = [...orders];
  const shares: Share[] = [];
  async function work(): Promise<void> {
    for (let order = waiting.shift(); order; order = waiting.shift()) {
      signal?.throwIfAborted();
      shares.push(await playApart(order));
    }
  }
  await Promise.all(Array.from({ length: Math.min(availableParallelism(), orders.length) }, work));
  return shares.reduce(add);
}

/** `count` seeds from `first` on, in shares of a few hundred: a share that finds much ends early. */
export function seedOrders(first: number, count: number): Order[] {
  const size = Math.max(1, Math.min(250, Math.ceil(count / availableParallelism())));
  const orders: Order[] = [];
  for (let at = 0; at < count; at += size) {
    orders.push({ kind: 'seeds', first: first + at, count: Math.min(size, count - at), step: 1 });
  }
  return orders;
}

export function exhaustiveOrders(pairs: boolean): Order[] {
  const parts = 4 * availableParallelism();
  return Array.from({ length: parts }, (_, part) => ({ kind: 'exhaustive', part, parts, pairs }));
}

async function playApart(order: Order): Promise<Share> {
  return await new Promise((resolve, reject) => {
    const child = fork(player, [JSON.stringify(order)], {
      execArgv: [],
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    child.once('message', (share) => resolve(share as Share));
    child.once('error', reject);
    child.once('exit', (code) => reject(new Error(`a player ended with ${code} before it said what it had played`)));
  });
}

function add(a: Share, b: Share): Share {
  const counts = { ...a.counts };
  for (const [name, count] of Object.entries(b.counts)) counts[name] = (counts[name] ?? 0) + count;
  return {
    played: a.played + b.played,
    steps: a.steps + b.steps,
    answered: a.answered + b.answered,
    singles: a.singles + b.singles,
    pairs: a.pairs + b.pairs,
    counts,
    violations: [...a.violations, ...b.violations],
  };
}
