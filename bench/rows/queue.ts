/**
 * What it costs to queue a job and to get it done, beyond the work itself: ours against BullMQ, pg-boss and Graphile Worker.
 *
 * Each side is two processes of Node, an API with eight producers and a worker with eight slots, on one PostgreSQL with fsync.
 * A run begins with the first upload and ends when the last result is recorded and the queue is empty.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once as next } from 'node:events';
import path from 'node:path';
import { available, installCommand, startValkey, type ValkeyServer } from '../../tests/support/engines/valkey.ts';
import { onEnd, type Scope } from '../../tests/support/on-end.ts';
import { until } from '../../tests/support/until.ts';
import { type BenchPostgres, startPostgres } from '../postgres.ts';
import { type FromQueue, type SideName, sides, type ToQueue } from '../processes/queue.ts';
import type { QueueServers } from '../queue-side.ts';
import type { Figures, Ratio, Row, Side } from '../row.ts';
import { cpuMsOf } from '../usage.ts';

const script = path.resolve(import.meta.dirname, '../processes/queue.ts');
const producers = 8;
const slots = 8;
/** Before the clock runs: code is compiled, statements are planned, connections are open. */
const warmUp = 200;

const names = ['ours', 'bullmq', 'pg-boss', 'graphile-worker'] as const satisfies readonly SideName[];
const goals = { bullmq: 1, 'pg-boss': 2, 'graphile-worker': 2 } as const;

export const row: Row = {
  name: 'queue',
  title: 'Queue overhead: jobs done per second and processor time per job, no-op render',
  about:
    'Eight producers, one API process and one worker process of Node with eight slots on every side, one PostgreSQL with fsync, Redis with AOF always. ' +
    'Every side records each upload and its result in PostgreSQL; ours its leases, fences and history as well, through its embedded broker. ' +
    'Bytes of pictures are left out: ours passes 200 bytes through its pipeline, the references none. Logs are at the level of warnings everywhere.',
  rounds: 5,
  missing: () => (available() ? null : installCommand),
  async open(scope, { quick, say }) {
    const jobs = quick ? 400 : 3_000;
    const postgres = await startPostgres(scope);
    const redis = await startValkey(scope);
    const all = names.map((name) => createSide(name, { postgres, redis, scope, jobs, say }));
    return { sides: all, ratios: ratios(), bounds: [] };
  },
};

function ratios(): Ratio[] {
  return Object.entries(goals).flatMap(([reference, atLeast]): Ratio[] => [
    {
      name: `jobs per second, of ${reference}`,
      ours: 'ours',
      reference,
      figure: 'perSecond',
      goal: { atLeast },
      kind: 'wall',
    },
    { name: `CPU of Node per job, of ${reference}`, ours: 'ours', reference, figure: 'nodeCpuMs', kind: 'cpu' },
    {
      name: `CPU of Node and servers per job, of ${reference}`,
      ours: 'ours',
      reference,
      figure: 'cpuMs',
      kind: 'cpu',
    },
  ]);
}

interface Bench {
  readonly postgres: BenchPostgres;
  readonly redis: ValkeyServer;
  readonly scope: Scope;
  readonly jobs: number;
  say(line: string): void;
}

function createSide(name: SideName, bench: Bench): Side {
  const { postgres, redis, scope, jobs, say } = bench;
  return {
    name,
    async run() {
      const database = await postgres.create();
      await redis.command('FLUSHALL');
      const servers = { databaseUrl: database.url, redisUrl: redis.url };
      await sides[name].prepare(servers);
      const [api, worker] = [startPart(scope, name, 'api'), startPart(scope, name, 'worker')];
      try {
        await Promise.all([api, worker].map((part) => part.ask({ kind: 'open', servers, slots }, 'opened')));
        await work(name, servers, [api, worker], { jobs: warmUp, before: 0 });
        const figures = await measure([api.pid, worker.pid], [postgres.pid, redis.pid], jobs, () =>
          work(name, servers, [api, worker], { jobs, before: warmUp }),
        );
        say(`${name}: ${Math.round(figures.perSecond ?? 0)} jobs/s, ${figures.nodeCpuMs?.toFixed(2)} ms of Node a job`);
        await Promise.all([api.end(), worker.end()]);
        return figures;
      } finally {
        await Promise.all([api.kill(), worker.kill()]);
        await database.drop();
      }
    },
  };
}

async function measure(
  nodes: readonly number[],
  servers: readonly number[],
  jobs: number,
  work: () => Promise<void>,
): Promise<Figures> {
  const before = { node: await cpuMsOf(nodes), server: await cpuMsOf(servers), atMs: performance.now() };
  await work();
  const wallMs = performance.now() - before.atMs;
  const nodeCpuMs = ((await cpuMsOf(nodes)) - before.node) / jobs;
  const serverCpuMs = ((await cpuMsOf(servers)) - before.server) / jobs;
  return { perSecond: (jobs * 1000) / wallMs, nodeCpuMs, serverCpuMs, cpuMs: nodeCpuMs + serverCpuMs };
}

/** All jobs made and done, seen by what is recorded and not only by what the worker says. */
async function work(
  name: SideName,
  servers: QueueServers,
  [api, worker]: readonly [Part, Part],
  { jobs, before }: { jobs: number; before: number },
): Promise<void> {
  const word: ToQueue = { kind: 'jobs', jobs, producers };
  await Promise.all([worker.ask(word, 'finished'), api.ask(word, 'finished')]);
  await until(
    `${name} has recorded every job`,
    async () => {
      const { ready, queued } = await sides[name].count(servers);
      if (ready > before + jobs) throw new Error(`Expected ${before + jobs} results of ${name}, found ${ready}`);
      return ready === before + jobs && queued === 0;
    },
    { everyMs: 5 },
  );
}

interface Part {
  readonly pid: number;
  ask(word: ToQueue, answer: FromQueue['kind']): Promise<void>;
  /** In order; resolves when it is gone. */
  end(): Promise<void>;
  kill(): Promise<void>;
}

/** One of a side's two processes. What it has to say goes to our standard error: none of them says anything in order. */
function startPart(scope: Scope, name: SideName, part: 'api' | 'worker'): Part {
  const child: ChildProcess = fork(script, [name, part], {
    execArgv: [],
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  const ended = new Promise<never>((_, reject) => {
    child.once('exit', (code, signal) => reject(new Error(`${name} ${part} ended: ${signal ?? code}`)));
  });
  ended.catch(() => undefined);
  const kill = async () => {
    child.kill('SIGKILL');
    await ended.catch(() => undefined);
  };
  onEnd(scope, kill);
  return {
    pid: child.pid ?? 0,
    async ask(word, answer) {
      const heard = next(child, 'message') as Promise<[FromQueue]>;
      child.send(word);
      const [{ kind }] = await Promise.race([heard, ended]);
      if (kind !== answer) throw new Error(`Expected "${answer}" of ${name} ${part}, heard "${kind}"`);
    },
    async end() {
      child.send({ kind: 'end' } satisfies ToQueue);
      await ended.catch(() => undefined);
    },
    kill,
  };
}
