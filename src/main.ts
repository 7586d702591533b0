#!/usr/bin/env node
/** The entry: reads the command line and the settings, and runs a role or a verb. Exit codes: 0, 1 failed, 2 not understood. */
import packageFile from '../package.json' with { type: 'json' };
import type { ChildWord } from './child.ts';
import { type Order, readOrder } from './cli.ts';
import { type Config, ConfigError, loadConfig } from './config.ts';
import { StartError } from './errors.ts';
import { createLifecycle } from './lifecycle.ts';
import type { Role } from './roles.ts';
import { createTelemetry, type Telemetry } from './telemetry.ts';

// A closed terminal or pipe is no reason to die in the middle of a drain.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
process.exit(await obey(readOrder(process.argv.slice(2), packageFile.version)));

async function obey(order: Order): Promise<number> {
  if (order.kind === 'done') return order.code;
  try {
    const config = loadConfig();
    if (order.kind === 'run') return await runRoles(order.roles, config);
    const { startEverything, migrateDatabase, runVerb } = await import('./verbs.ts');
    if (order.kind === 'verb') return await runVerb(order.verb, config, quietTelemetry(order.verb.kind, config));
    const telemetry = telemetryFor(order.kind, config);
    if (order.kind === 'start') return await startEverything(config, telemetry);
    const applied = await migrateDatabase(config);
    console.log(applied.length === 0 ? 'Nothing to do: the schema is current.' : `Applied ${applied.join(', ')}.`);
    return 0;
  } catch (error) {
    return await refuse(error, order);
  }
}

async function runRoles(roles: (Order & { kind: 'run' })['roles'], config: Config): Promise<number> {
  const telemetry = telemetryFor(roles.join(','), config, roles);
  const lifecycle = createLifecycle(telemetry, { graceMs: config.drainMs });
  const { run } = await import('./wiring.ts');
  const starting = run(roles, config, { telemetry });
  lifecycle.onStop('roles', async (hurry) => await (await starting).stop(hurry));
  const { url } = await starting;
  telemetry.log.info({ roles, ...(url ? { url } : {}) }, 'started');
  await tell({ kind: 'ready', url });
  return await lifecycle.ended;
}

function telemetryFor(service: string, config: Config, roles: readonly Role[] = []): Telemetry {
  return createTelemetry({ level: config.logLevel, service, roles, plain: process.stdout.isTTY === true });
}

/** Standard output is for the result of a verb: what goes wrong on the way is told beside it. */
function quietTelemetry(service: string, config: Config): Telemetry {
  const level = config.logLevel === 'info' ? 'warn' : config.logLevel;
  return createTelemetry({ level, service, plain: process.stderr.isTTY === true, destination: process.stderr });
}

/** One sentence a problem. A role leaves it to its supervisor to show it. */
async function refuse(error: unknown, { kind }: Order): Promise<number> {
  if (!(error instanceof StartError) && !(error instanceof ConfigError)) throw error;
  const sentences = error instanceof ConfigError ? error.problems : [error.message];
  if (kind !== 'run' || !(await tell({ kind: 'refused', sentence: sentences.join(' ') }))) {
    for (const sentence of sentences) console.error(`skrepka: ${sentence}`);
  }
  return 1;
}

/** False without a supervisor. Waits until the word is on its way: the process may end right after it. */
async function tell(word: ChildWord): Promise<boolean> {
  if (!process.connected) return false;
  await new Promise((resolve) => process.send?.(word, undefined, undefined, resolve));
  return true;
}
