/** How scopes of the benchmarks end: in order, also when interrupted. Interruptions are played in processes of their own. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe, type TestContext, test } from 'node:test';
import { withScope } from '../../bench/scope.ts';
import { onEnd } from '../support/on-end.ts';

/** Plays `body` in a process that knows `withScope`, `interrupt`, `onEnd` and `say`; answers what it said and its exit code. */
async function play(t: TestContext, body: string): Promise<{ said: string[]; code: number | null }> {
  const here = (file: string) => JSON.stringify(new URL(file, import.meta.url).href);
  const script = `import { interrupt, isInterrupted, withScope } from ${here('../../bench/scope.ts')};
    import { onEnd } from ${here('../support/on-end.ts')};
    const say = (word) => process.stdout.write(word + '\\n');
    const never = () => new Promise(() => setInterval(() => {}, 1e6));
    ${body}
    process.exit(0);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const closed = once(child, 'close');
  t.after(() => void child.kill('SIGKILL'));
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  const [code] = (await closed) as [number | null];
  return { said: output.split('\n').filter((line) => line !== ''), code };
}

describe('a scope', () => {
  test('ends the newest first, after its work', async () => {
    const seen: string[] = [];
    const answer = await withScope(async (scope) => {
      onEnd(scope, () => seen.push('folder'));
      onEnd(scope, () => seen.push('server'));
      scope.after(async () => void seen.push('client'));
      seen.push('work');
      return 7;
    });
    assert.equal(answer, 7);
    assert.deepEqual(seen, ['work', 'client', 'server', 'folder']);
  });

  test('ends when its work fails, and tells the failure', async () => {
    const seen: string[] = [];
    const failing = withScope(async (scope) => {
      onEnd(scope, () => seen.push('ended'));
      throw new Error('no disk');
    });
    await assert.rejects(failing, /no disk/);
    assert.deepEqual(seen, ['ended']);
  });
});

describe('an interruption', () => {
  test('ends the inner scope before the outer one, while their work still waits, and lets both reject', async (t) => {
    const { said, code } = await play(
      t,
      `setTimeout(interrupt, 50);
      await withScope(async (outer) => {
        onEnd(outer, () => say('outer'));
        await withScope(async (inner) => {
          onEnd(inner, () => say('inner'));
          await never();
        }).catch((error) => say('inner: ' + error.message));
        await never();
      }).catch((error) => say('outer: ' + error.message));
      say(String(isInterrupted()));`,
    );
    assert.deepEqual(said, ['inner', 'outer', 'inner: Interrupted', 'outer: Interrupted', 'true']);
    assert.equal(code, 0);
  });

  test('ends what was just starting and registers itself late', async (t) => {
    const { said } = await play(
      t,
      `setTimeout(interrupt, 50);
      await withScope(async (scope) => {
        onEnd(scope, async () => { say('first'); setTimeout(() => onEnd(scope, () => say('late')), 20); });
        await never();
      }).catch(() => say('over'));`,
    );
    assert.deepEqual(said, ['first', 'late', 'over']);
  });

  test('is not over before everything ended, even where its work fails at once', async (t) => {
    const { said } = await play(
      t,
      `setTimeout(interrupt, 50);
      await withScope(async (scope) => {
        const lost = Promise.withResolvers();
        onEnd(scope, async () => { await new Promise((end) => setTimeout(end, 100)); say('folder'); });
        onEnd(scope, () => lost.reject(new Error('the server is gone')));
        await lost.promise;
      }).catch(() => say('over'));`,
    );
    assert.deepEqual(said, ['folder', 'over']);
  });

  test('lets nothing start any more', async (t) => {
    const body = `interrupt(); await withScope(async () => say('ran')).catch((error) => say(error.message));`;
    assert.deepEqual((await play(t, body)).said, ['Interrupted']);
  });

  test('asked for twice at once is one, as npm passes on what the terminal sent already', async (t) => {
    const { said, code } = await play(
      t,
      `setTimeout(() => { interrupt(); interrupt(); }, 50);
      await withScope(async (scope) => { onEnd(scope, () => say('ended')); await never(); }).catch(() => say('over'));`,
    );
    assert.deepEqual([said, code], [['ended', 'over'], 0]);
  });
});
