/** A reporter for Node's test runner that writes one line a skipped or unfinished test: file, title, reason. */
import path from 'node:path';
import type { TestEvent } from 'node:test/reporters';

export default async function* reportSkips(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  for await (const event of events) {
    if (event.type !== 'test:pass' && event.type !== 'test:fail') continue;
    const { file, name, skip, todo } = event.data;
    const reason = skip ?? todo;
    if (reason === undefined || reason === false) continue;
    const where = file ? path.relative(process.cwd(), file) : '';
    yield `${where}: ${name} (${typeof reason === 'string' && reason !== '' ? reason : 'no reason given'})\n`;
  }
}
