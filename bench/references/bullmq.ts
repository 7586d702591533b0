/**
 * BullMQ 6 as its guide advises for production: Redis with an append-only file (here flushed always, for PostgreSQL flushes
 * always as well), clients of the worker without a limit of retries, finished jobs removed by count, retries with back-off.
 *
 * The upload is inserted first, then added: the other way round a worker may look for a row that is not there yet. Between
 * the two it can be lost; what would mend that, a table of things to send, is not part of BullMQ and not built here.
 * The client is `iovalkey`, the fork of the `ioredis` that BullMQ names: same code, same scripts, already in the house.
 */
import { Queue, Worker } from 'bullmq';
import { Redis } from 'iovalkey';
import type { QueueServers, QueueSide } from '../queue-side.ts';
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

export const bullmq: QueueSide = {
  prepare: ({ databaseUrl }) => createUploads(databaseUrl),

  async openApi({ databaseUrl, redisUrl }) {
    const pool = openPool(databaseUrl, 10);
    const connection = connect(redisUrl);
    const queue = new Queue<{ uploadId: string }>(name, {
      connection,
      defaultJobOptions: {
        attempts: 3,
        backoff: { type: 'exponential', delay: 1000 },
        removeOnComplete: { count: 1000 },
        removeOnFail: { count: 5000 },
      },
    });
    await queue.waitUntilReady();
    return {
      async upload(producer) {
        const { id, values } = newUpload(producer);
        await pool.query({ name: 'insert', text: insertUpload, values: [...values] });
        await queue.add(name, { uploadId: id }, { jobId: id });
      },
      async close() {
        await queue.close();
        connection.disconnect();
        await pool.end();
      },
    };
  },

  async openWorker({ databaseUrl, redisUrl }, { slots, onDone }) {
    const pool = openPool(databaseUrl, slots);
    const connection = connect(redisUrl);
    const worker = new Worker<{ uploadId: string }>(
      name,
      async ({ data }) => {
        await pool.query({ name: 'record', text: recordResult, values: [data.uploadId, noVariants] });
      },
      { connection, concurrency: slots },
    );
    worker.on('error', (error) => console.error(error));
    worker.on('completed', onDone);
    await worker.waitUntilReady();
    return {
      async close() {
        await worker.close();
        connection.disconnect();
        await pool.end();
      },
    };
  },

  async count({ databaseUrl, redisUrl }) {
    const connection = connect(redisUrl);
    const queue = new Queue(name, { connection });
    try {
      const queued = await queue.getJobCountByTypes('waiting', 'active', 'delayed', 'prioritized', 'failed');
      return { ready: await once(databaseUrl, countReady), queued };
    } finally {
      await queue.close();
      connection.disconnect();
    }
  },
};

/** Without a limit of retries, as a worker needs it. */
export function connect(redisUrl: QueueServers['redisUrl']): Redis {
  const { hostname, port } = new URL(redisUrl);
  return new Redis({ host: hostname, port: Number(port), maxRetriesPerRequest: null });
}
