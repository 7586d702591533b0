/** What an operator does with streams and consumers on a NATS server, behind the driver's back. */
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { connect } from '@nats-io/transport-node';
import { onEnd, type Scope } from '../on-end.ts';

/** The JetStream API of the servers in `url`, over a connection of its own that ends with `t`. */
export async function asOperator(t: Scope, url: string): Promise<JetStreamManager> {
  const connection = await connect({
    servers: url.replace(/^nats:\/\//, '').split(','),
    maxReconnectAttempts: -1,
    reconnectTimeWait: 100,
  });
  onEnd(t, () => connection.close());
  return await jetstreamManager(connection, { checkAPI: false, timeout: 5_000 });
}
