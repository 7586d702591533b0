/** What a job is: retry delays, the end of budgets, and the message that rings a bell. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId, newTraceparent } from '../../src/ids.ts';
import { decodeRing, encodeRing, endsJob, retryDelayMs, ringId } from '../../src/pipeline/job.ts';

const retry = { floorMs: 1000, baseMs: 2000, capMs: 300_000 };
const budgets = { attemptsMax: 5, crashesMax: 3 };

test('a retry waits at least the floor, however the dice fall', () => {
  for (let failures = 0; failures < 6; failures += 1) assert.equal(retryDelayMs(failures, retry, 0), 1000);
});

test('the ceiling of a retry doubles with each failure and ends at the cap', () => {
  const ceilings = [0, 1, 2, 3, 10, 1000].map((failures) => retryDelayMs(failures, retry, 0.999999999) - 1000);
  assert.deepEqual(ceilings, [1999, 3999, 7999, 15999, 299_999, 299_999]);
});

test('retries are drawn from the whole range: full jitter', () => {
  assert.equal(retryDelayMs(2, retry, 0.25), 1000 + 2000);
  assert.equal(retryDelayMs(2, retry, 0.75), 1000 + 6000);
});

test('a permanent code ends a job at its first failure', () => {
  for (const code of [
    'corrupt_image',
    'too_many_pixels',
    'too_many_frames',
    'staging_lost',
    'staging_corrupt',
  ] as const) {
    assert.equal(endsJob(code, 1, 0, budgets), true, code);
  }
});

test('a render that hung, crashed or ate memory is tried once more and no oftener', () => {
  for (const code of ['render_timeout', 'render_memory', 'render_crashed'] as const) {
    assert.equal(endsJob(code, 1, 1, budgets), false, code);
    assert.equal(endsJob(code, 2, 2, budgets), true, code);
  }
});

test('a transient code is retried until the attempts are spent', () => {
  for (const code of ['storage_unavailable', 'internal'] as const) {
    assert.equal(endsJob(code, 4, 0, budgets), false, code);
    assert.equal(endsJob(code, 5, 0, budgets), true, code);
  }
});

test('a ring comes back from its message as it was, in under 1 KiB', () => {
  for (const traceparent of [null, newTraceparent()]) {
    const ring = { jobId: newId(), ring: 2 ** 31, traceparent };
    const bytes = encodeRing(ring);
    assert.deepEqual(decodeRing(bytes), ring);
    assert.ok(bytes.length < 1024);
  }
});

test('a message carries ids and a trace context, and nothing else', () => {
  const body = JSON.parse(
    Buffer.from(encodeRing({ jobId: newId(), ring: 1, traceparent: newTraceparent() })).toString(),
  );
  assert.deepEqual(Object.keys(body), ['v', 'job', 'ring', 'traceparent']);
});

test('message ids differ from ring to ring of one job', () => {
  const jobId = newId();
  assert.notEqual(ringId({ jobId, ring: 1, traceparent: null }), ringId({ jobId, ring: 2, traceparent: null }));
});

test('what is no ring is recognised as none', () => {
  const job = newId();
  const none = [
    '',
    'x',
    '[]',
    'null',
    '{}',
    `{"v":2,"job":"${job}","ring":1}`,
    `{"v":1,"job":"../x","ring":1}`,
    `{"v":1,"job":"${job}","ring":0}`,
    `{"v":1,"job":"${job}","ring":1.5}`,
    `{"v":1,"job":"${job}","ring":"1"}`,
  ];
  for (const text of none) assert.equal(decodeRing(Buffer.from(text)), null, text);
  assert.equal(decodeRing(Buffer.from(`{"v":1,"job":"${job}","ring":1,"pad":"${'x'.repeat(1024)}"}`)), null);
  assert.equal(decodeRing(Buffer.from([0xff, 0xfe, 0x00])), null);
});

test('a ring with a malformed trace context rings without one', () => {
  const job = newId();
  assert.deepEqual(decodeRing(Buffer.from(`{"v":1,"job":"${job}","ring":1,"traceparent":"00-zz"}`)), {
    jobId: job,
    ring: 1,
    traceparent: null,
  });
});
