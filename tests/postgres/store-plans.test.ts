/** What is asked all day long is read by its index, whatever has piled up: with ten thousand waiting and many more finished jobs. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { accept, arrive, listAttachments, load } from '../../src/postgres/attachments.ts';
import { countAnnounced, recentPace, ringAgain, takeDue, untilDueMs } from '../../src/postgres/bells.ts';
import { type Claimed, createClaim, renew } from '../../src/postgres/claims.ts';
import { type Pool, single, transaction } from '../../src/postgres/pool.ts';
import { listJobs } from '../../src/postgres/queue.ts';
import { retire } from '../../src/postgres/retention.ts';
import { createSettle } from '../../src/postgres/settle.ts';
import { type Read, readsOf } from '../support/plans.ts';
import { newClaim, newUpload, resultOf, startStore, times } from '../support/store.ts';

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
  return {
    ...s,
    readsOf: (work: (pool: Pool) => Promise<unknown>, generic = false) => readsOf(s.pool, work, { generic }),
  };
}

/** Every read is by an index and looks at few rows. */
function assertFew(reads: readonly Read[], rowsMax: number, indexes: RegExp) {
  assert.ok(reads.length > 0, 'something was read');
  for (const read of reads) {
    assert.match(read.where, indexes, JSON.stringify(read));
    assert.ok(read.how !== 'Seq Scan' && read.rows <= rowsMax, JSON.stringify(read));
  }
}

/** The session keeps no plan of a list for any filter: where it had one, its use would hang on an estimate. */
async function assertNoList(pool: Pool) {
  const kept = `select statement from pg_prepared_statements where statement like '%is null or%'`;
  assert.deepEqual((await single(pool, kept, [], { writes: false })).rows, []);
}

describe('with ten thousand waiting and thirty thousand finished jobs', () => {
  it('the relay reads what it takes and what is announced, and nothing else', async (t) => {
    const s = await startFull(t);
    const own = /^jobs_(waiting|waiting_due|ringing|claimed|pkey)$/;
    const few = announced + 64;
    for (const generic of [false, true]) {
      const take = (limit: number, window: number) =>
        s.readsOf((pool) => takeDue(pool, { limit, window, takenMs: 10_000 }), generic);
      const taken = await take(25, 1_000);
      assertFew(taken, few, own);
      assert.ok(
        taken.some(({ where }) => where === 'jobs_waiting'),
        'places go by turn',
      );
      assertFew(await take(50, 32), few, own);
    }
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
    for (const generic of [false, true]) {
      const arrival = await s.readsOf((pool) => arrive(pool, ownerId), generic);
      assertFew(arrival, each + 1, /^jobs_(unfinished|by_owner)$/);
      const reads = await s.readsOf((pool) => accept(pool, newUpload(ownerId)), generic);
      const turn = reads.filter(({ where }) => where.startsWith('jobs'));
      assertFew(turn, 2, /^jobs_(unfinished|waiting)$/);
      assert.equal(turn.length, 2);
    }
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
      /^(jobs_history|jobs_unsuccessful|attachments_staging|(jobs|attachments)_pkey|job_events_by_job|jobs_attachment_id_.*)$/,
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

  it('an attempt reads its own job and attachment, and nothing else', async (t) => {
    const s = await startFull(t);
    const own = /^(jobs_pkey|attachments_pkey|variants_pkey|jobs_attachment_id_version_key)$/;
    for (const generic of [false, true]) {
      const { id, jobId } = await s.accept();
      let claimed: Claimed | undefined;
      const begin = async (pool: Pool) => {
        claimed = await createClaim(pool)(newClaim(jobId));
      };
      assertFew(await s.readsOf(begin, generic), 1, own);
      assert.ok(claimed?.result.kind === 'claimed');
      const { attempt } = claimed.result.claim;
      assertFew(await s.readsOf((pool) => renew(pool, attempt, times), generic), 1, own);
      const options = { ...times, who: 'worker-1' };
      assertFew(await s.readsOf((pool) => createSettle(pool)(attempt, resultOf(attempt), options), generic), 1, own);
      assert.equal((await s.attachmentRow(id)).state, 'ready');
    }
  });

  it('a list reads by the filters that it has, also when it was often asked without them', async (t) => {
    const s = await startFull(t);
    const { rows } = await s.pool.query<{ owner: string; attachment: string }>(
      `select owner_id as owner, attachment_id as attachment from jobs where state = 'queued' limit 1`,
    );
    const { owner, attachment } = rows[0] ?? assert.fail();
    const all = { state: null, errorCode: null, cursor: null, limit: 10, ownerId: null };
    const ofJobs = await s.readsOf(async (pool) => {
      for (let n = 0; n < 8; n += 1) await listJobs(pool, all);
      assert.equal((await listJobs(pool, { ...all, attachmentId: attachment })).items.length, 1);
      await assertNoList(pool);
    });
    assertFew(ofJobs, 11, /^(jobs_pkey|attachments_pkey|jobs_attachment_id_version_key)$/);
    const ofUploads = await s.readsOf(async (pool) => {
      let cursor: string | null = null;
      for (let n = 0; n < 12; n += 1) {
        cursor = (await listAttachments(pool, owner, { state: null, cursor, limit: 10 })).nextCursor;
      }
      await assertNoList(pool);
    });
    assertFew(ofUploads, 11, /^(attachments_by_owner|jobs_attachment_id_version_key|variants_pkey)$/);
  });
});
