/**
 * What `compose.yaml` and the files of `deploy/` read from `.env` beyond the settings of `src/settings.ts`, with the part
 * of `.env.example` that is made of it.
 *
 * `development`: compose refuses to start without it, and the example carries a value that everyone knows.
 */
export interface ComposeSetting {
  readonly env: string;
  readonly text: string;
  /** What compose takes when it is not set. */
  readonly fallback?: string;
  readonly development?: string;
}

const images: readonly ComposeSetting[] = [
  { env: 'SKREPKA_IMAGE', fallback: 'skrepka:local', text: 'Name of the image that is built, or pulled.' },
  { env: 'NODE_IMAGE', fallback: 'node:24.18.0-trixie-slim', text: 'What it is built on: Node 24 with glibc.' },
  { env: 'POSTGRES_IMAGE', fallback: 'postgres:17.6', text: 'PostgreSQL 15 or later.' },
  { env: 'NATS_IMAGE', fallback: 'nats:2.12.8-alpine', text: 'NATS 2.10 or later; 2.12.3 or later in production.' },
  { env: 'RABBITMQ_IMAGE', fallback: 'rabbitmq:4.1.3', text: 'For deploy/compose.rabbitmq.yaml.' },
  { env: 'VALKEY_IMAGE', fallback: 'valkey/valkey:8.1.4', text: 'For deploy/compose.valkey.yaml.' },
  { env: 'GARAGE_IMAGE', fallback: 'dxflrs/garage:v2.4.1', text: 'Garage 2.3 or later.' },
  { env: 'CEPH_IMAGE', fallback: 'local/ceph-rgw:18', text: 'For deploy/compose.ceph.yaml.' },
];

const sizes: readonly ComposeSetting[] = [
  { env: 'PUBLISH_ADDRESS', fallback: '127.0.0.1', text: 'Address of this host on which PORT is published.' },
  { env: 'API_CPUS', fallback: '1', text: 'Processors of one API.' },
  { env: 'API_MEMORY', fallback: '512M', text: 'Memory of one API.' },
  { env: 'WORKER_CPUS', fallback: '1', text: 'Processors of one worker: as many pictures at once.' },
  {
    env: 'WORKER_MEMORY',
    fallback: '1G',
    text: 'Memory of one worker: RENDER_MEMORY and 400M for each picture at once.',
  },
  {
    env: 'WORKER_SCRATCH',
    fallback: '256m',
    text: 'Room for originals in work, a part of that memory: 4 × MAX_UPLOAD_BYTES for each picture at once.',
  },
  { env: 'POSTGRES_CPUS', fallback: '1', text: 'Processors of PostgreSQL.' },
  { env: 'POSTGRES_MEMORY', fallback: '1G', text: 'Memory of PostgreSQL.' },
  {
    env: 'POSTGRES_VOLUME',
    fallback: '/var/lib/postgresql/data',
    text: 'Where its volume is mounted: /var/lib/postgresql for images of 18 and later.',
  },
  { env: 'NATS_MEMORY', fallback: '256M', text: 'Memory of NATS.' },
  { env: 'RABBITMQ_MEMORY', fallback: '1G', text: 'Memory of RabbitMQ.' },
  { env: 'VALKEY_MEMORY', fallback: '256M', text: 'Memory of Valkey.' },
  { env: 'S3_MEMORY', fallback: '512M', text: 'Memory of Garage.' },
];

const letters = 'Letters and digits, because it becomes part of a URL.';

const secrets: readonly ComposeSetting[] = [
  {
    env: 'POSTGRES_PASSWORD',
    development: 'development',
    text: `Password of PostgreSQL, fixed when its volume is made. ${letters}`,
  },
  {
    env: 'BROKER_PASSWORD',
    development: 'development',
    text: `Password of the broker, beginning with a letter. ${letters}`,
  },
  {
    env: 'S3_ACCESS_KEY_ID',
    development: 'GKdecade0decade0decade0dec',
    text: 'The setting above. For Garage: GK and 24 hexadecimal digits.',
  },
  {
    env: 'S3_SECRET_ACCESS_KEY',
    development: 'decade00'.repeat(8),
    text: 'The setting above. For Garage: 64 hexadecimal digits.',
  },
  {
    env: 'GARAGE_RPC_SECRET',
    development: 'facade00'.repeat(8),
    text: 'Secret among the nodes of Garage: 64 hexadecimal digits.',
  },
];

export const composeSettings: readonly ComposeSetting[] = [...images, ...sizes, ...secrets];

/** The part of `.env.example` about containers. */
export function composeExample(): string {
  const lines = (settings: readonly ComposeSetting[]) =>
    settings
      .map(({ env, text, fallback, development }) =>
        development === undefined ? `# ${text}\n#${env}=${fallback}\n` : `# ${text}\n${env}=${development}\n`,
      )
      .join('\n');
  return `# ---- Containers: read by compose.yaml and the files of deploy/ only

${lines(images)}
${lines(sizes)}
# ---- Secrets of the containers
#
# DEVELOPMENT VALUES, known to everyone who reads this file: good for a look at it on your own machine, and for nothing
# else. deploy/secrets.sh makes an .env with random ones.

${lines(secrets)}`;
}
