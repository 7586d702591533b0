/** A real RabbitMQ for tests, of the Debian package, as any user and without systemd; its folder survives kills and starts. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { accessSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { freePorts } from '../../../scripts/free-port.ts';
import { onEnd, type Scope } from '../on-end.ts';
import { until } from '../until.ts';

/** What a skipped suite says. */
export const installCommand = 'apt-get install --no-install-recommends rabbitmq-server';

/** The program itself: Debian's wrapper in the PATH wants its own user, and folders of the system. */
const program = '/usr/lib/rabbitmq/bin/rabbitmq-server';

export interface RabbitServer {
  /** With the user guest, whom the server lets in from loopback alone. */
  readonly url: string;
  /** The same over TLS, where a certificate was given. */
  readonly tlsUrl: string;
  /** Of the Erlang machine; 0 while there is none. */
  readonly pid: number;
  /** SIGKILL. It keeps what it confirmed. */
  kill(): Promise<void>;
  /** Stops RabbitMQ in order; the Erlang machine goes on (`rabbitmqctl stop_app`), since its boot takes 6 s and more. */
  stop(): Promise<void>;
  /** Starts what was stopped or killed again, with its volume, on the same ports. */
  start(): Promise<void>;
  /** Kills it and deletes its volume. */
  wipe(): Promise<void>;
  /** Whether the quorum queue is in the registry on the disk: a second after it was made. */
  registered(queue: string): Promise<boolean>;
  /** Calls a function of the server, `module function [arguments]`; answers the term that it returned, as text. */
  call(apply: string): Promise<string>;
}

export interface RabbitOptions {
  readonly certificate?: { readonly caFile: string; readonly certFile: string; readonly keyFile: string };
}

export function available(): boolean {
  try {
    accessSync(program);
    return true;
  } catch {
    return false;
  }
}

/** A server on free ports of 127.0.0.1; it and its folder are gone when `t` ends. */
export async function startRabbit(t: Scope, { certificate }: RabbitOptions = {}): Promise<RabbitServer> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-rabbit-'));
  const [port = 0, tlsPort = 0, distPort = 0, epmdPort = 0] = await freePorts(4);
  const volume = path.join(folder, 'volume');
  const cookie = randomBytes(12).toString('hex');
  const config = path.join(folder, 'rabbitmq.conf');
  await mkdir(path.join(folder, 'home'));
  const tls = certificate && [
    `listeners.ssl.1 = 127.0.0.1:${tlsPort}`,
    `ssl_options.cacertfile = ${certificate.caFile}`,
    `ssl_options.certfile = ${certificate.certFile}`,
    `ssl_options.keyfile = ${certificate.keyFile}`,
    'ssl_options.verify = verify_none',
  ];
  await writeFile(config, `${[`listeners.tcp.1 = 127.0.0.1:${port}`, ...(tls ?? [])].join('\n')}\n`);
  // Started by us, it is ours to end; Erlang would start one that outlives it.
  const epmd = spawn('epmd', ['-port', String(epmdPort), '-address', '127.0.0.1'], { stdio: 'ignore' });
  const env = {
    PATH: process.env.PATH,
    LANG: 'C.UTF-8',
    HOME: path.join(folder, 'home'),
    RABBITMQ_MNESIA_BASE: volume,
    RABBITMQ_LOG_BASE: path.join(folder, 'log'),
    RABBITMQ_CONFIG_FILE: config,
    RABBITMQ_ENABLED_PLUGINS_FILE: path.join(folder, 'plugins'),
    RABBITMQ_NODENAME: `skrepka${port}@localhost`,
    RABBITMQ_DIST_PORT: String(distPort),
    ERL_EPMD_PORT: String(epmdPort),
    ERL_EPMD_ADDRESS: '127.0.0.1',
    // Makes the script become the Erlang machine instead of its parent.
    RABBITMQ_ALLOW_INPUT: '1',
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: `-noinput -setcookie ${cookie} -kernel inet_dist_use_interface {127,0,0,1}`,
  };
  let machine: ChildProcess | null = null;
  let stopped = false;

  async function kill(): Promise<void> {
    const ending = machine;
    machine = null;
    stopped = false;
    if (!ending || ending.exitCode !== null || ending.signalCode !== null) return;
    const exited = once(ending, 'exit');
    ending.kill('SIGKILL');
    await exited;
  }

  async function call(apply: string): Promise<string> {
    const words = ['-address', `127.0.0.1:${distPort}`, '-c', cookie, '-a', apply];
    return (await promisify(execFile)('erl_call', words, { env, timeout: 60_000 })).stdout;
  }

  async function start(): Promise<void> {
    if (machine && stopped) await call('rabbit start');
    machine ??= launch(env);
    stopped = false;
    await listens(machine, port, path.join(folder, 'log', `${env.RABBITMQ_NODENAME}.log`));
    // The listener opens a moment before the boot is over, and a stop or start meanwhile does nothing.
    await until('the boot is over', async () => (await call('erlang whereis [rabbit_boot]')).includes('undefined'));
  }

  onEnd(t, async () => {
    await kill();
    const exited = once(epmd, 'exit');
    if (epmd.exitCode === null && epmd.kill()) await exited;
    await rm(folder, { recursive: true, force: true });
  });
  await start();
  return {
    url: `amqp://guest:guest@127.0.0.1:${port}`,
    tlsUrl: `amqps://guest:guest@127.0.0.1:${tlsPort}`,
    get pid() {
      return machine?.pid ?? 0;
    },
    kill,
    async stop() {
      if (!machine || stopped) return;
      await call('rabbit stop');
      stopped = true;
    },
    start,
    async wipe() {
      await kill();
      await rm(volume, { recursive: true, force: true });
    },
    async registered(queue) {
      const node = env.RABBITMQ_NODENAME;
      return (await readFile(path.join(volume, node, 'quorum', node, 'names.dets'))).includes(queue);
    },
    call,
  };
}

function launch(env: NodeJS.ProcessEnv): ChildProcess {
  return spawn(program, { env, stdio: 'ignore' });
}

async function listens(machine: ChildProcess, port: number, logFile: string): Promise<void> {
  const ended = () => machine.exitCode !== null || machine.signalCode !== null;
  await until(
    'RabbitMQ listens',
    async () => {
      if (ended()) throw new Error(`RabbitMQ ended: ${await endOf(logFile)}`);
      const socket = connect(port, '127.0.0.1');
      const listening = await once(socket, 'connect').then(
        () => true,
        () => false,
      );
      socket.destroy();
      return listening;
    },
    { deadlineMs: 90_000, everyMs: 50 },
  );
}

const endOf = async (file: string) => (await readFile(file, 'utf8').catch(() => 'without a log')).slice(-4_000);
