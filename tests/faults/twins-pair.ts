/** A pair of twins on a database of its own, in a test or for the mutants. */
import type { Store } from '../../src/pipeline/store.ts';
import { createStore } from '../../src/postgres/store.ts';
import type { Scope } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { addUser } from '../support/store.ts';
import { createTwins, type Twins } from './twins.ts';
import { createClock } from './twins-clock.ts';

/** The database goes when `scope` ends. `change` puts something between the twins and the store. */
export async function pairOfTwins(
  scope: Scope,
  seed: number,
  change: (store: Store) => Store = (store) => store,
): Promise<{ twins: Twins; owners: readonly string[] }> {
  const { pool, url } = await freshDatabase(scope);
  const clock = await createClock({ url, pool });
  const signals = { announce() {}, listen: () => () => {}, close: async () => {} };
  const store = change(createStore({ pool, signals }, { leadCheckMs: 50 }));
  const owners = [await addUser(pool, 'owner'), await addUser(pool, 'other')];
  return { twins: createTwins({ store, pool, clock, owners, seed }), owners };
}
