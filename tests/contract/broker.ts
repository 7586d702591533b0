/**
 * The suite that every broker driver passes: what `Broker` in `src/pipeline/ports.ts` promises, on a real server.
 *
 * A driver brings a harness: an empty queue for each case, clients of it, and the fate of its server. What brokers may do
 * differently (count deliveries, fence acks) it says in its traits, and the suite asks for no more than that.
 */
import { describe, it } from 'node:test';
import type { Broker } from '../../src/pipeline/ports.ts';
import { ending, publishing, visibility } from './broker-deliveries.ts';
import type { BrokerHarness, BrokerTraits, Promised } from './broker-scene.ts';
import { consuming, losses, outages, sharing, upkeep } from './broker-surroundings.ts';

export type { BrokerHarness, BrokerTraits } from './broker-scene.ts';

/** Registers the suite. `setUp` makes the harness of one case. */
export function brokerContract(name: string, traits: BrokerTraits, setUp: () => Promise<BrokerHarness>): void {
  const promised: Promised = (title, body) => {
    it(title, { timeout: 60_000 }, async () => {
      const harness = await setUp();
      const clients: Broker[] = [];
      const open = async () => {
        const client = await harness.open();
        clients.push(client);
        return client;
      };
      try {
        await body({ harness, traits, open });
      } finally {
        await Promise.all(clients.map((client) => client.close()));
        await harness.close();
      }
    });
  };
  describe(`${name}: publishing`, () => publishing(promised));
  describe(`${name}: ending a delivery`, () => ending(promised));
  describe(`${name}: visibility`, () => visibility(promised));
  describe(`${name}: consuming`, () => consuming(promised));
  describe(`${name}: sharing`, () => sharing(promised));
  describe(`${name}: outages`, () => outages(promised));
  describe(`${name}: losses`, () => losses(promised));
  describe(`${name}: upkeep`, () => upkeep(promised));
}
