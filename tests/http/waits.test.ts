/** Long-polls without a server, on a clock that a test moves: what wakes a waiter, and what it leaves behind. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { createWaits } from '../../src/http/waits.ts';
import type { Clock, Signals } from '../../src/pipeline/ports.ts';
import { until } from '../support/until.ts';

/** Sleeps end when the test says so, or by their signal. */
function createStage() {
  let nowMs = 0;
  const sleepers = new Set<{ untilMs: number; wake: () => void }>();
  const clock: Pick<Clock, 'monotonicMs' | 'sleep'> = {
    monotonicMs: () => nowMs,
    sleep: (ms, signal) =>
      new Promise((resolve) => {
        if (signal?.aborted) return resolve();
        const sleeper = { untilMs: nowMs + ms, wake };
        function wake() {
          sleepers.delete(sleeper);
          resolve();
        }
        sleepers.add(sleeper);
        signal?.addEventListener('abort', wake);
      }),
  };
  const listeners = new Set<(id: string | null) => void>();
  const signals: Pick<Signals, 'listen'> = {
    listen(_topic, listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
  return {
    waits: createWaits({ clock: clock as Clock, signals: signals as Signals }, { waitsMax: 3, waitsPerUserMax: 2 }),
    listeners,
    asleep: (count: number) => until(`${count} asleep`, () => sleepers.size === count),
    tell: (id: string | null) => {
      for (const listener of listeners) listener(id);
    },
    pass(ms: number) {
      nowMs += ms;
      for (const sleeper of [...sleepers]) if (sleeper.untilMs <= nowMs) sleeper.wake();
    },
  };
}

/** A state that a test sets, and how often it was looked at. */
function createSubject() {
  const subject = {
    state: 'queued',
    looks: 0,
    async look() {
      subject.looks += 1;
      return subject.state;
    },
  };
  return subject;
}

const isReady = (state: string) => state === 'ready';
const never = () => new AbortController().signal;

describe('a waiter', () => {
  it('is woken by the signal of its attachment alone, without the backstop', async () => {
    const { waits, asleep, tell } = createStage();
    const [one, other] = [createSubject(), createSubject()];
    const waiting = waits.until('one', one.look, isReady, { waitMs: 30_000, signal: never() });
    void waits.until('other', other.look, isReady, { waitMs: 30_000, signal: never() });
    await asleep(2);
    one.state = 'ready';
    tell('one');
    assert.equal(await waiting, 'ready');
    assert.deepEqual([one.looks, other.looks], [2, 1]);
    waits.close();
  });

  it('is woken by a signal that names nobody', async () => {
    const { waits, asleep, tell } = createStage();
    const subject = createSubject();
    const waiting = waits.until('one', subject.look, isReady, { waitMs: 30_000, signal: never() });
    await asleep(1);
    subject.state = 'ready';
    tell(null);
    assert.equal(await waiting, 'ready');
  });

  it('misses no change between its look and its sleep', async () => {
    const { waits, tell } = createStage();
    let looks = 0;
    const look = async () => {
      looks += 1;
      if (looks > 1) return 'ready';
      // The change comes after the database has answered and before anybody sleeps.
      tell('one');
      return 'queued';
    };
    assert.equal(await waits.until('one', look, isReady, { waitMs: 30_000, signal: never() }), 'ready');
  });

  it('looks once a second without a signal, and answers what it saw when its time is over', async () => {
    const { waits, asleep, pass } = createStage();
    const subject = createSubject();
    const waiting = waits.until('one', subject.look, isReady, { waitMs: 3500, signal: never() });
    for (const ms of [1000, 1000, 1000, 500]) {
      await asleep(1);
      pass(ms);
    }
    assert.equal(await waiting, 'queued');
    assert.equal(subject.looks, 5);
  });

  it('ends with its signal, with the server, and at once after that', async () => {
    const { waits, asleep, listeners } = createStage();
    const subject = createSubject();
    const gone = new AbortController();
    const first = waits.until('one', subject.look, isReady, { waitMs: 30_000, signal: gone.signal });
    const second = waits.until('one', subject.look, isReady, { waitMs: 30_000, signal: never() });
    await asleep(2);
    gone.abort();
    assert.equal(await first, 'queued');
    waits.close();
    assert.equal(await second, 'queued');
    assert.equal(await waits.until('one', subject.look, isReady, { waitMs: 30_000, signal: never() }), 'queued');
    assert.equal(listeners.size, 0);
  });

  it('passes on what a look throws', async () => {
    const { waits } = createStage();
    const look = () => Promise.reject(new Error('down'));
    await assert.rejects(
      waits.until('one', look, () => true, { waitMs: 1000, signal: never() }),
      /down/,
    );
  });
});

describe('a place to wait in', () => {
  it('is had by as many of a user, and as many of all, as is allowed, and again by others when it was left', () => {
    const { waits } = createStage();
    const [first, second] = [waits.enter('ada'), waits.enter('ada')];
    assert.equal(waits.enter('ada'), null);
    const third = waits.enter('bob');
    assert.equal(waits.enter('bob'), null);
    assert.ok(first && second && third);
    first.leave();
    assert.ok(waits.enter('bob'));
    assert.equal(waits.enter('ada'), null);
    third.leave();
    assert.ok(waits.enter('ada'));
    waits.close();
  });
});
