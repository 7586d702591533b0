/** What the renderer tells of its processes: how many are alive, why each was replaced, and which one a line is about. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { hostileScript, openScene } from '../support/images-scene.ts';
import { photo } from '../support/pictures.ts';
import { createTally } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

test('the children that are alive are told, and why one was replaced', async (t) => {
  const meter = createTally();
  const scene = await openScene({
    meter,
    children: 1,
    warmSpare: 1,
    script: hostileScript,
    niceness: 0,
    limits: { timeoutMs: 1500 },
  });
  t.after(() => scene.close());
  const [first = 0] = await scene.children();
  assert.equal(meter.gauged('render_children').at(-1), 2);
  const replaced = (reason: string) => meter.counted('render_children_replaced_total', { reason });

  process.kill(first, 'SIGKILL');
  await until('its death is counted', () => replaced('died') === 1);
  await scene.children();
  const alive = meter.gauged('render_children');
  assert.deepEqual([Math.min(...alive.slice(2)), alive.at(-1)], [1, 2]);

  const picture = await photo(40, 30).jpeg().toBuffer();
  await assert.rejects(scene.render(picture, 'image/jpeg', { name: 'hang' }), { code: 'render_timeout' });
  assert.equal(replaced('deadline'), 1);
  const abort = new AbortController();
  const given = await scene.prepare(picture, 'hang');
  const givenUp = assert.rejects(
    scene.renderPrepared(given, 'image/jpeg', abort.signal),
    (error) => error === abort.signal.reason,
  );
  await until('it has begun', () => existsSync(join(given.outputDir, 'started')));
  abort.abort();
  await givenUp;
  assert.equal(replaced('aborted'), 1);
  await scene.children();
  assert.equal(meter.gauged('render_children').at(-1), 2);
  await scene.close();
  assert.equal(meter.gauged('render_children').at(-1), 0);
});

test('a line about a child names it beside the process that writes, and never in its place', async (t) => {
  const scene = await openScene({ children: 1, warmSpare: 0 });
  t.after(() => scene.close());
  const [child] = await scene.children();
  const about = scene.logged.filter(({ text }) => text.includes('a render child'));
  assert.ok(about.length > 0);
  // The log has a `pid` of its own on every line.
  for (const { fields } of about) assert.ok(!('pid' in fields));
  assert.deepEqual(about[0]?.fields, { child });
});
