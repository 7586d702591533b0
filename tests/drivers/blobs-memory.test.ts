/** The store in memory: the suite of the port, and its misbehaviour on request. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fault, read, sameBytes } from '../contract/blobs/expect.ts';
import { type BlobsHarness, blobsContract } from '../contract/blobs.ts';
import { createMemoryBlobs } from '../support/blobs-memory.ts';
import { noise, pieces } from '../support/bytes.ts';

async function open(): Promise<BlobsHarness> {
  const blobs = createMemoryBlobs();
  return {
    blobs,
    residue: async () => [],
    // A process of its own has no part in this memory: its death is a body that never goes on.
    async putElsewhere({ key, size, seed, pieceBytes, hangAt }) {
      const death = Promise.withResolvers<never>();
      death.promise.catch(() => {});
      let position = -1;
      let resolved = false;
      async function* body() {
        const bytes = noise(size, seed);
        for (position = 0; position < Math.min(size, hangAt ?? size); position += pieceBytes) {
          yield bytes.subarray(position, position + pieceBytes);
        }
        if (hangAt !== null) await death.promise;
      }
      const put = blobs.put(key, body()).then(
        () => {
          resolved = true;
        },
        () => {},
      );
      return {
        async asked(wanted) {
          while (position < wanted) await new Promise(setImmediate);
        },
        async kill() {
          death.reject(new Error('killed'));
          await put;
          return { resolved };
        },
      };
    },
    close: () => blobs.close(),
  };
}

blobsContract('memory', open, { keepsObjectsInMemory: true });

test('a call told to fail does nothing and rejects, once', async () => {
  const blobs = createMemoryBlobs();
  blobs.misbehave('put', { kind: 'fail', fault: 'unavailable' }, (key) => key.startsWith('b/'));
  await blobs.put('a/1', pieces(noise(10, 1)));
  await assert.rejects(blobs.put('b/1', pieces(noise(10, 1))), fault('unavailable'));
  assert.equal(await blobs.head('b/1'), null);
  await blobs.put('b/1', pieces(noise(10, 1)));
});

test('a call told to lose its answer takes effect and rejects', async () => {
  const blobs = createMemoryBlobs();
  blobs.misbehave('put', { kind: 'lose_answer' });
  await assert.rejects(blobs.put('a/1', pieces(noise(10, 1))), fault('unavailable'));
  sameBytes(await read(blobs, 'a/1'), noise(10, 1), 'a/1');
});

test('a torn put keeps nothing, a torn read breaks off', async () => {
  const blobs = createMemoryBlobs();
  blobs.misbehave('put', { kind: 'tear', afterBytes: 10_000 });
  await assert.rejects(blobs.put('a/1', pieces(noise(100_000, 1))), fault('unavailable'));
  assert.equal(await blobs.head('a/1'), null);
  await blobs.put('a/1', pieces(noise(100_000, 1)));
  blobs.misbehave('open', { kind: 'tear', afterBytes: 10_000 });
  await assert.rejects(read(blobs, 'a/1'), fault('broken'));
  sameBytes(await read(blobs, 'a/1'), noise(100_000, 1), 'a/1');
});

test('a delayed call waits for its gate', async () => {
  const blobs = createMemoryBlobs();
  const gate = Promise.withResolvers<void>();
  blobs.misbehave('put', { kind: 'delay', until: gate.promise });
  const put = blobs.put('a/1', pieces(noise(10, 1)));
  assert.equal(await blobs.head('a/1'), null);
  gate.resolve();
  await put;
  assert.deepEqual(await blobs.head('a/1'), { size: 10 });
});
