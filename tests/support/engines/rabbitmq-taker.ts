/**
 * A process that takes one message from RabbitMQ, says so, and then does nothing until it is killed. Arguments: URL, name of
 * the queue, visibility in ms.
 */
import { createRabbitBroker } from '../../../src/drivers/broker-rabbitmq.ts';

const [url = '', name = '', visibilityMs = ''] = process.argv.slice(2);
const broker = createRabbitBroker({ url, name, replicas: 1, log: { info() {}, warn: console.error } });
await broker.prepare();
const consumer = await broker.consumer({ prefetch: 0, visibilityMs: Number(visibilityMs) });
const delivery = await consumer.next(new AbortController().signal);
console.log(`taken ${new TextDecoder().decode(delivery?.body)}`);
