/**
 * An attack, played to its end with real processes: hostile uploads of one user in a heap, good ones of another beside
 * them. What was seen on the way is kept for tests to judge.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { bareDataBytes } from '../../src/drivers/images-process.ts';
import { register, type ShownAttachment } from './client.ts';
import { childrenOf, hostileScript, memoryOf } from './images-scene.ts';
import { type Seen, watchChildren } from './images-watch.ts';
import { filesBelow, openJourney, type User } from './journey.ts';
import type { Scope } from './on-end.ts';
import { photo } from './pictures.ts';
import { attackLimits, hostilePictures } from './pictures-hostile.ts';
import type { RoleProcess } from './role.ts';
import { until } from './until.ts';

export interface Struck {
  readonly shown: ShownAttachment & { readonly error_message: string | null };
  readonly attempts: number;
}

export interface Attack {
  /** By what was uploaded. */
  readonly struck: ReadonlyMap<string, Struck>;
  /** Hostile pictures that had not begun when the first good one, which was uploaded after all of them, was ready. */
  readonly overtaken: number;
  /** Good pictures of somebody else that were uploaded, became ready and were downloaded whole before the attack was over. */
  readonly servedMeanwhile: number;
  /** The attempts of one more good picture, after the attack. */
  readonly attemptsAfterwards: number;
  /** Medians of a small request, milliseconds. */
  readonly answers: { readonly idleMs: number; readonly attackedMs: number };
  /** Most resident memory, bytes: before the attack and after it. */
  readonly peaks: Readonly<Record<'api' | 'worker', { readonly before: number; readonly after: number }>>;
  /** The children that served during the attack, and the most that one had at rest before it, bytes. */
  readonly children: { readonly seen: readonly Seen[]; readonly restingPeak: number; readonly bareBytes: number };
  /** Who held an attempt, by the history of all jobs. */
  readonly workers: readonly string[];
  readonly workerId: number;
  /** Left in scratch once all is over. */
  readonly scratch: readonly string[];
  readonly exitCodes: readonly (number | null)[];
}

/**
 * Renders may take longer than any honest one here does, and not so long that four endless ones could not be waited for. The
 * window stands to this attack as the real one to a thousand uploads: most of it waits in the order of its turns.
 */
const times = {
  BROKER_WINDOW: '4',
  RENDER_TIMEOUT: '10s',
  LEASE: '25s',
  RENEW: '4s',
  BROKER_REDELIVERY: '30s',
  CLEANUP_GRACE: '25s',
};
const jobsUnfinished = `select 1 from jobs where owner_id = $1 and state in ('queued', 'processing') limit 1`;

const jobsUnbegun = `select 1 from jobs where owner_id = $1 and state = 'queued' and attempts = 0`;

/** Takes about a minute. Everything that it starts ends with `t`. */
export async function attack(t: Scope): Promise<Attack> {
  const j = await openJourney(t, { ...times, ...attackLimits, RENDER_CONCURRENCY: '2' });
  const api = await j.start(['api']);
  await j.start(['relay', 'janitor']);
  const worker = await j.start(['worker'], {}, { renderScript: hostileScript });
  const [mallory, ada] = [await register(() => api.url), await register(() => api.url)];
  const early = await serve(ada, 0);
  const peaksBefore = await peaksOf(api, worker);
  const restingPeak = Math.max(...(await Promise.all((await rendering(worker)).map((pid) => memoryOf(pid, 'VmHWM')))));
  const request = `/v1/attachments/${early.id}`;
  const idle = await answerTimes(ada, request);

  const made = await Promise.all(hostilePictures.map((hostile) => hostile.make()));
  const watch = watchChildren(worker.pid);
  const ids: string[] = [];
  for (const [at, { type }] of hostilePictures.entries()) {
    ids.push((await mallory.upload(made[at] ?? Buffer.alloc(0), type)).id);
  }
  const { rows } = await j.pool.query('select owner_id from attachments where id = $1', [ids[0]]);
  const unbegun = async () => (await j.pool.query(jobsUnbegun, [rows[0].owner_id])).rowCount ?? 0;
  const isOver = async () => (await j.pool.query(jobsUnfinished, [rows[0].owner_id])).rowCount === 0;
  let servedMeanwhile = 0;
  let overtaken = 0;
  const attacked: number[] = [];
  for (let seed = 1; !(await isOver()); seed += 1) {
    await serve(ada, seed);
    if (seed === 1) overtaken = await unbegun();
    attacked.push(...(await answerTimes(ada, request)));
    if (!(await isOver())) servedMeanwhile += 1;
  }
  await watch.stop();

  const struck = new Map<string, Struck>();
  for (const [at, { what }] of hostilePictures.entries()) {
    const id = ids[at] ?? '';
    const shown = (await mallory.attachment(id)) as Struck['shown'];
    struck.set(what, { shown, attempts: (await j.job(id)).attempts });
  }
  const after = await serve(ada, 999);
  const { rows: claims } = await j.pool.query(`select distinct who from job_events where reason = 'claimed'`);
  const [before, end] = [peaksBefore, await peaksOf(api, worker)];
  const scratchDir = join(j.dataDir, 'scratch');
  await until('scratch is empty', async () => (await filesBelow(scratchDir)).length === 0);
  return {
    struck,
    overtaken,
    servedMeanwhile,
    attemptsAfterwards: (await j.job(after.id)).attempts,
    answers: { idleMs: median(idle), attackedMs: median(attacked) },
    peaks: { api: { before: before.api, after: end.api }, worker: { before: before.worker, after: end.worker } },
    children: { seen: [...watch.seen.values()], restingPeak, bareBytes: await bareDataBytes() },
    workers: claims.map(({ who }) => who as string),
    workerId: worker.pid,
    scratch: await filesBelow(scratchDir),
    exitCodes: [await worker.stop(), await api.stop()],
  };
}

export function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;
}

/** One good picture, from its upload to all of it downloaded. */
async function serve(user: User, seed: number): Promise<ShownAttachment> {
  const picture = await photo(240, 160, seed).jpeg().toBuffer();
  const ready = await user.until((await user.upload(picture)).id, 'ready');
  await user.assertWhole(ready, picture);
  return ready;
}

/** How long each of some small requests took, milliseconds. */
async function answerTimes(user: User, path: string): Promise<number[]> {
  const times: number[] = [];
  for (let count = 0; count < 20; count += 1) {
    const startMs = performance.now();
    assert.equal((await user.ask(path)).status, 200);
    times.push(performance.now() - startMs);
  }
  return times;
}

/** The children of the worker once all of them, the spare too, have loaded: two slots and a spare. */
function rendering(worker: RoleProcess): Promise<number[]> {
  return until('the children that render are there', async () => {
    const found = await childrenOf(worker.pid);
    return found.length === 3 && found;
  });
}

async function peaksOf(api: RoleProcess, worker: RoleProcess) {
  return { api: await memoryOf(api.pid, 'VmHWM'), worker: await memoryOf(worker.pid, 'VmHWM') };
}
