/**
 * The fault suite as `npm test` plays it: seeded schedules, every fault and pair of faults of one upload, and the schedules that
 * once found something. `npm run test:faults` plays more of the same.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { gapsIn } from './coverage.ts';
import { exhaustiveOrders, playOrders, seedOrders } from './play-all.ts';
import type { Share } from './player.ts';
import { playSeed, story } from './schedule.ts';
import { type Outcome, play } from './stage.ts';
import { drawnFates, fateAt } from './world.ts';

/** A machine that does much else at the same time needs many times what a quiet one does. */
const timeout = 1_800_000;
const seedsPlayed = 2_000;

/** Fails with the schedules that do not hold, and the end of the story of the first one. */
async function holds({ violations }: Share): Promise<void> {
  if (violations.length === 0) return;
  const found = violations.map(({ schedule, sentence }) => `${schedule}: ${sentence}`);
  const seed = /^--seed (\d+)$/.exec(violations[0]?.schedule ?? '')?.[1];
  const told = seed === undefined ? [] : story(await playSeed(Number(seed))).slice(-60);
  assert.fail(
    `\n${[...found, 'npm run test:faults -- --seed … plays one of them again. The first:', ...told].join('\n')}`,
  );
}

function heldBy({ violation, ...outcome }: Outcome): void {
  if (violation)
    assert.fail(
      `${violation.message}\n${story({ violation, ...outcome })
        .slice(-60)
        .join('\n')}`,
    );
}

describe('random schedules of faults', () => {
  let running: Promise<Share> | null = null;
  const played = () => {
    running ??= playOrders(seedOrders(0, seedsPlayed));
    return running;
  };

  it('hold every invariant, two thousand of them', { timeout }, async (t) => {
    const share = await played();
    t.diagnostic(`${share.played} seeds, ${share.steps} effects, ${share.answered} uploads answered 202`);
    await holds(share);
    assert.equal(share.played, seedsPlayed);
    assert.ok(share.answered > seedsPlayed, 'most uploads are answered');
  });

  it('strike every effect in every way in which it can be struck, and none that nobody declared', {
    timeout,
  }, async () => {
    const { missing, undeclared } = gapsIn((await played()).counts);
    assert.deepEqual({ missing, undeclared }, { missing: [], undeclared: [] });
  });

  it('are the same effects in the same order when a seed is played again', { timeout }, async () => {
    // One of each family, and one whose faults are rare ones.
    for (const seed of [4, 11, 12, 14, 19]) {
      const [once, again] = [await playSeed(seed), await playSeed(seed)];
      assert.deepEqual(story(again), story(once));
      assert.deepEqual(again.steps, once.steps);
    }
  });
});

describe('the faults of one upload', () => {
  it('hold every invariant one by one and two by two, at every effect', { timeout }, async (t) => {
    const share = await playOrders(exhaustiveOrders(true));
    t.diagnostic(`${share.singles} single faults, ${share.pairs} pairs`);
    await holds(share);
    assert.ok(share.singles > 150 && share.pairs > 100 * share.singles, `${share.singles} and ${share.pairs}`);
  });
});

describe('the broker', () => {
  const wipesAtMs = Array.from({ length: 60 }, (_, at) => 300 + at * 2_700);

  it('is disposable: all that it holds may be lost again and again, and every upload comes to the same', async () => {
    for (let seed = 1; seed <= 40; seed += 1) {
      const quiet = { seed, faultMs: 180_000, uploads: 8, family: 'plain' } as const;
      const [kept, lost] = [
        await play({ ...quiet, fates: drawnFates(seed, { rate: 0, crashesMax: 0 }) }),
        await play({ ...quiet, fates: drawnFates(seed, { rate: 0, crashesMax: 0 }), wipesAtMs }),
      ];
      heldBy(kept);
      heldBy(lost);
      assert.ok(kept.ends.size >= 6, `only ${kept.ends.size} uploads were taken in`);
      assert.deepEqual([...lost.ends].sort(), [...kept.ends].sort());
    }
  });

  it('that loses the message of a dead attempt does not make its job wait for the next ring', async () => {
    for (let seed = 1; seed <= 20; seed += 1) {
      // Its lease ends 45 s after the claim, and its bell rings half a second later.
      const fates = fateAt('point.worker.rendered', 'crash_before');
      const wipesAtMs = Array.from({ length: 40 }, (_, at) => 44_000 + at * 100);
      const outcome = await play({ seed, fates, faultMs: 180_000, uploads: 1, family: 'plain', wipesAtMs });
      heldBy(outcome);
      assert.ok((outcome.doneAtMs ?? Number.POSITIVE_INFINITY) < 65_000, `done after ${outcome.doneAtMs} ms`);
    }
  });
});

describe('a put that lands twice', () => {
  it('leaves no staging object, however long after its publication it comes', async () => {
    for (let seed = 1; seed <= 20; seed += 1) {
      const fates = fateAt('blobs.put', 'twice');
      const outcome = await play({ seed, fates, faultMs: 180_000, uploads: 1, family: 'plain' });
      assert.equal(outcome.counts.get('blobs.put twice'), 1);
      heldBy(outcome);
    }
  });
});
