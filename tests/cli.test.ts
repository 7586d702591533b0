/** The command line: every word has help, and what is not understood is said and ends with 2. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import path from 'node:path';
import test from 'node:test';
import packageFile from '../package.json' with { type: 'json' };

const root = path.resolve(import.meta.dirname, '..');

async function skrepka(words: readonly string[], settings: Record<string, string> = {}) {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: '', ...settings };
  return await new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
    execFile(process.execPath, ['src/main.ts', ...words], { cwd: root, env }, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, stdout, stderr });
    });
  });
}

const words = ['start', 'migrate', 'api', 'relay', 'worker', 'janitor', 'all'];

test('--help names every verb and role, on standard output, and ends with 0', async () => {
  const { code, stdout, stderr } = await skrepka(['--help']);
  assert.equal(code, 0);
  assert.equal(stderr, '');
  for (const word of words) assert.match(stdout, new RegExp(`^ {2}${word}\\b`, 'm'));
});

for (const word of words) {
  test(`${word} --help says what it does and which settings matter`, async () => {
    const { code, stdout } = await skrepka([word, '--help']);
    assert.equal(code, 0);
    assert.match(stdout, new RegExp(`^Usage: skrepka ${word}\\b`));
    assert.match(stdout, /DATABASE_URL/);
  });
}

test('--version prints the version of the package', async () => {
  assert.deepEqual(await skrepka(['--version']), { code: 0, stdout: `${packageFile.version}\n`, stderr: '' });
});

test('no word prints the help on standard error and ends with 2', async () => {
  const { code, stdout, stderr } = await skrepka([]);
  assert.deepEqual([code, stdout], [2, '']);
  assert.match(stderr, /^Usage: skrepka/);
});

for (const [what, given, complaint] of [
  ['an unknown verb', ['strat'], "unknown command 'strat'"],
  ['an unknown option', ['start', '--prot'], "unknown option '--prot'"],
  ['an unknown role beside a known one', ['api', 'relay', 'foo'], "argument value 'foo' is invalid"],
  ['a word too many', ['start', 'now'], 'too many arguments'],
] as const) {
  test(`${what} is named on standard error with a way to help, and ends with 2`, async () => {
    const { code, stdout, stderr } = await skrepka(given);
    assert.deepEqual([code, stdout], [2, '']);
    assert.ok(stderr.includes(complaint), stderr);
    assert.match(stderr, /Try "skrepka --help"/);
  });
}

for (const word of ['migrate', 'api', 'all']) {
  test(`${word} without DATABASE_URL is refused with one sentence and 1`, async () => {
    const { code, stdout, stderr } = await skrepka([word]);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^skrepka: DATABASE_URL is not set: .*"skrepka start".*\.\n$/);
  });
}

test('a database that cannot be reached is one sentence for migrate, without the password', async () => {
  const { code, stderr } = await skrepka(['migrate'], { DATABASE_URL: 'postgres://me:geheim@127.0.0.1:1/nothing' });
  assert.equal(code, 1);
  assert.match(stderr, /^skrepka: The database of DATABASE_URL cannot be migrated: .*ECONNREFUSED.*\.\n$/);
  assert.doesNotMatch(stderr, /geheim/);
});

test('every contradiction of the settings is one sentence', async () => {
  const { code, stderr } = await skrepka(['api'], { LEASE: '1s', PORT: '99999', DATABASE_URL: 'postgres://a@b/c' });
  assert.equal(code, 1);
  for (const line of stderr.trim().split('\n')) assert.match(line, /^skrepka: .*\.$/);
});
