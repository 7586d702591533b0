/**
 * What `role.ts` starts: the roles of the arguments, wired as in production, with points that its parent arms.
 *
 * Production has no such switch: the function that stops here, and the script of render children, are passed to
 * `run`, and nothing reads them from the outside.
 */
import { loadConfig } from '../../src/config.ts';
import { createLifecycle } from '../../src/lifecycle.ts';
import type { Point, Reach } from '../../src/pipeline/ports.ts';
import type { Role } from '../../src/roles.ts';
import { createTelemetry } from '../../src/telemetry.ts';
import { run } from '../../src/wiring.ts';
import type { Action, FromParent, FromRole } from './role.ts';

const armed = new Map<Point, Action>();
const standing = new Map<Point, (() => void)[]>();

process.on('message', (word: FromParent) => {
  if (word.kind === 'arm') armed.set(word.point, word.action);
  if (word.kind === 'disarm') armed.delete(word.point);
  if (word.kind === 'resume') {
    for (const goOn of standing.get(word.point) ?? []) goOn();
    standing.delete(word.point);
  }
  tell({ kind: 'done', number: word.number });
});

const reach: Reach = async (point, subject) => {
  const action = armed.get(point);
  if (action === undefined) return;
  if (action === 'kill') process.kill(process.pid, 'SIGKILL');
  await new Promise<void>((resolve) => {
    standing.set(point, [...(standing.get(point) ?? []), resolve]);
    tell({ kind: 'reached', point, subject });
  });
};

for (const [point, action] of Object.entries(JSON.parse(process.env.SKREPKA_TEST_POINTS ?? '{}'))) {
  armed.set(point as Point, action as Action);
}
const roles = process.argv.slice(2) as Role[];
const config = loadConfig();
const telemetry = createTelemetry({ level: config.logLevel, service: roles.join(','), roles });
const lifecycle = createLifecycle(telemetry, { graceMs: config.drainMs });
const script = process.env.SKREPKA_TEST_RENDER_SCRIPT;
const running = await run(roles, config, { telemetry, reach, ...(script ? { renderScript: new URL(script) } : {}) });
lifecycle.onStop('roles', running.stop);
tell({ kind: 'ready', url: running.url });
process.exit(await lifecycle.ended);

function tell(word: FromRole): void {
  if (process.connected) process.send?.(word);
}
