/** Which of the idle children is asked next. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { openScene } from '../support/images-scene.ts';
import { photo } from '../support/pictures.ts';

/** Time on the processor so far, in ticks of 10 ms. */
async function ticksOf(pid: number): Promise<number> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return Number(fields[11]) + Number(fields[12]);
}

test('one picture after the other goes to the child that rendered last, and the spare stays as it was', async (t) => {
  const scene = await openScene({ children: 1, warmSpare: 1 });
  t.after(() => scene.close());
  const picture = await photo(1600, 1200).png().toBuffer();
  const pids = await scene.children();
  const before = await Promise.all(pids.map(ticksOf));
  for (let index = 0; index < 6; index += 1) await scene.render(picture, 'image/png');
  const after = await Promise.all(pids.map(ticksOf));
  const [least = 0, most = 0] = after.map((ticks, at) => ticks - (before[at] ?? 0)).sort((one, other) => one - other);
  assert.ok(least * 5 < most, `${least} and ${most} ticks`);
});
