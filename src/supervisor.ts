/**
 * `skrepka start`: everything on one machine, from an empty folder, with one command.
 *
 * Its life: check that the port is free → hold the data folder → PostgreSQL (embedded unless DATABASE_URL names one) →
 * migrate → the operator's account → the API with relay and janitor, the worker → ready, when the API says so. It ends in the
 * reverse order. Everything
 * is kept in the data folder, so the next start goes on where this one was, also after a SIGKILL.
 */
import { createServer } from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { type Child, keepChild } from './child.ts';
import { type Config, environmentWith } from './config.ts';
import { holdFolder } from './data-folder.ts';
import { describe, StartError } from './errors.ts';
import { createLifecycle, type Lifecycle } from './lifecycle.ts';
import type { Log } from './pipeline/ports.ts';

export interface Database {
  readonly url: string;
  readonly port: number;
  readonly ended: Promise<void>;
  stop(): Promise<void>;
}

export interface SupervisorDeps {
  readonly log: Log;
  /** A line for the person at the terminal: never written to a file of ours. */
  print(line: string): void;
  startDatabase(options: { port?: number; signal: AbortSignal }): Promise<Database>;
  migrate(url: string): Promise<readonly string[]>;
  /** Creates the operator's account when there is none; null when there is. */
  ensureOperator(url: string): Promise<{ handle: string; password: string } | null>;
}

/** Beyond the drain of a child: its last resort, and PostgreSQL's shutdown. */
const reserveMs = 30_000;
/** A child of a supervisor that was killed closes its port within this time. */
const portWaitMs = 5_000;

/** Runs until it is told to stop, and answers the exit code. Rejects `StartError` when it cannot start; nothing runs then. */
export async function supervise(deps: SupervisorDeps, config: Config): Promise<number> {
  const lifecycle = createLifecycle(deps, { graceMs: config.drainMs + reserveMs });
  try {
    // A step of the start can hang where no signal reaches it; the end of the process does not wait for it.
    const code = await Promise.race([start(deps, config, lifecycle), lifecycle.ended]);
    if (typeof code === 'number') return code;
  } catch (error) {
    const wasTold = lifecycle.draining.aborted;
    if (!wasTold) lifecycle.stop('the start failed');
    await lifecycle.ended;
    if (!wasTold) throw error;
  }
  return await lifecycle.ended;
}

async function start(deps: SupervisorDeps, config: Config, lifecycle: Lifecycle): Promise<void> {
  const { log } = deps;
  const holding = holdFolder(config.dataDir, log);
  lifecycle.onStop('the data folder', async () => await (await settled(holding))?.release());
  await holding;
  await waitForPort(config, 'PORT', lifecycle.draining);
  // Of the worker alone: the API tells its metrics on its own port.
  const { host, metricsPort } = config;
  if (metricsPort > 0) await waitForPort({ host, port: metricsPort }, 'METRICS_PORT', lifecycle.draining);
  const url = config.databaseUrl || (await startDatabase(deps, lifecycle));
  lifecycle.draining.throwIfAborted();
  const applied = await migrate(deps, url, config);
  if (applied.length > 0) log.info({ migrations: applied }, 'the database has the schema of this build');
  const operator = await deps.ensureOperator(url);
  // Shown now, or never again should the rest of the start fail.
  if (operator) showOperator(deps, operator);
  lifecycle.draining.throwIfAborted();
  const environment = environmentWith({
    DATABASE_URL: url,
    DATA_DIR: config.dataDir,
    HOST: config.host,
    PORT: String(config.port),
  });
  const api = startChild(deps, lifecycle, ['api', 'relay', 'janitor'], environment);
  const worker = startChild(deps, lifecycle, ['worker'], environment);
  const [address] = await Promise.all([api.ready, worker.ready]);
  lifecycle.draining.throwIfAborted();
  await untilReady(deps, config, address ?? '', lifecycle.draining);
}

function startChild(
  { log }: SupervisorDeps,
  lifecycle: Lifecycle,
  roles: readonly string[],
  environment: Record<string, string | undefined>,
): Child {
  const child = keepChild({ log }, { roles, environment });
  lifecycle.onStop(roles.join(','), (hurry) => child.stop(hurry));
  return child;
}

/* ------------------------------------------------------------------ database */

async function startDatabase(deps: SupervisorDeps, lifecycle: Lifecycle): Promise<string> {
  let current = deps.startDatabase({ signal: lifecycle.draining });
  lifecycle.onStop('PostgreSQL', async () => await (await settled(current))?.stop());
  const first = await current;
  void keepDatabase();
  return first.url;

  /** A server that dies under us starts again on its port, where our processes look for it. */
  async function keepDatabase(): Promise<void> {
    while (!lifecycle.draining.aborted) {
      await (await settled(current))?.ended;
      if (lifecycle.draining.aborted) return;
      deps.log.error({}, 'PostgreSQL ended unexpectedly; starting it again');
      await startAgain();
    }
  }

  /** Until it stands: what keeps it from starting, a full disk say, can pass, and meanwhile our processes wait for it. */
  async function startAgain(): Promise<void> {
    for (let pauseMs = 1_000; ; pauseMs = Math.min(2 * pauseMs, 30_000)) {
      current = deps.startDatabase({ port: first.port, signal: lifecycle.draining });
      const error = await current.then(
        () => null,
        (reason: unknown) => reason,
      );
      if (error === null || lifecycle.draining.aborted) return;
      deps.log.error({ reason: describe(error) }, 'PostgreSQL cannot be started again yet');
      await wait(pauseMs, undefined, { signal: lifecycle.draining }).catch(() => undefined);
      if (lifecycle.draining.aborted) return;
    }
  }
}

async function settled<T>(promise: Promise<T>): Promise<T | null> {
  return await promise.catch(() => null);
}

async function migrate(deps: SupervisorDeps, url: string, config: Config): Promise<readonly string[]> {
  try {
    return await deps.migrate(url);
  } catch (error) {
    if (error instanceof StartError) throw error;
    const way =
      config.databaseUrl === ''
        ? `look at ${config.dataDir}/postgres.log`
        : 'start it, correct DATABASE_URL, or unset it for the embedded one';
    throw new StartError(
      `The database cannot be brought to the schema of this build: ${describe(error)}: ${way}.`,
      error,
    );
  }
}

/* ---------------------------------------------------------------------- port */

type Listen = Pick<Config, 'host' | 'port'>;

/** Rejects `StartError` when nobody could listen. The children of a killed supervisor need a moment to leave the port. */
async function waitForPort(config: Listen, setting: 'PORT' | 'METRICS_PORT', signal: AbortSignal): Promise<void> {
  for (const deadlineMs = performance.now() + portWaitMs; ; ) {
    signal.throwIfAborted();
    const code = await tryPort(config);
    if (code === null) return;
    if (code === 'EADDRINUSE' && performance.now() < deadlineMs) {
      await wait(100);
      continue;
    }
    throw new StartError(portSentence(code, config, setting));
  }
}

async function tryPort({ host, port }: Listen): Promise<string | null> {
  return await new Promise((resolve) => {
    const probe = createServer();
    probe.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
    probe.listen({ host, port }, () => probe.close(() => resolve(null)));
  });
}

/** One sentence for a port on which nobody can listen. `code` is the system's, `setting` the one that chose the port. */
export function portSentence(
  code: string,
  { host, port }: Pick<Config, 'host' | 'port'>,
  setting: 'PORT' | 'METRICS_PORT' = 'PORT',
): string {
  if (code === 'EADDRINUSE')
    return `Port ${port} of ${host} is in use: stop what uses it, or choose another with ${setting}.`;
  if (code === 'EACCES')
    return `Port ${port} may not be used by this user: choose another with ${setting}, above 1023.`;
  const who = setting === 'PORT' ? 'The API' : 'The server of metrics';
  return `${who} cannot listen on ${host} port ${port} (${code}): check HOST and ${setting}.`;
}

/* --------------------------------------------------------------------- ready */

/** What is missing is told after this time, once; until then it may be starting as we are. */
const patienceMs = 5_000;
/** Before and after that: each question leaves a line in the log of the API. */
const askAgainMs = { first: 500, later: 5_000 };

/** Says that it is ready when it is. A storage that is away may come back, so it is waited for, and told: no upload works meanwhile. */
async function untilReady(deps: SupervisorDeps, config: Config, address: string, signal: AbortSignal): Promise<void> {
  let isTold = false;
  for (const startedMs = performance.now(); ; ) {
    const { down, isReady } = await askReady(address);
    signal.throwIfAborted();
    if (isReady) return showReady(deps, config, address, down);
    if (!isTold && performance.now() - startedMs > patienceMs) {
      showMissing(deps, address, down);
      isTold = true;
    }
    await wait(isTold ? askAgainMs.later : askAgainMs.first, undefined, { signal });
  }
}

async function askReady(address: string): Promise<{ isReady: boolean; down: readonly string[] }> {
  try {
    const answer = await fetch(`${address}/health/ready`, { signal: AbortSignal.timeout(patienceMs) });
    const { components = {} } = (await answer.json()) as { components?: Record<string, string> };
    const down = Object.keys(components).filter((name) => components[name] === 'down');
    return { isReady: answer.ok, down };
  } catch {
    return { isReady: false, down: [] };
  }
}

/* --------------------------------------------------------------------- words */

function showOperator({ print }: SupervisorDeps, operator: { handle: string; password: string }): void {
  print('');
  print('  The account of the operator, shown this once:');
  print(`    handle    ${operator.handle}`);
  print(`    password  ${operator.password}`);
}

function showReady({ print }: SupervisorDeps, config: Config, address: string, down: readonly string[]): void {
  print('');
  print(`  Skrepka is ready at ${address}`);
  print(`    reference  ${address}/docs`);
  print(`    data       ${config.dataDir}`);
  if (down.includes('broker'))
    print('  The broker of BROKER_URL does not answer: uploads are accepted, and wait until it does.');
  print('  Operate it from another terminal: npm run -s skrepka -- --help');
  print('  Ctrl-C stops it in order; the data is kept.');
  print('');
}

/** How a person mends each part that can be away. */
const ways: Readonly<Record<string, string>> = {
  storage:
    'the storage does not answer: start it or mount its folder, or stop this and correct BLOBS_URL, its keys or the rights of its folder',
  database: 'the database does not answer: start it, or stop this and correct DATABASE_URL',
};

function showMissing({ print }: SupervisorDeps, address: string, down: readonly string[]): void {
  const parts = down.flatMap((name) => ways[name] ?? []);
  print('');
  print(`  Skrepka runs at ${address}, but it is not ready, and uploads are refused:`);
  for (const part of parts.length > 0 ? parts : ['the API does not answer yet']) print(`    ${part}.`);
  print('  The log above says why. It becomes ready by itself as soon as it can.');
  print('');
}
