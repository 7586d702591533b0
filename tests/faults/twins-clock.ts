/**
 * The one clock of both twins: it stands still, and only `forward` moves it.
 *
 * PostgreSQL is given it as well. In the twins' database the name `now` is found in a schema that stands before the server's own, so
 * the SQL is the product's, word by word, and asks this clock. Where real time passed instead, and rows were moved back, the same
 * seed gave other verbs on a slower machine, and a pause of seconds between the two was a difference.
 */
import { connect, type Pool } from '../../src/postgres/pool.ts';
import { connectMs } from '../support/postgres.ts';

export interface Clock {
  nowMs(): number;
  forward(byMs: number): Promise<void>;
}

/** The same for every seed, since ids tell the time; and years away, so that a time from any other clock is seen. */
const startMs = Date.UTC(2050, 0, 1);

const sql = `
  create schema twins;
  create table twins.clock (at timestamptz not null);
  create function twins.now() returns timestamptz language sql stable as 'select at from twins.clock';
  create function twins.clock_timestamp() returns timestamptz language sql stable as 'select at from twins.clock';
  do $$
  declare
    change text;
  begin
    execute format('alter database %I set search_path = twins, pg_catalog, public', current_database());
    -- A default keeps the function that its name meant when the table was made.
    for change in
      select format('alter table %s alter column %I set default twins.now()', attrelid::regclass, attname)
      from pg_attribute
      join pg_attrdef on adrelid = attrelid and adnum = attnum
      where pg_get_expr(adbin, adrelid) = 'now()'
    loop
      execute change;
    end loop;
  end
  $$`;

/** Of the database at `url`. `pool` has no session yet: one that is open keeps the time of the server. */
export async function createClock({ url, pool }: { url: string; pool: Pool }): Promise<Clock> {
  let nowMs = startMs;
  const admin = await connect({ url, name: 'twins', connectMs });
  try {
    await admin.query(sql);
    await admin.query('insert into twins.clock values ($1)', [new Date(nowMs)]);
  } finally {
    await admin.end();
  }
  return {
    nowMs: () => nowMs,
    async forward(byMs) {
      nowMs += byMs;
      await pool.query('update twins.clock set at = $1', [new Date(nowMs)]);
    },
  };
}
