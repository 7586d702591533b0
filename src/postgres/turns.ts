/**
 * Turns: what decides the order in which waiting jobs get a place in the window.
 *
 * A user's next job stands a step after the last of their unfinished ones, and whoever has none at the front: so behind at most
 * one job of each user who waits, and behind what is announced already. The front is the turn of the first job that waits, not
 * simply now: with a plain clock a service slower than a job a step took all that a flood had left behind before a newcomer,
 * 4 minutes with 20 users of 200 uploads at 4 jobs a second, where each of them is owed one job. Never further back than
 * `frontLag`, so that nobody waits for ever: whatever begins to wait later than that after a job's turn stands behind it.
 */

/** Longer than a full backlog of the defaults takes at 20 jobs a second. */
const frontLag = `interval '10 minutes'`;

/** The turn of a job that begins to wait now, as SQL. All three are SQL expressions of the statement around it, never values. */
export function nextTurn(job: { owner: string; origin: string; spacingMs: string }): string {
  return `greatest(
    least(
      now(),
      (
        select waiting.turn
        from jobs waiting
        where waiting.state = 'queued'
          and waiting.rung_at is null
          and waiting.origin = ${job.origin}
          and waiting.ring_at <= now()
        order by waiting.turn
        limit 1
      )
    ),
    now() - ${frontLag},
    (
      select max(mine.turn)
      from jobs mine
      where mine.owner_id = ${job.owner}
        and mine.origin = ${job.origin}
        and mine.state in ('queued', 'processing')
        -- Made by a doctor: its owner is not the one who asked for it.
        and not mine.rebuild
    ) + ${job.spacingMs}::float8 * interval '1 millisecond'
  )`;
}
