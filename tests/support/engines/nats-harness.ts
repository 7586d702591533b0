/** The harness of the broker suite on a NATS server: a stream of its own for each case, and clients by way of a proxy. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import path from 'node:path';
import { createNatsBroker, type NatsBrokerSettings } from '../../../src/drivers/broker-nats.ts';
import type { Broker } from '../../../src/pipeline/ports.ts';
import type { BrokerHarness } from '../../contract/broker.ts';
import { startTcpProxy } from '../tcp-proxy.ts';
import type { NatsServer } from './nats.ts';

/** Every line of it is kept for a test that reads it. */
export function createHeardLog() {
  const lines: string[] = [];
  const hear = (fields: object, text: string) => {
    lines.push(`${text} ${JSON.stringify(fields)}`);
  };
  return { lines, info: hear, warn: hear };
}

export const streamName = () => `case_${randomBytes(6).toString('hex')}`;

/** A prepared broker. */
export async function openNatsBroker(
  { url, name, replicas = 1 }: { url: string; name: string; replicas?: number },
  settings: NatsBrokerSettings = {},
): Promise<Broker> {
  const broker = createNatsBroker({ url, name, replicas, log: createHeardLog() }, settings);
  await broker.prepare();
  return broker;
}

export async function createNatsHarness(server: NatsServer): Promise<BrokerHarness> {
  await server.start();
  const name = streamName();
  const ends: (() => Promise<void>)[] = [];
  const proxy = await startTcpProxy({ after: (clean) => ends.push(clean) }, server.url);
  return {
    open: () => openNatsBroker({ url: proxy.url, name }),
    stop: server.stop,
    kill: server.kill,
    start: server.start,
    wipe: server.wipe,
    cut: async () => proxy.cutAll(),
    takeAndDie: (visibilityMs) => takeAndDie(server.url, name, visibilityMs),
    async close() {
      for (const end of ends.splice(0)) await end();
    },
  };
}

async function takeAndDie(url: string, name: string, visibilityMs: number): Promise<void> {
  const taker = path.join(import.meta.dirname, 'nats-taker.ts');
  const child = spawn(process.execPath, [taker, url, name, String(visibilityMs)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(child, 'exit');
  await once(child.stdout, 'data', { signal: AbortSignal.timeout(20_000) });
  child.kill('SIGKILL');
  await ended;
}
