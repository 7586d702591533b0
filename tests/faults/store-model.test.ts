/** The store's model in the simulation does what the SQL does: the same verbs, the same answers, the same rows, on PostgreSQL. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { addUser, startStore } from '../support/store.ts';
import { createTwins } from './twins.ts';

const sequences = 12;
const verbs = 120;

describe('the store’s model', { concurrency: 2 }, () => {
  for (let seed = 1; seed <= sequences; seed += 1) {
    it(`answers and keeps what PostgreSQL does, verb by verb, in sequence ${seed}`, async (t) => {
      const { store, pool, owner } = await startStore(t);
      const other = await addUser(pool, 'other');
      const twins = createTwins({ store, pool, owners: [owner, other], seed });
      const done = new Set<string>();
      for (let number = 0; number < verbs; number += 1) done.add(await twins.step());
      assert.ok(done.size > 20, `only ${[...done].join(', ')} were tried`);
    });
  }
});
