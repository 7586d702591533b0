/**
 * The relay's verbs: which bells are due, taking them, marking what the broker confirmed.
 *
 * Only these statements write `ring_at` and keep or set `rung_at`; every other write of `ring_at` clears it, so that a
 * late mark never overwrites what a claim, renewal, retry or end has set meanwhile. All of them are one short
 * statement: nothing stays locked while the relay talks to the broker.
 */
import type { Ring } from '../pipeline/job.ts';
import type { TakenRing } from '../pipeline/store.ts';
import { anyPlace, type Pool, single } from './pool.ts';
import { onlyRow } from './rows.ts';

/**
 * Takes due bells: `rings + 1`, `ring_at` to `takenMs` from now, `rung_at` now. Guard: unfinished and `ring_at` over.
 *
 * Leases and repeated rings need no place and come first: they are few, and paced by their own intervals. Then what was
 * never announced, uploads before reprocessing and by turn, as far as `window` has places. A place is
 * held from the first announcement to the claim, also while a repeated ring is overdue: counting only bells still in the
 * future would hand the places of a whole wiped broker out twice.
 * Two relays at once may overshoot the window by one `limit`; `skip locked` keeps them from each other's rows. For as long as
 * the statement runs it holds the next `limit` bells, also where there are fewer places.
 */
export async function takeDue(
  pool: Pool,
  options: { limit: number; window: number; takenMs: number },
): Promise<readonly TakenRing[]> {
  const front = Math.ceil(options.limit);
  const { rows } = await single<{ id: string; rings: number; traceparent: string | null; again: boolean }>(
    pool,
    `with again as materialized (
       select id, rings
       from jobs
       where (state = 'processing' or rung_at is not null)
         and ring_at <= now()
       order by ring_at
       limit $1
       for no key update skip locked
     ),
     places as materialized (
       select greatest(0, $2 - count(*)) as free
       from jobs
       where state = 'queued'
         and rung_at is not null
     ),
     fresh as materialized (
       select id, rings
       from (
         select id, rings
         from jobs
         where state = 'queued'
           and rung_at is null
           and ring_at <= now()
           and (select free from places) > 0
         order by origin desc, turn
         -- Written out: of a limit that is computed the planner expects a tenth of all that wait, and sorts them.
         limit ${front}
         for no key update skip locked
       ) front
       limit greatest(0, least($1 - (select count(*) from again), (select free from places)))
     ),
     taken as (
       update jobs
       set rings = jobs.rings + 1,
           rung_at = now(),
           ring_at = now() + $3 * interval '1 millisecond'
       from (
         select id, rings from again
         union all
         select id, rings from fresh
       ) due
       where jobs.id = due.id
         -- Always so: see anyPlace.
         and due.rings between 0 and 2147483647
       returning jobs.id, jobs.rings, jobs.traceparent, jobs.origin, jobs.turn, jobs.confirmed > 0 as again
     )
     select id, rings, traceparent, again
     from taken
     order by origin desc, turn, id`,
    [options.limit, options.window, options.takenMs],
    { writes: true },
  );
  return rows.map(({ id, rings, traceparent, again }) => ({ jobId: id, ring: rings, traceparent, again }));
}

export interface Mark {
  readonly ring: Ring;
  readonly baseMs: number;
  readonly capMs: number;
  readonly jitter: number;
}

/**
 * After the broker confirmed, for each of these rings by itself: the next ring waits `baseMs · 2^confirmed`, at most `capMs`, times
 * `jitter`. Answers which were marked, in their order.
 * Guard: nobody else took the bell or wrote it since: `rings` is this ring's, and `rung_at` is still set. And it is not due:
 * a bell that was hastened because the broker lost its messages is not put off by the confirmation of one of them.
 *
 * A row that somebody has locked is left as it is. Nearly always that is a claim, a renewal or an end, after which the mark would come too
 * late; else the bell rings once more than needed. So many rows are written without ever waiting for one while others are held.
 *
 * The one write of the store that is not flushed: a mark that a dying server forgets is one that never was made.
 */
export async function markRung(pool: Pool, marks: readonly Mark[]): Promise<readonly boolean[]> {
  const { rows } = await single<{ id: string; rings: number }>(
    pool,
    `with mark as materialized (
       select mark.*
       from unnest($1::uuid[], $2::int[], $3::float8[], $4::float8[], $5::float8[])
         with ordinality as mark (job_id, ring, base_ms, cap_ms, jitter, n)
       where n ${anyPlace}
         and (select set_config('synchronous_commit', 'off', true)) is not null
     ),
     own as materialized (
       select bell.id, mark.base_ms, mark.cap_ms, mark.jitter
       from mark
       cross join lateral (
         select id
         from jobs
         where id = mark.job_id
           and rings = mark.ring
           and rung_at is not null
           -- Not now(): whoever hastened the bell may have begun after it.
           and ring_at > clock_timestamp()
         for no key update skip locked
       ) bell
     )
     update jobs
     set ring_at = now() + least(own.cap_ms, own.base_ms * 2 ^ least(confirmed, 40)) * own.jitter * interval '1 millisecond',
         confirmed = confirmed + 1
     from own
     where jobs.id = own.id
     returning jobs.id, jobs.rings`,
    [
      marks.map(({ ring }) => ring.jobId),
      marks.map(({ ring }) => ring.ring),
      marks.map(({ baseMs }) => baseMs),
      marks.map(({ capMs }) => capMs),
      marks.map(({ jitter }) => jitter),
    ],
    { writes: true },
  );
  const marked = new Set(rows.map(({ id, rings }) => `${id}:${rings}`));
  return marks.map(({ ring }) => marked.has(`${ring.jobId}:${ring.ring}`));
}

/**
 * Makes announced, unclaimed bells due now, oldest announcement first, those of dead attempts among them: a broker that lost its
 * messages lost theirs as well. They keep their place. Guard: not due anyway.
 */
export async function ringAgain(pool: Pool, limit: number): Promise<number> {
  const { rowCount } = await single(
    pool,
    `with announced as materialized (
       select id
       from jobs
       where rung_at is not null
         and ring_at > now()
       order by rung_at
       limit $1
       for no key update skip locked
     )
     update jobs
     set ring_at = now()
     from announced
     where jobs.id = announced.id`,
    [limit],
    { writes: true },
  );
  return rowCount ?? 0;
}

/** Jobs that are announced and not claimed yet: those that hold a place in the window, and those whose attempt died. */
export async function countAnnounced(pool: Pool): Promise<number> {
  const row = onlyRow(
    await single<{ announced: number }>(
      pool,
      `select count(*) as announced
       from jobs
       where rung_at is not null`,
      [],
      { writes: false },
    ),
  );
  return row.announced;
}

/** `waitMs`: mean of the last 100 claims within five minutes that answered a ring, 0 without any. */
export async function recentPace(pool: Pool): Promise<{ waitMs: number; claimsPerSecond: number }> {
  const row = onlyRow(
    await single<{ wait_ms: number; claims: number }>(
      pool,
      `select coalesce(avg(waited_ms), 0)::float8 as wait_ms,
         (select count(*) from jobs where claimed_at > now() - interval '5 seconds') as claims
       from (
         select waited_ms
         from jobs
         where claimed_at > now() - interval '5 minutes'
           and waited_ms is not null
         order by claimed_at desc
         limit 100
       ) recent`,
      [],
      { writes: false },
    ),
  );
  return { waitMs: row.wait_ms, claimsPerSecond: row.claims / 5 };
}

/**
 * Milliseconds until the next bell, rounded up: whoever sleeps so long finds it due. 0 when one is due, also when the
 * full window leaves it no place: a relay whose take came back empty must not trust a 0.
 */
export async function untilDueMs(pool: Pool, capMs: number): Promise<number> {
  const row = onlyRow(
    await single<{ until_ms: number }>(
      pool,
      `select greatest(0, least($1::float8, ceil(extract(epoch from next.ring_at - now()) * 1000)))::float8 as until_ms
       from (
         select least(
           (select min(ring_at) from jobs where state = 'queued' and rung_at is null),
           (select min(ring_at) from jobs where state = 'processing' or rung_at is not null)
         ) as ring_at
       ) next`,
      [capMs],
      { writes: false },
    ),
  );
  return row.until_ms;
}
