/**
 * A connection to Valkey, and the only file that imports its package: commands and scripts, in the driver's words and errors.
 *
 * Life: connecting → greeted, which makes it up → down, when server or network go → connecting again, tried for ever with a
 * growing, jittered wait. A call that finds it down waits for it as long as the caller allows; what was under way when it went
 * down rejects. A server that owes an answer for `answerMs` and sends nothing is a half-open line, and is left.
 */
import { createHash } from 'node:crypto';
import { Redis } from 'iovalkey';
import { describe } from '../errors.ts';
import { BrokerError, type BrokerFault, type Log } from '../pipeline/ports.ts';
import type { ValkeyAddress } from './broker-valkey-address.ts';

/** What the server answers; texts are bytes. */
export type Reply = null | number | Buffer | readonly Reply[];
export type Argument = string | number | Buffer;

/** A Lua script, sent in full only where the server does not have it. */
export interface Script {
  readonly text: string;
  readonly sha1: string;
}

export interface Line {
  /** Sends a command. `waitMs`: for how long it may wait for a connection. Rejects `unavailable`, `unknown` or `refused`. */
  send(command: readonly Argument[], waitMs?: number): Promise<Reply>;
  /** The same for a script, which is one transaction. */
  run(script: Script, keys: readonly string[], values: readonly Argument[], waitMs?: number): Promise<Reply>;
  close(): void;
}

export interface LineDeps {
  /** For the log: there are two of them. */
  readonly name: 'commands' | 'rings';
  readonly address: ValkeyAddress;
  readonly log: Pick<Log, 'info' | 'warn'>;
  /** Said on every new connection before anything else; a refusal of it makes another connection. */
  readonly greeting: readonly string[];
  /** `again`: not for the first time. */
  up?(again: boolean): void;
  /** A message on a channel that the greeting subscribed to. */
  heard?(): void;
}

export interface LineSettings {
  /** Longest silence of a server that owes an answer, and longest wait for a connection. */
  readonly answerMs: number;
}

export const toScript = (text: string): Script => ({ text, sha1: createHash('sha1').update(text).digest('hex') });

const reconnectMs = { first: 100, cap: 3_000 };

/** Connects at once. */
export function createLine({ name, address, log, greeting, up, heard }: LineDeps, { answerMs }: LineSettings): Line {
  const waiting = new Set<() => void>();
  let state: 'down' | 'up' | 'closed' = 'down';
  let upBefore = false;
  let attempts = 0;
  let why: unknown = null;
  let told = '';

  const client = new Redis({ ...clientOptions(address, answerMs), retryStrategy: backOff });
  client.on('error', (error: Error) => {
    why = error;
  });
  client.on('ready', () => void greet());
  client.on('close', goDown);
  // The library goes on by itself, except where a connection failed before there was a socket.
  client.on('end', () => {
    if (state !== 'closed') setTimeout(() => void client.connect().catch(() => {}), backOff());
  });
  if (heard) client.on('message', heard);

  /** Jitter: a fleet must not come back to a server in one moment. */
  function backOff(): number {
    const waitMs = Math.min(reconnectMs.cap, reconnectMs.first * 2 ** Math.min(attempts, 10));
    attempts += 1;
    return Math.round(waitMs * (0.5 + 0.5 * Math.random()));
  }

  /**
   * AUTH and SELECT were sent by the library before this; what they were answered is an `error` of the client, and may come with
   * a greeting that was understood all the same.
   */
  async function greet(): Promise<void> {
    const { stream } = client;
    const [word = '', ...rest] = greeting;
    why = null;
    try {
      await client.callBuffer(word, ...rest);
    } catch (error) {
      why ??= error;
    }
    if (client.stream !== stream || state === 'closed') return;
    if (why !== null) {
      complain();
      leave();
    } else if (client.status === 'ready') {
      goUp();
    }
    for (const wake of [...waiting]) wake();
  }

  function goUp(): void {
    const again = upBefore;
    [state, upBefore, attempts, told] = ['up', true, 0, ''];
    if (again) log.info({ connection: name }, 'broker: connected again');
    up?.(again);
  }

  function goDown(): void {
    if (state !== 'up') return;
    state = 'down';
    log.warn({ connection: name, reason: reason() }, 'broker: the connection is lost, connecting again');
  }

  /** Once for each reason: the tries go on for ever. */
  function complain(): void {
    if (state === 'closed' || refusalOf(why, address) === null || told === reason()) return;
    told = reason();
    log.warn({ connection: name, reason: told }, 'broker: the server refuses the connection, trying again');
  }

  function leave(): void {
    goDown();
    if (state !== 'closed') client.disconnect(true);
  }

  const reason = () => (why === null ? 'it was closed' : describe(withoutSecrets(why, address)));

  async function whenUp(endMs: number): Promise<void> {
    while (state === 'down') {
      const refusal = refusalOf(why, address);
      if (refusal) throw new BrokerError('unavailable', refusal, withoutSecrets(why, address));
      const leftMs = endMs - performance.now();
      if (leftMs <= 0) {
        const cause = why === null ? undefined : withoutSecrets(why, address);
        throw new BrokerError('unavailable', `Valkey cannot be reached: ${reason()}`, cause);
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(wake, leftMs);
        function wake() {
          clearTimeout(timer);
          waiting.delete(wake);
          resolve();
        }
        waiting.add(wake);
      });
    }
    if (state === 'closed') throw new BrokerError('unavailable', 'The broker is closed');
  }

  async function send([word, ...rest]: readonly Argument[], waitMs = answerMs): Promise<Reply> {
    const endMs = performance.now() + waitMs;
    await whenUp(endMs);
    // A write that failed has ended the stream, and its end is told in a later turn: until then every call would be refused at once,
    // and whoever asks again at once would keep that turn from coming.
    if (!client.stream.writable) {
      why ??= client.stream.errored;
      goDown();
      await whenUp(endMs);
    }
    try {
      return (await client.callBuffer(String(word), ...rest)) as Reply;
    } catch (error) {
      const translated = translate(error, address);
      // The server that was the primary is none any more: its name may lead elsewhere by now.
      if (replyCode(error) === 'READONLY') leave();
      throw translated;
    }
  }

  return {
    send,
    async run({ text, sha1 }, keys, values, waitMs) {
      const rest = [keys.length, ...keys, ...values];
      try {
        return await send(['evalsha', sha1, ...rest], waitMs);
      } catch (error) {
        if (replyCode(error) !== 'NOSCRIPT') throw error;
        return await send(['eval', text, ...rest], waitMs);
      }
    },
    close() {
      if (state === 'closed') return;
      state = 'closed';
      for (const wake of [...waiting]) wake();
      client.disconnect();
    },
  };
}

function clientOptions({ host, port, database, user, password, tls }: ValkeyAddress, answerMs: number) {
  return {
    host,
    port,
    db: database,
    username: user,
    password,
    ...(tls ? { tls: {} } : {}),
    connectionName: 'skrepka',
    // Node tries the addresses of both families; the library's own fallback would stay with the wrong one.
    family: 0,
    familyFallback: { enabled: false },
    connectTimeout: answerMs,
    socketTimeout: answerMs,
    disconnectTimeout: 500,
    keepAlive: 10_000,
    // Nothing is queued and nothing repeated behind the driver's back: it knows what was sent, and says so.
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
    maxRetriesPerRequest: 0,
    // The greeting is the check. The library's asks INFO, which accounts need not be allowed to.
    enableReadyCheck: false,
  };
}

/* ------------------------------------------------------------------ errors */

/** The first word of a server's refusal (`NOGROUP`, `OOM`, …); empty for every other error. */
export function replyCode(error: unknown): string {
  const cause = error instanceof BrokerError ? error.cause : error;
  return cause instanceof Error && cause.name === 'ReplyError' ? (cause.message.split(' ', 1)[0] ?? '') : '';
}

/** A sentence for what the greeting may be answered with and no waiting of a moment mends. */
function refusalOf(error: unknown, address: ValkeyAddress): string | null {
  switch (replyCode(error)) {
    case 'WRONGPASS':
      return 'Valkey refused the user or the password of BROKER_URL';
    case 'NOAUTH':
      return 'Valkey wants a password, and BROKER_URL has none';
    case 'NOPERM':
      return 'The account of BROKER_URL may not even greet: it needs PING and SUBSCRIBE on the channel of the broker';
    case 'ERR':
      return `Valkey refuses the connection: ${withoutSecrets(error, address).message}`;
    default:
      return null;
  }
}

function translate(error: unknown, address: ValkeyAddress): BrokerError {
  const cause = withoutSecrets(error, address);
  const code = replyCode(cause);
  if (code !== '') {
    const [fault, sentence] = refusals[code] ?? ['unavailable', 'Valkey could not do it'];
    return new BrokerError(fault, `${sentence}: ${cause.message}`, cause);
  }
  if (cause.message.startsWith("Stream isn't writeable")) {
    return new BrokerError('unavailable', 'The connection to Valkey is lost', cause);
  }
  return new BrokerError('unknown', 'The connection to Valkey was lost before an answer came', cause);
}

const refusals: Readonly<Record<string, readonly [BrokerFault, string]>> = {
  OOM: ['refused', 'Valkey is full (maxmemory)'],
  WRONGTYPE: ['refused', 'A key of the broker holds something else'],
  NOPERM: ['refused', 'The account of BROKER_URL may not do what the broker needs'],
  MOVED: ['refused', 'This is a cluster, and the broker needs one primary'],
  CROSSSLOT: ['refused', 'This is a cluster, and the broker needs one primary'],
  ERR: ['refused', 'Valkey does not understand (version 7 or later is needed)'],
};

/** The library hangs the command, AUTH with its password among them, on its errors; and a server may repeat what it did not understand. */
function withoutSecrets(error: unknown, { password }: ValkeyAddress): Error {
  const original = error instanceof Error ? error : new Error(String(error));
  const text = original.message || (original as NodeJS.ErrnoException).code || original.name;
  const copy = new Error(password ? text.replaceAll(password, '***') : text);
  copy.name = original.name;
  return copy;
}
