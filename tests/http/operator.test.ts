/** What operators see over HTTP: a block per route, inside it one per status. What they do is in `operator-replay.test.ts`. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import { apiSettings, assertProblem, type Body, startApi } from '../support/api.ts';
import { fail, release, settle } from '../support/store.ts';

async function start(t: TestContext) {
  const api = await startApi(t);
  const operator = await api.account('root', 'admin');
  const ada = await api.account('ada');
  const ask = (path: string) => api.call(`GET /v1/admin/${path}`, { token: operator.token });
  return { ...api, operator, ada, ask };
}

/** The refusals that every route for operators shares. */
function isForOperators(path: () => string): void {
  describe('401', () => {
    it('needs a token', async (t) => {
      const { call } = await start(t);
      assertProblem(await call(`GET /v1/admin/${path()}`), 401, 'unauthorized');
    });
  });

  describe('403', () => {
    it('is closed to users, whether there is anything or not', async (t) => {
      const { call, ada } = await start(t);
      assertProblem(await call(`GET /v1/admin/${path()}`, { token: ada.token }), 403, 'forbidden');
    });
  });
}

describe('GET /v1/admin/queue', () => {
  describe('200', () => {
    it('tells that nothing waits', async (t) => {
      const { ask } = await start(t);
      const answer = await ask('queue');
      assert.equal(answer.status, 200);
      assert.deepEqual(answer.body, {
        queued: 0,
        due: 0,
        announced: 0,
        in_flight: 0,
        failed: 0,
        oldest_queued_seconds: null,
        oldest_due_seconds: null,
        staging_bytes: 0,
        oldest_staging_seconds: null,
        accepted_per_second: 0,
        finished_per_second: 0,
        cleanups: 0,
        limits: {
          backlog_max: apiSettings.backlogMax,
          staging_bytes_max: apiSettings.stagingBytesMax,
          uploads_max: apiSettings.uploadsMax,
          pending_per_user_max: apiSettings.pendingPerUserMax,
          uploads_per_user_max: apiSettings.uploadsPerUserMax,
          uploads_per_minute_max: apiSettings.uploadsPerMinuteMax,
        },
        reprocessing: null,
      });
    });

    it('counts what waits, runs and has failed, and tells the oldest age', async (t) => {
      const { ask, store, accept, claimed, pool } = await start(t);
      const [waiting, , running, failing, later] = [
        await accept(),
        await accept(),
        await accept(),
        await accept(),
        await accept(),
      ];
      await claimed(running.jobId);
      await fail(store, (await claimed(failing.jobId)).attempt, 'corrupt_image');
      await fail(store, (await claimed(later.jobId)).attempt, 'internal', 600_000);
      await pool.query(`update jobs set created_at = now() - interval '90 seconds' where id = $1`, [waiting.jobId]);
      const { body } = await ask('queue');
      assert.equal(body.queued, 3);
      assert.equal(body.due, 2);
      assert.equal(body.in_flight, 1);
      assert.equal(body.failed, 1);
      const oldest = Number(body.oldest_queued_seconds);
      assert.ok(oldest >= 90 && oldest < 150, `${oldest} s`);
      assert.ok(Number(body.oldest_due_seconds) > 0);
      assert.equal(body.staging_bytes, 5 * 4321);
      assert.ok(Number(body.oldest_staging_seconds) > 0);
      assert.ok(Number(body.accepted_per_second) > 0);
      assert.ok(Number(body.finished_per_second) > 0);
    });
  });

  isForOperators(() => 'queue');
});

describe('GET /v1/admin/jobs', () => {
  describe('200', () => {
    it('lists jobs, newest first, in pages', async (t) => {
      const { ask, accept } = await start(t);
      const made: string[] = [];
      for (let i = 0; i < 3; i += 1) made.unshift((await accept()).jobId);
      const first = await ask('jobs?limit=2');
      assert.equal(first.status, 200);
      const second = await ask(`jobs?limit=2&cursor=${first.body.next_cursor}`);
      assert.deepEqual(
        [...first.body.items, ...second.body.items].map((job) => job.id),
        made,
      );
      assert.equal(second.body.next_cursor, null);
    });

    it('lists those of a state, of an error code, of both', async (t) => {
      const { ask, store, accept, claimed } = await start(t);
      const [corrupt, large] = [await accept(), await accept()];
      await accept();
      await fail(store, (await claimed(corrupt.jobId)).attempt, 'corrupt_image');
      await fail(store, (await claimed(large.jobId)).attempt, 'too_many_pixels');
      const found = async (query: string) => (await ask(`jobs?${query}`)).body.items.map((job) => job.id);
      assert.deepEqual(await found('state=failed'), [large.jobId, corrupt.jobId]);
      assert.deepEqual(await found('error_code=corrupt_image'), [corrupt.jobId]);
      assert.deepEqual(await found('state=failed&error_code=too_many_pixels'), [large.jobId]);
      assert.deepEqual(await found('state=succeeded&error_code=too_many_pixels'), []);
    });

    it('lists those of an owner, or of an attachment', async (t) => {
      const { ask, accept, owner, ada } = await start(t);
      const [{ id, jobId }, other] = [await accept(), await accept()];
      const found = async (query: string) => (await ask(`jobs?${query}`)).body.items.map((job) => job.id);
      assert.deepEqual(await found(`owner_id=${owner}`), [other.jobId, jobId]);
      assert.deepEqual(await found(`owner_id=${ada.id}`), []);
      assert.deepEqual(await found(`attachment_id=${id}`), [jobId]);
      assert.deepEqual(await found(`attachment_id=${id}&owner_id=${ada.id}`), []);
    });

    it('tells of a failed job why, for the operator in detail', async (t) => {
      const { ask, store, accept, claimed, owner } = await start(t);
      const { id, jobId } = await accept();
      await fail(store, (await claimed(jobId)).attempt, 'corrupt_image');
      const [job] = (await ask('jobs?state=failed')).body.items;
      assert.ok(job);
      const times = ['created_at', 'finished_at', 'not_before', 'updated_at'];
      const dated = Object.entries(job).filter(([member]) => times.includes(member));
      assert.deepEqual(dated.map(([member]) => member).toSorted(), times);
      for (const [, time] of dated) assert.match(String(time), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
      assert.deepEqual(Object.fromEntries(Object.entries(job).filter(([member]) => !times.includes(member))), {
        id: jobId,
        attachment_id: id,
        owner_id: owner,
        version: 1,
        origin: 'upload',
        generation: 1,
        state: 'failed',
        attempts: 1,
        failures: 1,
        crashes: 0,
        releases: 0,
        rings: 0,
        fence: 1,
        error_code: 'corrupt_image',
        error_detail: 'because of corrupt_image',
        worker: 'worker-1',
        lease_until: null,
        ring_at: null,
      });
    });
  });

  describe('400', () => {
    it('names the parameter that is wrong', async (t) => {
      const { ask } = await start(t);
      for (const [query, field] of [
        ['state=ready', 'state'],
        ['state=', 'state'],
        ['error_code=nonsense', 'error_code'],
        ['owner_id=ada', 'owner_id'],
        ['attachment_id=x', 'attachment_id'],
        ['limit=0', 'limit'],
        ['limit=201', 'limit'],
        ['cursor=x', 'cursor'],
      ] as const) {
        assertProblem(await ask(`jobs?${query}`), 400, 'validation', field);
      }
    });
  });

  isForOperators(() => 'jobs');
});

describe('GET /v1/admin/jobs/{id}', () => {
  describe('200', () => {
    it('tells every attempt and every event, oldest first', async (t) => {
      const { ask, store, accept, claimed, endWait, endLease } = await start(t);
      const { jobId } = await accept();
      await fail(store, (await claimed(jobId, { worker: 'w1' })).attempt, 'internal');
      await endWait(jobId);
      await release(store, (await claimed(jobId, { worker: 'w2' })).attempt);
      await claimed(jobId, { worker: 'w3' });
      await endLease(jobId);
      await settle(store, (await claimed(jobId, { worker: 'w4' })).attempt);
      const answer = await ask(`jobs/${jobId}`);
      assert.equal(answer.status, 200);
      const { job, attempts, events } = answer.body as unknown as { job: Body; attempts: Body[]; events: Body[] };
      assert.equal(job.state, 'succeeded');
      assert.equal(job.attempts, 4);
      assert.deepEqual(
        attempts.map(({ fence, worker, outcome, code }) => ({ fence, worker, outcome, code })),
        [
          { fence: 1, worker: 'w1', outcome: 'retried', code: 'internal' },
          { fence: 2, worker: 'w2', outcome: 'released', code: null },
          { fence: 3, worker: 'w3', outcome: 'crashed', code: null },
          { fence: 4, worker: 'w4', outcome: 'settled', code: null },
        ],
      );
      for (const { started_at: began, ended_at: ended } of attempts) {
        assert.ok(Date.parse(String(began)) <= Date.parse(String(ended)), `${began} – ${ended}`);
      }
      assert.deepEqual(
        events.map(({ from, to, reason }) => `${from} ${to} ${reason}`),
        [
          'null queued accepted',
          'queued processing claimed',
          'processing queued retried',
          'queued processing claimed',
          'processing queued released',
          'queued processing claimed',
          'processing processing crashed',
          'processing succeeded settled',
        ],
      );
    });

    it('tells of a running attempt that it runs', async (t) => {
      const { ask, accept, claimed } = await start(t);
      const { jobId } = await accept();
      await claimed(jobId);
      const { body } = await ask(`jobs/${jobId}`);
      const [attempt] = body.attempts as Body[];
      assert.equal(attempt?.outcome, 'running');
      assert.equal(attempt?.ended_at, null);
      assert.notEqual((body.job as Body).lease_until, null);
    });
  });

  describe('404', () => {
    it('is the answer where there is no job', async (t) => {
      const { ask, accept } = await start(t);
      const { id } = await accept();
      for (const path of [newId(), id, 'x']) assertProblem(await ask(`jobs/${path}`), 404, 'not_found');
    });
  });

  isForOperators(() => `jobs/${newId()}`);
});
