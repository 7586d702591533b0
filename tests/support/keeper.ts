/**
 * A process that keeps one throw-away PostgreSQL for as long as its parent lives.
 *
 * It notices by its IPC channel when the parent is gone, also by SIGKILL, then stops the server and removes the folder.
 * Started by `server.ts`, never by hand.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type Embedded, startEmbedded } from '../../src/postgres/embedded.ts';
import { migrate } from '../../src/postgres/migrate.ts';
import { connect } from '../../src/postgres/pool.ts';

const log = { debug() {}, info() {}, warn: console.warn, error: console.error };
// Unit tests may lose their database to a power cut.
const settings = { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off', max_connections: '300' };

const orphaned = new AbortController();
process.once('disconnect', () => orphaned.abort(new Error('The parent is gone')));
// A Ctrl-C is for the parent, whose end we then see.
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => {});

const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-postgres-'));
let server: Embedded | null = null;
try {
  server = await startEmbedded({ dir: path.join(folder, 'data'), settings, log, signal: orphaned.signal });
  await makeTemplate(server.url);
  process.send?.({ url: server.url });
  await new Promise<void>((resolve) => {
    if (!process.connected) resolve();
    process.once('disconnect', resolve);
  });
} catch (error) {
  if (process.connected) process.send?.({ error: String(error) });
} finally {
  await server?.stop();
  await rm(folder, { recursive: true, force: true });
  if (process.connected) process.disconnect();
}

async function makeTemplate(url: string): Promise<void> {
  const admin = await connect({ url, name: 'tests', connectMs: 60_000 });
  try {
    await admin.query('create database template_skrepka');
  } finally {
    await admin.end();
  }
  const template = new URL(url);
  template.pathname = '/template_skrepka';
  await migrate(template.href);
}
