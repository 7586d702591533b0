/** What a process tells: no secret, never in the way of the work. */
import assert from 'node:assert/strict';
import test from 'node:test';
import type { Role } from '../src/roles.ts';
import { createTelemetry } from '../src/telemetry.ts';

function prepare(settings: { plain?: boolean; level?: string; roles?: readonly Role[] } = {}) {
  const lines: string[] = [];
  const destination = { write: (line: string) => void lines.push(line) };
  const telemetry = createTelemetry({ level: 'info', service: 'api', destination, ...settings });
  return { ...telemetry, lines };
}

test('a line is JSON with time, level, service, fields and text', () => {
  const { log, lines } = prepare();
  log.warn({ job: 'a', at: new Date(0), nested: { list: [1, null] } }, 'it happened');
  const { time, pid, ...rest } = JSON.parse(lines[0] ?? '');
  assert.match(time, /^\d{4}-\d\d-\d\dT.*Z$/);
  assert.equal(pid, process.pid);
  assert.deepEqual(rest, {
    level: 'warn',
    service: 'api',
    job: 'a',
    at: '1970-01-01T00:00:00.000Z',
    nested: { list: [1, null] },
    text: 'it happened',
  });
});

test('credentials are struck out: by the name of a field, in URLs, as bearer tokens, in errors and their causes', () => {
  const { log, lines } = prepare();
  const secret = 'Geheim-123';
  const cause = new Error(`connect postgres://me:${secret}@host/db`);
  log.error(
    {
      password: secret,
      headers: { authorization: `Bearer ${secret}`, Cookie: secret, 'x-api-key': secret },
      accessToken: secret,
      deep: [{ password_hash: secret, metricsToken: secret }],
      error: new Error(`asked with bearer ${secret}`, { cause }),
      url: `amqp://me:${secret}@broker`,
    },
    `told postgres://me:${secret}@host`,
  );
  assert.ok(!lines.join('').includes(secret), lines.join(''));
  assert.match(lines[0] ?? '', /postgres:\/\/me:\[hidden\]@host/);
});

test('fields of any shape neither throw nor grow without bound', () => {
  const { log, lines } = prepare();
  const round: Record<string, unknown> = {};
  round.self = round;
  log.info({ round, none: undefined, long: 'x'.repeat(100_000), big: 1n, call: () => {} }, 'odd');
  assert.equal(lines.length, 1);
  assert.ok((lines[0]?.length ?? 0) < 6_000);
  const startMs = performance.now();
  for (const piece of ['x', 'a:', ':/', 'bearer ', '@', 'a://b:']) log.info({ long: piece.repeat(50_000) }, 'hostile');
  // Linear patterns need a few milliseconds; the quadratic one took 21 s.
  assert.ok(performance.now() - startMs < 3_000);
});

test('lines below the level are not written', () => {
  const { log, lines } = prepare({ level: 'warn' });
  log.debug({}, 'a');
  log.info({}, 'b');
  log.warn({}, 'c');
  assert.equal(lines.length, 1);
});

test('a terminal gets one short line', () => {
  const { log, lines } = prepare({ plain: true });
  log.info({ job: 'a', ms: 12 }, 'answered');
  log.warn({}, 'slow');
  assert.match(lines[0] ?? '', /^\d\d:\d\d:\d\d api {4}answered job=a ms=12\n$/);
  assert.match(lines[1] ?? '', /^\d\d:\d\d:\d\d api {4}WARN slow\n$/);
});

test('counters, times and gauges appear in the text for Prometheus, with those of the process', async () => {
  const { meter, metrics } = prepare();
  meter.count('attempts_total', { outcome: 'ready' });
  meter.count('attempts_total', { outcome: 'ready' }, 2);
  meter.count('accepted_total');
  meter.observe('render_seconds', 0.3);
  meter.gauge('worker_slots', 4);
  meter.gauge('worker_slots', 2);
  meter.gauge('breaker_open', 1, { dependency: 'store' });
  const text = await metrics.render();
  assert.match(text, /^skrepka_attempts_total\{outcome="ready"\} 3$/m);
  assert.match(text, /^skrepka_accepted_total 1$/m);
  assert.match(text, /^skrepka_render_seconds_bucket\{le="0.5"\} 1$/m);
  assert.match(text, /^skrepka_worker_slots 2$/m);
  assert.match(text, /^skrepka_breaker_open\{dependency="store"\} 1$/m);
  assert.match(metrics.contentType, /^text\/plain; version=0\.0\.4/);
});

test('a process with a role tells what it takes of the machine, and one without spends nothing on it', async () => {
  assert.match(await prepare({ roles: ['api'] }).metrics.render(), /^process_cpu_seconds_total /m);
  assert.doesNotMatch(await prepare().metrics.render(), /process_cpu_seconds_total/);
});

test('a metric that cannot be recorded is logged once and never throws', async () => {
  const { meter, metrics, lines } = prepare();
  meter.count('odd_total', { a: '1' });
  meter.count('odd_total', { b: '1' });
  meter.observe('odd_total', 1);
  meter.count('not a name');
  meter.count('toString');
  meter.observe('accepted_total', 1);
  assert.equal(lines.length, 4);
  assert.doesNotMatch(await metrics.render(), /odd_total|toString/);
});

test('a label that is missing, unknown or has a value outside of its set makes no series', async () => {
  const { meter, metrics, lines } = prepare();
  meter.count('attempts_total', { outcome: 'a user wrote this' });
  meter.count('attempts_total');
  meter.count('attempts_total', { outcome: 'ready', user: '7' });
  meter.gauge('breaker_open', 1, { dependency: 'moon' });
  meter.count('attempts_total', { outcome: 'ready' });
  const series = (await metrics.render()).match(/^skrepka_.*/gm);
  assert.deepEqual(series, ['skrepka_attempts_total{outcome="ready"} 1']);
  assert.equal(lines.length, 2);
});

test('the counters of a role are 0 from the start in every value of their labels, and those of other roles are not there', async () => {
  const { metrics } = prepare({ roles: ['worker'] });
  const text = await metrics.render();
  for (const outcome of ['ready', 'superseded', 'cancelled', 'retried', 'failed', 'released', 'lost']) {
    assert.match(text, new RegExp(`^skrepka_attempts_total\\{outcome="${outcome}"\\} 0$`, 'm'));
  }
  assert.match(text, /^skrepka_attempt_failures_total\{code="staging_lost",outcome="failed"\} 0$/m);
  assert.match(text, /^skrepka_render_seconds_count 0$/m);
  assert.match(text, /^skrepka_breaker_trips_total\{dependency="storage"\} 0$/m);
  assert.doesNotMatch(text, /^skrepka_accepted_total/m);
  // What nobody has told yet is unknown, not 0.
  assert.doesNotMatch(text, /^skrepka_worker_slots/m);
});

test('gauges are read once a scrape, and left out when they cannot be read', async () => {
  const { gauges, metrics } = prepare();
  let reads = 0;
  let broken = false;
  gauges(['jobs_queued', 'jobs_failed', 'component_up'], async () => {
    reads += 1;
    if (broken) throw new Error('no database');
    return { jobs_queued: 3, jobs_failed: 0, component_up: { database: 1, broker: 0 } };
  });
  const text = await metrics.render();
  assert.match(text, /^skrepka_jobs_queued 3$/m);
  assert.match(text, /^skrepka_jobs_failed 0$/m);
  assert.match(text, /^skrepka_component_up\{component="database"\} 1$/m);
  assert.match(text, /^skrepka_component_up\{component="broker"\} 0$/m);
  assert.equal(reads, 1);
  broken = true;
  assert.doesNotMatch(await metrics.render(), /^skrepka_(jobs_queued|jobs_failed|component_up)/m);
  broken = false;
  assert.match(await metrics.render(), /^skrepka_jobs_queued 3$/m);
});

test('gauges that cannot be read in time hold up no scrape', async () => {
  const { gauges, metrics } = prepare();
  gauges(['jobs_queued'], () => new Promise(() => {}));
  gauges(['broker_waiting'], async () => ({ broker_waiting: 5 }));
  const startMs = performance.now();
  const text = await metrics.render();
  assert.ok(performance.now() - startMs < 10_000, 'it waited for longer than 2 s');
  assert.doesNotMatch(text, /^skrepka_jobs_queued/m);
  assert.match(text, /^skrepka_broker_waiting 5$/m);
});

test('a gauge that the catalogue does not have cannot be asked for', () => {
  const { gauges } = prepare();
  for (const name of ['moon_phase', 'accepted_total'])
    assert.throws(() => gauges([name], async () => ({})), /catalogue/);
});
