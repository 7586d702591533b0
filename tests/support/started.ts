/** `skrepka start` as a real process for tests: its words, its processes, its end. */
import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { onEnd, type Scope } from './on-end.ts';
import { until } from './until.ts';

const main = path.resolve(import.meta.dirname, '../../src/main.ts');

export interface Started {
  readonly process: ChildProcess;
  readonly pid: number;
  stdout(): string;
  stderr(): string;
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  /** Resolves with the URL of the API when it says that it is ready; rejects with its words when it ends before. */
  ready(): Promise<string>;
  /** Pids of all its living descendants, the server's among them. */
  family(): number[];
  /** Like the terminal's Ctrl-C: SIGINT to its whole process group. Resolves with the exit code. */
  ctrlC(): Promise<number | null>;
}

/** Runs `skrepka <words>` in a process group of its own. It is ended with all its descendants when `t` ends. */
export function startCommand(t: Scope, words: readonly string[], settings: Readonly<Record<string, string>>): Started {
  const child = spawn(process.execPath, [main, ...words], {
    detached: true,
    // A supervisor ends with its parent, by the channel between them: a test that is killed leaves nothing behind.
    stdio: ['ignore', 'pipe', 'pipe', words[0] === 'start' ? 'ipc' : 'ignore'],
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, RENDER_CONCURRENCY: '1', ...settings },
  });
  let stdout = '';
  let stderr = '';
  child.stdout?.on('data', (chunk) => (stdout += chunk));
  child.stderr?.on('data', (chunk) => (stderr += chunk));
  const ended = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve) => {
    child.once('close', (code, signal) => resolve({ code, signal }));
  });
  let isEnded = false;
  void ended.then(() => {
    isEnded = true;
  });
  const pid = child.pid ?? 0;
  // Seen last before its end: a supervisor that was killed leaves children whose parent it no longer is.
  let known: number[] = [];
  const watch = setInterval(() => {
    known = [...new Set([...known.filter(isAlive), ...familyOf(pid)])];
  }, 100);
  onEnd(t, async () => {
    clearInterval(watch);
    if (!isEnded) child.kill('SIGTERM');
    await Promise.race([ended, until('it ended', () => isEnded).catch(() => child.kill('SIGKILL'))]);
    for (const left of known.filter(isAlive)) process.kill(left, 'SIGKILL');
  });
  return {
    process: child,
    pid,
    stdout: () => stdout,
    stderr: () => stderr,
    ended,
    async ready() {
      const deadlineMs = 60_000;
      const said = await until('it is ready', () => isEnded || stdout.includes('Ctrl-C stops it'), { deadlineMs });
      const url = /Skrepka is ready at (\S+)/.exec(stdout)?.[1];
      if (said && url) return url;
      throw new Error(`it ended before it was ready:\n${stdout}${stderr}`);
    },
    family: () => familyOf(pid),
    async ctrlC() {
      process.kill(-pid, 'SIGINT');
      return (await ended).code;
    },
  };
}

export function isAlive(pid: number): boolean {
  try {
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

function familyOf(root: number): number[] {
  const parents = new Map<number, number>();
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const line = readFileSync(`/proc/${name}/stat`, 'utf8');
      parents.set(Number(name), Number(line.slice(line.lastIndexOf(')') + 2).split(' ')[1]));
    } catch {
      // It ended while we looked.
    }
  }
  const found = new Set([root]);
  for (let grown = true; grown; ) {
    grown = false;
    for (const [pid, parent] of parents) {
      if (!found.has(parent) || found.has(pid)) continue;
      found.add(pid);
      grown = true;
    }
  }
  found.delete(root);
  return [...found];
}

/** The command line of a process. */
export function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
  } catch {
    return '';
  }
}
