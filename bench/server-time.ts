/**
 * What the sessions of PostgreSQL that serve a pool have spent on the processor, to the microsecond.
 *
 * `usage.ts` reads ticks of 10 ms, too coarse for stretches of some milliseconds that take turns with others; the scheduler's own
 * account is exact once a session waits. Writers and vacuum of the server are not in it.
 */
import { readFileSync } from 'node:fs';
import type { Pool } from '../src/postgres/pool.ts';

/** Pids of the sessions that this pool's connections have now. `name` is that of the pool, and of no other on this database. */
export async function sessionsOf(pool: Pool, name: string): Promise<readonly number[]> {
  const { rows } = await pool.query<{ pid: number }>(
    `select pid
     from pg_stat_activity
     where application_name = $1
       and datname = current_database()`,
    [name],
  );
  return rows.map(({ pid }) => pid);
}

/** Milliseconds so far. Throws when a session is gone. */
export function spentMsOf(sessions: readonly number[]): number {
  let nanoseconds = 0;
  for (const pid of sessions) nanoseconds += Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0]);
  return nanoseconds / 1e6;
}
