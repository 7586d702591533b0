/**
 * Idempotency keys: reserved before the work under a token and a lease, answered by the transaction that does the work.
 *
 * A process that dies leaves a lease that ends; whoever comes next with the key takes it over under another token, and
 * the dead one's late answer finds its token gone. The upload's key is answered inside the accept statement
 * (`attachments.ts`), a message's inside the transaction that sends it.
 */
import type { KeyName, Reservation } from '../pipeline/store.ts';
import { type Pool, single } from './pool.ts';

/** A lost race is looked at again so often before the key counts as somebody else's. */
const roundsMax = 3;

/**
 * Reserves a key. Guard: there is none of this name, or its answer has expired, or it is unanswered and its lease is
 * over or this very token's. Rejects `StoreError`.
 */
export async function reserve(pool: Pool, name: KeyName & { token: string; leaseMs: number }): Promise<Reservation> {
  for (let round = 0; round < roundsMax; round += 1) {
    if (await takeKey(pool, name)) return { kind: 'reserved' };
    const holder = await readKey(pool, name);
    if (holder) return holder;
    // Expired, dropped or taken over between the two statements.
  }
  return { kind: 'in_flight', retryAfterSeconds: 1 };
}

async function takeKey(pool: Pool, name: KeyName & { token: string; leaseMs: number }): Promise<boolean> {
  const { rowCount } = await single(
    pool,
    `insert into idempotency_keys as held (user_id, scope, key, token, lease_until)
     values ($1, $2, $3, $4, now() + $5 * interval '1 millisecond')
     on conflict (user_id, scope, key) do update
     set token = excluded.token,
         lease_until = excluded.lease_until,
         fingerprint = null,
         result_id = null,
         expires_at = null,
         created_at = now()
     where (held.fingerprint is null and (held.lease_until <= now() or held.token = excluded.token))
        or held.expires_at <= now()`,
    [name.userId, name.scope, name.key, name.token, name.leaseMs],
    { writes: true },
  );
  return rowCount === 1;
}

/** Who has the key, or null when nobody has any more. */
async function readKey(pool: Pool, name: KeyName): Promise<Reservation | null> {
  const { rows } = await single<{ fingerprint: string | null; result_id: string | null; seconds: number }>(
    pool,
    `select fingerprint, result_id, ceil(extract(epoch from lease_until - now()))::int as seconds
     from idempotency_keys
     where user_id = $1
       and scope = $2
       and key = $3
       and (expires_at > now() or (fingerprint is null and lease_until > now()))`,
    [name.userId, name.scope, name.key],
    { writes: false },
  );
  const [row] = rows;
  if (!row) return null;
  if (row.fingerprint !== null && row.result_id !== null) {
    return { kind: 'answered', fingerprint: row.fingerprint, resultId: row.result_id };
  }
  return { kind: 'in_flight', retryAfterSeconds: Math.max(1, row.seconds) };
}

/** Guard: unanswered and held under this token. False: somebody else's by now. */
export async function extendReservation(
  pool: Pool,
  name: KeyName & { token: string; leaseMs: number },
): Promise<boolean> {
  const { rowCount } = await single(
    pool,
    `update idempotency_keys
     set lease_until = now() + $5 * interval '1 millisecond'
     where user_id = $1
       and scope = $2
       and key = $3
       and token = $4
       and fingerprint is null`,
    [name.userId, name.scope, name.key, name.token, name.leaseMs],
    { writes: true },
  );
  return rowCount === 1;
}

/** Guard: unanswered and held under this token. */
export async function dropReservation(pool: Pool, name: KeyName & { token: string }): Promise<void> {
  await single(
    pool,
    `delete from idempotency_keys
     where user_id = $1
       and scope = $2
       and key = $3
       and token = $4
       and fingerprint is null`,
    [name.userId, name.scope, name.key, name.token],
    { writes: true },
  );
}
