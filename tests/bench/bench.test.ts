/** The command line of the benchmarks: what it refuses before anything is measured, and what it lists. Nothing is measured here. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { describe, test } from 'node:test';

const root = path.resolve(import.meta.dirname, '../..');

async function bench(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  return await new Promise((resolve) => {
    execFile(process.execPath, [path.join(root, 'bench/bench.ts'), ...args], { cwd: root }, (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr }),
    );
  });
}

const rowFiles = readdirSync(path.join(root, 'bench/rows')).map((name) => path.basename(name, '.ts'));

describe('the command', () => {
  test('lists every row with its rounds and its title', async () => {
    const { code, stdout } = await bench('--list');
    const listed = stdout.trim().split('\n');
    assert.equal(code, 0);
    assert.deepEqual(listed.map((line) => line.split(' ')[0]).sort(), rowFiles.toSorted());
    for (const line of listed) assert.match(line, /^[a-z-]+ \(\d+ rounds\): \S/);
  });

  test('refuses a row that it does not know, and names those that it does', async () => {
    const { code, stderr } = await bench('--rows', 'idle,nothing');
    assert.equal(code, 2);
    assert.match(stderr, /Expected rows of .*\bidle\b.*, received "nothing"/);
  });

  test('refuses rounds that are no number, none, or far too many', async () => {
    for (const rounds of ['three', '0', '101', '1.5']) {
      const { code, stderr } = await bench('--rows', 'idle', '--rounds', rounds);
      assert.equal(code, 2);
      assert.ok(stderr.includes(`from 1 to 100 for --rounds, received "${rounds}"`), stderr);
    }
  });

  test('refuses an option that it does not know, and shows the help', async () => {
    const { code, stderr } = await bench('--fast');
    assert.equal(code, 2);
    assert.match(stderr, /'--fast'/);
    assert.match(stderr, /Usage: npm run bench/);
  });

  test('says with --help what each option and exit code means', async () => {
    const { code, stdout } = await bench('--help');
    assert.equal(code, 0);
    for (const word of ['--rows', '--rounds', '--quick', '--out', '--list', 'Exit code', '130']) {
      assert.ok(stdout.includes(word), word);
    }
  });
});
