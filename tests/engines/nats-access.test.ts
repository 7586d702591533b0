/** The broker `nats:` at a server that does not fit, does not let it in, or speaks TLS: what it says, and what it keeps to itself. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import path from 'node:path';
import test, { describe, it } from 'node:test';
import { inspect } from 'node:util';
import type { ConsumerConfig } from '@nats-io/jetstream';
import { createNatsBroker } from '../../src/drivers/broker-nats.ts';
import { durableName } from '../../src/drivers/broker-nats-stream.ts';
import { BrokerError } from '../../src/pipeline/ports.ts';
import { isFault, patient, publish } from '../contract/broker-scene.ts';
import { makeCertificate } from '../support/engines/certificate.ts';
import { available, installCommand, startNats } from '../support/engines/nats.ts';
import { createHeardLog, openNatsBroker, streamName } from '../support/engines/nats-harness.ts';
import { asOperator } from '../support/engines/nats-operator.ts';
import { onEnd, type Scope } from '../support/on-end.ts';
import { until } from '../support/until.ts';

if (available()) await suite();
else test('the broker meets real NATS servers that do not fit', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startNats(test);
  describe('broker nats: what does not fit', { timeout: 60_000 }, () => misfits(server.url));
  describe('broker nats: credentials', { timeout: 60_000 }, () => credentials());
  describe('broker nats: TLS', { timeout: 60_000 }, () => encryption());
}

function make(t: Scope, { url, name = streamName(), replicas = 1 }: { url: string; name?: string; replicas?: number }) {
  const log = createHeardLog();
  const broker = createNatsBroker({ url, name, replicas, log }, { requestMs: 2_000 });
  onEnd(t, () => broker.close());
  return { broker, name, log };
}

const refusal = (words: RegExp) => (error: unknown) => {
  assert.ok(error instanceof BrokerError);
  assert.equal(error.fault, 'refused');
  assert.match(error.message, words);
  return true;
};

interface Difference {
  readonly retention?: 'limits';
  readonly storage?: 'memory';
  readonly discard?: 'old';
  readonly subjects?: string[];
  readonly no_ack?: boolean;
  readonly max_msg_size?: number;
}

function misfits(url: string): void {
  const streams: readonly [string, (name: string) => Difference, RegExp][] = [
    [
      'another retention',
      () => ({ retention: 'limits' }),
      /has retention "limits" instead of "workqueue"; give BROKER_NAME/,
    ],
    ['memory storage', () => ({ storage: 'memory' }), /has storage "memory" instead of "file"/],
    ['another discard', () => ({ discard: 'old' }), /discards "old" messages instead of "new" ones/],
    [
      'further subjects',
      (name) => ({ subjects: [`${name}.rings`, `${name}.x`] }),
      /has the subjects ".*\.x" instead of/,
    ],
    ['no confirmations', () => ({ no_ack: true }), /confirms nothing/],
    ['smaller messages', () => ({ max_msg_size: 1024 }), /takes messages of 1024 bytes only, 1280 are needed/],
  ];
  for (const [what, difference, words] of streams) {
    it(`a stream with ${what} is refused in one sentence, and left as it is`, async (t) => {
      const { broker, name } = make(t, { url });
      const operator = await asOperator(t, url);
      const subjects = [`${name}.rings`];
      const fitting = { retention: 'workqueue', storage: 'file', discard: 'new' } as const;
      const { config } = await operator.streams.add({ name, subjects, ...fitting, ...difference(name) });
      await assert.rejects(broker.prepare(), refusal(words));
      assert.deepEqual((await operator.streams.info(name)).config, config);
    });
  }

  const consumers: readonly [string, Partial<ConsumerConfig>, RegExp][] = [
    ['pushes', { deliver_subject: 'somewhere' }, /pushes its messages instead of waiting for pulls/],
    ['has a back-off', { backoff: [1e9, 2e9], max_deliver: 3 }, /has a back-off/],
    ['delivers headers alone', { headers_only: true }, /delivers headers alone/],
  ];
  for (const [what, difference, words] of consumers) {
    it(`a consumer that ${what} is refused in one sentence`, async (t) => {
      const { broker, name } = make(t, { url });
      await broker.prepare();
      const operator = await asOperator(t, url);
      await operator.consumers.add(name, { durable_name: durableName, ack_policy: 'explicit', ...difference });
      await assert.rejects(broker.consumer(patient), refusal(words));
    });
  }

  it('a consumer with another ack wait or an end of deliveries is adjusted', async (t) => {
    const { broker, name } = make(t, { url });
    await broker.prepare();
    const operator = await asOperator(t, url);
    await operator.consumers.add(name, { durable_name: durableName, ack_policy: 'explicit', max_deliver: 5 });
    await broker.consumer({ prefetch: 0, visibilityMs: 7_000 });
    const { config } = await operator.consumers.info(name, durableName);
    assert.deepEqual([config.ack_wait, config.max_deliver], [7_000e6, -1]);
  });

  it('other replicas than configured are told to the log with the command that changes them, and used', async (t) => {
    const { broker: first, name } = make(t, { url });
    await first.prepare();
    const { broker, log } = make(t, { url, name, replicas: 3 });
    await broker.prepare();
    await publish(broker, 'used');
    assert.match(log.lines.join('\n'), /BROKER_REPLICAS; change it with "nats stream edit \S+ --replicas 3"/);
  });

  it('replicas that a single server cannot keep are refused in one sentence', async (t) => {
    const { broker } = make(t, { url, replicas: 3 });
    await assert.rejects(broker.prepare(), refusal(/no cluster and keeps 1 replica, BROKER_REPLICAS asks for 3/));
  });

  it('a server without JetStream, or none at all, is away', async (t) => {
    const plain = await startNats(t, { jetstream: false });
    const { broker } = make(t, { url: plain.url });
    await assert.rejects(broker.prepare(), isFault(['unavailable']));
    await assert.rejects(publish(broker, 'a'), isFault(['unavailable']));
    await plain.stop();
    const { broker: other } = make(t, { url: plain.url });
    await assert.rejects(other.prepare(), isFault(['unavailable']));
    await assert.rejects(publish(other, 'a'), isFault(['unavailable']));
    await assert.rejects(other.health(), isFault(['unavailable']));
    await assert.rejects(other.depth(), isFault(['unavailable']));
  });

  it('of several hosts, one that is there is enough', async (t) => {
    const { port } = new URL(url);
    const broker = await openNatsBroker({
      url: `nats://127.0.0.1:1,127.0.0.1:${port},127.0.0.1:2`,
      name: streamName(),
    });
    onEnd(t, () => broker.close());
    await publish(broker, 'there');
  });
}

function credentials(): void {
  const user = 'skrepka-user';
  const password = 'p@ss:w/ord%"1';
  const secrets = [password, encodeURIComponent(password), user];
  const config = `authorization { user: "${user}", password: "${password.replace('"', '\\"')}" }`;
  const withUser = (url: string, given: string) =>
    url.replace('nats://', `nats://${encodeURIComponent(user)}:${encodeURIComponent(given)}@`);

  /** Everything that an error shows to those who print it. */
  const shown = (error: unknown) => inspect(error, { depth: 10, showHidden: true });

  it('are percent-decoded, and let in', async (t) => {
    const server = await startNats(t, { config });
    const { broker } = make(t, { url: withUser(server.url, password) });
    await broker.prepare();
    await publish(broker, 'in');
  });

  it('may be a token', async (t) => {
    const server = await startNats(t, { config: 'authorization { token: "t0ken" }' });
    const { broker } = make(t, { url: server.url.replace('nats://', 'nats://t0ken@') });
    await broker.prepare();
    await publish(broker, 'in');
  });

  it('that are wrong, or no longer right, are in no error and in no line of the log', async (t) => {
    const server = await startNats(t, { config });
    const wrong = make(t, { url: withUser(server.url, `${password}x`) });
    const errors: unknown[] = [];
    const keep = (error: unknown) => {
      errors.push(error);
    };
    await wrong.broker.prepare().catch(keep);
    await publish(wrong.broker, 'a').catch(keep);
    const right = make(t, { url: withUser(server.url, password) });
    await right.broker.prepare();
    await server.configure('authorization { user: "other", password: "other" }');
    await until('the log tells of it', () => /authorization violation/i.test(right.log.lines.join('\n')));
    await publish(right.broker, 'a').catch(keep);
    await right.broker.health().catch(keep);
    assert.equal(errors.length, 4);
    for (const error of errors) assert.ok(isFault(['unavailable'])(error), String(error));
    const told = [...errors.map(shown), ...wrong.log.lines, ...right.log.lines].join('\n');
    for (const secret of secrets) assert.ok(!told.includes(secret), `${secret} was told in ${told}`);
    // It goes on trying, so that a password that is put right needs no restart.
    await server.configure(config);
    await until('it is let in again', () =>
      right.broker.health().then(
        () => true,
        () => false,
      ),
    );
  });

  it('without the right to the stream are refused', async (t) => {
    const server = await startNats(t, {
      config: `authorization { users: [
        { user: "all", password: "all" }
        { user: "few", password: "few", permissions: { publish: { deny: ["*.rings"] } } } ] }`,
    });
    const { broker, name } = make(t, { url: server.url.replace('nats://', 'nats://all:all@') });
    await broker.prepare();
    const { broker: few } = make(t, { url: server.url.replace('nats://', 'nats://few:few@'), name });
    await few.prepare();
    await assert.rejects(publish(few, 'a'), refusal(/may not use the subject/));
  });
}

function encryption(): void {
  it('by nats+tls is trusted through NODE_EXTRA_CA_CERTS alone, for the name or the address that was configured', async (t) => {
    const names = { localhost: 'DNS:localhost', '127.0.0.1': 'IP:127.0.0.1' };
    for (const [host, name] of Object.entries(names)) {
      const { caFile, certFile, keyFile } = await makeCertificate(t, name);
      const server = await startNats(t, { config: `tls { cert_file: "${certFile}", key_file: "${keyFile}" }` });
      for (const asked of Object.keys(names)) {
        const said = await takeOne(`nats+tls://${asked}:${server.port}`, { NODE_EXTRA_CA_CERTS: caFile });
        assert.match(said, asked === host ? /^taken sealed$/ : /does not match certificate/, `${asked} at ${host}`);
      }
      const { broker } = make(t, { url: `nats+tls://${host}:${server.port}` });
      await assert.rejects(broker.prepare(), (error: unknown) => {
        assert.ok(isFault(['unavailable'])(error));
        assert.match((error as Error).message, /self-signed certificate/);
        return true;
      });
    }
  });

  it('that the server does not speak is no reason to go on without it', async (t) => {
    const server = await startNats(t, { config: 'authorization { user: "u", password: "p" }' });
    const { broker } = make(t, { url: server.url.replace('nats://', 'nats+tls://u:p@') });
    await assert.rejects(broker.prepare(), (error: unknown) => {
      assert.ok(isFault(['unavailable'])(error));
      assert.match((error as Error).message, /does not support 'tls'/);
      return true;
    });
  });
}

/** Publishes and takes one message in a process of its own, since Node reads its certificates when it starts. */
async function takeOne(url: string, env: Readonly<Record<string, string>>): Promise<string> {
  const taker = path.join(import.meta.dirname, '../support/engines/nats-taker.ts');
  const child = spawn(process.execPath, [taker, url, streamName(), '5000', 'sealed'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
  });
  let said = '';
  const hear = (text: string) => {
    said += text;
  };
  child.stdout.setEncoding('utf8').on('data', hear);
  child.stderr.setEncoding('utf8').on('data', hear);
  try {
    await until('the other process took it or gave up', () => said.startsWith('taken') || child.exitCode !== null);
  } finally {
    child.kill('SIGKILL');
  }
  return said.trim();
}
