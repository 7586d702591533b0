/**
 * What the row `queue` asks of each way of queueing: the same work, once in an API's process and once in a worker's.
 *
 * The API records an upload and makes sure that it will be worked on; the worker takes it, renders nothing, and records the
 * result. Both return when what they did is durable.
 */

/** Where the servers of one run are. Every run has a database of its own; the server of Redis is emptied before it. */
export interface QueueServers {
  readonly databaseUrl: string;
  readonly redisUrl: string;
}

export interface QueueApi {
  /** One upload, recorded and queued durably. `producer` counts from 0: one person who uploads one thing after the other. */
  upload(producer: number): Promise<void>;
  close(): Promise<void>;
}

export interface QueueWorker {
  close(): Promise<void>;
}

export interface QueueSide {
  /** Makes tables and queues, once, before any process of the run starts. */
  prepare(servers: QueueServers): Promise<void>;
  openApi(servers: QueueServers): Promise<QueueApi>;
  /** Works on `slots` jobs at once. `onDone` is called for every job whose result is recorded. */
  openWorker(servers: QueueServers, options: { slots: number; onDone: () => void }): Promise<QueueWorker>;
  /** What is recorded as ready, and what the queue still holds or runs. */
  count(servers: QueueServers): Promise<{ ready: number; queued: number }>;
}
