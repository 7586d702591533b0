/** The engines below a scenario: those that need no server, or servers of JetStream and S3 that it starts for itself. */
import path from 'node:path';
import { createFileBlobs } from '../src/drivers/blobs-file.ts';
import { createS3Blobs } from '../src/drivers/blobs-s3.ts';
import type { Blobs } from '../src/pipeline/ports.ts';
import * as ceph from '../tests/support/engines/ceph.ts';
import * as nats from '../tests/support/engines/nats.ts';
import { environmentOf, settingsOf } from '../tests/support/engines/s3-buckets.ts';
import { onEnd, type Scope } from '../tests/support/on-end.ts';

export const engineNames = ['embedded', 'jetstream-s3'] as const;
export type EngineNames = (typeof engineNames)[number];

export interface Engines {
  /** For readers. */
  readonly title: string;
  /** Environment of every process. */
  readonly settings: Readonly<Record<string, string>>;
  /** The object storage that the processes use, to look at. */
  readonly blobs: Blobs;
}

/** The command that installs what is missing, or null. */
export function missingEngines(name: EngineNames): string | null {
  if (name === 'embedded' || (nats.available() && ceph.available())) return null;
  const command = 'apt-get install --no-install-recommends';
  return `${command} ${[nats.installCommand, ceph.installCommand].map((one) => one.replace(command, '').trim()).join(' ')}`;
}

/** Starts what has to run; it is gone when `scope` ends. Takes about 20 s for the servers. */
export async function openEngines(name: EngineNames, scope: Scope, dataDir: string): Promise<Engines> {
  if (name === 'embedded') {
    return {
      title: 'the queue in PostgreSQL, objects in a folder',
      settings: { BROKER_URL: 'postgres:', BLOBS_URL: 'file:' },
      blobs: createFileBlobs({ dir: path.join(dataDir, 'blobs') }),
    };
  }
  const [broker, storage] = await Promise.all([nats.startNats(scope), ceph.startCeph(scope)]);
  const settings = settingsOf(storage, { bucket: 'scenario' });
  const blobs = createS3Blobs(settings);
  onEnd(scope, () => blobs.close());
  return {
    title: 'the bell in NATS JetStream, objects in S3',
    settings: { BROKER_URL: broker.url, ...environmentOf(settings) },
    blobs,
  };
}
