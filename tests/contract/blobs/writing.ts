/** Cases of the `Blobs` suite: put, copy and delete in one living process. */
import assert from 'node:assert/strict';
import type { Blobs } from '../../../src/pipeline/ports.ts';
import { noise, pieces } from '../../support/bytes.ts';
import type { BlobsCase } from '../blobs.ts';
import { fault, keysOf, read, sameBytes } from './expect.ts';

export const writingCases: BlobsCase[] = [
  {
    title: 'a body of unknown length is stored whole and its size is answered',
    async run({ blobs }) {
      const bytes = noise(300_000, 1);
      assert.deepEqual(await blobs.put('staging/a', pieces(bytes)), { size: 300_000 });
      sameBytes(await read(blobs, 'staging/a'), bytes, 'staging/a');
    },
  },
  {
    title: 'an empty body is an object of no bytes',
    async run({ blobs }) {
      assert.deepEqual(await blobs.put('staging/empty', pieces(noise(0, 1))), { size: 0 });
      assert.deepEqual(await blobs.head('staging/empty'), { size: 0 });
      assert.equal((await read(blobs, 'staging/empty')).length, 0);
    },
  },
  ...[0, 1, 65_535, 65_536, 65_537, 5 * 1024 * 1024].map((size) => ({
    title: `${size} bytes written in pieces of 7 KB come back byte for byte`,
    async run({ blobs }: { blobs: Blobs }) {
      await blobs.put('staging/odd', pieces(noise(size, size), 7_001));
      sameBytes(await read(blobs, 'staging/odd'), noise(size, size), 'staging/odd');
    },
  })),
  {
    title: '64 KiB and one byte written byte by byte come back byte for byte',
    async run({ blobs }) {
      await blobs.put('staging/odd', pieces(noise(65_537, 3), 1));
      sameBytes(await read(blobs, 'staging/odd'), noise(65_537, 3), 'staging/odd');
    },
  },
  {
    title: 'one piece larger than any batch, and empty pieces between, come back byte for byte',
    async run({ blobs }) {
      const bytes = noise(9_000_000, 4);
      async function* body() {
        yield bytes.subarray(0, 10);
        yield new Uint8Array(0);
        yield bytes.subarray(10, 8_999_999);
        yield new Uint8Array(0);
        yield bytes.subarray(8_999_999);
      }
      await blobs.put('staging/large', body());
      sameBytes(await read(blobs, 'staging/large'), bytes, 'staging/large');
    },
  },
  {
    title: 'a body that reuses its buffer between pieces is stored as it was when it yielded',
    async run({ blobs }) {
      const buffer = Buffer.alloc(1000);
      async function* body() {
        for (let turn = 0; turn < 100; turn += 1) yield buffer.fill(turn);
      }
      await blobs.put('staging/reused', body());
      const expected = Buffer.concat(Array.from({ length: 100 }, (_, turn) => Buffer.alloc(1000, turn)));
      sameBytes(await read(blobs, 'staging/reused'), expected, 'staging/reused');
    },
  },
  {
    title: 'a body that throws makes the put reject with that very error and leaves nothing',
    async run({ blobs }) {
      const error = new Error('the client hung up');
      async function* body() {
        yield noise(100_000, 1);
        throw error;
      }
      await assert.rejects(blobs.put('staging/broken', body()), (received) => received === error);
      assert.equal(await blobs.head('staging/broken'), null);
      assert.deepEqual(await keysOf(blobs), []);
    },
  },
  {
    title: 'an abort ends a put whose body hangs, rejects with its reason and leaves nothing',
    async run({ blobs }) {
      const abort = new AbortController();
      const reason = new Error('lease lost');
      const hanging = Promise.withResolvers<void>();
      async function* body() {
        yield noise(700_000, 1);
        hanging.resolve();
        await new Promise<void>(() => {});
      }
      const put = blobs.put('staging/aborted', body(), { signal: abort.signal });
      await hanging.promise;
      abort.abort(reason);
      await assert.rejects(put, (received) => received === reason);
      assert.equal(await blobs.head('staging/aborted'), null);
    },
  },
  {
    title: 'a signal that is aborted already stops a put before it reads its body',
    async run({ blobs }) {
      let asked = false;
      async function* body() {
        asked = true;
        yield noise(10, 1);
      }
      const reason = new Error('too late');
      await assert.rejects(
        blobs.put('staging/late', body(), { signal: AbortSignal.abort(reason) }),
        (received) => received === reason,
      );
      assert.equal(asked, false);
      assert.equal(await blobs.head('staging/late'), null);
    },
  },
  {
    title: 'a failed replacement leaves the old object whole',
    async run({ blobs }) {
      await blobs.put('staging/kept', pieces(noise(50_000, 1)));
      async function* body() {
        yield noise(90_000, 2);
        throw new Error('broken off');
      }
      await assert.rejects(blobs.put('staging/kept', body()), /broken off/);
      sameBytes(await read(blobs, 'staging/kept'), noise(50_000, 1), 'staging/kept');
    },
  },
  {
    title: 'a put under a taken key replaces the object, by a shorter one as well',
    async run({ blobs }) {
      await blobs.put('staging/twice', pieces(noise(50_000, 1)));
      await blobs.put('staging/twice', pieces(noise(20, 2)));
      assert.deepEqual(await blobs.head('staging/twice'), { size: 20 });
      sameBytes(await read(blobs, 'staging/twice'), noise(20, 2), 'staging/twice');
    },
  },
  {
    title: 'of concurrent puts under one key exactly one is there in the end, whole',
    async run({ blobs }) {
      const bodies = Array.from({ length: 8 }, (_, seed) => noise(200_000 + seed, seed));
      await Promise.all(bodies.map((bytes) => blobs.put('staging/raced', pieces(bytes))));
      const found = await read(blobs, 'staging/raced');
      const winner = bodies.find((bytes) => bytes.length === found.length);
      assert.ok(winner !== undefined, `no put had ${found.length} bytes`);
      sameBytes(found, winner, 'the winner');
      assert.deepEqual(await keysOf(blobs), ['staging/raced']);
    },
  },
  {
    title: 'a copy has the same bytes and outlives its source',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(100_000, 1)));
      await blobs.copy('staging/a', 'attachments/a/v1.1-x/original.jpg');
      await blobs.deleteMany(['staging/a']);
      assert.equal(await blobs.head('staging/a'), null);
      sameBytes(await read(blobs, 'attachments/a/v1.1-x/original.jpg'), noise(100_000, 1), 'the copy');
    },
  },
  {
    title: 'a copy replaces what was there, may be repeated, and does not follow later changes of its source',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(1000, 1)));
      await blobs.put('copies/a', pieces(noise(5000, 9)));
      await blobs.copy('staging/a', 'copies/a');
      await blobs.copy('staging/a', 'copies/a');
      await blobs.copy('copies/a', 'copies/a');
      await blobs.put('staging/a', pieces(noise(2000, 2)));
      sameBytes(await read(blobs, 'copies/a'), noise(1000, 1), 'the copy');
      sameBytes(await read(blobs, 'staging/a'), noise(2000, 2), 'the source');
    },
  },
  {
    title: 'a copy of a missing object rejects missing and leaves the target as it was',
    async run({ blobs }) {
      await blobs.put('copies/a', pieces(noise(10, 1)));
      await assert.rejects(blobs.copy('staging/none', 'copies/a'), fault('missing'));
      await assert.rejects(blobs.copy('staging/none', 'copies/b'), fault('missing'));
      sameBytes(await read(blobs, 'copies/a'), noise(10, 1), 'the target');
      assert.deepEqual(await keysOf(blobs), ['copies/a']);
    },
  },
  {
    title: 'delete many removes exactly the named objects, and missing or repeated keys are fine',
    async run({ blobs }) {
      for (const key of ['a/1', 'a/2', 'a/b/3', 'b/4']) await blobs.put(key, pieces(noise(10, 1)));
      await blobs.deleteMany([]);
      await blobs.deleteMany(['a/1', 'none/at/all', 'a/b/3', 'a/1', 'a', 'a/1/deeper']);
      assert.deepEqual(await keysOf(blobs), ['a/2', 'b/4']);
      await assert.rejects(blobs.open('a/1'), fault('missing'));
    },
  },
  {
    title: 'a key can be used again after its deletion',
    async run({ blobs }) {
      await blobs.put('a/b/c', pieces(noise(10, 1)));
      await blobs.deleteMany(['a/b/c']);
      await blobs.put('a/b/c', pieces(noise(11, 2)));
      sameBytes(await read(blobs, 'a/b/c'), noise(11, 2), 'a/b/c');
    },
  },
  {
    title: 'puts and deletes beside each other in one folder disturb no object that stays',
    async run({ blobs }) {
      const rounds = Array.from({ length: 40 }, (_, round) => round);
      await Promise.all([
        ...rounds.map((round) => blobs.put(`busy/x/keep-${round}`, pieces(noise(round, round)))),
        ...rounds.map(async (round) => {
          await blobs.put(`busy/x/gone-${round}`, pieces(noise(round, round)));
          await blobs.deleteMany([`busy/x/gone-${round}`]);
        }),
      ]);
      assert.deepEqual(await keysOf(blobs, 'busy/'), rounds.map((round) => `busy/x/keep-${round}`).sort());
      for (const round of rounds) sameBytes(await read(blobs, `busy/x/keep-${round}`), noise(round, round), `${round}`);
    },
  },
];
