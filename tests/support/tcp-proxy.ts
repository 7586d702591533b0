/**
 * A TCP proxy in front of a server, with the faults of a network: it cuts the line, also at a chosen word (after the server
 * got it, before anybody hears of it), refuses, is slow, or says nothing more while the line stays open.
 */
import { connect, createServer, type Socket } from 'node:net';
import { onEnd, type Scope } from './on-end.ts';

export interface TcpProxy {
  /** The given URL, by way of the proxy. */
  readonly url: string;
  /**
   * From now on, a message of a client that contains `word` is passed on, and then its connection is cut once the server
   * answered; so often, or always.
   */
  cutAfter(word: string, times?: number): void;
  /** Resolves when the next message of a client that contains `word` has been passed on. Never rejects. */
  heard(word: string): Promise<void>;
  /** Connections made from now on are cut when so many bytes of answers have passed; null: never. */
  cutAnswersAt(bytes: number | null): void;
  /** Cuts all connections now. */
  cutAll(): void;
  /** Cuts all connections by a reset: a client that writes is told at once that nobody is there. */
  resetAll(): void;
  /** New connections are refused from now on, or taken again. */
  refuse(refusing: boolean): void;
  /**
   * `answers`: what servers say is swallowed; `all`: what clients say as well, so that a line is half-open. What was swallowed
   * never comes, nor does what would come after it: a line that lost bytes stays silent. `nothing` ends it for all others.
   */
  swallow(what: 'nothing' | 'answers' | 'all'): void;
  /** Every piece of bytes is passed on so much later, in both directions. */
  delay(ms: number): void;
}

export async function startTcpProxy(t: Scope, url: string): Promise<TcpProxy> {
  const target = new URL(url);
  const clients = new Set<Socket>();
  let word: string | null = null;
  let cuts = 0;
  const awaited = new Map<() => void, string>();
  let answersMax: number | null = null;
  let refusing = false;
  let swallowed: 'nothing' | 'answers' | 'all' = 'nothing';
  let delayMs = 0;
  /** Timers of one length fire in their order, so a delay keeps the order of bytes while it does not change. */
  const pass = (bytes: Buffer, to: Socket) => {
    if (delayMs === 0) to.write(bytes);
    else setTimeout(() => to.write(bytes), delayMs);
  };
  const server = createServer((client) => {
    if (refusing) {
      client.destroy();
      return;
    }
    clients.add(client);
    const upstream = connect(Number(target.port), target.hostname);
    let cutting = false;
    let lost: typeof swallowed = 'nothing';
    const silence = () => (swallowed === 'all' || lost === 'nothing' ? swallowed : lost);
    let answersLeft = answersMax ?? Number.POSITIVE_INFINITY;
    client.on('data', (bytes) => {
      if (!cutting && word !== null && cuts > 0 && bytes.toString('latin1').includes(word)) {
        cutting = true;
        cuts -= 1;
      }
      if (silence() !== 'all') pass(bytes, upstream);
      else lost = 'all';
      for (const [resolve, one] of awaited) {
        if (!bytes.toString('latin1').includes(one)) continue;
        awaited.delete(resolve);
        resolve();
      }
    });
    upstream.on('data', (bytes) => {
      // The answer proves that the server did it; it goes no further.
      answersLeft -= bytes.length;
      if (cutting || answersLeft < 0) client.destroy();
      else if (silence() === 'nothing') pass(bytes, client);
      else lost = silence();
    });
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
    cutAfter: (chosen, times = Number.POSITIVE_INFINITY) => {
      word = chosen;
      cuts = times;
    },
    heard: (one) => new Promise((resolve) => awaited.set(resolve, one)),
    cutAnswersAt: (bytes) => {
      answersMax = bytes;
    },
    cutAll,
    resetAll: () => {
      for (const client of clients) client.resetAndDestroy();
    },
    refuse: (refusingNow) => {
      refusing = refusingNow;
    },
    swallow: (what) => {
      swallowed = what;
    },
    delay: (ms) => {
      delayMs = ms;
    },
  };
}
