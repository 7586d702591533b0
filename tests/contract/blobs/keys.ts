/** Cases of the `Blobs` suite: which keys there are, their order, and listing them by page. */
import assert from 'node:assert/strict';
import type { Blobs } from '../../../src/pipeline/ports.ts';
import { noise, pieces } from '../../support/bytes.ts';
import type { BlobsCase } from '../blobs.ts';
import { keysOf } from './expect.ts';

/** In byte order: `-` and `.` sort before `/`, digits and letters after it. */
const ordered = [
  'a-b/x',
  'a-b0',
  'a.b/x',
  'a.b0',
  'a/b-c',
  'a/b-c.x',
  'a/b.c',
  'a/b/c',
  'a/b0',
  'a/bb',
  'a0',
  'a0/x',
  'aa/x',
  'b',
];
/** A file system cannot hold an object and a folder of one name; the pipeline never asks for it. */
const listed = ordered.filter((key) => key !== 'a0');

const refused = [
  '',
  '.',
  '..',
  '/',
  '/etc/passwd',
  '../outside',
  'a/../b',
  'a/..',
  'a/./b',
  'a//b',
  'a/',
  '.tmp/x',
  'a/.hidden',
  'a\0b',
  'A',
  'a/B',
  'a\\b',
  '..\\b',
  'a b',
  'é',
  'a%2fb',
  'a_b',
  'a'.repeat(300),
  'a/'.repeat(300).concat('a'),
];

async function fill(blobs: Blobs, keys: readonly string[]): Promise<void> {
  for (const key of keys.toReversed()) await blobs.put(key, pieces(noise(key.length, 1)));
}

async function pagesOf(blobs: Blobs, prefix: string, limit: number): Promise<string[][]> {
  const pages: string[][] = [];
  for (let after: string | null = ''; after !== null; ) {
    const page = await blobs.list(prefix, { ...(after === '' ? {} : { after }), limit });
    pages.push(page.objects.map(({ key }) => key));
    after = page.next;
  }
  return pages;
}

export const keyCases: BlobsCase[] = [
  {
    title: 'a list answers every object in byte order of the whole keys, with sizes and times',
    async run({ blobs }) {
      const before = Date.now() - 2000;
      await fill(blobs, listed);
      const { objects, next } = await blobs.list('');
      assert.deepEqual(
        objects.map(({ key }) => key),
        listed,
      );
      assert.equal(next, null);
      for (const { key, size, modifiedAt } of objects) {
        assert.equal(size, key.length);
        assert.ok(modifiedAt.getTime() >= before && modifiedAt.getTime() <= Date.now() + 2000, `time of ${key}`);
      }
    },
  },
  {
    title: 'a copy is listed with the time of the copying, not with its source’s',
    async run({ blobs }) {
      await blobs.put('staging/a', pieces(noise(10, 1)));
      const [source] = (await blobs.list('staging/')).objects;
      // S3 tells whole seconds.
      const deadline = Date.now() + 1100;
      while (Date.now() < deadline) await blobs.head('staging/a');
      await blobs.copy('staging/a', 'copies/a');
      const [copy] = (await blobs.list('copies/')).objects;
      assert.ok(source !== undefined && copy !== undefined);
      assert.ok(copy.modifiedAt.getTime() > source.modifiedAt.getTime());
    },
  },
  ...[1, 2, 3, listed.length - 1, listed.length, listed.length + 1].map((limit) => ({
    title: `pages of ${limit} give every key once, in order, and none empty at the end`,
    async run({ blobs }: { blobs: Blobs }) {
      await fill(blobs, listed);
      const pages = await pagesOf(blobs, '', limit);
      assert.deepEqual(pages.flat(), listed);
      for (const page of pages.slice(0, -1)) assert.equal(page.length, limit);
      assert.ok((pages.at(-1)?.length ?? 0) > 0, 'the last page has something');
    },
  })),
  {
    title: 'a prefix need not be a folder',
    async run({ blobs }) {
      await fill(blobs, listed);
      for (const prefix of [
        '',
        'a',
        'a-',
        'a.',
        'a/',
        'a/b',
        'a/b-',
        'a/b/',
        'a/b/c',
        'a0',
        'aa/',
        'b',
        'b/',
        'c',
        'c/d/',
      ]) {
        const expected = listed.filter((key) => key.startsWith(prefix));
        assert.deepEqual(await keysOf(blobs, prefix), expected, `prefix ${JSON.stringify(prefix)}`);
        assert.deepEqual((await pagesOf(blobs, prefix, 2)).flat(), expected, `pages of ${JSON.stringify(prefix)}`);
      }
    },
  },
  {
    title: 'a list goes on after any key, there or not',
    async run({ blobs }) {
      await fill(blobs, listed);
      for (const after of [...ordered, 'a', 'a-', 'a/b', 'a/b/', 'a/b/b', 'a/b/d', '0', 'zz', 'a/zz']) {
        const { objects } = await blobs.list('', { after });
        assert.deepEqual(
          objects.map(({ key }) => key),
          listed.filter((key) => key > after),
          `after ${after}`,
        );
      }
      const { objects } = await blobs.list('a/', { after: 'a/b.c' });
      assert.deepEqual(
        objects.map(({ key }) => key),
        ['a/b/c', 'a/b0', 'a/bb'],
      );
    },
  },
  {
    title: 'a list of an empty store is empty and has no next page',
    async run({ blobs }) {
      assert.deepEqual(await blobs.list('attachments/'), { objects: [], next: null });
    },
  },
  {
    title: 'deleting by page while listing removes everything under a prefix and nothing else',
    async run({ blobs }) {
      await fill(blobs, listed);
      for (;;) {
        const { objects } = await blobs.list('a/', { limit: 2 });
        if (objects.length === 0) break;
        await blobs.deleteMany(objects.map(({ key }) => key));
      }
      assert.deepEqual(
        await keysOf(blobs),
        listed.filter((key) => !key.startsWith('a/')),
      );
    },
  },
  {
    title: 'what is no key is refused by every verb, before anything is done',
    async run({ blobs }) {
      await blobs.put('kept/a', pieces(noise(10, 1)));
      for (const key of refused) {
        const about = JSON.stringify(key.slice(0, 40));
        await assert.rejects(blobs.put(key, pieces(noise(10, 1))), TypeError, `put ${about}`);
        await assert.rejects(blobs.open(key), TypeError, `open ${about}`);
        await assert.rejects(blobs.head(key), TypeError, `head ${about}`);
        await assert.rejects(blobs.copy('kept/a', key), TypeError, `copy to ${about}`);
        await assert.rejects(blobs.copy(key, 'kept/b'), TypeError, `copy from ${about}`);
        await assert.rejects(blobs.deleteMany(['kept/a', key]), TypeError, `delete ${about}`);
      }
      for (const prefix of ['..', '../', '/', 'a/../', 'A', 'a\0', 'a\\', '.tmp/']) {
        await assert.rejects(blobs.list(prefix), TypeError, `list ${JSON.stringify(prefix)}`);
      }
      assert.deepEqual(await keysOf(blobs), ['kept/a']);
    },
  },
];
