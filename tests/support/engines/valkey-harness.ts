/** The harness of the broker suite on a Valkey or Redis server: keys of its own for each case, and clients by way of a proxy. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import path from 'node:path';
import { createValkeyBroker, type ValkeyBrokerSettings } from '../../../src/drivers/broker-valkey.ts';
import { type Broker, BrokerError } from '../../../src/pipeline/ports.ts';
import type { BrokerHarness } from '../../contract/broker.ts';
import { onEnd, type Scope } from '../on-end.ts';
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

/** Notices a loss of the stream within a second. An answer has its usual time: one that is late costs the connection. */
export const alert = { backstopMs: 100 };

/** A prepared broker and what it says in the log; closed when `t` ends. */
export async function open(t: Scope, url: string, settings: ValkeyBrokerSettings = {}, name = queueName()) {
  const log = createHeardLog();
  const broker = await openValkeyBroker({ url, name, log }, settings);
  onEnd(t, () => broker.close());
  return { broker, name, log };
}

/** Why a broker cannot be prepared. */
export async function refused(
  t: Scope,
  url: string,
  name = queueName(),
): Promise<{ error: BrokerError; log: string[] }> {
  const log = createHeardLog();
  const broker = createValkeyBroker({ url, name, log });
  onEnd(t, () => broker.close());
  const error = await broker.prepare().then(
    () => assert.fail('expected a refusal'),
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof BrokerError, String(error));
  return { error, log: log.lines };
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
    async takeAndDie(visibilityMs) {
      await takeAndDie(server.url, name, visibilityMs);
    },
    async close() {
      for (const end of ends.splice(0)) await end();
    },
  };
}

/** Takes one message in a process of its own, which is killed with it in hand; answers what it said. */
export async function takeAndDie(
  url: string,
  name: string,
  visibilityMs: number,
  environment: Readonly<Record<string, string>> = {},
): Promise<string> {
  const taker = path.join(import.meta.dirname, 'valkey-taker.ts');
  const child = spawn(process.execPath, [taker, url, name, String(visibilityMs)], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ...environment },
  });
  const ended = once(child, 'exit');
  const [said] = await once(child.stdout, 'data', { signal: AbortSignal.timeout(20_000) });
  child.kill('SIGKILL');
  await ended;
  return String(said).trim();
}
