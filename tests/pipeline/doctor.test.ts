/** The doctor, from rows to objects: what a row names is there and whole, or it is told, and mended where it can be. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/ids.ts';
import { stagingKey } from '../../src/pipeline/attachment.ts';
import { findingsMax, type Progress } from '../../src/pipeline/doctor.ts';
import { BlobError } from '../../src/pipeline/ports.ts';
import { failing } from '../support/attempts.ts';
import { createMemoryBlobs } from '../support/blobs-memory.ts';
import {
  damage,
  doctorOf,
  gated,
  leftKey,
  lose,
  type Pipeline,
  plant,
  publish,
  told,
  written,
} from '../support/doctor.ts';
import { createPipeline } from '../support/pipeline.ts';
import { until } from '../support/until.ts';

const keyOf = (attachment: { variants: readonly { name: string; key: string }[] }, name: string) => {
  const found = attachment.variants.find((variant) => variant.name === name);
  assert.ok(found, name);
  return found.key;
};
const generation = async (p: Pipeline, id: string) => (await p.jobOf(id)).generation as number;

describe('an examination', () => {
  test('finds nothing where all is well, counts what it saw, and writes nothing', async (t) => {
    const p = await createPipeline(t);
    await publish(p, 'IMG 1', 'IMG 2', 'plain');
    const before = await written(p);
    const report = await doctorOf(p).examined({ repair: true, deep: true });
    assert.deepEqual(report.findings, []);
    assert.deepEqual(
      { ...report.counts, attachments: report.attachments, objects: report.objects, complete: report.complete },
      {
        ...{ lost_original: 0, lost_variant: 0, lost_staging: 0, damaged: 0, stray: 0 },
        ...{ attachments: 3, objects: 9, complete: true },
      },
    );
    assert.deepEqual(await written(p), before);
  });

  test('without repair tells what it would mend, and writes nothing', async (t) => {
    const p = await createPipeline(t);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    await lose(p, keyOf(a, 'crop'));
    await damage(p, keyOf(a, 'thumbnail'), 'cut');
    await plant(p, leftKey(a.id));
    const before = await written(p);
    const report = await doctorOf(p).examined();
    assert.deepEqual(told(report), [
      'damaged thumbnail possible',
      'lost_variant crop possible',
      'stray no row names it possible',
    ]);
    assert.equal(report.repaired, 0);
    assert.deepEqual(await written(p), before);
  });

  test('with deep finds bytes that changed and kept their number', async (t) => {
    const p = await createPipeline(t);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a?.originalKey);
    await damage(p, keyOf(a, 'optimized'), 'flipped');
    await damage(p, a.originalKey, 'flipped');
    assert.deepEqual(told(await doctorOf(p).examined()), []);
    assert.deepEqual(told(await doctorOf(p).examined({ deep: true })), [
      'damaged optimized none',
      'damaged original none',
    ]);
  });

  test('looks for the staging of unfinished and of failed uploads', async (t) => {
    const p = await createPipeline(t, {}, failing('corrupt_image'));
    const { attachment: failed } = await p.upload('IMG 1');
    p.startRelay();
    const { end } = p.startWorker();
    await p.untilState(failed.id, 'failed');
    await end();
    const { attachment: queued } = await p.upload('IMG 2');
    const { attachment: cut } = await p.upload('IMG 3');
    assert.deepEqual(told(await doctorOf(p).examined({ deep: true })), []);
    await lose(p, stagingKey(failed.id));
    await lose(p, stagingKey(queued.id));
    await damage(p, stagingKey(cut.id), 'cut');
    const before = await written(p);
    const report = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(told(report), ['damaged staging none', 'lost_staging staging none', 'lost_staging staging none']);
    assert.deepEqual(await written(p), before);
  });

  test('of more rows and objects than a page reaches each of them once, and keeps a bounded list', async (t) => {
    const p = await createPipeline(t);
    const memory = createMemoryBlobs();
    const { attachment } = await p.upload('IMG 1');
    await p.pool.query(
      `insert into attachments (id, owner_id, kind, file_name, content_type, size, sha256, staging_key, state)
       select made.id, owner_id, kind, file_name, content_type, size, sha256, 'staging/' || made.id, state
       from attachments, (select gen_random_uuid() as id from generate_series(1, 450)) as made`,
    );
    for (let i = 0; i < findingsMax + 100; i += 1) {
      memory.objects.set(leftKey(newId()), { bytes: Buffer.from('x'), modifiedAt: new Date() });
    }
    const seen: Progress[] = [];
    const report = await doctorOf(p, { blobs: memory }).examine(
      { repair: false, deep: false, who: 'operator', onProgress: (done) => seen.push(done) },
      new AbortController().signal,
    );
    assert.equal(report.counts.lost_staging, 451);
    assert.equal(report.counts.stray, findingsMax + 100);
    assert.equal(report.findings.length, findingsMax);
    assert.equal(new Set(report.findings.map(({ key }) => key)).size, findingsMax);
    assert.ok(report.findings.some(({ attachmentId }) => attachmentId === attachment.id));
    const { attachments, objects, listed } = report;
    assert.deepEqual(seen.at(-1), { attachments, objects, listed });
    assert.ok(seen.every((done, at) => at === 0 || done.objects >= (seen[at - 1]?.objects ?? 0)));
  });

  test('that is interrupted tells how far it came', async (t) => {
    const p = await createPipeline(t);
    await publish(p, 'IMG 1', 'IMG 2', 'IMG 3');
    const stop = new AbortController();
    const report = await doctorOf(p).examine(
      { repair: true, deep: true, who: 'operator', onProgress: () => stop.abort() },
      stop.signal,
    );
    assert.equal(report.complete, false);
    assert.ok(report.attachments >= 1);
    assert.equal(report.listed, 0);
    assert.deepEqual(report.findings, []);
  });
});

describe('what moves meanwhile', () => {
  test('is no finding: a row that changes between the look at its objects and the second look at itself', async (t) => {
    const p = await createPipeline(t);
    const [deleted, replaced] = await publish(p, 'IMG 1', 'IMG 2');
    assert.ok(deleted && replaced);
    await lose(p, keyOf(deleted, 'crop'));
    await lose(p, keyOf(replaced, 'crop'));
    const { port } = p.store;
    const moveOn = {
      first: async ([id]: readonly unknown[]) => {
        if (id === deleted.id) {
          await port.deleteAttachment(p.user, deleted.id, { graceMs: 0 });
          return;
        }
        await port.rebuild(replaced.id, { keys: replaced.variants.map(({ key }) => key), who: 'another' });
        await until('the set is another', async () => {
          const now = await p.attachment(replaced.id);
          return keyOf(now, 'crop') !== keyOf(replaced, 'crop');
        });
      },
    };
    p.store.plan('audited', moveOn, moveOn);
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true })), []);
  });

  test('is no finding: a set that is replaced before its rebuild is asked for', async (t) => {
    const p = await createPipeline(t);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    await lose(p, keyOf(a, 'crop'));
    p.store.plan('rebuild', {
      first: () => p.pool.query(`update variants set key = key || '.new' where name = 'crop'`).then(() => undefined),
    });
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true })), []);
    assert.equal(await generation(p, a.id), 1);
  });

  test('is no finding: an object that could not be read once', async (t) => {
    const p = await createPipeline(t);
    await publish(p, 'IMG 1');
    p.blobs.plan('head', { before: () => new BlobError('broken', 'bad sector') });
    assert.deepEqual(told(await doctorOf(p).examined()), []);
  });
});

describe('a storage', () => {
  test('that cannot read an object twice has a damaged one', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    const broken = { before: () => new BlobError('broken', 'bad sector') };
    p.blobs.plan('head', broken, broken);
    const [finding] = (await doctorOf(p).examined()).findings;
    assert.equal(finding?.kind, 'damaged');
    assert.equal(finding?.attachmentId, attachment.id);
  });

  test('that is away for a moment is asked again, and nothing counts as lost', async (t) => {
    const p = await createPipeline(t);
    await p.upload('IMG 1');
    p.blobs.plan('head', { before: () => new BlobError('unavailable', 'away') });
    p.blobs.plan('list', { before: () => new BlobError('unavailable', 'away') });
    const report = await doctorOf(p).examined();
    assert.deepEqual(report.findings, []);
    assert.equal(report.complete, true);
  });

  test('that stays away ends the examination with its own error', async (t) => {
    const p = await createPipeline(t);
    await p.upload('IMG 1');
    const away = { before: () => new BlobError('unavailable', 'away') };
    p.blobs.plan('head', away, away, away, away, away);
    await assert.rejects(doctorOf(p).examined(), { name: 'BlobError', fault: 'unavailable' });
  });
});

describe('a repair', () => {
  test('of lost and damaged variants makes them anew: ready all the time, the old set readable until then', async (t) => {
    const gate = gated();
    const p = await createPipeline(t, { replacedMs: 60_000 }, gate.painter);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    p.startJanitor();
    const go = gate.close();
    await lose(p, keyOf(a, 'crop'));
    await damage(p, keyOf(a, 'optimized'), 'cut');
    const report = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(told(report), ['damaged optimized rebuilding', 'lost_variant crop rebuilding']);
    assert.equal(report.repaired, 2);
    await until('its job is claimed', async () => (await p.jobOf(a.id)).state === 'processing');
    const meanwhile = await p.attachment(a.id);
    assert.equal(meanwhile.state, 'ready');
    assert.deepEqual(meanwhile.variants, a.variants);
    assert.ok(await p.blobs.port.head(keyOf(a, 'thumbnail')));
    go();
    await until('its job is done', async () => (await p.jobOf(a.id)).state === 'succeeded');
    const after = await p.attachment(a.id);
    assert.equal(after.state, 'ready');
    assert.equal(after.originalKey, a.originalKey);
    assert.deepEqual(
      after.variants.map(({ name, size, sha256 }) => ({ name, size, sha256 })),
      a.variants.map(({ name, size, sha256 }) => ({ name, size, sha256 })),
    );
    assert.ok(after.variants.every(({ key }) => !a.variants.some((old) => old.key === key)));
    // Who was given the old place may still be reading there: it waits for its clean-up, and is no stray.
    assert.ok(await p.blobs.port.head(keyOf(a, 'thumbnail')));
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true, deep: true })), []);
    assert.equal(await generation(p, a.id), 2);
  });

  test('asked for twice, or by two at once, changes nothing more', async (t) => {
    const p = await createPipeline(t);
    p.startRelay();
    const { end } = p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    const a = await p.untilState(attachment.id, 'ready');
    await end();
    await lose(p, keyOf(a, 'crop'));
    await plant(p, leftKey(a.id));
    const reports = await Promise.all([1, 2].map(() => doctorOf(p).examined({ repair: true })));
    assert.equal(reports.filter(({ findings }) => findings.some((one) => one.repair === 'rebuilding')).length, 1);
    const before = await written(p);
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true })), ['lost_variant crop under_way']);
    assert.deepEqual(await written(p), before);
    assert.equal(await generation(p, a.id), 2);
    p.startWorker();
    p.startJanitor();
    await until('its job is done', async () => (await p.jobOf(a.id)).state === 'succeeded');
    await until('all is clean', async () => (await p.pool.query('select 1 from cleanups')).rowCount === 0);
    assert.equal((await p.keys()).length, 4);
    assert.deepEqual(told(await doctorOf(p).examined({ deep: true })), []);
  });

  test('of a variant whose original is lost is not asked for: both are told', async (t) => {
    const p = await createPipeline(t);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a?.originalKey);
    await lose(p, a.originalKey);
    await lose(p, keyOf(a, 'crop'));
    const before = await written(p);
    const report = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(told(report), ['lost_original original none', 'lost_variant crop none']);
    const variant = report.findings.find(({ kind }) => kind === 'lost_variant');
    assert.match(variant?.detail ?? '', /; its original is not whole either$/);
    assert.equal(report.repaired, 0);
    assert.equal(p.store.calls('rebuild'), 0);
    assert.deepEqual(await written(p), before);
  });

  test('reads the original first, and tells that it is damaged instead of failing a job on it', async (t) => {
    const p = await createPipeline(t);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a?.originalKey);
    await damage(p, a.originalKey, 'flipped');
    await lose(p, keyOf(a, 'crop'));
    const report = await doctorOf(p).examined({ repair: true });
    assert.deepEqual(told(report), ['damaged original none', 'lost_variant crop none']);
    assert.equal(p.store.calls('rebuild'), 0);
  });

  test('of an attachment that is deleted meanwhile publishes nothing and leaves nothing behind', async (t) => {
    const { painter, close } = gated();
    const p = await createPipeline(t, {}, painter);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    p.startJanitor();
    const go = close();
    await lose(p, keyOf(a, 'crop'));
    await doctorOf(p).examined({ repair: true });
    await until('its variants are being painted', () => painter.renders === 2);
    assert.equal(await p.store.port.deleteAttachment(p.user, a.id, { graceMs: p.settings.graceMs }), true);
    go();
    await until('all is clean', async () => (await p.pool.query('select 1 from cleanups')).rowCount === 0);
    await until('nothing is left', async () => (await p.keys()).length === 0);
    assert.equal((await p.jobOf(a.id)).state, 'cancelled');
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true })), []);
  });

  test('that failed is asked for again by the next one', async (t) => {
    const p = await createPipeline(t, { attemptsMax: 1 });
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    await lose(p, keyOf(a, 'crop'));
    p.blobs.plan('put', { before: () => new BlobError('broken', 'bad sector') });
    await doctorOf(p).examined({ repair: true });
    await until('it failed', async () => (await p.jobOf(a.id)).state === 'failed');
    assert.equal((await p.attachment(a.id)).state, 'ready');
    assert.deepEqual(told(await doctorOf(p).examined({ repair: true })), ['lost_variant crop rebuilding']);
    await until('it is done', async () => (await p.jobOf(a.id)).state === 'succeeded');
    assert.deepEqual(told(await doctorOf(p).examined({ deep: true })), []);
  });
});
