/** Admission: who is let in, who is told to come back and when, and what several processes together let in at most. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { SkrepkaError } from '../../src/errors.ts';
import { type AdmissionSettings, createAdmission, type Place, reading } from '../../src/pipeline/admission.ts';
import { type Arrival, type Load, StoreError } from '../../src/pipeline/store.ts';
import { createTally, silent } from '../support/ports-fake.ts';

const wide: AdmissionSettings = {
  backlogMax: 10_000,
  stagingBytesMax: 1e12,
  uploadsMax: 10_000,
  pendingPerUserMax: 10_000,
  uploadsPerUserMax: 10_000,
  uploadsPerMinuteMax: 10_000,
  uploadBytesMax: 1000,
};

/** A door with a clock and figures of the store that a test sets. `random` 0.5 is no jitter. */
function createDoor(settings: Partial<AdmissionSettings> = {}) {
  const tally = createTally();
  const counted: string[] = [];
  const world = {
    nowMs: 0,
    random: 0.5,
    pending: 0,
    lately: 0,
    load: { queued: 0, stagingBytes: 0, finishedPerSecond: 0 } as Load,
    arrivals: 0,
    readings: 0,
    /** Runs before the store answers. */
    beforeArrival: async () => {},
    beforeReading: async () => {},
  };
  const store = {
    async arrive(): Promise<Arrival> {
      world.arrivals += 1;
      const { pending, lately } = world;
      await world.beforeArrival();
      return { startedAt: '2026-01-01T00:00:00.000Z', pending, lately };
    },
    async load(): Promise<Load> {
      world.readings += 1;
      const { load } = world;
      await world.beforeReading();
      return load;
    },
  };
  const clock = { monotonicMs: () => world.nowMs, random: () => world.random };
  const meter = {
    ...tally,
    count: (name: string, labels?: Readonly<Record<string, string>>) => {
      counted.push(`${name} ${labels?.code} ${labels?.why}`);
    },
  };
  const door = createAdmission({ store, clock, log: silent, meter }, { ...wide, ...settings });
  return { ...door, world, counted };
}

type Door = ReturnType<typeof createDoor>;

/** Asks `count` times at once. */
async function crowd(door: Door, count: number, user: (at: number) => string = () => 'ada', size: number | null = 1) {
  const all = await Promise.allSettled(Array.from({ length: count }, (_, at) => door.enter(user(at), size)));
  const places = all.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  const refusals = all.flatMap((one) => (one.status === 'rejected' ? [one.reason as SkrepkaError] : []));
  return { places, refusals };
}

async function refusalOf(door: Door, user = 'ada', size: number | null = 1): Promise<SkrepkaError> {
  const refusal = await door.enter(user, size).then(
    () => assert.fail('it was let in'),
    (error: unknown) => error,
  );
  assert.ok(refusal instanceof SkrepkaError, String(refusal));
  return refusal;
}

describe('a repeat', () => {
  test('counts among the uploads at once, of its user and of this process, and as no new work', async () => {
    const door = createDoor({ uploadsPerUserMax: 2, uploadsMax: 3, pendingPerUserMax: 1, backlogMax: 1 });
    const ends = [door.repeat('ada'), door.repeat('ada')];
    assert.throws(() => door.repeat('ada'), { code: 'too_many_uploads' });
    assert.equal((await refusalOf(door)).members.reason, 'parallel');
    const { leave } = await door.enter('bob', 1);
    assert.throws(() => door.repeat('eve'), { code: 'overloaded' });
    for (const end of [...ends, ...ends]) end();
    leave(null);
    // The store was asked for bob alone, and an end that came twice has made no room that is not there.
    assert.equal(door.world.arrivals, 1);
    for (const user of ['ada', 'bob', 'eve']) door.repeat(user);
    assert.throws(() => door.repeat('dan'), { code: 'overloaded' });
  });
});

describe('a user', () => {
  test('with as much pending as allowed waits, and with one less is let in', async () => {
    const door = createDoor({ pendingPerUserMax: 5 });
    door.world.pending = 5;
    const { code, members } = await refusalOf(door);
    assert.deepEqual([code, members], ['too_many_uploads', { reason: 'pending', limit: 5 }]);
    door.world.pending = 4;
    assert.equal((await door.enter('ada', 1)).startedAt, '2026-01-01T00:00:00.000Z');
    assert.deepEqual(door.counted, ['admissions_refused_total too_many_uploads pending']);
  });

  test('gets the places that are left, exactly, however many are asked for at once', async () => {
    const door = createDoor({ pendingPerUserMax: 10 });
    door.world.pending = 3;
    const { places, refusals } = await crowd(door, 50);
    assert.equal(places.length, 7);
    assert.ok(refusals.every(({ members }) => members.reason === 'pending'));
  });

  test('is charged for what was accepted while the store was being asked', async () => {
    const door = createDoor({ pendingPerUserMax: 1 });
    const first = await door.enter('ada', 1);
    const asked = Promise.withResolvers<void>();
    const answer = Promise.withResolvers<void>();
    door.world.beforeArrival = () => {
      asked.resolve();
      return answer.promise;
    };
    const second = door.enter('ada', 1);
    second.catch(() => undefined);
    await asked.promise;
    // Committed after the store looked, and not inside any more when the decision falls.
    first.leave(1);
    answer.resolve();
    await assert.rejects(second, (error: SkrepkaError) => error.members.reason === 'pending');
  });

  test('who sends too much at once is refused without a question to the store', async () => {
    const door = createDoor({ uploadsPerUserMax: 2 });
    const { places } = await crowd(door, 2);
    const asked = door.world.arrivals;
    const { code, members, retryAfterSeconds } = await refusalOf(door);
    assert.deepEqual([code, members], ['too_many_uploads', { reason: 'parallel', limit: 2 }]);
    assert.equal(retryAfterSeconds, 3);
    assert.equal(door.world.arrivals, asked);
    places[0]?.leave(null);
    await door.enter('ada', 1);
  });

  test('who sent too much within a minute waits until that minute is over', async () => {
    const door = createDoor({ uploadsPerMinuteMax: 7 });
    door.world.lately = 6;
    const { places, refusals } = await crowd(door, 2);
    assert.equal(places.length, 1);
    assert.deepEqual(
      refusals.map(({ code, members, retryAfterSeconds }) => [code, members.reason, retryAfterSeconds]),
      [['too_many_uploads', 'rate', 60]],
    );
  });

  test('is refused for what is theirs alone: another one is let in meanwhile', async () => {
    const door = createDoor({ uploadsPerUserMax: 1 });
    await door.enter('ada', 1);
    await refusalOf(door);
    await door.enter('bob', 1);
  });
});

describe('the service', () => {
  test('takes uploads up to its backlog, counting those that it is taking in and those since its last reading', async () => {
    const door = createDoor({ backlogMax: 50 });
    door.world.load = { queued: 20, stagingBytes: 0, finishedPerSecond: 1 };
    const { places, refusals } = await crowd(door, 100, (at) => `user ${at}`);
    assert.equal(places.length, 30);
    assert.ok(refusals.every(({ code, members }) => code === 'overloaded' && Object.keys(members).length === 0));
    for (const place of places.slice(0, 20)) place.leave(1);
    await refusalOf(door);
    for (const place of places.slice(20)) place.leave(null);
    assert.equal((await crowd(door, 20)).places.length, 10);
    assert.ok(door.counted.every((line) => line === 'admissions_refused_total overloaded backlog'));
  });

  test('counts declared bytes, and for an upload of unknown size the most that it may become', async () => {
    const door = createDoor({ stagingBytesMax: 10_000, uploadBytesMax: 1000 });
    door.world.load = { queued: 5, stagingBytes: 5000, finishedPerSecond: 1 };
    const known = await crowd(door, 10, undefined, 400);
    assert.equal(known.places.length, 10);
    const unknown = await crowd(door, 10, undefined, null);
    assert.equal(unknown.places.length, 1);
    assert.equal((await refusalOf(door)).code, 'overloaded');
    assert.ok(door.counted.every((line) => line === 'admissions_refused_total overloaded staging'));
    // What arrived was smaller than it might have been.
    unknown.places[0]?.leave(10);
    await door.enter('ada', 990);
    await refusalOf(door);
  });

  test('counts no more for a declared size than may be uploaded at all', async () => {
    const door = createDoor({ stagingBytesMax: 1000, uploadBytesMax: 1000 });
    await door.enter('ada', 65_000);
  });

  test('receives no more at once in this process than it may, and asks nobody then', async () => {
    const door = createDoor({ uploadsMax: 3 });
    const { places } = await crowd(door, 3, (at) => `user ${at}`);
    const asked = door.world.arrivals;
    assert.equal((await refusalOf(door)).code, 'overloaded');
    assert.equal(door.world.arrivals, asked);
    assert.deepEqual(door.counted, ['admissions_refused_total overloaded uploads']);
    places[0]?.leave(null);
    await door.enter('ada', 1);
  });

  test('is read once for all who ask at once, again after a second, and again after 64 admissions', async () => {
    const door = createDoor();
    await crowd(door, 40);
    assert.equal(door.world.readings, 1);
    door.world.nowMs = reading.ageMsMax - 1;
    await crowd(door, 24);
    assert.equal(door.world.readings, 1);
    await door.enter('ada', 1);
    assert.equal(door.world.readings, 2);
    door.world.nowMs += reading.ageMsMax;
    await door.enter('ada', 1);
    assert.equal(door.world.readings, 3);
  });

  test('lets no more than 64 in by one reading when hundreds have waited for it', async () => {
    const door = createDoor();
    await crowd(door, 300, (at) => `user ${at}`);
    assert.equal(door.world.readings, Math.ceil(300 / reading.admissionsMax));
  });

  test('does not forget what was accepted while it was being read', async () => {
    const door = createDoor({ backlogMax: 2 });
    const first = await door.enter('ada', 1);
    const asked = Promise.withResolvers<void>();
    const answer = Promise.withResolvers<void>();
    door.world.nowMs += reading.ageMsMax;
    door.world.beforeReading = () => {
      asked.resolve();
      return answer.promise;
    };
    const more = crowd(door, 2);
    await asked.promise;
    first.leave(1);
    answer.resolve();
    assert.equal((await more).places.length, 1);
  });

  test('lets uploads in also when reading it takes longer than a reading is good for', async () => {
    const door = createDoor();
    door.world.beforeReading = async () => {
      door.world.nowMs += 3 * reading.ageMsMax;
    };
    await crowd(door, 10);
    assert.equal(door.world.readings, 1);
  });

  test('that cannot be read refuses nobody for being full: the failure of the store is what all get', async () => {
    const door = createDoor();
    door.world.beforeReading = () => Promise.reject(new StoreError('unavailable', 'down'));
    const { places, refusals } = await crowd(door, 5);
    assert.equal(places.length, 0);
    for (const error of refusals as unknown[]) assert.ok(error instanceof StoreError);
    assert.equal(door.world.readings, 1);
    door.world.beforeReading = async () => {};
    await door.enter('ada', 1);
  });
});

describe('a place', () => {
  test('is given back once, however often its holder leaves', async () => {
    const door = createDoor({ uploadsPerUserMax: 2, uploadsMax: 2, backlogMax: 2 });
    const { places } = await crowd(door, 2);
    const [first] = places as [Place];
    for (let time = 0; time < 3; time += 1) first.leave(null);
    await door.enter('ada', 1);
    await refusalOf(door);
  });

  test('is not lost by a refusal, nor by a store that fails', async () => {
    const door = createDoor({ uploadsPerUserMax: 1, uploadsMax: 1, pendingPerUserMax: 1 });
    door.world.pending = 1;
    for (let time = 0; time < 5; time += 1) await refusalOf(door);
    door.world.pending = 0;
    door.world.beforeArrival = () => Promise.reject(new StoreError('unavailable', 'down'));
    for (let time = 0; time < 5; time += 1) await assert.rejects(door.enter('ada', 1), StoreError);
    door.world.beforeArrival = async () => {};
    await door.enter('ada', 1);
  });
});

describe('the time to wait', () => {
  const full = { queued: 100, stagingBytes: 100_000, finishedPerSecond: 2 };

  test('is what is over the backlog, at the rate at which jobs are finished', async () => {
    const door = createDoor({ backlogMax: 81 });
    door.world.load = full;
    assert.equal((await refusalOf(door)).retryAfterSeconds, 10);
  });

  test('grows with those who were told to wait before', async () => {
    const door = createDoor({ backlogMax: 81 });
    door.world.load = full;
    const { refusals } = await crowd(door, 21);
    assert.equal(refusals[0]?.retryAfterSeconds, 10);
    assert.equal(refusals[20]?.retryAfterSeconds, 20);
  });

  test('for bytes is that of the jobs that hold them', async () => {
    const door = createDoor({ stagingBytesMax: 80_000, uploadBytesMax: 1000 });
    door.world.load = full;
    // 21 % of the bytes have to go, with 21 of 100 jobs.
    assert.equal((await refusalOf(door, 'ada', 1000)).retryAfterSeconds, 11);
  });

  test('of a user with too much pending is by the same rate', async () => {
    const door = createDoor({ pendingPerUserMax: 10 });
    door.world.load = full;
    door.world.pending = 29;
    assert.equal((await refusalOf(door)).retryAfterSeconds, 10);
  });

  test('is a fixed one where nothing was finished lately, at least 1 s and at most 120 s', async () => {
    const door = createDoor({ backlogMax: 81 });
    for (const [finishedPerSecond, seconds] of [
      [0, 15],
      [1000, 1],
      [0.001, 120],
    ] as const) {
      door.world.nowMs += reading.ageMsMax;
      door.world.load = { ...full, finishedPerSecond };
      assert.equal((await refusalOf(door)).retryAfterSeconds, seconds);
    }
  });

  test('is spread by a fifth to both sides, and stays within its bounds', async () => {
    const door = createDoor({ pendingPerUserMax: 10 });
    const waits = async (pending: number, random: number) => {
      Object.assign(door.world, { load: full, pending, random });
      return (await refusalOf(door)).retryAfterSeconds;
    };
    assert.deepEqual([await waits(29, 0), await waits(29, 0.999)], [8, 12]);
    assert.deepEqual([await waits(10_000, 0), await waits(10_000, 0.999)], [96, 120]);
    assert.deepEqual([await waits(10, 0), await waits(10, 0.999)], [1, 2]);
  });
});
