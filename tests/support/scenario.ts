/** Runs `npm run scenario` for tests: what it said, with which code it ended, and whether it cleared away after itself. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access } from 'node:fs/promises';
import { resolve } from 'node:path';

const script = resolve(import.meta.dirname, '../../scripts/scenario.ts');

export interface Ran {
  readonly code: number | null;
  readonly output: string;
}

/** Sends `SIGINT` as soon as it has said `interruptAt`. */
export async function scenario(
  words: readonly string[] = [],
  { interruptAt, environment = {} }: { interruptAt?: RegExp; environment?: Readonly<Record<string, string>> } = {},
): Promise<Ran> {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: undefined, ...environment };
  const child = spawn(process.execPath, [script, ...words], { env, stdio: ['ignore', 'pipe', 'pipe'] });
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

/** Neither its folder nor any process that it named is there any more. */
export async function assertCleared(output: string): Promise<void> {
  const folder = /real processes in (\S+)/.exec(output)?.[1];
  assert.ok(folder, output);
  await assert.rejects(access(folder), { code: 'ENOENT' });
  for (const [, pid] of output.matchAll(/process (\d+)/g)) {
    assert.throws(() => process.kill(Number(pid), 0), { code: 'ESRCH' }, `process ${pid} still runs`);
  }
}

/** Level 4 held, from its first act to its last, told no secret, and left nothing. */
export async function assertOperated({ code, output }: Ran): Promise<void> {
  assert.equal(code, 0, output);
  assert.match(output, /All \d\d expectations held\.$/m);
  for (const act of ['Act 1', 'Act 2', 'Act 3', 'Act 4', 'The end']) assert.ok(output.includes(`\n${act}`), act);
  // The evidence, as operators read it: a crash that was counted, a replay, a lease that moved and one that did not.
  assert.match(output, /processing → processing fence 2 {2}crashed/);
  assert.match(output, /failed → queued {5}fence 1 {2}replayed/);
  assert.ok(new Set(output.match(/lease_until [\d:.]+/g)).size > 5, output);
  assert.doesNotMatch(output, /skr_|bearer|password|postgres:\/\/|SKSKREPKA/i);
  await assertCleared(output);
}
