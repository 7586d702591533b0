/** Act 3 of level 4: a job fails by limits that are too low, is understood, and is replayed once they are right. */
import assert from 'node:assert/strict';
import { expectStatus } from './http-client.ts';
import {
  assertWhole,
  comes,
  digests,
  hasHistory,
  jobOf,
  leave,
  type OperateScene,
  upload,
} from './scenario-operator.ts';
import { type Shown, untilEnded, untilReady } from './scenario-people.ts';

export async function failedAndReplayed(scene: OperateScene, undisturbed: Shown): Promise<void> {
  const { checks, author, ask } = scene;
  const relay = await comes(scene, 'a relay and a janitor start', ['relay', 'janitor']);
  const narrow = await comes(scene, 'a worker starts that may render 100,000 pixels and no more', ['worker'], {
    settings: { MAX_PIXELS: '100000', MAX_PIXELS_AVIF: '100000' },
  });
  const failed = await checks.check('an upload fails; its owner reads a code and a sentence', async () => {
    const { id } = await upload(scene);
    const shown = await untilEnded(scene, author, id);
    assert.deepEqual([shown.state, shown.error_code], ['failed', 'too_many_pixels']);
    assert.match(shown.error_message ?? '', /^[A-Z].*\.$/);
    return { value: shown, note: `attachment ${id}: ${shown.error_code}, “${shown.error_message}”` };
  });
  await checks.check('its content is refused for good: 409 without Retry-After', async () => {
    const answer = expectStatus(await ask('GET', `/v1/attachments/${failed.id}/content`, author), 409);
    assert.equal(answer.json?.code, 'attachment_failed');
    assert.equal(answer.headers.get('retry-after'), null);
    return { value: undefined, note: String(answer.json?.code) };
  });
  const job = await checks.check('the operator finds it among the failed ones, with the detail', async () => {
    const found = await jobOf(scene, failed.id);
    assert.deepEqual([found.state, found.error_code], ['failed', 'too_many_pixels']);
    assert.ok(found.error_detail);
    assert.notEqual(found.error_detail, failed.error_message);
    return { value: found, note: `job ${found.id}, generation 1: ${found.error_detail}` };
  });
  await leave(narrow);

  const replay = () => scene.ask('POST', `/v1/admin/jobs/${job.id}/replay`, scene.operator);
  await checks.check('no worker runs; the operator replays it: 202, the same job in generation 2', async () => {
    expectStatus(await replay(), 202);
    const found = await jobOf(scene, failed.id);
    assert.deepEqual([found.id, found.state, found.generation, found.failures], [job.id, 'queued', 2, 0]);
    return { value: undefined, note: `job ${found.id}, queued` };
  });
  await refused(scene, 'a second replay while it waits changes nothing', replay, 'job_unfinished');
  const worker = await comes(scene, 'a worker with the right limits starts', ['worker']);
  await checks.check('the same attachment becomes ready', async () => {
    const shown = await untilReady(scene, author, failed.id);
    assert.deepEqual([shown.error_code, shown.error_message], [null, null]);
    assert.deepEqual(digests(shown), digests(undisturbed));
    return { value: undefined, note: `attachment ${shown.id}; ${await assertWhole(scene, shown)}` };
  });
  await refused(scene, 'a replay of what has succeeded changes nothing', replay, 'already_succeeded');
  await hasHistory(scene, job.id, ['accepted', 'claimed', 'failed', 'replayed', 'claimed', 'settled']);
  await leave(worker, relay);
}

async function refused(
  { checks }: OperateScene,
  title: string,
  replay: () => ReturnType<OperateScene['ask']>,
  code: string,
): Promise<void> {
  await checks.check(`${title}: 409`, async () => {
    const answer = expectStatus(await replay(), 409);
    assert.equal(answer.json?.code, code);
    return { value: undefined, note: code };
  });
}
