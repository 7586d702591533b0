/**
 * A process that takes one message from NATS, says so, and then does nothing until it is killed. Arguments: URL, name of the
 * stream, visibility in ms, and the text of a message that it publishes before.
 */
import { createNatsBroker } from '../../../src/drivers/broker-nats.ts';

const [url = '', name = '', visibilityMs = '', own = ''] = process.argv.slice(2);
const log = { info() {}, warn: console.error };
const broker = createNatsBroker({ url, name, replicas: 1, log });
await broker.prepare();
if (own !== '') await broker.publish(own, new TextEncoder().encode(own), { timeoutMs: 5_000 });
const consumer = await broker.consumer({ prefetch: 0, visibilityMs: Number(visibilityMs) });
const delivery = await consumer.next(new AbortController().signal);
console.log(`taken ${new TextDecoder().decode(delivery?.body)}`);
