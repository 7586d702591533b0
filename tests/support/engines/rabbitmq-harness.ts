/** The harness of the broker suite on a RabbitMQ: a queue of its own for each case, and clients by way of a proxy. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import path from 'node:path';
import { Connection } from 'rabbitmq-client';
import { createRabbitBroker, type RabbitBrokerSettings } from '../../../src/drivers/broker-rabbitmq.ts';
import type { Broker } from '../../../src/pipeline/ports.ts';
import type { BrokerHarness } from '../../contract/broker.ts';
import { onEnd, type Scope } from '../on-end.ts';
import { startTcpProxy } from '../tcp-proxy.ts';
import { until } from '../until.ts';
import type { RabbitServer } from './rabbitmq.ts';

/** Every line of it is kept for a test that reads it. */
export function createHeardLog() {
  const lines: string[] = [];
  const hear = (fields: object, text: string) => {
    lines.push(`${text} ${JSON.stringify(fields)}`);
  };
  return { lines, info: hear, warn: hear };
}

export const queueName = () => `case_${randomBytes(6).toString('hex')}`;

/** A prepared broker on a queue of its own, or on `name`; closed when `t` ends. Its queue is gone with the server. */
export async function openRabbit(
  t: Scope,
  { url, name = queueName() }: { url: string; name?: string },
  settings: RabbitBrokerSettings,
): Promise<{ broker: Broker; name: string }> {
  const broker = createRabbitBroker({ url, name, replicas: 1, log: createHeardLog() }, settings);
  onEnd(t, () => broker.close());
  await broker.prepare();
  return { broker, name };
}

/** What an operator does, over a connection of its own that ends with `t`. */
export function asOperator(t: Scope, url: string): Connection {
  const connection = new Connection({ url, retryLow: 100, retryHigh: 500 });
  connection.on('error', () => {});
  onEnd(t, () => connection.close());
  return connection;
}

export async function createRabbitHarness(server: RabbitServer): Promise<BrokerHarness> {
  await server.start();
  const name = queueName();
  const ends: (() => Promise<void>)[] = [];
  const scope = { after: (clean: () => Promise<void>) => ends.push(clean) };
  const proxy = await startTcpProxy(scope, server.url);
  const operator = asOperator(scope, server.url);
  return {
    // The time that a queue needs to be on the disk is awaited where the server is killed, and proven in a case of its own.
    async open() {
      const never = { after() {} };
      return (await openRabbit(never, { url: proxy.url, name }, { registerMs: 0, refreshMs: 1_000 })).broker;
    },
    stop: server.stop,
    async kill() {
      await until('the queue is on the disk', () => server.registered(name));
      await server.kill();
    },
    start: server.start,
    // All that this case holds there. The loss of the volume, and with it of the connections, is a case of its own.
    async wipe() {
      await operator.queueDelete(name);
    },
    cut: async () => proxy.cutAll(),
    takeAndDie: (visibilityMs) => takeAndDie(server.url, name, visibilityMs),
    async close() {
      await server.start();
      await operator.queueDelete(name);
      for (const end of ends.splice(0)) await end();
    },
  };
}

async function takeAndDie(url: string, name: string, visibilityMs: number): Promise<void> {
  const taken = await takeElsewhere({ url, name, visibilityMs });
  await taken.kill();
}

/** Takes one message in a process of its own; answers what that says, and how to end it. */
export async function takeElsewhere(
  { url, name, visibilityMs }: { url: string; name: string; visibilityMs: number },
  env: NodeJS.ProcessEnv = {},
): Promise<{ said: string; kill(): Promise<void> }> {
  const taker = path.join(import.meta.dirname, 'rabbitmq-taker.ts');
  const child = spawn(process.execPath, [taker, url, name, String(visibilityMs)], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
  });
  const ended = once(child, 'exit');
  let heard = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      heard += text;
    });
  }
  // Also when it ends early: the case then reads why.
  await Promise.race([once(child.stdout, 'data'), ended, once(AbortSignal.timeout(20_000), 'abort')]);
  return {
    said: heard,
    async kill() {
      child.kill('SIGKILL');
      await ended;
    },
  };
}
