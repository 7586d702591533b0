/**
 * What every reference records in PostgreSQL, as a service must: an upload when it comes, and its result when it is there.
 * One table, one index for the list of a user's uploads, prepared statements.
 */
import { randomUUID } from 'node:crypto';
import pg from 'pg';

/** A pool with what `pg` advises: one a process, and a listener, without which a lost connection ends the process. */
export function openPool(url: string, max: number): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, max });
  pool.on('error', () => {});
  return pool;
}

/** Runs one piece of work on a connection of its own. */
export async function once<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

export async function createUploads(url: string): Promise<void> {
  await once(url, async (client) => {
    await client.query(`
      create table uploads (
        id uuid primary key,
        owner_id uuid not null,
        file_name text not null,
        content_type text not null,
        size bigint not null,
        path text not null,
        state text not null default 'queued',
        result jsonb,
        created_at timestamptz not null default now(),
        ready_at timestamptz
      )`);
    await client.query('create index on uploads (owner_id, created_at)');
  });
}

/** Columns of an upload, `$1` to `$6`. */
export const insertUpload = `
  insert into uploads (id, owner_id, file_name, content_type, size, path)
  values ($1, $2, $3, $4, $5, $6)`;

/** The row of a new upload, for `insertUpload`. */
export function newUpload(producer: number): { id: string; values: readonly unknown[] } {
  const id = randomUUID();
  return { id, values: [id, ownerOf(producer), 'a.jpg', 'image/jpeg', 200, `uploads/${id}`] };
}

const ownerOf = (producer: number) => `00000000-0000-4000-8000-${String(producer).padStart(12, '0')}`;

/** Records a result: `$1` the id, `$2` what was made of it. Guard: not recorded before. */
export const recordResult = `
  update uploads
  set state = 'ready',
      result = $2,
      ready_at = now()
  where id = $1
    and state = 'queued'`;

/** What a render answers that renders nothing: three variants, as a real one has. */
export const noVariants = JSON.stringify(
  ['thumbnail', 'crop', 'optimized'].map((name) => ({ name, width: 10, height: 10, size: 200 })),
);

export async function countReady(client: Pick<pg.Client, 'query'>): Promise<number> {
  const { rows } = await client.query<{ ready: number }>(
    `select count(*)::int as ready from uploads where state = 'ready'`,
  );
  return rows[0]?.ready ?? 0;
}
