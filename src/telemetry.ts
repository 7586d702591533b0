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
import type { Role } from './roles.ts';
import { metrics as catalogue, type Metric, prefix } from './telemetry-metrics.ts';

/** A number, or one for each value of the metric's only label. */
export type Reading = Readonly<Record<string, number | Readonly<Record<string, number>>>>;

export interface Telemetry {
  readonly log: Log;
  readonly meter: Meter;
  readonly metrics: { readonly contentType: string; render(): Promise<string> };
  /** Gauges that are read when somebody asks for them. A `read` that fails, or takes 2 s, leaves them out: unknown is not 0. */
  gauges(names: readonly string[], read: () => Promise<Reading>): void;
}

export interface TelemetrySettings {
  /** `debug`, `info`, `warn` or `error`. */
  readonly level: string;
  /** What this process is, e.g. `api,relay`; on every line. */
  readonly service: string;
  /** Its roles: their counters are told from the start. */
  readonly roles?: readonly Role[];
  /** Where lines go; standard output when left out. */
  readonly destination?: { write(line: string): void };
  /** Lines for people instead of JSON. */
  readonly plain?: boolean;
}

export function createTelemetry(settings: TelemetrySettings): Telemetry {
  const log = createLog(settings);
  const registry = new Registry();
  // A supervisor or a verb is asked by nobody. The event-loop monitor counts from its own period: each waking of it
  // costs, and at its default of 10 ms it is half of what an idle role spends, at 100 ms still a fifth.
  if (settings.roles?.length) collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: 250 });
  return {
    log,
    meter: createMeter(registry, settings.roles ?? [], log),
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

type Labels = Readonly<Record<string, string>>;
type Known = Counter | Gauge | Histogram;

/**
 * Records what the catalogue knows: any other name, or a label's value outside of its set, is logged once and left out.
 * Nothing that goes wrong here disturbs the work.
 */
function createMeter(registry: Registry, roles: readonly Role[], log: Log): Meter {
  const complained = new Set<string>();

  function record<T extends Known>(name: string, labels: Labels, use: (metric: T) => void): void {
    try {
      use(metricOf(registry, name, labels) as T);
    } catch (error) {
      if (complained.has(name)) return;
      complained.add(name);
      log.warn({ metric: name, reason: describe(error) }, 'a metric could not be recorded');
    }
  }

  for (const [name, metric] of Object.entries(catalogue)) {
    const isTold = metric.roles === 'all' ? roles.length > 0 : metric.roles.some((role) => roles.includes(role));
    if (isTold && metric.kind !== 'gauge') begin(registry, name, metric);
  }
  return {
    count: (name, labels = {}, by = 1) => record<Counter>(name, labels, (counter) => counter.inc({ ...labels }, by)),
    observe: (name, seconds, labels = {}) =>
      record<Histogram>(name, labels, (histogram) => histogram.observe({ ...labels }, seconds)),
    gauge: (name, value, labels = {}) => record<Gauge>(name, labels, (gauge) => gauge.set({ ...labels }, value)),
  };
}

/** The metric of a name, made at its first use. Throws for what the catalogue does not allow. */
function metricOf(registry: Registry, name: string, labels: Labels): Known {
  const metric = Object.hasOwn(catalogue, name) ? catalogue[name] : undefined;
  if (!metric) throw new Error('the catalogue of metrics does not have it');
  const wanted = Object.keys(metric.labels);
  if (Object.keys(labels).length !== wanted.length)
    throw new Error(`expected the labels ${wanted.join(', ') || 'none'}`);
  for (const [label, value] of Object.entries(labels)) {
    const values = metric.labels[label];
    if (values && !values.includes(value)) throw new Error(`"${value}" is no value of its label ${label}`);
  }
  return (registry.getSingleMetric(prefix + name) as Known | undefined) ?? make(registry, name, metric);
}

function make(registry: Registry, name: string, metric: Metric): Known {
  const settings = {
    name: prefix + name,
    help: metric.help,
    labelNames: Object.keys(metric.labels),
    registers: [registry],
  };
  if (metric.kind === 'counter') return new Counter(settings);
  if (metric.kind === 'gauge') return new Gauge(settings);
  return new Histogram({ ...settings, buckets: [...(metric.buckets ?? [])] });
}

/** Tells a counter as 0 for every value of its labels: an increase is only seen from a number that was there before. */
function begin(registry: Registry, name: string, metric: Metric): void {
  const made = make(registry, name, metric);
  if (metric.kind !== 'counter') return;
  let all: Record<string, string>[] = [{}];
  for (const [label, values] of Object.entries(metric.labels)) {
    all = all.flatMap((labels) => (values ?? []).map((value) => ({ ...labels, [label]: value })));
  }
  for (const labels of all) (made as Counter).inc(labels, 0);
}

/** Longest wait for what is read at a scrape: the rest of the answer must not wait for it. */
const readMs = 2000;

function addGauges(registry: Registry, names: readonly string[], read: () => Promise<Reading>, log: Log): void {
  let reading: Promise<Reading> | null = null;
  // All gauges of one scrape share one reading.
  const readOnce = () => {
    reading ??= within(readMs, read())
      .catch((error: unknown) => {
        log.debug({ reason: describe(error) }, 'gauges could not be read');
        return {};
      })
      .finally(() => {
        reading = null;
      });
    return reading;
  };
  for (const name of names) {
    const metric = catalogue[name];
    if (metric?.kind !== 'gauge') throw new Error(`Expected a gauge of the catalogue, received ${name}`);
    const [label = ''] = Object.keys(metric.labels);
    new Gauge({
      name: prefix + name,
      help: metric.help,
      labelNames: Object.keys(metric.labels),
      registers: [registry],
      async collect() {
        const value = (await readOnce())[name];
        this.reset();
        // A gauge without labels comes back as 0 after a reset; what is unknown is not 0.
        if (label === '' && typeof value !== 'number') this.remove();
        if (value === undefined) return;
        if (typeof value === 'number') this.set(value);
        else for (const [key, one] of Object.entries(value)) this.set({ [label]: key }, one);
      },
    });
  }
}

async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer in ${ms} ms`)), ms);
  });
  return await Promise.race([work, late]).finally(() => clearTimeout(timer));
}
