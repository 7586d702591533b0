/** What is read of an object: its digest, and memory that is given back while it is read. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, test } from 'node:test';
import { giveBack } from '../../src/pipeline/blob-body.ts';
import { both, digest } from '../../src/pipeline/original.ts';

describe('the digest of a body', () => {
  test('is that of its bytes, and each chunk is freed before the next one is asked for', async () => {
    const chunks = [1, 2, 3].map((fill) => Buffer.alloc(100_000, fill));
    const wanted = createHash('sha256').update(Buffer.concat(chunks)).digest('hex');
    const left: number[] = [];
    async function* body() {
      for (const chunk of chunks) {
        yield chunk;
        left.push(chunk.buffer.byteLength);
      }
    }
    assert.deepEqual(await digest(body()), { size: 300_000, sha256: wanted });
    assert.deepEqual(left, [0, 0, 0]);
  });

  test('leaves the memory of a slice to those who have the rest of it, and frees nothing twice', () => {
    const whole = Buffer.alloc(10_000, 7);
    giveBack(whole.subarray(1));
    assert.equal(whole[0], 7);
    giveBack(whole);
    giveBack(whole);
    assert.equal(whole.buffer.byteLength, 0);
  });
});

describe('two pieces of work at once', () => {
  test('of which one fails are both waited for', async () => {
    const slow = Promise.withResolvers<string>();
    let settled = false;
    const all = both(Promise.reject(new Error('first')), slow.promise).finally(() => {
      settled = true;
    });
    all.catch(() => undefined);
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(settled, false);
    slow.resolve('second');
    await assert.rejects(all, /first/);
  });

  test('that succeed answer both results, and of two failures the first one is told', async () => {
    assert.deepEqual(await both(Promise.resolve(1), Promise.resolve('a')), [1, 'a']);
    await assert.rejects(both(Promise.reject(new Error('one')), Promise.reject(new Error('two'))), /one/);
  });
});
