/** A pair of twins on a database of its own, outside of a test: for the mutants. */
import { createStore } from '../../src/postgres/store.ts';
import { freshDatabase } from '../support/postgres.ts';
import { addUser } from '../support/store.ts';
import { createTwins, type Twins } from './twins.ts';

/** `end` drops the database. */
export async function pairOfTwins(seed: number): Promise<{ twins: Twins; end: () => Promise<void> }> {
  const ends: (() => Promise<void>)[] = [];
  const end = async () => {
    for (const clean of ends) await clean();
  };
  const { pool } = await freshDatabase({ after: (clean) => void ends.push(clean) });
  const signals = { announce() {}, listen: () => () => {}, close: async () => {} };
  const store = createStore({ pool, signals }, { leadCheckMs: 50 });
  const owners = [await addUser(pool, 'owner'), await addUser(pool, 'other')];
  return { twins: createTwins({ store, pool, owners, seed }), end };
}
