/**
 * The floor of an upload: a bare Node server that hashes the body, writes and fsyncs it, renames it, fsyncs the folder, and
 * records it by one INSERT. No accounts, no limits, no form, no job: nothing that could be left out is done.
 *
 * As quick as Node does it: chunks are gathered and written at once (`writev`), the folder stays open for its fsync, the INSERT is
 * prepared. As durable as ours: the answer comes when file, name and row outlive a power cut.
 *
 * Started with an IPC channel; hears a `Ground`, tells `{ url }`, and ends with its parent.
 */
import { createHash, randomUUID } from 'node:crypto';
import { type FileHandle, mkdir, open, rename } from 'node:fs/promises';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import pg from 'pg';

export interface Ground {
  /** An empty database; the table is made there. */
  readonly databaseUrl: string;
  /** Made when missing. */
  readonly dir: string;
}

/** The same batch as in `src/drivers/blobs-file.ts`. */
const batchBytes = 512 * 1024;

const ground = await new Promise<Ground>((resolve) => process.once('message', (word) => resolve(word as Ground)));
const pool = new pg.Pool({ connectionString: ground.databaseUrl, max: 10 });
await pool.query(`
  create table uploads (
    id uuid primary key,
    owner_id uuid not null,
    file_name text not null,
    content_type text not null,
    size bigint not null,
    sha256 text not null,
    path text not null,
    created_at timestamptz not null default now()
  )`);
await mkdir(ground.dir, { recursive: true });
const folder = await open(ground.dir, 'r');
const ownerId = randomUUID();

const server = createServer((request, response) => {
  takeIn(request).then(
    (upload) => {
      response.writeHead(202, { 'content-type': 'application/json' });
      response.end(JSON.stringify(upload));
    },
    (error: unknown) => {
      console.error(error);
      response.writeHead(500).end();
    },
  );
});
server.listen(0, '127.0.0.1', () => {
  process.send?.({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
});
process.once('disconnect', () => process.exit(0));

async function takeIn(request: IncomingMessage) {
  const id = randomUUID();
  const file = path.join(ground.dir, id);
  const handle = await open(`${file}.part`, 'wx');
  let stored: { size: number; sha256: string };
  try {
    stored = await write(handle, request);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await rename(`${file}.part`, file);
  await folder.sync();
  const contentType = request.headers['content-type'] ?? '';
  await pool.query({
    name: 'insert',
    text: `insert into uploads (id, owner_id, file_name, content_type, size, sha256, path) values ($1, $2, $3, $4, $5, $6, $7)`,
    values: [id, ownerId, 'cat.jpg', contentType, stored.size, stored.sha256, file],
  });
  return { id, ...stored };
}

async function write(handle: FileHandle, request: IncomingMessage) {
  const hash = createHash('sha256');
  let size = 0;
  let held: Buffer[] = [];
  let heldBytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    hash.update(chunk);
    size += chunk.length;
    held.push(chunk);
    heldBytes += chunk.length;
    if (heldBytes < batchBytes) continue;
    await writeWhole(handle, held, heldBytes);
    held = [];
    heldBytes = 0;
  }
  if (heldBytes > 0) await writeWhole(handle, held, heldBytes);
  return { size, sha256: hash.digest('hex') };
}

async function writeWhole(handle: FileHandle, chunks: readonly Buffer[], bytes: number) {
  const { bytesWritten } = await handle.writev(chunks);
  // Of a regular file only a full disk does this.
  if (bytesWritten !== bytes) throw new Error(`Expected to write ${bytes} bytes, wrote ${bytesWritten}`);
}
