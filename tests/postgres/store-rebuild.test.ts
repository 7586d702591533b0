/** Rebuild: lost variants are made anew by the job of the published version, behind an attachment that stays ready. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import { budgets, byOperator, fail, release, resultOf, settle, startStore, times } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

/** A ready attachment and the keys of its variants. */
async function published(s: Fixture) {
  const ready = await s.ready();
  return { ...ready, keys: ready.result.variants.map((variant) => variant.key) };
}

const kept = { withOriginal: false };

describe('a rebuild', () => {
  it('queues the job of the published version in a new generation, behind an unchanged attachment', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys, attempt } = await published(s);
    const before = await s.store.attachmentFor(s.owner, id);
    s.told.length = 0;
    assert.equal(await s.store.rebuild(id, { keys: [...keys].reverse(), who: 'doctor' }), 'rebuilding');
    assert.deepEqual(s.told, ['due']);
    assert.deepEqual(await s.store.attachmentFor(s.owner, id), before);
    const row = await s.jobRow(jobId);
    assert.deepEqual(
      [row.state, row.generation, row.rebuild, row.fence, row.attempts, row.finished_at, row.rung_at],
      ['queued', 2, true, attempt.fence, 1, null, null],
    );
    const event = (await s.store.job(jobId))?.events.at(-1);
    assert.deepEqual(
      [event?.reason, event?.from, event?.to, event?.who],
      ['rebuilding', 'succeeded', 'queued', 'doctor'],
    );
  });

  it('replaces the set of the same version, keeps the original, and cleans the old keys later', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys, result: old } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    const { attempt, originalKey } = await s.claimed(jobId);
    assert.equal(originalKey, old.originalKey);
    assert.equal((await s.store.attachmentFor(s.owner, id))?.state, 'ready');
    s.told.length = 0;
    const result = resultOf(attempt, kept);
    assert.equal(await settle(s.store, attempt, result), 'ready');
    assert.deepEqual(s.told, [`changed ${id}`]);
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual(attachment?.variants, result.variants);
    assert.deepEqual([attachment?.pipelineVersion, attachment?.originalKey], [1, old.originalKey]);
    const replaced = (await s.cleanups()).filter((one) => one.reason === 'replaced');
    assert.deepEqual(replaced.map((one) => one.key).sort(), [...keys].sort());
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.state, row.rebuild], ['succeeded', false]);
  });

  it('stays one through retries, releases and crashes', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    await release(s.store, (await s.claimed(jobId)).attempt);
    assert.equal(await fail(s.store, (await s.claimed(jobId)).attempt), 'retried');
    await s.endWait(jobId);
    await s.claimed(jobId);
    await s.endLease(jobId);
    const { attempt } = await s.claimed(jobId);
    assert.equal(await settle(s.store, attempt, resultOf(attempt, kept)), 'ready');
  });

  it('asked twice, or by ten at once, is one', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const { id, jobId, keys } = await published(s);
    const answers = await Promise.all(Array.from({ length: 10 }, () => s.store.rebuild(id, { keys, who: 'doctor' })));
    assert.deepEqual(answers.sort(), [...Array.from({ length: 9 }, () => 'job_unfinished'), 'rebuilding']);
    assert.equal((await s.jobRow(jobId)).generation, 2);
    await s.claimed(jobId);
    const before = await s.everything();
    assert.equal(await s.store.rebuild(id, { keys, who: 'doctor' }), 'job_unfinished');
    assert.equal(await s.everything(), before);
  });

  it('of a set that was rebuilt already does nothing', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    const { attempt } = await s.claimed(jobId);
    await settle(s.store, attempt, resultOf(attempt, kept));
    const before = await s.everything();
    assert.equal(await s.store.rebuild(id, { keys, who: 'doctor' }), 'changed');
    assert.equal(await s.everything(), before);
  });
});

describe('a rebuild that fails', () => {
  const failures: [title: string, end: (s: Fixture, jobId: string) => Promise<unknown>][] = [
    [
      'by its budget of failures',
      async (s, jobId) =>
        assert.equal(await fail(s.store, (await s.claimed(jobId)).attempt, 'staging_corrupt'), 'failed'),
    ],
    [
      'by its budget of crashes',
      async (s, jobId) => {
        for (let crash = 0; crash < budgets.crashesMax; crash += 1) {
          await s.claimed(jobId);
          await s.endLease(jobId);
        }
        assert.deepEqual(await s.claim(jobId), { kind: 'refused', reason: 'exhausted' });
      },
    ],
  ];
  for (const [title, end] of failures) {
    it(`${title} leaves the attachment ready with its rows, and can be asked for or replayed again`, async (t) => {
      const s = await startStore(t);
      const { id, jobId, keys } = await published(s);
      const before = await s.store.attachmentFor(s.owner, id);
      const again = [
        () => s.store.rebuild(id, { keys, who: 'doctor' }),
        () => s.store.replay(jobId, byOperator),
        () => s.store.rebuild(id, { keys, who: 'doctor' }),
      ];
      for (const [index, ask] of again.entries()) {
        assert.match(await ask(), /^(rebuilding|replayed)$/);
        assert.equal((await s.jobRow(jobId)).generation, index + 2);
        assert.equal((await s.jobRow(jobId)).rebuild, true);
        s.told.length = 0;
        await end(s, jobId);
        assert.deepEqual(s.told, []);
        const row = await s.jobRow(jobId);
        assert.deepEqual([row.state, row.rebuild], ['failed', false]);
        const { attempts: _, ...shown } = (await s.store.attachmentFor(s.owner, id)) ?? assert.fail();
        const { attempts: __, ...shownBefore } = before ?? assert.fail();
        assert.deepEqual(shown, shownBefore);
      }
      await s.store.replay(jobId, byOperator);
      const { attempt } = await s.claimed(jobId);
      assert.equal(await settle(s.store, attempt, resultOf(attempt, kept)), 'ready');
    });
  }
});

describe('a rebuild and a newer version', () => {
  it('that is published meanwhile end it as superseded, and the newer set stays', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    const { attempt } = await s.claimed(jobId);
    const newer = await s.claimed(await s.addJob(id, 2));
    const result = resultOf(newer.attempt, kept);
    assert.equal(await settle(s.store, newer.attempt, result), 'ready');
    assert.equal(await settle(s.store, attempt, resultOf(attempt, kept)), 'superseded');
    const attachment = await s.store.attachmentFor(s.owner, id);
    assert.deepEqual([attachment?.pipelineVersion, attachment?.variants], [2, result.variants]);
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.state, row.rebuild], ['superseded', false]);
  });

  it('that comes after it both publish', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    const { attempt } = await s.claimed(jobId);
    const newer = await s.claimed(await s.addJob(id, 2));
    assert.equal(await settle(s.store, attempt, resultOf(attempt, kept)), 'ready');
    assert.equal(await settle(s.store, newer.attempt, resultOf(newer.attempt, kept)), 'ready');
    assert.equal((await s.store.attachmentFor(s.owner, id))?.pipelineVersion, 2);
  });

  it('that settle at once never leave variants of another version than the attachment’s', async (t) => {
    const s = await startStore(t, { poolMax: 12 });
    const rounds = await Promise.all(
      Array.from({ length: 8 }, async () => {
        const { id, jobId, keys } = await published(s);
        await s.store.rebuild(id, { keys, who: 'doctor' });
        const newerId = await s.addJob(id, 2);
        return [(await s.claimed(jobId)).attempt, (await s.claimed(newerId)).attempt];
      }),
    );
    await Promise.all(rounds.flat().map((attempt) => settle(s.store, attempt, resultOf(attempt, kept))));
    const { rows } = await s.pool.query(
      `select attachments.pipeline_version as shown, variants.pipeline_version as made, count(*) as variants
       from attachments
       join variants on variants.attachment_id = attachments.id
       group by shown, made`,
    );
    assert.deepEqual(rows, [{ shown: 2, made: 2, variants: 24 }]);
  });
});

describe('a rebuild that is refused', () => {
  const refusals: [title: string, answer: string, make: (s: Fixture) => Promise<{ id: string; keys: string[] }>][] = [
    ['for an unknown attachment', 'not_found', async () => ({ id: newId(), keys: [] })],
    ['for a name that is no id', 'not_found', async () => ({ id: 'x', keys: [] })],
    ['before anything is published', 'not_ready', async (s) => ({ ...(await s.accept()), keys: [] })],
    ['of an upload that failed', 'not_ready', async (s) => ({ ...(await s.failed()), keys: [] })],
    [
      'for a deleted attachment',
      'not_found',
      async (s) => {
        const ready = await published(s);
        await s.store.deleteAttachment(s.owner, ready.id, { graceMs: 1 });
        return ready;
      },
    ],
    [
      'for a part of the set',
      'changed',
      async (s) => {
        const { id, keys } = await published(s);
        return { id, keys: keys.slice(1) };
      },
    ],
    [
      'for a part of the set said twice',
      'changed',
      async (s) => {
        const { id, keys } = await published(s);
        return { id, keys: [...keys.slice(1), ...keys.slice(1, 2)] };
      },
    ],
    [
      'for more than the set',
      'changed',
      async (s) => {
        const { id, keys } = await published(s);
        return { id, keys: [...keys, 'attachments/x'] };
      },
    ],
    [
      'for the set of the version before',
      'changed',
      async (s) => {
        const { id, keys } = await published(s);
        const { attempt } = await s.claimed(await s.addJob(id, 2));
        await settle(s.store, attempt, resultOf(attempt, kept));
        return { id, keys };
      },
    ],
  ];
  for (const [title, answer, make] of refusals) {
    it(`says ${answer} ${title}, and changes and tells nothing`, async (t) => {
      const s = await startStore(t);
      const { id, keys } = await make(s);
      const before = await s.everything();
      s.told.length = 0;
      assert.equal(await s.store.rebuild(id, { keys, who: 'doctor' }), answer);
      assert.equal(await s.everything(), before);
      assert.deepEqual(s.told, []);
    });
  }
});

describe('around a rebuild', () => {
  it('a zombie that settled the version before it changes nothing', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys, attempt: zombie } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    for (const running of [false, true]) {
      if (running) await s.claimed(jobId);
      const before = await s.everything();
      assert.equal(await settle(s.store, zombie), 'lost');
      assert.equal(await fail(s.store, zombie), 'lost');
      assert.equal(await release(s.store, zombie), 'lost');
      assert.equal(await s.store.renew(zombie, times), false);
      assert.equal(await s.everything(), before);
    }
  });

  it('a job of the published version that is no rebuild is superseded', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    await s.pool.query('update jobs set rebuild = false where id = $1', [jobId]);
    const { attempt } = await s.claimed(jobId);
    assert.equal(await settle(s.store, attempt, resultOf(attempt, kept)), 'superseded');
    assert.deepEqual(
      (await s.store.attachmentFor(s.owner, id))?.variants.map((one) => one.key),
      keys,
    );
  });

  it('a deletion cancels it, and its end cleans only its own folder', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    const { attempt } = await s.claimed(jobId);
    assert.equal(await s.store.deleteAttachment(s.owner, id, { graceMs: 1 }), true);
    const row = await s.jobRow(jobId);
    assert.deepEqual([row.state, row.rebuild], ['cancelled', false]);
    assert.equal(await settle(s.store, attempt, resultOf(attempt, kept)), 'cancelled');
    assert.equal(await s.store.rebuild(id, { keys, who: 'doctor' }), 'not_found');
    assert.equal(await s.store.replay(jobId, byOperator), 'job_ended');
  });

  it('no upload is refused or held up for it: admission and turns do not count it', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    assert.equal((await s.store.arrive(s.owner)).pending, 0);
    assert.equal((await s.store.load()).queued, 0);
    const upload = await s.accept({ spacingMs: 60_000 });
    assert.ok((await s.turnOf(upload.jobId)) - (await s.turnOf(jobId)) < 60_000);
    assert.equal((await s.store.arrive(s.owner)).pending, 1);
    assert.equal((await s.store.load()).queued, 1);
  });

  it('the objects of the set that is still shown are named until the settle', async (t) => {
    const s = await startStore(t);
    const { id, jobId, keys, result } = await published(s);
    await s.store.rebuild(id, { keys, who: 'doctor' });
    const { attempt } = await s.claimed(jobId);
    const made = resultOf(attempt, kept).variants.map((one) => one.key);
    assert.deepEqual(await s.store.namedAmong([...keys, ...made]), new Set([...keys, ...made]));
    await settle(s.store, attempt, resultOf(attempt, kept));
    const original = result.originalKey ?? '';
    assert.deepEqual(await s.store.namedAmong([original, ...keys, ...made]), new Set([original, ...made]));
  });
});
