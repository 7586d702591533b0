/** The broker `postgres:` on the pool of production, as the wiring makes it. */
import { type BrokerSql, createPostgresBroker } from '../../src/drivers/broker-postgres.ts';
import type { Broker } from '../../src/pipeline/ports.ts';
import { committing, createPool, listen } from '../../src/postgres/pool.ts';

export function openBrokerSql(url: string): BrokerSql {
  const pool = createPool({ url, max: 4, name: 'skrepka broker' });
  return {
    ...committing(pool),
    listen: (channel, on) =>
      listen({
        url,
        name: 'skrepka broker',
        channels: [channel],
        onMessage: on.heard,
        onConnected: on.connected,
        onLost: on.lost,
      }),
    close: () => pool.end(),
  };
}

/** A prepared broker with connections of its own. */
export async function openPostgresBroker(url: string): Promise<Broker> {
  const broker = createPostgresBroker({ sql: openBrokerSql(url) });
  await broker.prepare();
  return broker;
}
