/** The gate before hashing: who passes, who waits for how long, and that nobody can keep the others out. */
import assert from 'node:assert/strict';
import { request } from 'node:http';
import { describe, it } from 'node:test';
import { createGate, type GateSettings, networkOf } from '../../src/http/gate.ts';
import { startApi } from '../support/api.ts';
import { until } from '../support/until.ts';

/** Work that goes on until it is told to end. */
function held() {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let hasBegun = false;
  const work = () => {
    hasBegun = true;
    return promise;
  };
  return { work, end: resolve, break: reject, hasBegun: () => hasBegun };
}
const turn = () => new Promise((resolve) => setImmediate(resolve));

const settings = { passingMax: 2, waitingMax: 2, waitMsMax: 1000, retryAfterSeconds: 7 };
/** A clock whose sleeps end by their signal alone. */
const standing = {
  sleep: (_ms: number, signal?: AbortSignal) =>
    new Promise<void>((resolve) => signal?.addEventListener('abort', () => resolve())),
};
const open = (change: Partial<GateSettings> = {}) => createGate({ clock: standing }, { ...settings, ...change });
const full = { code: 'unavailable', retryAfterSeconds: 7 };

describe('the gate', () => {
  it('lets some pass, some wait in order, and sends the rest away', async () => {
    const gate = open();
    const works = Array.from({ length: 5 }, held);
    const passes = works.map(({ work }) => gate.pass('one', work));
    await assert.rejects(passes[4] ?? assert.fail(), { code: 'unavailable', retryAfterSeconds: 7 });
    await turn();
    const begun = () => works.map((work) => work.hasBegun());
    assert.deepEqual(begun(), [true, true, false, false, false]);
    works[1]?.end('second');
    assert.equal(await passes[1], 'second');
    await turn();
    assert.deepEqual(begun(), [true, true, true, false, false]);
    for (const work of works) work.end('done');
    assert.deepEqual(await Promise.all(passes.slice(0, 4)), ['done', 'second', 'done', 'done']);
    assert.equal(await gate.pass('one', async () => 'open again'), 'open again');
  });

  it('gives the place of failed work to the next, and the error to its caller', async () => {
    const gate = open({ passingMax: 1 });
    const [broken, next] = [held(), held()];
    const failing = gate.pass('one', broken.work);
    const waiting = gate.pass('one', next.work);
    broken.break(new Error('broken'));
    await assert.rejects(failing, { message: 'broken' });
    await turn();
    assert.equal(next.hasBegun(), true);
    next.end('fine');
    assert.equal(await waiting, 'fine');
  });

  it('lets no newcomer overtake those who wait', async () => {
    const gate = open({ passingMax: 1 });
    const [first, second, third] = [held(), held(), held()];
    const passes = [gate.pass('one', first.work), gate.pass('one', second.work)];
    first.end('1');
    await passes[0];
    passes.push(gate.pass('one', third.work));
    await turn();
    assert.deepEqual([second.hasBegun(), third.hasBegun()], [true, false]);
    second.end('2');
    third.end('3');
    assert.deepEqual(await Promise.all(passes), ['1', '2', '3']);
  });

  it('sends away who has waited too long, whose place is then free', async () => {
    const sleeps: { ms: number; end: () => void }[] = [];
    const sleep = (ms: number) => new Promise<void>((resolve) => sleeps.push({ ms, end: resolve }));
    const gate = createGate({ clock: { sleep } }, { ...settings, passingMax: 1, waitingMax: 1 });
    const [first, second, third] = [held(), held(), held()];
    const passes = [gate.pass('one', first.work), gate.pass('one', second.work)];
    await turn();
    assert.equal(sleeps[0]?.ms, 1000);
    sleeps[0]?.end();
    await assert.rejects(passes[1] ?? assert.fail(), full);
    passes.push(gate.pass('one', third.work));
    await turn();
    first.end('1');
    third.end('3');
    assert.equal(await passes[2], '3');
    // The end of a wait that was over already is nobody's.
    sleeps[1]?.end();
    await turn();
    assert.deepEqual([second.hasBegun(), await gate.pass('one', async () => 'open')], [false, 'open']);
  });

  it('lets a newcomer into a line that another has filled, and gives him the next turn but one', async () => {
    const gate = open({ passingMax: 1, waitingMax: 4 });
    const flood = Array.from({ length: 5 }, held);
    const passes = flood.map(({ work }) => gate.pass('flood', work));
    await assert.rejects(gate.pass('flood', held().work), full);
    const newcomer = held();
    const welcome = gate.pass('newcomer', newcomer.work);
    await assert.rejects(passes[4] ?? assert.fail(), full);
    flood[0]?.end('0');
    await turn();
    flood[1]?.end('1');
    await turn();
    assert.deepEqual([newcomer.hasBegun(), flood[2]?.hasBegun()], [true, false]);
    newcomer.end('welcome');
    for (const one of flood) one.end('done');
    assert.equal(await welcome, 'welcome');
    assert.deepEqual(await Promise.all(passes.slice(0, 4)), ['0', '1', 'done', 'done']);
  });

  it('shares a full line evenly, and sends away whoever would have more than the others', async () => {
    const gate = open({ passingMax: 1, waitingMax: 4 });
    const work = held();
    const outcomes: string[] = [];
    const come = (from: string) =>
      gate.pass(from, work.work).then(
        () => outcomes.push(`${from} passed`),
        () => outcomes.push(`${from} sent away`),
      );
    const coming = ['a', 'a', 'a', 'a', 'a', 'b', 'b', 'b', 'c', 'd', 'e'].map(come);
    await turn();
    assert.deepEqual(
      outcomes.splice(0).sort(),
      ['a', 'a', 'a', 'b', 'b', 'e'].map((from) => `${from} sent away`),
    );
    work.end('done');
    await Promise.all(coming);
    assert.deepEqual(outcomes, ['a passed', 'a passed', 'b passed', 'c passed', 'd passed']);
  });
});

describe('where a request comes from', () => {
  it('is an address of IPv4, and the network of an address of IPv6', () => {
    const networks = {
      '192.0.2.7': '192.0.2.7',
      '::ffff:192.0.2.7': '192.0.2.7',
      '2001:db8:1:2:3:4:5:6': '2001:db8:1:2',
      '2001:db8:1:2::1': '2001:db8:1:2',
      '2001:db8::1': '2001:db8:0:0',
      '::1': '0:0:0:0',
      'fe80::1%eth0': 'fe80:0:0:0',
    };
    for (const [address, network] of Object.entries(networks)) assert.equal(networkOf(address), network);
  });

  it('is one unknown place for all connections of which the system tells no address', () => {
    assert.equal(networkOf(undefined), 'unknown');
  });
});

describe('a flood of log-ins from one address', () => {
  it('is told at once when to come back, and does not keep another address out', async (t) => {
    const { url, account } = await startApi(t, { settings: { loginFailuresMax: 1000 } });
    await account('ada');
    const statuses: number[] = [];
    const flood = Array.from({ length: 80 }, async (_, at) => {
      const { status, retryAfter } = await logIn(url, '127.0.0.1', `nobody${at}`, 'a guess');
      if (status === 503) assert.equal(retryAfter, '5');
      statuses.push(status);
    });
    await until('the line is full', () => statuses.includes(503));
    const sentMs = performance.now();
    const { status } = await logIn(url, '127.0.0.2', 'ada', 'password of ada');
    const tookMs = performance.now() - sentMs;
    assert.equal(status, 201);
    assert.ok(statuses.filter((one) => one === 401).length < 20, `many were heard before ada, who waited ${tookMs} ms`);
    await Promise.all(flood);
    assert.deepEqual(new Set(statuses), new Set([401, 503]));
  });
});

/** From an address of loopback: all of 127.0.0.0/8 is ours. */
async function logIn(url: string, from: string, handle: string, password: string) {
  return await new Promise<{ status: number; retryAfter: string | undefined }>((resolve, reject) => {
    const headers = { 'content-type': 'application/json' };
    const sending = request(`${url}/v1/sessions`, { method: 'POST', localAddress: from, headers, agent: false });
    sending.once('error', reject);
    sending.once('response', (answer) => {
      answer.resume();
      resolve({ status: answer.statusCode ?? 0, retryAfter: answer.headers['retry-after'] });
    });
    sending.end(JSON.stringify({ handle, password }));
  });
}
