/** The broker `postgres:` passes the suite of every driver on a server of its own; then what else that server's fate may do. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { brokerContract } from '../contract/broker.ts';
import { disruption, nothing, patient, publish, publishInTheEnd, receive, text } from '../contract/broker-scene.ts';
import { type BrokerServer, createBrokerServer, createPostgresHarness } from '../support/broker-server.ts';
import { openPostgresBroker } from '../support/broker-sql.ts';

const traits = { visibilityMs: 800, countsDeliveries: true, fencesAcks: true, dropsDuplicates: true };

let server: BrokerServer;
before(async () => {
  server = await createBrokerServer();
});
after(() => server.close());

brokerContract('broker postgres', traits, () => createPostgresHarness(server));

describe('broker postgres: its server', () => {
  it('confirms durably, and acks durably, where commits are not durable by default', async () => {
    const database = await server.makeDatabase();
    await server.admin(`alter database ${database} set synchronous_commit = off`);
    const broker = await openPostgresBroker(server.url(database));
    const consumer = await broker.consumer(patient);
    try {
      await publish(broker, 'acked');
      await (await receive(consumer)).ack();
      await server.kill();
      await server.start();
      await publishInTheEnd(broker, 'confirmed');
      await server.kill();
      await server.start();
      assert.equal(text(await receive(consumer)), 'confirmed');
      await nothing(consumer, 300);
    } finally {
      await broker.close();
      await server.admin(`drop database ${database} with (force)`);
    }
  });

  it('works on when the server comes back on an empty disk', async () => {
    const database = await server.makeDatabase();
    const broker = await openPostgresBroker(server.url(database));
    const { happened } = disruption(broker);
    try {
      await publish(broker, 'gone');
      await server.loseDisk();
      await server.admin(`create database ${database}`);
      await happened;
      await publishInTheEnd(broker, 'new');
      assert.equal(text(await receive(await broker.consumer(patient))), 'new');
      assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 1 });
    } finally {
      await broker.close();
      await server.admin(`drop database ${database} with (force)`);
    }
  });
});
