/**
 * Act 4 of level 4: a slow worker renews its lease and keeps its job; a hung one does not, and is taken over. When it wakes, its
 * fence is old, and it changes nothing.
 */
import assert from 'node:assert/strict';
import type { RoleProcess } from '../tests/support/role.ts';
import {
  assertWhole,
  comes,
  hasHistory,
  jobOf,
  leaseLine,
  leave,
  type OperateScene,
  type SeenJob,
  upload,
  within,
} from './scenario-operator.ts';
import { untilReady } from './scenario-people.ts';

const leaseMs = 6_000;
const untilMs = ({ lease_until: until }: SeenJob) => Date.parse(until ?? '');

export async function hungAndSlow(scene: OperateScene): Promise<void> {
  const relay = await comes(scene, 'a relay and a janitor start', ['relay', 'janitor']);
  await slow(scene);
  await hung(scene);
  await leave(relay);
}

async function slow(scene: OperateScene): Promise<void> {
  const { checks, author } = scene;
  const points = { 'worker.storing': 'wait' } as const;
  const worker = await comes(scene, 'a worker starts whose storage takes its time', ['worker'], { points });
  const { id } = await upload(scene);
  await worker.reached('worker.storing');
  const idle = await comes(scene, 'another worker stands by, with a free slot', ['worker']);
  const job = await checks.check('for more than two leases the slow one keeps its job: it renews', async () => {
    const begun = await jobOf(scene, id);
    const seen = await watch(scene, id, (job) => untilMs(job) - untilMs(begun) > 2.1 * leaseMs);
    const found = await jobOf(scene, id);
    assert.deepEqual([found.state, found.fence, found.attempts, found.crashes], ['processing', 1, 1, 0]);
    assert.ok(found.worker?.endsWith(`:${worker.pid}`));
    return { value: found, note: `job ${found.id}, ${seen} leases seen, fence 1, nobody took it over` };
  });
  await checks.check('then it finishes, at its first attempt', async () => {
    await letGo(worker);
    const shown = await untilReady(scene, author, id);
    assert.equal(shown.attempts, 1);
    return { value: undefined, note: `attachment ${id}; ${await assertWhole(scene, shown)}` };
  });
  await hasHistory(scene, job.id, ['accepted', 'claimed', 'settled']);
  await leave(worker, idle);
}

/** Looks at the job of the attachment until `isOver`, and quotes every lease that it saw. Answers the leases under fence 1. */
async function watch(scene: OperateScene, id: string, isOver: (job: SeenJob) => boolean): Promise<number> {
  const leases = new Map<string, SeenJob>();
  const look = async () => {
    const job = await jobOf(scene, id);
    leases.set(`${job.fence} ${job.lease_until}`, job);
    return isOver(job);
  };
  await within('the lease has gone its way', look);
  for (const job of leases.values()) scene.narration.quote(leaseLine(job));
  return [...leases.values()].filter(({ fence }) => fence === 1).length;
}

async function hung(scene: OperateScene): Promise<void> {
  const { checks, author } = scene;
  const points = { 'worker.stored': 'wait' } as const;
  const zombie = await comes(scene, 'a worker starts that will hang', ['worker'], { points });
  const { id } = await upload(scene);
  await zombie.reached('worker.stored');
  const other = await comes(scene, 'another worker stands by, with a free slot', ['worker']);
  await checks.check(
    'the first one is stopped by SIGSTOP in the middle of its attempt, all objects written',
    async () => {
      process.kill(zombie.pid, 'SIGSTOP');
      const found = await jobOf(scene, id);
      assert.deepEqual([found.state, found.fence], ['processing', 1]);
      return { value: undefined, note: `process ${zombie.pid}, job ${found.id}` };
    },
  );
  const before = await checks.check('nobody renews its lease: when it ends, the other one takes over', async () => {
    const seen = await watch(scene, id, ({ fence }) => fence > 1);
    assert.ok(seen <= 2, `no renewal but one that was on its way: ${seen} leases`);
    const shown = await untilReady(scene, author, id);
    const found = await jobOf(scene, id);
    assert.deepEqual([found.state, found.fence, found.attempts, found.crashes], ['succeeded', 2, 2, 1]);
    assert.ok(found.worker === null || found.worker.endsWith(`:${other.pid}`));
    return { value: { shown, job: found }, note: `attachment ${id} is ready under fence 2` };
  });
  await checks.check('it wakes by SIGCONT, with fence 1, and changes nothing', async () => {
    process.kill(zombie.pid, 'SIGCONT');
    await letGo(zombie);
    await within('it knows', () => zombie.output().includes('the attempt is broken off'));
    assert.deepEqual(await untilReady(scene, author, id), before.shown);
    assert.deepEqual(await jobOf(scene, id), before.job);
    return { value: undefined, note: await assertWhole(scene, before.shown) };
  });
  await hasHistory(scene, before.job.id, ['accepted', 'claimed', 'crashed', 'settled']);
  await leave(zombie, other);
}

/** Lets a process go on from where it was told to wait, and not wait there again. */
async function letGo(role: RoleProcess): Promise<void> {
  for (const point of ['worker.storing', 'worker.stored'] as const) {
    await role.disarm(point);
    await role.resume(point);
  }
}
