/** The broker `nats:` on three servers that keep three replicas, and lose one, their leader or their majority. */
import assert from 'node:assert/strict';
import test, { describe, it } from 'node:test';
import { createNatsBroker } from '../../src/drivers/broker-nats.ts';
import { durableName } from '../../src/drivers/broker-nats-stream.ts';
import type { Broker } from '../../src/pipeline/ports.ts';
import { isFault, text } from '../contract/broker-scene.ts';
import { available, installCommand, startNatsCluster } from '../support/engines/nats.ts';
import { createHeardLog, streamName } from '../support/engines/nats-harness.ts';
import { asOperator } from '../support/engines/nats-operator.ts';
import { onEnd, type Scope } from '../support/on-end.ts';
import { until } from '../support/until.ts';

if (available()) describe('broker nats: a cluster', { timeout: 180_000 }, () => cases());
else test('the broker runs on a real NATS cluster', (context) => context.skip(installCommand));

/** Measured 5 to 15 s for an election on a busy machine; consumers may need 30 s after a loss of the majority. */
const failover = { deadlineMs: 60_000, everyMs: 50 };

function cases(): void {
  it('goes on when the leader of the stream is killed, then that of the consumer, and loses nothing', async (t) => {
    const { servers, broker, name, operator } = await openCluster(t);
    const traffic = await startTraffic(broker);
    const leaders = {
      stream: async () => (await operator.streams.info(name)).cluster?.leader,
      consumer: async () => (await operator.consumers.info(name, durableName)).cluster?.leader,
    };
    for (const [role, ask] of Object.entries(leaders)) {
      const leader = await until(`the ${role} has a leader`, async () => {
        const wanted = await ask().catch(() => undefined);
        return servers.find((server) => server.name === wanted);
      });
      await leader.kill();
      const killedAtMs = performance.now();
      await traffic.goesOn();
      t.diagnostic(
        `went on ${Math.round(performance.now() - killedAtMs)} ms after the leader of the ${role} was killed`,
      );
      await leader.start();
    }
    await traffic.stop();
    assert.deepEqual(traffic.missing(), []);
  });

  it('without a majority confirms nothing, and goes on when it is there again', async (t) => {
    const { servers, broker } = await openCluster(t);
    const traffic = await startTraffic(broker);
    const [one, two] = servers;
    await Promise.all([one?.kill(), two?.kill()]);
    const lost = broker.publish('lonely', new Uint8Array(1), { timeoutMs: 1_000 });
    await assert.rejects(lost, isFault(['unknown', 'unavailable']));
    await Promise.all([one?.start(), two?.start()]);
    const startedAtMs = performance.now();
    await traffic.goesOn();
    t.diagnostic(`went on ${Math.round(performance.now() - startedAtMs)} ms after the majority was there again`);
    await traffic.stop();
    assert.deepEqual(traffic.missing(), []);
  });
}

async function openCluster(t: Scope) {
  const { url, servers } = await startNatsCluster(t);
  const operator = await asOperator(t, url);
  const name = streamName();
  const broker = createNatsBroker({ url, name, replicas: 3, log: createHeardLog() });
  onEnd(t, () => broker.close());
  // Until the servers have found each other and elected who decides.
  await until(
    'the stream is there',
    () =>
      broker.prepare().then(
        () => true,
        (error) => assert.ok(isFault(['unavailable'])(error), String(error)),
      ),
    failover,
  );
  return { servers, broker, name, operator };
}

/** Publishes and takes without end, as relay and worker do: what fails is tried again a little later, under the same id. */
async function startTraffic(broker: Broker) {
  const confirmed = new Set<string>();
  const seen = new Set<string | null>();
  const over = new AbortController();
  const allCame = new AbortController();
  const missing = () => [...confirmed].filter((id) => !seen.has(id));
  const attempt = (id: string) =>
    broker.publish(id, new TextEncoder().encode(id), { timeoutMs: 1_000 }).then(
      () => confirmed.add(id),
      () => null,
    );
  const publishing = (async () => {
    for (let at = 0; !over.signal.aborted; at += 1) {
      await until('the consumer keeps up', () => confirmed.size - seen.size < 20, failover);
      await until(`job:${at} is confirmed`, () => attempt(`job:${at}`), failover);
    }
  })();
  const consuming = (async () => {
    const settings = { prefetch: 0, visibilityMs: 3_000 };
    const consumer = await until('there is a consumer', () => broker.consumer(settings).catch(() => null), failover);
    for (;;) {
      const delivery = await consumer.next(allCame.signal);
      if (!delivery) return;
      seen.add(text(delivery));
      void delivery.ack().catch(() => {});
    }
  })();
  /** Resolves when 50 more were published and taken. */
  async function goesOn(): Promise<void> {
    const before = confirmed.size;
    await until('publishing goes on', () => confirmed.size >= before + 50, failover);
    const published = [...confirmed];
    await until('consuming goes on', () => published.every((id) => seen.has(id)), failover);
  }
  await goesOn();
  return {
    goesOn,
    missing,
    /** Stops publishing, and resolves when all that was confirmed came, or after a minute in which it did not. */
    async stop() {
      over.abort();
      await publishing;
      await until('all that was confirmed came', () => missing().length === 0, failover).catch(() => {});
      allCame.abort();
      await consuming;
    },
  };
}
