/** Acts 1 and 2 of level 4: deaths between two writes. The bell and the fence repair them; nobody makes a second job. */
import assert from 'node:assert/strict';
import { freePort } from './free-port.ts';
import { NoAnswer } from './http-client.ts';
import {
  assertKilled,
  assertWhole,
  comes,
  digests,
  hasHistory,
  jobOf,
  leave,
  newest,
  type OperateScene,
  upload,
  within,
} from './scenario-operator.ts';
import { type Shown, untilReady } from './scenario-people.ts';

/** Act 1. Answers the attachment as an attempt that nobody disturbed made it. */
export async function lostBeforeThePublish(scene: OperateScene): Promise<Shown> {
  const { checks, author, api } = scene;
  const key = { 'idempotency-key': 'photograph-of-act-1' };
  const { id, jobId } = await checks.check('the API dies right after COMMIT: anna gets no answer', async () => {
    await api.current.arm('accept.committed', 'kill');
    await assert.rejects(upload(scene, key), NoAnswer);
    await assertKilled(api.current);
    const port = new URL(api.current.url).port;
    api.current = await scene.stage.play(['api'], { settings: { PORT: port } });
    const shown = await newest(scene);
    assert.equal(shown.state, 'queued');
    const job = await jobOf(scene, shown.id);
    assert.equal(job.rings, 0, 'nothing was published');
    return { value: { id: shown.id, jobId: job.id }, note: `attachment ${shown.id}, job ${job.id}, never announced` };
  });
  await checks.check('a relay takes its bell and dies before it publishes', async () => {
    const relay = await scene.stage.play(['relay'], { points: { 'relay.taken': 'kill' } });
    await assertKilled(relay);
    const job = await jobOf(scene, id);
    assert.deepEqual([job.id, job.state, job.rings], [jobId, 'queued', 1]);
    return { value: undefined, note: `process ${relay.pid}; job ${jobId} still queued, ring 1 was never published` };
  });
  const roles = await comes(scene, 'another relay and a worker start; nobody sends anything again', [
    'relay',
    'worker',
  ]);
  const ready = await checks.check('the same job is announced again and succeeds at its first attempt', async () => {
    const shown = await untilReady(scene, author, id);
    const job = await jobOf(scene, id);
    assert.deepEqual([job.id, job.state, job.attempts, job.crashes], [jobId, 'succeeded', 1, 0]);
    assert.ok(job.rings >= 2);
    return {
      value: shown,
      note: `attachment ${id}, job ${job.id}, ring ${job.rings}; ${await assertWhole(scene, shown)}`,
    };
  });
  await hasHistory(scene, jobId, ['accepted', 'claimed', 'settled']);
  await checks.check('anna repeats her upload with its key, and is given the same attachment', async () => {
    const again = await upload(scene, key);
    assert.equal(again.id, id);
    assert.equal((await jobOf(scene, id)).id, jobId);
    return { value: undefined, note: `attachment ${again.id}, still one job` };
  });
  await leave(roles);
  return ready;
}

/** Act 2. */
export async function killedAfterTheWrite(scene: OperateScene, undisturbed: Shown): Promise<void> {
  const relay = await comes(scene, 'a relay and a janitor start', ['relay', 'janitor']);
  await killedBeforeTheSettle(scene, undisturbed);
  await killedBeforeTheAck(scene, undisturbed);
  await leave(relay);
}

async function killedBeforeTheSettle(scene: OperateScene, undisturbed: Shown): Promise<void> {
  const { checks, author } = scene;
  const id = await checks.check(
    'a worker writes all objects of an upload and dies before any row names them',
    async () => {
      const worker = await scene.stage.play(['worker'], { points: { 'worker.stored': 'kill' } });
      const shown = await upload(scene);
      await assertKilled(worker);
      const job = await jobOf(scene, shown.id);
      assert.deepEqual([job.state, job.fence], ['processing', 1]);
      return { value: shown.id, note: `process ${worker.pid}; attachment ${shown.id}, job ${job.id}` };
    },
  );
  const worker = await comes(scene, 'another worker starts, and waits for the lease of the dead one to end', [
    'worker',
  ]);
  const job = await checks.check('its own attempt is published: the same pictures, to the byte', async () => {
    const shown = await untilReady(scene, author, id);
    assert.deepEqual(digests(shown), digests(undisturbed));
    const found = await jobOf(scene, id);
    assert.deepEqual([found.state, found.attempts, found.crashes, found.fence], ['succeeded', 2, 1, 2]);
    return { value: found, note: `attachment ${id}, 2 attempts, 1 crash; ${await assertWhole(scene, shown)}` };
  });
  await hasHistory(scene, job.id, ['accepted', 'claimed', 'crashed', 'settled']);
  await leave(worker);
}

async function killedBeforeTheAck(scene: OperateScene, undisturbed: Shown): Promise<void> {
  const { checks, author } = scene;
  const shown = await checks.check('a worker settles an upload and dies before its ack', async () => {
    const worker = await scene.stage.play(['worker'], { points: { 'worker.settled': 'kill' } });
    const { id } = await upload(scene);
    await assertKilled(worker);
    const ready = await untilReady(scene, author, id);
    return { value: ready, note: `process ${worker.pid}; attachment ${id} is ready, its message is not acked` };
  });
  const before = await jobOf(scene, shown.id);
  await checks.check('the broker delivers it again, and the next worker finds a finished job', async () => {
    const port = await freePort();
    const worker = await scene.stage.play(['worker'], { settings: { METRICS_PORT: String(port) } });
    await within('a claim is refused as finished', () => refusedAsFinished(port));
    const after = await jobOf(scene, shown.id);
    assert.deepEqual(after, before, 'the job did not change');
    assert.deepEqual([after.attempts, after.crashes, after.fence], [1, 0, 1]);
    await leave(worker);
    return { value: undefined, note: `job ${after.id}, 1 attempt, fence 1, as before` };
  });
  await checks.check('the attachment is what it was: one set, the same pictures, to the byte', async () => {
    const again = await untilReady(scene, author, shown.id);
    assert.deepEqual(again, shown);
    assert.deepEqual(digests(again), digests(undisturbed));
    return { value: undefined, note: `attachment ${shown.id}; ${await assertWhole(scene, again)}` };
  });
  await hasHistory(scene, before.id, ['accepted', 'claimed', 'settled']);
}

/** What a worker tells of itself on METRICS_PORT. */
async function refusedAsFinished(port: number): Promise<boolean> {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  return /^skrepka_claims_refused_total\{[^}]*reason="finished"[^}]*\} [1-9]/m.test(text);
}
