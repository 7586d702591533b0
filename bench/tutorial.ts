/**
 * The service that tutorials build, with everything around it: Express and multer, BullMQ on Redis, sharp, PostgreSQL. As real
 * processes, which can be killed and started again one by one.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { startValkey } from '../tests/support/engines/valkey.ts';
import { onEnd, type Scope } from '../tests/support/on-end.ts';
import type { Picture } from './pictures.ts';
import { startPostgres } from './postgres.ts';
import type { Ground } from './references/express-multer-images.ts';
import { createUploads } from './references/uploads.ts';
import { asForm, connectTo } from './user.ts';

export type TutorialPart = 'api' | 'worker' | 'redis' | 'postgres';

export interface Tutorial {
  readonly databaseUrl: string;
  /** Pids of all its processes, its servers included. */
  readonly roots: readonly number[];
  /** The id of an upload that was answered with 202, null for any other answer. Rejects when the connection fails. */
  upload(picture: Picture): Promise<string | null>;
  kill(part: TutorialPart): Promise<void>;
  start(part: TutorialPart): Promise<void>;
}

/**
 * `file`: Redis with an append-only file that is flushed every second, as BullMQ's guide for production advises. `memory`: as the image
 * `redis` starts, which is what tutorials do: a snapshot now and then, and nothing else.
 */
const redisWords = {
  file: ['--appendfsync', 'everysec'],
  memory: ['--appendonly', 'no', '--save', '3600 1 300 100 60 10000'],
} as const;

export interface TutorialOptions {
  readonly redis?: keyof typeof redisWords;
  readonly encoders?: Ground['encoders'];
}

/** Starts it and waits until it takes uploads and jobs. */
export async function openTutorial(
  scope: Scope,
  { redis: keeps = 'file', encoders = 'ours' }: TutorialOptions = {},
): Promise<Tutorial> {
  const dir = await mkdtemp(path.join(tmpdir(), 'skrepka-bench-tutorial-'));
  onEnd(scope, () => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  const postgres = await startPostgres(scope);
  const redis = await startValkey(scope, { words: redisWords[keeps] });
  const { url: databaseUrl } = await postgres.create();
  await createUploads(databaseUrl);
  const ground = { databaseUrl, redisUrl: redis.url, dir, port: 0, encoders };
  const api = keepProcess(scope, 'express-multer.ts');
  const worker = keepProcess(scope, 'express-multer-worker.ts');
  let url = await api.start(ground);
  await worker.start(ground);
  const ask = connectTo(() => url ?? '', scope);
  const parts = { api, worker, redis, postgres };
  return {
    databaseUrl,
    get roots() {
      return Object.values(parts).map(({ pid }) => pid);
    },
    async upload({ bytes, contentType, name }) {
      const { headers, body } = asForm(bytes, { contentType, fileName: name });
      const { status, text } = await ask('/images', { method: 'POST', headers, body });
      return status === 202 ? (JSON.parse(text) as { id: string }).id : null;
    },
    kill: (part) => parts[part].kill(),
    async start(part) {
      if (part === 'api') url = await api.start({ ...ground, port: Number(new URL(url ?? '').port) });
      else if (part === 'worker') await worker.start(ground);
      else await parts[part].start();
    },
  };
}

/** One process of Node that can be killed and started again. What it says goes nowhere: Express prints every error that it meets. */
function keepProcess(scope: Scope, script: string) {
  let running: { child: ChildProcess; ended: Promise<void> } | null = null;
  const kill = async () => {
    running?.child.kill('SIGKILL');
    await running?.ended;
  };
  onEnd(scope, kill);
  return {
    kill,
    get pid() {
      return running?.child.pid ?? 0;
    },
    /** Resolves with where it listens, or null. Rejects when it ends instead. */
    async start(ground: Ground): Promise<string | null> {
      const child = fork(path.join(import.meta.dirname, 'references', script), {
        execArgv: [],
        stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      });
      const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
      running = { child, ended };
      child.send(ground);
      const word = await Promise.race([
        new Promise<{ url: string | null }>((resolve) =>
          child.once('message', (heard) => resolve(heard as { url: string | null })),
        ),
        ended.then(() => null),
      ]);
      if (!word) throw new Error(`${script} ended before it was ready`);
      return word.url;
    },
  };
}
