/**
 * What `BROKER_URL` says of Valkey or Redis: `valkey://` or `redis://`, with TLS `valkeys://` or `rediss://`, then
 * `user:password@` or `:password@` (percent-encoded), one host with its port or 6379, and `/database` where it is not 0.
 *
 * The credentials leave this file only as values for the connection; no sentence here repeats any part of the URL.
 */
import { StartError } from '../errors.ts';

export interface ValkeyAddress {
  readonly host: string;
  readonly port: number;
  readonly database: number;
  readonly user?: string;
  readonly password?: string;
  readonly tls: boolean;
}

const form =
  /^(?:valkey|redis)(?<tls>s)?:\/\/(?:(?<userinfo>[^/]*)@)?(?<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?<port>\d{1,5}))?(?:\/(?<database>\d{0,5}))?$/;

/** Throws `StartError`. */
export function parseValkeyUrl(url: string): ValkeyAddress {
  const { tls, userinfo, host = '', port = '6379', database } = form.exec(url)?.groups ?? {};
  if (host === '' || Number(port) < 1 || Number(port) > 65_535) throw new StartError(expected);
  return {
    host: host.replace(/^\[|\]$/g, ''),
    port: Number(port),
    database: Number(database || 0),
    tls: tls !== undefined,
    ...credentialsIn(userinfo),
  };
}

const expected =
  'Expected "valkey://host:6379" or "valkeys://user:password@host:6379/0" with one host for BROKER_URL, received something else.';

/** One word alone is a user in a URL, and Valkey knows none without a password. */
function credentialsIn(userinfo: string | undefined): Pick<ValkeyAddress, 'user' | 'password'> {
  if (!userinfo) return {};
  const colon = userinfo.indexOf(':');
  if (colon < 0) throw new StartError('Expected "user:password@" or ":password@" in BROKER_URL, received one word.');
  try {
    const user = decodeURIComponent(userinfo.slice(0, colon));
    return { ...(user === '' ? {} : { user }), password: decodeURIComponent(userinfo.slice(colon + 1)) };
  } catch {
    throw new StartError('Expected percent-encoded credentials in BROKER_URL, received a stray "%".');
  }
}
