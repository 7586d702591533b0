/**
 * Every setting that the environment can hold: name, kind, default, bounds, and a sentence for readers. Data only.
 *
 * `config.ts` reads them; `docs/configuration.md` and `.env.example` are generated from here (`npm run contract`).
 */

/** `name` is a lower-case word; `bytes` takes `25MiB`, `512KiB`, `1048576`; `duration` takes `250ms`, `30s`, `5m`, `24h`, `7d`. */
export type Kind = 'text' | 'name' | 'secret' | 'url' | 'path' | 'choice' | 'int' | 'bytes' | 'duration';

export interface Setting<K extends Kind = Kind> {
  readonly env: string;
  readonly kind: K;
  /** As it would be written in the environment. Empty: unset. */
  readonly fallback: string;
  readonly min?: number;
  readonly max?: number;
  readonly choices?: readonly string[];
  readonly group: string;
  readonly text: string;
}

const s = <K extends Kind>(
  group: string,
  env: string,
  kind: K,
  fallback: string,
  text: string,
  bounds: { min?: number; max?: number; choices?: readonly string[] } = {},
): Setting<K> => ({ group, env, kind, fallback, text, ...bounds });

export const minute = 60_000;
export const hour = 60 * minute;
export const day = 24 * hour;
export const mebi = 1024 ** 2;
export const gibi = 1024 ** 3;

export const table = {
  port: s('Server', 'PORT', 'int', '8080', 'Port of the API; 0 takes a free one.', { min: 0, max: 65535 }),
  host: s('Server', 'HOST', 'text', '127.0.0.1', 'Address that the API listens on.'),
  dataDir: s(
    'Server',
    'DATA_DIR',
    'path',
    './data',
    'Folder of everything embedded: PostgreSQL, objects, scratch files.',
  ),
  logLevel: s('Server', 'LOG_LEVEL', 'choice', 'info', 'Least level that is logged.', {
    choices: ['debug', 'info', 'warn', 'error'],
  }),
  metricsToken: s('Server', 'METRICS_TOKEN', 'secret', '', 'Bearer token for `/metrics` from elsewhere than loopback.'),
  registration: s('Server', 'REGISTRATION', 'choice', 'open', 'Whether anyone may register.', {
    choices: ['open', 'closed'],
  }),
  drainMs: s('Server', 'DRAIN', 'duration', '50s', 'Grace time to finish what runs after SIGTERM.', {
    min: 0,
    max: hour,
  }),
  killMs: s(
    'Server',
    'STOP_GRACE',
    'duration',
    '60s',
    'After which the orchestrator kills; only checked against `DRAIN`.',
    {
      min: 0,
      max: hour,
    },
  ),

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

  uploadBytesMax: s('Limits', 'MAX_UPLOAD_BYTES', 'bytes', '25MiB', 'Largest accepted file.', {
    min: 1,
    max: 5 * gibi,
  }),
  uploadMsMax: s(
    'Limits',
    'MAX_UPLOAD_TIME',
    'duration',
    '1h',
    'Longest time from the first byte of an upload to its commit.',
    {
      min: 1000,
      max: day,
    },
  ),
  stallMs: s('Limits', 'UPLOAD_STALL', 'duration', '60s', 'An upload that sends nothing for this long is ended.', {
    min: 1000,
    max: hour,
  }),
  pixelsMax: s('Limits', 'MAX_PIXELS', 'int', '50000000', 'Width × height × frames of a picture that is rendered.', {
    min: 1,
    max: 1e9,
  }),
  pixelsMaxAvif: s(
    'Limits',
    'MAX_PIXELS_AVIF',
    'int',
    '16000000',
    'The same for AVIF, whose decoder needs far more memory.',
    {
      min: 1,
      max: 1e9,
    },
  ),
  framesMax: s('Limits', 'MAX_FRAMES', 'int', '500', 'Frames of an animation that is rendered.', {
    min: 1,
    max: 10_000,
  }),
  scansMax: s('Limits', 'MAX_SCANS', 'int', '64', 'Scans of a progressive JPEG that is rendered.', {
    min: 1,
    max: 10_000,
  }),

  renderConcurrency: s(
    'Rendering',
    'RENDER_CONCURRENCY',
    'int',
    '0',
    'Pictures rendered at once; 0: one a core, as far as memory allows.',
    {
      min: 0,
      max: 256,
    },
  ),
  renderTimeoutMs: s('Rendering', 'RENDER_TIMEOUT', 'duration', '30s', 'Longest render; then its process is killed.', {
    min: 50,
    max: hour,
  }),
  renderMemoryBytes: s('Rendering', 'RENDER_MEMORY', 'bytes', '600MiB', 'Memory of one render process (RLIMIT_DATA).', {
    min: 128 * mebi,
    max: 64 * gibi,
  }),

  attemptsMax: s('Jobs', 'MAX_ATTEMPTS', 'int', '5', 'Handled failures until a job is failed.', { min: 1, max: 100 }),
  crashesMax: s('Jobs', 'MAX_CRASHES', 'int', '3', 'Leases that ended without a word until a job is failed.', {
    min: 1,
    max: 100,
  }),
  retryFloorMs: s('Jobs', 'RETRY_FLOOR', 'duration', '1s', 'Least wait before a retry.', { min: 0, max: hour }),
  retryBaseMs: s('Jobs', 'RETRY_BASE', 'duration', '2s', 'Doubles with each failure; the wait is drawn below it.', {
    min: 1,
    max: hour,
  }),
  retryCapMs: s('Jobs', 'RETRY_CAP', 'duration', '5m', 'Bound of that doubling.', { min: 1, max: day }),
  leaseMs: s('Jobs', 'LEASE', 'duration', '45s', 'Time for which a claim is exclusive unless renewed.', {
    min: 300,
    max: hour,
  }),
  renewMs: s('Jobs', 'RENEW', 'duration', '10s', 'How often a running claim is renewed.', { min: 50, max: hour }),
  leaseReserveMs: s(
    'Jobs',
    'LEASE_RESERVE',
    'duration',
    '5s',
    'How long before its lease ends a worker falls silent.',
    {
      min: 10,
      max: hour,
    },
  ),
  leaseMarginMs: s(
    'Jobs',
    'LEASE_MARGIN',
    'duration',
    '500ms',
    'How long after the lease the bell of a running job rings.',
    {
      min: 0,
      max: hour,
    },
  ),
  releaseMs: s(
    'Jobs',
    'RELEASE_DELAY',
    'duration',
    '5s',
    'Wait after a claim was given back because a dependency was down.',
    {
      min: 0,
      max: hour,
    },
  ),

  brokerWindow: s('Broker', 'BROKER_WINDOW', 'int', '1000', 'Jobs announced and not yet claimed, at most.', {
    min: 1,
    max: 1e6,
  }),
  prefetch: s('Broker', 'PREFETCH', 'int', '0', 'Deliveries held beyond free slots.', { min: 0, max: 1000 }),
  visibilityMs: s(
    'Broker',
    'BROKER_REDELIVERY',
    'duration',
    '60s',
    'After which the broker delivers again what was not ended.',
    {
      min: 100,
      max: hour,
    },
  ),
  publishTimeoutMs: s('Broker', 'PUBLISH_TIMEOUT', 'duration', '5s', 'Longest wait for a confirmation.', {
    min: 50,
    max: minute,
  }),
  breakerFloorMs: s(
    'Broker',
    'BREAKER_FLOOR',
    'duration',
    '500ms',
    'First wait before a dependency that is down is tried again.',
    {
      min: 10,
      max: hour,
    },
  ),
  breakerCapMs: s('Broker', 'BREAKER_CAP', 'duration', '10s', 'Bound of the doubling of that wait.', {
    min: 10,
    max: hour,
  }),
  takenMs: s('Broker', 'RING_RETRY', 'duration', '10s', 'After which a taken but unconfirmed bell rings again.', {
    min: 100,
    max: hour,
  }),
  reringMs: s(
    'Broker',
    'RERING',
    'duration',
    '30s',
    'Least wait before an announced and unclaimed job is announced again.',
    {
      min: 100,
      max: hour,
    },
  ),
  reringCapMs: s('Broker', 'RERING_CAP', 'duration', '30m', 'Bound of the doubling of that wait.', {
    min: 100,
    max: day,
  }),
  starvedMs: s(
    'Broker',
    'STARVED',
    'duration',
    '5s',
    'Free slots and no delivery for this long make announced jobs due again.',
    {
      min: 50,
      max: hour,
    },
  ),

  graceMs: s(
    'Janitor',
    'CLEANUP_GRACE',
    'duration',
    '2m',
    'Wait before objects of an ended attempt are deleted: lease and slowest request.',
    {
      min: 0,
      max: day,
    },
  ),
  replacedMs: s(
    'Janitor',
    'REPLACED_GRACE',
    'duration',
    '70m',
    'How long variants of a replaced version stay readable.',
    {
      min: 0,
      max: 30 * day,
    },
  ),
  orphanMs: s('Janitor', 'ORPHAN_AGE', 'duration', '24h', 'Age at which a staging object without a row is deleted.', {
    min: 0,
    max: 30 * day,
  }),
  janitorMs: s('Janitor', 'JANITOR_INTERVAL', 'duration', '5s', 'Pause between the rounds of the janitor.', {
    min: 50,
    max: hour,
  }),
  sweepMs: s('Janitor', 'SWEEP_INTERVAL', 'duration', '1h', 'Pause between searches for orphans and expired rows.', {
    min: 50,
    max: day,
  }),

  idempotencyMs: s('Accounts', 'IDEMPOTENCY_TTL', 'duration', '24h', 'How long an answered idempotency key is kept.', {
    min: 1000,
    max: 30 * day,
  }),
  reservationMs: s(
    'Accounts',
    'IDEMPOTENCY_LEASE',
    'duration',
    '30s',
    'How long the key of a running request stays reserved after its process died.',
    { min: 300, max: hour },
  ),
  sessionMs: s('Accounts', 'SESSION_TTL', 'duration', '30d', 'Life of a token.', { min: 1000, max: 365 * day }),
  loginFailuresMax: s(
    'Accounts',
    'LOGIN_FAILURES',
    'int',
    '10',
    'Failed log-ins in a window until further ones are refused.',
    {
      min: 1,
      max: 1000,
    },
  ),
  loginWindowMs: s('Accounts', 'LOGIN_WINDOW', 'duration', '15m', 'Length of that window.', { min: 1000, max: day }),
} as const satisfies Record<string, Setting>;
