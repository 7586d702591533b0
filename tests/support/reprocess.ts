/** Wishes for a newer version on a store of tests: asking, feeding to the end, and ending the jobs that come of it. */
import assert from 'node:assert/strict';
import { fail, resultOf, settle, type startStore } from './store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

const kept = { withOriginal: false };
export const to2 = { version: 2, who: 'operator' };
export const wish = { ...to2, retryFailed: false };
export const wide = { window: 1_000, limit: 1_000 };

/** The jobs of a version, in the order of their attachments. */
export const jobsOf = async (s: Fixture, version: number) =>
  (
    await s.pool.query<{ id: string; attachment_id: string; state: string; generation: number; origin: string }>(
      'select id, attachment_id, state, generation, origin from jobs where version = $1 order by attachment_id',
      [version],
    )
  ).rows;

/** Feeds until the wish is done; answers how many jobs that made. */
export async function feedAll(s: Fixture, version = 2): Promise<number> {
  let made = 0;
  for (let round = 0; round < 20; round += 1) {
    made += await s.store.feedReprocessing(wide);
    if ((await s.store.reprocessing(version))?.doneAt) return made;
  }
  assert.fail('the wish is never done');
}

/** Ends the job of a version in success, or fails it for good. */
export async function end(s: Fixture, jobId: string, how: 'ready' | 'failed') {
  const { attempt } = await s.claimed(jobId);
  const ended =
    how === 'ready'
      ? await settle(s.store, attempt, resultOf(attempt, kept))
      : await fail(s.store, attempt, 'corrupt_image');
  assert.equal(ended, how);
}
