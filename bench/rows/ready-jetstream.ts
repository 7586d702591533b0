/** As the row `ready`, with the bell in NATS JetStream and objects in an S3 server on this machine. */
import { missingEngines } from '../../scripts/stage-engines.ts';
import { missingPictures } from '../pictures.ts';
import type { Row } from '../row.ts';
import { openSingles } from '../singles.ts';

export const row: Row = {
  name: 'ready-jetstream',
  title: 'Time to ready beyond rendering, JetStream and S3',
  about:
    'The row `ready` on JetStream and a local S3 server (Ceph), whose own work is part of the time. Each object is read and written over HTTP.',
  rounds: 5,
  missing: () => missingPictures() ?? missingEngines('jetstream-s3'),
  open: (scope, options) => openSingles(scope, options, { engines: 'jetstream-s3', p50Ms: 20, p95Ms: 50 }),
};
