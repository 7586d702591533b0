/**
 * What a process tells about itself: lines for people and machines (`Log`), numbers for Prometheus (`Meter`).
 *
 * A terminal gets short lines, everything else JSON. Whatever looks like a credential is struck out on the way: the names
 * of fields, bearer tokens and passwords in URLs. The only file that imports `pino` and `prom-client`.
 */
import pino from 'pino';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { describe } from './errors.ts';
import type { Log, Meter } from './pipeline/ports.ts';

export interface Telemetry {
  readonly log: Log;
  readonly meter: Meter;
  readonly metrics: { readonly contentType: string; render(): Promise<string> };
  /** Numbers that are read when somebody asks for them. A `read` that fails leaves its gauges out. Names without prefix. */
  gauges(names: Readonly<Record<string, string>>, read: () => Promise<Readonly<Record<string, number>>>): void;
}

export interface TelemetrySettings {
  /** `debug`, `info`, `warn` or `error`. */
  readonly level: string;
  /** What this process is, e.g. `api,relay`; on every line. */
  readonly service: string;
  /** Where lines go; standard output when left out. */
  readonly destination?: { write(line: string): void };
  /** Lines for people instead of JSON. */
  readonly plain?: boolean;
}

export function createTelemetry(settings: TelemetrySettings): Telemetry {
  const log = createLog(settings);
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  return {
    log,
    meter: createMeter(registry, log),
    metrics: { contentType: registry.contentType, render: () => registry.metrics() },
    gauges: (names, read) => addGauges(registry, names, read, log),
  };
}

/* --------------------------------------------------------------------- lines */

function createLog(settings: TelemetrySettings): Log {
  const options: pino.LoggerOptions = {
    level: settings.level,
    base: { service: settings.service, pid: process.pid },
    messageKey: 'text',
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }), log: (fields) => clean(fields, 0) as Record<string, unknown> },
  };
  const out = settings.destination ?? standardOutput();
  const logger = pino(options, settings.plain ? { write: (line: string) => out.write(plainLine(line)) } : out);
  return {
    debug: (fields, text) => logger.debug(fields, cleanText(text)),
    info: (fields, text) => logger.info(fields, cleanText(text)),
    warn: (fields, text) => logger.warn(fields, cleanText(text)),
    error: (fields, text) => logger.error(fields, cleanText(text)),
  };
}

function standardOutput() {
  const out = pino.destination({ fd: 1, sync: true });
  // A terminal that was closed is no reason to break off a drain.
  out.on('error', () => {});
  return out;
}

const secretNames = /authorization|cookie|password|passwd|secret|token|credential|api[-_]?key/i;
const depthMax = 4;
const charactersMax = 4_000;

function clean(value: unknown, depth: number): unknown {
  if (typeof value === 'string') return cleanText(value);
  if (value instanceof Error) return cleanText(describe(value));
  if (typeof value !== 'object' || value === null || value instanceof Date) return value;
  if (depth >= depthMax) return '[deep]';
  if (Array.isArray(value)) return value.map((item) => clean(item, depth + 1));
  return Object.fromEntries(
    Object.entries(value).map(([name, inner]) => [
      name,
      secretNames.test(name) && inner !== null && inner !== undefined ? '[hidden]' : clean(inner, depth + 1),
    ]),
  );
}

/** Strikes out `scheme://user:password@` and bearer tokens, and bounds the length. */
function cleanText(text: string): string {
  const struck = text
    // Cut before the search, with room for a secret that ends beyond the bound; the scheme is bounded as well, because
    // an open one takes quadratic time (21 s for 100,000 letters).
    .slice(0, 2 * charactersMax)
    .replace(/\b([a-z][a-z0-9+.-]{0,19}:\/\/[^\s/:@]*):[^\s/@]*@/gi, '$1:[hidden]@')
    .replace(/\b(bearer)\s+[A-Za-z0-9._~+/-]+=*/gi, '$1 [hidden]');
  return text.length > charactersMax ? `${struck.slice(0, charactersMax)}…` : struck;
}

function plainLine(line: string): string {
  const { level, time, service, pid: _pid, text, ...fields } = JSON.parse(line) as Record<string, unknown>;
  const rest = Object.entries(fields)
    .filter(([, value]) => value !== null && value !== '')
    .map(([name, value]) => ` ${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join('');
  const clock = String(time).slice(11, 19);
  const mark = level === 'info' ? '' : `${String(level).toUpperCase()} `;
  return `${clock} ${String(service).split(',')[0]?.padEnd(6)} ${mark}${text}${rest}\n`;
}

/* ------------------------------------------------------------------- numbers */

const prefix = 'skrepka_';

/** What the numbers mean, for whoever scrapes them. A name that is not here is its own explanation. */
const meanings: Readonly<Record<string, string>> = {
  accepted_total: 'Uploads answered with 202.',
  accepted_bytes_total: 'Bytes of those uploads.',
  attempts_total: 'Ended attempts by outcome.',
  attempt_seconds: 'Claim to settle of attempts that published.',
  attempt_failures_total: 'Handled failures by error code.',
  bells_hastened_total: 'Announced jobs made due again before their time.',
  bells_rung_total: 'Announcements confirmed by the broker.',
  claims_refused_total: 'Deliveries whose job was not to be claimed, by reason.',
  download_seconds: 'Fetching an original to the disk of the worker.',
  http_request_seconds: 'Answering a request.',
  janitor_faults_total: 'Rounds of the janitor that failed.',
  leases_broken_total: 'Attempts broken off, by reason.',
  objects_deleted_total: 'Objects that nobody named any more.',
  orphans_deleted_total: 'Staging objects without a row.',
  relay_faults_total: 'Rounds of the relay that failed, by dependency.',
  releases_total: 'Claims given back without a failure.',
  render_seconds: 'Making the variants of one picture.',
};

const bucketSeconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

type Labels = Readonly<Record<string, string>>;

/** Metrics come to be with their first use. What cannot be recorded is logged once and never disturbs the work. */
function createMeter(registry: Registry, log: Log): Meter {
  const complained = new Set<string>();

  function guarded(name: string, record: () => void): void {
    try {
      record();
    } catch (error) {
      if (complained.has(name)) return;
      complained.add(name);
      log.warn({ metric: name, reason: describe(error) }, 'a metric could not be recorded');
    }
  }

  function described(name: string, labels: Labels) {
    return {
      name: `${prefix}${name}`,
      help: meanings[name] ?? name.replaceAll('_', ' '),
      labelNames: Object.keys(labels),
      registers: [registry],
    };
  }

  return {
    count(name, labels = {}, by = 1) {
      guarded(name, () => {
        const known = registry.getSingleMetric(`${prefix}${name}`) as Counter | undefined;
        (known ?? new Counter(described(name, labels))).inc({ ...labels }, by);
      });
    },
    observe(name, seconds, labels = {}) {
      guarded(name, () => {
        const known = registry.getSingleMetric(`${prefix}${name}`) as Histogram | undefined;
        const histogram = known ?? new Histogram({ ...described(name, labels), buckets: bucketSeconds });
        histogram.observe({ ...labels }, seconds);
      });
    },
  };
}

function addGauges(
  registry: Registry,
  names: Readonly<Record<string, string>>,
  read: () => Promise<Readonly<Record<string, number>>>,
  log: Log,
): void {
  let reading: Promise<Readonly<Record<string, number>>> | null = null;
  // All gauges of one scrape share one reading.
  const readOnce = () => {
    reading ??= read()
      .catch((error: unknown) => {
        log.debug({ reason: describe(error) }, 'gauges could not be read');
        return {};
      })
      .finally(() => {
        reading = null;
      });
    return reading;
  };
  for (const [name, help] of Object.entries(names)) {
    new Gauge({
      name: `${prefix}${name}`,
      help,
      registers: [registry],
      async collect() {
        const value = (await readOnce())[name];
        this.reset();
        // A gauge without labels comes back as 0 after a reset; what is unknown is not 0.
        if (value === undefined) this.remove();
        else this.set(value);
      },
    });
  }
}
