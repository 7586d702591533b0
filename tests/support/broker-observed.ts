/** The broker `postgres:` with its statements counted and its moments told: what its tests look at. */
import type { TestContext } from 'node:test';
import { type BrokerSql, createPostgresBroker } from '../../src/drivers/broker-postgres.ts';
import type { Broker, Clock } from '../../src/pipeline/ports.ts';
import { receive } from '../contract/broker-scene.ts';
import { openBrokerSql } from './broker-sql.ts';
import { freshDatabase, type TestDatabase } from './postgres.ts';
import { until } from './until.ts';

/** A database without the store's schema: the broker may live anywhere. */
export const emptyDatabase = (t: TestContext) => freshDatabase(t, { empty: true });

export interface Observed {
  readonly broker: Broker;
  /** Statements sent so far. */
  readonly statements: string[];
  readonly listens: () => number;
}

export interface Wishes {
  readonly backstopMs?: number;
  readonly clock?: Clock;
  /** Called when a statement has its answer, before the broker has it. */
  readonly answered?: (statement: string) => Promise<void>;
  /** Called when the broker has listened for the first time, and after each ring that it heard. */
  readonly listening?: () => void;
  readonly heard?: () => void;
}

/** A prepared broker on `database`, whose statements are counted. */
export async function openObserved(t: TestContext, database: TestDatabase, wishes: Wishes = {}): Promise<Observed> {
  const sql = openBrokerSql(database.url);
  const statements: string[] = [];
  let listens = 0;
  const observed: BrokerSql = {
    async query<Row extends Record<string, unknown>>(statement: string, values: readonly unknown[]) {
      statements.push(statement);
      const answer = await sql.query<Row>(statement, values);
      await wishes.answered?.(statement);
      return answer;
    },
    listen(channel, on) {
      listens += 1;
      return sql.listen(channel, {
        ...on,
        connected(again) {
          on.connected(again);
          wishes.listening?.();
        },
        heard() {
          on.heard();
          wishes.heard?.();
        },
      });
    },
    close: sql.close,
  };
  const broker = createPostgresBroker({ sql: observed, clock: wishes.clock }, { backstopMs: wishes.backstopMs });
  t.after(() => broker.close());
  await broker.prepare();
  return { broker, statements, listens: () => listens };
}

/** A broker whose consumers would sleep for a minute, and how to await that a take of theirs found nothing. */
export async function openSleeper(t: TestContext, database: TestDatabase) {
  const listening = Promise.withResolvers<void>();
  let takes = 0;
  const { broker } = await openObserved(t, database, {
    backstopMs: 60_000,
    listening: listening.resolve,
    async answered(statement) {
      if (statement.includes('skip locked')) takes += 1;
    },
  });
  const consumer = await broker.consumer({ prefetch: 0, visibilityMs: 700 });
  // The first LISTEN wakes as well.
  await listening.promise;
  const asleep = async () => {
    const before = takes;
    const waiting = receive(consumer);
    await until('it has looked', () => takes > before);
    return { waiting };
  };
  return { broker, consumer, asleep };
}
