/** The doctor, from objects to rows: what nobody names is told and cleaned, what somebody names, waits for or may still publish is neither. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/ids.ts';
import { attemptPrefix, stagingKey } from '../../src/pipeline/attachment.ts';
import { waiting } from '../support/attempts.ts';
import { doctorOf, leftKey, type Pipeline, plant, plantStranger, publish, told, written } from '../support/doctor.ts';
import { createPipeline } from '../support/pipeline.ts';
import { until } from '../support/until.ts';

const hourMs = 3_600_000;
const cleanups = async (p: Pipeline) =>
  (await p.pool.query('select key, passes, reason from cleanups order by key')).rows;

describe('an object that no row names', () => {
  test('is told, and sent to the clean-ups by a repair, to be deleted twice', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    const keys = [await plant(p, leftKey(attachment.id)), await plant(p, stagingKey(newId()))];
    const dry = await doctorOf(p).examined();
    assert.deepEqual(
      dry.findings.map(({ kind, attachmentId, key, repair }) => ({ kind, attachmentId, key, repair })),
      keys.toReversed().map((key) => ({ kind: 'stray', attachmentId: null, key, repair: 'possible' })),
    );
    assert.deepEqual(await cleanups(p), []);
    const report = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(told(report), Array(2).fill('stray no row names it scheduled'));
    assert.equal(report.repaired, 2);
    assert.deepEqual(
      await cleanups(p),
      keys.map((key) => ({ key, passes: 1, reason: 'stray' })),
    );
    assert.equal((await p.keys()).length, 3);
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true })), []);
    p.startJanitor();
    await until('both are gone', async () => (await p.keys()).length === 1);
  });

  test('and of an attachment that no row knows is given a day more: the database may be the wrong one', async (t) => {
    const p = await createPipeline(t);
    await plant(p, leftKey(newId()));
    await plant(p, stagingKey(newId()));
    const report = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(told(report), ['stray no row knows its attachment scheduled', 'stray no row names it scheduled']);
    const { rows } = await p.pool.query(
      `select split_part(key, '/', 1) as place, extract(epoch from not_before - created_at)::int as seconds
       from cleanups
       order by key`,
    );
    assert.deepEqual(rows, [
      { place: 'attachments', seconds: 86_400 },
      { place: 'staging', seconds: 0 },
    ]);
  });

  test('is left alone while it is younger than the grace of its place', async (t) => {
    const p = await createPipeline(t, { graceMs: hourMs });
    await plant(p, leftKey(newId()));
    const young = await plant(p, stagingKey(newId()));
    assert.deepEqual((await doctorOf(p, { aheadMs: hourMs / 2 }).examined({ repair: true })).findings, []);
    // Old enough for an attempt, not for an upload, which has no row while it is on its way.
    const { findings } = await doctorOf(p, { aheadMs: 2 * hourMs }).examined({ repair: true });
    assert.deepEqual(
      findings.map(({ kind, key }) => [kind, key === young]),
      [['stray', false]],
    );
  });

  test('is left alone in the folder of an attempt that runs', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, {}, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    const job = await until('claimed', async () => {
      const row = await p.jobOf(attachment.id);
      return row.state === 'processing' && row;
    });
    await plant(p, `${attemptPrefix(attachment.id, job.version, job.fence, job.attempt_id)}early.jpg`);
    const other = await plant(p, leftKey(attachment.id));
    const { findings } = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(
      findings.map(({ key }) => key),
      [other],
    );
    go();
    await p.untilState(attachment.id, 'ready');
  });

  test('and whose key is not of our making is told, and never touched', async (t) => {
    const p = await createPipeline(t);
    const foreign = [
      'attachments/readme.txt',
      `attachments/${newId()}/note`,
      `attachments/${newId()}/v1.1-${newId()}/deeper/note`,
      'staging/backup/dump.sql',
    ];
    for (const key of foreign) await plant(p, key);
    const { attachment } = await p.upload('IMG 1');
    const strangers = [`attachments/${attachment.id}/README \x1b.jpg`, 'zoo/Notes.txt', 'at-the-top', 'b/c'];
    for (const key of strangers) await plantStranger(p, key);
    const report = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(told(report), Array(8).fill('stray no key of ours, left alone none'));
    assert.deepEqual(report.findings.map(({ key }) => key).sort(), [...foreign, ...strangers].sort());
    assert.deepEqual([report.repaired, report.alien], [0, 8]);
    assert.deepEqual(await cleanups(p), []);
    const sweep = await doctorOf(p).swept();
    assert.deepEqual([sweep.found, sweep.scheduled], [{ staging: 1, published: 4, elsewhere: 3 }, 0]);
    assert.deepEqual(sweep.elsewhere.map(({ key }) => key).sort(), strangers.slice(1).sort());
    assert.equal((await p.keys()).length, 9);
  });

  test('under a name that is no key keeps nothing of ours from being deleted, and stays', async (t) => {
    const p = await createPipeline(t);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    const stranger = await plantStranger(p, `attachments/${a.id}/README.jpg`);
    await p.store.port.deleteAttachment(a.ownerId, a.id, { graceMs: 0 });
    p.startJanitor();
    await until('all of ours is gone', async () => (await p.keys()).join() === stranger);
    await until('its clean-ups have ended', async () => (await cleanups(p)).length === 0);
  });
});

describe('what moves between the listing and the look-up', () => {
  test('is no stray: a set that is published just then', async (t) => {
    const p = await createPipeline(t);
    const stored = p.points.hold('worker.stored');
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await stored.reached;
    const settled = {
      first: async () => {
        stored.pass();
        await p.untilState(attachment.id, 'ready');
      },
    };
    // The first look is that at staging; it is gone by then, and its clean-up waits.
    p.store.plan('namedAmong', settled);
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true })), []);
    assert.equal(p.store.calls('addCleanups'), 0);
  });

  test('is no stray: a set that is replaced just then has its own clean-up, in its own time', async (t) => {
    const p = await createPipeline(t, { replacedMs: hourMs });
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    const replaced = {
      first: async () => {
        await p.store.port.rebuild(a.id, { keys: a.variants.map(({ key }) => key), who: 'another' });
        await until(
          'it is replaced',
          async () => (await p.jobOf(a.id)).fence === 2 && (await p.jobOf(a.id)).finished_at,
        );
      },
    };
    p.store.plan('namedAmong', { first: async () => {} }, replaced);
    await until('staging is listed', async () => (await p.keys('staging/')).length === 1);
    const sweep = await doctorOf(p).swept();
    assert.deepEqual([sweep.staging, sweep.published], [[], []]);
    assert.equal(
      (await p.attachment(a.id)).variants.every(({ key }) => a.variants.every((old) => old.key !== key)),
      true,
    );
    assert.equal(p.store.calls('addCleanups'), 0);
  });
});

describe('a sweep', () => {
  test('without a dry run sends to the clean-ups what a dry run only told', async (t) => {
    const p = await createPipeline(t);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    const left = await plant(p, leftKey(a.id), 'four');
    const orphan = await plant(p, stagingKey(newId()), 'sixsix');
    const before = await written(p);
    const seen: number[] = [];
    const dry = await doctorOf(p).sweep(
      { dryRun: true, onProgress: ({ listed }) => seen.push(listed) },
      new AbortController().signal,
    );
    assert.deepEqual([dry.staging.map(({ key }) => key), dry.published.map(({ key }) => key)], [[orphan], [left]]);
    assert.deepEqual(
      [dry.found, dry.bytes, dry.scheduled, dry.complete],
      [{ staging: 1, published: 1, elsewhere: 0 }, 10, 0, true],
    );
    assert.equal(seen.at(-1), dry.listed);
    assert.deepEqual(await written(p), before);
    assert.equal((await doctorOf(p).swept()).scheduled, 2);
    assert.equal((await doctorOf(p).swept()).scheduled, 0);
    p.startJanitor();
    await until('both are gone', async () => (await p.keys()).length === 4);
  });

  test('that is interrupted tells how far it came', async (t) => {
    const p = await createPipeline(t);
    await plant(p, stagingKey(newId()));
    await plant(p, leftKey(newId()));
    const stop = new AbortController();
    const sweep = await doctorOf(p).sweep({ dryRun: false, onProgress: () => stop.abort() }, stop.signal);
    assert.deepEqual(
      [sweep.complete, sweep.found, sweep.scheduled],
      [false, { staging: 1, published: 0, elsewhere: 0 }, 1],
    );
  });
});
