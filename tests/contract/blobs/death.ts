/** Cases of the `Blobs` suite: a put whose process is killed. */
import assert from 'node:assert/strict';
import type { Blobs } from '../../../src/pipeline/ports.ts';
import { noise, pieces } from '../../support/bytes.ts';
import type { BlobsCase, BlobsHarness } from '../blobs.ts';
import { keysOf, read, sameBytes } from './expect.ts';

const size = 3_000_000;
const pieceBytes = 100_000;

/** The old object or the new one, whole; the new one for certain when the put had resolved. */
async function isOneOfBoth(blobs: Blobs, key: string, resolved: boolean): Promise<void> {
  const found = await read(blobs, key);
  const isNew = found.length === size;
  sameBytes(found, isNew ? noise(size, 2) : noise(1000, 1), isNew ? 'the new object' : 'the old object');
  if (resolved) assert.ok(isNew, 'what was acknowledged is there');
}

async function killedAt({ blobs, putElsewhere }: BlobsHarness, position: number): Promise<void> {
  await blobs.put('staging/killed', pieces(noise(1000, 1)));
  const put = await putElsewhere({ key: 'staging/killed', size, seed: 2, pieceBytes, hangAt: null });
  await put.asked(position);
  const { resolved } = await put.kill();
  await isOneOfBoth(blobs, 'staging/killed', resolved);
  assert.deepEqual(await keysOf(blobs), ['staging/killed']);
}

export const deathCases: BlobsCase[] = [
  {
    title: 'a put that is under way shows nothing, and leaves nothing when its process is killed',
    async run({ blobs, putElsewhere }) {
      const task = { key: 'staging/new', size, seed: 2, pieceBytes, hangAt: size };
      const put = await putElsewhere(task);
      await put.asked(size);
      assert.equal(await blobs.head('staging/new'), null);
      assert.deepEqual(await keysOf(blobs), []);
      await put.kill();
      assert.equal(await blobs.head('staging/new'), null);
      assert.deepEqual(await keysOf(blobs), []);
    },
  },
  {
    title: 'a replacement that is under way shows the old object, also after its process is killed',
    async run({ blobs, putElsewhere }) {
      await blobs.put('staging/old', pieces(noise(1000, 1)));
      const put = await putElsewhere({ key: 'staging/old', size, seed: 2, pieceBytes, hangAt: size / 2 });
      await put.asked(size / 2);
      sameBytes(await read(blobs, 'staging/old'), noise(1000, 1), 'meanwhile');
      await put.kill();
      sameBytes(await read(blobs, 'staging/old'), noise(1000, 1), 'afterwards');
    },
  },
  ...[0, 0.5, 1].map((share) => ({
    title: `a put killed on its way after ${share * 100} % of its body is all or nothing`,
    async run(harness: BlobsHarness) {
      await killedAt(harness, share * size);
    },
  })),
  {
    title: 'a put can be repeated after its process was killed',
    async run({ blobs, putElsewhere }) {
      const put = await putElsewhere({ key: 'staging/again', size, seed: 2, pieceBytes, hangAt: size / 2 });
      await put.asked(size / 2);
      await put.kill();
      await blobs.put('staging/again', pieces(noise(5000, 3)));
      sameBytes(await read(blobs, 'staging/again'), noise(5000, 3), 'staging/again');
    },
  },
];
