/** Real processes of every role: each tells the metrics of its role on its own port, and refuses a port that is in use. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'node:test';
import { freePort, freePorts } from '../scripts/free-port.ts';
import { type Role, roles } from '../src/roles.ts';
import { metrics } from '../src/telemetry-metrics.ts';
import { register } from './support/client.ts';
import { openJourney } from './support/journey.ts';
import { photo } from './support/pictures.ts';
import { startCommand } from './support/started.ts';
import { until } from './support/until.ts';

/** A port that is free now; held by a server until `free` is called. */
async function holdPort(): Promise<{ port: number; free: () => Promise<void> }> {
  const server = createServer();
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  return { port, free: async () => void (await new Promise((resolve) => server.close(resolve))) };
}

/** Our metrics of which a process tells a sample, by the names of the catalogue. */
async function toldBy(url: string): Promise<Set<string>> {
  const response = await fetch(`${url}/metrics`);
  assert.equal(response.status, 200);
  const names = [...(await response.text()).matchAll(/^skrepka_(\w+?)(?:\{.*\})? \S+$/gm)].map(([, name = '']) => name);
  return new Set(names.map((name) => (name in metrics ? name : name.replace(/_(bucket|sum|count)$/, ''))));
}

const ofRole = (role: Role) =>
  Object.entries(metrics).flatMap(([name, metric]) =>
    metric.roles === 'all' || metric.roles.includes(role) ? [name] : [],
  );

const live = async (url: string) => (await fetch(`${url}/health/live`)).json();

test('each role tells exactly the metrics of its role, and that it lives, on a port of its own', async (t) => {
  const journey = await openJourney(t);
  const ports = await freePorts(roles.length);
  const started = await Promise.all(
    roles.map((role, at) => journey.start([role], {}, { settings: { METRICS_PORT: String(ports[at]) } })),
  );
  const urlOf = (role: Role) => started[roles.indexOf(role)]?.url || `http://127.0.0.1:${ports[roles.indexOf(role)]}`;
  const user = await register(() => urlOf('api'));
  const { id } = await user.upload(await photo(80, 60).jpeg().toBuffer());
  await user.until(id, 'ready');
  for (const role of roles) {
    const told = await until(`${role} tells all of it`, async () => {
      const now = await toldBy(urlOf(role));
      return ofRole(role).every((name) => now.has(name)) && now;
    });
    assert.deepEqual([...told].sort(), ofRole(role).sort(), role);
    assert.deepEqual(await live(urlOf(role)), { status: 'ok' });
  }
  // The API has a port already.
  await assert.rejects(fetch(`http://127.0.0.1:${ports[roles.indexOf('api')]}/metrics`));
  const lines = (await (await fetch(`${urlOf('worker')}/metrics`)).text()).split('\n');
  assert.ok(lines.includes('skrepka_attempts_total{outcome="ready"} 1'));
  assert.ok(lines.includes('skrepka_ready_seconds_count 1'));
  const build = lines.find((line) => line.startsWith('skrepka_build_info')) ?? '';
  assert.match(build, /\{version="[^"]+",node="v24[^"]*",pipeline_version="[1-9]\d*"\} 1$/);
  const codes = await Promise.all(started.map((one) => one.stop()));
  assert.deepEqual(codes, [0, 0, 0, 0]);
});

test('a process whose METRICS_PORT is in use says so in a sentence and ends', { timeout: 90_000 }, async (t) => {
  const journey = await openJourney(t);
  const { port, free } = await holdPort();
  t.after(free);
  const settings = { DATABASE_URL: journey.databaseUrl, DATA_DIR: journey.dataDir, METRICS_PORT: String(port) };
  for (const role of ['worker', 'relay', 'janitor']) {
    const { ended, stderr } = startCommand(t, [role], { ...settings, HOST: '127.0.0.1' });
    assert.equal((await ended).code, 1);
    assert.equal(
      stderr(),
      `skrepka: Port ${port} of 127.0.0.1 is in use: stop what uses it, or choose another with METRICS_PORT.\n`,
    );
  }
});

test('of the two processes of skrepka start the worker tells its metrics on METRICS_PORT, the rest on PORT', async (t) => {
  const journey = await openJourney(t);
  const port = await freePort();
  const base = { DATABASE_URL: journey.databaseUrl, DATA_DIR: journey.dataDir, PORT: '0', HOST: '127.0.0.1' };
  const { ready, ctrlC } = startCommand(t, ['start'], { ...base, METRICS_PORT: String(port) });
  const api = await ready();
  const worker = `http://127.0.0.1:${port}`;
  await until('the worker takes', async () => (await toldBy(worker)).has('worker_slots'));
  const told = await toldBy(api);
  for (const name of ['jobs_oldest_due_seconds', 'bells_rung_total', 'janitor_leads']) assert.ok(told.has(name), name);
  assert.ok(!told.has('worker_slots'));
  assert.equal(await ctrlC(), 0);
});
