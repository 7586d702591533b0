/** What a `BROKER_URL` of NATS means, and whose certificate is taken for its servers. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { PeerCertificate } from 'node:tls';
import { parseNatsUrl, serverIdentity } from '../../src/drivers/broker-nats-address.ts';
import { StartError } from '../../src/errors.ts';

describe('the URL of NATS', () => {
  it('names hosts, ports, TLS and credentials', () => {
    const cases: readonly [string, object][] = [
      ['nats://a', { servers: ['a:4222'], tls: false }],
      ['nats://a.b:5/', { servers: ['a.b:5'], tls: false }],
      ['nats+tls://a,b:5,[::1]:6', { servers: ['a:4222', 'b:5', '[::1]:6'], tls: true }],
      ['nats://u:p@a', { servers: ['a:4222'], tls: false, user: 'u', password: 'p' }],
      ['nats://u%40x:p%2F%3A@a', { servers: ['a:4222'], tls: false, user: 'u@x', password: 'p/:' }],
      ['nats://token@a,b', { servers: ['a:4222', 'b:4222'], tls: false, token: 'token' }],
    ];
    for (const [url, meaning] of cases) assert.deepEqual(parseNatsUrl(url), meaning, url);
  });

  it('that is none is refused without a word of it', () => {
    const wrong = [
      'nats://',
      'nats:a',
      'nats://u:secret@',
      'nats://u:secret@a:99999',
      'nats://u:secret@a,,b',
      'tls://secret',
    ];
    const also = ['nats://u:secret@a?x', 'nats://u:secret@a/b', 'nats://u:secret%@a', 'nats://u:secret@a b'];
    for (const url of [...wrong, ...also]) {
      assert.throws(
        () => parseNatsUrl(url),
        (error) => error instanceof StartError && !error.message.includes('secret') && error.cause === undefined,
        url,
      );
    }
  });
});

describe('the certificate of a NATS server', () => {
  const certificate = (subjectaltname: string) => ({ subject: { CN: 'x' }, subjectaltname }) as PeerCertificate;

  it('must bear the name that was configured', () => {
    const check = serverIdentity(['a.example:4222', 'b.example:4222']);
    assert.equal(check('a.example', certificate('DNS:a.example')), undefined);
    assert.ok(check('a.example', certificate('DNS:b.example')) instanceof Error);
  });

  it('must bear the address that was configured, where Node is told no host and asks for localhost', () => {
    const check = serverIdentity(['10.0.0.1:4222', '[fd00::1]:4222']);
    assert.equal(check('localhost', certificate('IP Address:10.0.0.1')), undefined);
    assert.equal(check('localhost', certificate('IP Address:FD00:0:0:0:0:0:0:1')), undefined);
    assert.ok(check('localhost', certificate('DNS:localhost')) instanceof Error);
    assert.ok(check('localhost', certificate('IP Address:10.0.0.2')) instanceof Error);
  });
});
