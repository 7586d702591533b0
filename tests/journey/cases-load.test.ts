/**
 * Cases that broke other systems by number or by force: hundreds of uploads in a row, thousands of renders, and pictures
 * that hang, crash or swell the process that renders them. `docs/cases.md` lists all cases with their tests.
 */
import assert from 'node:assert/strict';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { register } from '../support/client.ts';
import { childrenOf, memoryOf, openScene } from '../support/images-scene.ts';
import { filesBelow, letGo, openJourney } from '../support/journey.ts';
import { flat, photo } from '../support/pictures.ts';
import { longLease, type RoleProcess } from '../support/role.ts';
import { until } from '../support/until.ts';

test('six hundred small pictures in a row do not make the child that renders them grow, nor keep a file open', async (t) => {
  // One child for all of them, where a worker would take another one after 500.
  const scene = await openScene({ children: 1, warmSpare: 0, rendersMax: 10_000, niceness: 0 });
  t.after(() => scene.close());
  const [pid] = await scene.children();
  assert.ok(pid);
  const path = join(scene.folder, 'small.jpg');
  await writeFile(path, await photo(24, 16).jpeg().toBuffer());
  const run = async (count: number) => {
    for (let index = 0; index < count; index += 1) await scene.renderFile(path, 'image/jpeg');
    const files = (await readdir(`/proc/${pid}/fd`)).length;
    return { memory: (await memoryOf(pid, 'VmRSS')) / 1024 / 1024, files };
  };
  // It fills its caches until it begins to collect, which is where it stays.
  const warm = await run(600);
  const later = await run(600);
  assert.deepEqual(await scene.children(), [pid], 'the child was never replaced');
  assert.ok(later.memory - warm.memory < 16, `${warm.memory.toFixed(1)} MiB became ${later.memory.toFixed(1)}`);
  assert.ok(later.files <= warm.files, `${warm.files} open files became ${later.files}`);
});

test('five hundred uploads leave scratch empty, and in the storage what rows name', async (t) => {
  const j = await openJourney(t, { RENDER_CONCURRENCY: '2' });
  const api = await j.start(['api', 'relay', 'janitor']);
  const users = await Promise.all([1, 2, 3, 4, 5].map(() => register(() => api.url)));
  const worker = await j.start(['worker'], { 'worker.downloaded': 'wait' });
  const scratch = join(j.dataDir, 'scratch');
  const picture = await photo(24, 16).jpeg().toBuffer();
  const bodyOf = (number: number): [bytes: Buffer, type: string] => {
    if (number % 5 !== 0) return [Buffer.from(`note ${number}`), 'text/plain'];
    // Each is another picture; one in fifty breaks off in the middle.
    const whole = Buffer.concat([picture, Buffer.from(String(number))]);
    return [number % 50 === 0 ? picture.subarray(0, picture.length / 2) : whole, 'image/jpeg'];
  };
  const first = 5;
  await users[0]?.upload(...bodyOf(first));
  await worker.reached('worker.downloaded');
  assert.equal((await filesBelow(scratch)).length, 1, 'a picture lies in scratch while it is worked on');
  await letGo(worker, 'worker.downloaded');
  let next = 1;
  const lanes = users.map(async (user) => {
    for (let number = next++; number <= 500; number = next++) {
      if (number !== first) await user.upload(...bodyOf(number));
    }
  });
  await Promise.all(lanes);
  const unfinished = async () =>
    (await j.pool.query(`select 1 from jobs where state in ('queued', 'processing')`)).rowCount === 0;
  await until('all are over', unfinished, { deadlineMs: 200_000, everyMs: 100 });
  const { rows } = await j.pool.query(
    'select state, error_code, count(*)::int as n from attachments group by 1, 2 order by 1',
  );
  assert.deepEqual(rows, [
    { state: 'failed', error_code: 'corrupt_image', n: 10 },
    { state: 'ready', error_code: null, n: 490 },
  ]);
  await until('scratch is empty', async () => (await readdir(scratch)).length === 0);
  await j.assertTidy();
});

/** The processes of a worker that are ready to render: the one for its only slot, and the spare. */
function rendering(worker: RoleProcess): Promise<number[]> {
  return until('the processes that render are ready', async () => {
    const lines = worker
      .output()
      .split('\n')
      .filter((line) => line.includes('a render child is ready'));
    const ready = lines.map((line) => (JSON.parse(line) as { child: number }).child);
    const found = (await childrenOf(worker.pid)).filter((pid) => ready.includes(pid));
    return found.length === 2 && found;
  });
}

function signal(pids: readonly number[], name: NodeJS.Signals): void {
  for (const pid of pids) process.kill(pid, name);
}

interface Misdeed {
  readonly what: string;
  readonly code: string;
  /** A small one when left out. */
  readonly picture?: () => Promise<Buffer>;
  readonly settings?: Readonly<Record<string, string>>;
  /** Lets an attempt go on that stands before its render, and makes that render go wrong. */
  spoil(worker: RoleProcess): Promise<void>;
}

const misdeeds: readonly Misdeed[] = [
  {
    what: 'never ends',
    code: 'render_timeout',
    async spoil(worker) {
      signal(await rendering(worker), 'SIGSTOP');
      await worker.resume('worker.downloaded');
    },
  },
  {
    what: 'crashes',
    code: 'render_crashed',
    async spoil(worker) {
      const pids = await rendering(worker);
      // Stopped, it can be asked and does not answer; the answer to another question says that it was asked.
      signal(pids, 'SIGSTOP');
      await worker.resume('worker.downloaded');
      await worker.disarm('relay.taken');
      signal(pids, 'SIGSEGV');
      signal(pids, 'SIGCONT');
    },
  },
  {
    what: 'is shot by the kernel for its memory',
    code: 'render_memory',
    async spoil(worker) {
      const pids = await rendering(worker);
      signal(pids, 'SIGSTOP');
      await worker.resume('worker.downloaded');
      await worker.disarm('relay.taken');
      signal(pids, 'SIGKILL');
    },
  },
  {
    what: 'needs more memory than it may have',
    code: 'render_memory',
    picture: () => flat(5700, 5700, { r: 1, g: 2, b: 3 }).webp({ lossless: true, effort: 0 }).toBuffer(),
    settings: {
      ...{ RENDER_MEMORY: '128MiB', MAX_PIXELS: '33000000', MAX_PIXELS_AVIF: '5000000' },
      // Time is not what it shall fail by.
      RENDER_TIMEOUT: '50s',
    },
    spoil: (worker) => worker.resume('worker.downloaded'),
  },
];

const small = () => photo(24, 16).jpeg().toBuffer();

for (const { what, code, picture = small, settings = {}, spoil } of misdeeds) {
  test(`a picture whose render ${what} is tried twice and fails with ${code}, and the worker goes on`, async (t) => {
    const j = await openJourney(t, { ...longLease, ...settings });
    const api = await j.start(['api', 'relay', 'janitor']);
    const user = await register(() => api.url);
    const worker = await j.start(['worker'], { 'worker.downloaded': 'wait' });
    const { id } = await user.upload(await picture(), picture === small ? 'image/jpeg' : 'image/webp');
    for (const _ of ['first', 'second']) {
      await worker.reached('worker.downloaded');
      await spoil(worker);
    }
    assert.equal((await user.until(id, 'failed')).error_code, code);
    const { attempts, failures, crashes } = await j.job(id);
    assert.deepEqual([attempts, failures, crashes], [2, 2, 0]);

    signal(await childrenOf(worker.pid), 'SIGCONT');
    await worker.disarm('worker.downloaded');
    const next = await small();
    const { id: nextId } = await user.upload(next);
    await user.assertWhole(await user.until(nextId, 'ready'), next);
    assert.equal((await j.job(nextId)).attempts, 1);
    // The worker tidies up after it has said that the picture is ready.
    const scratch = join(j.dataDir, 'scratch');
    await until('scratch is empty', async () => (await filesBelow(scratch)).length === 0);
    assert.equal(await worker.stop(), 0, 'it is still the same process, and ends in order');
  });
}
