/** Cases of the `Blobs` suite: a large body never sits in memory. For drivers that keep objects elsewhere. */
import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { BlobsCase } from '../blobs.ts';

const pieceBytes = 1 << 20;
const pieceCount = 192;
/** S3 uploads hold a few parts of 5 to 8 MiB; a body that sat in memory would be 192 MiB. */
const heldMax = 64 << 20;

function collector(): () => void {
  setFlagsFromString('--expose-gc');
  return runInNewContext('gc') as () => void;
}

/** Bytes in buffers that somebody still refers to. */
function heldBytes(collect: () => void): number {
  collect();
  return process.memoryUsage().arrayBuffers;
}

export const streamingCases: BlobsCase[] = [
  {
    title: 'a large body never sits in memory, neither written nor read',
    async run({ blobs }) {
      const collect = collector();
      const before = heldBytes(collect);
      let peak = 0;
      const watch = (turn: number) => {
        if (turn % 16 === 0) peak = Math.max(peak, heldBytes(collect) - before);
      };
      async function* body() {
        for (let turn = 0; turn < pieceCount; turn += 1) {
          watch(turn);
          yield Buffer.alloc(pieceBytes, turn);
        }
      }
      await blobs.put('staging/large', body());
      assert.ok(peak < heldMax, `writing held ${peak} bytes`);

      peak = 0;
      let read = 0;
      let turn = 0;
      for await (const piece of (await blobs.open('staging/large')).body) {
        const at = Math.floor(read / pieceBytes);
        assert.equal((piece as Buffer)[0], at % 256);
        read += (piece as Buffer).length;
        turn += 1;
        watch(turn);
      }
      assert.equal(read, pieceBytes * pieceCount);
      assert.ok(peak < heldMax, `reading held ${peak} bytes`);
    },
  },
];
