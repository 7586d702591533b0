/** Which installation a database is, and whether object storage must hold something for it. */
import { type Pool, single } from './pool.ts';

export interface Installation {
  /** The same for the life of the database, and in a copy of it that was restored. */
  readonly id: string;
  /** Whether a row names an object that must be there. */
  readonly namesObjects: boolean;
}

/** Rejects `StoreError`; and PostgreSQL's own error before the first migration. */
export async function readInstallation(pool: Pool): Promise<Installation> {
  const { rows } = await single<{ id: string; names_objects: boolean }>(
    pool,
    `select id,
            exists (
              select from attachments
              where deleted_at is null
                and (staging_gone_at is null or original_key is not null)
            ) as names_objects
     from installation`,
    [],
    { writes: false },
  );
  const [row] = rows;
  if (row === undefined) throw new Error('Expected one row in installation, received none');
  return { id: row.id, namesObjects: row.names_objects };
}
