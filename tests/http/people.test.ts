/** Accounts and sessions over HTTP: a block per route, inside it one per status. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { hashPassword } from '../../src/http/password.ts';
import { newId } from '../../src/ids.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { assertProblem, startApi } from '../support/api.ts';

const password = 'correct horse';
const dayMs = 86_400_000;

/** Bodies that both routes with a password refuse, each with the field to blame. */
const badBodies: readonly [string, unknown, string][] = [
  ['an array', [], ''],
  ['nothing', undefined, ''],
  ['no handle', { password }, '/handle'],
  ['no password', { handle: 'ada' }, '/password'],
  ['a handle that is no text', { handle: 7, password }, '/handle'],
  ['an upper-case handle', { handle: 'Ada', password }, '/handle'],
  ['a handle of one letter', { handle: 'a', password }, '/handle'],
  ['a handle of 33 letters', { handle: 'a'.repeat(33), password }, '/handle'],
  ['a handle with a line break', { handle: 'ada\n', password }, '/handle'],
  ['a handle in Cyrillic', { handle: 'ада', password }, '/handle'],
  ['a password of 257 characters', { handle: 'ada', password: 'x'.repeat(257) }, '/password'],
  ['an empty password', { handle: 'ada', password: '' }, '/password'],
  ['NUL in the password', { handle: 'ada', password: `${password}\u0000` }, '/password'],
  ['half a surrogate pair in the password', { handle: 'ada', password: `${password}\ud83d` }, '/password'],
  ['a member too many', { handle: 'ada', password, role: 'admin' }, '/role'],
];

describe('POST /v1/users', () => {
  describe('201', () => {
    it('answers the account and a token that works, and lets nobody cache it', async (t) => {
      const { call } = await startApi(t);
      const made = await call('POST /v1/users', { json: { handle: 'ada', password } });
      assert.equal(made.status, 201);
      assert.deepEqual(Object.keys(made.body).toSorted(), ['expires_at', 'token', 'user']);
      assert.deepEqual(Object.keys(made.body.user).toSorted(), ['created_at', 'handle', 'id', 'role']);
      assert.equal(made.body.user.handle, 'ada');
      assert.equal(made.body.user.role, 'user');
      assert.match(made.body.token, /^skr_[A-Za-z0-9_-]{43}$/);
      assert.equal(made.headers.get('cache-control'), 'no-store');
      const me = await call('GET /v1/users/me', { token: made.body.token });
      assert.deepEqual(me.body, made.body.user);
    });

    it('gives the token the configured life', async (t) => {
      const { call } = await startApi(t);
      const made = await call('POST /v1/users', { json: { handle: 'ada', password } });
      const lifeMs = Date.parse(String(made.body.expires_at)) - Date.now();
      assert.ok(Math.abs(lifeMs - 30 * dayMs) < 60_000, `${lifeMs} ms`);
    });

    it('takes a password of 256 code points outside the first plane', async (t) => {
      const { call } = await startApi(t);
      const long = '😀'.repeat(256);
      assert.equal((await call('POST /v1/users', { json: { handle: 'ada', password: long } })).status, 201);
      assert.equal((await call('POST /v1/sessions', { json: { handle: 'ada', password: long } })).status, 201);
    });
  });

  describe('400', () => {
    it('names the field that is wrong', async (t) => {
      const { call, pool } = await startApi(t);
      const seven: [string, unknown, string] = [
        '7 characters',
        { handle: 'ada', password: 'x'.repeat(7) },
        '/password',
      ];
      for (const [what, json, field] of [...badBodies, seven]) {
        const headers = { 'content-type': 'application/json' };
        const answer = await call('POST /v1/users', json === undefined ? { headers } : { json, headers });
        assert.equal(answer.body.field, field, `${what}: ${JSON.stringify(answer.body)}`);
        assertProblem(answer, 400, 'validation');
      }
      const { rows } = await pool.query(`select handle from users where handle <> 'owner'`);
      assert.deepEqual(rows, []);
    });

    it('says when the body is no JSON', async (t) => {
      const { call } = await startApi(t);
      assertProblem(await call('POST /v1/users', { json: '{"handle":' }), 400, 'malformed_body');
    });
  });

  describe('403', () => {
    it('lets nobody register when registration is closed', async (t) => {
      const { call, people } = await startApi(t, { settings: { registration: 'closed' } });
      assertProblem(await call('POST /v1/users', { json: { handle: 'ada', password } }), 403, 'registration_closed');
      assert.equal(await people.credentials('ada'), null);
    });
  });

  describe('409', () => {
    it('keeps a handle for whoever had it first', async (t) => {
      const { call, account } = await startApi(t);
      await account('ada');
      assertProblem(
        await call('POST /v1/users', { json: { handle: 'ada', password } }),
        409,
        'handle_taken',
        '/handle',
      );
      const loggedIn = await call('POST /v1/sessions', { json: { handle: 'ada', password: 'password of ada' } });
      assert.equal(loggedIn.status, 201);
    });

    it('keeps the handle of the operator before there is one', async (t) => {
      const { call, people } = await startApi(t);
      assertProblem(await call('POST /v1/users', { json: { handle: 'operator', password } }), 409, 'handle_taken');
      assert.equal(await people.credentials('operator'), null);
    });
  });

  describe('413', () => {
    it('refuses a body over the limit of small routes', async (t) => {
      const { call } = await startApi(t);
      const answer = await call('POST /v1/users', { json: { handle: 'ada', password: 'x'.repeat(70_000) } });
      assertProblem(answer, 413, 'body_too_large');
    });
  });

  describe('415', () => {
    it('takes JSON only', async (t) => {
      const { call } = await startApi(t);
      const headers = { 'content-type': 'application/x-www-form-urlencoded' };
      assertProblem(await call('POST /v1/users', { json: 'handle=ada', headers }), 415, 'unsupported_media_type');
    });
  });

  describe('503', () => {
    it('says when to come back while the database is down', async (t) => {
      const createUser = () => Promise.reject(new StoreError('unavailable', 'down'));
      const { call } = await startApi(t, { deps: ({ people }) => ({ people: { ...people, createUser } }) });
      const answer = await call('POST /v1/users', { json: { handle: 'ada', password } });
      assertProblem(answer, 503, 'unavailable');
      assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
    });
  });
});

describe('POST /v1/sessions', () => {
  describe('201', () => {
    it('answers a further token, and the earlier ones go on working', async (t) => {
      const { call, account } = await startApi(t);
      const ada = await account('ada');
      const answer = await call('POST /v1/sessions', { json: { handle: 'ada', password: 'password of ada' } });
      assert.equal(answer.status, 201);
      assert.deepEqual(Object.keys(answer.body).toSorted(), ['expires_at', 'token', 'user']);
      assert.equal(answer.body.user.id, ada.id);
      assert.notEqual(answer.body.token, ada.token);
      assert.equal(answer.headers.get('cache-control'), 'no-store');
      for (const token of [ada.token, answer.body.token]) {
        assert.equal((await call('GET /v1/users/me', { token })).status, 200);
      }
    });

    it('takes the same password however it is composed', async (t) => {
      const { call } = await startApi(t);
      await call('POST /v1/users', { json: { handle: 'ada', password: 'p\u00e9tanque!' } });
      const answer = await call('POST /v1/sessions', { json: { handle: 'ada', password: 'pe\u0301tanque!' } });
      assert.equal(answer.status, 201);
    });

    it('forgets earlier failures', async (t) => {
      const { call, account } = await startApi(t);
      await account('ada');
      const good = { json: { handle: 'ada', password: 'password of ada' } };
      const bad = { json: { handle: 'ada', password: 'wrong' } };
      for (let round = 0; round < 2; round += 1) {
        for (let i = 0; i < 2; i += 1) assert.equal((await call('POST /v1/sessions', bad)).status, 401);
        assert.equal((await call('POST /v1/sessions', good)).status, 201);
      }
    });
  });

  describe('400', () => {
    it('names the field that is wrong', async (t) => {
      const { call } = await startApi(t);
      for (const [what, json, field] of badBodies) {
        const headers = { 'content-type': 'application/json' };
        const answer = await call('POST /v1/sessions', json === undefined ? { headers } : { json, headers });
        assert.equal(answer.body.field, field, `${what}: ${JSON.stringify(answer.body)}`);
        assertProblem(answer, 400, 'validation');
      }
    });

    it('says when the body is no JSON', async (t) => {
      const { call } = await startApi(t);
      assertProblem(await call('POST /v1/sessions', { json: 'handle' }), 400, 'malformed_body');
    });
  });

  describe('401', () => {
    it('answers an unknown handle and a wrong password alike', async (t) => {
      const { call, account } = await startApi(t);
      await account('ada');
      const wrong = await call('POST /v1/sessions', { json: { handle: 'ada', password } });
      const unknown = await call('POST /v1/sessions', { json: { handle: 'eve', password } });
      for (const answer of [wrong, unknown]) {
        assertProblem(answer, 401, 'invalid_credentials');
        assert.equal(answer.headers.get('www-authenticate'), 'Bearer realm="skrepka"');
      }
      assert.deepEqual({ ...wrong.body, instance: '' }, { ...unknown.body, instance: '' });
    });

    it('hashes for an unknown handle as it does for a known one', async (t) => {
      const { call, people } = await startApi(t, { settings: { loginFailuresMax: 100 } });
      await people.createUser({ id: newId(), handle: 'ada', passwordHash: await hashPassword(password), role: 'user' });
      const fastestMs = { ada: Number.POSITIVE_INFINITY, eve: Number.POSITIVE_INFINITY };
      for (let round = 0; round < 3; round += 1) {
        for (const handle of ['ada', 'eve'] as const) {
          const began = performance.now();
          assert.equal((await call('POST /v1/sessions', { json: { handle, password: 'wrong' } })).status, 401);
          fastestMs[handle] = Math.min(fastestMs[handle], performance.now() - began);
        }
      }
      // Without the hash an unknown handle is answered in a hundredth of the time; a tenth leaves room for a busy machine.
      assert.ok(fastestMs.eve > fastestMs.ada / 10, JSON.stringify(fastestMs));
    });
  });

  describe('413', () => {
    it('refuses a body over the limit of small routes', async (t) => {
      const { call } = await startApi(t);
      const answer = await call('POST /v1/sessions', { json: { handle: 'ada', password: 'x'.repeat(70_000) } });
      assertProblem(answer, 413, 'body_too_large');
    });
  });

  describe('415', () => {
    it('takes JSON only', async (t) => {
      const { call } = await startApi(t);
      const headers = { 'content-type': 'text/plain' };
      assertProblem(await call('POST /v1/sessions', { json: '{}', headers }), 415, 'unsupported_media_type');
    });
  });

  describe('429', () => {
    const wrong = { json: { handle: 'ada', password: 'wrong' } };
    const right = { json: { handle: 'ada', password: 'password of ada' } };

    it('refuses even the right password after too many failures, and says for how long', async (t) => {
      const { call, account, people } = await startApi(t);
      await account('ada');
      for (let i = 0; i < 3; i += 1) assert.equal((await call('POST /v1/sessions', wrong)).status, 401);
      const answer = await call('POST /v1/sessions', right);
      assertProblem(answer, 429, 'too_many_logins');
      const seconds = Number(answer.headers.get('retry-after'));
      assert.ok(seconds > 800 && seconds <= 900, `${seconds} s`);
      assert.ok(await people.credentials('ada'));
    });

    it('refuses an unknown handle in the same way', async (t) => {
      const { call } = await startApi(t);
      for (let i = 0; i < 3; i += 1) await call('POST /v1/sessions', { json: { handle: 'eve', password } });
      assertProblem(await call('POST /v1/sessions', { json: { handle: 'eve', password } }), 429, 'too_many_logins');
    });

    it('lets other handles in meanwhile, and this one again after the window', async (t) => {
      const { call, account, pool } = await startApi(t);
      await account('ada');
      await account('bob');
      for (let i = 0; i < 4; i += 1) await call('POST /v1/sessions', wrong);
      const bob = { json: { handle: 'bob', password: 'password of bob' } };
      assert.equal((await call('POST /v1/sessions', bob)).status, 201);
      await pool.query('update login_failures set window_until = now()');
      assert.equal((await call('POST /v1/sessions', right)).status, 201);
    });

    it('lets no more guesses through at once than pass the gate together', async (t) => {
      const { call, account } = await startApi(t);
      await account('ada');
      const answers = await Promise.all(Array.from({ length: 20 }, () => call('POST /v1/sessions', wrong)));
      const checked = answers.filter((answer) => answer.status === 401).length;
      assert.ok(checked >= 3 && checked <= 4, `${checked} of 20 guesses were checked`);
    });
  });

  describe('503', () => {
    it('says when to come back while the database is down', async (t) => {
      const credentials = () => Promise.reject(new StoreError('unavailable', 'down'));
      const { call } = await startApi(t, { deps: ({ people }) => ({ people: { ...people, credentials } }) });
      const answer = await call('POST /v1/sessions', { json: { handle: 'ada', password } });
      assertProblem(answer, 503, 'unavailable');
      assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
    });
  });
});

describe('DELETE /v1/sessions/current', () => {
  describe('204', () => {
    it('ends this token and no other', async (t) => {
      const { call, account } = await startApi(t);
      const ada = await account('ada');
      const second = await call('POST /v1/sessions', { json: { handle: 'ada', password: 'password of ada' } });
      const ended = await call('DELETE /v1/sessions/current', { token: ada.token });
      assert.equal(ended.status, 204);
      assert.ok(ended.isEmpty);
      assertProblem(await call('GET /v1/users/me', { token: ada.token }), 401, 'unauthorized');
      assert.equal((await call('GET /v1/users/me', { token: second.body.token })).status, 200);
    });
  });

  describe('401', () => {
    it('needs a token that has not been ended', async (t) => {
      const { call, account } = await startApi(t);
      const { token } = await account('ada');
      assertProblem(await call('DELETE /v1/sessions/current'), 401, 'unauthorized');
      await call('DELETE /v1/sessions/current', { token });
      assertProblem(await call('DELETE /v1/sessions/current', { token }), 401, 'unauthorized');
    });
  });
});

describe('GET /v1/users/me', () => {
  describe('200', () => {
    it('answers the account of the token', async (t) => {
      const { call, account } = await startApi(t);
      const [ada, root] = [await account('ada'), await account('root', 'admin')];
      const me = await call('GET /v1/users/me', { token: ada.token });
      assert.equal(me.status, 200);
      assert.deepEqual({ ...me.body, created_at: '' }, { id: ada.id, handle: 'ada', role: 'user', created_at: '' });
      assert.match(String(me.body.created_at), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
      assert.equal((await call('GET /v1/users/me', { token: root.token })).body.role, 'admin');
    });
  });

  describe('401', () => {
    it('needs a token', async (t) => {
      const { call } = await startApi(t);
      assertProblem(await call('GET /v1/users/me'), 401, 'unauthorized');
    });
  });
});
