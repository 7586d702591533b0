/**
 * The connection to NATS, and the only file that imports its packages: what the driver asks of a server, in the driver's
 * words and errors.
 *
 * Life: nothing → the first call connects → up → down, when the server or the network goes → up again, tried for ever with
 * a growing, jittered wait. While it is down every call rejects at once, and what was under way when it went down rejects
 * as well: waiting for answers that cannot come would only hold up the caller's own back-off.
 */
import { JetStreamApiError, type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import {
  ConnectionError,
  connect,
  createInbox,
  headers,
  type Msg,
  type NatsConnection,
  nanos,
  PermissionViolationError,
  RequestError,
  type Subscription,
  TimeoutError,
  type TlsOptions,
} from '@nats-io/transport-node';
import { BrokerError, type BrokerFault, type Log } from '../pipeline/ports.ts';
import { type NatsAddress, parseNatsUrl, serverIdentity } from './broker-nats-address.ts';

export interface NatsSettings {
  /** Longest wait for an answer of the JetStream API, and for a connection. */
  readonly requestMs: number;
  /** How often the connection is tried; two tries without an answer end it. */
  readonly pingMs: number;
}

/** A message as it was handed over. `reply` is where its end is told. */
export interface Message {
  readonly body: Uint8Array;
  readonly deliveries: number;
  readonly reply: string;
}

/** What a pull ends with: a message, or the status that the server gave instead (408 is its time-out). */
export type Heard = { readonly message: Message } | { readonly code: number; readonly text: string };

export interface Pull {
  /** Takes the pull back. What is under way already is still heard before this resolves. Never rejects. */
  cancel(): Promise<void>;
}

export interface Nats {
  isUp(): boolean;
  /** `up(true)` tells that it was up before. Answers how to stop listening. */
  listen(listener: { up(again: boolean): void; down(): void }): () => void;
  /** Calls the JetStream API. Rejects `refused` when the answer is a no, else `unavailable`; `apiCode` tells what it said. */
  manage<T>(what: string, call: (api: JetStreamManager) => Promise<T>): Promise<T>;
  /** Resolves when the stream has it. Rejects `unavailable`, `unknown` or `refused`. */
  publish(message: { subject: string; id: string; body: Uint8Array; timeoutMs: number }): Promise<{ sequence: number }>;
  /** Ends or extends a delivery, and resolves when the server says that it has done so. */
  tell(reply: string, word: string): Promise<void>;
  /** Asks a durable consumer for one message. `hear` is called once at most. Throws `unavailable` while down. */
  pull(ask: { stream: string; durable: string; expiresMs: number }, hear: (heard: Heard) => void): Pull;
  close(): Promise<void>;
}

interface Wire {
  readonly connection: NatsConnection;
  readonly api: JetStreamManager;
  up: boolean;
}

const reconnectMs = { first: 100, cap: 3_000 };

/** Throws `StartError` when `url` is none of NATS. Connects at the first call. */
export function createNats(
  { url, log }: { url: string; log: Pick<Log, 'info' | 'warn'> },
  settings: NatsSettings,
): Nats {
  const address = parseNatsUrl(url);
  const listeners = new Set<{ up(again: boolean): void; down(): void }>();
  /** Those who wait for an answer over the present connection. */
  const waiting = new Set<(error: BrokerError) => void>();
  let opening: Promise<Wire> | null = null;
  let wire: Wire | null = null;
  let upBefore = false;
  let closed = false;

  function goUp(made: Wire): void {
    made.up = true;
    const again = upBefore;
    upBefore = true;
    if (again) log.info({ server: made.connection.getServer() }, 'broker: connected again');
    for (const { up } of [...listeners]) up(again);
  }

  function goDown(made: Wire): void {
    if (!made.up) return;
    made.up = false;
    if (!closed) log.warn({}, 'broker: the connection is lost, connecting again');
    for (const reject of [...waiting])
      reject(new BrokerError('unknown', 'The connection was lost before an answer came'));
    for (const { down } of [...listeners]) down();
  }

  async function open(): Promise<Wire> {
    let attempts = 0;
    const connection = await connect({
      ...connectOptions(address, settings),
      reconnectDelayHandler: () => {
        const waitMs = Math.min(reconnectMs.cap, reconnectMs.first * 2 ** attempts);
        // Jitter: a fleet must not come back to a server in one moment.
        return Math.round(waitMs * (0.5 + 0.5 * Math.random()));
      },
    });
    const statuses = connection.status();
    const api = await jetstreamManager(connection, { checkAPI: false, timeout: settings.requestMs });
    const made: Wire = { connection, api, up: false };
    void (async () => {
      for await (const status of statuses) {
        if (status.type === 'reconnecting') attempts = Math.min(attempts + 1, 10);
        if (status.type === 'disconnect') goDown(made);
        if (status.type === 'reconnect') {
          attempts = 0;
          goUp(made);
        }
        if (status.type === 'error') log.warn({ reason: status.error.message }, 'broker: the server complains');
      }
    })();
    // It ends by itself only where the library gives up; the next call then starts anew.
    void connection.closed().then(() => {
      goDown(made);
      if (wire === made) [wire, opening] = [null, null];
    });
    wire = made;
    if (closed) void connection.close();
    else goUp(made);
    return made;
  }

  async function use(): Promise<Wire> {
    if (closed) throw new BrokerError('unavailable', 'The broker is closed');
    opening ??= open().catch((error: unknown) => {
      opening = null;
      throw brokerError(error, 'No NATS server can be reached');
    });
    const made = await opening;
    if (!made.up) throw new BrokerError('unavailable', 'The connection to NATS is lost and being made anew');
    return made;
  }

  /** A set instead of a race with one long-lived promise: such a promise would keep every race that it ever took part in. */
  function untilLost<T>(answer: Promise<T>): Promise<T> {
    const { promise: lost, reject } = Promise.withResolvers<never>();
    waiting.add(reject);
    return Promise.race([answer, lost]).finally(() => waiting.delete(reject));
  }

  return {
    isUp: () => wire?.up === true,
    listen(listener) {
      listeners.add(listener);
      return () => {
        listeners.delete(listener);
      };
    },
    async manage(what, call) {
      const { api } = await use();
      try {
        return await untilLost(call(api));
      } catch (error) {
        const translated = brokerError(error, `NATS could not ${what}`);
        throw translated.fault === 'refused' ? translated : new BrokerError('unavailable', translated.message, error);
      }
    },
    async publish({ subject, id, body, timeoutMs }) {
      const startedAt = performance.now();
      const { connection } = await inTime(use(), timeoutMs);
      const fields = headers();
      fields.set('Nats-Msg-Id', id);
      const timeout = Math.max(1, Math.round(timeoutMs - (performance.now() - startedAt)));
      try {
        return parseConfirmation(await untilLost(connection.request(subject, body, { timeout, headers: fields })));
      } catch (error) {
        throw brokerError(error, 'The message was not confirmed');
      }
    },
    async tell(reply, word) {
      const { connection } = await use();
      try {
        await untilLost(connection.request(reply, word, { timeout: settings.requestMs }));
      } catch (error) {
        throw brokerError(error, 'The end of a delivery was not confirmed');
      }
    },
    pull({ stream, durable, expiresMs }, hear) {
      if (!wire?.up) throw new BrokerError('unavailable', 'There is no connection to NATS');
      const { connection } = wire;
      const inbox = createInbox();
      const subscription = connection.subscribe(inbox, { callback: onlyOnce(inbox, hear, () => subscription) });
      const ask = JSON.stringify({ batch: 1, expires: nanos(expiresMs) });
      connection.publish(`$JS.API.CONSUMER.MSG.NEXT.${stream}.${durable}`, ask, { reply: inbox });
      return {
        // Drained and not only unsubscribed: a message that is under way would be held until its visibility ends.
        cancel: async () => (wire?.up ? await subscription.drain().catch(() => {}) : subscription.unsubscribe()),
      };
    },
    async close() {
      closed = true;
      // A connection that is being made now is closed by who makes it.
      await wire?.connection.close();
    },
  };
}

function connectOptions({ servers, user, password, token, tls }: NatsAddress, { requestMs, pingMs }: NatsSettings) {
  return {
    name: 'skrepka',
    servers: [...servers],
    ...(token === undefined ? { user, pass: password } : { token }),
    ...(tls ? { tls: tlsOptions(servers) } : {}),
    timeout: requestMs,
    pingInterval: pingMs,
    maxReconnectAttempts: -1,
    // A password may be changed on the server before it is changed here, or the other way round.
    ignoreAuthErrorAbort: true,
    noAsyncTraces: true,
  };
}

/** Node's check of the certificate is no option of the library, but reaches Node all the same. */
function tlsOptions(servers: readonly string[]): TlsOptions {
  const options = { handshakeFirst: false, checkServerIdentity: serverIdentity(servers) };
  return options;
}

/** Passes on the one message or status that ends a pull, and lets go of its inbox. */
function onlyOnce(inbox: string, hear: (heard: Heard) => void, subscription: () => Subscription) {
  let over = false;
  return (error: Error | null, received: Msg) => {
    const heard = error ? { code: 0, text: error.message } : parseHeard(received, inbox);
    if (over || heard === null) return;
    over = true;
    if (!error && !subscription().isDraining()) subscription().unsubscribe();
    hear(heard);
  };
}

/** Null for a heartbeat, which ends nothing. */
function parseHeard(received: Msg, inbox: string): Heard | null {
  const code = received.headers?.code ?? 0;
  // Statuses come to the inbox itself, messages under the subject of the stream.
  if (received.subject === inbox && code > 0) {
    return code === 100 ? null : { code, text: received.headers?.description ?? '' };
  }
  const reply = received.reply ?? '';
  return { message: { body: received.data, deliveries: deliveriesIn(reply), reply } };
}

/**
 * Which hand-over a message is, from the subject of its ack: `$JS.ACK.<stream>.<consumer>.<deliveries>…` of 9 tokens, with
 * domain and account in front of the stream where there are more (ADR-15).
 */
function deliveriesIn(reply: string): number {
  const tokens = reply.split('.');
  return Math.max(1, Number(tokens[tokens.length === 9 ? 4 : 6]) || 1);
}

function parseConfirmation(received: Msg): { sequence: number } {
  const answer = received.json<{ error?: { code: number; err_code: number; description: string }; seq?: number }>();
  if (answer.error) throw new JetStreamApiError(answer.error);
  if (typeof answer.seq !== 'number') throw new ConnectionError('what answered is no stream');
  return { sequence: answer.seq };
}

/** The number by which JetStream names the refusal inside `error`; 0 when it is none. */
export function apiCode(error: unknown): number {
  const cause = error instanceof BrokerError ? error.cause : error;
  return cause instanceof JetStreamApiError ? cause.code : 0;
}

/** The library's errors name subjects and hosts, never credentials, so they may be kept as the cause. */
function brokerError(error: unknown, what: string): BrokerError {
  if (error instanceof BrokerError) return error;
  const { fault, why } = meaning(error);
  return new BrokerError(fault, `${what}: ${why}`, error);
}

/** A cluster that is still forming, or has too few servers for the replicas. */
const noPeers = 10_005;

function meaning(error: unknown): { fault: BrokerFault; why: string } {
  if (error instanceof TimeoutError) return { fault: 'unknown', why: 'no answer came in time' };
  const cause = error instanceof RequestError && error.cause instanceof Error ? error.cause : error;
  if (cause instanceof PermissionViolationError) {
    return { fault: 'refused', why: `this account may not use the subject ${cause.subject}` };
  }
  if (isNoResponders(error)) return { fault: 'unavailable', why: 'JetStream does not answer (is it enabled?)' };
  if (cause instanceof JetStreamApiError) {
    // A full stream is a 503 by its status, like an outage; only the description tells them apart.
    const full = /maximum (messages|bytes)/.test(cause.message);
    // Servers that have not found each other yet say so with a 400, which usually means a request that will never do.
    const refused = full || (cause.status === 400 && cause.code !== noPeers);
    return { fault: refused ? 'refused' : 'unavailable', why: cause.message };
  }
  return { fault: 'unavailable', why: error instanceof Error ? error.message : String(error) };
}

/** The jetstream package wraps the request's error once more. */
function isNoResponders(error: unknown): boolean {
  for (let at = error, depth = 0; at instanceof Error && depth < 3; at = at.cause, depth += 1) {
    if (at instanceof RequestError && at.isNoResponders()) return true;
  }
  return false;
}

async function inTime<T>(work: Promise<T>, ms: number): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new BrokerError('unavailable', `There was no connection within ${ms} ms`)), ms);
  return await Promise.race([work, promise]).finally(() => clearTimeout(timer));
}
