/** What ours is compared with does its work: one job through each way of queueing, one picture through the service of tutorials. */
import assert from 'node:assert/strict';
import { stat } from 'node:fs/promises';
import test, { describe, it, type TestContext } from 'node:test';
import sharp from 'sharp';
import { sendAll } from '../../bench/arrivals.ts';
import { type SideName, sides } from '../../bench/processes/queue.ts';
import { once } from '../../bench/references/uploads.ts';
import { openTutorial } from '../../bench/tutorial.ts';
import { available, installCommand, startValkey } from '../support/engines/valkey.ts';
import { onEnd } from '../support/on-end.ts';
import { freshDatabase } from '../support/postgres.ts';
import { until } from '../support/until.ts';

describe('a way of queueing', { timeout: 60_000 }, () => {
  it('brings a job through our pipeline', async (t) => await oneJob(t, 'ours', ''));
  it('brings a job through pg-boss', async (t) => await oneJob(t, 'pg-boss', ''));
  it('brings a job through Graphile Worker', async (t) => await oneJob(t, 'graphile-worker', ''));
});

if (available()) describe('with Redis', { timeout: 60_000 }, withRedis);
else test('what needs Redis does its work', (context) => context.skip(installCommand));

function withRedis(): void {
  it('brings a job through BullMQ', async (t) => await oneJob(t, 'bullmq', (await startValkey(t)).url));

  it('makes three variants of a picture in the service of tutorials', async (t) => {
    const tutorial = await openTutorial(t);
    const bytes = await sharp({ create: { width: 640, height: 480, channels: 3, background: '#3a6ea5' } })
      .jpeg()
      .toBuffer();
    const id = await tutorial.upload({ name: 'a.jpg', kind: 'jpeg', contentType: 'image/jpeg', bytes, path: '' });
    const variants = await until('the picture is ready', () => resultOf(tutorial.databaseUrl, id));
    assert.deepEqual(
      variants.map(({ name, width, height }) => [name, width, height]),
      [
        ['thumbnail', 256, 192],
        ['crop', 128, 128],
        ['optimized', 640, 480],
      ],
    );
    for (const { file, size } of variants) assert.equal((await stat(file)).size, size);
  });

  it('comes back after each of its processes was killed', async (t) => {
    const tutorial = await openTutorial(t);
    for (const part of ['api', 'worker', 'redis', 'postgres'] as const) {
      const before = tutorial.roots;
      await tutorial.kill(part);
      await tutorial.start(part);
      assert.equal(tutorial.roots.filter((pid) => !before.includes(pid)).length, 1, part);
    }
    const id = await until('it takes a file', () => tutorial.upload(noPicture).catch(() => null));
    assert.equal(await resultOf(tutorial.databaseUrl, id), null);
  });
}

const noPicture = {
  name: 'a.txt',
  kind: 'jpeg',
  contentType: 'image/jpeg',
  bytes: Buffer.from('text'),
  path: '',
} as const;

describe('arrivals', () => {
  it('are told in the order of sending, a refused and a failed one without an id', async () => {
    const answers = await sendAll(['first', 'refused', 'failed', 'last'], 1, async (one) => {
      if (one === 'failed') throw new Error('away');
      return one === 'refused' ? null : one;
    });
    assert.deepEqual(
      answers.map(({ id }) => id),
      ['first', null, null, 'last'],
    );
  });

  it('are timed from when they were meant to be sent, also when the sender was late', async () => {
    const [, late] = await sendAll(['stalls', 'late'], 1, async (one) => {
      const untilMs = performance.now() + 50;
      while (one === 'stalls' && performance.now() < untilMs);
      return one;
    });
    assert.ok(late && late.answerMs >= 48, `${late?.answerMs} ms`);
  });
});

async function oneJob(t: TestContext, name: SideName, redisUrl: string): Promise<void> {
  const { url: databaseUrl } = await freshDatabase(t, { empty: true });
  const servers = { databaseUrl, redisUrl };
  const side = sides[name];
  await side.prepare(servers);
  const done = Promise.withResolvers<void>();
  const worker = await side.openWorker(servers, { slots: 2, onDone: () => done.resolve() });
  onEnd(t, () => worker.close());
  const api = await side.openApi(servers);
  onEnd(t, () => api.close());
  assert.deepEqual(await side.count(servers), { ready: 0, queued: 0 });
  await api.upload(0);
  await done.promise;
  await until('it is recorded, and gone from the queue', async () => {
    const { ready, queued } = await side.count(servers);
    return ready === 1 && queued === 0;
  });
}

interface Variant {
  readonly name: string;
  readonly file: string;
  readonly width: number;
  readonly height: number;
  readonly size: number;
}

function resultOf(databaseUrl: string, id: string | null): Promise<readonly Variant[] | null> {
  return once(databaseUrl, async (client) => {
    const { rows } = await client.query<{ result: readonly Variant[] | null }>(
      'select result from uploads where id = $1',
      [id],
    );
    return rows[0]?.result ?? null;
  });
}
