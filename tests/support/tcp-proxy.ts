/** A TCP proxy in front of PostgreSQL that cuts the line at a chosen word: after the server got it, before anybody hears of it. */
import { connect, createServer, type Socket } from 'node:net';
import { onEnd, type Scope } from './on-end.ts';

export interface TcpProxy {
  /** The given URL, by way of the proxy. */
  readonly url: string;
  /** From now on, a message of a client that contains `word` is passed on, and then its connection is cut once the server answered. */
  cutAfter(word: string): void;
  /** Cuts all connections now. */
  cutAll(): void;
  /** New connections are refused from now on, or taken again. */
  refuse(refusing: boolean): void;
}

export async function startTcpProxy(t: Scope, url: string): Promise<TcpProxy> {
  const target = new URL(url);
  const clients = new Set<Socket>();
  let word: string | null = null;
  let refusing = false;
  const server = createServer((client) => {
    if (refusing) {
      client.destroy();
      return;
    }
    clients.add(client);
    const upstream = connect(Number(target.port), target.hostname);
    let cutting = false;
    client.on('data', (bytes) => {
      cutting ||= word !== null && bytes.toString('latin1').includes(word);
      upstream.write(bytes);
    });
    // The answer proves that the server did it; it goes no further.
    upstream.on('data', (bytes) => (cutting ? client.destroy() : client.write(bytes)));
    client.on('error', () => {});
    upstream.on('error', () => {});
    client.on('close', () => {
      clients.delete(client);
      upstream.destroy();
    });
    upstream.on('close', () => client.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  const through = new URL(url);
  through.port = String(typeof address === 'object' && address ? address.port : 0);
  const cutAll = () => {
    for (const client of clients) client.destroy();
  };
  onEnd(t, async () => {
    cutAll();
    await new Promise((resolve) => server.close(resolve));
  });
  return {
    url: through.href,
    cutAfter: (chosen) => {
      word = chosen;
    },
    cutAll,
    refuse: (refusingNow) => {
      refusing = refusingNow;
    },
  };
}
