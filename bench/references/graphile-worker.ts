/**
 * Graphile Worker 0.18 as its page on performance advises: a local queue of one more than what runs at once, completions in
 * batches, prepared statements. The upload and its job are one statement: its `add_job` in SQL is made for that.
 */
import { Logger, makeWorkerUtils, run } from 'graphile-worker';
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

/** Ours logs warnings only as well. */
const logger = new Logger(() => (level, message) => {
  if (level === 'error' || level === 'warning') console.error(message);
});

const uploadAndJob = `
  with upload as (
    ${insertUpload}
    returning id
  )
  select graphile_worker.add_job('render', json_build_object('uploadId', id), max_attempts => 3)
  from upload`;

export const graphileWorker: QueueSide = {
  async prepare({ databaseUrl }) {
    await createUploads(databaseUrl);
    const pgPool = openPool(databaseUrl, 2);
    const tools = await makeWorkerUtils({ pgPool, preset: { worker: { logger } } });
    await tools.migrate();
    await tools.release();
    await pgPool.end();
  },

  async openApi({ databaseUrl }) {
    const pool = openPool(databaseUrl, 10);
    return {
      async upload(producer) {
        const { values } = newUpload(producer);
        await pool.query({ name: 'insert', text: uploadAndJob, values: [...values] });
      },
      close: () => pool.end(),
    };
  },

  async openWorker({ databaseUrl }, { slots, onDone }) {
    // Given, so that its end can be waited for.
    const pgPool = openPool(databaseUrl, 2 * slots + 2);
    const runner = await run({
      pgPool,
      preset: {
        worker: {
          concurrentJobs: slots,
          localQueue: { size: slots + 1 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          logger,
        },
      },
      noHandleSignals: true,
      taskList: {
        async render(payload, { withPgClient }) {
          const { uploadId } = payload as { uploadId: string };
          const values = [uploadId, noVariants];
          await withPgClient((client) => client.query({ name: 'record', text: recordResult, values }));
          onDone();
        },
      },
    });
    return {
      async close() {
        await runner.stop();
        await pgPool.end();
      },
    };
  },

  count: ({ databaseUrl }) =>
    once(databaseUrl, async (client) => {
      const { rows } = await client.query<{ queued: number }>(
        'select count(*)::int as queued from graphile_worker._private_jobs',
      );
      return { ready: await countReady(client), queued: rows[0]?.queued ?? 0 };
    }),
};
