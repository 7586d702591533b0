/**
 * Journeys with real processes on any engines: from the upload to ready, and SIGKILL at every named point of the pipeline.
 * Each ends ready with one set of variants, or with nothing where nothing was promised. `docs/failures.md` names these tests, a
 * row a point.
 *
 * A test file calls `journeys` with what makes fresh engines for one test.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import type { Blobs, Point } from '../../src/pipeline/ports.ts';
import type { Role } from '../../src/roles.ts';
import { register } from '../support/client.ts';
import { onEnd } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { type Action, type RoleProcess, shortTimes, startRole } from '../support/role.ts';
import { until } from '../support/until.ts';

/** Engines that nobody else uses. What they hold is gone when `t` ends. */
export interface JourneyEngines {
  /** Environment of every process. */
  readonly settings: Readonly<Record<string, string>>;
  /** The object storage that the processes use. */
  readonly blobs: Blobs;
}

/** `dataDir` is the folder of the processes of one test. */
export type OpenEngines = (t: TestContext, dataDir: string) => Promise<JourneyEngines>;

/** The queue in PostgreSQL, objects in the folder. */
export const embedded: OpenEngines = async (_t, dataDir) => ({
  settings: {},
  blobs: createFileBlobs({ dir: join(dataDir, 'blobs') }),
});

/** The bell on another broker, in a stream or queue of its own for each test; objects in the folder. */
export function bellOn(brokerUrl: string): OpenEngines {
  return async (t, dataDir) => {
    const { settings, blobs } = await embedded(t, dataDir);
    const name = `journey-${randomBytes(6).toString('hex')}`;
    return { settings: { ...settings, BROKER_URL: brokerUrl, BROKER_NAME: name }, blobs };
  };
}

/** Registers the journeys on the engines of this name. */
export function journeys(name: string, open: OpenEngines): void {
  // Most of their time they wait for leases to end.
  describe(`journeys on ${name}`, { concurrency: 2 }, () => {
    uploadJourneys(open);
    workerJourneys(open);
    acceptJourneys(open);
    relayJourneys(open);
    laterJourneys(open);
  });
}

/** Small, so that a busy machine renders it well within the short times of these tests. */
export const photograph = await readFile(join(import.meta.dirname, '../fixtures/orientation/small_6.jpg'));

const times = { ...shortTimes, IDEMPOTENCY_LEASE: '2s' };

/** Starts roles on fresh engines, and looks at what they made. */
export async function scene(t: TestContext, open: OpenEngines = embedded) {
  const dataDir = await mkdtemp(join(tmpdir(), 'skrepka-journey-'));
  onEnd(t, () => rm(dataDir, { recursive: true, force: true }));
  const { url: databaseUrl, pool } = await freshDatabase(t);
  const { settings: ofEngines, blobs } = await open(t, dataDir);
  const settings = { ...times, ...ofEngines };
  const start = (
    roles: readonly Role[],
    points: Partial<Record<Point, Action>> = {},
    more: Readonly<Record<string, string>> = {},
  ) => startRole(t, { roles, databaseUrl, dataDir, settings: { ...settings, ...more }, points });
  const job = async (attachmentId: string) =>
    (await pool.query('select * from jobs where attachment_id = $1', [attachmentId])).rows[0];
  const count = async (table: 'attachments' | 'jobs' | 'variants' | 'cleanups') =>
    Number((await pool.query(`select count(*) as n from ${table}`)).rows[0].n);
  /** What the job has cost; a failure shows its history. */
  async function assertCost(attachmentId: string, [attempts, crashes, failures]: readonly [number, number, number]) {
    const found = await job(attachmentId);
    const { rows } = await pool.query(
      'select from_state, to_state, fence, reason, code, detail from job_events where job_id = $1 order by id',
      [found.id],
    );
    const cost = [found.attempts, found.crashes, found.failures];
    assert.deepEqual(cost, [attempts, crashes, failures], rows.map((row) => JSON.stringify(row)).join('\n'));
  }
  const keys = async () => (await blobs.list('')).objects.map((object) => object.key).sort();
  /** Once quiet, the objects are those that rows name: nothing lost, nothing left. */
  async function assertTidy() {
    await until('the clean-ups are done', async () => (await count('cleanups')) === 0, { deadlineMs: 30_000 });
    const { rows } = await pool.query(
      'select key from variants union all select original_key from attachments where original_key is not null',
    );
    assert.deepEqual(await keys(), rows.map((row) => row.key as string).sort());
  }
  return { start, pool, job, count, keys, assertCost, assertTidy };
}

async function assertKilled(role: RoleProcess) {
  assert.equal((await role.ended).signal, 'SIGKILL', role.output());
}

/** What the dead attempt cost: the worker's points lie between the claim and the end. */
const workerPoints: readonly { point: Point; crashes: number; what: string }[] = [
  { point: 'worker.claimed', crashes: 1, what: 'the lease ends and another worker claims the job' },
  { point: 'worker.downloaded', crashes: 1, what: 'scratch is left, and another worker renders' },
  {
    point: 'worker.rendered',
    crashes: 1,
    what: 'an original that no row names is left, and another worker renders again',
  },
  { point: 'worker.storing', crashes: 1, what: 'half a set is never served, and another worker makes a whole one' },
  { point: 'worker.stored', crashes: 1, what: 'a set that no row names is cleaned, and another worker’s is published' },
  { point: 'worker.settled', crashes: 0, what: 'the result stands, and the redelivery finds a finished job' },
  { point: 'worker.acked', crashes: 0, what: 'nothing is left to do' },
];

function uploadJourneys(open: OpenEngines): void {
  test('an upload becomes ready by another process, whole, and nothing is left beside it', async (t) => {
    const s = await scene(t, open);
    const api = await s.start(['api', 'relay', 'janitor']);
    const user = await register(() => api.url);
    const { id, state } = await user.upload(photograph);
    assert.equal(state, 'queued');
    assert.equal((await user.ask(`/v1/attachments/${id}/content`)).status, 409);
    await s.start(['worker']);
    const ready = await user.until(id, 'ready');
    await user.assertWhole(ready, photograph);
    await s.assertCost(id, [1, 0, 0]);
    assert.deepEqual([await s.count('attachments'), await s.count('jobs'), await s.count('variants')], [1, 1, 3]);
    await s.assertTidy();
  });
}

function workerJourneys(open: OpenEngines): void {
  for (const { point, crashes, what } of workerPoints) {
    test(`SIGKILL at ${point}: ${what}`, async (t) => {
      const s = await scene(t, open);
      const api = await s.start(['api', 'relay', 'janitor']);
      const user = await register(() => api.url);
      const worker = await s.start(['worker'], { [point]: 'kill' });
      const { id } = await user.upload(photograph);
      await assertKilled(worker);
      await s.start(['worker']);
      const ready = await user.until(id, 'ready');
      assert.deepEqual(ready.variants.map((variant) => variant.name).sort(), ['crop', 'optimized', 'thumbnail']);
      await user.assertWhole(ready, photograph);
      await s.assertCost(id, [1 + crashes, crashes, 0]);
      assert.deepEqual([await s.count('attachments'), await s.count('jobs'), await s.count('variants')], [1, 1, 3]);
      await s.assertTidy();
    });
  }
}

function acceptJourneys(open: OpenEngines): void {
  test('SIGKILL at accept.stored: no 202, no row; the same key sends again and is taken in once', async (t) => {
    const s = await scene(t, open);
    let api = await s.start(['api', 'relay', 'janitor', 'worker']);
    const user = await register(() => api.url);
    await api.arm('accept.stored', 'kill');
    const key = { 'idempotency-key': 'photo-1' };
    await assert.rejects(user.send(photograph, 'image/jpeg', key));
    await assertKilled(api);
    assert.equal(await s.count('attachments'), 0);
    assert.equal((await s.keys()).length, 1, 'an orphan is left for the janitor');
    api = await s.start(['api', 'relay', 'janitor', 'worker']);
    const response = await until('the reservation of the dead process ended', async () => {
      const again = await user.send(photograph, 'image/jpeg', key);
      if (again.status === 409) assert.ok(Number(again.headers.get('retry-after')) >= 1);
      return again.status !== 409 && again;
    });
    assert.equal(response.status, 202);
    const { id } = (await response.json()) as { id: string };
    const ready = await user.until(id, 'ready');
    await user.assertWhole(ready, photograph);
    assert.equal(await s.count('attachments'), 1);
  });

  test('SIGKILL at accept.committed: the client saw no answer, the job becomes ready, and the key answers the same 202', async (t) => {
    const s = await scene(t, open);
    let api = await s.start(['api']);
    const user = await register(() => api.url);
    await api.arm('accept.committed', 'kill');
    const key = { 'idempotency-key': 'photo-1' };
    await assert.rejects(user.send(photograph, 'image/jpeg', key));
    await assertKilled(api);
    assert.equal(await s.count('jobs'), 1);
    api = await s.start(['api', 'relay', 'janitor', 'worker']);
    const again = await user.upload(photograph, 'image/jpeg', key);
    assert.equal(again.state, 'queued');
    const ready = await user.until(again.id, 'ready');
    await user.assertWhole(ready, photograph);
    assert.deepEqual([await s.count('attachments'), await s.count('jobs')], [1, 1]);
    await s.assertTidy();
  });
}

const relayPoints: readonly { point: Point; what: string }[] = [
  { point: 'relay.taken', what: 'the bell that was taken and not confirmed rings again' },
  { point: 'relay.published', what: 'the job rings twice and is done once' },
  { point: 'relay.marked', what: 'the message is in the broker and is enough' },
];

function relayJourneys(open: OpenEngines): void {
  for (const { point, what } of relayPoints) {
    test(`SIGKILL at ${point}: ${what}`, async (t) => {
      const s = await scene(t, open);
      const api = await s.start(['api', 'janitor']);
      const user = await register(() => api.url);
      const relay = await s.start(['relay'], { [point]: 'kill' });
      const { id } = await user.upload(photograph);
      await assertKilled(relay);
      assert.equal((await s.job(id)).state, 'queued');
      await s.start(['relay', 'worker']);
      const ready = await user.until(id, 'ready');
      await user.assertWhole(ready, photograph);
      await s.assertCost(id, [1, 0, 0]);
      assert.deepEqual([await s.count('jobs'), await s.count('variants')], [1, 3]);
      await s.assertTidy();
    });
  }
}

function laterJourneys(open: OpenEngines): void {
  test('SIGKILL at janitor.deleting: the clean-up is made again by the next janitor', async (t) => {
    const s = await scene(t, open);
    const api = await s.start(['api', 'relay', 'worker']);
    const user = await register(() => api.url);
    const { id } = await user.upload(photograph);
    await user.until(id, 'ready');
    const janitor = await s.start(['janitor'], { 'janitor.deleting': 'kill' });
    await assertKilled(janitor);
    assert.ok((await s.count('cleanups')) > 0);
    await s.start(['janitor']);
    await s.assertTidy();
  });

  test('SIGSTOP longer than a lease, then SIGCONT: the zombie is silent and the other worker’s set stands', async (t) => {
    const s = await scene(t, open);
    const api = await s.start(['api', 'relay', 'janitor']);
    const user = await register(() => api.url);
    const zombie = await s.start(['worker'], { 'worker.stored': 'wait' });
    const { id } = await user.upload(photograph);
    await zombie.reached('worker.stored');
    process.kill(zombie.pid, 'SIGSTOP');
    await s.start(['worker']);
    const ready = await user.until(id, 'ready');
    process.kill(zombie.pid, 'SIGCONT');
    await zombie.resume('worker.stored');
    await until('the zombie knows', () => zombie.output().includes('the attempt is broken off'));
    assert.deepEqual(await user.attachment(id), ready);
    await user.assertWhole(ready, photograph);
    const job = await s.job(id);
    assert.deepEqual([job.state, job.fence, job.crashes], ['succeeded', 2, 1]);
    await s.assertTidy();
  });

  test('every process is killed in turn under a stream of uploads: each 202 becomes ready, once', async (t) => {
    const s = await scene(t, open);
    let api = await s.start(['api', 'relay', 'janitor']);
    // A job may be the one that each of the three kills meets.
    const working = () => s.start(['worker'], {}, { MAX_CRASHES: '100' });
    let worker = await working();
    const user = await register(() => api.url);
    const accepted = new Map<string, Buffer>();
    for (let round = 0; round < 6; round += 1) {
      for (let i = 0; i < 4; i += 1) {
        // Every picture is another one: its digest tells which original an answer has.
        const bytes = Buffer.concat([photograph, Buffer.from([0, round, i])]);
        accepted.set((await user.upload(bytes)).id, bytes);
      }
      if (round % 2 === 0) {
        await worker.kill();
        worker = await working();
      } else {
        await api.kill();
        api = await s.start(['api', 'relay', 'janitor']);
      }
    }
    for (const [id, bytes] of accepted) {
      const ready = await user.until(id, 'ready');
      await user.assertWhole(ready, bytes);
    }
    assert.deepEqual([await s.count('attachments'), await s.count('variants')], [24, 72]);
    await s.assertTidy();
  });
}
