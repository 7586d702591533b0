/** From what was recorded to figures: pure arithmetic over what clients sent, what the database says of it, and what was watched. */
import { percentile } from '../usage.ts';
import type { Sent } from './load-process.ts';
import type { MemorySample, QueueSample, Spent } from './watch.ts';

/** What became of one that was accepted, by the database. */
export interface Fate {
  readonly id: string;
  readonly state: string;
  readonly errorCode: string | null;
  readonly sha256: string;
  /** Ms since 1970; null: not ready. */
  readonly readyAt: number | null;
  readonly rings: number;
  readonly attempts: number;
}

export interface Percentiles {
  readonly count: number;
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
  readonly max: number;
}

/** Null of nothing. */
export function percentilesOf(values: readonly number[]): Percentiles | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((one, other) => one - other);
  const at = (p: number) => rounded(percentile(sorted, p));
  return { count: sorted.length, p50: at(50), p95: at(95), p99: at(99), max: at(100) };
}

/** Four digits that matter: the rest is noise, and results are read by people. */
export function rounded(value: number): number {
  return Number(value.toPrecision(4));
}

/**
 * Events a second between `from` and `to`: gaps divided by the time from the first to the last, because a window that cuts a
 * gap counts a whole event more or less, which is a twentieth of a slow cell. Fewer than three say nothing: null.
 */
export function ratePerSecond(moments: readonly number[], from: number, to: number): number | null {
  const inside = moments.filter((at) => at >= from && at <= to).sort((one, other) => one - other);
  const [first, last] = [inside[0], inside.at(-1)];
  if (first === undefined || last === undefined || inside.length < 3 || last === first) return null;
  return rounded(((inside.length - 1) * 1000) / (last - first));
}

export interface Refusals {
  readonly count: number;
  /** By code of the problem; `0 …` where the connection broke before an answer was read. */
  readonly codes: Readonly<Record<string, number>>;
  /** From the intended moment to the answer. */
  readonly latencyMs: Percentiles | null;
  /** Without it a client does not know when to come back. */
  readonly withoutRetryAfter: number;
  readonly retryAfterSeconds: Percentiles | null;
  /** Of the body, taken by the connection before the answer, of clients that asked first and of those that did not. */
  readonly bodyBytesAsked: Percentiles | null;
  readonly bodyBytesUnasked: Percentiles | null;
}

/** Of last tries: of one who came back until it was accepted there is none. */
export function refusalsIn(sent: readonly Sent[]): Refusals {
  const refused = sent.flatMap((one) => {
    const last = one.tries.at(-1);
    return last && last.status !== 202 ? [{ one, last }] : [];
  });
  const codes: Record<string, number> = {};
  for (const { last } of refused) {
    const code = `${last.status} ${last.code}`;
    codes[code] = (codes[code] ?? 0) + 1;
  }
  const seconds = refused.flatMap(({ last }) => last.retryAfterSeconds ?? []);
  const body = (asked: boolean) =>
    percentilesOf(refused.filter(({ one }) => one.expect === asked).map(({ last }) => last.bodyBytes));
  return {
    count: refused.length,
    codes,
    latencyMs: percentilesOf(refused.map(({ one, last }) => last.answeredAt - one.intendedAt)),
    withoutRetryAfter: refused.length - seconds.length,
    retryAfterSeconds: percentilesOf(seconds),
    bodyBytesAsked: body(true),
    bodyBytesUnasked: body(false),
  };
}

/** Milliseconds of latency are counted from the intended moment, and those of the 202 of the first try alone. */
export interface Taken {
  readonly sent: number;
  readonly accepted: number;
  readonly acceptMs: Percentiles | null;
  readonly readyMs: Percentiles | null;
  readonly refusals: Refusals;
  /** How late the sender itself was: as long as it is small beside the latencies, they are the product's. */
  readonly senderLateMs: Percentiles | null;
}

export function takenOf(sent: readonly Sent[], fates: ReadonlyMap<string, Fate>): Taken {
  const accepted = acceptedIn(sent);
  const ready = accepted.flatMap(({ one, id }) => {
    const readyAt = fates.get(id)?.readyAt ?? null;
    return readyAt === null ? [] : [readyAt - one.intendedAt];
  });
  return {
    sent: sent.length,
    accepted: accepted.length,
    acceptMs: percentilesOf(accepted.map(({ one, at }) => at - one.intendedAt)),
    readyMs: percentilesOf(ready),
    refusals: refusalsIn(sent),
    senderLateMs: percentilesOf(
      sent.flatMap(({ tries, intendedAt }) => (tries[0] ? [tries[0].sentAt - intendedAt] : [])),
    ),
  };
}

export function acceptedIn(sent: readonly Sent[]): readonly { one: Sent; id: string; at: number }[] {
  return sent.flatMap((one) => {
    const last = one.tries.at(-1);
    return last?.status === 202 && last.id !== null ? [{ one, id: last.id, at: last.answeredAt }] : [];
  });
}

/** Nothing accepted is lost: each 202's attachment is there with the bytes that were sent, ready or honestly failed. */
export interface Kept {
  readonly ready: number;
  /** By error code: honestly, but not what good pictures should come to. */
  readonly failed: Readonly<Record<string, number>>;
  /** Not there, unfinished, or with other bytes. */
  readonly lost: readonly string[];
  /** Announcements a job: 1 is the least there can be. */
  readonly ringsPerJob: number | null;
  readonly attemptsPerJob: number | null;
}

export function keptOf(sent: readonly Sent[], fates: ReadonlyMap<string, Fate>): Kept {
  const accepted = acceptedIn(sent);
  const failed: Record<string, number> = {};
  const lost: string[] = [];
  let ready = 0;
  for (const { one, id } of accepted) {
    const fate = fates.get(id);
    if (fate?.sha256 !== one.sha256 || !['ready', 'failed'].includes(fate.state)) lost.push(id);
    else if (fate.state === 'ready') ready += 1;
    else failed[fate.errorCode ?? 'no code'] = (failed[fate.errorCode ?? 'no code'] ?? 0) + 1;
  }
  const known = accepted.flatMap(({ id }) => fates.get(id) ?? []);
  const mean = (values: readonly number[]) =>
    values.length === 0 ? null : rounded(values.reduce((sum, value) => sum + value, 0) / values.length);
  return {
    ready,
    failed,
    lost,
    ringsPerJob: mean(known.map(({ rings }) => rings)),
    attemptsPerJob: mean(known.map(({ attempts }) => attempts)),
  };
}

export interface Lag {
  readonly depthMax: number;
  readonly ageMsMax: number;
  /** Age of the oldest while the load ran, over its samples. */
  readonly ageMs: Percentiles | null;
  /** Queued and processing together. */
  readonly unfinishedMax: number;
}

export function lagOf(queue: readonly QueueSample[]): Lag {
  const most = (values: readonly number[]) => rounded(Math.max(0, ...values));
  return {
    depthMax: most(queue.map(({ queued }) => queued)),
    ageMsMax: most(queue.map(({ oldestMs }) => oldestMs)),
    ageMs: percentilesOf(queue.map(({ oldestMs }) => oldestMs)),
    unfinishedMax: most(queue.map(({ queued, processing }) => queued + processing)),
  };
}

/** MiB, the most that was seen. */
export type Memory = MemorySample;

export function memoryOf(samples: readonly MemorySample[]): Memory | null {
  if (samples.length === 0) return null;
  const most = (name: keyof MemorySample) => rounded(Math.max(...samples.map((sample) => sample[name])));
  return { apiMiB: most('apiMiB'), workerMiB: most('workerMiB'), childrenMiB: most('childrenMiB') };
}

/** Shares of all cores, 0 to 1, while the load ran; `others`: whom nobody accounts for. */
export interface Shares {
  readonly api: number;
  readonly worker: number;
  readonly children: number;
  readonly postgres: number;
  readonly broker: number;
  readonly load: number;
  readonly watcher: number;
  readonly others: number;
}

export function sharesOf(before: Spent, after: Spent, cores: number): Shares {
  const wholeMs = (after.atMs - before.atMs) * cores;
  const parts = ['api', 'worker', 'children', 'postgres', 'broker', 'load', 'watcher'] as const;
  const share = (ms: number) => Math.round((ms / wholeMs) * 10_000) / 10_000;
  const each = parts.map((part) => [part, after[part] - before[part]] as const);
  const known = each.reduce((sum, [, ms]) => sum + ms, 0);
  const others = Math.max(0, after.machine - before.machine - known);
  return {
    ...Object.fromEntries(each.map(([part, ms]) => [part, share(ms)])),
    others: share(others),
  } as unknown as Shares;
}

/**
 * Bytes that the API read for each refusal: all it read, less what it accepted, less what it reads for each accepted one besides (answers
 * of the database), which a load without refusals tells. Null without refusals.
 */
export function readPerRefusal(sent: readonly Sent[], readBytes: number, besidesPerAccepted: number): number | null {
  const accepted = acceptedIn(sent);
  const refused = sent.length - accepted.length;
  if (refused === 0) return null;
  const bodies = accepted.reduce((sum, { one }) => sum + one.size, 0);
  return Math.max(0, Math.round((readBytes - bodies - accepted.length * besidesPerAccepted) / refused));
}
