/** Limits, health, metrics and problem types: a block per route, inside it one per status. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { catalogue } from '../../src/errors.ts';
import type { HttpDeps } from '../../src/http/app.ts';
import { BlobError, BrokerError } from '../../src/pipeline/ports.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { assertProblem } from '../support/api.ts';
import { startUploads } from '../support/uploads.ts';

/** One component of three whose health fails as given. */
function sick(part: 'store' | 'blobs' | 'broker', health: () => Promise<void>) {
  return (real: HttpDeps) => ({ ...well(real), [part]: { ...real[part], health } }) as Partial<HttpDeps>;
}

/** The parts of which a test asks nothing else: real ones take their time on a busy disk, and then a question ends after its own. */
function well(real: HttpDeps): Pick<HttpDeps, 'store' | 'blobs' | 'broker'> {
  const health = () => Promise.resolve();
  return {
    store: { ...real.store, health },
    blobs: { ...real.blobs, health },
    broker: real.broker && { ...real.broker, health },
  };
}

const outages = {
  store: () => Promise.reject(new StoreError('unavailable', 'host db.internal')),
  blobs: () => Promise.reject(new BlobError('unavailable', 'host s3.internal')),
  broker: () => Promise.reject(new BrokerError('unavailable', 'host nats.internal')),
} as const;

describe('GET /v1/limits', () => {
  describe('200', () => {
    it('tells everybody every limit and type, as configured', async (t) => {
      const admission = { pendingPerUserMax: 11, uploadsPerUserMax: 12, uploadsPerMinuteMax: 13 };
      const service = { backlogMax: 14, stagingBytesMax: 15, uploadsMax: 16 };
      const settings = { uploadBytesMax: 12_345, registration: 'closed', ...admission, ...service };
      const { call } = await startUploads(t, { settings });
      const { status, body } = await call('GET /v1/limits');
      assert.equal(status, 200);
      assert.deepEqual([body.upload_bytes_max, body.registration, body.wait_seconds_max], [12_345, 'closed', 30]);
      assert.deepEqual(
        [body.pending_per_user_max, body.uploads_per_user_max, body.uploads_per_minute_max],
        [11, 12, 13],
      );
      assert.deepEqual([body.backlog_max, body.staging_bytes_max, body.uploads_max], [14, 15, 16]);
      assert.deepEqual(body.image_types, ['image/jpeg', 'image/png', 'image/webp', 'image/gif', 'image/avif']);
      assert.deepEqual(body.variants, ['thumbnail', 'crop', 'optimized']);
      for (const [name, value] of Object.entries(body)) assert.ok(value !== undefined && value !== null, name);
    });
  });
});

describe('GET /health/live', () => {
  describe('200', () => {
    it('answers whatever else is down', async (t) => {
      const { call } = await startUploads(t, { deps: sick('store', outages.store) });
      assert.deepEqual((await call('GET /health/live')).body, { status: 'ok' });
    });
  });
});

describe('GET /health/ready', () => {
  describe('200', () => {
    it('is ok with everything there', async (t) => {
      const { call } = await startUploads(t, { deps: well });
      const components = { database: 'ok', storage: 'ok', broker: 'ok' };
      assert.deepEqual((await call('GET /health/ready')).body, { status: 'ok', components });
    });

    it('is degraded without the broker, which acceptance does not need', async (t) => {
      const { call } = await startUploads(t, { deps: sick('broker', outages.broker) });
      const { status, body } = await call('GET /health/ready');
      assert.equal(status, 200);
      assert.deepEqual(body, { status: 'degraded', components: { database: 'ok', storage: 'ok', broker: 'down' } });
    });

    it('is ok where this process talks to no broker', async (t) => {
      const { call } = await startUploads(t, { deps: (real) => ({ ...well(real), broker: null }) });
      const { body } = await call('GET /health/ready');
      assert.deepEqual(body, { status: 'ok', components: { database: 'ok', storage: 'ok', broker: 'absent' } });
    });
  });

  describe('503', () => {
    for (const [part, name] of [
      ['store', 'database'],
      ['blobs', 'storage'],
    ] as const) {
      it(`answers without ${name}, naming it and no host`, async (t) => {
        const { call } = await startUploads(t, { deps: sick(part, outages[part]) });
        const answer = await call('GET /health/ready');
        assertProblem(answer, 503, 'unavailable');
        assert.equal((answer.body.components as Record<string, string>)[name], 'down');
        assert.ok(!JSON.stringify(answer.body).includes('internal'));
      });

      it(`answers within seconds when ${name} says nothing`, async (t) => {
        const { call } = await startUploads(t, { deps: sick(part, () => new Promise(() => undefined)) });
        assertProblem(await call('GET /health/ready'), 503, 'unavailable');
      });
    }

    it('asks each component once for many probes at a time', async (t) => {
      let asked = 0;
      const gate = Promise.withResolvers<void>();
      const health = () => {
        asked += 1;
        return gate.promise;
      };
      const { call } = await startUploads(t, { deps: sick('store', health) });
      const probes = Array.from({ length: 10 }, () => call('GET /health/ready'));
      await call('GET /health/live');
      gate.resolve();
      for (const { status } of await Promise.all(probes)) assert.equal(status, 200);
      assert.ok(asked < 10, `asked ${asked} times`);
    });
  });
});

describe('GET /metrics', () => {
  const proxied = { 'x-forwarded-for': '203.0.113.7' };
  describe('200', () => {
    it('is open on loopback', async (t) => {
      const { url } = await startUploads(t);
      const response = await fetch(`${url}/metrics`);
      assert.equal(response.status, 200);
      assert.match(response.headers.get('content-type') ?? '', /^text\/plain; version=0\.0\.4/);
      assert.equal(await response.text(), 'up 1\n');
    });

    it('is open from elsewhere with the token', async (t) => {
      const { url } = await startUploads(t, { settings: { metricsToken: 'tell me' } });
      const response = await fetch(`${url}/metrics`, { headers: { ...proxied, authorization: 'Bearer tell me' } });
      assert.equal(response.status, 200);
      await response.text();
    });
  });

  describe('401', () => {
    it('answers from elsewhere without the token, with a wrong one, and when there is none to know', async (t) => {
      for (const metricsToken of ['tell me', '']) {
        const { call } = await startUploads(t, { settings: { metricsToken } });
        for (const authorization of ['', 'Bearer ', 'Bearer wrong', 'Bearer tell', 'Basic dGVsbCBtZQ==']) {
          assertProblem(await call('GET /metrics', { headers: { ...proxied, authorization } }), 401, 'unauthorized');
        }
        assertProblem(await call('GET /metrics', { headers: { forwarded: 'for=203.0.113.7' } }), 401, 'unauthorized');
      }
    });
  });
});

describe('GET /problems/{code}', () => {
  describe('200', () => {
    it('explains every code of the catalogue', async (t) => {
      const { call } = await startUploads(t);
      for (const [code, { title, status, text }] of Object.entries(catalogue)) {
        const answer = await call(`GET /problems/${code}`);
        assert.deepEqual([answer.status, answer.body], [200, { code, title, status, text }]);
      }
    });
  });

  describe('404', () => {
    it('answers a code that is none', async (t) => {
      const { call } = await startUploads(t);
      for (const code of ['nothing', 'toString', '__proto__', 'x'.repeat(100)]) {
        assertProblem(await call(`GET /problems/${code}`), 404, 'not_found');
      }
    });
  });
});

describe('GET /', () => {
  describe('302', () => {
    it('leads a browser to the reference', async (t) => {
      const { url } = await startUploads(t);
      const answer = await fetch(`${url}/`, { redirect: 'manual' });
      assert.deepEqual([answer.status, answer.headers.get('location')], [302, '/docs']);
      assert.equal((await fetch(`${url}/`)).status, 200);
    });
  });
});
