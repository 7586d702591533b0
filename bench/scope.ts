/**
 * A scope for one run of a side, or for a row: what it registers ends with it, the newest first, also when it fails or when the whole
 * is interrupted. Then scopes end as well, the one that was opened last first, while their work may still be waiting for something.
 */
import type { Scope } from '../tests/support/on-end.ts';

interface Open {
  /** Ends what is registered; again: what was registered since. */
  end(): Promise<void>;
  cut(reason: Error): void;
}

const open: Open[] = [];
let interrupted: Error | null = null;

/** One Ctrl-C is often two signals, of the terminal and of npm: so soon after the first, the second is its echo. */
const echoMs = 1_500;
/** What was just starting when its scope ended registers itself within this time. */
const lateMs = 1_000;
let interruptedAtMs = 0;

export async function withScope<T>(work: (scope: Scope) => Promise<T>): Promise<T> {
  if (interrupted) throw interrupted;
  const ends: (() => Promise<void>)[] = [];
  const scope: Scope = { after: (end) => void ends.push(end) };
  const cut = Promise.withResolvers<never>();
  const own: Open = {
    async end() {
      for (const end of ends.toReversed()) await end();
    },
    cut: cut.reject,
  };
  open.push(own);
  try {
    return await Promise.race([work(scope), cut.promise]);
  } finally {
    if (interrupted) {
      // Whoever interrupted ends it in its turn; nobody goes on before.
      await cut.promise.catch(() => undefined);
    } else {
      open.splice(open.indexOf(own), 1);
      await own.end();
    }
  }
}

/** Ends everything in order, and lets every `withScope` reject then. A second call after a moment ends the process as it stands. */
export function interrupt(): void {
  if (interrupted) {
    if (performance.now() - interruptedAtMs > echoMs) process.exit(130);
    return;
  }
  interrupted = new Error('Interrupted');
  interruptedAtMs = performance.now();
  // What still runs meets servers that are gone; nobody asks for its result.
  process.on('unhandledRejection', () => undefined);
  void endAll(interrupted);
}

export function isInterrupted(): boolean {
  return interrupted !== null;
}

async function endAll(reason: Error): Promise<void> {
  const all = open.toReversed();
  for (const one of all) await one.end().catch(() => undefined);
  await new Promise((resolve) => setTimeout(resolve, lateMs));
  for (const one of all) await one.end().catch(() => undefined);
  for (const one of all) one.cut(reason);
}
