/** The arithmetic of the experiment with overload: from what was recorded to figures, and when there are none. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type Calibration, noiseIn, noiseLimits } from '../../bench/overload/calibration.ts';
import { patienceOf } from '../../bench/overload/crowd.ts';
import {
  type Fate,
  keptOf,
  lagOf,
  percentilesOf,
  ratePerSecond,
  readPerRefusal,
  refusalsIn,
  sharesOf,
  takenOf,
} from '../../bench/overload/figures.ts';
import type { Sent } from '../../bench/overload/load-process.ts';
import type { Try } from '../../bench/overload/sending.ts';
import type { Spent } from '../../bench/overload/watch.ts';

const tryOf = (sentAt: number, rest: Partial<Try>): Try => ({
  ...{ sentAt, answeredAt: sentAt + 10, status: 503, code: 'overloaded', retryAfterSeconds: 2, id: null, bodyBytes: 0 },
  ...rest,
});
const accepted = (sentAt: number, id: string, tookMs = 10): Try =>
  tryOf(sentAt, { status: 202, code: null, retryAfterSeconds: null, id, answeredAt: sentAt + tookMs });
const sentOf = (intendedAt: number, tries: readonly Try[], rest: Partial<Sent> = {}): Sent => ({
  ...{ user: 0, expect: false, intendedAt, sha256: 'digest', size: 1000, tries },
  ...rest,
});
const fateOf = (id: string, rest: Partial<Fate> = {}): [string, Fate] => [
  id,
  { ...{ id, state: 'ready', errorCode: null, sha256: 'digest', readyAt: 500, rings: 1, attempts: 1 }, ...rest },
];

describe('latency', () => {
  test('counts from the intended moment, however late the sender was', () => {
    const { acceptMs, readyMs, senderLateMs } = takenOf([sentOf(100, [accepted(140, 'a')])], new Map([fateOf('a')]));
    assert.equal(acceptMs?.p50, 50);
    assert.equal(readyMs?.p50, 400);
    assert.equal(senderLateMs?.max, 40);
  });

  test('of refusals stands apart from that of the 202', () => {
    const taken = takenOf([sentOf(0, [accepted(0, 'a', 30)]), sentOf(0, [tryOf(0, { answeredAt: 7 })])], new Map());
    assert.deepEqual([taken.acceptMs?.count, taken.acceptMs?.max], [1, 30]);
    assert.deepEqual([taken.refusals.latencyMs?.count, taken.refusals.latencyMs?.max], [1, 7]);
  });

  test('of nothing is no figure', () => {
    assert.equal(percentilesOf([]), null);
    assert.equal(takenOf([], new Map()).readyMs, null);
  });
});

describe('refusals', () => {
  test('are told by code, with those that came without Retry-After and the bytes that were sent before them', () => {
    const refusals = refusalsIn([
      sentOf(0, [tryOf(0, {})], { expect: true }),
      sentOf(0, [tryOf(0, { bodyBytes: 300 })]),
      sentOf(0, [tryOf(0, { status: 0, code: 'ECONNRESET', retryAfterSeconds: null, bodyBytes: 900 })]),
      sentOf(0, [accepted(0, 'a')]),
    ]);
    assert.equal(refusals.count, 3);
    assert.deepEqual(refusals.codes, { '503 overloaded': 2, '0 ECONNRESET': 1 });
    assert.equal(refusals.withoutRetryAfter, 1);
    assert.equal(refusals.bodyBytesAsked?.max, 0);
    assert.equal(refusals.bodyBytesUnasked?.max, 900);
  });

  test('cost what the API read beyond the accepted bodies and what belongs to those', () => {
    const sent = [sentOf(0, [accepted(0, 'a')]), sentOf(0, [tryOf(0, {})]), sentOf(0, [tryOf(0, {})])];
    assert.equal(readPerRefusal(sent, 1000 + 50 + 2 * 64, 50), 64);
    assert.equal(readPerRefusal(sent.slice(0, 1), 1050, 50), null);
  });
});

describe('a rate', () => {
  test('is gaps divided by time, so a window that cuts one changes nothing', () => {
    const moments = [0, 250, 500, 750, 1000, 1250];
    assert.equal(ratePerSecond(moments, 0, 1249), 4);
    assert.equal(ratePerSecond(moments, 1, 1400), 4);
  });

  test('of fewer than three events is no figure', () => {
    assert.equal(ratePerSecond([0, 100], 0, 200), null);
  });
});

describe('what was accepted', () => {
  test('is kept when it is ready or failed with the digest of what was sent, and lost otherwise', () => {
    const ids = ['ready', 'failed', 'other bytes', 'unfinished', 'gone'];
    const fates = new Map([
      fateOf('ready', { rings: 3 }),
      fateOf('failed', { state: 'failed', errorCode: 'corrupt_image', readyAt: null }),
      fateOf('other bytes', { sha256: 'another' }),
      fateOf('unfinished', { state: 'queued', readyAt: null }),
    ]);
    const kept = keptOf([...ids.map((id) => sentOf(0, [accepted(0, id)])), sentOf(0, [tryOf(0, {})])], fates);
    assert.equal(kept.ready, 1);
    assert.deepEqual(kept.failed, { corrupt_image: 1 });
    assert.deepEqual(kept.lost, ['other bytes', 'unfinished', 'gone']);
    assert.equal(kept.ringsPerJob, 1.5);
  });
});

describe('the lag of the queue', () => {
  test('is the deepest, the oldest and the most unfinished of its samples', () => {
    const lag = lagOf([
      { atMs: 0, queued: 5, processing: 2, oldestMs: 100 },
      { atMs: 200, queued: 8, processing: 1, oldestMs: 900 },
    ]);
    assert.deepEqual([lag.depthMax, lag.ageMsMax, lag.unfinishedMax], [8, 900, 9]);
  });
});

describe('shares of the cores', () => {
  test('leave to others what nobody of ours accounts for', () => {
    const spent = (ms: number): Spent => ({
      ...{ atMs: ms, api: ms * 0.2, worker: 0, children: ms, postgres: 0, broker: 0, load: ms * 0.1, watcher: 0 },
      ...{ machine: ms * 1.5, apiReadBytes: 0 },
    });
    const shares = sharesOf(spent(0), spent(1000), 2);
    assert.equal(shares.children, 0.5);
    assert.equal(shares.others, 0.1);
  });
});

describe('patience', () => {
  test('is how many were accepted the first time they came back, and what they were told beside what they needed', () => {
    const sent = [
      sentOf(0, [accepted(0, 'a')]),
      sentOf(0, [tryOf(0, { retryAfterSeconds: 1 }), accepted(1010, 'b')]),
      sentOf(0, [tryOf(0, { retryAfterSeconds: 1 }), tryOf(1010, { retryAfterSeconds: 3 }), accepted(4020, 'c')]),
    ];
    const fates = new Map([fateOf('a'), fateOf('b', { readyAt: 1500 }), fateOf('c', { readyAt: 6000 })]);
    const patience = patienceOf(sent, fates);
    assert.deepEqual([patience.clients, patience.refusedAtFirst, patience.acceptedAtFirstReturn], [3, 2, 0.5]);
    assert.equal(patience.toldSeconds?.max, 1);
    assert.equal(patience.neededSeconds?.max, 4.02);
    assert.equal(patience.readyPerSecond, 0.5);
    assert.equal(patience.acceptedShare, 1);
  });
});

describe('noise', () => {
  const first: Calibration = { loopMs: 100, fsyncMs: 0.5 };
  const quiet = { before: first, after: first, othersShare: 0.01 };

  test('is nothing on a machine that stays as it was', () => {
    assert.deepEqual(noiseIn(first, quiet), []);
  });

  test('is a loop or fsyncs that take longer or shorter than at the beginning, before or after', () => {
    for (const when of ['before', 'after'] as const) {
      for (const factor of [noiseLimits.loop * 1.01, 1 / (noiseLimits.loop * 1.01)]) {
        const noise = noiseIn(first, { ...quiet, [when]: { ...first, loopMs: first.loopMs * factor } });
        assert.equal(noise.length, 1);
        assert.match(noise[0] ?? '', new RegExp(`loop ${when}`));
      }
      const slow = { ...first, fsyncMs: first.fsyncMs * noiseLimits.fsync * 1.01 };
      assert.match(noiseIn(first, { ...quiet, [when]: slow })[0] ?? '', new RegExp(`fsyncs ${when}`));
    }
  });

  test('is time on the cores that nobody of ours accounts for', () => {
    assert.match(
      noiseIn(first, { ...quiet, othersShare: noiseLimits.othersShare + 0.01 })[0] ?? '',
      /others took 13 %/,
    );
  });
});
