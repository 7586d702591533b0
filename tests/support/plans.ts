/** How the server reads tables for a piece of work: the plans of its statements, explained as they run. */
import type { Client, Pool } from '../../src/postgres/pool.ts';

export interface Read {
  /** `Seq Scan`, `Index Scan`, `Index Only Scan` or `Bitmap Index Scan`. */
  readonly how: string;
  /** The index, or the table. */
  readonly where: string;
  /** Rows or entries that were looked at. */
  readonly rows: number;
  readonly heapFetches: number;
}

/** A pool of this one connection, which stays with who has it. */
export function poolOf(client: Pick<Client, 'query'>): Pool {
  return { connect: async () => ({ query: client.query.bind(client), release: () => {} }) } as unknown as Pool;
}

/**
 * Does work on a connection whose statements the server explains as they run, and answers how they read. Needs a superuser.
 * `generic`: by the plans for any value, which the server may choose for a prepared statement.
 */
export async function readsOf(
  full: Pool,
  work: (pool: Pool) => Promise<unknown>,
  { generic = false } = {},
): Promise<Read[]> {
  const client = await full.connect();
  try {
    if (generic) await client.query('set plan_cache_mode = force_generic_plan');
    await client.query(`load 'auto_explain'`);
    await client.query('set auto_explain.log_min_duration = 0');
    await client.query('set auto_explain.log_analyze = on');
    await client.query('set auto_explain.log_timing = off');
    await client.query('set auto_explain.log_format = json');
    await client.query('set client_min_messages = log');
    const plans: string[] = [];
    client.on('notice', (notice) => plans.push(notice.message ?? ''));
    await work(poolOf(client));
    return plans.flatMap((text) => scansOf(JSON.parse(text.slice(text.indexOf('{'))).Plan));
  } finally {
    client.release(true);
  }
}

interface PlanNode {
  'Node Type': string;
  'Relation Name'?: string;
  'Index Name'?: string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  'Heap Fetches'?: number;
  Plans?: PlanNode[];
}

/** How a plan reads tables, wherever it does. The writing of rows already found is no read. */
function scansOf(plan: PlanNode): Read[] {
  const below = (plan.Plans ?? []).flatMap(scansOf);
  const how = plan['Node Type'];
  const reads = /^(Seq|Index|Index Only|Bitmap Index) Scan$/.test(how);
  const rows = (plan['Actual Rows'] + (plan['Rows Removed by Filter'] ?? 0)) * plan['Actual Loops'];
  const where = plan['Index Name'] ?? plan['Relation Name'] ?? '';
  return reads ? [{ how, where, rows, heapFetches: plan['Heap Fetches'] ?? 0 }, ...below] : below;
}
