/** The broker `valkey:` on a bad line, with all kinds of accounts, and on servers that were set up in another way. */
import assert from 'node:assert/strict';
import test, { describe, it } from 'node:test';
import { inspect } from 'node:util';
import type { ValkeyBrokerSettings } from '../../src/drivers/broker-valkey.ts';
import {
  disruption,
  isFault,
  longMs,
  nothing,
  patient,
  publish,
  publishInTheEnd,
  receive,
  text,
} from '../contract/broker-scene.ts';
import { makeCertificate } from '../support/engines/certificate.ts';
import { available, installCommand, startValkey, type ValkeyServer } from '../support/engines/valkey.ts';
import { alert, open, queueName, refused, takeAndDie } from '../support/engines/valkey-harness.ts';
import type { Scope } from '../support/on-end.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { within } from '../support/within.ts';

if (available()) await suite();
else test('the connection to a real Valkey server is tried', (context) => context.skip(installCommand));

async function suite(): Promise<void> {
  const server = await startValkey(test);
  describe('broker valkey: the line', { timeout: 60_000 }, () => lineCases(server));
  describe('broker valkey: its account', { timeout: 60_000 }, () => accountCases());
  describe('broker valkey: its settings', { timeout: 60_000 }, () => settingCases(server));
}

/** Without the backstop's help. */
const sleepy = { backstopMs: 60_000 };
/** Where the silence of a server is the subject. */
const brief = { answerMs: 2_000 };

function lineCases(server: ValkeyServer): void {
  const proxied = async (t: Scope, settings: ValkeyBrokerSettings = alert) => {
    const proxy = await startTcpProxy(t, server.url);
    return { proxy, ...(await open(t, proxy.url, settings)) };
  };

  it('a publish whose answer is cut off is unknown, and was stored once', async (t) => {
    const { broker, proxy } = await proxied(t);
    const consumer = await broker.consumer(patient);
    // The server's first answer to a script may be that it does not have it yet.
    await publish(broker, 'first');
    await (await receive(consumer)).ack();
    proxy.cutAfter('the word');
    await assert.rejects(publish(broker, 'the word'), isFault(['unknown']));
    proxy.cutAfter('no such word');
    assert.equal(text(await receive(consumer)), 'the word');
    await nothing(consumer, 300);
  });

  it('a publish that nobody can take to the server is unavailable, in time', async (t) => {
    const { broker, proxy } = await proxied(t);
    proxy.refuse(true);
    proxy.cutAll();
    const lost = (id: string) => broker.publish(id, new Uint8Array(1), { timeoutMs: 300 });
    await within('both ended', 2_000, async () => {
      await assert.rejects(lost('x'), isFault(['unavailable', 'unknown']));
      await assert.rejects(lost('y'), isFault(['unavailable']));
    });
    proxy.refuse(false);
    await publishInTheEnd(broker, 'z');
  });

  it('a publish without an answer is unknown as soon as its time is over', async (t) => {
    const { broker, proxy } = await proxied(t, {});
    await publish(broker, 'before');
    proxy.swallow('answers');
    const lost = () => broker.publish('x', new Uint8Array(1), { timeoutMs: 300 });
    await within('the publish ended', 2_000, () => assert.rejects(lost, isFault(['unknown'])));
    proxy.cutAll();
  });

  it('a short loss of the connection costs a publish nothing but time', async (t) => {
    const { broker, proxy } = await proxied(t);
    const { happened } = disruption(broker);
    proxy.cutAll();
    await happened;
    await publish(broker, 'after');
  });

  it('a publish right after the one that found the line cut waits for the next line', async (t) => {
    const { broker, proxy } = await proxied(t);
    await publish(broker, 'before');
    proxy.resetAll();
    // The first one learns of it when it writes, before the end of the connection is told in a later turn of the loop.
    const [first, second] = await Promise.allSettled([publish(broker, 'first'), publish(broker, 'second')]);
    assert.ok(first.status === 'rejected' && isFault(['unknown', 'unavailable'])(first.reason));
    assert.equal(second.status, 'fulfilled');
  });

  it('a half-open line is left: publishes are unknown in time, who waits gets what comes after', async (t) => {
    const { broker, proxy } = await proxied(t, { ...alert, ...brief });
    const waiting = receive(await broker.consumer(patient));
    await publish(broker, 'before');
    await (await waiting).ack();
    const next = receive(await broker.consumer(patient));
    const { happened } = disruption(broker);
    proxy.swallow('all');
    const lost = () => broker.publish('lost', new Uint8Array(1), { timeoutMs: 300 });
    await within('the publish ended', 2_000, () => assert.rejects(lost, isFault(['unknown', 'unavailable'])));
    await assert.rejects(broker.health(), isFault(['unavailable']));
    proxy.cutAll();
    proxy.swallow('nothing');
    await happened;
    await publishInTheEnd(broker, 'after');
    assert.equal(text(await next), 'after');
  });

  it('a line that stays half-open is given up without anybody cutting it', async (t) => {
    const { broker, proxy } = await proxied(t, { ...alert, ...brief });
    const { happened } = disruption(broker);
    proxy.swallow('all');
    await assert.rejects(broker.health(), isFault(['unavailable']));
    proxy.swallow('nothing');
    await happened;
    await broker.health();
  });

  it('what was taken while its answer was lost comes again after its visibility', async (t) => {
    const { broker, proxy, name } = await proxied(t);
    const beside = (await open(t, server.url, {}, name)).broker;
    const consumer = await broker.consumer({ prefetch: 0, visibilityMs: 1_500 });
    const waiting = receive(consumer);
    await publish(broker, 'first');
    await (await waiting).ack();
    await publish(beside, 'taken');
    // Asked for once its answer cannot come: an earlier take would be the one that hangs, and find nothing.
    proxy.swallow('answers');
    const again = receive(consumer);
    await until('it is taken', async () => (await beside.depth()).inFlight === 1);
    proxy.cutAll();
    proxy.swallow('nothing');
    assert.equal(text(await again), 'taken');
  });

  it('what comes for a slot that gave up meanwhile goes back at once, as if it had not been taken', async (t) => {
    const { broker, proxy, name } = await proxied(t, {});
    const beside = (await open(t, server.url, {}, name)).broker;
    const consumer = await broker.consumer(patient);
    const abort = new AbortController();
    const waiting = consumer.next(abort.signal);
    proxy.delay(200);
    await publish(beside, 'surplus');
    await until('it is taken', async () => (await beside.depth()).inFlight === 1);
    abort.abort();
    assert.equal(await waiting, null);
    const delivery = await receive(await beside.consumer(patient));
    assert.deepEqual([text(delivery), delivery.deliveries], ['surplus', 1]);
  });

  it('without a ring the backstop finds what is there', async (t) => {
    const { broker, name } = await open(t, server.url, alert);
    const waiting = receive(await broker.consumer(patient));
    await server.command('xadd', `${name}:rings`, '*', 'body', 'unheard');
    assert.equal(text(await waiting), 'unheard');
  });

  it('who sleeps is woken by the return of the line', async (t) => {
    const { broker, proxy, name } = await proxied(t, sleepy);
    const beside = (await open(t, server.url, {}, name)).broker;
    const consumer = await broker.consumer(patient);
    const waiting = receive(consumer);
    await publish(beside, 'heard');
    await (await waiting).ack();
    const again = receive(consumer);
    // Asked after its take, so it sleeps when this is answered.
    await broker.depth();
    proxy.refuse(true);
    proxy.cutAll();
    await publish(beside, 'missed');
    proxy.refuse(false);
    assert.equal(text(await again), 'missed');
  });

  it('a line for rings alone that became half-open is noticed and made anew', async (t) => {
    const { broker, proxy, log, name } = await proxied(t, { ...sleepy, ...brief });
    const beside = (await open(t, server.url, {}, name)).broker;
    const consumer = await broker.consumer(patient);
    const waiting = receive(consumer);
    await publish(beside, 'heard');
    await (await waiting).ack();
    const again = receive(consumer);
    proxy.swallow('all');
    await until('the loss is noticed', () => log.lines.some((line) => /is lost.*"rings"/.test(line)));
    proxy.swallow('nothing');
    await publish(beside, 'after');
    assert.equal(text(await again), 'after');
  });

  it('a slow line delays and loses nothing', async (t) => {
    const { broker, proxy } = await proxied(t, {});
    proxy.delay(150);
    const consumer = await broker.consumer(patient);
    await Promise.all(['a', 'b', 'c'].map((id) => publish(broker, id)));
    const seen: (string | null)[] = [];
    for (let at = 0; at < 3; at += 1) {
      const delivery = await receive(consumer);
      seen.push(text(delivery));
      await delivery.ack();
    }
    assert.deepEqual(seen.sort(), ['a', 'b', 'c']);
  });
}

const secret = 'pass:w0rd/é%';

function accountCases(): void {
  it('works with a password, also with one that is full of marks', async (t) => {
    const server = await startValkey(t, { password: secret });
    const { broker } = await open(t, server.url);
    await publish(broker, 'in');
    assert.equal(text(await receive(await broker.consumer(patient))), 'in');
  });

  it('a wrong password and none at all are each one clear sentence, without the password', async (t) => {
    const server = await startValkey(t, { password: 'right' });
    const wrong = new URL(server.url);
    wrong.password = encodeURIComponent(secret);
    const { error, log } = await refused(t, wrong.href);
    assert.equal(error.fault, 'unavailable');
    assert.equal(error.message, 'Valkey refused the user or the password of BROKER_URL');
    const tries = async () =>
      Number(/total_connections_received:(\d+)/.exec(String(await server.command('info', 'stats')))?.[1]);
    const before = await tries();
    await until('it has tried again and again', async () => (await tries()) >= before + 3);
    assert.equal(log.filter((line) => line.includes('refuses the connection')).length, 1, 'each try is told');
    wrong.password = '';
    const none = await refused(t, wrong.href);
    assert.equal(none.error.message, 'Valkey wants a password, and BROKER_URL has none');
  });

  it('no error and no line of the log holds the credentials, whatever fails', async (t) => {
    const server = await startValkey(t, { password: secret, words: ['--rename-command', 'PING', ''] });
    const open = new URL(server.url);
    const wrong = new URL(server.url);
    wrong.password = encodeURIComponent(`${secret}wrong`);
    const unreachable = new URL(server.url);
    unreachable.port = '1';
    const told: string[] = [];
    for (const url of [open, wrong, unreachable]) {
      const { error, log } = await refused(t, url.href);
      told.push(inspect(error, { depth: 20, showHidden: true }), error.message, ...log);
    }
    // A server that does not know AUTH repeats what it was told.
    const ignorant = await startValkey(t, { words: ['--rename-command', 'AUTH', ''] });
    const address = new URL(ignorant.url);
    address.password = encodeURIComponent(secret);
    const { error, log } = await refused(t, address.href);
    told.push(inspect(error, { depth: 20, showHidden: true }), ...log);
    assert.match(error.message, /^Valkey refuses the connection: ERR unknown command 'auth'/);
    for (const line of told) {
      assert.ok(!line.includes(secret) && !line.includes(encodeURIComponent(secret)), 'the password was told');
    }
  });

  it('a database that the server does not have is one clear sentence', async (t) => {
    const server = await startValkey(t);
    const { error } = await refused(t, `${server.url}/99`);
    assert.equal(error.message, 'Valkey refuses the connection: ERR DB index is out of range');
  });

  it('an account with the rights that the documents name is enough', async (t) => {
    const server = await startValkey(t);
    const name = queueName();
    await server.command('acl', 'setuser', 'narrow', 'on', `>${secret}`, ...rightsOf(name));
    const url = new URL(server.url);
    url.username = 'narrow';
    url.password = encodeURIComponent(secret);
    const { broker, log } = await open(t, url.href, { ...alert, sweepMs: 50, forgottenMs: 50 }, name);
    const consumer = await broker.consumer({ prefetch: 1, visibilityMs: 300 });
    await publish(broker, 'round');
    for (const end of ['nak', 'extend', 'expire', 'ack'] as const) {
      const delivery = await receive(consumer);
      if (end === 'nak') await delivery.nak(0);
      if (end === 'extend') await delivery.extend();
      if (end === 'ack') await delivery.ack();
    }
    await broker.health();
    assert.deepEqual(await broker.depth(), { waiting: 0, inFlight: 0 });
    await consumer.close();
    assert.deepEqual(
      log.lines.filter((line) => !line.includes('is not known')),
      [],
    );
  });

  it('speaks TLS with a server whose authority is known, and with no other', async (t) => {
    const certificate = await makeCertificate(t);
    const server = await startValkey(t, { certificate });
    const { error } = await refused(t, server.url);
    assert.equal(error.fault, 'unavailable');
    assert.match(error.message, /^Valkey cannot be reached: self-signed certificate/);
    const name = queueName();
    await server.command('set', `${name}:epoch`, 'one');
    await server.command('xadd', `${name}:rings`, '*', 'body', 'sealed');
    const said = await takeAndDie(server.url, name, longMs, { NODE_EXTRA_CA_CERTS: certificate.caFile });
    assert.equal(said, 'taken sealed');
  });
}

/** As in `docs/decisions/0009-valkey.md`. */
const rightsOf = (name: string) =>
  `~${name}:* &${name}:* -@all +ping +select +subscribe +publish +evalsha +eval +exists +type +get +set +xadd +xack +xdel +xlen +xclaim +xpending +xreadgroup +xgroup +xinfo`.split(
    ' ',
  );

function settingCases(server: ValkeyServer): void {
  const warnings = async (t: Scope, words: readonly string[], rights?: readonly string[]) => {
    const own = await startValkey(t, { words });
    if (rights) await own.command('acl', 'setuser', 'default', ...rights);
    const { broker, log } = await open(t, own.url);
    await broker.prepare();
    return log.lines;
  };

  it('says nothing of a server that keeps what it confirmed', async (t) => {
    const { log } = await open(t, server.url);
    assert.deepEqual(log.lines, []);
  });

  it('warns once, with one sentence, when a crash may lose what was confirmed', async (t) => {
    const lossy = /^broker: a crash of Valkey may lose messages that it has confirmed/;
    for (const words of [
      ['--appendonly', 'no'],
      ['--appendfsync', 'everysec'],
    ]) {
      const lines = await warnings(t, words);
      assert.equal(lines.length, 1);
      assert.match(lines[0] ?? '', lossy);
    }
    const blind = await warnings(t, ['--appendonly', 'no'], ['-config']);
    assert.equal(blind.length, 1);
    assert.match(blind[0] ?? '', lossy);
  });

  it('says that it does not know when it may not look', async (t) => {
    for (const rights of [['-config'], ['-config', '-info']]) {
      const lines = await warnings(t, [], rights);
      assert.equal(lines.length, 1);
      assert.match(lines[0] ?? '', /^broker: whether a crash of Valkey may lose .* is not known/);
    }
  });

  it('warns when the server may evict the stream', async (t) => {
    for (const rights of [[], ['-config']]) {
      const lines = await warnings(t, ['--maxmemory-policy', 'allkeys-lru'], rights);
      assert.match(lines.at(-1) ?? '', /^broker: a full Valkey may evict the stream/);
    }
  });
}
