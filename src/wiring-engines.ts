/**
 * The engines around a process, each by the scheme of its URL: which driver is which. A part of `wiring.ts`.
 *
 * A driver of an engine is loaded only where it is used: some are large.
 */
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Config } from './config.ts';
import { createFileBlobs } from './drivers/blobs-file.ts';
import { type BrokerSql, createPostgresBroker } from './drivers/broker-postgres.ts';
import { StartError } from './errors.ts';
import type { Blobs, Broker, Log } from './pipeline/ports.ts';
import { recipes } from './pipeline/recipe.ts';
import { readInstallation } from './postgres/installation.ts';
import { committing, createPool, listen, type Pool } from './postgres/pool.ts';

const bucketForm = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\/?$/;

/** What a URL may look like, before anything is built or loaded: a wrong one is told at once, whatever the word of the command line. */
const forms = {
  database: /^(?:$|postgres(?:ql)?:\/\/)/,
  broker: /^(?:postgres:$|(?:postgres|postgresql|nats|nats\+tls|amqps?|valkeys?|rediss?):\/\/)/,
  blobs: /^(?:file:$|file:\/\/\/|s3:\/\/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\/?$)/,
} as const;

// None of them shows what was received: it may hold a password.
const sentences = {
  database:
    'Expected postgres://user:password@host:port/name for DATABASE_URL, received something else: correct it, or unset it for the embedded PostgreSQL of "npm start".',
  broker:
    'Expected postgres:, postgres://, nats://, nats+tls://, amqp://, amqps://, valkey://, valkeys://, redis:// or rediss:// for BROKER_URL, received another form: correct it, or unset it to let the database be the broker.',
  blobs:
    'Expected "file:", "file:///folder" or "s3://bucket" for BLOBS_URL, received something else: correct it, or unset it to keep objects below DATA_DIR.',
} as const;

/** Throws `StartError` for a URL of a scheme that nobody drives, and for a pipeline version that this build has no recipe of. */
export function requireEngines({ databaseUrl, brokerUrl, blobsUrl, pipelineVersion }: Config): void {
  if (!forms.database.test(databaseUrl)) throw new StartError(sentences.database);
  if (!forms.broker.test(brokerUrl)) throw new StartError(sentences.broker);
  if (!forms.blobs.test(blobsUrl)) throw new StartError(sentences.blobs);
  if (pipelineVersion === 0 || recipes.has(pipelineVersion)) return;
  throw new StartError(
    `Expected 0 or a pipeline version of this build (${[...recipes.keys()].join(', ')}) for PIPELINE_VERSION, received ${pipelineVersion}: correct it, or run the build that has it.`,
  );
}

/** Throws `StartError` without DATABASE_URL, which only `skrepka start` can do without. */
export function requireDatabase({ databaseUrl }: Config): void {
  if (databaseUrl !== '') return;
  throw new StartError(
    'DATABASE_URL is not set: give it the URL of a PostgreSQL, or run "npm start", which brings its own.',
  );
}

/** `pool` says whose the objects of a folder are; a bucket is there or not, and needs nobody to say so. */
export async function buildBlobs(config: Config, pool: Pool): Promise<Blobs> {
  const { blobsUrl, dataDir } = config;
  const owner = () => readInstallation(pool);
  if (blobsUrl === 'file:') return createFileBlobs({ dir: path.join(dataDir, 'blobs'), owner });
  if (blobsUrl.startsWith('file:///')) return createFileBlobs({ dir: fileURLToPath(blobsUrl), owner });
  const bucket = bucketForm.exec(blobsUrl)?.[1];
  if (bucket !== undefined) return (await import('./drivers/blobs-s3.ts')).createS3Blobs({ ...config, bucket });
  throw new StartError(sentences.blobs);
}

export async function buildBroker(config: Config, pool: Pool, log: Log): Promise<Broker> {
  const { brokerUrl: url, brokerName: name, brokerReplicas: replicas } = config;
  const scheme = url.slice(0, url.indexOf(':'));
  switch (scheme) {
    case 'postgres':
    case 'postgresql':
      return createPostgresBroker({ sql: brokerSql(config, pool), log });
    case 'nats':
    case 'nats+tls':
      return (await import('./drivers/broker-nats.ts')).createNatsBroker({ url, name, replicas, log });
    case 'amqp':
    case 'amqps':
      return (await import('./drivers/broker-rabbitmq.ts')).createRabbitBroker({ url, name, replicas, log });
    case 'valkey':
    case 'valkeys':
    case 'redis':
    case 'rediss':
      return (await import('./drivers/broker-valkey.ts')).createValkeyBroker({ url, name, log });
    default:
      throw new StartError(sentences.broker);
  }
}

/** The embedded broker lives in the store's database, or in any other: it takes no part in the store's transactions. */
function brokerSql({ brokerUrl, databaseUrl, databasePoolMax }: Config, storePool: Pool): BrokerSql {
  const own = brokerUrl !== 'postgres:';
  const url = own ? brokerUrl : databaseUrl;
  const pool = own ? createPool({ url, max: databasePoolMax, name: 'skrepka broker' }) : storePool;
  return {
    ...committing(pool),
    listen: (channel, on) =>
      listen({
        url,
        name: 'skrepka broker',
        channels: [channel],
        onMessage: on.heard,
        onConnected: on.connected,
        onLost: on.lost,
      }),
    close: async () => {
      if (own) await pool.end();
    },
  };
}
