/** Accounts, sessions and the log-in throttle keep their promises on a real PostgreSQL. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, it, type TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import type { People } from '../../src/pipeline/people.ts';
import { createPeople } from '../../src/postgres/people.ts';
import { freshDatabase } from '../support/postgres.ts';

const hourMs = 3_600_000;

async function start(t: TestContext) {
  const { pool } = await freshDatabase(t);
  return { pool, people: createPeople({ pool }) };
}

function hashOf(token: string): Uint8Array {
  return createHash('sha256').update(token).digest();
}

async function account(people: People, handle: string) {
  const user = await people.createUser({ id: newId(), handle, passwordHash: `hash of ${handle}`, role: 'user' });
  assert.ok(user);
  return user;
}

describe('createUser', () => {
  it('answers the account as it is stored', async (t) => {
    const { people } = await start(t);
    const id = newId();
    const user = await people.createUser({ id, handle: 'ada', passwordHash: 'x', role: 'admin' });
    assert.ok(user);
    assert.deepEqual({ ...user, createdAt: null }, { id, handle: 'ada', role: 'admin', createdAt: null });
    assert.ok(user.createdAt instanceof Date);
    assert.deepEqual(await people.user(id), user);
  });

  it('answers null for a handle that is taken, and leaves the first account alone', async (t) => {
    const { people } = await start(t);
    const first = await account(people, 'ada');
    assert.equal(await people.createUser({ id: newId(), handle: 'ada', passwordHash: 'y', role: 'user' }), null);
    assert.deepEqual(await people.credentials('ada'), { user: first, passwordHash: 'hash of ada' });
  });

  it('makes one account of ten at once with one handle', async (t) => {
    const { people } = await start(t);
    const answers = await Promise.all(
      Array.from({ length: 10 }, () =>
        people.createUser({ id: newId(), handle: 'ada', passwordHash: 'x', role: 'user' }),
      ),
    );
    assert.equal(answers.filter((answer) => answer !== null).length, 1);
  });
});

describe('credentials', () => {
  it('are null for an unknown handle', async (t) => {
    const { people } = await start(t);
    assert.equal(await people.credentials('nobody'), null);
    assert.equal(await people.user(newId()), null);
  });
});

describe('sessions', () => {
  it('answer their user until they are ended, and no other session ends with them', async (t) => {
    const { people } = await start(t);
    const user = await account(people, 'ada');
    const before = Date.now();
    const { expiresAt } = await people.createSession({ tokenHash: hashOf('one'), userId: user.id, ttlMs: hourMs });
    await people.createSession({ tokenHash: hashOf('two'), userId: user.id, ttlMs: hourMs });
    assert.ok(Math.abs(expiresAt.getTime() - before - hourMs) < 60_000, `expires at ${expiresAt.toISOString()}`);
    assert.deepEqual(await people.sessionUser(hashOf('one')), user);
    await people.endSession(hashOf('one'));
    assert.equal(await people.sessionUser(hashOf('one')), null);
    assert.deepEqual(await people.sessionUser(hashOf('two')), user);
  });

  it('answer nobody once expired on the clock of the database', async (t) => {
    const { people, pool } = await start(t);
    const user = await account(people, 'ada');
    await people.createSession({ tokenHash: hashOf('one'), userId: user.id, ttlMs: hourMs });
    await pool.query(`update sessions set expires_at = now()`);
    assert.equal(await people.sessionUser(hashOf('one')), null);
  });

  it('answer nobody for a token that was never given', async (t) => {
    const { people } = await start(t);
    assert.equal(await people.sessionUser(hashOf('one')), null);
  });
});

describe('setPassword', () => {
  it('replaces the password and ends the sessions of that account only', async (t) => {
    const { people } = await start(t);
    const ada = await account(people, 'ada');
    const bob = await account(people, 'bob');
    await people.createSession({ tokenHash: hashOf('a'), userId: ada.id, ttlMs: hourMs });
    await people.createSession({ tokenHash: hashOf('b'), userId: bob.id, ttlMs: hourMs });
    await people.setPassword(ada.id, 'new');
    assert.equal((await people.credentials('ada'))?.passwordHash, 'new');
    assert.equal((await people.credentials('bob'))?.passwordHash, 'hash of bob');
    assert.equal(await people.sessionUser(hashOf('a')), null);
    assert.deepEqual(await people.sessionUser(hashOf('b')), bob);
  });
});

describe('log-in failures', () => {
  it('count up inside a window, each subject by itself', async (t) => {
    const { people } = await start(t);
    assert.deepEqual(await people.loginFailures('s', hourMs), { count: 0, retryAfterSeconds: 0 });
    assert.equal(await people.recordLoginFailure('s', hourMs), 1);
    assert.equal(await people.recordLoginFailure('s', hourMs), 2);
    assert.equal(await people.recordLoginFailure('other', hourMs), 1);
    const running = await people.loginFailures('s', hourMs);
    assert.equal(running.count, 2);
    assert.ok(running.retryAfterSeconds > 3500 && running.retryAfterSeconds <= 3600, `${running.retryAfterSeconds} s`);
  });

  it('lose none of twenty that come at once', async (t) => {
    const { people } = await start(t);
    const counts = await Promise.all(Array.from({ length: 20 }, () => people.recordLoginFailure('s', hourMs)));
    assert.deepEqual(
      counts.toSorted((a, b) => a - b),
      Array.from({ length: 20 }, (_, i) => i + 1),
    );
  });

  it('do not prolong the window that they fall in', async (t) => {
    const { people, pool } = await start(t);
    await people.recordLoginFailure('s', hourMs);
    const read = async () => (await pool.query(`select window_until from login_failures where subject = 's'`)).rows;
    const opened = await read();
    await people.recordLoginFailure('s', 5 * hourMs);
    assert.deepEqual(await read(), opened);
  });

  it('begin at one again after the window', async (t) => {
    const { people, pool } = await start(t);
    await people.recordLoginFailure('s', hourMs);
    await people.recordLoginFailure('s', hourMs);
    await pool.query('update login_failures set window_until = now()');
    assert.deepEqual(await people.loginFailures('s', hourMs), { count: 0, retryAfterSeconds: 0 });
    assert.equal(await people.recordLoginFailure('s', hourMs), 1);
    assert.equal((await people.loginFailures('s', hourMs)).count, 1);
  });

  it('are gone after a clear', async (t) => {
    const { people } = await start(t);
    await people.recordLoginFailure('s', hourMs);
    await people.clearLoginFailures('s');
    assert.equal(await people.recordLoginFailure('s', hourMs), 1);
  });

  it('leave no rows of dead windows behind', async (t) => {
    const { people, pool } = await start(t);
    for (const subject of ['a', 'b', 'c']) await people.recordLoginFailure(subject, hourMs);
    await pool.query(`update login_failures set window_until = now() where subject <> 'c'`);
    await people.recordLoginFailure('d', hourMs);
    const { rows } = await pool.query<{ subject: string }>('select subject from login_failures order by subject');
    assert.deepEqual(
      rows.map((row) => row.subject),
      ['c', 'd'],
    );
  });
});
