/** How a process ends: in order, within its time, and at once when something is wrong. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import test from 'node:test';
import { createLifecycle } from '../src/lifecycle.ts';

function prepare({ graceMs = 60_000 } = {}) {
  const lines: string[] = [];
  const exits: number[] = [];
  const keep = (_: object, text: string) => lines.push(text);
  const source = new EventEmitter();
  const lifecycle = createLifecycle(
    { log: { debug: keep, info: keep, warn: keep, error: keep } },
    { graceMs, source, exit: (code) => exits.push(code) },
  );
  return { lines, exits, source, lifecycle };
}

const untilAborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener('abort', () => resolve());
  });

test('what was registered last is stopped first, each after the other has ended, and the code is 0', async () => {
  const { source, lifecycle } = prepare();
  const order: string[] = [];
  for (const name of ['first', 'second', 'third']) {
    lifecycle.onStop(name, async () => {
      order.push(`${name} begins`);
      await new Promise(setImmediate);
      order.push(`${name} ends`);
    });
  }
  assert.equal(lifecycle.draining.aborted, false);
  source.emit('SIGTERM');
  assert.equal(lifecycle.draining.aborted, true);
  assert.equal(await lifecycle.ended, 0);
  const expected = ['third', 'second', 'first'].flatMap((name) => [`${name} begins`, `${name} ends`]);
  assert.deepEqual(order, expected);
});

for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP']) {
  test(`${name} lets steps finish what runs, a second one makes them hurry`, async (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const { source, lifecycle } = prepare();
    let hurried = false;
    lifecycle.onStop('work', async (hurry) => {
      await untilAborted(hurry);
      hurried = true;
    });
    source.emit(name);
    t.mock.timers.tick(1_500);
    await new Promise(setImmediate);
    assert.equal(hurried, false);
    source.emit(name);
    assert.equal(await lifecycle.ended, 0);
    assert.equal(hurried, true);
  });
}

test('a signal that two senders pass on is one: what comes within a second and a half of the first does not hurry', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { source, lifecycle, lines } = prepare();
  const { promise, resolve: finish } = Promise.withResolvers<void>();
  let hurried = false;
  lifecycle.onStop('work', async (hurry) => {
    await Promise.race([promise, untilAborted(hurry)]);
    hurried = hurry.aborted;
  });
  source.emit('SIGINT');
  source.emit('SIGINT');
  t.mock.timers.tick(1_499);
  source.emit('SIGTERM');
  finish();
  assert.equal(await lifecycle.ended, 0);
  assert.equal(hurried, false);
  assert.deepEqual(lines, ['stopping', 'stopped']);
});

test('steps are made to hurry when the grace time is over', async () => {
  const { source, lifecycle } = prepare({ graceMs: 20 });
  lifecycle.onStop('work', untilAborted);
  source.emit('SIGTERM');
  assert.equal(await lifecycle.ended, 0);
});

test('a process whose supervisor is gone drains in a hurry', async () => {
  const { source, lifecycle } = prepare();
  lifecycle.onStop('work', untilAborted);
  source.emit('disconnect');
  assert.equal(await lifecycle.ended, 0);
});

test('a step that fails does not keep the others from stopping, and the code is 1', async () => {
  const { source, lifecycle, lines } = prepare();
  let stopped = false;
  lifecycle.onStop('first', async () => {
    stopped = true;
  });
  lifecycle.onStop('second', async () => {
    throw new Error('broken');
  });
  source.emit('SIGTERM');
  assert.equal(await lifecycle.ended, 1);
  assert.equal(stopped, true);
  assert.ok(lines.includes('a step of the shutdown failed'));
});

test('a step that never ends cannot hold the process for ever', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { source, lifecycle } = prepare({ graceMs: 1_000 });
  lifecycle.onStop('stuck', () => new Promise(() => {}));
  source.emit('SIGTERM');
  t.mock.timers.tick(1_000);
  // The last resort is armed in the turn after the grace time ended.
  await new Promise(setImmediate);
  t.mock.timers.tick(10_000);
  assert.equal(await lifecycle.ended, 1);
});

test('what is registered during the drain is stopped as well', async () => {
  const { source, lifecycle } = prepare();
  const stopped: string[] = [];
  lifecycle.onStop('first', async () => {
    stopped.push('first');
    lifecycle.onStop('late', async () => {
      stopped.push('late');
    });
  });
  source.emit('SIGTERM');
  assert.equal(await lifecycle.ended, 0);
  assert.deepEqual(stopped, ['first', 'late']);
});

for (const name of ['uncaughtException', 'unhandledRejection']) {
  test(`an ${name} is logged and ends the process with 1 at once`, () => {
    const { source, exits, lines } = prepare();
    source.emit(name, new Error('broken'));
    assert.deepEqual(exits, [1]);
    assert.ok(lines.includes('uncaught error'));
  });
}
