/** What `BROKER_URL` may say of Valkey and Redis, and what is refused without repeating any of it. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { parseValkeyUrl } from '../../src/drivers/broker-valkey-address.ts';
import { StartError } from '../../src/errors.ts';

const plain = { host: 'host', port: 6379, database: 0, tls: false };

describe('the address of a Valkey', () => {
  const good: readonly [string, object][] = [
    ['valkey://host', plain],
    ['redis://host/', plain],
    ['valkeys://host:6380', { ...plain, port: 6380, tls: true }],
    ['rediss://10.0.0.1/3', { ...plain, host: '10.0.0.1', database: 3, tls: true }],
    ['valkey://[::1]:1/0', { ...plain, host: '::1', port: 1 }],
    ['valkey://:p%40ss@host', { ...plain, password: 'p@ss' }],
    ['valkey://someone:a:b@c@host', { ...plain, user: 'someone', password: 'a:b@c' }],
  ];
  for (const [url, expected] of good) {
    it(`reads ${url} as it is meant`, () => assert.deepEqual(parseValkeyUrl(url), expected));
  }

  const bad = [
    'valkey:',
    'valkey://',
    'http://host',
    'valkey://one,two',
    'valkey://host:0',
    'valkey://host:65536',
    'valkey://host/name',
    'valkey://host?family=6',
    'valkey://secret@host',
    'valkey://user:secret%@host',
    'valkey://user:secret@',
  ];
  for (const url of bad) {
    it(`refuses ${url} with a sentence that repeats no secret`, () => {
      assert.throws(
        () => parseValkeyUrl(url),
        (error: unknown) => error instanceof StartError && !error.message.includes('secret'),
      );
    });
  }
});
