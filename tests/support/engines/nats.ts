/** Real NATS servers for tests: one, or a cluster of three, each with a folder that it keeps over kills and starts. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { freePort, freePorts } from '../../../scripts/free-port.ts';
import { onEnd, type Scope } from '../on-end.ts';
import { until } from '../until.ts';

/** What a skipped suite says. */
export const installCommand = 'apt-get install --no-install-recommends nats-server';

export interface NatsServer {
  readonly name: string;
  readonly url: string;
  readonly port: number;
  /** The folder of its volume. */
  readonly volume: string;
  /** Of the running process; 0 while there is none. */
  readonly pid: number;
  /** SIGKILL. It keeps what it confirmed. */
  kill(): Promise<void>;
  /** SIGTERM. */
  stop(): Promise<void>;
  /** Starts the stopped or killed server again, with its volume, on the same port. */
  start(): Promise<void>;
  /** Kills it, deletes its volume and starts it again. */
  wipe(): Promise<void>;
  /** Restarts it with other further lines of configuration. */
  configure(config: string): Promise<void>;
}

export interface NatsOptions {
  /** Further lines of the server's configuration. */
  readonly config?: string;
  /** Default true. */
  readonly jetstream?: boolean;
}

/** Debian's place for it is not in everybody's PATH. */
const command = ['nats-server', '/usr/sbin/nats-server'].find(
  (name) => spawnSync(name, ['--version'], { stdio: 'ignore' }).status === 0,
);

export function available(): boolean {
  return command !== undefined;
}

/** A server with JetStream on a free port of 127.0.0.1; it and its folder are gone when `t` ends. */
export async function startNats(t: Scope, { config = '', jetstream = true }: NatsOptions = {}): Promise<NatsServer> {
  const port = await freePort();
  return await startServer(t, { port, serverName: 'alone', jetstream, config });
}

/** Three servers of one cluster. They may not have found each other yet when this resolves. */
export async function startNatsCluster(t: Scope): Promise<{ url: string; servers: readonly NatsServer[] }> {
  const ports = await freePorts(6);
  const clients = ports.slice(0, 3);
  const routes = ports.slice(3).map((port) => `nats-route://127.0.0.1:${port}`);
  const servers = await Promise.all(
    clients.map((port, at) =>
      startServer(t, {
        port,
        serverName: `node${at}`,
        jetstream: true,
        config: `cluster { name: skrepka, listen: "127.0.0.1:${ports[at + 3]}", routes: [${routes.join(', ')}] }`,
      }),
    ),
  );
  return { url: `nats://${clients.map((port) => `127.0.0.1:${port}`).join(',')}`, servers };
}

async function startServer(
  t: Scope,
  options: { port: number; serverName: string; jetstream: boolean; config: string },
): Promise<NatsServer> {
  const { port, serverName, jetstream } = options;
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-nats-'));
  const file = path.join(folder, 'nats.conf');
  const volume = path.join(folder, 'volume');
  const first = [`listen: "127.0.0.1:${port}"`, `server_name: ${serverName}`];
  if (jetstream) first.push(`jetstream { store_dir: "${volume}" }`);
  const write = (config: string) => writeFile(file, [...first, config].join('\n'));
  await write(options.config);
  let child: ChildProcess | null = null;

  async function end(signal: NodeJS.Signals): Promise<void> {
    const ending = child;
    child = null;
    if (!ending || ending.exitCode !== null || ending.signalCode !== null) return;
    const exited = once(ending, 'exit');
    ending.kill(signal);
    await exited;
  }

  const server = {
    name: serverName,
    url: `nats://127.0.0.1:${port}`,
    port,
    volume,
    get pid() {
      return child?.pid ?? 0;
    },
    kill: () => end('SIGKILL'),
    stop: () => end('SIGTERM'),
    async start() {
      child ??= await launch(file);
    },
    async wipe() {
      await end('SIGKILL');
      await rm(volume, { recursive: true, force: true });
      child = await launch(file);
    },
    async configure(config: string) {
      await end('SIGTERM');
      await write(config);
      child = await launch(file);
    },
  };
  onEnd(t, async () => {
    await end('SIGKILL');
    await rm(folder, { recursive: true, force: true });
  });
  await server.start();
  return server;
}

/** Resolves when the server says that it takes connections. */
async function launch(file: string): Promise<ChildProcess> {
  const child = spawn(command ?? 'nats-server', ['-c', file], { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    said = `${said}${text}`.slice(-20_000);
  });
  try {
    await until('nats-server is ready', () => {
      if (child.exitCode !== null) throw new Error(`nats-server ended with ${child.exitCode}: ${said}`);
      return said.includes('Server is ready');
    });
  } catch (error) {
    child.kill('SIGKILL');
    throw error;
  }
  return child;
}
