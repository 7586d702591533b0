/** The registry of failed jobs: which there are, and how many. Reads only; a replay looks again under its locks. */
import type { FailedFilter } from '../pipeline/registry.ts';
import { type Pool, single } from './pool.ts';
import { onlyRow } from './rows.ts';

/** `$1` code, `$2` owner, `$3` and `$4` milliseconds since the failure, at least and at most. */
const matches = `
  jobs.state = 'failed'
  and ($1::text is null or jobs.error_code = $1)
  and ($2::uuid is null or jobs.owner_id = $2)
  and ($3::float8 is null or jobs.finished_at <= now() - $3 * interval '1 millisecond')
  and ($4::float8 is null or jobs.finished_at >= now() - $4 * interval '1 millisecond')`;

/**
 * Oldest failure first, and those that a replay would refuse (deleted, nothing left to render from, a newer version
 * published) after all others: they stay failed, and at the front they would fill every answer for ever.
 */
export async function failedJobs(pool: Pool, filter: FailedFilter, limit: number): Promise<readonly string[]> {
  const { rows } = await single<{ id: string }>(
    pool,
    `select jobs.id
     from jobs
     join attachments on attachments.id = jobs.attachment_id
     where ${matches}
     order by
       attachments.deleted_at is not null
         or attachments.pipeline_version > jobs.version
         or (attachments.original_key is null and attachments.staging_gone_at is not null),
       jobs.finished_at, jobs.id
     limit $5`,
    [...values(filter), limit],
    { writes: false, replan: true },
  );
  return rows.map((row) => row.id);
}

export async function countFailed(pool: Pool, filter: FailedFilter): Promise<number> {
  const row = onlyRow(
    await single<{ failed: number }>(
      pool,
      `select count(*) as failed
       from jobs
       where ${matches}`,
      values(filter),
      { writes: false, replan: true },
    ),
  );
  return row.failed;
}

function values(filter: FailedFilter): readonly unknown[] {
  return [filter.errorCode, filter.ownerId, filter.olderThanMs, filter.youngerThanMs];
}
