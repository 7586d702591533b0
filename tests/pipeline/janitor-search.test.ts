/** What the janitor looks for by itself: strays of both places, failed uploads and histories that are old enough, wishes to reprocess. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/ids.ts';
import { attemptPrefix, stagingKey } from '../../src/pipeline/attachment.ts';
import { BlobError } from '../../src/pipeline/ports.ts';
import { away, failing, waiting } from '../support/attempts.ts';
import { leftKey, type Pipeline, plant, publish } from '../support/doctor.ts';
import { createPipeline } from '../support/pipeline.ts';
import { createPainter, takes } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

const often = { deepSweepMs: 50, sweepMs: 50, janitorMs: 50 };
const gone = (p: Pipeline, key: string) => until(`${key} is gone`, async () => (await p.blobs.port.head(key)) === null);
/** Searches that began after now and ended: each lists the folder of published objects at least once. */
const searchedTwice = async (p: Pipeline) => {
  const lists = p.blobs.calls('list');
  await until('searched some times more', () => p.blobs.calls('list') >= lists + 6);
};

describe('the long search', () => {
  test('removes an object of a dead attempt that no clean-up knows of, twice', async (t) => {
    const p = await createPipeline(t, often);
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    const left = await plant(p, leftKey(a.id));
    const original = await plant(p, leftKey(a.id, 'original.jpg'));
    p.startJanitor();
    await gone(p, left);
    await gone(p, original);
    await until('no clean-up is left', async () => (await p.pool.query('select 1 from cleanups')).rowCount === 0);
    assert.equal((await p.keys()).length, 4);
    assert.ok(p.meter.counted('strays_found_total') >= 2);
  });

  test('leaves what is younger than its grace, however unknown', async (t) => {
    const p = await createPipeline(t, { ...often, graceMs: 3_600_000 });
    const { attachment } = await p.upload('IMG 1');
    const young = await plant(p, leftKey(attachment.id));
    p.startJanitor();
    await searchedTwice(p);
    assert.deepEqual(await p.keys(), [young, stagingKey(attachment.id)]);
    assert.equal((await p.pool.query('select 1 from cleanups')).rowCount, 0);
  });

  test('leaves the objects of another database, or of another time, to operators', async (t) => {
    const p = await createPipeline(t, often);
    const unknown = [leftKey(newId()), leftKey(newId(), 'original.jpg')].sort();
    for (const key of unknown) await plant(p, key);
    p.startJanitor();
    await searchedTwice(p);
    assert.deepEqual(await p.keys(), unknown);
    assert.equal((await p.pool.query('select 1 from cleanups')).rowCount, 0);
    assert.equal(p.meter.counted('strays_found_total'), 0);
  });

  test('leaves objects of an attempt that runs, and takes them when it is over', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, often, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    const job = await until('claimed', async () => {
      const row = await p.jobOf(attachment.id);
      return row.state === 'processing' && row;
    });
    const own = attemptPrefix(attachment.id, job.version, job.fence, job.attempt_id);
    const early = await plant(p, `${own}early.jpg`);
    p.startJanitor();
    await searchedTwice(p);
    assert.ok(await p.blobs.port.head(early));
    go();
    await p.untilState(attachment.id, 'ready');
    await gone(p, early);
    assert.equal((await p.keys('attachments/')).length, 4);
  });

  test('leaves a replaced set to its own clean-up: it stays readable for as long as was promised', async (t) => {
    const p = await createPipeline(t, { ...often, replacedMs: 3_600_000 });
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    await p.store.port.rebuild(a.id, { keys: a.variants.map(({ key }) => key), who: 'operator' });
    await until('replaced', async () => (await p.attachment(a.id)).variants[0]?.key !== a.variants[0]?.key);
    p.startJanitor();
    await searchedTwice(p);
    for (const { key } of a.variants) assert.ok(await p.blobs.port.head(key), key);
    assert.equal((await p.keys()).length, 7);
  });

  test('leaves keys that are not of our making', async (t) => {
    const p = await createPipeline(t, { ...often, orphanMs: 0 });
    const foreign = [`attachments/readme.txt`, `attachments/${newId()}/note`, 'staging/backup/dump.sql'];
    for (const key of foreign) await plant(p, key);
    p.startJanitor();
    await searchedTwice(p);
    assert.deepEqual(await p.keys(), foreign.toSorted());
  });

  test('never takes what is named or about to be, under a load of uploads, failures and deletions', async (t) => {
    let paintings = 0;
    const painter = createPainter(async () => {
      paintings += 1;
      if (paintings % 5 === 0) throw new Error('a child is clumsy');
      await takes(5);
    });
    const p = await createPipeline(t, { ...often, graceMs: 0, replacedMs: 0, orphanMs: 3_600_000 }, painter);
    p.startRelay();
    p.startWorker();
    p.startJanitor();
    p.startJanitor();
    const uploads = await Promise.all(
      Array.from({ length: 30 }, async (_, n) => {
        const { attachment } = await p.upload(`IMG ${n}`);
        await plant(p, leftKey(attachment.id, `left-${n}.jpg`));
        if (n % 10 === 0) await p.store.port.deleteAttachment(p.user, attachment.id, { graceMs: 0 });
        return { id: attachment.id, deleted: n % 10 === 0 };
      }),
    );
    const kept = uploads.filter(({ deleted }) => !deleted);
    for (const { id } of kept) await p.untilState(id, 'ready');
    await until('no stray is left', async () => !(await p.keys()).some((key) => key.includes('left-')));
    await until('no clean-up is left', async () => (await p.pool.query('select 1 from cleanups')).rowCount === 0);
    for (const { id } of kept) {
      const { originalKey, variants } = await p.attachment(id);
      for (const key of [originalKey, ...variants.map((variant) => variant.key)]) {
        assert.ok(key && (await p.blobs.port.head(key)), `${key}`);
      }
    }
    assert.equal((await p.keys()).length, kept.length * 4);
  });

  test('goes on after the storage was away, and is not held up by a folder that cannot be listed', async (t) => {
    const p = await createPipeline(t, often);
    const { attachment } = await p.upload('IMG 1');
    const left = await plant(p, leftKey(attachment.id));
    const { list } = p.blobs.port;
    p.blobs.port.list = async (prefix, options) => {
      if (prefix === 'staging/') throw new BlobError('broken', 'bad sector');
      return await list(prefix, options);
    };
    p.blobs.plan('list', { first: async () => {} }, { before: () => new BlobError('unavailable', 'away') });
    p.startJanitor();
    await gone(p, left);
    assert.ok(p.meter.counted('janitor_faults_total') >= 2);
  });
});

/** Gives the storage `pages` pages of published objects, all of them young, and tells which were asked for. `trouble` comes first. */
function longListing(p: Pipeline, pages: number, trouble: (page: number) => Promise<void> = async () => {}) {
  const asked: number[] = [];
  const { list } = p.blobs.port;
  p.blobs.port.list = async (prefix, options) => {
    if (prefix !== 'attachments/') return await list(prefix, options);
    const page = Number(options?.after ?? 0);
    asked.push(page);
    await trouble(page);
    const objects = [{ key: leftKey(newId()), size: 1, modifiedAt: new Date(p.clock.wallMs() + 3_600_000) }];
    return { objects, next: page + 1 < pages ? String(page + 1) : null };
  };
  return asked;
}

describe('a search through many pages', () => {
  test('goes on where the storage went away, and begins anew only when it is due', async (t) => {
    const p = await createPipeline(t);
    let faults = 2;
    const asked = longListing(p, 4, async (page) => {
      if (page !== 2 || faults === 0) return;
      faults -= 1;
      throw new BlobError('unavailable', 'away');
    });
    p.startJanitor();
    await until('it is over', () => asked.at(-1) === 3);
    const sweeps = p.store.calls('expire');
    await until('swept some times more', () => p.store.calls('expire') >= sweeps + 3);
    assert.deepEqual(asked, [0, 1, 2, 2, 2, 3]);
  });

  test('lets what is due be deleted in between', async (t) => {
    const p = await createPipeline(t);
    const key = await plant(p, leftKey(newId()));
    const asked = longListing(p, 60, async (page) => {
      if (page === 5) await p.store.port.addCleanups([key], { afterMs: 0, passes: 0, reason: 'stray' });
      // It would be over by then, had it not paused.
      if (page === 50) assert.equal(await p.blobs.port.head(key), null);
    });
    p.startJanitor();
    await until('it is over', () => asked.at(-1) === 59);
    assert.equal(p.meter.counted('janitor_faults_total'), 0);
    assert.equal(asked.length, 60);
  });
});

describe('retention', () => {
  test('ends the staging of a failed upload when its time is over, and not before', async (t) => {
    const p = await createPipeline(t, { ...often, failedRetentionMs: 1500 }, failing('corrupt_image'));
    p.startRelay();
    p.startWorker();
    p.startJanitor();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'failed');
    const { id: jobId } = await p.jobOf(attachment.id);
    const retires = p.store.calls('retire');
    await until('looked for some times', () => p.store.calls('retire') >= retires + 3);
    const sinceMs = async () =>
      (await p.pool.query('select extract(epoch from now() - finished_at) * 1000 as ms from jobs')).rows[0].ms;
    // Read after the object: a slow machine may have let its time pass meanwhile.
    if ((await p.blobs.port.head(stagingKey(attachment.id))) === null) assert.ok(Number(await sinceMs()) >= 1500);
    await gone(p, stagingKey(attachment.id));
    assert.ok(Number(await sinceMs()) >= 1500);
    assert.equal((await p.attachment(attachment.id)).state, 'failed');
    assert.equal(await p.store.port.replay(jobId, { who: 'operator', spacingMs: 0 }), 'staging_gone');
  });

  test('ends the history of a finished job, says so in its row, and leaves that of an unfinished one', async (t) => {
    const p = await createPipeline(t, { ...often, historyRetentionMs: 300, failedRetentionMs: 300 });
    const [a] = await publish(p, 'IMG 1');
    assert.ok(a);
    const stuck = newId();
    await p.pool.query(
      `insert into jobs (id, attachment_id, owner_id, version, state, ring_at, not_before)
       select $1, id, owner_id, 99, 'queued', now() + interval '1 hour', now() + interval '1 hour'
       from attachments`,
      [stuck],
    );
    await p.pool.query(
      `insert into job_events (job_id, to_state, fence, who, reason) values ($1, 'queued', 0, 'operator', 'accepted')`,
      [stuck],
    );
    p.startJanitor();
    const { id: jobId } = (await p.pool.query(`select id from jobs where state = 'succeeded'`)).rows[0];
    await until('its events are gone', async () => {
      const found = await p.store.port.job(jobId);
      return found?.events.length === 0;
    });
    const { rows } = await p.pool.query('select id from jobs where history_gone_at is not null');
    assert.deepEqual(
      rows.map(({ id }) => id),
      [jobId],
    );
    assert.equal((await p.store.port.job(stuck))?.events.length, 1);
  });

  test('that failed is tried again in the next round, not an interval later', async (t) => {
    const p = await createPipeline(t, { ...often, sweepMs: 3_600_000 });
    p.store.plan('retire', { before: away }, { before: away });
    p.startJanitor();
    await until('asked a third time', () => p.store.calls('retire') === 3);
    const feeds = p.store.calls('feedReprocessing');
    await until('two rounds later', () => p.store.calls('feedReprocessing') >= feeds + 2);
    assert.equal(p.store.calls('retire'), 3);
  });

  test('goes on in batches until nothing is left, in one sweep', async (t) => {
    const p = await createPipeline(t, { ...often, sweepMs: 3_600_000 });
    const { retire } = p.store.port;
    // A store that has two full batches and a rest.
    const batches = [
      { staging: 1000, histories: 3 },
      { staging: 0, histories: 1000 },
      { staging: 0, histories: 7 },
    ];
    p.store.port.retire = async (options) => {
      assert.deepEqual(options, { failedMs: 7 * 86_400_000, historyMs: 90 * 86_400_000, limit: 1000 });
      return batches.shift() ?? (await retire(options));
    };
    p.startJanitor();
    await until('all batches are over', () => batches.length === 0);
    const feeds = p.store.calls('feedReprocessing');
    await until('two rounds later', () => p.store.calls('feedReprocessing') >= feeds + 2);
    assert.equal(p.meter.counted('retired_total'), 2010);
  });
});

describe('reprocessing', () => {
  test('is fed by the one that leads, never more than its window at once', async (t) => {
    const p = await createPipeline(t, { ...often, reprocessWindow: 2 });
    p.startRelay();
    const { end } = p.startWorker({ versions: [1] });
    const uploads = await Promise.all([1, 2, 3, 4, 5].map((n) => p.upload(`IMG ${n}`)));
    for (const { attachment } of uploads) await p.untilState(attachment.id, 'ready');
    await end();
    await p.store.port.askReprocessing({ version: 2, retryFailed: false, who: 'operator' });
    p.startJanitor();
    p.startJanitor();
    const unfinished = async () => (await p.store.port.reprocessing(2))?.unfinished;
    await until('the window is full', async () => (await unfinished()) === 2);
    const feeds = p.store.calls('feedReprocessing');
    await until('asked some times more', () => p.store.calls('feedReprocessing') >= feeds + 3);
    assert.equal(await unfinished(), 2);
    p.startWorker();
    for (const { attachment } of uploads) {
      await until('the newer version', async () => (await p.attachment(attachment.id)).pipelineVersion === 2);
    }
    assert.equal(p.meter.counted('reprocessing_fed_total'), 5);
  });
});
