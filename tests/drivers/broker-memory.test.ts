/** The memory broker passes the suite of every driver, and misbehaves only as it is told to. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { BrokerError } from '../../src/pipeline/ports.ts';
import { brokerContract } from '../contract/broker.ts';
import { createMemoryBroker } from '../support/broker-memory.ts';

const traits = { visibilityMs: 400, countsDeliveries: true, fencesAcks: true, dropsDuplicates: true };

brokerContract('broker memory', traits, async () => {
  const broker = createMemoryBroker();
  return {
    open: async () => broker.open(),
    stop: async () => broker.stop(),
    kill: async () => broker.stop(),
    start: async () => broker.start(),
    wipe: async () => broker.wipe(),
    cut: async () => broker.cut(),
    async takeAndDie(visibilityMs) {
      const client = broker.open();
      const consumer = await client.consumer({ prefetch: 0, visibilityMs });
      await consumer.next(AbortSignal.timeout(1_000));
      client.die();
    },
    close: () => broker.close(),
  };
});

describe('broker memory: misbehaving', () => {
  const publish = (broker: ReturnType<typeof createMemoryBroker>, id: string) =>
    broker.publish(id, new TextEncoder().encode(id), { timeoutMs: 1_000 });

  /** Everything that comes within 50 ms of the last one, in its order. */
  async function drain(broker: ReturnType<typeof createMemoryBroker>): Promise<string[]> {
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: 60_000 });
    const seen: string[] = [];
    for (;;) {
      const delivery = await consumer.next(AbortSignal.timeout(50));
      if (!delivery) return seen;
      seen.push(new TextDecoder().decode(delivery.body));
      await delivery.ack();
    }
  }

  it('drops as many confirmed messages as asked, and no more', async () => {
    const broker = createMemoryBroker();
    broker.misbehave({ drop: 1 });
    await publish(broker, 'lost');
    await publish(broker, 'kept');
    assert.deepEqual(await drain(broker), ['kept']);
    assert.deepEqual(broker.published(), ['lost', 'kept']);
  });

  it('doubles a message', async () => {
    const broker = createMemoryBroker();
    broker.misbehave({ double: 1 });
    await publish(broker, 'two');
    assert.deepEqual(await drain(broker), ['two', 'two']);
  });

  it('delays messages', async () => {
    const broker = createMemoryBroker();
    broker.misbehave({ delayMs: 200 });
    const startedAt = performance.now();
    await publish(broker, 'slow');
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: 60_000 });
    assert.ok(await consumer.next(AbortSignal.timeout(5_000)));
    assert.ok(performance.now() - startedAt >= 195);
  });

  it('hands out the newest first', async () => {
    const broker = createMemoryBroker();
    broker.misbehave({ reorder: true });
    for (const id of ['first', 'second', 'third']) await publish(broker, id);
    assert.deepEqual(await drain(broker), ['third', 'second', 'first']);
  });

  it('answers unknown for what it stored, and for what it did not', async () => {
    const broker = createMemoryBroker();
    broker.misbehave({ unknownStored: 1 });
    const unknown = (error: unknown) => error instanceof BrokerError && error.fault === 'unknown';
    await assert.rejects(publish(broker, 'stored'), unknown);
    broker.misbehave({ unknownLost: 1 });
    await assert.rejects(publish(broker, 'lost'), unknown);
    assert.deepEqual(await drain(broker), ['stored']);
  });
});
