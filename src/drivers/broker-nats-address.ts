/**
 * What `BROKER_URL` says of NATS: `nats://` or `nats+tls://`, then `user:password@` or `token@` (percent-encoded), then hosts
 * separated by commas, each with its port or 4222.
 *
 * The credentials leave this file only as values for the connection; no sentence here repeats any part of the URL.
 */
import { isIP } from 'node:net';
import { checkServerIdentity, type PeerCertificate } from 'node:tls';
import { StartError } from '../errors.ts';

export interface NatsAddress {
  /** `host:port`, as the client library takes them. */
  readonly servers: readonly string[];
  readonly user?: string;
  readonly password?: string;
  readonly token?: string;
  readonly tls: boolean;
}

const form = /^nats(?<tls>\+tls)?:\/\/(?:(?<userinfo>[^/]*)@)?(?<hosts>[^/@?#]+)\/?$/;
const hostForm = /^(?<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?<port>\d{1,5}))?$/;

/** Throws `StartError`. */
export function parseNatsUrl(url: string): NatsAddress {
  const parts = form.exec(url)?.groups;
  const servers = (parts?.hosts ?? '').split(',').map(serverIn);
  if (!parts || !servers.every((server) => server !== null)) throw new StartError(expected);
  return { servers, tls: parts.tls !== undefined, ...credentialsIn(parts.userinfo) };
}

const expected =
  'Expected "nats://host:4222" or "nats+tls://user:password@host:4222,host:4222" for BROKER_URL, received something else.';

function serverIn(text: string): string | null {
  const { host, port = '4222' } = hostForm.exec(text)?.groups ?? {};
  return host && Number(port) > 0 && Number(port) < 65_536 ? `${host}:${port}` : null;
}

/** One word alone is a token, as in the URLs of NATS itself. */
function credentialsIn(userinfo: string | undefined): Pick<NatsAddress, 'user' | 'password' | 'token'> {
  if (!userinfo) return {};
  const colon = userinfo.indexOf(':');
  try {
    if (colon < 0) return { token: decodeURIComponent(userinfo) };
    return {
      user: decodeURIComponent(userinfo.slice(0, colon)),
      password: decodeURIComponent(userinfo.slice(colon + 1)),
    };
  } catch {
    throw new StartError('Expected percent-encoded credentials in BROKER_URL, received a stray "%".');
  }
}

/**
 * The check of a server's certificate. The client library names no host to Node when it connects to an IP address, and Node
 * then checks for `localhost`; here the addresses that were configured count instead.
 */
export function serverIdentity(servers: readonly string[]) {
  const hosts = servers.map((server) => server.slice(0, server.lastIndexOf(':')).replace(/^\[|\]$/g, ''));
  const addresses = hosts.filter((host) => isIP(host) > 0);
  return (host: string, certificate: PeerCertificate): Error | undefined => {
    const named = checkServerIdentity(host, certificate);
    const unnamed = host === 'localhost' && !hosts.includes('localhost');
    if (!unnamed || addresses.length === 0) return named;
    return addresses.some((address) => checkServerIdentity(address, certificate) === undefined)
      ? undefined
      : (checkServerIdentity(addresses[0] ?? host, certificate) ?? named);
  };
}
