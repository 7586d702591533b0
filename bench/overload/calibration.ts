/**
 * The noise of the machine: a fixed piece of work on every core and a fixed series of fsyncs, timed while nothing of ours runs.
 *
 * What they take before and after a cell, beside what they took when the experiment began, tells whether the machine was the same.
 * While a cell runs, the time that nobody of ours accounts for tells whether somebody else was there.
 */
import { mkdtemp, open, rm } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { median } from '../usage.ts';

export interface Calibration {
  /** Median of the rounds, every core busy. */
  readonly loopMs: number;
  /** Median of the series. */
  readonly fsyncMs: number;
}

/** How far a calibration may be from the first one, as the larger divided by the smaller; and how much others may take. */
export const noiseLimits = {
  loop: 1.15,
  /** Disks of virtual machines differ by half between two quiet moments. */
  fsync: 2,
  /** Of all cores, while loads run. The system's own work, which nobody's process is charged with, is in it: about a twentieth. */
  othersShare: 0.12,
} as const;

const rounds = 5;
const loopTimes = 60_000_000;
const fsyncs = 60;
const fsyncBytes = 4096;

export async function calibrate(): Promise<Calibration> {
  const loops: number[] = [];
  for (let round = 0; round < rounds; round += 1) loops.push(await loopOnEveryCore());
  return { loopMs: median(loops), fsyncMs: median(await fsyncSeries()) };
}

/** The slowest core's time: what a job that came to it would have waited. */
async function loopOnEveryCore(): Promise<number> {
  const cores = Array.from({ length: availableParallelism() }, () => loopOnce());
  return Math.max(...(await Promise.all(cores)));
}

/** The thread times itself: its start is not the work. */
const loopScript = `
  const { parentPort, workerData } = require('node:worker_threads');
  const began = performance.now();
  let mixed = 1;
  for (let at = 0; at < workerData; at += 1) mixed = (Math.imul(mixed, 1664525) + 1013904223) | 0;
  parentPort.postMessage([performance.now() - began, mixed]);
`;

function loopOnce(): Promise<number> {
  return new Promise((resolve, reject) => {
    const worker = new Worker(loopScript, { eval: true, workerData: loopTimes });
    worker.once('message', ([ms]: [number]) => resolve(ms));
    worker.once('error', reject);
  });
}

async function fsyncSeries(): Promise<readonly number[]> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-fsync-'));
  try {
    const file = await open(path.join(folder, 'series'), 'w');
    const took: number[] = [];
    for (let at = 0; at < fsyncs; at += 1) {
      const began = performance.now();
      await file.write(Buffer.alloc(fsyncBytes, at), 0, fsyncBytes, at * fsyncBytes);
      await file.sync();
      took.push(performance.now() - began);
    }
    await file.close();
    return took;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

export interface Noise {
  readonly before: Calibration;
  readonly after: Calibration;
  /** Share of all cores, 0 to 1, that none of ours accounts for. */
  readonly othersShare: number;
}

/** Sentences about what was too far from quiet; none: the cell counts. */
export function noiseIn(first: Calibration, { before, after, othersShare }: Noise): readonly string[] {
  const apart = (one: number, other: number) => Math.max(one, other) / Math.min(one, other);
  const found: string[] = [];
  for (const [when, then] of [
    ['before', before],
    ['after', after],
  ] as const) {
    const loop = apart(then.loopMs, first.loopMs);
    const fsync = apart(then.fsyncMs, first.fsyncMs);
    if (loop > noiseLimits.loop) found.push(`the loop ${when} it differs ${loop.toFixed(2)} times from the first`);
    if (fsync > noiseLimits.fsync) found.push(`the fsyncs ${when} it differ ${fsync.toFixed(2)} times from the first`);
  }
  if (othersShare > noiseLimits.othersShare) {
    found.push(`others took ${(othersShare * 100).toFixed(0)} % of the cores while it ran`);
  }
  return found;
}
