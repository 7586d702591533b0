/** A process that takes one message, says so, and then does nothing until it is killed. Arguments: URL, visibility in ms. */
import { openPostgresBroker } from './broker-sql.ts';

const [url = '', visibilityMs = ''] = process.argv.slice(2);
const broker = await openPostgresBroker(url);
const consumer = await broker.consumer({ prefetch: 0, visibilityMs: Number(visibilityMs) });
await consumer.next(new AbortController().signal);
console.log('taken');
