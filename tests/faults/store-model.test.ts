/** The store's model in the simulation does what the SQL does: the same verbs, the same answers, the same rows, on PostgreSQL. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import type { Store } from '../../src/pipeline/store.ts';
import { pairOfTwins } from './twins-pair.ts';

const sequences = 12;
const verbs = 120;

describe('the store’s model', { concurrency: 2 }, () => {
  for (let seed = 1; seed <= sequences; seed += 1) {
    it(`answers and keeps what PostgreSQL does, verb by verb, in sequence ${seed}`, async (t) => {
      const { twins } = await pairOfTwins(t, seed);
      const done = new Set<string>();
      for (let number = 0; number < verbs; number += 1) done.add((await twins.step()).verb);
      assert.ok(done.size > 20, `only ${[...done].join(', ')} were tried`);
    });
  }
});

describe('a sequence', () => {
  it('has the same verbs with the same answers, whatever time passes between and within them', async (t) => {
    const swift = await play(t);
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() });
    const slow = await play(t, (store) => slowed(store, () => t.mock.timers.setTime(Date.now() + 37 * 60_000)));
    assert.deepEqual(slow, swift);
  });
});

async function play(t: TestContext, change?: (store: Store) => Store): Promise<readonly string[]> {
  const { twins, owners } = await pairOfTwins(t, 1, change);
  const told: string[] = [];
  for (let number = 0; number < verbs; number += 1) {
    const step = JSON.stringify(await twins.step());
    // All that is not from the seed are the ids of the accounts.
    told.push(owners.reduce((text, owner, at) => text.replaceAll(owner, `owner ${at}`), step));
  }
  return told;
}

/** Time passes before each verb of the store, and again before its answer is heard. */
function slowed(store: Store, pass: () => void): Store {
  return new Proxy(store, {
    get: (target, name) => {
      const verb = Reflect.get(target, name) as (...given: unknown[]) => Promise<unknown>;
      return async (...given: unknown[]) => {
        pass();
        const answer = await verb(...given);
        pass();
        return answer;
      };
    },
  });
}
