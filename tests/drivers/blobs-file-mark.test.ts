/** The folder of the `file:` driver that is not mounted, is another's, or lost what nobody may miss. */
import assert from 'node:assert/strict';
import { access, mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import type { Owner } from '../../src/drivers/blobs-file/marker.ts';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import type { BlobError } from '../../src/pipeline/ports.ts';
import { fault, read, sameBytes } from '../contract/blobs/expect.ts';
import { noise, pieces } from '../support/bytes.ts';

const one = '0195f0a0-0000-4000-8000-000000000001';
const other = '0195f0a0-0000-4000-8000-000000000002';
const full = (id: string) => async (): Promise<Owner> => ({ id, namesObjects: true });
const empty = (id: string) => async (): Promise<Owner> => ({ id, namesObjects: false });

async function stage(t: test.TestContext) {
  const folder = await mkdtemp(join(tmpdir(), 'skrepka-mark-'));
  t.after(() => rm(folder, { recursive: true }));
  const dir = join(folder, 'objects');
  return { dir, away: join(folder, 'away'), markOf: () => readFile(join(dir, '.skrepka'), 'utf8') };
}

function refusal(words: RegExp) {
  return (error: BlobError) => fault('unavailable')(error) && words.test(error.message);
}

describe('a folder at the start', () => {
  test('that is new is marked for its database, also by several processes at once', async (t) => {
    const { dir, markOf } = await stage(t);
    await Promise.all(Array.from({ length: 8 }, () => createFileBlobs({ dir, owner: empty(one) }).prepare()));
    assert.equal(await markOf(), `${one}\n`);
    assert.deepEqual(await readdir(join(dir, '.tmp')), []);
    await createFileBlobs({ dir, owner: empty(one) }).health();
  });

  test('that is not mounted is refused while the database names objects, with the way out, and nothing is made in it', async (t) => {
    const { dir } = await stage(t);
    const blobs = createFileBlobs({ dir, owner: full(one) });
    const sentence = refusal(
      /holds none of the objects that the database names: mount it or correct BLOBS_URL;.* an empty file \.skrepka/,
    );
    await assert.rejects(blobs.prepare(), sentence);
    await assert.rejects(access(dir));
    await mkdir(dir);
    await writeFile(join(dir, 'not-mounted'), 'a note that people leave in a mount point');
    await assert.rejects(blobs.prepare(), sentence);
    await assert.rejects(blobs.head('staging/b'), fault('unavailable'));
    await assert.rejects(blobs.open('staging/b'), fault('unavailable'));
    await assert.rejects(blobs.put('staging/b', pieces(noise(10, 1))), fault('unavailable'));
    await assert.rejects(blobs.deleteMany(['staging/b']), fault('unavailable'));
    await assert.rejects(blobs.list(''), fault('unavailable'));
    await assert.rejects(blobs.health(), fault('unavailable'));
    assert.deepEqual(await readdir(dir), ['not-mounted']);
  });

  test('that is mounted later is used without another start', async (t) => {
    const { dir, away } = await stage(t);
    await createFileBlobs({ dir, owner: empty(one) }).put('staging/b', pieces(noise(10, 1)));
    await rename(dir, away);
    const blobs = createFileBlobs({ dir, owner: full(one) });
    await assert.rejects(blobs.head('staging/b'), fault('unavailable'));
    await rename(away, dir);
    sameBytes(await read(blobs, 'staging/b'), noise(10, 1), 'staging/b');
    await blobs.health();
  });

  test('with objects of a build that made no marks is taken over', async (t) => {
    const { dir, markOf } = await stage(t);
    await mkdir(join(dir, 'staging'), { recursive: true });
    await writeFile(join(dir, 'staging/b'), noise(10, 1));
    const blobs = createFileBlobs({ dir, owner: full(one) });
    sameBytes(await read(blobs, 'staging/b'), noise(10, 1), 'staging/b');
    assert.equal(await markOf(), `${one}\n`);
  });

  test('whose objects are lost is taken over once a person has left an empty mark there', async (t) => {
    const { dir, markOf } = await stage(t);
    const blobs = createFileBlobs({ dir, owner: full(one) });
    await assert.rejects(blobs.prepare(), fault('unavailable'));
    await mkdir(dir);
    await writeFile(join(dir, '.skrepka'), '');
    await blobs.prepare();
    assert.equal(await blobs.head('staging/b'), null);
    await blobs.put('staging/c', pieces(noise(10, 1)));
    // Until there is an object again, a further start must not ask for it anew; then it is a folder like any other.
    assert.equal(await markOf(), '');
    await createFileBlobs({ dir, owner: full(one) }).health();
    assert.equal(await markOf(), `${one}\n`);
  });

  test('that was marked before its disk was mounted over it is refused all the same when the disk is away', async (t) => {
    const { dir, away } = await stage(t);
    await createFileBlobs({ dir, owner: empty(one) }).prepare();
    await rename(dir, away);
    await createFileBlobs({ dir, owner: empty(one) }).put('staging/b', pieces(noise(10, 1)));
    await rm(dir, { recursive: true });
    await rename(away, dir);
    await assert.rejects(createFileBlobs({ dir, owner: full(one) }).prepare(), refusal(/mount it/));
  });

  test('of another database is refused, even by an empty one, until its mark is emptied', async (t) => {
    const { dir, markOf } = await stage(t);
    await createFileBlobs({ dir, owner: empty(one) }).put('staging/b', pieces(noise(10, 1)));
    for (const owner of [empty(other), full(other)]) {
      const blobs = createFileBlobs({ dir, owner });
      await assert.rejects(blobs.deleteMany(['staging/b']), refusal(/belongs to another database.*empty that file/));
    }
    await access(join(dir, 'staging/b'));
    await writeFile(join(dir, '.skrepka'), '\n');
    await createFileBlobs({ dir, owner: full(other) }).prepare();
    assert.equal(await markOf(), `${other}\n`);
  });

  test('of another database is refused also while neither has an object: both would take uploads in it', async (t) => {
    const { dir, markOf } = await stage(t);
    const first = createFileBlobs({ dir, owner: empty(one) });
    await first.health();
    const second = createFileBlobs({ dir, owner: empty(other) });
    await assert.rejects(second.put('staging/b', pieces(noise(10, 1))), refusal(/belongs to another database/));
    assert.equal(await markOf(), `${one}\n`);
    await first.put('staging/b', pieces(noise(10, 1)));
  });

  test('with files of somebody else and none of ours is not the one that the database names', async (t) => {
    const { dir } = await stage(t);
    await mkdir(join(dir, 'projects'), { recursive: true });
    await writeFile(join(dir, 'projects/readme.txt'), 'x');
    await assert.rejects(createFileBlobs({ dir, owner: full(one) }).prepare(), refusal(/mount it/));
    assert.deepEqual(await readdir(dir), ['projects']);
  });

  test('is not touched while nobody can say whose it is, and is asked for again', async (t) => {
    const { dir } = await stage(t);
    let isDown = true;
    const owner = () => (isDown ? Promise.reject(new Error('down')) : empty(one)());
    const blobs = createFileBlobs({ dir, owner });
    await assert.rejects(blobs.prepare(), refusal(/Nobody can say/));
    await assert.rejects(access(dir));
    isDown = false;
    await blobs.prepare();
  });
});

describe('a folder under a running process', () => {
  test('that becomes an empty mount point, or another’s, is an outage, and nothing is made in it', async (t) => {
    const { dir, away } = await stage(t);
    const blobs = createFileBlobs({ dir, owner: empty(one) });
    await blobs.put('staging/b', pieces(noise(10, 1)));
    await rename(dir, away);
    await mkdir(dir);
    const isAway = async () => {
      await assert.rejects(blobs.head('staging/b'), fault('unavailable'));
      await assert.rejects(blobs.put('staging/c', pieces(noise(10, 1))), fault('unavailable'));
      await assert.rejects(blobs.health(), fault('unavailable'));
    };
    await isAway();
    assert.deepEqual(await readdir(dir), []);
    await writeFile(join(dir, '.skrepka'), `${other}\n`);
    await isAway();
    await rm(dir, { recursive: true });
    await rename(away, dir);
    sameBytes(await read(blobs, 'staging/b'), noise(10, 1), 'staging/b');
  });

  test('that another one takes the place of, whole and with our keys, takes and tells nothing', async (t) => {
    const { dir, away } = await stage(t);
    const elsewhere = `${away}-other`;
    const theirs = createFileBlobs({ dir: elsewhere, owner: empty(other) });
    await theirs.put('staging/b', pieces(noise(10, 2)));
    const blobs = createFileBlobs({ dir, owner: full(one) });
    await mkdir(join(dir, 'staging'), { recursive: true });
    await writeFile(join(dir, 'staging/b'), noise(10, 1));
    await blobs.prepare();
    await rename(dir, away);
    await rename(elsewhere, dir);
    await assert.rejects(blobs.put('staging/c', pieces(noise(10, 1))), refusal(/another database/));
    await assert.rejects(blobs.head('staging/none'), fault('unavailable'));
    await assert.rejects(read(blobs, 'staging/b'), fault('unavailable'));
    await assert.rejects(blobs.list('staging/'), fault('unavailable'));
    await assert.rejects(blobs.deleteMany(['staging/b']), fault('unavailable'));
    assert.deepEqual(await readdir(join(dir, 'staging')), ['b']);
    await rename(dir, elsewhere);
    await rename(away, dir);
    sameBytes(await read(blobs, 'staging/b'), noise(10, 1), 'staging/b');
  });

  test('that another one takes the place of while bytes are on their way takes nothing, and ours is whole when it is back', async (t) => {
    const { dir, away } = await stage(t);
    const elsewhere = `${away}-other`;
    await createFileBlobs({ dir: elsewhere, owner: empty(other) }).put('staging/b', pieces(noise(10, 2)));
    const blobs = createFileBlobs({ dir, owner: empty(one) });
    await blobs.put('staging/b', pieces(noise(10, 1)));
    async function* body() {
      yield noise(10, 3);
      await rename(dir, away);
      await rename(elsewhere, dir);
      yield noise(10, 4);
    }
    await assert.rejects(blobs.put('staging/c', body()), refusal(/another database/));
    assert.deepEqual(await readdir(join(dir, 'staging')), ['b']);
    await rename(dir, elsewhere);
    await rename(away, dir);
    sameBytes(await read(blobs, 'staging/b'), noise(10, 1), 'staging/b');
    assert.deepEqual(await readdir(join(dir, 'staging')), ['b']);
  });

  test('that is mounted again while bytes are on their way takes them all the same', async (t) => {
    const { dir, away } = await stage(t);
    const blobs = createFileBlobs({ dir, owner: empty(one) });
    await blobs.put('staging/b', pieces(noise(10, 1)));
    async function* body() {
      yield noise(10, 3);
      // Another file with the same words, as the mark of a disk that was mounted again is.
      await writeFile(`${away}-mark`, `${one}\n`);
      await rename(`${away}-mark`, join(dir, '.skrepka'));
      yield noise(10, 4);
    }
    await blobs.put('staging/c', body());
    assert.equal((await read(blobs, 'staging/c')).length, 20);
  });

  test('whose disk goes and leaves a mount point with a mark of our own takes nothing, and goes on when it is back', async (t) => {
    const { dir, away } = await stage(t);
    await createFileBlobs({ dir, owner: empty(one) }).prepare();
    const mountPoint = `${away}-below`;
    await rename(dir, mountPoint);
    const blobs = createFileBlobs({ dir, owner: async () => ({ id: one, namesObjects: isUsed }) });
    let isUsed = false;
    await blobs.put('staging/b', pieces(noise(10, 1)));
    isUsed = true;
    await rename(dir, away);
    await rename(mountPoint, dir);
    await mkdir(join(dir, 'staging'));
    await assert.rejects(blobs.put('staging/c', pieces(noise(10, 1))), refusal(/mount it/));
    await assert.rejects(blobs.head('staging/b'), fault('unavailable'));
    assert.deepEqual(await readdir(join(dir, 'staging')), []);
    await rename(dir, mountPoint);
    await rename(away, dir);
    sameBytes(await read(blobs, 'staging/b'), noise(10, 1), 'staging/b');
  });

  test('whose temporary folder was tidied away gets it again: uploads, copies and health go on', async (t) => {
    const { dir } = await stage(t);
    // A copy that is a link makes nothing there.
    const blobs = createFileBlobs({ dir, owner: empty(one) }, { hardLinks: false });
    const tidy = () => rm(join(dir, '.tmp'), { recursive: true });
    await blobs.prepare();
    await tidy();
    await blobs.put('staging/b', pieces(noise(10, 1)));
    await tidy();
    await blobs.copy('staging/b', 'staging/c');
    sameBytes(await read(blobs, 'staging/c'), noise(10, 1), 'staging/c');
    await tidy();
    assert.equal(await blobs.head('x/y'), null);
    await blobs.health();
  });
});
