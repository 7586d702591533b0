/**
 * Roles as real processes for tests: started with their wiring of production, stopped at named points, killed there.
 *
 * A point that is armed with `wait` holds the process until `resume`; one that is armed with `kill` ends it by SIGKILL.
 */
import { type ChildProcess, fork } from 'node:child_process';
import path from 'node:path';
import type { Point } from '../../src/pipeline/ports.ts';
import type { Role } from '../../src/roles.ts';
import { onEnd, type Scope } from './on-end.ts';

const root = path.resolve(import.meta.dirname, '../..');

export type Action = 'wait' | 'kill';
export type FromParent =
  | { readonly kind: 'arm'; readonly point: Point; readonly action: Action; readonly number: number }
  | { readonly kind: 'disarm' | 'resume'; readonly point: Point; readonly number: number };
export type FromRole =
  | { readonly kind: 'ready'; readonly url: string | null }
  | { readonly kind: 'reached'; readonly point: Point; readonly subject: string }
  | { readonly kind: 'done'; readonly number: number };

/** Settings of journeys: short times, in the same relations as the defaults. */
export const shortTimes = {
  LEASE: '6s',
  RENEW: '1500ms',
  LEASE_RESERVE: '1s',
  LEASE_MARGIN: '50ms',
  RENDER_TIMEOUT: '5s',
  BROKER_REDELIVERY: '7s',
  RING_RETRY: '1s',
  PUBLISH_TIMEOUT: '500ms',
  RERING: '1s',
  STARVED: '1s',
  CLEANUP_GRACE: '6s',
  JANITOR_INTERVAL: '100ms',
} as const;

/** On top of the short times, where no lease has to run out: then no pause of this machine ends an attempt by right. */
export const longLease = { LEASE: '60s', BROKER_REDELIVERY: '70s', CLEANUP_GRACE: '60s' } as const;

export interface RoleOptions {
  readonly roles: readonly Role[];
  readonly databaseUrl: string;
  readonly dataDir: string;
  /** Environment variables of `docs/configuration.md`. */
  readonly settings?: Readonly<Record<string, string>>;
  /** Armed before the process does anything. */
  readonly points?: Readonly<Partial<Record<Point, Action>>>;
  /** The script of a worker's render children, in place of production's. */
  readonly renderScript?: URL;
  /** The folder of another build; left out: this one. */
  readonly build?: string;
}

export interface RoleProcess {
  /** Of the API; empty without that role. */
  readonly url: string;
  readonly pid: number;
  /** Resolves when the process ended. */
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  /** The next time that a point armed with `wait` is reached (or was, and nobody asked yet). Rejects when the process ends before. */
  reached(point: Point): Promise<{ subject: string }>;
  arm(point: Point, action: Action): Promise<void>;
  disarm(point: Point): Promise<void>;
  /** Lets all go on that stand at the point. It stays armed. */
  resume(point: Point): Promise<void>;
  /** SIGKILL, and waits for the end. */
  kill(): Promise<void>;
  /** SIGTERM, and waits for the end. Answers the exit code. */
  stop(): Promise<number | null>;
  /** All lines so far. */
  output(): string;
}

/** Starts the roles in one process of their own, on a free port; it is killed when `t` ends. Rejects with its output when it does not start. */
export async function startRole(t: Scope, options: RoleOptions): Promise<RoleProcess> {
  const child = fork(path.join(options.build ?? root, 'tests/support/role-process.ts'), [...options.roles], {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    execArgv: [],
    env: {
      ...process.env,
      NODE_TEST_CONTEXT: undefined,
      HOST: '127.0.0.1',
      PORT: '0',
      LOG_LEVEL: 'debug',
      RENDER_CONCURRENCY: '1',
      ...options.settings,
      DATABASE_URL: options.databaseUrl,
      DATA_DIR: options.dataDir,
      SKREPKA_TEST_POINTS: JSON.stringify(options.points ?? {}),
      SKREPKA_TEST_RENDER_SCRIPT: options.renderScript?.href ?? '',
    },
  });
  let output = '';
  child.stdout?.on('data', (chunk) => (output += chunk));
  child.stderr?.on('data', (chunk) => (output += chunk));
  const ended = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }));
  });
  const words = listenTo(child, ended, () => output);
  const kill = async () => {
    child.kill('SIGKILL');
    await ended;
  };
  onEnd(t, kill);
  const url = await words.ready;
  return {
    url: url ?? '',
    pid: child.pid ?? 0,
    ended,
    reached: words.reached,
    arm: (point, action) => words.ask({ kind: 'arm', point, action }),
    disarm: (point) => words.ask({ kind: 'disarm', point }),
    resume: (point) => words.ask({ kind: 'resume', point }),
    kill,
    async stop() {
      child.kill('SIGTERM');
      return (await ended).code;
    },
    output: () => output,
  };
}

type Question = { kind: 'arm'; point: Point; action: Action } | { kind: 'disarm' | 'resume'; point: Point };

function listenTo(child: ChildProcess, ended: Promise<unknown>, output: () => string) {
  const ready = Promise.withResolvers<string | null>();
  const seen: { point: Point; subject: string }[] = [];
  const waiting: { point: Point; found: (subject: string) => void; lost: (error: Error) => void }[] = [];
  const answers = new Map<number, { resolve: () => void; reject: (error: Error) => void }>();
  let number = 0;

  child.on('message', (word: FromRole) => {
    if (word.kind === 'ready') ready.resolve(word.url);
    if (word.kind === 'done') answers.get(word.number)?.resolve();
    if (word.kind !== 'reached') return;
    const at = waiting.findIndex(({ point }) => point === word.point);
    if (at === -1) seen.push(word);
    else waiting.splice(at, 1)[0]?.found(word.subject);
  });
  void ended.then(() => {
    const error = new Error(`the process ended; it said:\n${output()}`);
    ready.reject(error);
    for (const { lost } of waiting) lost(error);
    for (const { reject } of answers.values()) reject(error);
  });

  return {
    ready: ready.promise,
    async reached(point: Point): Promise<{ subject: string }> {
      const at = seen.findIndex((word) => word.point === point);
      const word = at === -1 ? undefined : seen.splice(at, 1)[0];
      if (word) return { subject: word.subject };
      const subject = await new Promise<string>((found, lost) => waiting.push({ point, found, lost }));
      return { subject };
    },
    async ask(question: Question): Promise<void> {
      number += 1;
      const own = number;
      await new Promise<void>((resolve, reject) => {
        answers.set(own, { resolve, reject });
        child.send({ ...question, number: own });
      });
      answers.delete(own);
    },
  };
}
