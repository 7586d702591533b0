/** What a turn plays on: the product, the broker, the load's process, users, a picture, and a look at the database. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { type Client, connect } from '../../src/postgres/pool.ts';
import * as nats from '../../tests/support/engines/nats.ts';
import { onEnd, type Scope } from '../../tests/support/on-end.ts';
import { photo } from '../../tests/support/pictures.ts';
import { openProduct, type Product } from '../product.ts';
import type { Cell, SizeName } from './design.ts';
import { sizes } from './design.ts';
import { acceptedIn, type Fate } from './figures.ts';
import { type Load, openLoad, type Sent } from './load-process.ts';
import { type Cast, lookAtQueue } from './watch.ts';

export interface Stage {
  readonly product: Product;
  readonly db: Client;
  readonly load: Load;
  readonly cast: Cast;
  readonly tokens: readonly string[];
  /** Resolves when no upload is unfinished; rejects after `deadlineMs`. */
  untilDrained(deadlineMs?: number): Promise<void>;
  /** What became of the accepted ones. */
  fatesOf(sent: readonly Sent[]): Promise<ReadonlyMap<string, Fate>>;
}

/** The command that installs what this machine lacks, or null. */
export const missing = (): string | null => (nats.available() ? null : nats.installCommand);

/** With it they are as large as those of cameras: 0.1, 0.9 and 3.5 MB. */
const quality = 95;
const drainMsMax = 180_000;
const drainLookMs = 100;

export async function openStage(
  scope: Scope,
  cell: Cell,
  { users, settings }: { readonly users: number; readonly settings: Readonly<Record<string, string>> },
): Promise<Stage> {
  const server = cell.broker === 'jetstream' ? await nats.startNats(scope) : null;
  const product = await openProduct(scope, {
    settings: {
      ...(server ? { BROKER_URL: server.url } : {}),
      RENDER_CONCURRENCY: String(cell.setting.concurrency),
      PREFETCH: String(cell.setting.prefetch),
      ...settings,
    },
  });
  const db = await connect({ url: product.databaseUrl, name: 'overload' });
  onEnd(scope, () => db.end());
  const load = openLoad(scope);
  const tokens: string[] = [];
  for (let user = 0; user < users; user += 1) tokens.push((await product.user()).token);
  const { api, workers, postgres } = product.processes;
  return {
    product,
    db,
    load,
    tokens,
    cast: { api, worker: workers[0] ?? 0, postgres, broker: server?.pid ?? null, load: load.pid },
    async untilDrained(deadlineMs = drainMsMax) {
      const endMs = performance.now() + deadlineMs;
      for (;;) {
        const { queued, processing } = await lookAtQueue(db, 0);
        if (queued + processing === 0) return;
        if (performance.now() > endMs)
          throw new Error(`${queued + processing} uploads are unfinished after ${deadlineMs} ms`);
        await pause(drainLookMs);
      }
    },
    async fatesOf(sent) {
      const ids = acceptedIn(sent).map(({ id }) => id);
      return new Map((await readFates(db, ids)).map((fate) => [fate.id, fate]));
    },
  };
}

async function readFates(db: Client, ids: readonly string[]): Promise<readonly Fate[]> {
  const { rows } = await db.query<Fate>(
    `select a.id, a.state, a.error_code as "errorCode", a.sha256,
            extract(epoch from a.ready_at)::float8 * 1000 as "readyAt",
            j.rings, j.attempts
     from attachments a
     join jobs j on j.attachment_id = a.id
     where a.id = any($1)`,
    [ids],
  );
  return rows;
}

/** One of each size, drawn from the seed, in a folder that ends with `scope`. */
export async function makePictures(scope: Scope, seed: number): Promise<Readonly<Record<SizeName, string>>> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-overload-'));
  onEnd(scope, () => rm(folder, { recursive: true, force: true }));
  const made: [SizeName, string][] = [];
  for (const { name, width, height } of sizes) {
    const file = path.join(folder, `${name}.jpg`);
    await writeFile(file, await photo(width, height, seed).jpeg({ quality }).toBuffer());
    made.push([name, file]);
  }
  return Object.fromEntries(made) as Record<SizeName, string>;
}
