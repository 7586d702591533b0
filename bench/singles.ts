/**
 * Time to ready of single pictures on an idle product, less what rendering takes: each picture is rendered bare, sent alone, and rendered
 * bare again, so that a slow moment of the machine counts on both sides. Shared by the rows that differ in their engines alone.
 */
import { setTimeout as pause } from 'node:timers/promises';
import type { EngineNames } from '../scripts/stage-engines.ts';
import { oneOfEach, type Picture, pictures } from './pictures.ts';
import { type BenchUser, openProduct } from './product.ts';
import { openRenderers, type Renderers, scripts } from './renderers.ts';
import type { Figures, Row } from './row.ts';
import { median, percentile } from './usage.ts';

const ours = 'Skrepka';
const bare = 'bare render';
/** After a picture is ready its worker tidies up; neither the bare render nor the next picture shall share the cores with that. */
const settleMs = 50;

export interface SinglesSettings {
  readonly engines: EngineNames;
  /** Goals for the overhead, ms. */
  readonly p50Ms: number;
  readonly p95Ms: number;
}

export async function openSingles(
  scope: Parameters<Row['open']>[0],
  { quick, say }: Parameters<Row['open']>[1],
  { engines, p50Ms, p95Ms }: SinglesSettings,
): ReturnType<Row['open']> {
  const mix = await pictures(say);
  const work = quick ? mix.slice(0, 12) : [...mix, ...mix];
  const warmUp = oneOfEach(mix);
  const product = await openProduct(scope, { engines });
  const user = await product.user();
  // Three times: code that ran once is not warm yet, and there are several render children.
  for (const picture of [...warmUp, ...warmUp, ...warmUp]) await single(user, picture);
  const warm = await openRenderers(scope, { script: scripts.bare, count: 1 }, [...warmUp, ...warmUp]);
  return {
    sides: [
      { name: bare, run: () => runBare(warm, work) },
      { name: ours, run: () => runOurs(warm, user, work) },
    ],
    ratios: [{ name: 'time to ready, p50', ours, reference: bare, figure: 'p50Ms', kind: 'wall' }],
    bounds: [
      { name: 'beyond rendering, p50', side: ours, figure: 'overheadP50Ms', unit: 'ms', goal: { atMost: p50Ms } },
      { name: 'beyond rendering, p95', side: ours, figure: 'overheadP95Ms', unit: 'ms', goal: { atMost: p95Ms } },
      { name: 'of these the 202, p50', side: ours, figure: 'acceptP50Ms', unit: 'ms' },
    ],
  };
}

async function runBare(warm: Renderers, work: readonly Picture[]): Promise<Figures> {
  const tookMs: number[] = [];
  for (const picture of work) tookMs.push(await warm.render(picture));
  return { p50Ms: median(tookMs) };
}

async function runOurs(warm: Renderers, user: BenchUser, work: readonly Picture[]): Promise<Figures> {
  const overheads: number[] = [];
  const accepts: number[] = [];
  const totals: number[] = [];
  for (const picture of work) {
    const before = await warm.render(picture);
    const { acceptMs, readyMs } = await single(user, picture);
    await pause(settleMs);
    const after = await warm.render(picture);
    await pause(settleMs);
    overheads.push(readyMs - (before + after) / 2);
    accepts.push(acceptMs);
    totals.push(readyMs);
  }
  const sorted = overheads.toSorted((one, other) => one - other);
  return {
    p50Ms: median(totals),
    overheadP50Ms: percentile(sorted, 50),
    overheadP95Ms: percentile(sorted, 95),
    acceptP50Ms: median(accepts),
  };
}

/** From the moment it is sent until the client has the 202, and until a long-poll tells it `ready`, ms. */
async function single(user: BenchUser, { bytes, contentType, name }: Picture) {
  const sentMs = performance.now();
  const { status, id } = await user.upload(bytes, { contentType, fileName: name });
  const acceptMs = performance.now() - sentMs;
  if (status !== 202) throw new Error(`Expected 202 for ${name}, received ${status}`);
  await user.untilReady(id);
  return { acceptMs, readyMs: performance.now() - sentMs };
}
