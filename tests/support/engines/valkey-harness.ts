/** The harness of the broker suite on a Valkey or Redis server: keys of its own for each case, and clients by way of a proxy. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import path from 'node:path';
import { createValkeyBroker, type ValkeyBrokerSettings } from '../../../src/drivers/broker-valkey.ts';
import type { Broker } from '../../../src/pipeline/ports.ts';
import type { BrokerHarness } from '../../contract/broker.ts';
import { startTcpProxy } from '../tcp-proxy.ts';
import type { ValkeyServer } from './valkey.ts';

/** Every line of it is kept for a test that reads it. */
export function createHeardLog() {
  const lines: string[] = [];
  const hear = (fields: object, text: string) => {
    lines.push(`${text} ${JSON.stringify(fields)}`);
  };
  return { lines, info: hear, warn: hear };
}

export const queueName = () => `case-${randomBytes(6).toString('hex')}`;

/** A prepared broker. */
export async function openValkeyBroker(
  { url, name, log = createHeardLog() }: { url: string; name: string; log?: ReturnType<typeof createHeardLog> },
  settings: ValkeyBrokerSettings = {},
): Promise<Broker> {
  const broker = createValkeyBroker({ url, name, log }, settings);
  await broker.prepare();
  return broker;
}

export async function createValkeyHarness(server: ValkeyServer): Promise<BrokerHarness> {
  await server.start();
  const name = queueName();
  const ends: (() => Promise<void>)[] = [];
  const proxy = await startTcpProxy({ after: (clean) => ends.push(clean) }, server.url);
  return {
    open: () => openValkeyBroker({ url: proxy.url, name }),
    stop: server.stop,
    kill: server.kill,
    start: server.start,
    // The connections stay, so nobody is told; a restart on an empty folder is a case of its own.
    async wipe() {
      await server.command('flushall');
    },
    cut: async () => proxy.cutAll(),
    takeAndDie: (visibilityMs) => takeAndDie(server.url, name, visibilityMs),
    async close() {
      for (const end of ends.splice(0)) await end();
    },
  };
}

async function takeAndDie(url: string, name: string, visibilityMs: number): Promise<void> {
  const taker = path.join(import.meta.dirname, 'valkey-taker.ts');
  const child = spawn(process.execPath, [taker, url, name, String(visibilityMs)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(child, 'exit');
  await once(child.stdout, 'data', { signal: AbortSignal.timeout(20_000) });
  child.kill('SIGKILL');
  await ended;
}
