/**
 * A child process of the supervisor that runs roles, and is started again when it dies.
 *
 * It has a session of its own, so the terminal's Ctrl-C reaches only the supervisor, which then ends its children in
 * order; and an IPC channel, by whose end it notices that the supervisor is gone.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import path from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { StartError } from './errors.ts';
import type { Log } from './pipeline/ports.ts';

/** What a child tells its supervisor. */
export type ChildWord =
  | { readonly kind: 'ready'; readonly url: string | null }
  | { readonly kind: 'refused'; readonly sentence: string };

export interface Child {
  /** Resolves with the URL of its API, if it has one. Rejects `StartError` when the first start fails. */
  readonly ready: Promise<string | null>;
  /** Ends it: SIGTERM, the end of its IPC channel when `hurry` aborts, SIGKILL when that does not help. Resolves when it is gone. */
  stop(hurry: AbortSignal): Promise<void>;
}

export interface ChildSettings {
  readonly roles: readonly string[];
  readonly environment: Record<string, string | undefined>;
}

const backOffMs = { first: 500, cap: 30_000 };
/** Whoever lived this long starts again without waiting long. */
const healthyMs = 60_000;
/** After `hurry`: a child has a last resort of its own, which comes first. */
const killMs = 15_000;

/** Starts `node src/main.ts <roles>` and keeps it running until `stop`. */
export function keepChild(deps: { log: Log }, settings: ChildSettings): Child {
  const { log } = deps;
  const name = settings.roles.join(',');
  const environment = { ...settings.environment };
  const stopping = new AbortController();
  const first = Promise.withResolvers<string | null>();
  // Whoever does not look at it must not die of it.
  first.promise.catch(() => {});
  let current: { child: ChildProcess; ended: Promise<void> } | null = null;
  const kept = keep();

  async function keep(): Promise<void> {
    let delayMs = backOffMs.first;
    let wasReady = false;
    while (!stopping.signal.aborted) {
      const startedAtMs = performance.now();
      const { child, ended } = start(environment, settings.roles);
      current = { child, ended };
      const refusal = await Promise.race([hear(child), ended.then(() => null)]);
      if (refusal?.kind === 'ready') {
        wasReady = true;
        // A port that was taken freely stays the same.
        if (refusal.url) environment.PORT = new URL(refusal.url).port || environment.PORT;
        first.resolve(refusal.url);
      }
      await ended;
      if (stopping.signal.aborted) return;
      if (!wasReady) {
        const sentence = refusal?.kind === 'refused' ? refusal.sentence : null;
        first.reject(
          new StartError(sentence ?? `The process "${name}" ended before it was ready; its words are above.`),
        );
        return;
      }
      if (performance.now() - startedAtMs > healthyMs) delayMs = backOffMs.first;
      const { exitCode, signalCode } = child;
      log.warn(
        { roles: name, exitCode, signal: signalCode, delayMs },
        'a process ended unexpectedly; starting it again',
      );
      await wait(delayMs, undefined, { signal: stopping.signal }).catch(() => {});
      delayMs = Math.min(delayMs * 2, backOffMs.cap);
    }
  }

  return {
    ready: first.promise,
    async stop(hurry) {
      stopping.abort();
      if (current !== null) await end(current.child, current.ended, hurry);
      await kept;
    },
  };
}

function start(environment: Record<string, string | undefined>, roles: readonly string[]) {
  const child = spawn(process.execPath, [path.join(import.meta.dirname, 'main.ts'), ...roles], {
    detached: true,
    env: environment,
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const ended = new Promise<void>((resolve) => {
    child.once('exit', () => resolve());
    child.once('error', () => resolve());
  });
  return { child, ended };
}

async function hear(child: ChildProcess): Promise<ChildWord> {
  return await new Promise((resolve) => child.once('message', (word) => resolve(word as ChildWord)));
}

async function end(child: ChildProcess, ended: Promise<void>, hurry: AbortSignal): Promise<void> {
  let killing: NodeJS.Timeout | undefined;
  const press = () => {
    // Not a second SIGTERM: so soon after the first it would be taken for an echo of it.
    if (child.connected) child.disconnect();
    killing = setTimeout(() => child.kill('SIGKILL'), killMs);
  };
  child.kill('SIGTERM');
  if (hurry.aborted) press();
  else hurry.addEventListener('abort', press, { once: true });
  await ended;
  hurry.removeEventListener('abort', press);
  clearTimeout(killing);
}
