/** The `file:` driver: the suite of the port, and what only a folder can get wrong. */
import assert from 'node:assert/strict';
import {
  access,
  link,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  rename,
  rm,
  rmdir,
  stat,
  symlink,
  truncate,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { createFileBlobs, type FileBlobsSettings } from '../../src/drivers/blobs-file.ts';
import { processTag } from '../../src/process-tag.ts';
import { fault, keysOf, read, sameBytes } from '../contract/blobs/expect.ts';
import { type BlobsHarness, blobsContract, type RunningPut } from '../contract/blobs.ts';
import { noise, pieces } from '../support/bytes.ts';
import { putInChild } from '../support/put-elsewhere.ts';

/** Leavings of processes that were killed are the sweep's, which has its own tests: only a living process may leave nothing. */
async function residueOf(dir: string): Promise<string[]> {
  const names = await readdir(join(dir, '.tmp')).catch(() => []);
  return names.filter((name) => name.startsWith(processTag()));
}

function opener(settings: FileBlobsSettings): () => Promise<BlobsHarness> {
  return async () => {
    const dir = await mkdtemp(join(tmpdir(), 'skrepka-blobs-'));
    const puts: RunningPut[] = [];
    return {
      blobs: createFileBlobs({ dir }, settings),
      residue: () => residueOf(dir),
      async putElsewhere(task) {
        const put = putInChild({ url: pathToFileURL(dir).href, ...task });
        puts.push(put);
        return put;
      },
      async close() {
        for (const put of puts) await put.kill();
        await rm(dir, { recursive: true });
      },
    };
  };
}

blobsContract('file', opener({}));
blobsContract('file without hard links', opener({ hardLinks: false, batchBytes: 1000 }));

async function withDir(work: (dir: string) => Promise<void>): Promise<void> {
  const dir = await mkdtemp(join(tmpdir(), 'skrepka-blobs-'));
  try {
    await work(dir);
  } finally {
    await rm(dir, { recursive: true });
  }
}

test('a folder that is away is an outage, never missing objects', () =>
  withDir(async (dir) => {
    const root = join(dir, 'objects');
    const blobs = createFileBlobs({ dir: root });
    await blobs.put('a/b/c', pieces(noise(10, 1)));
    await rename(root, join(dir, 'elsewhere'));
    await assert.rejects(blobs.open('a/b/c'), fault('unavailable'));
    await assert.rejects(blobs.head('a/b/c'), fault('unavailable'));
    await assert.rejects(blobs.copy('a/b/c', 'a/b/d'), fault('unavailable'));
    await mkdir(root);
    await assert.rejects(blobs.open('a/b/c'), fault('unavailable'));
    await rmdir(root);
    await rename(join(dir, 'elsewhere'), root);
    assert.equal((await read(blobs, 'a/b/c')).length, 10);
    await assert.rejects(blobs.open('a/x/c'), fault('missing'));
  }));

test('the folder is made when missing, and files and folders are for their owner only', () =>
  withDir(async (dir) => {
    const root = join(dir, 'data', 'objects');
    const blobs = createFileBlobs({ dir: root });
    await blobs.put('a/b/c', pieces(noise(10, 1)));
    await blobs.copy('a/b/c', 'a/b/d');
    for (const folder of [root, join(root, '.tmp'), join(root, 'a'), join(root, 'a/b')]) {
      assert.equal((await stat(folder)).mode & 0o777, 0o700, folder);
    }
    for (const file of ['a/b/c', 'a/b/d']) assert.equal((await stat(join(root, file))).mode & 0o777, 0o600, file);
  }));

test('deleting the last object of a folder removes it and the emptied ones above, except the first level', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    for (const key of ['a/b/c/1', 'a/b/c/2', 'a/d/3']) await blobs.put(key, pieces(noise(10, 1)));
    await blobs.deleteMany(['a/b/c/1']);
    await access(join(dir, 'a/b/c'));
    await blobs.deleteMany(['a/b/c/2']);
    assert.deepEqual(await readdir(join(dir, 'a')), ['d']);
    await blobs.deleteMany(['a/d/3']);
    assert.deepEqual(await readdir(join(dir, 'a')), []);
  }));

test('deleting again tidies folders that a killed process left empty', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    await mkdir(join(dir, 'a/b/c'), { recursive: true });
    await blobs.deleteMany(['a/b/c/1']);
    assert.deepEqual(await readdir(join(dir, 'a')), []);
  }));

test('puts survive a folder that comes and goes under them', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    const other = createFileBlobs({ dir });
    let putting = true;
    const remover = (async () => {
      while (putting) await other.deleteMany(['a/b/c/gone', 'a/b/other']);
    })();
    try {
      for (let turn = 0; turn < 200; turn += 1) {
        await blobs.put('a/b/c/kept', pieces(noise(10, turn)));
        await blobs.deleteMany(['a/b/c/kept']);
        await blobs.put('a/b/c/gone', pieces(noise(10, turn)));
      }
    } finally {
      putting = false;
    }
    await remover;
  }));

test('a start sweeps the temporary files of dead processes and of strangers after an hour, and no others', () =>
  withDir(async (dir) => {
    const first = createFileBlobs({ dir });
    await first.health();
    const put = putInChild({
      url: pathToFileURL(dir).href,
      key: 'a/b',
      size: 3_000_000,
      seed: 1,
      pieceBytes: 1000,
      hangAt: 2_000_000,
    });
    try {
      await put.asked(2_000_000);
      const temporary = join(dir, '.tmp');
      const [living] = await readdir(temporary);
      assert.ok(living !== undefined);

      const [pid, ticks, ...scope] = processTag().split('-');
      const reused = `${pid}-${Number(ticks) - 1}-${scope.join('-')}.aa`;
      const own = `${processTag()}.bb`;
      const stranger = `${pid}-${ticks}-1-feed.cc`;
      const oldStranger = `${pid}-${ticks}-1-feed.dd`;
      for (const name of [reused, own, stranger, oldStranger]) await writeFile(join(temporary, name), 'x');
      const longAgo = new Date(Date.now() - 61 * 60 * 1000);
      await utimes(join(temporary, oldStranger), longAgo, longAgo);
      await utimes(join(temporary, own), longAgo, longAgo);
      await createFileBlobs({ dir }).health();
      assert.deepEqual((await readdir(temporary)).sort(), [living, own, stranger].sort());

      await put.kill();
      await createFileBlobs({ dir }).health();
      assert.deepEqual((await readdir(temporary)).sort(), [own, stranger].sort());
    } finally {
      await put.kill();
    }
  }));

test('a symbolic link inside the folder is never followed out of it', () =>
  withDir(async (dir) => {
    const outside = join(dir, 'outside');
    const root = join(dir, 'objects');
    await mkdir(join(root, 'plain'), { recursive: true });
    await mkdir(outside);
    await writeFile(join(outside, 'secret'), 'secret');
    await symlink(outside, join(root, 'linked'));
    await symlink(join(outside, 'secret'), join(root, 'plain', 'secret'));
    const blobs = createFileBlobs({ dir: root });

    await assert.rejects(blobs.open('linked/secret'), fault('broken'));
    await assert.rejects(blobs.open('plain/secret'), fault('broken'));
    assert.equal(await blobs.head('plain/secret'), null);
    await assert.rejects(blobs.head('linked/secret'), fault('broken'));
    await assert.rejects(blobs.copy('plain/secret', 'plain/copy'), fault('missing'));
    await assert.rejects(blobs.put('linked/new', pieces(noise(10, 1))), fault('broken'));
    await assert.rejects(blobs.put('linked/deep/new', pieces(noise(10, 1))), fault('broken'));
    await assert.rejects(blobs.deleteMany(['linked/secret']), fault('broken'));
    await assert.rejects(blobs.list('linked/'), fault('broken'));
    assert.deepEqual(await keysOf(blobs), []);
    assert.deepEqual(await readdir(outside), ['secret']);

    await blobs.put('plain/secret', pieces(noise(10, 1)));
    sameBytes(await read(blobs, 'plain/secret'), noise(10, 1), 'the link was replaced, not followed');
    assert.equal((await stat(join(outside, 'secret'))).size, 6);
  }));

test('the folder itself may be a symbolic link', () =>
  withDir(async (dir) => {
    await mkdir(join(dir, 'disk'));
    await symlink(join(dir, 'disk'), join(dir, 'objects'));
    const blobs = createFileBlobs({ dir: join(dir, 'objects') });
    await blobs.put('a/b', pieces(noise(10, 1)));
    sameBytes(await read(blobs, 'a/b'), noise(10, 1), 'a/b');
    await access(join(dir, 'disk/a/b'));
  }));

test('an object and a folder of one name cannot be, and the second says broken', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    await blobs.put('a/b', pieces(noise(10, 1)));
    await assert.rejects(blobs.put('a/b/c', pieces(noise(10, 1))), fault('broken'));
    await assert.rejects(blobs.put('a', pieces(noise(10, 1))), fault('broken'));
    sameBytes(await read(blobs, 'a/b'), noise(10, 1), 'a/b');
    assert.deepEqual(await residueOf(dir), []);
  }));

test('files whose names are no keys are listed, hidden ones and foreign folders are not', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    await blobs.put('a/b', pieces(noise(10, 1)));
    await mkdir(join(dir, 'lost+found'));
    for (const name of ['a/.hidden', 'a/UPPER', 'a/with space', '.tmp/x', 'lost+found/x', 'top']) {
      await writeFile(join(dir, name), 'x');
    }
    assert.deepEqual(await keysOf(blobs), ['a/UPPER', 'a/b', 'a/with space', 'top']);
  }));

test('a page of a large folder is in order although its names are read in batches', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    await blobs.put('many/0', pieces(noise(1, 1)));
    const names = Array.from({ length: 3000 }, (_, at) => `${(at * 7919) % 3000}`.padStart(4, '0'));
    await Promise.all(names.map((name) => link(join(dir, 'many/0'), join(dir, 'many', `n${name}`))));
    const found: string[] = [];
    for (let after: string | null = 'many/0'; after !== null; ) {
      const page = await blobs.list('many/', { after, limit: 700 });
      found.push(...page.objects.map(({ key }) => key));
      after = page.next;
    }
    assert.deepEqual(
      found,
      names.sort().map((name) => `many/n${name}`),
    );
  }));

test('a folder of hundreds of empty folders hides no object behind it', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    for (let at = 0; at < 300; at += 1) await mkdir(join(dir, 'a', `e${at}`), { recursive: true });
    await blobs.put('a/z', pieces(noise(10, 1)));
    assert.deepEqual(
      (await blobs.list('a/', { limit: 1 })).objects.map(({ key }) => key),
      ['a/z'],
    );
  }));

test('a copy is a link where links are allowed, and bytes of its own where they are not', () =>
  withDir(async (dir) => {
    for (const [hardLinks, links] of [
      [true, 2],
      [false, 1],
    ] as const) {
      const blobs = createFileBlobs({ dir }, { hardLinks });
      await blobs.put(`a/source${links}`, pieces(noise(10, 1)));
      await blobs.copy(`a/source${links}`, `a/copy${links}`);
      assert.equal((await lstat(join(dir, `a/copy${links}`))).nlink, links);
    }
  }));

test('a folder that cannot be made is unavailable, and is tried again at the next call', () =>
  withDir(async (dir) => {
    await writeFile(join(dir, 'taken'), 'x');
    const blobs = createFileBlobs({ dir: join(dir, 'taken', 'objects') });
    await assert.rejects(blobs.health(), fault('unavailable'));
    await assert.rejects(blobs.put('a/b', pieces(noise(10, 1))), fault('broken'));
    await rm(join(dir, 'taken'));
    await blobs.health();
  }));

test('a folder that vanishes is unavailable and is not silently made anew', () =>
  withDir(async (dir) => {
    const root = join(dir, 'objects');
    const blobs = createFileBlobs({ dir: root });
    await blobs.put('a/b', pieces(noise(10, 1)));
    await rm(root, { recursive: true });
    await assert.rejects(blobs.health(), fault('unavailable'));
    await assert.rejects(blobs.put('a/b', pieces(noise(10, 1))), fault('unavailable'));
    await assert.rejects(access(root));
  }));

test('a put that is to be verified tells what the file system has, not what the body had', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir }, { batchBytes: 10 });
    async function* body() {
      yield noise(1000, 1);
      // As a disk does that takes bytes and has none.
      const [name = ''] = await readdir(join(dir, '.tmp'));
      await truncate(join(dir, '.tmp', name), 400);
    }
    assert.deepEqual(await blobs.put('a/b', body(), { verify: true }), { size: 400 });
    assert.deepEqual(await blobs.put('a/c', pieces(noise(1000, 1)), { verify: true }), { size: 1000 });
  }));

test('an object that shrinks under its reader ends with broken, not with silence', () =>
  withDir(async (dir) => {
    const blobs = createFileBlobs({ dir });
    await blobs.put('a/b', pieces(noise(1_000_000, 1)));
    const { body } = await blobs.open('a/b');
    await writeFile(join(dir, 'a/b'), 'x');
    await assert.rejects(async () => {
      for await (const piece of body) assert.ok(piece);
    }, fault('broken'));
  }));
