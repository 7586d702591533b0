/** Whether the owner of a leftover is dead, as far as that can be told from here. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { isAbandoned, processTag } from '../src/process-tag.ts';

const hourMs = 60 * 60 * 1000;
const nowMs = 1_800_000_000_000;

test('a tag is fit for a file name and stays the same', () => {
  assert.match(processTag(), /^[1-9]\d*-\d+-\d+-[0-9a-f]+$/);
  assert.equal(processTag(), processTag());
});

test('what a living process left is never abandoned, however old it is', () => {
  assert.equal(isAbandoned(processTag(), 0, nowMs), false);
});

test('what a dead process left is abandoned at once', async () => {
  const module = new URL('../src/process-tag.ts', import.meta.url).href;
  const script = `console.log((await import(${JSON.stringify(module)})).processTag()); setInterval(() => {}, 60_000);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const gone = once(child, 'exit');
  try {
    const [line] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string];
    const tag = line.trim();
    assert.equal(isAbandoned(tag, 0, nowMs), false);
    child.kill('SIGKILL');
    await gone;
    assert.equal(isAbandoned(tag, nowMs, nowMs), true);
  } finally {
    child.kill('SIGKILL');
    await gone;
  }
});

test('a process id that somebody else has by now is not taken for its first owner', () => {
  const [pid, ticks, ...scope] = processTag().split('-');
  assert.equal(isAbandoned([pid, Number(ticks) - 1, ...scope].join('-'), nowMs, nowMs), true);
});

test('owners in another namespace, on another machine or without a tag have an hour', () => {
  const [pid, ticks, space, boot] = processTag().split('-');
  for (const tag of [`${pid}-${ticks}-${Number(space) + 1}-${boot}`, `${pid}-${ticks}-${space}-0`, 'nothing', '']) {
    assert.equal(isAbandoned(tag, nowMs - hourMs, nowMs), false, tag);
    assert.equal(isAbandoned(tag, nowMs - hourMs - 1, nowMs), true, tag);
  }
});
