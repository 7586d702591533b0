/** The settings of the engines around a process: database, broker, object storage. A part of the table of `settings.ts`. */
import { hour, mebi, setting as s } from './setting.ts';

export const engines = {
  databaseUrl: s('Engines', 'DATABASE_URL', 'url', '', 'PostgreSQL 15 or later; unset: the embedded one.'),
  databasePoolMax: s('Engines', 'DATABASE_POOL', 'int', '10', 'Connections to PostgreSQL of one process.', {
    min: 2,
    max: 200,
  }),
  brokerUrl: s(
    'Engines',
    'BROKER_URL',
    'url',
    'postgres:',
    '`postgres:` uses the database, `postgres://…` another one; `nats://…`, `nats+tls://…`, `amqp://…`, `amqps://…`, `valkey://…`, `valkeys://…`, `redis://…`, `rediss://…`.',
  ),
  brokerName: s('Engines', 'BROKER_NAME', 'name', 'skrepka', 'Name of the stream, queue or key that the broker holds.'),
  brokerReplicas: s(
    'Engines',
    'BROKER_REPLICAS',
    'int',
    '1',
    'Replicas of the JetStream stream, or initial members of the quorum queue.',
    {
      min: 1,
      max: 7,
    },
  ),
  blobsUrl: s(
    'Engines',
    'BLOBS_URL',
    'url',
    'file:',
    '`file:` stores below `DATA_DIR`, `file:///folder` elsewhere; `s3://bucket` in S3.',
  ),
  delivery: s(
    'Engines',
    'DELIVERY',
    'choice',
    'stream',
    'Whether downloads are streamed or redirected to presigned URLs.',
    {
      choices: ['stream', 'redirect'],
    },
  ),
  presignSeconds: s('Engines', 'PRESIGN_SECONDS', 'int', '60', 'Life of a presigned URL: the lag of a revocation.', {
    min: 1,
    max: 60,
  }),

  s3Endpoint: s('S3', 'S3_ENDPOINT', 'url', '', '`https://host` of the store; unset: the one of AWS for the region.'),
  s3PublicEndpoint: s(
    'S3',
    'S3_PUBLIC_ENDPOINT',
    'url',
    '',
    'The same as clients reach it, for presigned URLs; unset: `S3_ENDPOINT`.',
  ),
  s3Region: s('S3', 'S3_REGION', 'text', 'us-east-1', 'Region of the bucket.'),
  s3PathStyle: s('S3', 'S3_PATH_STYLE', 'choice', 'yes', 'Bucket in the path instead of in the host name.', {
    choices: ['yes', 'no'],
  }),
  s3Checksums: s(
    'S3',
    'S3_CHECKSUMS',
    'choice',
    'when_required',
    'Whether the SDK adds its own checksums; some stores refuse them, and ours are verified in any case.',
    { choices: ['when_required', 'when_supported'] },
  ),
  s3AccessKeyId: s('S3', 'S3_ACCESS_KEY_ID', 'secret', '', 'Access key.'),
  s3SecretAccessKey: s('S3', 'S3_SECRET_ACCESS_KEY', 'secret', '', 'Secret key.'),
  s3PartBytes: s('S3', 'S3_PART_BYTES', 'bytes', '8MiB', 'Size of a part; what is smaller is put in one request.', {
    min: 5 * mebi,
    max: 512 * mebi,
  }),
  s3TimeoutMs: s('S3', 'S3_TIMEOUT', 'duration', '30s', 'Longest wait for an answer of the store.', {
    min: 100,
    max: hour,
  }),
} as const;
