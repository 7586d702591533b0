/** The storm of faults on real processes with the bell in a real JetStream server and objects in a real S3 store. */
import { test } from 'node:test';
import { storm } from '../contract/storm.ts';
import { available as hasCeph, installCommand as installCeph } from '../support/engines/ceph.ts';
import { available as hasNats, installCommand as installNats } from '../support/engines/nats.ts';
import { jetStreamAndS3 } from '../support/storm/jetstream-s3.ts';

const missing = [...(hasNats() ? [] : [installNats]), ...(hasCeph() ? [] : [installCeph])];
if (missing.length === 0) storm('JetStream and S3', jetStreamAndS3);
else test('the storm passes over real JetStream and S3 servers', (context) => context.skip(missing.join(' && ')));
