/** `npm run scenario`: the demonstration holds, tells no secret, and clears away after itself, also when interrupted. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access } from 'node:fs/promises';
import { resolve } from 'node:path';
import { test } from 'node:test';

const script = resolve(import.meta.dirname, '../../scripts/scenario.ts');

/** Runs it; sends `SIGINT` as soon as it has said `interruptAt`. */
async function scenario(interruptAt: RegExp | null): Promise<{ code: number | null; output: string }> {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: undefined };
  const child = spawn(process.execPath, [script], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  let interrupted = false;
  const hear = (text: string) => {
    output += text;
    if (interrupted || !interruptAt?.test(output)) return;
    interrupted = true;
    child.kill('SIGINT');
  };
  child.stdout.setEncoding('utf8').on('data', hear);
  child.stderr.setEncoding('utf8').on('data', hear);
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, output };
}

async function isCleared(output: string): Promise<void> {
  const folder = /real processes in (\S+)/.exec(output)?.[1];
  assert.ok(folder, output);
  await assert.rejects(access(folder), { code: 'ENOENT' });
  for (const [, pid] of output.matchAll(/process (\d+)/g)) {
    assert.throws(() => process.kill(Number(pid), 0), { code: 'ESRCH' }, `process ${pid} still runs`);
  }
}

test('the scenario holds from the 202 over the deaths to the thumbnail, and leaves nothing running', async () => {
  const { code, output } = await scenario(null);
  assert.equal(code, 0, output);
  assert.match(output, /All \d\d expectations held\.$/m);
  const attachments = [...output.matchAll(/attachment ([0-9a-f-]{36})/g)].map(([, id]) => id);
  assert.equal(attachments.length, 2, output);
  assert.equal(attachments[0], attachments[1], 'the same attachment is accepted and ready');
  assert.doesNotMatch(output, /skr_|bearer|password/i);
  await isCleared(output);
});

test('an interrupted scenario fails and leaves nothing running', async () => {
  const { code, output } = await scenario(/queued/);
  assert.equal(code, 1, output);
  await isCleared(output);
});
