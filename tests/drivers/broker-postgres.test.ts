/** The broker `postgres:` passes the suite of every driver on a server of its own; then what only this driver promises. */
import { after, before } from 'node:test';
import { brokerContract } from '../contract/broker.ts';
import { type BrokerServer, createBrokerServer, createPostgresHarness } from '../support/broker-server.ts';

const traits = { visibilityMs: 800, countsDeliveries: true, fencesAcks: true, dropsDuplicates: true };

let server: BrokerServer;
before(async () => {
  server = await createBrokerServer();
});
after(() => server.close());

brokerContract('broker postgres', traits, () => createPostgresHarness(server));
