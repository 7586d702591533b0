/**
 * The only file that reads the environment: it turns `settings.ts` into one frozen object and asserts their relations.
 *
 * A setting that cannot be read, or a pair that contradicts each other, ends the process at start with one sentence each.
 */
import { readFileSync } from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';
import { resolve } from 'node:path';
import { day, gibi, hour, mebi, minute, type Setting } from './setting.ts';
import { table } from './settings.ts';

export class ConfigError extends Error {
  readonly problems: readonly string[];
  constructor(problems: readonly string[]) {
    super(problems.join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

type Numeric = 'int' | 'bytes' | 'duration';
type Table = typeof table;
export type Config = {
  readonly [K in keyof Table]: Table[K]['kind'] extends Numeric ? number : string;
};

/**
 * Reads and checks all settings. Throws `ConfigError` with one sentence a problem. Secrets never appear in a sentence.
 * The result is frozen. Durations are milliseconds, sizes bytes, `dataDir` absolute.
 */
export function loadConfig(env: Readonly<Record<string, string | undefined>> = process.env): Config {
  const problems: string[] = [];
  const values: Record<string, string | number> = {};
  for (const [name, setting] of Object.entries(table) as [string, Setting][]) {
    const parsed = parse(setting, given(setting, env, problems) || setting.fallback);
    if (typeof parsed === 'object') problems.push(parsed.problem);
    else values[name] = parsed;
  }
  if (problems.length > 0) throw new ConfigError(problems);
  const config = values as unknown as { -readonly [K in keyof Config]: Config[K] };
  if (config.renderConcurrency === 0) config.renderConcurrency = defaultConcurrency(config.renderMemoryBytes);
  const contradictions = relations(config);
  if (contradictions.length > 0) throw new ConfigError(contradictions);
  return Object.freeze(config);
}

/** The variable itself or, for what may hold a credential, the file that `NAME_FILE` names: the way of container secrets. */
function given(
  setting: Setting,
  env: Readonly<Record<string, string | undefined>>,
  problems: string[],
): string | undefined {
  const value = env[setting.env]?.trim();
  const file = env[`${setting.env}_FILE`]?.trim();
  if (value || !file || (setting.kind !== 'secret' && setting.kind !== 'url')) return value;
  try {
    return readFileSync(file, 'utf8').trim();
  } catch {
    problems.push(`Expected a readable file for ${setting.env}_FILE, received "${file}".`);
    return undefined;
  }
}

function parse(setting: Setting, raw: string): string | number | { problem: string } {
  const shown = setting.kind === 'secret' || setting.kind === 'url' ? 'something else' : `"${raw}"`;
  const expected = (form: string) => ({ problem: `Expected ${form} for ${setting.env}, received ${shown}.` });
  switch (setting.kind) {
    case 'path':
      return resolve(raw);
    case 'name':
      return /^[a-z][a-z0-9_-]{0,30}$/.test(raw) ? raw : expected('a lower-case word');
    case 'choice':
      return setting.choices?.includes(raw) ? raw : expected(`one of ${setting.choices?.join(', ')}`);
    case 'url':
      return raw === '' || /^[a-z][a-z0-9+.-]*:/.test(raw) ? raw : expected('a URL');
    case 'int':
    case 'bytes':
    case 'duration': {
      const number = parseNumber(setting.kind, raw);
      if (number === null) return expected(forms[setting.kind]);
      const { min = 0, max = Number.MAX_SAFE_INTEGER } = setting;
      return number >= min && number <= max ? number : expected(`${forms[setting.kind]} from ${min} to ${max}`);
    }
    default:
      return raw;
  }
}

const forms = {
  int: 'a whole number',
  bytes: 'a size such as 25MiB (in bytes)',
  duration: 'a duration such as 30s (in milliseconds)',
} as const;

const units: Readonly<Record<Numeric, Readonly<Record<string, number>>>> = {
  int: { '': 1 },
  bytes: { '': 1, B: 1, KiB: 1024, MiB: mebi, GiB: gibi },
  duration: { ms: 1, s: 1000, m: minute, h: hour, d: day },
};

function parseNumber(kind: Numeric, raw: string): number | null {
  const match = /^(\d+)\s*([A-Za-z]*)$/.exec(raw);
  const factor = match ? units[kind][match[2] ?? ''] : undefined;
  return match && factor ? Number(match[1]) * factor : null;
}

/** Memory that this process group may use: the container's limit where there is one. */
function memoryBudget(): number {
  const limit = process.constrainedMemory();
  return limit > 0 ? Math.min(limit, totalmem()) : totalmem();
}

function defaultConcurrency(renderMemoryBytes: number): number {
  // One warm spare process stands beside the busy ones, idle.
  return Math.max(1, Math.min(availableParallelism(), Math.floor((memoryBudget() * 0.8) / renderMemoryBytes)));
}

/** Relations between limits; each violated one is a sentence. */
function relations(c: Config): string[] {
  const rules: [boolean, string][] = [
    [
      c.leaseMs > 3 * c.renewMs,
      `LEASE (${c.leaseMs} ms) must be more than 3 × RENEW (${c.renewMs} ms): two lost renewals may not cost a lease.`,
    ],
    [
      c.leaseReserveMs < c.leaseMs - c.renewMs,
      `LEASE_RESERVE (${c.leaseReserveMs} ms) must be less than LEASE − RENEW (${c.leaseMs - c.renewMs} ms).`,
    ],
    [c.visibilityMs > c.leaseMs, `BROKER_REDELIVERY (${c.visibilityMs} ms) must be more than LEASE (${c.leaseMs} ms).`],
    [
      c.renderTimeoutMs < c.leaseMs,
      `RENDER_TIMEOUT (${c.renderTimeoutMs} ms) must be less than LEASE (${c.leaseMs} ms).`,
    ],
    [
      c.publishTimeoutMs < c.takenMs,
      `PUBLISH_TIMEOUT (${c.publishTimeoutMs} ms) must be less than RING_RETRY (${c.takenMs} ms).`,
    ],
    [c.reringMs <= c.reringCapMs, `RERING (${c.reringMs} ms) must not be more than RERING_CAP (${c.reringCapMs} ms).`],
    [
      c.pixelsMax * 4 < c.renderMemoryBytes,
      `MAX_PIXELS × 4 bytes (${c.pixelsMax * 4}) must be less than RENDER_MEMORY (${c.renderMemoryBytes}).`,
    ],
    [
      c.pixelsMaxAvif * 25 < c.renderMemoryBytes,
      `MAX_PIXELS_AVIF × 25 bytes (${c.pixelsMaxAvif * 25}) must be less than RENDER_MEMORY (${c.renderMemoryBytes}).`,
    ],
    [
      c.renderConcurrency === 1 || c.renderConcurrency * c.renderMemoryBytes < memoryBudget(),
      `RENDER_CONCURRENCY × RENDER_MEMORY (${c.renderConcurrency * c.renderMemoryBytes}) must be less than this machine's memory (${memoryBudget()}).`,
    ],
    [
      c.breakerFloorMs <= c.breakerCapMs,
      `BREAKER_FLOOR (${c.breakerFloorMs} ms) must not be more than BREAKER_CAP (${c.breakerCapMs} ms).`,
    ],
    [
      c.delivery === 'stream' || c.blobsUrl.startsWith('s3:'),
      'DELIVERY=redirect needs an s3: BLOBS_URL: other stores have no URLs.',
    ],
    [c.drainMs < c.killMs, `DRAIN (${c.drainMs} ms) must be less than STOP_GRACE (${c.killMs} ms).`],
    [
      c.graceMs >= c.leaseMs,
      `CLEANUP_GRACE (${c.graceMs} ms) must be at least LEASE (${c.leaseMs} ms): a worker may still write until its lease ends.`,
    ],
    [
      c.uploadsPerUserMax <= c.uploadsMax,
      `MAX_UPLOADS_PER_USER (${c.uploadsPerUserMax}) must not be more than MAX_UPLOADS (${c.uploadsMax}).`,
    ],
    [
      c.waitsPerUserMax <= c.waitsMax,
      `MAX_WAITS_PER_USER (${c.waitsPerUserMax}) must not be more than MAX_WAITS (${c.waitsMax}).`,
    ],
    [
      c.stagingBytesMax >= c.uploadBytesMax,
      `MAX_STAGING_BYTES (${c.stagingBytesMax}) must be at least MAX_UPLOAD_BYTES (${c.uploadBytesMax}).`,
    ],
    [
      c.historyRetentionMs >= c.failedRetentionMs,
      `HISTORY_RETENTION (${c.historyRetentionMs} ms) must be at least FAILED_RETENTION (${c.failedRetentionMs} ms).`,
    ],
    [
      c.orphanMs >= c.uploadMsMax,
      `ORPHAN_AGE (${c.orphanMs} ms) must be at least MAX_UPLOAD_TIME (${c.uploadMsMax} ms): a running upload has no row yet.`,
    ],
  ];
  return rules.filter(([holds]) => !holds).map(([, sentence]) => sentence);
}

/** The environment for a process of ours: this one's with some settings replaced. */
export function environmentWith(settings: Readonly<Record<string, string>>): Record<string, string | undefined> {
  return { ...process.env, ...settings };
}
