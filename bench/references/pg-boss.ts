/**
 * pg-boss 12 as its documentation advises: the upload and its job in one transaction (`db` of `send`), workers woken by NOTIFY,
 * jobs fetched in batches for as long as batches come full, each job of a batch settled by itself.
 *
 * One job a fetch (`localConcurrency` alone) waits for its poll as soon as rings come faster than jobs are done; a transaction for
 * result and completion (`transactional`) would undo the results of a whole batch with one that failed.
 */
import type pg from 'pg';
import { PgBoss } from 'pg-boss';
import type { QueueSide } from '../queue-side.ts';
import {
  countReady,
  createUploads,
  insertUpload,
  newUpload,
  noVariants,
  once,
  openPool,
  recordResult,
} from './uploads.ts';

const name = 'render';

export const pgBoss: QueueSide = {
  async prepare({ databaseUrl }) {
    await createUploads(databaseUrl);
    const boss = await open(databaseUrl, 2);
    await boss.createQueue(name, { retryLimit: 2, retryBackoff: true, notify: true });
    await boss.stop();
  },

  async openApi({ databaseUrl }) {
    const pool = openPool(databaseUrl, 10);
    const boss = await open(databaseUrl, 10);
    return {
      upload: (producer) => inTransaction(pool, (client) => insertAndSend(boss, client, producer)),
      async close() {
        await boss.stop();
        await pool.end();
      },
    };
  },

  async openWorker({ databaseUrl }, { slots, onDone }) {
    const pool = openPool(databaseUrl, slots);
    const boss = await open(databaseUrl, 10, true);
    await boss.work<{ uploadId: string }>(
      name,
      {
        localConcurrency: 2,
        batchSize: slots,
        burstWhenBatchFull: true,
        pollingIntervalSeconds: 0.5,
        notifyPollingIntervalSeconds: 0.5,
        perJobResults: true,
      },
      (jobs) =>
        Promise.all(
          jobs.map(async ({ id, data }) => {
            await pool.query({ name: 'record', text: recordResult, values: [data.uploadId, noVariants] });
            onDone();
            return { id, status: 'completed' as const };
          }),
        ),
    );
    return {
      async close() {
        await boss.stop();
        await pool.end();
      },
    };
  },

  count: ({ databaseUrl }) =>
    once(databaseUrl, async (client) => {
      const { rows } = await client.query<{ queued: number }>(
        `select count(*)::int as queued from pgboss.job where state <> 'completed'`,
      );
      return { ready: await countReady(client), queued: rows[0]?.queued ?? 0 };
    }),
};

async function open(connectionString: string, max: number, useListenNotify = false): Promise<PgBoss> {
  const boss = new PgBoss({ connectionString, max, useListenNotify });
  boss.on('error', (error) => console.error(error));
  await boss.start();
  return boss;
}

async function insertAndSend(boss: PgBoss, client: pg.PoolClient, producer: number): Promise<void> {
  const { id, values } = newUpload(producer);
  await client.query({ name: 'insert', text: insertUpload, values: [...values] });
  await boss.send(name, { uploadId: id }, { db: { executeSql: (text, more) => client.query(text, more) } });
}

async function inTransaction(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<void>): Promise<void> {
  const client = await pool.connect();
  try {
    await client.query('begin');
    await work(client);
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw error;
  } finally {
    client.release();
  }
}
