/** Real Valkey or Redis servers for tests: each with a folder that it keeps over kills and starts, and commands for its operator. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Redis } from 'iovalkey';
import { freePort } from '../../../scripts/free-port.ts';
import { onEnd, type Scope } from '../on-end.ts';
import { until } from '../until.ts';
import type { Certificate } from './certificate.ts';

/** What a skipped suite says. */
export const installCommand = 'apt-get install --no-install-recommends redis-server';

export interface ValkeyServer {
  readonly url: string;
  /** Of the running process; 0 while there is none. */
  readonly pid: number;
  /** SIGKILL. It keeps what it confirmed. */
  kill(): Promise<void>;
  /** SIGTERM. */
  stop(): Promise<void>;
  /** Starts the stopped or killed server again, with its folder, on the same port. */
  start(): Promise<void>;
  /** Kills it, deletes its folder and starts it again. */
  wipe(): Promise<void>;
  /** Runs a command as its operator, past any proxy. */
  command(word: string, ...rest: (string | number)[]): Promise<unknown>;
}

export interface ValkeyOptions {
  /** Further words of the command line, which win over those that make it durable. */
  readonly words?: readonly string[];
  /** Of its operator; none when left out. */
  readonly password?: string;
  /** It then speaks TLS alone. */
  readonly certificate?: Certificate;
}

/** The first of the two that is installed; null when none is. */
function binary(): string | null {
  const runs = (name: string) => spawnSync(name, ['--version'], { stdio: 'ignore' }).status === 0;
  return ['valkey-server', 'redis-server'].find(runs) ?? null;
}

export const available = (): boolean => binary() !== null;

/** A server on a free port of 127.0.0.1 that confirms durably; it and its folder are gone when `t` ends. */
export async function startValkey(t: Scope, options: ValkeyOptions = {}): Promise<ValkeyServer> {
  const { password, certificate } = options;
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-valkey-'));
  const volume = path.join(folder, 'volume');
  const port = await freePort();
  const words = wordsFor(port, volume, options);
  let child: ChildProcess | null = null;
  let operator: Redis | null = null;

  async function end(signal: NodeJS.Signals): Promise<void> {
    operator?.disconnect();
    operator = null;
    const ending = child;
    child = null;
    if (!ending || ending.exitCode !== null || ending.signalCode !== null) return;
    const exited = once(ending, 'exit');
    ending.kill(signal);
    await exited;
  }

  async function start(): Promise<void> {
    if (child) return;
    await mkdir(volume, { recursive: true });
    child = await launch(words);
  }

  onEnd(t, async () => {
    await end('SIGKILL');
    await rm(folder, { recursive: true, force: true });
  });
  await start();
  const credentials = password === undefined ? '' : `:${encodeURIComponent(password)}@`;
  return {
    url: `${certificate ? 'rediss' : 'redis'}://${credentials}127.0.0.1:${port}`,
    get pid() {
      return child?.pid ?? 0;
    },
    kill: () => end('SIGKILL'),
    stop: () => end('SIGTERM'),
    start,
    async wipe() {
      await end('SIGKILL');
      await rm(volume, { recursive: true });
      await start();
    },
    async command(word, ...rest) {
      const tls = certificate ? { tls: { ca: await readFile(certificate.caFile) } } : {};
      operator ??= new Redis({ host: '127.0.0.1', port, password, retryStrategy: () => null, ...tls });
      return await operator.call(word, rest.map(String));
    },
  };
}

function wordsFor(port: number, volume: string, { words = [], password, certificate }: ValkeyOptions): string[] {
  const listening = certificate
    ? [
        ...['--port', '0', '--tls-port', String(port), '--tls-auth-clients', 'no'],
        ...['--tls-ca-cert-file', certificate.caFile],
        ...['--tls-cert-file', certificate.certFile, '--tls-key-file', certificate.keyFile],
      ]
    : ['--port', String(port)];
  return [
    ...listening,
    ...['--bind', '127.0.0.1', '--dir', volume, '--daemonize', 'no', '--save', ''],
    ...['--appendonly', 'yes', '--appendfsync', 'always'],
    ...(password === undefined ? [] : ['--requirepass', password]),
    ...words,
  ];
}

/** Resolves when the server says that it takes connections, its files loaded. */
async function launch(words: readonly string[]): Promise<ChildProcess> {
  const child = spawn(binary() ?? 'redis-server', [...words], { stdio: ['ignore', 'pipe', 'inherit'] });
  let said = '';
  child.stdout?.setEncoding('utf8').on('data', (text: string) => {
    said = `${said}${text}`.slice(-20_000);
  });
  await until('the server is ready', () => {
    if (child.exitCode !== null) throw new Error(`The server ended with ${child.exitCode}: ${said}`);
    return said.includes('eady to accept connections');
  });
  return child;
}
