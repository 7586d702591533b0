/** Step 2, relay: every due bell reaches the broker, whatever dies or lies in between. */
import assert from 'node:assert/strict';
import { describe, it, type TestContext, test } from 'node:test';
import { newId } from '../../src/ids.ts';
import { decodeRing } from '../../src/pipeline/job.ts';
import { BrokerError } from '../../src/pipeline/ports.ts';
import { createRelay, type RelayDeps } from '../../src/pipeline/relay.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { createPipeline } from '../support/pipeline.ts';
import { createPainter, createTally, silent, takes } from '../support/ports-fake.ts';
import { addUser } from '../support/store.ts';
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

test('a job that is claimed soon is never marked: its row is written once less', async (t) => {
  const p = await createPipeline(t, { takenMs: 16_000, publishTimeoutMs: 1_000 });
  p.startRelay();
  p.startWorker();
  const { attachment } = await p.upload('IMG 1');
  await p.untilState(attachment.id, 'ready');
  await until('its time is over', () => p.meter.counted('bells_rung_total') === 1);
  assert.equal(p.meter.counted('bells_rung_total', { marked: 'false' }), 1);
});

test('a relay that stops marks what it has announced, without waiting for its time', async (t) => {
  const p = await createPipeline(t, { takenMs: 16_000, publishTimeoutMs: 1_000 });
  const end = p.startRelay();
  const { attachment } = await p.upload('IMG 1');
  await until('published', () => p.memory.published().length === 1);
  await end();
  assert.equal((await p.jobOf(attachment.id)).confirmed, 1);
});

test('what was confirmed is marked while the broker refuses what came with it', async (t) => {
  const p = await createPipeline(t, { takenMs: 16_000, publishTimeoutMs: 1_000 });
  const ids = [await p.upload('IMG 1'), await p.upload('IMG 2')].map(({ attachment }) => attachment.id);
  p.broker.plan('health', ...Array.from({ length: 1000 }, () => ({ before: unavailable })));
  // One of two that are announced at once, before anything is due to be marked.
  p.broker.plan('publish', { first: async () => {} }, { before: unavailable });
  p.startRelay();
  await until('one is marked', async () => {
    const jobs = await Promise.all(ids.map(p.jobOf));
    return jobs.filter(({ confirmed }) => confirmed === 1).length === 1;
  });
  assert.equal(p.meter.gauged('breaker_open', { dependency: 'broker' }).at(-1), 1);
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

describe('the window', () => {
  const still = { takenMs: 60_000, reringMs: 60_000, reringCapMs: 60_000 };
  type Pipeline = Awaited<ReturnType<typeof createPipeline>>;

  /** Jobs that wait, or that were claimed and are over: `claimed_at` in the future is recent for the whole test. */
  const addJobs = (p: Pipeline, count: number, state: 'queued' | 'succeeded') =>
    p.pool.query(
      `with attachment as (
         insert into attachments (id, owner_id, state, kind, file_name, content_type, size, sha256, staging_key)
         select gen_random_uuid(), $1, 'queued', 'image', 'a', 'image/png', 1, repeat('0', 64), 'staging/x'
         from generate_series(1, $2)
         returning id
       )
       insert into jobs (id, attachment_id, owner_id, version, state, ring_at, finished_at, claimed_at)
       select gen_random_uuid(), id, $1, 1, $3, case when $3 = 'queued' then now() end,
         case when $3 = 'succeeded' then now() end, case when $3 = 'succeeded' then now() + interval '1 minute' end
       from attachment`,
      [p.user, count, state],
    );
  const announced = (p: Pipeline, count: number) =>
    until(`${count} are announced`, async () => (await p.store.port.countAnnounced()) === count);

  it('has 32 places at first, two seconds of claims once there are some, and never more than BROKER_WINDOW', async (t) => {
    const p = await createPipeline(t, { ...still, brokerWindow: 60 });
    await addJobs(p, 100, 'queued');
    p.startRelay();
    await announced(p, 32);
    // 110 claims in five seconds.
    await addJobs(p, 110, 'succeeded');
    await announced(p, 44);
    await addJobs(p, 1_000, 'succeeded');
    await announced(p, 60);
    const paces = p.store.calls('recentPace');
    await until('the pace was asked for again', () => p.store.calls('recentPace') >= paces + 2);
    assert.equal(await p.store.port.countAnnounced(), 60);
  });

  it('is small enough for another user’s upload to be done before a flood of one user is over', async (t) => {
    const slow = createPainter(() => takes(30));
    const p = await createPipeline(t, { ...still, renderConcurrency: 1 }, slow);
    const flood = 150;
    for (let one = 0; one < flood; one += 10) {
      await Promise.all(Array.from({ length: 10 }, (_, lane) => p.upload(`IMG ${one + lane}`)));
    }
    p.startRelay();
    p.startWorker();
    const left = async () =>
      (await p.pool.query(`select from attachments where owner_id = $1 and state = 'queued'`, [p.user])).rowCount ?? 0;
    await until('the flood is under way', async () => (await left()) <= flood - 3);
    const userId = await addUser(p.pool, 'newcomer');
    const { attachment } = await p.upload('IMG of another', { userId });
    await until('the newcomer is served', async () => {
      return (await p.store.port.attachmentFor(userId, attachment.id))?.state === 'ready';
    });
    assert.ok((await left()) >= flood / 3, `${await left()} of the flood still wait`);
  });
});

describe('the pause of a relay', () => {
  /** A relay on a store that takes what the script says, round by round, and a clock that notes how long it is asked to sleep. */
  async function pausesOf(
    t: TestContext,
    script: readonly number[],
    options: { dueMs: number; pokes?: boolean; takenMs?: number; looksMs?: number },
  ) {
    const stop = new AbortController();
    t.after(() => stop.abort());
    const sleeps: number[] = [];
    let poke = () => {};
    let at = 0;
    let slept = 0;
    let laterMs = 0;
    const taken = (count: number) =>
      Array.from({ length: count }, () => ({ jobId: newId(), ring: 1, traceparent: null, again: false }));
    const always = { closed: async () => {}, isOpen: () => false, trip() {} };
    const deps = {
      store: {
        takeDue: async () => {
          if (at === script.length) stop.abort();
          return taken(script[at++] ?? 0);
        },
        untilDueMs: async () => {
          laterMs += options.looksMs ?? 0;
          return options.dueMs;
        },
        recentPace: async () => ({ waitMs: 0, claimsPerSecond: 0 }),
        markRung: async () => true,
      },
      broker: { publish: async () => {}, onDisrupted: () => () => {} },
      signals: {
        listen: (_topic: string, listener: () => void) => {
          poke = listener;
          return () => {};
        },
      },
      breakers: { store: always, broker: always },
      clock: {
        monotonicMs: () => performance.now() + laterMs,
        random: () => 0.5,
        sleep: async (ms: number, signal: AbortSignal) => {
          sleeps.push(ms);
          if (options.pokes) poke();
          if (signal.aborted) slept += 1;
        },
      },
      log: silent,
      meter: createTally(),
      reach: async () => {},
    };
    const settings = { brokerWindow: 1000, publishTimeoutMs: 1, takenMs: 1, reringMs: 1, reringCapMs: 1 };
    if (options.takenMs) settings.takenMs = options.takenMs;
    await createRelay(deps as unknown as RelayDeps, settings).run(stop.signal);
    return { sleeps: sleeps.slice(0, -1), woken: slept };
  }

  it('with a full window is short while workers claim fast, and doubles up to the idle floor while they do not', async (t) => {
    const fast = [32, 0, 10, 0, 8, 0];
    const slow = [7, 0, 1, 0, 0, 0, 0, 0, 0];
    const { sleeps } = await pausesOf(t, [...fast, ...slow, 20, 0], { dueMs: 0 });
    assert.deepEqual(sleeps, [10, 10, 10, 20, 40, 80, 160, 200, 200, 200, 10]);
  });

  it('is the time to the next bell when none is due', async (t) => {
    const { sleeps } = await pausesOf(t, [3, 0, 0, 0], { dueMs: 137 });
    assert.deepEqual(sleeps, [137, 137, 137]);
  });

  it('is none, and never less, when the marks of what was confirmed have become due while it asked', async (t) => {
    const { sleeps } = await pausesOf(t, [3, 0, 0], { dueMs: 137, takenMs: 8_000, looksMs: 1_500 });
    assert.deepEqual(sleeps, [0, 137]);
  });

  it('ends with a new bell when none was due, and not while the window is full: there is no place for it', async (t) => {
    const idle = await pausesOf(t, [0, 0, 0], { dueMs: 137, pokes: true });
    assert.ok(idle.woken >= 3);
    const full = await pausesOf(t, [0, 0, 0], { dueMs: 0, pokes: true });
    assert.equal(full.woken, 1, 'only by the stop that ends this test');
  });
});
