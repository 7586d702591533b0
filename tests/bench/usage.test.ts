/** Time and memory of processes, measured on real ones whose own account of it is known. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe, type TestContext, test } from 'node:test';
import {
  cpuMsOf,
  familyPidsOf,
  median,
  peakMiBOf,
  percentile,
  resetPeak,
  residentMiBOf,
  residentMiBOfProcess,
} from '../../bench/usage.ts';
import { isAlive } from '../support/started.ts';

/** Ticks of 10 ms, of user and of system, of up to four processes: the kernel tells only whole ones. */
const lessMsMax = 100;
/**
 * What processes spend after they told of themselves: on sending it, and on their end. With other work on the machine that is
 * many times what it is alone, so the spins are long enough for this to be a quarter of them, or a third.
 */
const moreMsMax = 300;

/** Spins for `ms` of its own time on the processor and answers what it spent in all. */
const spin = `const spin = (ms) => { const spent = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1000; };
  const until = spent() + ms; while (spent() < until); return spent(); };`;

/** A process that runs `script`; it is killed when the test ends. What it sends arrives as words. */
async function start(t: TestContext, script: string, options: readonly string[] = []) {
  const child = spawn(process.execPath, [...options, '-e', `${spin}\n${script}`], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const ended = once(child, 'exit');
  t.after(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  const word = async <T>() => (await once(child, 'message'))[0] as T;
  return { pid: child.pid ?? 0, child, word };
}

/** A child in Node that runs `script` in a session of its own and tells its parent, as PostgreSQL's backends are. */
const startChild = (script: string) =>
  `require('node:child_process').spawn(process.execPath, ['-e', ${JSON.stringify(`${spin}\n${script}`)}], { detached: true, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })`;

function near(actual: number, told: number): void {
  const isNear = actual >= told - lessMsMax && actual <= told + moreMsMax;
  assert.ok(isNear, `${actual} ms, expected about ${told} ms`);
}

describe('time on the processor', () => {
  test('is what the process itself says that it spent', async (t) => {
    const { pid, word } = await start(t, 'process.send(spin(1200)); setInterval(() => {}, 1e6);');
    const spent = await word<number>();
    near(await cpuMsOf([pid]), spent);
  });

  test('grows between two readings by what was spent between them', async (t) => {
    const script =
      'process.send("up"); process.on("message", () => { const from = spin(0); process.send(spin(900) - from); });';
    const { pid, child, word } = await start(t, script);
    await word();
    const before = await cpuMsOf([pid]);
    child.send('go');
    const spent = await word<number>();
    near((await cpuMsOf([pid])) - before, spent);
  });

  test('counts a child that ended and was reaped', async (t) => {
    const script = `let spent; const child = ${startChild('process.send(spin(1500), () => process.exit())')};
      child.on('message', (ms) => { spent = ms; });
      child.on('exit', () => { process.send({ pid: child.pid, ms: spent + spin(0) }); setInterval(() => {}, 1e6); });`;
    const { pid, word } = await start(t, script);
    const { pid: reaped, ms } = await word<{ pid: number; ms: number }>();
    assert.ok(!isAlive(reaped));
    near(await cpuMsOf([pid]), ms);
  });

  test('counts a grandchild in a session of its own, while it lives and after it was reaped', async (t) => {
    const grandchild = 'process.send(spin(1200)); process.on("message", () => process.exit());';
    const between = `const own = ${startChild(grandchild)};
      own.on('message', (ms) => process.send({ grandchild: own.pid, ms: ms + spin(0) }));
      own.on('exit', () => process.send({ reaped: true, ms: 0 })); process.on('message', () => own.send('end'));`;
    const script = `const child = ${startChild(between)}; child.on('message', (word) => process.send({ ...word, child: child.pid, ms: word.ms + spin(0) }));
      process.on('message', () => child.send('end')); process.on('disconnect', () => process.kill(child.pid, 'SIGKILL'));`;
    const root = await start(t, script);
    const told = await root.word<{ child: number; grandchild: number; ms: number }>();
    t.after(() => {
      for (const pid of [told.child, told.grandchild]) if (isAlive(pid)) process.kill(pid, 'SIGKILL');
    });
    assert.deepEqual(
      familyPidsOf([root.pid]).toSorted((one, other) => one - other),
      [root.pid, told.child, told.grandchild].toSorted((one, other) => one - other),
    );
    near(await cpuMsOf([root.pid]), told.ms);
    root.child.send('end');
    await root.word<{ reaped: boolean }>();
    assert.ok(!isAlive(told.grandchild));
    near(await cpuMsOf([root.pid]), told.ms);
  });

  test('counts a process once, however many roots lead to it', async (t) => {
    const script = `const child = ${startChild('process.send(spin(900)); setInterval(() => {}, 1e6);')};
      child.on('message', (ms) => process.send({ pid: child.pid, ms: ms + spin(0) }));`;
    const { pid, word } = await start(t, script);
    const told = await word<{ pid: number; ms: number }>();
    t.after(() => process.kill(told.pid, 'SIGKILL'));
    near(await cpuMsOf([pid, told.pid, pid]), told.ms);
  });

  test('of a process that is gone is an error, not a smaller sum', async (t) => {
    const { pid, child } = await start(t, '');
    if (child.exitCode === null) await once(child, 'exit');
    await assert.rejects(cpuMsOf([process.pid, pid]), new RegExp(`Process ${pid} is gone`));
  });
});

describe('memory', () => {
  test('has its peak where it was largest, until the peak is forgotten', async (t) => {
    const script = `process.send('up'); process.on('message', () => { Buffer.alloc(200 * 2 ** 20, 1); gc(); setImmediate(() => { gc(); process.send('done'); }); });`;
    const { pid, child, word } = await start(t, script, ['--expose-gc']);
    await word();
    await resetPeak(pid);
    const restingMiB = await residentMiBOfProcess(pid);
    assert.ok((await peakMiBOf(pid)) - restingMiB < 30);
    child.send('grow');
    await word();
    assert.ok((await peakMiBOf(pid)) - restingMiB > 190);
    await resetPeak(pid);
    assert.ok((await peakMiBOf(pid)) - restingMiB < 100);
  });

  test('of a family divides what its processes share', async (t) => {
    const script = `const child = ${startChild('process.send("up"); setInterval(() => {}, 1e6);')}; child.on('message', () => process.send(child.pid));`;
    const { pid, word } = await start(t, script);
    const other = await word<number>();
    t.after(() => process.kill(other, 'SIGKILL'));
    const family = await residentMiBOf([pid]);
    const sum = (await residentMiBOfProcess(pid)) + (await residentMiBOfProcess(other));
    assert.ok(family > 20 && family < sum, `${family} MiB of ${sum}`);
  });

  test('of a process that is gone is an error', async (t) => {
    const { pid, child } = await start(t, '');
    if (child.exitCode === null) await once(child, 'exit');
    await assert.rejects(peakMiBOf(pid), /is gone/);
    await assert.rejects(residentMiBOf([pid]), /is gone/);
  });
});

describe('order statistics', () => {
  test('a percentile is the nearest rank', () => {
    const sorted = Array.from({ length: 200 }, (_, at) => at + 1);
    assert.deepEqual(
      [0, 1, 50, 95, 99, 100].map((p) => percentile(sorted, p)),
      [1, 2, 100, 190, 198, 200],
    );
    assert.equal(percentile([7], 95), 7);
  });

  test('a share in place of a percentage is refused, as is nothing to take it of', () => {
    assert.throws(() => percentile([1, 2], 0.95), /from 1 to 100, received 0.95/);
    assert.throws(() => percentile([1, 2], 101), /received 101/);
    assert.throws(() => percentile([], 50), /received none/);
    assert.throws(() => median([]), /received none/);
  });

  test('a median is the middle in any order, or the mean of the two in the middle', () => {
    assert.equal(median([9, 1, 5]), 5);
    assert.equal(median([10, 9, 1, 2]), 5.5);
  });
});
