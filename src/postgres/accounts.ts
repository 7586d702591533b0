/**
 * Accounts, sessions and the log-in throttle: the part of the people port that knows who somebody is.
 *
 * Every verb is one statement, so each is atomic by itself. Secrets arrive hashed: a password as its encoded scrypt form,
 * a token as its SHA-256, the subject of a throttle as a digest. Nothing here could be used to log in.
 */
import type { Role, User } from '../pipeline/message.ts';
import type { People } from '../pipeline/people.ts';
import { type Pool, single } from './pool.ts';
import { onlyRow } from './rows.ts';

export type Accounts = Pick<
  People,
  | 'createUser'
  | 'credentials'
  | 'user'
  | 'setPassword'
  | 'createSession'
  | 'sessionUser'
  | 'endSession'
  | 'recordLoginFailure'
  | 'loginFailures'
  | 'clearLoginFailures'
>;

interface UserRow {
  id: string;
  handle: string;
  role: Role;
  created_at: Date;
}

/** Rejects `StoreError` when the database does not answer; every other outcome is in the answers of the verbs. */
export function createAccounts({ pool }: { pool: Pool }): Accounts {
  return {
    createUser: (user) => createUser(pool, user),
    credentials: (handle) => credentials(pool, handle),
    user: (id) => userById(pool, id),
    setPassword: (userId, passwordHash) => setPassword(pool, userId, passwordHash),
    createSession: (session) => createSession(pool, session),
    sessionUser: (tokenHash) => sessionUser(pool, tokenHash),
    endSession: (tokenHash) => endSession(pool, tokenHash),
    recordLoginFailure: (subject, windowMs) => recordLoginFailure(pool, subject, windowMs),
    loginFailures: (subject) => loginFailures(pool, subject),
    clearLoginFailures: (subject) => clearLoginFailures(pool, subject),
  };
}

function toUser(row: UserRow): User {
  return { id: row.id, handle: row.handle, role: row.role, createdAt: row.created_at };
}

/** Guard: nobody has the handle. Of two at once, one is answered null. */
async function createUser(
  pool: Pool,
  user: { id: string; handle: string; passwordHash: string; role: Role },
): Promise<User | null> {
  const { rows } = await single<UserRow>(
    pool,
    `insert into users (id, handle, password_hash, role)
     values ($1, $2, $3, $4)
     on conflict (handle) do nothing
     returning id, handle, role, created_at`,
    [user.id, user.handle, user.passwordHash, user.role],
    { writes: true },
  );
  return rows[0] ? toUser(rows[0]) : null;
}

async function credentials(pool: Pool, handle: string): Promise<{ user: User; passwordHash: string } | null> {
  const { rows } = await single<UserRow & { password_hash: string }>(
    pool,
    `select id, handle, role, created_at, password_hash
     from users
     where handle = $1`,
    [handle],
    { writes: false },
  );
  return rows[0] ? { user: toUser(rows[0]), passwordHash: rows[0].password_hash } : null;
}

async function userById(pool: Pool, id: string): Promise<User | null> {
  const { rows } = await single<UserRow>(
    pool,
    `select id, handle, role, created_at
     from users
     where id = $1`,
    [id],
    { writes: false },
  );
  return rows[0] ? toUser(rows[0]) : null;
}

/** New password and end of all sessions in one statement: no moment at which the old token goes with the new password. */
async function setPassword(pool: Pool, userId: string, passwordHash: string): Promise<void> {
  await single(
    pool,
    `with changed as (
       update users
       set password_hash = $2
       where id = $1
       returning id
     )
     delete from sessions
     where user_id in (select id from changed)`,
    [userId, passwordHash],
    { writes: true },
  );
}

async function createSession(
  pool: Pool,
  session: { tokenHash: Uint8Array; userId: string; ttlMs: number },
): Promise<{ expiresAt: Date }> {
  const row = onlyRow(
    await single<{ expires_at: Date }>(
      pool,
      `insert into sessions (token_hash, user_id, expires_at)
       values ($1, $2, now() + $3 * interval '1 millisecond')
       returning expires_at`,
      [Buffer.from(session.tokenHash), session.userId, session.ttlMs],
      { writes: true },
    ),
  );
  return { expiresAt: row.expires_at };
}

/** Guard: not expired on the database's clock. */
async function sessionUser(pool: Pool, tokenHash: Uint8Array): Promise<User | null> {
  const { rows } = await single<UserRow>(
    pool,
    `select users.id, users.handle, users.role, users.created_at
     from sessions
     join users on users.id = sessions.user_id
     where sessions.token_hash = $1
       and sessions.expires_at > now()`,
    [Buffer.from(tokenHash)],
    { writes: false },
  );
  return rows[0] ? toUser(rows[0]) : null;
}

async function endSession(pool: Pool, tokenHash: Uint8Array): Promise<void> {
  await single(pool, 'delete from sessions where token_hash = $1', [Buffer.from(tokenHash)], { writes: true });
}

/**
 * The first failure opens a window of `windowMs`; later ones count inside it and do not prolong it, so an attacker cannot
 * keep an account locked for ever by trying on.
 */
async function recordLoginFailure(pool: Pool, subject: string, windowMs: number): Promise<number> {
  const row = onlyRow(
    await single<{ failures: number }>(
      pool,
      `insert into login_failures as counted (subject, failures, window_until)
       values ($1, 1, now() + $2 * interval '1 millisecond')
       on conflict (subject) do update
       set failures = case when counted.window_until > now() then counted.failures + 1 else 1 end,
           window_until = case when counted.window_until > now() then counted.window_until else excluded.window_until end
       returning failures`,
      [subject, windowMs],
      { writes: true },
    ),
  );
  if (row.failures === 1) await sweepDeadWindows(pool);
  return row.failures;
}

/**
 * Each window that opens takes a few dead ones away, so the table stays as small as the number of running windows without
 * anybody sweeping it. A statement of its own: inside the count, two that revive each other's windows could deadlock.
 */
async function sweepDeadWindows(pool: Pool): Promise<void> {
  await single(
    pool,
    `delete from login_failures
     where subject in (
       select subject
       from login_failures
       where window_until <= now()
       limit 10
       for update skip locked
     )`,
    [],
    { writes: true },
  );
}

/** Zero failures and zero seconds outside a window. Seconds are rounded up: whoever waits for them finds the window over. */
async function loginFailures(pool: Pool, subject: string): Promise<{ count: number; retryAfterSeconds: number }> {
  const { rows } = await single<{ failures: number; seconds: number }>(
    pool,
    `select failures, ceil(extract(epoch from window_until - now()))::int as seconds
     from login_failures
     where subject = $1
       and window_until > now()`,
    [subject],
    { writes: false },
  );
  return rows[0] ? { count: rows[0].failures, retryAfterSeconds: rows[0].seconds } : { count: 0, retryAfterSeconds: 0 };
}

async function clearLoginFailures(pool: Pool, subject: string): Promise<void> {
  await single(pool, 'delete from login_failures where subject = $1', [subject], { writes: true });
}
