/**
 * `npm test [-- pattern…]`: runs every `*.test.ts` below `tests/` with the runner of Node on one throw-away PostgreSQL.
 *
 * A pattern is a part of a file name; options (`--test-name-pattern=…`) go to the runner. Skipped tests are listed at
 * the end, and with `CI=true` a single one fails the run: a test that did not run proves nothing.
 */

import { spawn } from 'node:child_process';
import { globSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';

const root = path.resolve(import.meta.dirname, '..');
const { options, patterns } = split(process.argv.slice(2));
const files = choose(patterns);
if (files.length === 0) {
  console.error(`No test file matches ${patterns.join(', ')}.`);
  process.exit(2);
}
const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-skips-'));
const skipsFile = path.join(folder, 'skips.txt');
let code = await run();
const skips = (await readFile(skipsFile, 'utf8').catch(() => '')).split('\n').filter((line) => line !== '');
await rm(folder, { recursive: true, force: true });
if (skips.length > 0) {
  console.log(`\nSkipped:\n${skips.map((line) => `  ${line}`).join('\n')}`);
  if (process.env.CI === 'true') {
    console.log('A skipped test fails the run, because CI=true.');
    code ||= 1;
  }
}
process.exitCode = code;

function split(args: readonly string[]): { options: string[]; patterns: string[] } {
  const options: string[] = [];
  const patterns: string[] = [];
  for (let at = 0; at < args.length; at += 1) {
    const arg = args[at] ?? '';
    if (!arg.startsWith('-')) patterns.push(arg);
    else if (/^--test-(name|skip)-pattern$/.test(arg)) options.push(`${arg}=${args[++at] ?? ''}`);
    else options.push(arg);
  }
  return { options, patterns };
}

function choose(patterns: readonly string[]): string[] {
  const all = globSync('tests/**/*.test.ts', { cwd: root }).sort();
  const wanted = patterns.map((pattern) => pattern.replace(/^\.\//, ''));
  return wanted.length === 0 ? all : all.filter((file) => wanted.some((part) => file.includes(part)));
}

async function run(): Promise<number> {
  const args = [
    '--test',
    '--test-global-setup=./tests/support/global-setup.ts',
    // Most tests wait for other processes, so two at once pay off on the smallest machine as well.
    `--test-concurrency=${Math.max(2, availableParallelism())}`,
    '--test-timeout=300000',
    '--test-reporter=spec',
    '--test-reporter-destination=stdout',
    '--test-reporter=./tests/support/skip-reporter.ts',
    `--test-reporter-destination=${skipsFile}`,
    ...options,
    ...files,
  ];
  const child = spawn(process.execPath, args, { cwd: root, stdio: 'inherit' });
  // The terminal's Ctrl-C reaches the runner by itself; we wait for its clean-up.
  process.on('SIGINT', () => {});
  process.on('SIGTERM', () => child.kill('SIGTERM'));
  return await new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (exitCode, signal) => resolve(signal ? 1 : (exitCode ?? 1)));
  });
}
