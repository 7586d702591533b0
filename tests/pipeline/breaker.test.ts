/** A breaker: nobody but a probe asks a dependency that is away, and use goes on by itself when it answers. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createSystemClock } from '../../src/drivers/clock-system.ts';
import { createBreaker } from '../../src/pipeline/breaker.ts';
import { BlobError } from '../../src/pipeline/ports.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { createPipeline } from '../support/pipeline.ts';
import { createTally, silent } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

const never = new AbortController().signal;

function scene(settings = { breakerFloorMs: 5, breakerCapMs: 40 }) {
  let up = false;
  let probes = 0;
  const probe = async () => {
    probes += 1;
    if (!up) throw new Error('away');
  };
  const meter = createTally();
  const breaker = createBreaker('storage', probe, { clock: createSystemClock(), log: silent, meter }, settings);
  return { breaker, meter, recover: () => (up = true), probes: () => probes };
}

test('a closed breaker lets everybody through and probes nothing', async () => {
  const { breaker, probes } = scene();
  await breaker.closed(never);
  assert.deepEqual([breaker.isOpen(), breaker.mayCloseInMs(), probes()], [false, 0, 0]);
});

test('an open breaker holds everybody until its probe answers, and then lets all go', async (t) => {
  const { breaker, recover, probes } = scene();
  t.after(() => breaker.end());
  breaker.trip();
  breaker.trip();
  let through = 0;
  const waiting = [1, 2, 3].map(() => breaker.closed(never).then(() => (through += 1)));
  await until('probed several times', () => probes() >= 3);
  assert.deepEqual([through, breaker.isOpen()], [0, true]);
  recover();
  await Promise.all(waiting);
  assert.deepEqual([through, breaker.isOpen()], [3, false]);
});

test('a breaker that closed may open again', async (t) => {
  const { breaker, recover } = scene();
  t.after(() => breaker.end());
  recover();
  for (let i = 0; i < 3; i += 1) {
    breaker.trip();
    assert.ok(breaker.isOpen());
    await breaker.closed(never);
  }
});

test('a breaker tells whether it is open from its beginning, how often it opened, and what it asked in vain', async (t) => {
  const { breaker, meter, recover, probes } = scene();
  t.after(() => breaker.end());
  const state = () => meter.gauged('breaker_open', { dependency: 'storage' });
  assert.deepEqual(state(), [0]);
  breaker.trip();
  breaker.trip();
  await until('probed twice', () => probes() >= 2);
  assert.deepEqual(state(), [0, 1]);
  recover();
  await breaker.closed(never);
  assert.deepEqual(state(), [0, 1, 0]);
  assert.equal(meter.counted('breaker_trips_total', { dependency: 'storage' }), 1);
  assert.equal(meter.counted('breaker_probes_failed_total', { dependency: 'storage' }), probes() - 1);
});

test('a breaker tells why its first probe failed, once for each time that it opens', async (t) => {
  const warnings: string[] = [];
  const log = {
    ...silent,
    warn: (fields: object, text: string) => void warnings.push(`${text} ${JSON.stringify(fields)}`),
  };
  let up = false;
  let probes = 0;
  const probe = async () => {
    probes += 1;
    if (!up) throw new Error('no space', { cause: new Error('ENOSPC') });
  };
  const quick = { breakerFloorMs: 1, breakerCapMs: 2 };
  const breaker = createBreaker('disk', probe, { clock: createSystemClock(), log, meter: createTally() }, quick);
  t.after(() => breaker.end());
  const told = [
    'breaker: open, the dependency is away {"dependency":"disk"}',
    'breaker: stays open, the probe failed {"dependency":"disk","error":"no space: ENOSPC"}',
  ];
  for (const times of [1, 2]) {
    up = false;
    breaker.trip();
    const before = probes;
    await until('probed several times', () => probes >= before + 4);
    up = true;
    await breaker.closed(never);
    assert.deepEqual(warnings, Array.from({ length: times }, () => told).flat());
  }
});

test('whoever ends is not held by an open breaker', async (t) => {
  const { breaker } = scene();
  t.after(() => breaker.end());
  breaker.trip();
  const stop = new AbortController();
  const waiting = breaker.closed(stop.signal);
  stop.abort();
  await waiting;
});

test('an ended breaker probes no more', async () => {
  const { breaker, probes } = scene({ breakerFloorMs: 60_000, breakerCapMs: 60_000 });
  breaker.trip();
  assert.ok(breaker.mayCloseInMs() > 40_000);
  breaker.end();
  await breaker.closed(never);
  assert.equal(probes(), 0);
});

test('while the storage is away a worker takes nothing, and what it had is released once and not spent', async (t) => {
  const p = await createPipeline(t, { renderConcurrency: 1 });
  const { attachment } = await p.upload('IMG 1');
  const down = { before: () => new BlobError('unavailable', 'away') };
  p.blobs.plan('open', down);
  p.blobs.plan('health', ...Array.from({ length: 4 }, () => down));
  p.startRelay();
  p.startWorker();
  await until('probed', () => p.blobs.calls('health') >= 4);
  assert.equal(p.store.calls('claim'), 1);
  await p.untilState(attachment.id, 'ready');
  const job = await p.jobOf(attachment.id);
  assert.deepEqual([job.attempts, job.failures, job.crashes, job.releases], [2, 0, 0, 1]);
});

test('while the store is away a worker takes nothing and a relay announces nothing', async (t) => {
  const p = await createPipeline(t, { renderConcurrency: 1 });
  const away = { before: () => new StoreError('unavailable', 'away') };
  p.store.plan('claim', away);
  p.store.plan('health', ...Array.from({ length: 4 }, () => away));
  const { attachment } = await p.upload('IMG 1');
  p.startRelay();
  p.startWorker();
  await until('probed', () => p.store.calls('health') >= 4);
  assert.equal(p.store.calls('claim'), 1);
  const announced = p.memory.published().length;
  assert.equal(announced, 1);
  await p.untilState(attachment.id, 'ready');
});
