/** The children: isolated, bounded, replaced; and a driver that outlives whatever they do. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { access, mkdtemp, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { getPriority, tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import sharp from 'sharp';
import { type Code, SkrepkaError } from '../../src/errors.ts';
import { ImagesError } from '../../src/pipeline/ports.ts';
import {
  checkRendering,
  hostileScript,
  memoryOf,
  openScene,
  type Scene,
  type SceneSettings,
} from '../support/images-scene.ts';
import { flat, frames, photo } from '../support/pictures.ts';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';

let small: Buffer;
before(async () => {
  small = await photo(64, 48).png().toBuffer();
});

/** One hostile child and a warm spare. Not niced: what else a machine has to do must not cost a good picture its time. */
const hostileSettings = { children: 1, warmSpare: 1, script: hostileScript, niceness: 0 };
/** A limit of time for what never ends. The first picture of a child, which comes after it, has room in it as well. */
const shortMs = 4000;

async function hostile(t: { after(end: () => Promise<void>): void }, settings: SceneSettings = {}): Promise<Scene> {
  const scene = await openScene({ ...hostileSettings, ...settings });
  t.after(() => scene.close());
  await scene.children();
  return scene;
}

const endsWith = (code: Code) => (error: unknown) => {
  assert.ok(error instanceof SkrepkaError, String(error));
  assert.equal(error.code, code, error.message);
  return true;
};

const exists = (path: string): Promise<boolean> =>
  access(path).then(
    () => true,
    () => false,
  );

const gone = (pid: number) => {
  try {
    process.kill(pid, 0);
    return false;
  } catch {
    return true;
  }
};

describe('a render that goes wrong', () => {
  const memoryBytes = 200 * 1024 * 1024;
  let scene: Scene;
  before(async () => {
    scene = await openScene({ ...hostileSettings, limits: { memoryBytes } });
  });
  after(() => scene.close());

  const cases: Record<string, { name: string; code: Code }> = {
    'never ends': { name: 'hang', code: 'render_timeout' },
    'never ends inside a codec': { name: 'busy', code: 'render_timeout' },
    segfaults: { name: 'segfault', code: 'render_crashed' },
    aborts: { name: 'abort', code: 'render_crashed' },
    'leaves without a word': { name: 'leave', code: 'render_crashed' },
    'is shot by the kernel for its memory': { name: 'killed', code: 'render_memory' },
    'answers for another recipe': { name: 'lie', code: 'render_crashed' },
    'says what no child says': { name: 'babble', code: 'render_crashed' },
  };
  for (const [what, { name, code }] of Object.entries(cases)) {
    test(`one that ${what} ends with ${code}, and the next one is good`, async (t) => {
      const isEndless = code === 'render_timeout';
      const own = isEndless ? await hostile(t, { limits: { memoryBytes, timeoutMs: shortMs } }) : scene;
      await own.children();
      await assert.rejects(own.render(small, 'image/png', { name }), endsWith(code));
      await checkRendering(await own.render(small, 'image/png'));
    });
  }

  test('one that eats memory until nothing is left ends with render_memory, and the next one is good', async (t) => {
    const patient = await hostile(t, { limits: { memoryBytes: 150 * 1024 * 1024 } });
    await assert.rejects(patient.render(small, 'image/png', { name: 'swell' }), endsWith('render_memory'));
    await checkRendering(await patient.render(small, 'image/png'));
  });

  test('the slot of a render that never ends is free within its deadline and a second', async (t) => {
    const scene = await hostile(t, { limits: { timeoutMs: 2000 } });
    const warm = await scene.children();
    // Files and folders first: the deadline begins with the call, and so does the measure.
    const [stuck, behind] = [await scene.prepare(small, 'busy'), await scene.prepare(small, 'hang')];
    const abort = new AbortController();
    const startMs = performance.now();
    const ends = await within('the next render had begun', 3000, async () => {
      const ends = [
        assert.rejects(scene.renderPrepared(stuck, 'image/png'), endsWith('render_timeout')),
        assert.rejects(
          scene.renderPrepared(behind, 'image/png', abort.signal),
          (error) => error === abort.signal.reason,
        ),
      ];
      // One that hangs as well: how long a picture takes is not asked here.
      await until('the one behind has begun', () => exists(join(behind.outputDir, 'started')), { everyMs: 5 });
      return ends;
    });
    const tookMs = performance.now() - startMs;
    assert.ok(tookMs >= 2000, `the next one began after ${Math.round(tookMs)} ms`);
    assert.ok(await exists(join(stuck.outputDir, 'started')), 'the first one was stuck');
    const now = await scene.children();
    assert.equal(now.filter((pid) => warm.includes(pid)).length, 1, 'the spare served, a new one was started');
    abort.abort();
    await Promise.all(ends);
  });

  test('a real picture that needs more memory than a child has ends with render_memory', async (t) => {
    const narrow = await openScene({ children: 1, warmSpare: 0, limits: { memoryBytes: 90 * 1024 * 1024 } });
    t.after(() => narrow.close());
    const large = await flat(6000, 6000, { r: 1, g: 2, b: 3 }).webp({ lossless: true, effort: 0 }).toBuffer();
    await assert.rejects(narrow.render(large, 'image/webp'), endsWith('render_memory'));
    await checkRendering(await narrow.render(small, 'image/png'));
  });

  test('a real picture that needs more time than it has ends with render_timeout', async (t) => {
    const hasty = await openScene({ children: 1, warmSpare: 1, limits: { timeoutMs: 200 } });
    t.after(() => hasty.close());
    const large = await photo(500, 500).resize(4000, 4000).png({ compressionLevel: 1 }).toBuffer();
    const slow = await sharp(large).avif({ effort: 0, chromaSubsampling: '4:4:4' }).toBuffer();
    await hasty.children();
    await assert.rejects(hasty.render(slow, 'image/avif'), endsWith('render_timeout'));
  });

  test('children that cannot start are nobody’s failure, told instead of waited for', async (t) => {
    const scene = await openScene({ script: new URL('./no-such-child.ts', import.meta.url) });
    t.after(() => scene.close());
    await assert.rejects(scene.render(small, 'image/png'), (error) => error instanceof ImagesError);
    assert.ok(scene.logged.some(({ level }) => level === 'error'));
  });
});

describe('giving up and waiting', () => {
  /** How many of the first `count` renders of a scene have reached a child. */
  const started = async (scene: Scene, count: number): Promise<number> => {
    const marks = Array.from({ length: count }, (_, index) =>
      access(join(scene.folder, `out-${index + 1}`, 'started')),
    );
    return (await Promise.allSettled(marks)).filter(({ status }) => status === 'fulfilled').length;
  };

  /** Whether as many renders of a scene were asked for. */
  const called = (scene: Scene, count: number): Promise<boolean> => exists(join(scene.folder, `out-${count}`));

  test('an abort kills the child, rejects with its own reason, and the next picture is good', async (t) => {
    const scene = await hostile(t);
    const pids = await scene.children();
    const abort = new AbortController();
    const reason = new Error('the lease is lost');
    const rendering = assert.rejects(
      scene.render(small, 'image/png', { name: 'busy', signal: abort.signal }),
      (error) => error === reason,
    );
    await until('the render has begun', async () => (await started(scene, 1)) === 1);
    abort.abort(reason);
    await rendering;
    await until('its child is gone', () => pids.some(gone));
    await checkRendering(await scene.render(small, 'image/png'));
    assert.equal((await scene.children()).filter((pid) => pids.includes(pid)).length, 1);
  });

  test('what was given up before it began reaches no child', async (t) => {
    const scene = await hostile(t);
    const reason = new Error('too late');
    const signal = AbortSignal.abort(reason);
    await assert.rejects(scene.render(small, 'image/png', { name: 'hang', signal }), (error) => error === reason);
    assert.equal(await started(scene, 1), 0);
  });

  test('callers beyond the capacity wait, and may give up while they wait', async (t) => {
    const scene = await hostile(t, { limits: { timeoutMs: shortMs } });
    const abort = new AbortController();
    const stuck = assert.rejects(scene.render(small, 'image/png', { name: 'hang' }), endsWith('render_timeout'));
    await until('the first render has begun', async () => (await started(scene, 1)) === 1);
    const reason = new Error('not wanted any more');
    const impatient = assert.rejects(
      scene.render(small, 'image/png', { signal: abort.signal }),
      (error) => error === reason,
    );
    const patient = scene.render(small, 'image/png');
    await until('both wait', () => called(scene, 3));
    abort.abort(reason);
    await impatient;
    await checkRendering(await patient);
    await stuck;
  });

  test('never more renders run at once than there are children, in the order of their calls', async (t) => {
    const scene = await openScene({ children: 2, warmSpare: 1, script: hostileScript });
    t.after(() => scene.close());
    await scene.children();
    const aborts = Array.from({ length: 5 }, () => new AbortController());
    const renders: Promise<unknown>[] = [];
    for (const { signal } of aborts) {
      renders.push(scene.render(small, 'image/png', { name: 'hang', signal }).catch(() => {}));
      // Called one after the other: each is in the queue before the next.
      await until('the call waits', () => called(scene, renders.length));
    }
    for (let ended = 0; ended <= 3; ended += 1) {
      await until('two more run', async () => (await started(scene, 5)) >= ended + 2);
      await scene.children();
      assert.equal(await started(scene, 5), ended + 2, `after ${ended} ended`);
      assert.equal(await started(scene, ended + 2), ended + 2, 'the oldest ones');
      aborts[ended]?.abort();
      await renders[ended];
    }
    for (const abort of aborts) abort.abort();
    await Promise.all(renders);
  });

  test('closing ends all children and all callers', async () => {
    const scene = await openScene({ children: 1, warmSpare: 1, script: hostileScript });
    const pids = await scene.children();
    const running = assert.rejects(
      scene.render(small, 'image/png', { name: 'busy' }),
      (error) => error instanceof ImagesError,
    );
    await until('the render has begun', async () => (await started(scene, 1)) === 1);
    const waiting = assert.rejects(scene.render(small, 'image/png'), (error) => error instanceof ImagesError);
    await until('the second call waits', () => called(scene, 2));
    await scene.images.close();
    await Promise.all([running, waiting]);
    assert.ok(pids.every(gone));
    await assert.rejects(scene.render(small, 'image/png'), (error) => error instanceof ImagesError);
    await scene.close();
  });

  test('children die with their parent, even inside a codec', async (t) => {
    const folder = await mkdtemp(join(tmpdir(), 'skrepka-orphans-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    await writeFile(join(folder, 'good.png'), small);
    const script = fileURLToPath(new URL('../support/images-parent.ts', import.meta.url));
    const parent = spawn(process.execPath, [script, join(folder, 'good.png'), folder], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    t.after(() => void parent.kill('SIGKILL'));
    const line = await new Promise<string>((resolve) => parent.stdout.once('data', (data) => resolve(String(data))));
    const pids = line.trim().split(' ').map(Number);
    assert.equal(pids.length, 2);
    assert.ok(!pids.some(gone));
    parent.kill('SIGKILL');
    await until('both children are gone', () => pids.every(gone));
  });
});

describe('a child', () => {
  let scene: Scene;
  before(async () => {
    process.env.SKREPKA_TEST_SECRET = 'hunter2';
    scene = await openScene({ children: 1, warmSpare: 1, limits: { memoryBytes: 300 * 1024 * 1024 } });
  });
  after(() => scene.close());

  test('inherits no setting, no secret and no stream of its parent', async () => {
    for (const pid of await scene.children()) {
      const names = (await readFile(`/proc/${pid}/environ`, 'utf8'))
        .split('\0')
        .filter(Boolean)
        .map((entry) => entry.split('=')[0]);
      const allowed = [
        'PATH',
        'MALLOC_ARENA_MAX',
        'UV_THREADPOOL_SIZE',
        'NODE_CHANNEL_FD',
        'NODE_CHANNEL_SERIALIZATION_MODE',
        'PWD',
      ];
      assert.deepEqual(
        names.filter((name) => !allowed.includes(name ?? '')),
        [],
      );
      assert.equal(await readlink(`/proc/${pid}/cwd`), '/');
      assert.deepEqual(
        [await readlink(`/proc/${pid}/fd/0`), await readlink(`/proc/${pid}/fd/1`)],
        ['/dev/null', '/dev/null'],
      );
    }
  });

  test('is niced in all its threads, bounded in memory, and dumps no core', async () => {
    for (const pid of await scene.children()) {
      assert.equal(getPriority(pid), 10);
      const limits = await readFile(`/proc/${pid}/limits`, 'utf8');
      const data = Number(/^Max data size\s+(\d+)/m.exec(limits)?.[1]);
      const used = await memoryOf(pid, 'VmData');
      assert.ok(data > used && data - used < 300 * 1024 * 1024, `a limit of ${data}, ${used} at rest`);
      assert.match(limits, /^Max core file size\s+0 /m);
    }
  });

  test('lets an interrupt from the terminal pass: its parent decides when it ends', async () => {
    const pids = await scene.children();
    for (const pid of pids) process.kill(pid, 'SIGINT');
    for (const pid of pids) process.kill(pid, 'SIGTERM');
    await checkRendering(await scene.render(small, 'image/png'));
    assert.deepEqual(await scene.children(), pids);
  });

  test('is replaced after so many renders, and when it holds too much at rest', async (t) => {
    const few = await openScene({ children: 1, warmSpare: 0, rendersMax: 2 });
    t.after(() => few.close());
    const first = await few.children();
    await few.render(small, 'image/png');
    assert.deepEqual(await few.children(), first);
    await few.render(small, 'image/png');
    assert.notDeepEqual(await few.children(), first);

    const lean = await openScene({ children: 1, warmSpare: 0, restingBytesMax: 1 });
    t.after(() => lean.close());
    const before = await lean.children();
    await lean.render(small, 'image/png');
    await checkRendering(await lean.render(small, 'image/png'));
    assert.notDeepEqual(await lean.children(), before);
  });
});

describe('many pictures', () => {
  test('a large animation leaves nothing behind in its child', async (t) => {
    const scene = await openScene({ children: 1, warmSpare: 0 });
    t.after(() => scene.close());
    const [pid] = await scene.children();
    assert.ok(pid);
    // 123 MB of pixels.
    const animation = await frames(640, 640, 100).webp({ effort: 0 }).toBuffer();
    await scene.render(small, 'image/png');
    const before = await memoryOf(pid, 'VmRSS');
    for (let round = 0; round < 2; round += 1) {
      await scene.render(animation, 'image/webp');
      const kept = ((await memoryOf(pid, 'VmRSS')) - before) / 1024 / 1024;
      assert.ok(kept < 60, `after round ${round} it kept ${kept.toFixed(1)} MiB`);
    }
    assert.ok((await memoryOf(pid, 'VmHWM')) - before > 100 * 1024 * 1024);
    assert.deepEqual(await scene.children(), [pid]);
  });

  test('ten photographs of 24 megapixels at once stay within the memory of a child', async (t) => {
    const scene = await openScene({ children: 2, warmSpare: 1 });
    t.after(() => scene.close());
    const pids = await scene.children();
    const photograph = await photo(1500, 1000).resize(6000, 4000, { fit: 'fill' }).jpeg({ quality: 90 }).toBuffer();
    const path = join(scene.folder, 'large.jpg');
    await writeFile(path, photograph);
    const renderings = await Promise.all(Array.from({ length: 10 }, () => scene.renderFile(path, 'image/jpeg')));
    for (const rendering of renderings) assert.deepEqual([rendering.width, rendering.height], [6000, 4000]);
    assert.ok(renderings[0]);
    await checkRendering(renderings[0]);
    assert.deepEqual(await scene.children(), pids, 'no child was replaced');
    for (const pid of pids) {
      const peak = await memoryOf(pid, 'VmHWM');
      assert.ok(peak < 300 * 1024 * 1024, `a child took ${Math.round(peak / 1024 / 1024)} MiB`);
    }
  });

  test('hundreds of small ones in a row do not make a child grow', async (t) => {
    const scene = await openScene({ children: 1, warmSpare: 0 });
    t.after(() => scene.close());
    const [pid] = await scene.children();
    assert.ok(pid);
    const path = join(scene.folder, 'small.jpg');
    // 0.7 MB of pixels each: a leak of them shows.
    await writeFile(path, await photo(600, 400).jpeg().toBuffer());
    // A child lets 32 MiB gather before it collects, so one reading may be that much above another. The lowest ones are compared.
    const run = async (count: number) => {
      let lowest = Number.POSITIVE_INFINITY;
      for (let index = 0; index < count; index += 1) {
        await scene.renderFile(path, 'image/jpeg');
        lowest = Math.min(lowest, await memoryOf(pid, 'VmRSS'));
      }
      return lowest;
    };
    // Its first renders compile its code: 97 MiB after one, about 120 after these.
    await run(80);
    const warm = await run(60);
    const later = await run(60);
    assert.deepEqual(await scene.children(), [pid]);
    const grown = (later - warm) / 1024 / 1024;
    assert.ok(grown < 30, `60 renders made its least grow by ${grown.toFixed(1)} MiB`);
  });
});
