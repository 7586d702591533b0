/**
 * What `BROKER_URL` says of RabbitMQ: `amqp://` or `amqps://` (TLS), then `user:password@` (percent-encoded; RabbitMQ's own
 * guest without), hosts separated by commas, each with its port or 5672 (TLS: 5671), then `/vhost`.
 *
 * The credentials leave this file only as values for the connection; no sentence here repeats any part of the URL.
 */
import { StartError } from '../errors.ts';

export interface RabbitAddress {
  readonly tls: boolean;
  /** `host:port` of each node, an IPv6 address without brackets. */
  readonly nodes: readonly { readonly hostname: string; readonly port: number }[];
  readonly username: string;
  readonly password: string;
  readonly vhost: string;
}

const form = /^amqp(?<tls>s?):\/\/(?:(?<userinfo>[^/]*)@)?(?<hosts>[^/@?#]+)(?:\/(?<vhost>[^/?#]*))?$/;
const hostForm = /^(?:\[(?<ip6>[0-9A-Fa-f:.]+)\]|(?<host>[A-Za-z0-9._-]+))(?::(?<port>\d{1,5}))?$/;

const expected =
  'Expected "amqp://user:password@host:5672/vhost" or "amqps://user:password@host:5671,host:5671/vhost" for BROKER_URL, received something else.';

/** Throws `StartError`. */
export function parseRabbitUrl(url: string): RabbitAddress {
  const parts = form.exec(url)?.groups;
  if (!parts) throw new StartError(expected);
  const tls = parts.tls === 's';
  const nodes = (parts.hosts ?? '').split(',').map((text) => nodeIn(text, tls));
  if (nodes.length > 1 && nodes.some(({ hostname }) => hostname.includes(':'))) {
    // The client library splits each of several hosts at its colon.
    throw new StartError('Expected host names or IPv4 addresses in a BROKER_URL with several hosts, received IPv6.');
  }
  const [username = 'guest', ...rest] = parts.userinfo === undefined ? [] : parts.userinfo.split(':');
  const password = parts.userinfo === undefined ? 'guest' : rest.join(':');
  return { tls, nodes, username: decode(username), password: decode(password), vhost: decode(parts.vhost || '/') };
}

function nodeIn(text: string, tls: boolean) {
  const { ip6, host, port } = hostForm.exec(text)?.groups ?? {};
  const hostname = ip6 ?? host;
  const number = port === undefined ? (tls ? 5671 : 5672) : Number(port);
  if (!hostname || number < 1 || number > 65_535) throw new StartError(expected);
  return { hostname, port: number };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new StartError('Expected percent-encoded credentials and vhost in BROKER_URL, received a stray "%".');
  }
}
