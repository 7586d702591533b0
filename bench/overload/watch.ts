/**
 * What is watched while a load runs, from outside the product: the queue by SQL, memory and time on the processor by `/proc`.
 *
 * Five questions and one look at memory a second are the price; the process that watches is not counted as ours either.
 */
import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import type { Client } from '../../src/postgres/pool.ts';
import { cpuMsOf, familyPidsOf, residentMiBOf, residentMiBOfProcess } from '../usage.ts';
import { nowMs } from './sending.ts';

/** Who is who; a broker that is PostgreSQL has no process of its own: null. */
export interface Cast {
  readonly api: number;
  readonly worker: number;
  readonly postgres: number;
  readonly broker: number | null;
  readonly load: number;
}

export interface QueueSample {
  readonly atMs: number;
  readonly queued: number;
  readonly processing: number;
  /** Age of the oldest that waits; 0 when none does. */
  readonly oldestMs: number;
}

export interface MemorySample {
  readonly apiMiB: number;
  readonly workerMiB: number;
  readonly childrenMiB: number;
}

/** Ms on the processor so far. `machine`: all of it, everybody's. */
export interface Spent {
  readonly atMs: number;
  readonly api: number;
  readonly worker: number;
  readonly children: number;
  readonly postgres: number;
  readonly broker: number;
  readonly load: number;
  readonly watcher: number;
  readonly machine: number;
  /** Bytes that the API has read, from connections and files. */
  readonly apiReadBytes: number;
}

export interface Watching {
  /** Resolves when the last sample is in. */
  stop(): Promise<{ readonly queue: readonly QueueSample[]; readonly memory: readonly MemorySample[] }>;
}

const queueMs = 200;
const memoryEvery = 5;

/** Jobs of uploads that nobody has finished. */
export async function lookAtQueue(db: Client, atMs: number): Promise<QueueSample> {
  const { rows } = await db.query<{ queued: number; processing: number; oldest_ms: number }>(
    `select count(*) filter (where state = 'queued')::int as queued,
            count(*) filter (where state = 'processing')::int as processing,
            coalesce(extract(epoch from now() - min(created_at) filter (where state = 'queued')), 0)::float8 * 1000 as oldest_ms
     from jobs
     where ring_at is not null`,
  );
  const [row] = rows;
  if (!row) throw new Error('Expected a row about the queue, received none');
  return { atMs, queued: row.queued, processing: row.processing, oldestMs: row.oldest_ms };
}

export function startWatching(db: Client, cast: Cast): Watching {
  const beganAt = nowMs();
  const queue: QueueSample[] = [];
  const memory: MemorySample[] = [];
  const stopping = new AbortController();
  const running = watch();

  async function watch(): Promise<void> {
    for (let round = 0; !stopping.signal.aborted; round += 1) {
      queue.push(await lookAtQueue(db, nowMs() - beganAt));
      if (round % memoryEvery === 0) {
        const sample = await lookAtMemory(cast);
        if (sample) memory.push(sample);
      }
      await pause(queueMs, undefined, { signal: stopping.signal }).catch(() => {});
    }
  }
  // Who stops it hears of it; until then nobody listens.
  running.catch(() => {});
  return {
    async stop() {
      stopping.abort();
      await running;
      return { queue, memory };
    },
  };
}

/** Null when a child was replaced meanwhile. */
async function lookAtMemory({ api, worker }: Cast): Promise<MemorySample | null> {
  const children = familyPidsOf([worker]).filter((pid) => pid !== worker);
  try {
    return {
      apiMiB: await residentMiBOfProcess(api),
      workerMiB: await residentMiBOfProcess(worker),
      childrenMiB: await residentMiBOf(children),
    };
  } catch {
    return null;
  }
}

export async function spentBy(cast: Cast): Promise<Spent> {
  const worker = ownCpuMs(cast.worker);
  const own = process.cpuUsage();
  return {
    atMs: nowMs(),
    api: await cpuMsOf([cast.api]),
    worker,
    children: (await cpuMsOf([cast.worker])) - worker,
    postgres: await cpuMsOf([cast.postgres]),
    broker: cast.broker === null ? 0 : await cpuMsOf([cast.broker]),
    load: await cpuMsOf([cast.load]),
    watcher: (own.user + own.system) / 1000,
    machine: machineMs(),
    apiReadBytes: Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${cast.api}/io`, 'utf8'))?.[1] ?? Number.NaN),
  };
}

/** A tick is 10 ms on all platforms of Node. */
const tickMs = 10;

function ownCpuMs(pid: number): number {
  const line = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) * tickMs;
}

/** Busy and stolen time of all processors, system and interrupts included: all but idle and waiting for disks. */
export function machineMs(): number {
  const [line = ''] = readFileSync('/proc/stat', 'utf8').split('\n');
  const [user = 0, nice = 0, system = 0, , , irq = 0, soft = 0, steal = 0] = line.split(/\s+/).slice(1).map(Number);
  return (user + nice + system + irq + soft + steal) * tickMs;
}
