/** Who is asking: tokens, the form of passwords, and the operator of the first start. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, it } from 'node:test';
import { ensureOperator } from '../../src/http/auth.ts';
import { hashPassword, verifyPassword } from '../../src/http/password.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { createPeople } from '../../src/postgres/people.ts';
import { assertProblem, startApi } from '../support/api.ts';
import { freshDatabase } from '../support/postgres.ts';

const plain = 'Bearer realm="skrepka"';
const invalid = 'Bearer realm="skrepka", error="invalid_token"';

describe('a route for users', () => {
  describe('200', () => {
    it('takes the scheme in any case', async (t) => {
      const { call, account } = await startApi(t);
      const { token } = await account('ada');
      for (const scheme of ['Bearer', 'bearer', 'BEARER']) {
        const answer = await call('GET /v1/users/me', { headers: { authorization: `${scheme} ${token}` } });
        assert.equal(answer.status, 200);
      }
    });
  });

  describe('401', () => {
    it('asks for a token where none was sent, and blames none', async (t) => {
      const { call } = await startApi(t);
      for (const authorization of [undefined, '', 'Basic YWRhOnB3', 'Token abc', 'Bearerx']) {
        const answer = await call('GET /v1/users/me', {
          headers: authorization === undefined ? {} : { authorization },
        });
        assertProblem(answer, 401, 'unauthorized');
        assert.equal(answer.headers.get('www-authenticate'), plain, authorization);
      }
    });

    it('blames a token that is not one, is unknown, has another last letter, or comes with another', async (t) => {
      const { call, account } = await startApi(t);
      const { token } = await account('ada');
      const unknown = `skr_${'A'.repeat(43)}`;
      const bad = [
        '',
        'x',
        unknown,
        token.slice(0, -1),
        `${token}A`,
        token.toUpperCase(),
        `${token} ${token}`,
        token.slice(4),
      ];
      for (const sent of bad) {
        const answer = await call('GET /v1/users/me', { headers: { authorization: `Bearer ${sent}` } });
        assertProblem(answer, 401, 'unauthorized');
        assert.equal(answer.headers.get('www-authenticate'), invalid, sent);
      }
    });

    it('blames a token that has expired', async (t) => {
      const { call, account, pool } = await startApi(t);
      const { token } = await account('ada');
      await pool.query('update sessions set expires_at = now()');
      const answer = await call('GET /v1/users/me', { token });
      assertProblem(answer, 401, 'unauthorized');
      assert.equal(answer.headers.get('www-authenticate'), invalid);
    });

    it('comes before the body is read or validated', async (t) => {
      const { call } = await startApi(t);
      const answer = await call('POST /v1/chats', { token: `skr_${'A'.repeat(43)}`, json: '{"broken' });
      assertProblem(answer, 401, 'unauthorized');
      assert.equal(answer.headers.get('www-authenticate'), invalid);
    });
  });

  describe('503', () => {
    it('never lets anybody in, nor sends anybody away, while the database is down', async (t) => {
      const sessionUser = () => Promise.reject(new StoreError('unavailable', 'down'));
      const { call, account } = await startApi(t, { deps: ({ people }) => ({ people: { ...people, sessionUser } }) });
      const { token } = await account('ada');
      const answer = await call('GET /v1/users/me', { token });
      assertProblem(answer, 503, 'unavailable');
      assert.equal(answer.headers.get('www-authenticate'), null);
    });
  });
});

describe('a route for operators', () => {
  describe('401', () => {
    it('asks for a token first', async (t) => {
      const { call } = await startApi(t);
      assertProblem(await call('GET /v1/admin/queue'), 401, 'unauthorized');
    });
  });

  describe('403', () => {
    it('is closed to users', async (t) => {
      const { call, account } = await startApi(t);
      const { token } = await account('ada');
      const answer = await call('GET /v1/admin/queue', { token });
      assertProblem(answer, 403, 'forbidden');
      assert.equal(answer.headers.get('www-authenticate'), null);
    });
  });
});

describe('secrets', () => {
  it('are in no line of the log, also when a request fails', async (t) => {
    const password = 'the password itself';
    const createChat = () => Promise.reject(new Error('an unexpected failure'));
    const { call, lines } = await startApi(t, { deps: ({ people }) => ({ people: { ...people, createChat } }) });
    const { body } = await call('POST /v1/users', { json: { handle: 'ada', password } });
    await call('POST /v1/sessions', { json: { handle: 'ada', password: `${password} not` } });
    assertProblem(await call('POST /v1/chats', { token: body.token, json: { title: 'x' } }), 500, 'internal');
    await call('GET /v1/users/me', { token: `${body.token}x` });
    const log = lines.join('\n');
    assert.match(log, /an unexpected failure/);
    for (const secret of [body.token, body.token.slice(4, 20), password]) assert.ok(!log.includes(secret), log);
  });

  it('are stored hashed only', async (t) => {
    const { call, pool } = await startApi(t);
    const password = 'the password itself';
    const { body } = await call('POST /v1/users', { json: { handle: 'ada', password } });
    const { rows } = await pool.query<{ token_hash: Buffer }>('select token_hash from sessions');
    assert.deepEqual(rows[0]?.token_hash, createHash('sha256').update(body.token).digest());
    const all = await pool.query<{ rows: string }>(
      'select (select jsonb_agg(users)::text from users) || (select jsonb_agg(sessions)::text from sessions) as rows',
    );
    for (const secret of [body.token.slice(4), password]) assert.ok(!all.rows[0]?.rows.includes(secret));
  });

  it('of a throttled log-in do not name handle or address in the database', async (t) => {
    const { call, pool } = await startApi(t);
    await call('POST /v1/sessions', { json: { handle: 'ada', password: 'wrong' } });
    const { rows } = await pool.query<{ subject: string }>('select subject from login_failures');
    assert.equal(rows.length, 1);
    assert.match(rows[0]?.subject ?? '', /^[0-9a-f]{64}$/);
  });
});

describe('ensureOperator', () => {
  it('makes the account once, with credentials that log in as an operator', async (t) => {
    const { call, people } = await startApi(t);
    const made = await ensureOperator(people);
    assert.ok(made);
    assert.equal(made.handle, 'operator');
    assert.ok(made.password.length >= 24);
    assert.equal(await ensureOperator(people), null);
    const { body } = await call('POST /v1/sessions', { json: made });
    assert.equal(body.user.role, 'admin');
    assert.equal((await call('GET /v1/admin/queue', { token: body.token })).status, 200);
  });

  it('answers credentials to one of two that start at once', async (t) => {
    const { pool } = await freshDatabase(t);
    const people = createPeople({ pool });
    const both = await Promise.all([ensureOperator(people), ensureOperator(people)]);
    const [made, ...others] = both.filter((one) => one !== null);
    assert.ok(made);
    assert.deepEqual(others, []);
    const stored = await people.credentials('operator');
    assert.ok(await verifyPassword(made.password, stored?.passwordHash ?? null));
  });
});

describe('passwords', () => {
  it('are hashed under a fresh salt, with their parameters', async () => {
    const [one, two] = await Promise.all([hashPassword('secret 1'), hashPassword('secret 1')]);
    assert.match(one, /^\$scrypt\$ln=15,r=8,p=3\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/);
    assert.notEqual(one.split('$')[3], two.split('$')[3]);
    assert.notEqual(one.split('$')[4], two.split('$')[4]);
  });

  it('are right or wrong by every character', async () => {
    const encoded = await hashPassword('pass-word 😀');
    assert.equal(await verifyPassword('pass-word 😀', encoded), true);
    for (const wrong of ['pass-word 😁', 'pass-word ', 'Pass-word 😀', '', 'pass-word 😀 ']) {
      assert.equal(await verifyPassword(wrong, encoded), false, wrong);
    }
  });

  it('are verified under the parameters that they were hashed with', async () => {
    // RFC 7914, section 12, the second vector, cut to its first 32 bytes.
    const salt = Buffer.from('NaCl').toString('base64').replaceAll('=', '');
    const key = Buffer.from('fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162', 'hex');
    const encoded = `$scrypt$ln=10,r=8,p=16$${salt}$${key.toString('base64').replaceAll('=', '')}`;
    assert.equal(await verifyPassword('password', encoded), true);
    assert.equal(await verifyPassword('passwore', encoded), false);
  });

  it('of nobody are never right', async () => {
    assert.equal(await verifyPassword('', null), false);
  });

  it('with a hash of another form are an error, which does not tell the hash', async () => {
    for (const encoded of ['', '$2b$12$abcdefgh', '$scrypt$ln=15,r=8,p=3$$', 'secret hash']) {
      await assert.rejects(
        verifyPassword('x', encoded),
        (error: Error) => encoded === '' || !error.message.includes(encoded),
      );
    }
  });

  it('are hashed away from the event loop', async () => {
    const [all, own] = [process.cpuUsage(), process.threadCpuUsage()];
    await hashPassword('secret 1');
    const [allAfter, ownAfter] = [process.cpuUsage(all), process.threadCpuUsage(own)];
    // Of what the process has computed meanwhile, little was on the thread of the loop.
    assert.ok(ownAfter.user < allAfter.user / 4, `${ownAfter.user} of ${allAfter.user} µs on the loop's thread`);
  });
});
