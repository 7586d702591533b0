/** The embedded engines under a storm: PostgreSQL with the queue in it, and objects in a folder on a small disk. */
import { join } from 'node:path';
import { createFileBlobs } from '../../../src/drivers/blobs-file.ts';
import type { Blobs } from '../../../src/pipeline/ports.ts';
import { onEnd, type Scope } from '../on-end.ts';
import type { Crew, CrewOptions } from './crew.ts';
import { makeSmallDisk, type SmallDisk } from './disk.ts';
import { lasts } from './lasts.ts';
import { type KillablePostgres, startKillablePostgres } from './postgres.ts';
import { badLines, type Strike } from './strikes.ts';

/** Engines of one storm. They are gone when `t` ends. */
export interface StormEngines extends CrewOptions {
  readonly postgres: KillablePostgres;
  /** The storage, past all proxies. */
  readonly blobs: Blobs;
  /** How the disk is made full. */
  readonly disk: string;
  /** The decks of this kind of engines: their own deaths and losses, and bad lines to them. */
  decks(crew: Crew): Strike[][];
}

export type OpenStorm = (t: Scope) => Promise<StormEngines>;

export const embeddedStorm: OpenStorm = async (t) => {
  const postgres = await startKillablePostgres(t);
  const disk = await makeSmallDisk(t, { mebibytes: 320, objects: 'blobs' });
  const blobs = createFileBlobs({ dir: join(disk.folder, 'blobs') });
  onEnd(t, () => blobs.close());
  return {
    postgres,
    blobs,
    disk: disk.means,
    servers: { database: postgres.url, broker: null, storage: null },
    environment: () => ({}),
    dataDir: disk.folder,
    decks: (crew) => [
      ...badLines(crew, [], []),
      [
        ...postgresKills(postgres),
        wipeOf(postgres),
        rollBackOf(postgres),
        wipeOf(postgres),
        ...fullDisk(disk, 'objects and scratch'),
      ],
    ],
  };
};

export function postgresKills(postgres: KillablePostgres): Strike[] {
  const kill = {
    kind: 'PostgreSQL killed',
    target: 'server',
    async run(random: () => number) {
      await postgres.kill();
      await lasts(200 + Math.floor(random() * 1_500));
      await postgres.start();
    },
  } satisfies Strike;
  return [kill, kill];
}

/** Full to the last byte, and full for all but small files. */
export function fullDisk(disk: SmallDisk, target: string): Strike[] {
  return [0, 100_000].map((leaveBytes) => ({
    kind: 'disk full',
    target: `${target}, ${leaveBytes} bytes left`,
    async run() {
      await disk.fill(leaveBytes);
      await lasts(2_500);
      await disk.free();
    },
  }));
}

function wipeOf(postgres: KillablePostgres): Strike {
  return {
    kind: 'broker wiped',
    target: 'its schema dropped',
    async run() {
      await postgres.talk((client) => client.query('drop schema skrepka_broker cascade'));
    },
  };
}

function rollBackOf(postgres: KillablePostgres): Strike {
  return {
    kind: 'broker rolled back',
    target: 'its messages as they were 3 s before',
    async run() {
      await postgres.talk(async (client) => {
        await client.query('create temporary table kept as table skrepka_broker.messages');
        await lasts(3_000);
        await client.query(`
          begin;
          delete from skrepka_broker.messages;
          insert into skrepka_broker.messages table kept;
          commit`);
      });
    },
  };
}
