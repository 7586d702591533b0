/** Clients that are gone before they are heard: they are not served, hold no place, and are nobody's failure. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { HttpDeps } from '../../src/http/app.ts';
import { startApi } from '../support/api.ts';
import { until } from '../support/until.ts';
import { dial, png, startUploads } from '../support/uploads.ts';

const count = (lines: readonly string[], part: string) => lines.filter((line) => line.includes(part)).length;

/** A database that takes its time with who is asking, until it is told to go on. */
function slowAuthentication() {
  const { promise, resolve } = Promise.withResolvers<void>();
  let isSlow = false;
  let asked = 0;
  let answered = 0;
  const deps = ({ people }: HttpDeps): Partial<HttpDeps> => ({
    people: {
      ...people,
      async sessionUser(tokenHash) {
        if (!isSlow) return people.sessionUser(tokenHash);
        asked += 1;
        await promise;
        const user = await people.sessionUser(tokenHash);
        answered += 1;
        return user;
      },
    },
  });
  const begin = () => {
    isSlow = true;
  };
  const end = () => {
    isSlow = false;
    resolve();
  };
  return { deps, begin, end, asked: () => asked, answered: () => answered };
}

describe('a client that resets its connection right after a whole request', () => {
  for (const path of ['/v1/users', '/v1/sessions']) {
    it(`is not served at ${path}, and is no failure of the server`, async (t) => {
      const { url, lines, pool } = await startApi(t);
      for (let at = 0; at < 20; at += 1) {
        const body = JSON.stringify({ handle: `nobody${at}`, password: 'a long password' });
        const line = await dial(t, url);
        void line.socket.write(
          `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
        );
        line.socket.resetAndDestroy();
      }
      const route = `"route":"${path}"`;
      await until('all have ended', () => count(lines, route) === 20);
      assert.deepEqual(
        lines.filter((line) => !line.startsWith('info ')),
        [],
      );
      assert.equal(count(lines, '"status":400'), 20);
      assert.equal((await pool.query("select 1 from users where handle like 'nobody%'")).rows.length, 0);
      assert.equal((await pool.query('select 1 from login_failures')).rows.length, 0);
    });
  }
});

describe('a long poll', () => {
  it('takes no place when its client was gone before it was known who asks', async (t) => {
    const slow = slowAuthentication();
    const { send, call, ada, url, lines } = await startUploads(t, {
      settings: { waitsPerUserMax: 2 },
      deps: slow.deps,
    });
    const { id } = (await send(png())).body;
    slow.begin();
    for (let at = 0; at < 3; at += 1) {
      const line = await dial(t, url);
      await line.write(
        `GET /v1/attachments/${id}?wait=30 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ada.token}\r\n\r\n`,
      );
      await until('it is asked who that is', () => slow.asked() === at + 1);
      line.socket.destroy();
    }
    await until('the server knows', () => count(lines, '"aborted":true') === 3);
    slow.end();
    await until('it is known who that was', () => slow.answered() === 3);
    const answer = await call(`GET /v1/attachments/${id}?wait=1`, { token: ada.token });
    assert.deepEqual([answer.status, answer.headers.get('retry-after')], [200, null]);
  });

  it('gives its place back when its connection ends, also one that waits behind another on it', async (t) => {
    const { send, call, ada, url, faults } = await startUploads(t, { settings: { waitsPerUserMax: 3 } });
    const { id } = (await send(png())).body;
    const line = await dial(t, url);
    const wait = `GET /v1/attachments/${id}?wait=30 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ada.token}\r\n\r\n`;
    await line.write(wait.repeat(3));
    await until('all have looked', () => faults.calls('attachmentFor') >= 3);
    line.socket.destroy();
    const free = async () => {
      const waits = [1, 2, 3].map(() => call(`GET /v1/attachments/${id}?wait=1`, { token: ada.token }));
      return (await Promise.all(waits)).every(({ headers }) => headers.get('retry-after') === null);
    };
    await until('the places are free', free, { deadlineMs: 8000 });
  });
});
