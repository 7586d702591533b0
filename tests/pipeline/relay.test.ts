/** Step 2, relay: every due bell reaches the broker, whatever dies or lies in between. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decodeRing } from '../../src/pipeline/job.ts';
import { BrokerError } from '../../src/pipeline/ports.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { createPipeline } from '../support/pipeline.ts';
import { until } from '../support/until.ts';

const unknown = () => new BrokerError('unknown', 'no confirmation');
const unavailable = () => new BrokerError('unavailable', 'refused');

test('an accepted job is announced, marked, and its next bell set later', async (t) => {
  const p = await createPipeline(t);
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  const job = await until('marked', async () => {
    const row = await p.jobOf(attachment.id);
    return row.confirmed === 1 && row;
  });
  assert.deepEqual(p.memory.published(), [`${job.id}:1`]);
  assert.ok(job.rung_at);
  assert.ok(job.ring_at > job.rung_at);
});

test('a poke by accept ends the idle wait', async (t) => {
  const p = await createPipeline(t, { takenMs: 60_000, reringMs: 60_000, reringCapMs: 60_000 });
  p.startRelay();
  await until('the relay is idle', () => p.store.calls('untilDueMs') >= 4);
  const calls = p.store.calls('untilDueMs');
  await p.upload('IMG 1');
  await until('published', () => p.memory.published().length === 1, { deadlineMs: 1500 });
  assert.ok(p.store.calls('untilDueMs') >= calls);
});

test('a publish that was not confirmed rings again when its taking ends', async (t) => {
  for (const fault of [unknown, unavailable]) {
    const p = await createPipeline(t, { takenMs: 200 });
    p.broker.plan('publish', { before: fault });
    const { attachment } = await p.upload('IMG 1');
    p.startRelay();
    const job = await until('marked', async () => {
      const row = await p.jobOf(attachment.id);
      return row.confirmed === 1 && row;
    });
    assert.equal(job.rings, 2);
  }
});

test('a mark that was lost rings once more and no harm is done', async (t) => {
  const p = await createPipeline(t, { takenMs: 150 });
  p.store.plan('markRung', { before: () => new StoreError('unavailable', 'gone') });
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  p.startWorker();
  await p.untilState(attachment.id, 'ready');
  assert.equal((await p.jobOf(attachment.id)).attempts, 1);
});

test('an outage of the broker spends no attempts and wears few bells out', async (t) => {
  const p = await createPipeline(t, { takenMs: 100 });
  p.memory.stop();
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  p.startWorker();
  await until('several probes failed', () => p.meter.counted('breaker_probes_failed_total') >= 4);
  assert.equal(p.meter.counted('relay_faults_total'), 1, 'only a probe asks a broker that is away');
  p.memory.start();
  await p.untilState(attachment.id, 'ready');
  const job = await p.jobOf(attachment.id);
  assert.equal(job.attempts, 1);
  assert.equal(job.failures, 0);
});

test('a store that is away for a while is asked again', async (t) => {
  const p = await createPipeline(t);
  p.store.plan(
    'takeDue',
    ...Array.from({ length: 3 }, () => ({ before: () => new StoreError('unavailable', 'gone') })),
  );
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  await until('marked', async () => (await p.jobOf(attachment.id)).confirmed === 1);
});

test('a broker that lost everything gets the announced jobs again at once', async (t) => {
  const p = await createPipeline(t, { reringMs: 60_000, reringCapMs: 60_000, starvedMs: 60_000 });
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  await until('marked', async () => (await p.jobOf(attachment.id)).confirmed === 1);
  p.memory.wipe();
  p.startWorker();
  await p.untilState(attachment.id, 'ready');
});

test('a job that nobody claims rings again, less and less often', async (t) => {
  const p = await createPipeline(t, { reringMs: 100, reringCapMs: 100_000 });
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  const job = await until('rung four times', async () => {
    const row = await p.jobOf(attachment.id);
    return row.confirmed === 4 && row;
  });
  const waitMs = job.ring_at - job.rung_at;
  assert.ok(waitMs >= 0.8 * 800 - 100 && waitMs <= 1.2 * 800 + 500, `waits ${waitMs} ms`);
  assert.deepEqual(
    p.memory.published().map((id) => id.split(':')[1]),
    ['1', '2', '3', '4'],
  );
});

test('no more jobs are announced and unclaimed than the window has places', async (t) => {
  const p = await createPipeline(t, { brokerWindow: 3, reringMs: 60_000, reringCapMs: 60_000 });
  for (let i = 0; i < 8; i += 1) await p.upload(`IMG ${i}`);
  p.startRelay();
  await until('the window is full and the relay idle', async () => {
    return p.memory.published().length === 3 && p.store.calls('untilDueMs') > 3;
  });
  assert.equal(await p.store.port.countAnnounced(), 3);
  // Due jobs without a place are no reason to ask all the time.
  const startedMs = p.clock.monotonicMs();
  const calls = p.store.calls('takeDue');
  await until('asked four times more', () => p.store.calls('takeDue') >= calls + 4);
  assert.ok(p.clock.monotonicMs() - startedMs >= 400, 'a full window must not make the relay hot');
  p.startWorker();
  await until(
    'all are ready',
    async () => (await p.pool.query(`select 1 from attachments where state = 'ready'`)).rowCount === 8,
  );
});

test('a message has ids and a trace context only, never the user, the name or the bytes', async (t) => {
  const p = await createPipeline(t);
  await p.upload('IMG secret bytes', { fileName: 'secret name.jpg' });
  const bodies: Uint8Array[] = [];
  p.broker.plan('publish', { first: async (args) => void bodies.push(args[1] as Uint8Array) });
  p.startRelay();
  await until('published', () => bodies.length === 1);
  const text = Buffer.from(bodies[0] ?? []).toString();
  assert.ok(decodeRing(bodies[0] ?? new Uint8Array()));
  assert.doesNotMatch(text, /secret|jpg|IMG/);
  assert.ok(!text.includes(p.user));
});
