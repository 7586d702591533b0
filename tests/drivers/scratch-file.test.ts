/** The scratch folders of a worker: private, counted and hashed, gone with their attempt, swept after a death. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { access, mkdir, mkdtemp, readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { test } from 'node:test';
import { createFileScratch } from '../../src/drivers/scratch-file.ts';
import type { Scratch } from '../../src/pipeline/ports.ts';
import { ScratchError } from '../../src/pipeline/ports.ts';
import { processTag } from '../../src/process-tag.ts';
import { noise, pieces, wholeOf } from '../support/bytes.ts';

function scratchTest(title: string, run: (scratch: Scratch, dir: string) => Promise<void>): void {
  test(title, async () => {
    const dir = await mkdtemp(join(tmpdir(), 'skrepka-scratch-'));
    try {
      await run(createFileScratch({ dir: join(dir, 'scratch') }), join(dir, 'scratch'));
    } finally {
      await rm(dir, { recursive: true });
    }
  });
}

scratchTest('a file written to scratch has the size and digest of its body and reads back', async (scratch) => {
  const folder = await scratch.open('attempt-1');
  const bytes = noise(300_000, 1);
  const file = await folder.write('source.jpg', pieces(bytes));
  assert.equal(file.size, bytes.length);
  assert.equal(file.sha256, createHash('sha256').update(bytes).digest('hex'));
  assert.ok((await readFile(file.path)).equals(bytes));
  assert.ok((await wholeOf(folder.read(file.path))).equals(bytes));
  const empty = await folder.write('empty', pieces(noise(0, 1)));
  assert.equal(empty.size, 0);
});

scratchTest('folders are private to the process’s user and to one attempt', async (scratch, dir) => {
  const first = await scratch.open('attempt-1');
  const second = await scratch.open('attempt-2');
  assert.notEqual(first.path, second.path);
  const file = await first.write('a', pieces(noise(1, 1)));
  for (const path of [dir, first.path]) assert.equal((await stat(path)).mode & 0o777, 0o700);
  assert.equal((await stat(file.path)).mode & 0o777, 0o600);
  await assert.rejects(scratch.open('attempt-1'), (error) => error instanceof ScratchError);
});

scratchTest('a body that throws rejects with that very error and leaves no file', async (scratch) => {
  const folder = await scratch.open('attempt-1');
  const error = new Error('staging broke off');
  async function* body() {
    yield noise(100_000, 1);
    throw error;
  }
  await assert.rejects(folder.write('source', body()), (received) => received === error);
  assert.deepEqual(await readdir(folder.path), []);
  await folder.write('source', pieces(noise(10, 1)));
});

scratchTest('a name or path that leaves the folder is refused', async (scratch) => {
  const folder = await scratch.open('attempt-1');
  for (const name of ['../a', 'a/b', '', '.', '..', '.hidden', '/tmp/a', 'a\0']) {
    await assert.rejects(folder.write(name, pieces(noise(1, 1))), TypeError, JSON.stringify(name));
    await assert.rejects(scratch.open(name), TypeError, JSON.stringify(name));
  }
  for (const path of ['/etc/passwd', '..', '../attempt-2/a', `${folder.path}-other/a`, folder.path]) {
    assert.throws(() => folder.read(path), TypeError, path);
  }
});

scratchTest('reading a missing file rejects with the system’s words for the log', async (scratch) => {
  const folder = await scratch.open('attempt-1');
  await assert.rejects(wholeOf(folder.read(join(folder.path, 'none'))), (error) => {
    assert.ok(error instanceof ScratchError);
    assert.match(error.message, /ENOENT/);
    return true;
  });
});

scratchTest(
  'after all attempts have ended nothing is left, also when they end beside beginnings',
  async (scratch, dir) => {
    await Promise.all(
      Array.from({ length: 100 }, async (_, at) => {
        const folder = await scratch.open(`attempt-${at}`);
        await folder.write('source', pieces(noise(100, at)));
        await mkdir(join(folder.path, 'out'));
        await writeFile(join(folder.path, 'out', 'thumbnail.jpg'), 'x');
        await folder.remove();
        await folder.remove();
      }),
    );
    assert.deepEqual(await readdir(dir), []);
  },
);

/** Runs a script for which no file may become larger than 1 MiB: the disk of whoever runs this need not be filled. */
async function saidOnASmallDisk(script: string): Promise<string> {
  const limits = 'trap "" XFSZ; ulimit -f 2048; exec "$@"';
  const child = spawn('/bin/sh', ['-c', limits, 'sh', process.execPath, '--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const said = wholeOf(child.stdout);
  const [code] = await once(child, 'exit');
  assert.equal(code, 0);
  return Buffer.from(await said).toString();
}

scratchTest('is healthy while there is room for what it must hold, and leaves nothing behind', async (scratch, dir) => {
  await Promise.all([scratch.health(), scratch.health()]);
  const folder = await scratch.open('attempt-1');
  await scratch.health();
  assert.deepEqual(await readdir(join(folder.path, '..')), ['attempt-1']);
  await folder.remove();
  await scratch.health();
  assert.deepEqual(await readdir(dir), []);
});

scratchTest(
  'is not healthy where less than that can be written, and leaves nothing behind either',
  async (_scratch, dir) => {
    const driver = new URL('../../src/drivers/scratch-file.ts', import.meta.url).href;
    const script = `
    const { createFileScratch } = await import(${JSON.stringify(driver)});
    const health = (roomBytes) => createFileScratch({ dir: ${JSON.stringify(dir)}, roomBytes }).health();
    await health(500_000);
    console.log(await health(1_500_000).then(() => 'room', (error) => error.name));`;
    assert.equal(await saidOnASmallDisk(script), 'ScratchError\n');
    assert.deepEqual(await readdir(dir), []);
  },
);

scratchTest(
  'needs room for half of its file system at most, which a file system that is too small for an original still has',
  async (_scratch, dir) => {
    const driver = new URL('../../src/drivers/scratch-file.ts', import.meta.url).href;
    const script = `
    const { createFileScratch } = await import(${JSON.stringify(driver)});
    for (const size of [2_000_000, 4_000_000, 0]) {
      const scratch = createFileScratch({ dir: ${JSON.stringify(dir)}, roomBytes: 1_500_000, sizeOf: async () => size });
      console.log(await scratch.health().then(() => 'room', (error) => error.name));
    }`;
    assert.equal(await saidOnASmallDisk(script), 'room\nScratchError\nScratchError\n');
    assert.deepEqual(await readdir(dir), []);
  },
);

scratchTest('is not healthy where its file system fails to tell its size', async (_scratch, dir) => {
  const sizeOf = () => Promise.reject(new Error('EIO'));
  await assert.rejects(createFileScratch({ dir, sizeOf }).health(), { name: 'ScratchError', message: /size.*: EIO/ });
  assert.deepEqual(await readdir(dir), []);
});

scratchTest('a folder is removed with whatever is in it, and once it is gone already', async (scratch, dir) => {
  const folder = await scratch.open('attempt');
  await folder.write('source', Readable.from([Buffer.from('a')]));
  await mkdir(join(folder.path, 'inner'));
  await writeFile(join(folder.path, 'inner', 'file'), 'b');
  await folder.remove();
  await folder.remove();
  assert.deepEqual(await readdir(dir), []);
});

scratchTest('a sweep removes what dead workers left, and nothing of the living', async (scratch, dir) => {
  await scratch.sweep();
  const own = await scratch.open('attempt-1');
  const kept = await own.write('source', pieces(noise(10, 1)));
  const driver = new URL('../../src/drivers/scratch-file.ts', import.meta.url).href;
  const script = `
    const { createFileScratch } = await import(${JSON.stringify(driver)});
    const folder = await createFileScratch({ dir: ${JSON.stringify(dir)} }).open('attempt-2');
    async function* body() { yield Buffer.from('half'); }
    await folder.write('source', body());
    console.log(folder.path);
    setInterval(() => {}, 60_000);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const gone = once(child, 'exit');
  try {
    const [line] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string];
    const theirs = line.trim();
    await scratch.sweep();
    await access(join(theirs, 'source'));
    child.kill('SIGKILL');
    await gone;
    await scratch.sweep();
    await assert.rejects(access(theirs));
    await access(kept.path);
    assert.deepEqual(await readdir(dir), [processTag()]);
  } finally {
    child.kill('SIGKILL');
    await gone;
  }
});

scratchTest('a sweep leaves a stranger’s folder alone until it was untouched for an hour', async (scratch, dir) => {
  const [fresh, old] = ['77-1-1-feed', '78-1-1-feed'];
  for (const name of [fresh, old]) await mkdir(join(dir, name, 'attempt'), { recursive: true });
  const longAgo = new Date(Date.now() - 61 * 60 * 1000);
  await utimes(join(dir, old), longAgo, longAgo);
  await scratch.sweep();
  assert.deepEqual(await readdir(dir), [fresh]);
});
