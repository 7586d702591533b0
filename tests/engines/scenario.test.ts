/** Level 4 of the scenario with the bell in a real JetStream server and objects in a real S3 store. */
import { test } from 'node:test';
import * as ceph from '../support/engines/ceph.ts';
import * as nats from '../support/engines/nats.ts';
import { assertOperated, scenario } from '../support/scenario.ts';

if (nats.available() && ceph.available()) {
  test('deaths between two writes, a replay and a hung worker are told and hold on JetStream and S3', async () => {
    await assertOperated(await scenario(['--level', '4', '--engines', 'jetstream-s3']));
  });
} else {
  test('level 4 of the scenario runs on JetStream and S3', (context) =>
    context.skip(`${nats.installCommand}; ${ceph.installCommand}`));
}
