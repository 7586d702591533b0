/** Cases of the `Blobs` suite: open, ranges, head, presign, health, and what an open reader sees of changes. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import type { Blobs, ByteRange } from '../../../src/pipeline/ports.ts';
import { noise, pieces, wholeOf } from '../../support/bytes.ts';
import type { BlobsCase } from '../blobs.ts';
import { fault, read, sameBytes } from './expect.ts';

const size = 200_001;
const ranges: readonly [string, ByteRange][] = [
  ['the first byte', { start: 0, end: 0 }],
  ['the last byte', { start: size - 1, end: size - 1 }],
  ['a middle across 64 KiB', { start: 65_530, end: 131_080 }],
  ['the whole', { start: 0, end: size - 1 }],
];

/** Large enough that no socket or stream buffer holds it before the reader goes on. */
const slowSize = 24 * 1024 * 1024;

/** A reader that has its first piece and has not asked for the rest. */
async function begun(blobs: Blobs, key: string): Promise<{ first: Buffer; body: Readable }> {
  const { body } = await blobs.open(key);
  await once(body, 'readable');
  const first = body.read(1) as Buffer;
  return { first, body };
}

async function keepsContent(blobs: Blobs, change: () => Promise<unknown>): Promise<void> {
  await blobs.put('staging/read', pieces(noise(slowSize, 1), 1 << 20));
  const { first, body } = await begun(blobs, 'staging/read');
  await change();
  sameBytes(Buffer.concat([first, await wholeOf(body)]), noise(slowSize, 1), 'what was opened');
}

export const readingCases: BlobsCase[] = [
  ...ranges.map(([title, range]) => ({
    title: `a range answers ${title}, and the size of the whole`,
    async run({ blobs }: { blobs: Blobs }) {
      await blobs.put('staging/a', pieces(noise(size, 1)));
      const opened = await blobs.open('staging/a', range);
      assert.equal(opened.size, size);
      sameBytes(await wholeOf(opened.body), noise(size, 1).subarray(range.start, range.end + 1), title);
    },
  })),
  {
    title: 'a range past the end is clipped',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(size, 1)));
      const tail = await read(blobs, 'staging/a', { start: size - 10, end: size + 1_000_000 });
      sameBytes(tail, noise(size, 1).subarray(size - 10), 'the tail');
    },
  },
  {
    title: 'a range that starts past the end rejects broken, of an empty object any range',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(size, 1)));
      await blobs.put('staging/empty', pieces(noise(0, 1)));
      await assert.rejects(blobs.open('staging/a', { start: size, end: size }), fault('broken'));
      await assert.rejects(blobs.open('staging/a', { start: size + 5, end: size + 9 }), fault('broken'));
      await assert.rejects(blobs.open('staging/empty', { start: 0, end: 0 }), fault('broken'));
    },
  },
  {
    title: 'a missing key rejects missing on open, also with a range, and its head is null',
    async run({ blobs }) {
      await blobs.put('staging/a/b', pieces(noise(10, 1)));
      for (const key of ['staging/none', 'none', 'staging/a', 'staging', 'staging/a/b/c']) {
        await assert.rejects(blobs.open(key), fault('missing'), key);
        await assert.rejects(blobs.open(key, { start: 0, end: 0 }), fault('missing'), key);
        assert.equal(await blobs.head(key), null, key);
      }
    },
  },
  {
    title: 'a head answers the size',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(12_345, 1)));
      assert.deepEqual(await blobs.head('staging/a'), { size: 12_345 });
    },
  },
  {
    title: 'an open reader keeps its content while the object is replaced',
    async run({ blobs }) {
      await keepsContent(blobs, () => blobs.put('staging/read', pieces(noise(1000, 2))));
      sameBytes(await read(blobs, 'staging/read'), noise(1000, 2), 'what is there now');
    },
  },
  {
    title: 'an open reader keeps its content while the object is deleted',
    async run({ blobs }) {
      await keepsContent(blobs, () => blobs.deleteMany(['staging/read']));
      await assert.rejects(blobs.open('staging/read'), fault('missing'));
    },
  },
  {
    title: 'readers of a key that is replaced again and again see one whole object each time',
    async run({ blobs }) {
      const sizes = [150_000, 150_001];
      await blobs.put('staging/a', pieces(noise(150_000, 0)));
      let writing = true;
      const writer = (async () => {
        for (let turn = 0; turn < 30; turn += 1) {
          const seed = turn % 2;
          await blobs.put('staging/a', pieces(noise(sizes[seed] ?? 0, seed)));
        }
      })().finally(() => {
        writing = false;
      });
      while (writing) {
        const found = await read(blobs, 'staging/a');
        const seed = sizes.indexOf(found.length);
        assert.notEqual(seed, -1, `no put had ${found.length} bytes`);
        sameBytes(found, noise(found.length, seed), 'one of the two');
      }
      await writer;
    },
  },
  {
    title: 'a reader that is destroyed halfway or unread does no harm',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(slowSize, 1), 1 << 20));
      const { body: half } = await begun(blobs, 'staging/a');
      const { body: unread } = await blobs.open('staging/a');
      for (const body of [half, unread]) {
        const closed = once(body, 'close');
        body.destroy();
        await closed;
      }
      sameBytes(await read(blobs, 'staging/a'), noise(slowSize, 1), 'a later reader');
    },
  },
  {
    title: 'a presigned URL reads the object with the pinned type and disposition, where the driver has URLs',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(1000, 1)), { contentType: 'image/png' });
      const url = await blobs.presign('staging/a', {
        expiresSeconds: 30,
        contentType: 'image/jpeg',
        disposition: 'attachment; filename="cat.jpg"',
      });
      if (url === null) return assert.equal(await blobs.presign('none', { ...pinned, expiresSeconds: 1 }), null);
      const answer = await fetch(url);
      assert.equal(answer.status, 200);
      assert.equal(answer.headers.get('content-type'), 'image/jpeg');
      assert.equal(answer.headers.get('content-disposition'), 'attachment; filename="cat.jpg"');
      sameBytes(Buffer.from(await answer.arrayBuffer()), noise(1000, 1), 'by URL');
    },
  },
  {
    title: 'a store that works is healthy, and asking leaves no object',
    async run({ blobs }) {
      await blobs.health();
      assert.deepEqual((await blobs.list('')).objects, []);
    },
  },
];

const pinned = { contentType: 'image/jpeg', disposition: 'inline' };
