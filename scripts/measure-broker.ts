/**
 * Measures the broker `postgres:` on a throw-away server with fsync on: latency from publish to delivery when idle, CPU of
 * an idle consumer and of the server, and messages a second. Run it alone: `node scripts/measure-broker.ts`.
 */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import type { Broker, Consumer } from '../src/pipeline/ports.ts';
import { startEmbedded } from '../src/postgres/embedded.ts';
import { openPostgresBroker } from '../tests/support/broker-sql.ts';

const idleMs = 10_000;
const forever = new AbortController().signal;
const body = new TextEncoder().encode('{"v":1,"job":"01900000-0000-7000-8000-000000000000","ring":1}');
const log = { debug() {}, info() {}, warn: console.warn, error: console.error };

const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-measure-'));
const server = await startEmbedded({ dir: path.join(folder, 'data'), log });
const [publisher, worker] = [await openPostgresBroker(server.url), await openPostgresBroker(server.url)];
try {
  const consumer = await worker.consumer({ prefetch: 0, visibilityMs: 60_000 });
  worker.onDisrupted(() => {});
  await latency(publisher, consumer);
  await idle(consumer);
  await throughput(publisher, worker);
} finally {
  await Promise.all([publisher.close(), worker.close()]);
  await server.stop();
  await rm(folder, { recursive: true });
}

async function latency(from: Broker, to: Consumer): Promise<void> {
  const tookMs: number[] = [];
  for (let at = 0; at < 200; at += 1) {
    const waiting = to.next(forever);
    await pause(20);
    const startedAt = performance.now();
    await from.publish(`latency:${at}`, body, { timeoutMs: 5_000 });
    const delivery = await waiting;
    tookMs.push(performance.now() - startedAt);
    await delivery?.ack();
  }
  tookMs.sort((one, other) => one - other);
  console.log(`publish to delivery: median ${tookMs[100]?.toFixed(1)} ms, p99 ${tookMs[198]?.toFixed(1)} ms`);
}

async function idle(consumer: Consumer): Promise<void> {
  const stop = AbortSignal.timeout(idleMs);
  const [node, postgres] = [process.cpuUsage(), await serverCpuMs()];
  await consumer.next(stop);
  const used = process.cpuUsage(node);
  console.log(`idle ${idleMs} ms: node ${((used.user + used.system) / 1000).toFixed(0)} ms CPU (two clients)`);
  console.log(`idle ${idleMs} ms: PostgreSQL ${(await serverCpuMs()) - postgres} ms CPU (all of its processes)`);
}

/** CPU of the server's processes so far; Linux only. */
async function serverCpuMs(): Promise<number> {
  let nanoseconds = 0;
  for (const pid of await readdir('/proc')) {
    const line = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
    const parent = Number(line.slice(line.lastIndexOf(')') + 2).split(' ')[1]);
    if (Number(pid) !== server.pid && parent !== server.pid) continue;
    const [onCpu] = (await readFile(`/proc/${pid}/schedstat`, 'utf8').catch(() => '0')).split(' ');
    nanoseconds += Number(onCpu);
  }
  return Math.round(nanoseconds / 1e6);
}

async function throughput(from: Broker, to: Broker): Promise<void> {
  const count = 5_000;
  const startedAt = performance.now();
  let left = count;
  const done = new AbortController();
  const publishing = Array.from({ length: 8 }, async (_, lane) => {
    for (let at = lane; at < count; at += 8) await from.publish(`bulk:${at}`, body, { timeoutMs: 5_000 });
  });
  const consumer = await to.consumer({ prefetch: 0, visibilityMs: 60_000 });
  const consuming = Array.from({ length: 8 }, async () => {
    for (let delivery = await consumer.next(done.signal); delivery; delivery = await consumer.next(done.signal)) {
      await delivery.ack();
      left -= 1;
      if (left === 0) done.abort();
    }
  });
  await Promise.all([...publishing, ...consuming]);
  const seconds = (performance.now() - startedAt) / 1000;
  console.log(`published, delivered and acked: ${Math.round(count / seconds)} a second (8 publishers, 8 slots)`);
}
