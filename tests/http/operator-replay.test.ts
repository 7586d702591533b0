/** What operators do over HTTP: replay one, replay many, reprocess. A block per route, inside it one per status. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { newId } from '../../src/ids.ts';
import { assertProblem, type Body, startApi } from '../support/api.ts';
import { fail, settle } from '../support/store.ts';

async function start(t: TestContext, settings: { pipelineVersion?: number } = {}) {
  const api = await startApi(t, { settings });
  const operator = await api.account('root', 'admin');
  const ada = await api.account('ada');
  const ask = (line: string, json?: unknown) =>
    api.call(line, { token: operator.token, ...(json === undefined ? {} : { json }) });
  const failed = async (code: Parameters<typeof fail>[2] = 'corrupt_image') => {
    const upload = await api.accept();
    await fail(api.store, (await api.claimed(upload.jobId)).attempt, code);
    return upload;
  };
  const replay = (id: string) => ask(`POST /v1/admin/jobs/${id}/replay`);
  return { ...api, operator, ada, ask, failed, replay };
}

describe('POST /v1/admin/jobs/{id}/replay', () => {
  describe('202', () => {
    it('begins a new generation of a failed job, with counters at zero, and tells who asked', async (t) => {
      const { ask, replay, failed, attachmentRow } = await start(t);
      const { id, jobId } = await failed();
      const answer = await replay(jobId);
      assert.equal(answer.status, 202);
      const job = answer.body.job as Body;
      assert.deepEqual(
        [job.id, job.state, job.generation, job.failures, job.error_code, job.fence],
        [jobId, 'queued', 2, 0, null, 1],
      );
      assert.equal((await attachmentRow(id)).state, 'queued');
      const events = (await ask(`GET /v1/admin/jobs/${jobId}`)).body.events as Body[];
      assert.deepEqual(
        [events.at(-1)?.from, events.at(-1)?.to, events.at(-1)?.reason, events.at(-1)?.who],
        ['failed', 'queued', 'replayed', 'operator root'],
      );
    });

    it('leads to a success whose history shows both generations', async (t) => {
      const { ask, replay, failed, store, claimed } = await start(t);
      const { jobId } = await failed();
      await replay(jobId);
      await settle(store, (await claimed(jobId)).attempt);
      const { body } = await ask(`GET /v1/admin/jobs/${jobId}`);
      const attempts = body.attempts as Body[];
      assert.deepEqual(
        attempts.map(({ generation, outcome, code }) => [generation, outcome, code]),
        [
          [1, 'failed', 'corrupt_image'],
          [2, 'settled', null],
        ],
      );
    });
  });

  describe('409', () => {
    it('is the answer to a second replay, with the state, and nothing is changed', async (t) => {
      const { replay, failed, everything } = await start(t);
      const { jobId } = await failed();
      assert.equal((await replay(jobId)).status, 202);
      const before = await everything();
      const second = await replay(jobId);
      assertProblem(second, 409, 'job_unfinished');
      assert.equal(second.body.state, 'queued');
      assert.equal(await everything(), before);
    });

    it('is the answer for a job that is queued, runs, has succeeded or has ended', async (t) => {
      const { replay, accept, claimed, ready, store, owner, everything } = await start(t);
      const [waiting, running, done, gone] = [await accept(), await accept(), await ready(), await accept()];
      await claimed(running.jobId);
      await store.deleteAttachment(owner, gone.id, { graceMs: 0 });
      const before = await everything();
      for (const [jobId, code, state] of [
        [waiting.jobId, 'job_unfinished', 'queued'],
        [running.jobId, 'job_unfinished', 'processing'],
        [done.jobId, 'already_succeeded', 'succeeded'],
        [gone.jobId, 'job_ended', 'cancelled'],
      ] as const) {
        const answer = await replay(jobId);
        assertProblem(answer, 409, code);
        assert.equal(answer.body.state, state);
      }
      assert.equal(await everything(), before);
    });

    it('is the answer when the original is not kept any more', async (t) => {
      const { replay, failed, pool } = await start(t);
      const { id, jobId } = await failed();
      await pool.query('update attachments set staging_gone_at = now() where id = $1', [id]);
      assertProblem(await replay(jobId), 409, 'staging_gone');
    });
  });

  describe('404', () => {
    it('is the answer where there is no such job', async (t) => {
      const { replay, failed } = await start(t);
      const { id } = await failed();
      for (const path of [newId(), id, 'x']) assertProblem(await replay(path), 404, 'not_found');
    });
  });
});

describe('POST /v1/admin/replay', () => {
  const many = (api: Awaited<ReturnType<typeof start>>, json: unknown) => api.ask('POST /v1/admin/replay', json);

  describe('200', () => {
    it('replays what a code, an owner or an age names', async (t) => {
      const api = await start(t);
      const [corrupt, large] = [await api.failed(), await api.failed('too_many_pixels')];
      await api.pool.query(`update jobs set finished_at = now() - interval '1 hour' where id = $1`, [large.jobId]);
      const state = async (id: string) => (await api.jobRow(id)).state;
      for (const json of [{ error_code: 'render_timeout' }, { owner_id: api.ada.id }, { older_than_seconds: 7200 }]) {
        assert.deepEqual((await many(api, json)).body, { matched: 0, replayed: 0, skipped: {} });
      }
      assert.deepEqual((await many(api, { older_than_seconds: 60 })).body, { matched: 1, replayed: 1, skipped: {} });
      assert.deepEqual([await state(corrupt.jobId), await state(large.jobId)], ['failed', 'queued']);
      const rest = { error_code: 'corrupt_image', owner_id: api.owner, younger_than_seconds: 60 };
      assert.deepEqual((await many(api, rest)).body, { matched: 1, replayed: 1, skipped: {} });
    });

    it('takes everything when told so, and tells of what it could not replay', async (t) => {
      const api = await start(t);
      const [first] = [await api.failed(), await api.failed()];
      await api.pool.query('update attachments set staging_gone_at = now() where id = $1', [first.id]);
      const answer = await many(api, { all: true });
      assert.equal(answer.status, 200);
      assert.deepEqual(answer.body, { matched: 2, replayed: 1, skipped: { staging_gone: 1 } });
    });

    it('changes nothing in a dry run, and no more than its limit otherwise', async (t) => {
      const api = await start(t);
      for (let at = 0; at < 3; at += 1) await api.failed();
      const before = await api.everything();
      assert.deepEqual((await many(api, { all: true, dry_run: true })).body, { matched: 3, replayed: 0, skipped: {} });
      assert.equal(await api.everything(), before);
      assert.deepEqual((await many(api, { all: true, limit: 2 })).body, { matched: 3, replayed: 2, skipped: {} });
    });
  });

  describe('400', () => {
    it('refuses to take everything unless told so', async (t) => {
      const api = await start(t);
      await api.failed();
      const before = await api.everything();
      for (const json of [{}, { all: false }, { limit: 5 }, { dry_run: true }]) {
        assertProblem(await many(api, json), 400, 'validation', '/all');
      }
      assert.equal(await api.everything(), before);
    });

    it('names the member that is wrong', async (t) => {
      const api = await start(t);
      for (const [json, field] of [
        [{ error_code: 'nonsense' }, '/error_code'],
        [{ owner_id: 'ada' }, '/owner_id'],
        [{ older_than_seconds: -1 }, '/older_than_seconds'],
        [{ younger_than_seconds: 1.5 }, '/younger_than_seconds'],
        [{ all: true, limit: 0 }, '/limit'],
        [{ all: true, limit: 1001 }, '/limit'],
        [{ all: 'yes' }, '/all'],
        [{ al: true }, '/al'],
      ] as const) {
        assertProblem(await many(api, json), 400, 'validation', field);
      }
    });
  });
});

describe('POST /v1/admin/reprocess', () => {
  const reprocess = (api: Awaited<ReturnType<typeof start>>, json: unknown = {}) =>
    api.ask('POST /v1/admin/reprocess', json);

  describe('400', () => {
    it('is the answer to a missing body, with what to send instead', async (t) => {
      const { call, operator } = await start(t);
      const answer = await call('POST /v1/admin/reprocess', { token: operator.token });
      assertProblem(answer, 400, 'validation', '');
      assert.equal(answer.body.detail, 'The body must be a JSON object, {} at the least.');
    });
  });

  describe('202', () => {
    it('writes a wish down whose progress can be read, and goes on with it when asked again', async (t) => {
      const api = await start(t, { pipelineVersion: 2 });
      await api.ready();
      const answer = await reprocess(api);
      assert.equal(answer.status, 202);
      assert.deepEqual([answer.body.version, answer.body.matching, answer.body.outcome], [2, 1, 'asked']);
      const wish = answer.body.reprocessing as Body;
      assert.deepEqual([wish.asked_by, wish.retry_failed, wish.remaining], ['operator root', false, 1]);
      await api.store.feedReprocessing({ window: 10, limit: 10 });
      const progress = await api.ask('GET /v1/admin/reprocess');
      assert.equal(progress.status, 200);
      const shown = progress.body.reprocessing as Body;
      assert.deepEqual([shown.remaining, shown.unfinished], [0, 1]);
      assert.deepEqual((await api.ask('GET /v1/admin/queue')).body.reprocessing, shown);
      const again = (await reprocess(api)).body.reprocessing as Body;
      assert.equal(again.unfinished, 1);
    });

    it('makes a job for one attachment', async (t) => {
      const api = await start(t, { pipelineVersion: 2 });
      const { id } = await api.ready();
      const answer = await reprocess(api, { attachment_id: id });
      assert.equal(answer.status, 202);
      assert.deepEqual([answer.body.outcome, answer.body.matching], ['made', 1]);
      const jobs = (await api.ask('GET /v1/admin/jobs?state=queued')).body.items;
      assert.deepEqual(
        jobs.map((job) => [job.attachment_id, job.version, job.origin]),
        [[id, 2, 'reprocess']],
      );
    });
  });

  describe('200', () => {
    it('tells without doing anything in a dry run', async (t) => {
      const api = await start(t, { pipelineVersion: 2 });
      const { id } = await api.ready();
      const before = await api.everything();
      for (const json of [{ dry_run: true }, { attachment_id: id, dry_run: true }]) {
        const answer = await reprocess(api, json);
        assert.equal(answer.status, 200);
        assert.deepEqual(answer.body, { version: 2, matching: 1, outcome: null, reprocessing: null });
      }
      assert.equal(await api.everything(), before);
    });

    it('says that one attachment has a job of the version already, or is at it', async (t) => {
      const api = await start(t, { pipelineVersion: 2 });
      const { id } = await api.ready();
      await reprocess(api, { attachment_id: id });
      const exists = await reprocess(api, { attachment_id: id });
      assert.deepEqual([exists.status, exists.body.outcome], [200, 'exists']);
      const [job] = (await api.ask('GET /v1/admin/jobs?state=queued')).body.items;
      await settle(api.store, (await api.claimed(job?.id ?? '')).attempt);
      const current = await reprocess(api, { attachment_id: id });
      assert.deepEqual([current.status, current.body.outcome, current.body.matching], [200, 'current', 0]);
    });
  });

  describe('409', () => {
    it('is the answer for an attachment of which nothing is published', async (t) => {
      const api = await start(t, { pipelineVersion: 2 });
      const { id } = await api.accept();
      assertProblem(await reprocess(api, { attachment_id: id }), 409, 'attachment_not_ready');
    });
  });

  describe('404', () => {
    it('is the answer for an attachment that is not there', async (t) => {
      const api = await start(t, { pipelineVersion: 2 });
      assertProblem(await reprocess(api, { attachment_id: newId() }), 404, 'not_found');
    });
  });
});

describe('what operators do', () => {
  for (const line of [
    `POST /v1/admin/jobs/${newId()}/replay`,
    'POST /v1/admin/replay',
    'POST /v1/admin/reprocess',
    'GET /v1/admin/reprocess',
  ]) {
    const shown = line.replace(/[0-9a-f-]{36}/, '{id}');
    const json = line.startsWith('POST') && !line.includes('/jobs/') ? { json: { all: true } } : {};
    it(`${shown} is refused to strangers with 401 and to users with 403, and nothing is changed`, async (t) => {
      const { call, ada, failed, everything } = await start(t);
      await failed();
      const before = await everything();
      assertProblem(await call(line, json), 401, 'unauthorized');
      assertProblem(await call(line, { ...json, token: ada.token }), 403, 'forbidden');
      assert.equal(await everything(), before);
    });
  }
});

describe('what an owner sees of a failure', () => {
  it('is code and sentence, never the detail that operators see', async (t) => {
    const api = await start(t);
    const { id, jobId } = await api.accept({ ownerId: api.ada.id });
    await fail(api.store, (await api.claimed(jobId)).attempt, 'corrupt_image');
    const shown = await api.call(`GET /v1/attachments/${id}`, { token: api.ada.token });
    assert.equal(shown.body.state, 'failed');
    assert.equal(shown.body.error_code, 'corrupt_image');
    assert.equal(shown.body.error_message, 'The image is damaged and cannot be decoded.');
    assert.ok(!JSON.stringify(shown.body).includes('because of'));
    const job = (await api.ask(`GET /v1/admin/jobs/${jobId}`)).body.job as Body;
    assert.equal(job.error_detail, 'because of corrupt_image');
    assert.equal((await api.replay(jobId)).status, 202);
    const again = await api.call(`GET /v1/attachments/${id}`, { token: api.ada.token });
    assert.deepEqual([again.body.state, again.body.error_code, again.body.error_message], ['queued', null, null]);
  });
});
