/** Step 8 and the janitor: who leads, what is due, what is named, what has expired; and that a deletion leaks nothing. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { describe, it, type TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import { attemptPrefix } from '../../src/pipeline/attachment.ts';
import { createPool } from '../../src/postgres/pool.ts';
import { createStore } from '../../src/postgres/store.ts';
import { fail, resultOf, settle, startStore, times } from '../support/store.ts';
import { until } from '../support/until.ts';

describe('lead', () => {
  const held = () => {
    let end = () => {};
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    return { end, ended };
  };

  it('is one at a time under a name, and the next after it', async (t) => {
    const s = await startStore(t);
    const { end, ended } = held();
    const started = Promise.withResolvers<void>();
    const first = s.store.lead('janitor', async () => {
      started.resolve();
      await ended;
    });
    await started.promise;
    let ran = 0;
    const work = async () => {
      ran += 1;
    };
    assert.equal(await s.store.lead('janitor', work), false);
    assert.equal(ran, 0);
    assert.equal(await s.store.lead('another', work), true);
    assert.equal(ran, 1);
    end();
    assert.equal(await first, true);
    // The lock ends with its connection, a moment after it was closed.
    await until('the lead is free', () => s.store.lead('janitor', work));
    assert.equal(ran, 2);
  });

  it('aborts the work when its connection dies, and another may lead', async (t) => {
    const s = await startStore(t);
    const started = Promise.withResolvers<void>();
    const led = s.store.lead('janitor', async (signal) => {
      started.resolve();
      await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
    });
    await started.promise;
    const { rows } = await s.pool.query(
      `select pg_terminate_backend(pid) from pg_locks
       where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`,
    );
    assert.equal(rows.length, 1);
    assert.equal(await led, true);
    await until('the lead is free', () => s.store.lead('janitor', async () => {}));
  });

  it('aborts the work when its connection falls silent without a reset', async (t) => {
    const s = await startStore(t);
    const route = await startRoute(t, new URL(s.url));
    const pool = createPool({ url: route.url, max: 2, name: 'tests', statementMs: 400 });
    t.after(() => pool.end());
    const started = Promise.withResolvers<boolean>();
    const store = createStore({ pool, signals: s.signals }, { leadCheckMs: 50 });
    const lead = () =>
      store.lead('janitor', async (signal) => {
        started.resolve(true);
        await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
      });
    // On a busy machine the first answer may take longer than this pool waits for one.
    let led = lead();
    await until('it leads', async () => {
      const begun = await Promise.race([started.promise, led.catch(() => false)]);
      if (!begun) led = lead();
      return begun;
    });
    route.swallow();
    assert.equal(await led, true);
    route.end();
  });

  it('rejects what the work rejects, and gives the lead up', async (t) => {
    const s = await startStore(t);
    const error = new Error('broken');
    await assert.rejects(
      s.store.lead('janitor', async () => {
        throw error;
      }),
      error,
    );
    await until('the lead is free', () => s.store.lead('janitor', async () => {}));
  });

  it('ends with the store', async (t) => {
    const s = await startStore(t);
    const store = createStore({ pool: s.pool, signals: s.signals });
    const started = Promise.withResolvers<void>();
    let aborted = false;
    const led = store.lead('janitor', async (signal) => {
      started.resolve();
      await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
      aborted = true;
    });
    await started.promise;
    await store.close();
    assert.equal(aborted, true);
    assert.equal(await led, true);
  });
});

describe('clean-ups', () => {
  it('are due from their time on, longest first, at most the limit', async (t) => {
    const s = await startStore(t);
    await s.pool.query(
      `insert into cleanups (key, not_before, passes, reason)
       values ('b', now() - interval '1 second', 1, 'x'), ('later', now() + interval '1 hour', 0, 'x'),
         ('a', now() - interval '2 seconds', 0, 'x')`,
    );
    const due = await s.store.dueCleanups(10);
    assert.deepEqual(
      due.map(({ key, passes }) => [key, passes]),
      [
        ['a', 0],
        ['b', 1],
      ],
    );
    assert.equal((await s.store.dueCleanups(1)).length, 1);
  });

  it('come again as often as they have passes, then go; saying a pass twice counts once', async (t) => {
    const s = await startStore(t);
    await s.pool.query(`insert into cleanups (key, passes, reason) values ('a', 2, 'x'), ('other', 0, 'x')`);
    const next = async () => (await s.store.dueCleanups(10)).find(({ key }) => key === 'a');
    const soon = () => s.pool.query(`update cleanups set not_before = now() where key = 'a'`);
    const first = await next();
    assert.ok(first);
    await s.store.passedCleanup(first, 60_000);
    assert.equal(await next(), undefined, 'the next pass waits');
    await s.store.passedCleanup(first, 60_000);
    await soon();
    const second = await next();
    assert.equal(second?.passes, 1);
    await s.store.passedCleanup(second, 0);
    const third = await next();
    assert.equal(third?.passes, 0);
    await s.store.passedCleanup(second, 0);
    assert.deepEqual(await next(), third);
    await s.store.passedCleanup(third, 0);
    assert.equal(await next(), undefined);
    assert.deepEqual(
      (await s.store.dueCleanups(10)).map(({ key }) => key),
      ['other'],
    );
  });
});

describe('namedAmong', () => {
  it('names staging until its attachment is published, also while it has failed', async (t) => {
    const s = await startStore(t);
    const queued = await s.accept();
    const failed = await s.accept();
    await fail(s.store, (await s.claimed(failed.jobId)).attempt, 'corrupt_image');
    const ready = await s.ready();
    const gone = await s.accept();
    await s.pool.query('update attachments set staging_gone_at = now() where id = $1', [gone.id]);
    const keys = [queued, failed, ready, gone].map(({ upload }) => upload.stagingKey);
    assert.deepEqual(await s.store.namedAmong(keys), new Set([queued, failed].map(({ upload }) => upload.stagingKey)));
  });

  it('names the original and the variants of the published version, and nothing beside them', async (t) => {
    const s = await startStore(t);
    const { id, attempt, result: old } = await s.ready();
    const { attempt: next } = await s.claimed(await s.addJob(id, 2));
    const result = resultOf(next, { withOriginal: false });
    await settle(s.store, next, result);
    const stray = `${attemptPrefix(id, 1, attempt.fence, attempt.attemptId)}stray.jpg`;
    const named = [old.originalKey ?? '', ...result.variants.map(({ key }) => key)];
    const replaced = old.variants.map(({ key }) => key);
    assert.deepEqual(await s.store.namedAmong([...replaced, stray, ...named]), new Set(named));
  });

  it('names all in the folder of the attempt that runs, and nothing in those of dead ones', async (t) => {
    const s = await startStore(t);
    const { jobId } = await s.accept();
    const { attempt: dead } = await s.claimed(jobId);
    await s.endLease(jobId);
    const { attempt: running } = await s.claimed(jobId);
    const inside = (one: typeof dead) =>
      `${attemptPrefix(one.attachmentId, one.version, one.fence, one.attemptId)}x.jpg`;
    const keys = [dead, running, { ...running, attemptId: randomUUID() }, { ...running, fence: 22 }].map(inside);
    assert.deepEqual(await s.store.namedAmong(keys), new Set([inside(running)]));
    await s.endLease(jobId);
    assert.deepEqual(await s.store.namedAmong(keys), new Set([inside(running)]), 'it may still settle');
    await fail(s.store, running);
    assert.deepEqual(await s.store.namedAmong(keys), new Set());
  });

  it('names nothing of a deleted attachment, nor keys that are not ours', async (t) => {
    const s = await startStore(t);
    const { id, upload, result } = await s.ready();
    await s.store.deleteAttachment(s.owner, id, { graceMs: 1 });
    const foreign = [
      '',
      '/',
      'staging/',
      'staging/x',
      `other/${id}`,
      `attachments/${newId()}/x`,
      "attachments/'; drop/",
    ];
    const keys = [upload.stagingKey, result.originalKey ?? '', ...result.variants.map(({ key }) => key), ...foreign];
    assert.deepEqual(await s.store.namedAmong(keys), new Set());
    assert.deepEqual(await s.store.namedAmong([]), new Set());
  });
});

describe('awaitingCleanup', () => {
  it('knows a key by itself, by the folder of its attempt and by that of its attachment, and no other', async (t) => {
    const { store } = await startStore(t);
    const [one, two, three, four] = [newId(), newId(), newId(), newId()];
    const attempt = attemptPrefix(two, 1, 1, newId());
    const named = [`attachments/${one}/v1.1-${newId()}/crop.jpg`, `staging/${one}`];
    const covers = [...named, attempt, `attachments/${three}/`];
    await store.addCleanups(covers, { afterMs: 3_600_000, passes: 1, reason: 'test' });
    const covered = [...named, `${attempt}crop.jpg`, `attachments/${three}/v1.1-${newId()}/crop.jpg`];
    const others = [
      `${named[0]}.part`,
      attemptPrefix(one, 1, 2, newId()).concat('crop.jpg'),
      attemptPrefix(two, 1, 2, newId()).concat('crop.jpg'),
      `attachments/${four}/v1.1-${newId()}/crop.jpg`,
      `staging/${two}`,
    ];
    assert.deepEqual(await store.awaitingCleanup([...covered, ...others]), new Set(covered));
    assert.deepEqual(await store.awaitingCleanup([]), new Set());
  });
});

describe('knownAttachments', () => {
  it('knows living ones and tombstones, and no others', async (t) => {
    const s = await startStore(t);
    const living = await s.accept();
    const deleted = await s.accept();
    await s.store.deleteAttachment(s.owner, deleted.id, { graceMs: 1 });
    const known = await s.store.knownAttachments([living.id, deleted.id, newId(), 'no id']);
    assert.deepEqual(known, new Set([living.id, deleted.id]));
  });
});

describe('deleteAttachment', () => {
  const graceSeconds = times.graceMs / 1000;
  const expected = (id: string, running: boolean) => {
    const key = `attachments/${id}/`;
    const now = { key, passes: 0, reason: 'deleted', seconds: 0 };
    return [
      { key: `staging/${id}`, passes: 0, reason: 'deleted', seconds: 0 },
      ...(running ? [] : [now]),
      { key, passes: 1, reason: 'deleted', seconds: graceSeconds },
    ];
  };

  for (const state of ['queued', 'processing', 'ready', 'failed', 'ready, with a newer version processing'] as const) {
    it(`of a ${state} attachment ends access and its jobs, and sends all objects to the clean-ups`, async (t) => {
      const s = await startStore(t);
      const { id, jobId } = state.startsWith('ready') ? await s.ready() : await s.accept();
      if (state === 'processing' || state === 'failed') {
        const { attempt } = await s.claimed(jobId);
        if (state === 'failed') await fail(s.store, attempt, 'corrupt_image');
      }
      if (state.includes('newer')) await s.claimed(await s.addJob(id, 2));
      await s.pool.query('delete from cleanups');
      s.told.length = 0;
      assert.equal(await s.store.deleteAttachment(s.owner, id, { graceMs: times.graceMs }), true);
      assert.equal(await s.store.attachmentFor(s.owner, id), null);
      assert.deepEqual((await s.store.listAttachments(s.owner, { state: null, limit: 9, cursor: null })).items, []);
      const row = await s.attachmentRow(id);
      assert.ok(row.deleted_at && row.staging_gone_at);
      const left = await s.pool.query(
        `select (select count(*) from jobs where state in ('queued', 'processing')) as jobs,
           (select count(*) from variants) as variants`,
      );
      assert.deepEqual(left.rows, [{ jobs: 0, variants: 0 }]);
      assert.deepEqual(await s.cleanups(), expected(id, state.includes('processing')));
      assert.deepEqual(s.told, [`changed ${id}`]);
    });
  }

  it('keeps the end of a job that had one', async (t) => {
    const s = await startStore(t);
    const { id, jobId } = await s.ready();
    const before = await s.jobRow(jobId);
    await s.store.deleteAttachment(s.owner, id, { graceMs: 1 });
    assert.deepEqual(await s.jobRow(jobId), before);
  });

  it('is for the owner alone and works once', async (t) => {
    const s = await startStore(t);
    const { id } = await s.accept();
    const before = await s.everything();
    for (const [who, what] of [
      [newId(), id],
      [s.owner, newId()],
      [s.owner, 'no id'],
    ] as const) {
      assert.equal(await s.store.deleteAttachment(who, what, { graceMs: 1 }), false);
    }
    assert.equal(await s.everything(), before);
    const answers = await Promise.all([1, 2, 3].map(() => s.store.deleteAttachment(s.owner, id, { graceMs: 1 })));
    assert.deepEqual(answers.sort(), [false, false, true]);
  });

  it('and a settle at once end in one of two ways: cleaned as published, or cancelled with its folder cleaned', async (t) => {
    const s = await startStore(t);
    for (let round = 0; round < 6; round += 1) {
      const { id, jobId } = await s.accept();
      const { attempt } = await s.claimed(jobId);
      const both = [settle(s.store, attempt), s.store.deleteAttachment(s.owner, id, { graceMs: 1 })] as const;
      const [settled, deleted] = await Promise.all(both);
      assert.equal(deleted, true);
      assert.ok(settled === 'ready' || settled === 'cancelled', settled);
      assert.equal((await s.jobRow(jobId)).state, settled === 'ready' ? 'succeeded' : 'cancelled');
      const folders = (await s.cleanups()).filter(({ key }) => key === `attachments/${id}/`);
      assert.ok(folders.some(({ passes }) => passes === 1));
      const variants = await s.pool.query('select from variants where attachment_id = $1', [id]);
      assert.equal(variants.rowCount, 0);
    }
  });
});

describe('expire', () => {
  it('removes keys and sessions whose time is over, and only those, at most the limit of each', async (t) => {
    const s = await startStore(t);
    await s.pool.query(
      `insert into idempotency_keys (user_id, scope, key, token, lease_until, fingerprint, result_id, expires_at)
       select $1, 'attachment', key, gen_random_uuid(), now() + lease * interval '1 hour', print,
         case when print is not null then gen_random_uuid() end, now() + answer * interval '1 hour'
       from (
         values ('held', 1, null, null::int), ('abandoned', -1, null, null), ('kept', -1, 'p', 1), ('old', 1, 'p', -1)
       ) as given (key, lease, print, answer)`,
      [s.owner],
    );
    await s.pool.query(
      `insert into sessions (token_hash, user_id, expires_at)
       values ('\\x01', $1, now() + interval '1 hour'), ('\\x02', $1, now() - interval '1 hour'),
         ('\\x03', $1, now() - interval '1 hour')`,
      [s.owner],
    );
    assert.equal(await s.store.expire(1), 2);
    assert.equal(await s.store.expire(100), 2);
    assert.equal(await s.store.expire(100), 0);
    const left = await s.pool.query(
      `select array(select key from idempotency_keys order by key) as keys,
         (select count(*) from sessions) as sessions`,
    );
    assert.deepEqual(left.rows, [{ keys: ['held', 'kept'], sessions: 1 }]);
  });
});

/** A route to PostgreSQL that can swallow all packets from now on, as a dropped one does. */
async function startRoute(t: TestContext, to: URL) {
  const sockets = new Set<Socket>();
  const server = createServer((near) => {
    const far = connect(Number(to.port), to.hostname);
    for (const [from, into] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      from.on('error', () => {});
      from.on('close', () => into.destroy());
      from.pipe(into);
    }
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const url = new URL(to);
  url.port = String((server.address() as AddressInfo).port);
  const end = () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  t.after(end);
  const swallow = () => {
    for (const socket of sockets) socket.unpipe().pause();
  };
  return { url: url.href, swallow, end };
}
