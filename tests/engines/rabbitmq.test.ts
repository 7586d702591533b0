/** The broker `amqp:` passes the suite of every driver on a real server; then what else that server's fate may do. */
import assert from 'node:assert/strict';
import test, { describe, it } from 'node:test';
import { brokerContract } from '../contract/broker.ts';
import {
  disruption,
  isFault,
  longMs,
  patient,
  publish,
  publishInTheEnd,
  receive,
  text,
} from '../contract/broker-scene.ts';
import { available, installCommand, type RabbitServer, startRabbit } from '../support/engines/rabbitmq.ts';
import { createRabbitHarness, openRabbit } from '../support/engines/rabbitmq-harness.ts';
import { until } from '../support/until.ts';

const traits = { visibilityMs: 800, countsDeliveries: true, fencesAcks: true, dropsDuplicates: false };

if (available()) await suite();
else test('the broker suite runs on a real RabbitMQ', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startRabbit(test);
  brokerContract('broker rabbitmq', traits, () => createRabbitHarness(server));
  describe('broker rabbitmq: the server', { timeout: 120_000 }, () => serverCases(server));
}

function serverCases(server: RabbitServer): void {
  it('loses nothing that it confirmed when it is killed right after the queue was made', async (t) => {
    const { broker } = await openRabbit(t, { url: server.url }, {});
    const confirmed = new Set<string>();
    let killed: Promise<void> | null = null;
    for (let at = 0; at < 60; at += 1) {
      if (at === 50) killed = server.kill();
      await publish(broker, `early:${at}`).then(
        () => confirmed.add(`early:${at}`),
        (error) => assert.ok(isFault(['unavailable', 'unknown'])(error)),
      );
    }
    await killed;
    await server.start();
    const consumer = await broker.consumer(patient);
    const seen = new Set<string | null>();
    await until('all that was confirmed came', async () => {
      const delivery = await receive(consumer);
      seen.add(text(delivery));
      await delivery.ack();
      return [...confirmed].every((id) => seen.has(id));
    });
    assert.ok(confirmed.size >= 50);
  });

  it('comes back on an empty disk: the queue is made anew, a waiting consumer goes on, and it is reported', async (t) => {
    const { broker } = await openRabbit(t, { url: server.url }, {});
    const consumer = await broker.consumer({ prefetch: 1, visibilityMs: longMs });
    for (const id of ['in hand', 'prefetched', 'waiting']) await publish(broker, id);
    const delivery = await receive(consumer);
    const { happened } = disruption(broker);
    await server.wipe();
    await server.start();
    await happened;
    await assert.rejects(delivery.ack(), isFault(['unavailable']));
    await publishInTheEnd(broker, 'new');
    const next = await receive(consumer);
    assert.equal(text(next), 'new');
    await next.ack();
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 0 });
  });
}
