/** The command line: every word has help, and what is not understood is said and ends with 2. */
import assert from 'node:assert/strict';
import test from 'node:test';
import packageFile from '../package.json' with { type: 'json' };
import { readOrder } from '../src/cli.ts';
import { skrepka } from './support/command.ts';

const verbs = ['status', 'jobs', 'job', 'replay', 'reprocess', 'sweep', 'doctor', 'operator'];
const words = ['start', 'migrate', ...verbs, 'api', 'relay', 'worker', 'janitor', 'all'];
const anId = '019a7c3e-0000-7000-8000-000000000000';

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

for (const verb of verbs) {
  test(`${verb} --help has examples that work from a clone, options, exit codes`, async () => {
    const { stdout } = await skrepka([verb, '--help']);
    const examples = [...stdout.matchAll(/^ {2}npm run -s skrepka -- (.+)$/gm)].map(([, line = '']) => line.split(' '));
    assert.ok(examples.length > 0, stdout);
    assert.match(stdout, /--json/);
    assert.match(stdout, /Exit codes: 0 .*, 1 .*, 2 /);
    for (const example of examples) {
      assert.equal(example[0], verb);
      const order = readOrder(example, '');
      assert.ok(order.kind === 'verb' && order.verb.kind.startsWith(verb), example.join(' '));
    }
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
  ['a further role beside all of them', ['all', 'worker'], 'too many arguments'],
  ['a state that no job is in', ['jobs', '--state', 'lost'], "argument 'lost' is invalid. Allowed are queued,"],
  [
    'an error code that is none',
    ['jobs', '--error-code', 'x'],
    "argument 'x' is invalid. Codes are in docs/errors.md.",
  ],
  ['a number beyond its bounds', ['jobs', '--limit', '201'], 'Allowed is a whole number from 1 to 200.'],
  ['an age without a unit', ['replay', '--older-than', '5'], 'An age is written 30s, 5m, 2h or 7d.'],
  ['an owner that is none', ['replay', '--owner', 'A b'], 'It is neither a handle nor an id.'],
  ['an id that is none', ['job', 'x'], 'An id looks like '],
  ['an id that is none among others', ['replay', anId, 'x'], 'An id looks like '],
  ['a handle that is none', ['operator', 'A'], 'A handle has 2 to 32 '],
  ['a replay of nothing', ['replay'], 'say which: ids, --error-code, --owner, an age, or --all'],
  ['a replay of nothing in a dry run', ['replay', '--dry-run'], 'say which: ids,'],
  ['a replay by ids and by filter', ['replay', anId, '--all'], 'give ids or a filter, not both'],
  ['a progress that would ask for something', ['reprocess', '--progress', '--dry-run'], '--progress asks for nothing'],
  ['a wait for a dry run', ['reprocess', '--wait', '--dry-run'], '--wait goes with neither'],
] as const) {
  test(`${what} is named on standard error with a way to help, and ends with 2`, async () => {
    const { code, stdout, stderr } = await skrepka(given);
    assert.deepEqual([code, stdout], [2, '']);
    assert.ok(stderr.includes(complaint), stderr);
    const words = ['start', 'migrate', 'jobs', 'job', 'replay', 'reprocess', 'operator', 'api', 'worker', 'all'];
    const ofWord = words.includes(given[0]) ? `${given[0]} --help` : '--help';
    assert.ok(stderr.includes(`Try "npm run -s skrepka -- ${ofWord}".`), stderr);
  });
}

for (const word of ['migrate', 'api', 'all']) {
  test(`${word} without DATABASE_URL is refused with one sentence and 1`, async () => {
    const { code, stdout, stderr } = await skrepka([word]);
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(stderr, /^skrepka: DATABASE_URL is not set: .*"npm start".*\.\n$/);
  });
}

test('a database that cannot be reached is one sentence for migrate, without the password', async () => {
  const { code, stderr } = await skrepka(['migrate'], { DATABASE_URL: 'postgres://me:geheim@127.0.0.1:1/nothing' });
  assert.equal(code, 1);
  assert.match(
    stderr,
    /^skrepka: The database of DATABASE_URL cannot be migrated: .*ECONNREFUSED.*: start it, or correct DATABASE_URL\.\n$/,
  );
  assert.doesNotMatch(stderr, /geheim/);
});

test('a database that cannot be reached is one sentence that says what to do, for every verb', async () => {
  for (const words of [['jobs'], ['status'], ['doctor'], ['replay', '--all'], ['operator']]) {
    const { code, stdout, stderr } = await skrepka(words, { DATABASE_URL: 'postgres://me:geheim@localhost:1/nothing' });
    assert.deepEqual([code, stdout], [1, '']);
    assert.match(
      stderr,
      /^skrepka: The database of DATABASE_URL does not answer \(.*ECONNREFUSED.*\): start it, or correct DATABASE_URL\.\n$/,
    );
    assert.doesNotMatch(stderr, /geheim/);
  }
});

for (const [name, value] of [
  ['DATABASE_URL', 'mysql://me:geheim@host/db'],
  ['BROKER_URL', 'carrier-pigeon://me:geheim@loft'],
  ['BLOBS_URL', 'ftp://me:geheim@host'],
  ['PIPELINE_VERSION', '77'],
] as const) {
  test(`a ${name} that nobody can use is refused by every word before anything starts, with what to do`, async () => {
    for (const words of [['start'], ['migrate'], ['api'], ['jobs']]) {
      const DATABASE_URL = words[0] === 'start' ? '' : 'postgres://a@127.0.0.1:1/b';
      const { code, stdout, stderr } = await skrepka(words, { DATABASE_URL, DATA_DIR: '/proc/skrepka', [name]: value });
      assert.deepEqual([code, stdout], [1, '']);
      assert.match(stderr, new RegExp(`^skrepka: Expected .* for ${name}, received .*\\.\\n$`));
      assert.doesNotMatch(stderr, /geheim/);
    }
  });
}

test('every contradiction of the settings is one sentence', async () => {
  const { code, stderr } = await skrepka(['api'], { LEASE: '1s', PORT: '99999', DATABASE_URL: 'postgres://a@b/c' });
  assert.equal(code, 1);
  for (const line of stderr.trim().split('\n')) assert.match(line, /^skrepka: .*\.$/);
});
