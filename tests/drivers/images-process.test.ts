/** What the end of a child is taken for, and what an empty one counts as data. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { bareDataBytes, verdictOf } from '../../src/drivers/images-process.ts';

test('deaths that speak of memory are told from crashes', () => {
  const words = {
    'GLib-ERROR **: ../glib/gmem.c:136: failed to allocate 402653184 bytes': 'render_memory',
    "terminate called after throwing an instance of 'std::bad_alloc'": 'render_memory',
    '# Fatal process out of memory: Zone': 'render_memory',
    'free(): invalid pointer': 'render_crashed',
    '': 'render_crashed',
  };
  for (const [text, code] of Object.entries(words)) assert.equal(verdictOf(null, 'SIGABRT', text).code, code, text);
  assert.equal(verdictOf(null, 'SIGKILL', '').code, 'render_memory');
  assert.equal(verdictOf(null, 'SIGSEGV', '').code, 'render_crashed');
  assert.equal(verdictOf(7, null, 'x'.repeat(5000)).log.length < 1200, true);
});

test('the memory of an empty process is measured or not known, never guessed', async () => {
  assert.ok((await bareDataBytes()) > 100 * 1024 ** 2);
  await assert.rejects(bareDataBytes(1));
});
