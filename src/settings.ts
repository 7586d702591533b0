/**
 * Every setting that the environment can hold: name, kind, default, bounds, and a sentence for readers. Data only.
 *
 * `config.ts` reads them; `docs/configuration.md` and `.env.example` are generated from here (`npm run contract`).
 */

import { day, gibi, hour, mebi, minute, type Setting, setting as s } from './setting.ts';
import { engines } from './settings-engines.ts';
import { limits } from './settings-limits.ts';

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
  metricsPort: s(
    'Server',
    'METRICS_PORT',
    'int',
    '0',
    'Port on which a process without the API answers `/metrics` and `/health/live`; 0: none.',
    {
      min: 0,
      max: 65535,
    },
  ),
  registration: s('Server', 'REGISTRATION', 'choice', 'open', 'Whether anyone may register.', {
    choices: ['open', 'closed'],
  }),
  drainMs: s(
    'Server',
    'DRAIN',
    'duration',
    '50s',
    'Grace time to finish what runs after SIGTERM. Less than `STOP_GRACE`.',
    {
      min: 0,
      max: hour,
    },
  ),
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

  ...engines,

  ...limits,

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
  leaseMs: s(
    'Jobs',
    'LEASE',
    'duration',
    '45s',
    'Time for which a claim is exclusive unless renewed. More than 3 × `RENEW`, more than `RENDER_TIMEOUT`.',
    {
      min: 300,
      max: hour,
    },
  ),
  renewMs: s('Jobs', 'RENEW', 'duration', '10s', 'How often a running claim is renewed.', { min: 50, max: hour }),
  leaseReserveMs: s(
    'Jobs',
    'LEASE_RESERVE',
    'duration',
    '5s',
    'How long before its lease ends a worker falls silent. Less than `LEASE` − `RENEW`.',
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
  unsupportedMs: s(
    'Jobs',
    'UNSUPPORTED_DELAY',
    'duration',
    '60s',
    'Wait of a job after it came to a worker whose build cannot make its pipeline version.',
    {
      min: 100,
      max: hour,
    },
  ),

  pipelineVersion: s(
    'Jobs',
    'PIPELINE_VERSION',
    'int',
    '0',
    'Pipeline version of new jobs and of reprocessing; 0: the newest of this build.',
    {
      min: 0,
      max: 1e6,
    },
  ),
  spacingMs: s('Jobs', 'FAIR_SPACING', 'duration', '1s', 'How far apart the turns of one user’s waiting uploads are.', {
    min: 0,
    max: hour,
  }),
  reprocessWindow: s('Jobs', 'REPROCESS_WINDOW', 'int', '100', 'Unfinished jobs of reprocessing, at most.', {
    min: 1,
    max: 1e6,
  }),

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
    'After which the broker delivers again what was not ended. More than `LEASE`.',
    {
      min: 100,
      max: hour,
    },
  ),
  publishTimeoutMs: s(
    'Broker',
    'PUBLISH_TIMEOUT',
    'duration',
    '5s',
    'Longest wait for a confirmation. Less than `RING_RETRY`.',
    {
      min: 50,
      max: minute,
    },
  ),
  breakerFloorMs: s(
    'Broker',
    'BREAKER_FLOOR',
    'duration',
    '500ms',
    'First wait before a dependency that is down is tried again. At most `BREAKER_CAP`.',
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
    'Least wait before an announced and unclaimed job is announced again. At most `RERING_CAP`.',
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
    'Wait before objects of an ended attempt are deleted: lease and slowest request. At least `LEASE`. Below this age no published object is a stray.',
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
  orphanMs: s(
    'Janitor',
    'ORPHAN_AGE',
    'duration',
    '24h',
    'Age at which a staging object without a row is deleted. At least `MAX_UPLOAD_TIME`.',
    {
      min: 0,
      max: 30 * day,
    },
  ),
  failedRetentionMs: s(
    'Janitor',
    'FAILED_RETENTION',
    'duration',
    '7d',
    'How long the original of a failed upload is kept for a replay.',
    {
      min: 1000,
      max: 365 * day,
    },
  ),
  historyRetentionMs: s(
    'Janitor',
    'HISTORY_RETENTION',
    'duration',
    '90d',
    'How long the history of a finished job is kept. At least `FAILED_RETENTION`.',
    {
      min: 1000,
      max: 3650 * day,
    },
  ),
  deepSweepMs: s(
    'Janitor',
    'DEEP_SWEEP_INTERVAL',
    'duration',
    '24h',
    'Pause between searches through all published objects for those that no row names.',
    {
      min: 50,
      max: 30 * day,
    },
  ),
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
