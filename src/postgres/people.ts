/** The people port on PostgreSQL, put together from its three parts. */
import type { People } from '../pipeline/people.ts';
import { createAccounts } from './accounts.ts';
import { createChats } from './chats.ts';
import { createMessages } from './messages.ts';
import type { Pool } from './pool.ts';

/** `pool` stays its caller's to end. Every verb rejects `StoreError` when the database does not answer. */
export function createPeople({ pool }: { pool: Pool }): People {
  return { ...createAccounts({ pool }), ...createChats({ pool }), ...createMessages({ pool }) };
}
