/** JetStream and S3 under a storm: their servers die, forget and go back in time, and so do the lines to them. */
import { cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type CephServer, startCeph } from '../engines/ceph.ts';
import { type NatsServer, startNats } from '../engines/nats.ts';
import { environmentOf, makeBucket } from '../engines/s3-buckets.ts';
import { onEnd } from '../on-end.ts';
import type { Crew, Member } from './crew.ts';
import { makeSmallDisk } from './disk.ts';
import { fullDisk, type OpenStorm, postgresKills } from './embedded.ts';
import { lasts } from './lasts.ts';
import { startKillablePostgres } from './postgres.ts';
import { badLines, heardSoon, type Moment, type Strike } from './strikes.ts';

const moments: readonly Moment[] = [
  { member: 'relay', dependency: 'broker', word: 'HPUB ' },
  { member: 'worker 2', dependency: 'broker', word: '$JS.ACK' },
  { member: 'api', dependency: 'storage', word: 'PUT /' },
  { member: 'worker', dependency: 'storage', word: 'PUT /' },
];

export const jetStreamAndS3: OpenStorm = async (t) => {
  const nats = await startNats(t);
  const ceph = await startCeph(t);
  const postgres = await startKillablePostgres(t);
  const bucket = await makeBucket(ceph);
  onEnd(t, bucket.close);
  // Objects are elsewhere: what fills up is the workers' own disk.
  const disk = await makeSmallDisk(t, { mebibytes: 64, objects: 'blobs' });
  const kept = await mkdtemp(join(tmpdir(), 'skrepka-storm-nats-'));
  onEnd(t, () => rm(kept, { recursive: true, force: true }));
  return {
    postgres,
    blobs: bucket.blobs,
    disk: disk.means,
    servers: { database: postgres.url, broker: nats.url, storage: ceph.url },
    environment: ({ broker, storage }) => ({
      ...environmentOf({ ...bucket.settings, s3Endpoint: storage ?? ceph.url, s3TimeoutMs: 4_000 }),
      BROKER_URL: broker ?? nats.url,
      BROKER_NAME: 'storm',
    }),
    dataDir: disk.folder,
    decks: (crew) => [
      ...badLines(crew, moments, [
        ['worker', 'storage'],
        ['relay', 'broker'],
        ['worker 2', 'broker'],
      ]),
      [...postgresKills(postgres), ...fullDisk(disk, 'scratch')],
      [killOf(nats), wipeOf(nats), rollBackOf(nats, join(kept, 'volume')), wipeOf(nats)],
      [...gatewayKills(ceph, crew)],
    ],
  };
};

function killOf(nats: NatsServer): Strike {
  return {
    kind: 'broker killed',
    target: 'nats-server',
    async run() {
      await nats.kill();
      await lasts(1_500);
      await nats.start();
    },
  };
}

function wipeOf(nats: NatsServer): Strike {
  return { kind: 'broker wiped', target: 'its volume', run: async () => void (await nats.wipe()) };
}

/** Its sequence numbers are given out a second time. */
function rollBackOf(nats: NatsServer, copy: string): Strike {
  return {
    kind: 'broker rolled back',
    target: 'its volume as it was 3 s before',
    async run() {
      await nats.stop();
      await cp(nats.volume, copy, { recursive: true });
      await nats.start();
      await lasts(3_000);
      await nats.kill();
      await rm(nats.volume, { recursive: true, force: true });
      await cp(copy, nats.volume, { recursive: true });
      await nats.start();
    },
  };
}

const never = new Promise<void>(() => {});

function gatewayKills(ceph: CephServer, crew: Crew): Strike[] {
  const restart = async () => {
    await ceph.killGateway();
    await lasts(1_000);
    await ceph.startGateway();
  };
  const inPut = (putters: readonly Member[], word: string): Strike => ({
    kind: 'S3 gateway killed in a put',
    target: `of ${putters.join(' or ')}, at "${word}"`,
    async run() {
      const heard = putters.map((member) => crew.line(member, 'storage')?.heard(word) ?? never);
      if (!(await heardSoon(Promise.race(heard)))) return false;
      await restart();
      return true;
    },
  });
  return [
    { kind: 'S3 gateway killed', target: 'radosgw', run: async () => void (await restart()) },
    inPut(['api'], 'PUT /'),
    inPut(['worker', 'worker 2'], 'PUT /'),
    inPut(['api', 'api 2'], 'partNumber='),
  ];
}
