/** What the product spends while nobody uses it: all of its processes and its PostgreSQL, as `skrepka start` runs them. */
import { setTimeout as pause } from 'node:timers/promises';
import { openProduct } from '../product.ts';
import type { Bound, Row } from '../row.ts';
import { withScope } from '../scope.ts';
import { cpuMsOf } from '../usage.ts';

const side = 'Skrepka';

/** What a start leaves to do, a checkpoint among it, is over by then. */
const settleMs = { whole: 30_000, quick: 1_000 };
const measureMs = { whole: 60_000, quick: 8_000 };

const told = (name: string, figure: string): Bound => ({ name: `of it ${name}`, side, figure, unit: '%' });

export const row: Row = {
  name: 'idle',
  title: 'Time on the processor while nobody uses it',
  about:
    'The API with relay and janitor, a worker with its render processes, and PostgreSQL with all of its own, for a minute after the start has settled. ' +
    'A share of one core; no reference, because a service that does nothing has none.',
  rounds: 3,
  missing: () => null,
  async open(_scope, { quick }) {
    const [settle, measure] = quick ? [settleMs.quick, measureMs.quick] : [settleMs.whole, measureMs.whole];
    return {
      sides: [{ name: side, run: () => run(settle, measure) }],
      ratios: [],
      bounds: [
        { name: 'all processes and PostgreSQL', side, figure: 'cpuPercent', unit: '%', goal: { atMost: 0.5 } },
        told('PostgreSQL', 'postgresPercent'),
        told('the API with relay and janitor', 'apiPercent'),
        told('the worker and its render processes', 'workerPercent'),
      ],
    };
  },
};

async function run(settle: number, measure: number) {
  return await withScope(async (scope) => {
    const product = await openProduct(scope);
    await pause(settle);
    const { postgres, api, workers } = product.processes;
    const families = {
      cpuPercent: product.roots,
      postgresPercent: [postgres],
      apiPercent: [api],
      workerPercent: workers,
    };
    const startedAt = performance.now();
    const before = await spent(families);
    await pause(measure);
    const after = await spent(families);
    const wallMs = performance.now() - startedAt;
    return Object.fromEntries(
      Object.entries(after).map(([figure, ms]) => [figure, (100 * (ms - (before[figure] ?? 0))) / wallMs]),
    );
  });
}

async function spent(families: Readonly<Record<string, readonly number[]>>): Promise<Record<string, number>> {
  const all: Record<string, number> = {};
  for (const [figure, pids] of Object.entries(families)) all[figure] = await cpuMsOf(pids);
  return all;
}
