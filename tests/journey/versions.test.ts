/**
 * Pipeline versions with real processes: two builds at once on one system, a roll-back and the way forward again, and a newer
 * version of what is already published. The older build is this one without its newest recipe (`tests/support/older-build.ts`).
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import { createStore } from '../../src/postgres/store.ts';
import { register, sha256 } from '../support/client.ts';
import { letGo, openJourney, type User } from '../support/journey.ts';
import { olderBuild } from '../support/older-build.ts';
import { noise, slowReader, watch } from '../support/readers.ts';
import type { RoleProcess } from '../support/role.ts';
import { isReady } from '../support/supervised.ts';
import { until as asked } from '../support/until.ts';

const photograph = await readFile(join(import.meta.dirname, '../fixtures/orientation/small_6.jpg'));
const older = newestVersion - 1;

const build = await olderBuild(test);

/** Patient: several processes start and render in each of these tests. */
const until = <T>(what: string, ask: () => Promise<T>) => asked(what, ask, { deadlineMs: 90_000 });

/** Times that a test can wait for: until a job comes back that an older worker could not make, until replaced objects go. */
const soon = { UNSUPPORTED_DELAY: '500ms', REPLACED_GRACE: '3s' };
const first = { settings: { PIPELINE_VERSION: String(older) } };

async function scene(t: TestContext, settings: Readonly<Record<string, string>> = {}) {
  const s = await openJourney(t, { ...soon, ...settings });
  const signals = { announce: () => {}, listen: () => () => {}, close: async () => {} };
  const store = createStore({ pool: s.pool, signals });
  const jobs = async (id: string) =>
    (await s.pool.query('select * from jobs where attachment_id = $1 order by version', [id])).rows;
  const published = async (id: string): Promise<[number, string]> => {
    const { rows } = await s.pool.query('select pipeline_version, state from attachments where id = $1', [id]);
    return [rows[0].pipeline_version, rows[0].state];
  };
  const workersOf = async (jobId: string) =>
    (
      await s.pool.query<{ who: string }>(`select who from job_events where job_id = $1 and reason = 'claimed'`, [
        jobId,
      ])
    ).rows.map(({ who }) => Number(who.split(':')[1]));
  const reprocess = async (id: string) =>
    assert.equal(await store.reprocess(id, { version: newestVersion, who: 'test' }), 'made');
  return { ...s, store, jobs, published, workersOf, reprocess };
}

/** What the job has cost so far: attempts, failures, crashes, releases. */
const cost = (job: { attempts: number; failures: number; crashes: number; releases: number }) => [
  job.attempts,
  job.failures,
  job.crashes,
  job.releases,
];

async function refusals(process: RoleProcess): Promise<number> {
  const text = await (await fetch(`${process.url}/metrics`)).text();
  return Number(/^skrepka_claims_refused_total\{reason="unsupported"\} (\d+)$/m.exec(text)?.[1] ?? 0);
}

const different = (round: number) => Buffer.concat([photograph, Buffer.from([0, round])]);

describe('workers of two builds at once', () => {
  test('make what each of them can: the older one refuses a newer version and spends nothing', async (t) => {
    const s = await scene(t);
    const newApi = await s.start(['api', 'relay', 'janitor']);
    const old = await s.start(['api', 'worker'], {}, { build });
    const [newUser, oldUser] = [await register(() => newApi.url), await register(() => old.url)];
    const newer: string[] = [];
    for (let round = 0; round < 4; round += 1) newer.push((await newUser.upload(different(round))).id);
    const refused = await until('the older one has refused some of them', async () => {
      const counted = await refusals(old);
      return counted >= 2 && counted;
    });
    for (const id of newer) assert.deepEqual(cost((await s.jobs(id))[0]), [0, 0, 0, 0]);
    const worker = await s.start(['worker']);
    const both: string[] = [];
    for (let round = 4; round < 10; round += 1) both.push((await oldUser.upload(different(round))).id);
    for (const id of newer) {
      await newUser.until(id, 'ready');
      const [job, ...others] = await s.jobs(id);
      assert.deepEqual([job.version, job.state, others.length], [newestVersion, 'succeeded', 0]);
      assert.deepEqual(cost(job), [1, 0, 0, 0]);
      assert.deepEqual(await s.workersOf(job.id), [worker.pid]);
    }
    for (const [at, id] of both.entries()) {
      await oldUser.assertWhole(await oldUser.until(id, 'ready'), different(at + 4));
      const [job] = await s.jobs(id);
      assert.equal(job.version, older);
      assert.deepEqual(cost(job), [1, 0, 0, 0]);
    }
    assert.ok((await refusals(old)) >= refused);
    await s.assertTidy();
  });

  test('or the older one alone: a newer job waits, spends nothing, rings later, and a newer worker ends the wait', async (t) => {
    const s = await scene(t, { UNSUPPORTED_DELAY: '8s' });
    const api = await s.start(['api', 'relay', 'janitor']);
    const old = await s.start(['api', 'worker'], {}, { build });
    const user = await register(() => api.url);
    const { id } = await user.upload(photograph);
    await until('it was refused', async () => (await refusals(old)) > 0);
    const { rows } = await s.pool.query(
      `select state, fence, rung_at, not_before <= now() as claimable, extract(epoch from ring_at - now())::float8 as rings_in
       from jobs`,
    );
    assert.deepEqual([rows[0].state, rows[0].fence, rows[0].rung_at, rows[0].claimable], ['queued', 0, null, true]);
    assert.ok(rows[0].rings_in > 0 && rows[0].rings_in <= 8, String(rows[0].rings_in));
    await until('it rang again and was refused again', async () => (await refusals(old)) > 1);
    assert.deepEqual(cost((await s.jobs(id))[0]), [0, 0, 0, 0]);
    assert.equal((await user.attachment(id)).state, 'queued');
    await old.stop();
    await s.start(['worker']);
    await user.assertWhole(await user.until(id, 'ready'), photograph);
    assert.deepEqual(cost((await s.jobs(id))[0]), [1, 0, 0, 0]);
  });
});

test('a roll-back of the build keeps what is published, makes what it can, and leaves the rest for the way forward', async (t) => {
  const s = await scene(t);
  const all = ['api', 'relay', 'janitor', 'worker'] as const;
  let api = await s.start(all);
  const user = await register(() => api.url);
  const { id: published } = await user.upload(different(1));
  const before = await user.until(published, 'ready');
  await api.arm('worker.rendered', 'kill');
  const { id: broken } = await user.upload(different(2));
  assert.equal((await api.ended).signal, 'SIGKILL');
  api = await s.start(['api']);
  const { id: waiting } = await user.upload(different(3));
  assert.equal(await api.stop(), 0);

  const migrated = await promisify(execFile)(process.execPath, [join(build, 'src/main.ts'), 'migrate'], {
    env: { ...process.env, DATABASE_URL: s.databaseUrl, DATA_DIR: s.dataDir },
  });
  assert.match(migrated.stdout, /^Nothing to do/);
  api = await s.start(all, {}, { build });
  await until('it is ready', () => isReady(api.url));
  const { id: made } = await user.upload(different(4));
  await user.assertWhole(await user.until(made, 'ready'), different(4));
  assert.deepEqual(await s.published(made), [older, 'ready']);
  assert.deepEqual(await user.attachment(published), before);
  await user.assertWhole(before, different(1));
  // The lease of the killed one has ended by now, and both have been brought to the older worker.
  await until('both are refused', async () => {
    const postponed = await s.pool.query(
      `select 1 from jobs where rung_at is null and ring_at > lease_until + interval '300 ms'`,
    );
    return postponed.rowCount === 1 && (await refusals(api)) > 1;
  });
  assert.deepEqual(cost((await s.jobs(waiting))[0]), [0, 0, 0, 0]);
  assert.deepEqual(cost((await s.jobs(broken))[0]), [1, 0, 0, 0]);
  assert.equal(await api.stop(), 0);

  api = await s.start(all);
  for (const [id, round] of [
    [broken, 2],
    [waiting, 3],
  ] as const) {
    await user.assertWhole(await user.until(id, 'ready'), different(round));
    assert.deepEqual(await s.published(id), [newestVersion, 'ready']);
  }
  assert.deepEqual(await s.published(made), [older, 'ready']);
  assert.deepEqual(cost((await s.jobs(broken))[0]), [2, 0, 1, 0]);
  await s.assertTidy();
});

test('a version that this build lacks is refused by PIPELINE_VERSION with one sentence', async (t) => {
  const s = await scene(t);
  const started = s.start(['api'], {}, { build, settings: { PIPELINE_VERSION: String(newestVersion) } });
  await assert.rejects(
    started,
    /StartError: Expected 0 or a pipeline version of this build \(1\) for PIPELINE_VERSION, received 2: /,
  );
});

describe('a newer version of what is published', () => {
  test('replaces the whole set at once: always ready, the old one served until then, and removed after its grace', async (t) => {
    const s = await scene(t);
    const api = await s.start(['api', 'relay'], {}, first);
    const user = await register(() => api.url);
    const worker = await s.start(['worker']);
    const { id } = await user.upload(photograph);
    const old = await user.until(id, 'ready');
    const oldFiles = await s.stored();
    const watched = watch(user, id);
    await worker.arm('worker.stored', 'wait');
    await s.reprocess(id);
    await worker.reached('worker.stored');
    assert.deepEqual(await user.attachment(id), { ...old, attempts: (await user.attachment(id)).attempts });
    await user.assertWhole(old, photograph);
    await letGo(worker, 'worker.stored');
    await until('the newer version is published', async () => (await s.published(id))[0] === newestVersion);
    const fresh = await user.attachment(id);
    await user.assertWhole(fresh, photograph);
    const sets = [old, fresh].map((shown) => shown.variants.map((variant) => variant.sha256).sort());
    assert.equal(new Set(sets.flat()).size, 6 - shared(old, fresh));
    assert.ok(sets[0]?.join() !== sets[1]?.join(), 'the recipes differ in what they make');
    const { rows: replaced } = await s.pool.query(
      `select extract(epoch from not_before - created_at)::float8 as seconds from cleanups where reason = 'replaced'`,
    );
    assert.deepEqual(
      replaced.map(({ seconds }) => Math.round(seconds)),
      [3, 3, 3],
    );
    const between = await s.stored();
    assert.ok(oldFiles.every((file) => between.includes(file)));
    await s.start(['janitor']);
    await s.assertTidy();
    assert.deepEqual(await watched.end(), [], 'every answer was of one set or of the other');
    assert.deepEqual(
      (await s.jobs(id)).map((job) => [job.version, job.state, ...cost(job)]),
      [
        [older, 'succeeded', 1, 0, 0, 0],
        [newestVersion, 'succeeded', 1, 0, 0, 0],
      ],
    );
  });

  test('is made of everything on request, little by little, and uploads go first', async (t) => {
    const s = await scene(t, { REPROCESS_WINDOW: '2' });
    let api = await s.start(['api', 'relay', 'janitor'], {}, first);
    const user = await register(() => api.url);
    await s.start(['worker']);
    const old = new Map<string, Buffer>();
    for (let round = 0; round < 6; round += 1) old.set((await user.upload(different(round))).id, different(round));
    for (const id of old.keys()) await user.until(id, 'ready');
    assert.equal(await api.stop(), 0);
    api = await s.start(['api', 'relay', 'janitor']);
    await s.pool.query(`update users set role = 'admin'`);
    const asked = await user.json('/v1/admin/reprocess', 'POST', {});
    assert.equal(asked.status, 202, await asked.clone().text());
    const { id: fresh } = await user.upload(different(7));
    let most = 0;
    const wish = await until('it is done', async () => {
      const { rows } = await s.pool.query(`select 1 from jobs where origin = 'reprocess' and ring_at is not null`);
      most = Math.max(most, rows.length);
      const { reprocessing } = (await (await user.ask('/v1/admin/reprocess')).json()) as { reprocessing: Wish };
      return reprocessing.done_at !== null && reprocessing.unfinished === 0 && reprocessing;
    });
    assert.deepEqual([wish.version, wish.remaining, wish.succeeded, wish.failed], [newestVersion, 0, 6, 0]);
    assert.ok(most <= 2, `${most} at once`);
    for (const [id, bytes] of [...old, [fresh, different(7)] as const]) {
      await user.assertWhole(await user.until(id, 'ready'), bytes);
      assert.deepEqual(await s.published(id), [newestVersion, 'ready']);
    }
    // Asked again there is nothing left to do.
    assert.equal((await user.json('/v1/admin/reprocess', 'POST', {})).status, 202);
    await until('the janitor has looked', async () => {
      const { rows } = await s.pool.query('select 1 from reprocessings where done_at is not null');
      return rows.length === 1;
    });
    assert.equal(await s.count('jobs'), 13);
    await s.assertTidy();
  });

  test('is not undone by an older job that ends after it: that one is superseded, and its objects are removed', async (t) => {
    const s = await scene(t);
    const api = await s.start(['api', 'relay', 'janitor'], {}, first);
    const user = await register(() => api.url);
    const slow = await s.start(['worker'], {}, { build });
    const { id } = await user.upload(photograph);
    const { variants } = await user.until(id, 'ready');
    const { rows } = await s.pool.query<{ key: string }>('select key from variants');
    assert.equal(rows.length, variants.length);
    // An older version is made again only to mend it; here while a newer one is on its way.
    await slow.arm('worker.stored', 'wait');
    assert.equal(await s.store.rebuild(id, { keys: rows.map(({ key }) => key), who: 'test' }), 'rebuilding');
    await slow.reached('worker.stored');
    await s.reprocess(id);
    await s.start(['worker']);
    await until('the newer version is published', async () => (await s.published(id))[0] === newestVersion);
    const fresh = await user.attachment(id);
    await letGo(slow, 'worker.stored');
    await until('the older job ended', async () => (await s.jobs(id))[0].state === 'superseded');
    assert.deepEqual((await user.attachment(id)).variants, fresh.variants);
    assert.deepEqual(await s.published(id), [newestVersion, 'ready']);
    await user.assertWhole(fresh, photograph);
    await s.assertTidy();
  });

  test('that cannot be made leaves the older one as it is, ready and whole', async (t) => {
    const s = await scene(t);
    const api = await s.start(['api', 'relay', 'janitor'], {}, first);
    const user = await register(() => api.url);
    const worker = await s.start(['worker']);
    const { id } = await user.upload(photograph);
    const old = await user.until(id, 'ready');
    assert.equal(await worker.stop(), 0);
    await s.start(['worker'], {}, { settings: { MAX_PIXELS: '100' } });
    await s.reprocess(id);
    await until('the newer job failed', async () => (await s.jobs(id))[1]?.state === 'failed');
    assert.equal((await s.jobs(id))[1].error_code, 'too_many_pixels');
    const after = await user.attachment(id);
    assert.deepEqual([after.state, after.error_code], ['ready', null]);
    assert.deepEqual(after.variants, old.variants);
    await user.assertWhole(old, photograph);
    await s.assertTidy();
  });

  test('has the bytes of the original for its source, and does not publish pictures of a damaged one', async (t) => {
    const s = await scene(t);
    const api = await s.start(['api', 'relay', 'janitor'], {}, first);
    const user = await register(() => api.url);
    await s.start(['worker']);
    const { id } = await user.upload(photograph);
    const old = await user.until(id, 'ready');
    const { rows } = await s.pool.query('select original_key from attachments');
    const damaged = Buffer.from(photograph);
    damaged[damaged.length - 100] = (damaged.at(-100) ?? 0) ^ 1;
    await writeFile(join(s.dataDir, 'blobs', rows[0].original_key), damaged);
    await s.reprocess(id);
    await until('the newer job failed', async () => (await s.jobs(id))[1]?.state === 'failed');
    assert.equal((await s.jobs(id))[1].error_code, 'staging_corrupt');
    assert.deepEqual((await user.attachment(id)).variants, old.variants);
    for (const variant of old.variants) assert.equal(sha256(await user.bytesOf(variant.url)), variant.sha256);
  });

  test('lets a reader finish who began with the older variant, however long it takes', async (t) => {
    // A large picture, and with it longer times: what is read slowly must not fit into the buffers of the connection.
    const s = await scene(t, {
      REPLACED_GRACE: '0s',
      RENDER_TIMEOUT: '60s',
      LEASE: '90s',
      RENEW: '10s',
      BROKER_REDELIVERY: '100s',
      CLEANUP_GRACE: '90s',
    });
    const api = await s.start(['api', 'relay', 'janitor'], {}, first);
    const user = await register(() => api.url);
    await s.start(['worker']);
    const { id } = await user.upload(await noise(2048, 3), 'image/webp');
    const old = await user.until(id, 'ready', 120_000);
    const optimized = old.variants.find((variant) => variant.name === 'optimized') ?? assert.fail();
    assert.ok(optimized.size > 6_000_000, `${optimized.size} bytes fit into the buffers of a connection`);
    const reader = await slowReader(t, api.url, optimized.url, user);
    await s.reprocess(id);
    await until('it was replaced, and the old objects are gone', async () => {
      const { rows } = await s.pool.query(`select 1 from cleanups where reason = 'replaced'`);
      return (await s.published(id))[0] === newestVersion && rows.length === 0;
    });
    assert.equal((await s.stored()).length, 4);
    assert.equal(sha256(await reader.rest()), optimized.sha256);
    const fresh = await user.attachment(id);
    assert.notEqual(fresh.variants.find((variant) => variant.name === 'optimized')?.sha256, optimized.sha256);
  });
});

/** How many variants two sets have in common: a recipe may leave some as they were. */
function shared(one: Shown, other: Shown): number {
  const digests = new Set(one.variants.map((variant) => variant.sha256));
  return other.variants.filter((variant) => digests.has(variant.sha256)).length;
}

interface Wish {
  readonly version: number;
  readonly done_at: string | null;
  readonly remaining: number;
  readonly unfinished: number;
  readonly succeeded: number;
  readonly failed: number;
}

type Shown = Awaited<ReturnType<User['attachment']>>;
