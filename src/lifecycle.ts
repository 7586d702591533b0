/**
 * The end of a process: what is stopped, in which order, within which time.
 *
 * SIGTERM, SIGINT or SIGHUP starts the drain: the steps run one after the other, the last registered first, and may finish
 * what runs. When the grace time is over, at a second signal, or when the parent ends its IPC channel (it is gone, or in a hurry
 * itself), `hurry` aborts: a step then gives up what it can and comes to its end. One Ctrl-C is often two signals, of the terminal
 * and of npm, which passes on what it got: a signal within `echoMs` of the one before it is an echo, and does nothing. An error
 * that nobody caught ends the process with 1 at once: what it held is repaired by the bell, what it would do in an unknown
 * state is not.
 */
import { describe } from './errors.ts';
import type { Log } from './pipeline/ports.ts';

/** After `hurry`, the steps get this long before the process ends without them. */
const lastResortMs = 10_000;

/** Far above what npm needs to pass a signal on, below what a person needs to lose patience. */
const echoMs = 1_500;

export type Stop = (hurry: AbortSignal) => Promise<void>;

export interface Lifecycle {
  /** Registers what has to be stopped. Steps run in the reverse order of registration. */
  onStop(name: string, stop: Stop): void;
  /** Starts the drain, or speeds it up when it runs already. */
  stop(reason: string): void;
  /** Aborts when the drain starts. */
  readonly draining: AbortSignal;
  /** Resolves with the exit code when all is stopped: 0, or 1 when a step failed or did not come to its end. */
  readonly ended: Promise<number>;
}

export interface LifecycleSettings {
  readonly graceMs: number;
  /** Where signals and faults come from: the process, or a stand-in of tests. */
  readonly source?: NodeJS.EventEmitter;
  /** Ends the process: for faults, and as the last resort. */
  readonly exit?: (code: number) => void;
}

export function createLifecycle(deps: { log: Log }, settings: LifecycleSettings): Lifecycle {
  const { log } = deps;
  const source = settings.source ?? process;
  const exit = settings.exit ?? ((code) => process.exit(code));
  const steps: { name: string; stop: Stop }[] = [];
  const draining = new AbortController();
  const hurry = new AbortController();
  const { promise: ended, resolve: end } = Promise.withResolvers<number>();

  function stop(reason: string): void {
    if (draining.signal.aborted) {
      hurry.abort(new Error(`${reason} again`));
      return;
    }
    log.info({ reason }, 'stopping');
    draining.abort(new Error(reason));
    const grace = setTimeout(() => hurry.abort(new Error('The grace time is over')), settings.graceMs);
    hurry.signal.addEventListener('abort', giveUp, { once: true });
    void runSteps().then((code) => {
      clearTimeout(grace);
      log.info({}, 'stopped');
      end(code);
    });
  }

  function giveUp(): void {
    log.warn({ reason: describe(hurry.signal.reason) }, 'giving up what runs');
    setTimeout(() => end(1), lastResortMs).unref();
  }

  async function runSteps(): Promise<number> {
    let code = 0;
    // Taken one by one: a start that was interrupted may still register what it has begun.
    for (let step = steps.pop(); step !== undefined; step = steps.pop()) {
      try {
        await step.stop(hurry.signal);
      } catch (error) {
        code = 1;
        log.error({ step: step.name, reason: describe(error) }, 'a step of the shutdown failed');
      }
    }
    return code;
  }

  function fault(error: unknown): void {
    log.error({ reason: describe(error), stack: error instanceof Error ? error.stack : undefined }, 'uncaught error');
    exit(1);
  }

  const obey = withoutEchoes(stop);
  for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP']) source.on(name, () => obey(name));
  // The engines that a supervisor started will not be there much longer: give back at once what can be given back.
  source.on('disconnect', () => {
    stop('the supervisor is gone or in a hurry');
    hurry.abort(new Error('The supervisor is gone or in a hurry'));
  });
  source.on('uncaughtException', fault);
  source.on('unhandledRejection', fault);
  return {
    onStop: (name, step) => steps.push({ name, stop: step }),
    stop,
    draining: draining.signal,
    ended,
  };
}

/** Calls `act` for a signal, and not for its echoes: those that come within `echoMs` of the one that was obeyed. */
export function withoutEchoes(act: (name: string) => void): (name: string) => void {
  let mayEcho = false;
  return (name) => {
    if (mayEcho) return;
    mayEcho = true;
    setTimeout(() => {
      mayEcho = false;
    }, echoMs).unref();
    act(name);
  };
}
