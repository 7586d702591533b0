/** What is asked all day long is read by its index, whatever has piled up: with ten thousand waiting and many more finished jobs. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { accept, arrive, load } from '../../src/postgres/attachments.ts';
import { countAnnounced, recentPace, ringAgain, takeDue, untilDueMs } from '../../src/postgres/bells.ts';
import { type Pool, transaction } from '../../src/postgres/pool.ts';
import { retire } from '../../src/postgres/retention.ts';
import { type Read, readsOf } from '../support/plans.ts';
import { newUpload, startStore } from '../support/store.ts';

const waiting = 10_000;
const announced = 100;
const finished = 30_000;

/** Jobs of 50 users: waiting, among them many whose time has not come, announced, and finished over the last month. */
async function startFull(t: TestContext) {
  const s = await startStore(t);
  await transaction(s.pool, async (db) => {
    // Flushed at once: rows of an asynchronous commit are not yet seen as visible to all by the vacuum that follows.
    await db.query('set local synchronous_commit = on');
    await db.query(
      `with users as (
       insert into users (id, handle, password_hash, role)
       select gen_random_uuid(), 'u' || n, 'x', 'user'
       from generate_series(1, 50) n
       returning id
     ),
     owner as materialized (
       select array_agg(id) as ids
       from users
     ),
     attachment as (
       insert into attachments (id, owner_id, state, kind, file_name, content_type, size, sha256, staging_key, staging_gone_at)
       select gen_random_uuid(), ids[1 + n % 50], 'queued', 'image', 'a', 'image/png', 1, repeat('0', 64), 'staging/x',
         case when n > $1::int + $2::int then now() end
       from generate_series(1, $1::int + $2::int + $3::int) n
       cross join owner
       returning id, owner_id, staging_gone_at
     ),
     numbered as (
       select *, row_number() over (order by staging_gone_at is not null) as n
       from attachment
     )
     insert into jobs (
       id, attachment_id, owner_id, version, state, ring_at, rung_at, turn, claimed_at, finished_at, created_at, history_gone_at
     )
     select
       (
         lpad(to_hex((extract(epoch from now() - interval '1 minute' * n) * 1000)::bigint), 12, '0')
         || substr(md5(n::text), 1, 20)
       )::uuid, id, owner_id, 1,
       case when n <= $1::int + $2::int then 'queued' else 'cancelled' end,
       case when n <= $1::int + $2::int then now() + case when n % 10 = 0 then 1 else -1 end * interval '1 hour' end,
       case when n <= $2::int then now() end,
       now() - interval '1 hour' + n * interval '100 milliseconds',
       case when n > $1::int + $2::int then now() - interval '1 minute' * n end,
       case when n > $1::int + $2::int then now() - interval '1 minute' * n end,
       now() - interval '1 minute' * n,
       case when n > $1::int + $2::int + $3::int / 2 then now() end
     from numbered`,
      [waiting, announced, finished],
    );
  });
  await s.pool.query('vacuum analyze jobs, attachments');
  return { pool: s.pool, readsOf: (work: (pool: Pool) => Promise<unknown>) => readsOf(s.pool, work) };
}

/** Every read is by an index and looks at few rows. */
function assertFew(reads: readonly Read[], rowsMax: number, indexes: RegExp) {
  assert.ok(reads.length > 0, 'something was read');
  for (const read of reads) {
    assert.match(read.where, indexes, JSON.stringify(read));
    assert.ok(read.how !== 'Seq Scan' && read.rows <= rowsMax, JSON.stringify(read));
  }
}

describe('with ten thousand waiting and thirty thousand finished jobs', () => {
  it('the relay reads what it takes and what is announced, and nothing else', async (t) => {
    const s = await startFull(t);
    const own = /^jobs_(waiting|waiting_due|ringing|claimed|pkey)$/;
    const few = announced + 64;
    const taken = await s.readsOf((pool) => takeDue(pool, { limit: 50, window: 1_000, takenMs: 10_000 }));
    assertFew(taken, few, own);
    assert.ok(
      taken.some(({ where }) => where === 'jobs_waiting'),
      'places go by turn',
    );
    assertFew(await s.readsOf((pool) => takeDue(pool, { limit: 50, window: 32, takenMs: 10_000 })), few, own);
    assertFew(await s.readsOf(countAnnounced), few, own);
    assertFew(await s.readsOf((pool) => untilDueMs(pool, 1_000)), few, own);
    assertFew(await s.readsOf(recentPace), few, own);
    assertFew(await s.readsOf((pool) => ringAgain(pool, 10)), few, own);
  });

  it('an arrival and an accept read what their user has under way, and nothing else', async (t) => {
    const s = await startFull(t);
    const { rows } = await s.pool.query<{ id: string }>(
      `select owner_id as id from jobs where state = 'queued' limit 1`,
    );
    const ownerId = rows[0]?.id ?? assert.fail();
    const each = (waiting + announced) / 50;
    const arrival = await s.readsOf((pool) => arrive(pool, ownerId));
    assertFew(arrival, each, /^jobs_(unfinished_by_owner|by_owner)$/);
    const reads = await s.readsOf((pool) => accept(pool, newUpload(ownerId)));
    const turn = reads.filter(({ where }) => where.startsWith('jobs'));
    assertFew(turn, 2, /^jobs_(unfinished_by_owner|waiting)$/);
    assert.equal(turn.length, 2);
  });

  it('retention looks at what it may take, not at all that was ever finished', async (t) => {
    const s = await startFull(t);
    // Also where some has to go: old failed uploads among all that staging holds.
    await s.pool.query(
      `with old as (
         select attachments.id
         from attachments
         join jobs on jobs.attachment_id = attachments.id
         where jobs.finished_at < now() - interval '9 days'
         limit 20
       ),
       job as (
         update jobs set state = 'failed' from old where attachment_id = old.id
       )
       update attachments
       set state = 'failed', error_code = 'internal', staging_gone_at = null, created_at = now() - interval '10 days'
       from old
       where attachments.id = old.id`,
    );
    await s.pool.query(
      `insert into job_events (job_id, to_state, fence, who, reason) select id, 'queued', 0, 'api', 'accepted' from jobs`,
    );
    await s.pool.query('analyze job_events');
    const keeping = { failedMs: 86_400_000, historyMs: 86_400_000, limit: 50 };
    const reads = await s.readsOf((pool) => retire(pool, keeping));
    assertFew(
      reads,
      50,
      /^(jobs_history|jobs_by_state|attachments_staging|(jobs|attachments)_pkey|job_events_by_job|jobs_attachment_id_.*)$/,
    );
    assert.ok(reads.some(({ where }) => where === 'jobs_history'));
  });

  it('the load is read from indexes alone', async (t) => {
    const s = await startFull(t);
    const reads = await s.readsOf(load);
    assert.equal(reads.length, 3);
    for (const read of reads) {
      assert.deepEqual([read.how, read.heapFetches], ['Index Only Scan', 0], JSON.stringify(read));
      assert.ok(read.rows <= waiting + announced, JSON.stringify(read));
    }
  });
});
