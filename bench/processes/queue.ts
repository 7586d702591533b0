/**
 * One of the two processes of a side of the row `queue`: `queue.ts <side> api` or `queue.ts <side> worker`, a child of the row.
 *
 * The row says how many jobs there will be; the API makes them, as many producers as are named at once, each one after the
 * other; the worker says when it has done them. `end` closes everything.
 */

import type { QueueServers, QueueSide } from '../queue-side.ts';
import { bullmq } from '../references/bullmq.ts';
import { graphileWorker } from '../references/graphile-worker.ts';
import { pgBoss } from '../references/pg-boss.ts';
import { ours } from './queue-ours.ts';

export type SideName = keyof typeof sides;
export type ToQueue =
  | { readonly kind: 'open'; readonly servers: QueueServers; readonly slots: number }
  | { readonly kind: 'jobs'; readonly jobs: number; readonly producers: number }
  | { readonly kind: 'end' };
/** `finished`: the API has made all jobs of the last `jobs`, the worker has done them. */
export type FromQueue = { readonly kind: 'opened' | 'finished' };

export const sides = { ours, bullmq, 'pg-boss': pgBoss, 'graphile-worker': graphileWorker } satisfies Record<
  string,
  QueueSide
>;

if (process.argv[1] === import.meta.filename) {
  const [name, part] = process.argv.slice(2);
  const side = sides[name as SideName];
  process.once('disconnect', () => process.exit(1));
  if (part === 'api') serveApi(side);
  else serveWorker(side);
}

function serveApi(side: QueueSide): void {
  let api: Awaited<ReturnType<QueueSide['openApi']>> | null = null;
  process.on('message', async (word: ToQueue) => {
    if (word.kind === 'open') {
      api = await side.openApi(word.servers);
      tell('opened');
    }
    if (word.kind === 'jobs') {
      let left = word.jobs;
      const produce = async (_: unknown, producer: number) => {
        for (; left > 0; ) {
          left -= 1;
          await api?.upload(producer);
        }
      };
      await Promise.all(Array.from({ length: word.producers }, produce));
      tell('finished');
    }
    if (word.kind === 'end') {
      await api?.close();
      process.disconnect();
    }
  });
}

function serveWorker(side: QueueSide): void {
  let worker: Awaited<ReturnType<QueueSide['openWorker']>> | null = null;
  let left = Number.NaN;
  const onDone = () => {
    left -= 1;
    if (left === 0) tell('finished');
  };
  process.on('message', async (word: ToQueue) => {
    if (word.kind === 'open') {
      worker = await side.openWorker(word.servers, { slots: word.slots, onDone });
      tell('opened');
    }
    if (word.kind === 'jobs') left = word.jobs;
    if (word.kind === 'end') {
      await worker?.close();
      process.disconnect();
    }
  });
}

function tell(kind: FromQueue['kind']): void {
  process.send?.({ kind } satisfies FromQueue);
}
