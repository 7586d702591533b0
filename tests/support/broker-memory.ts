/**
 * A broker in memory, for tests only: it keeps the port's promise, and breaks it on request. What a relay or a worker
 * must survive is asked for by `misbehave`: messages confirmed and lost, doubled, delayed, handed out in reverse order,
 * publishes that end in `unknown` although they were stored, or were not. `wipe`, `stop`, `start` and `cut` are the server's fate.
 *
 * Several clients of one queue: `createMemoryBroker()` is the first, `open()` makes further ones.
 */
import { type Broker, BrokerError, type Consumer, type Delivery } from '../../src/pipeline/ports.ts';

/** Each number is a count of publishes to come, used up one by one; the rest are states. */
export interface Misbehaviour {
  /** Confirmed, and lost. */
  drop?: number;
  /** Stored twice. */
  double?: number;
  /** Rejected as `unknown`, and stored all the same. */
  unknownStored?: number;
  /** Rejected as `unknown`, and not stored. */
  unknownLost?: number;
  /** From now on a published message is first handed out after so long. */
  delayMs?: number;
  /** From now on the newest message is handed out first. */
  reorder?: boolean;
}

export interface MemoryControls {
  /** Adds to what was asked before. */
  misbehave(wish: Misbehaviour): void;
  /** Forgets everything that is waiting or handed out, and tells the clients. */
  wipe(): void;
  /** Out of reach from now on; what is held is kept. */
  stop(): void;
  start(): void;
  /** A moment's loss of every connection. */
  cut(): void;
  /** Another client of the same queue. */
  open(): MemoryClient;
  /** Ids of all published messages in order, the dropped ones among them. */
  published(): readonly string[];
}

export interface MemoryClient extends Broker {
  /** Ends like a killed process: nothing is given back. */
  die(): void;
}

interface Message {
  readonly id: string;
  readonly body: Uint8Array;
  visibleAtMs: number;
  /** Of the delivery that is out; null while waiting. */
  token: symbol | null;
  deliveries: number;
}

interface Seat {
  readonly prefetch: number;
  readonly visibilityMs: number;
  readonly asking: ((delivery: Delivery | null) => void)[];
  readonly held: { message: Message; token: symbol }[];
  open: boolean;
}

interface Server {
  readonly messages: Set<Message>;
  readonly seats: Set<Seat>;
  readonly listeners: Set<() => void>;
  readonly log: string[];
  readonly faults: Required<Misbehaviour>;
  reachable: boolean;
  timer: NodeJS.Timeout | null;
}

export function createMemoryBroker(): MemoryClient & MemoryControls {
  const server: Server = {
    messages: new Set(),
    seats: new Set(),
    listeners: new Set(),
    log: [],
    faults: { drop: 0, double: 0, unknownStored: 0, unknownLost: 0, delayMs: 0, reorder: false },
    reachable: true,
    timer: null,
  };
  const tell = () => {
    for (const listener of server.listeners) queueMicrotask(listener);
  };
  return {
    ...openClient(server),
    open: () => openClient(server),
    published: () => [...server.log],
    misbehave(wish) {
      const { faults } = server;
      for (const key of ['drop', 'double', 'unknownStored', 'unknownLost'] as const) faults[key] += wish[key] ?? 0;
      faults.delayMs = wish.delayMs ?? faults.delayMs;
      faults.reorder = wish.reorder ?? faults.reorder;
    },
    wipe() {
      server.messages.clear();
      tell();
    },
    stop() {
      server.reachable = false;
    },
    start() {
      server.reachable = true;
      tell();
      handOut(server);
    },
    cut() {
      tell();
    },
  };
}

function openClient(server: Server): MemoryClient {
  const mine = { seats: new Set<Seat>(), listeners: new Set<() => void>(), closed: false };
  const leave = (giveBack: boolean) => {
    mine.closed = true;
    for (const seat of mine.seats) closeSeat(server, seat, giveBack);
    for (const listener of mine.listeners) server.listeners.delete(listener);
  };
  const reach = () => {
    if (mine.closed) throw new BrokerError('unavailable', 'the client is closed');
    if (!server.reachable) throw new BrokerError('unavailable', 'the memory broker is stopped');
  };
  return {
    prepare: async () => reach(),
    health: async () => reach(),
    async publish(id, body) {
      reach();
      if (body.length > 1024) throw new BrokerError('refused', `Expected at most 1024 bytes, received ${body.length}`);
      accept(server, id, body);
      handOut(server);
    },
    async consumer({ prefetch, visibilityMs }) {
      const seat: Seat = { prefetch, visibilityMs, asking: [], held: [], open: !mine.closed };
      server.seats.add(seat);
      mine.seats.add(seat);
      return consumerOf(server, seat);
    },
    onDisrupted(listener) {
      const own = () => listener();
      mine.listeners.add(own);
      server.listeners.add(own);
      return () => {
        server.listeners.delete(own);
      };
    },
    async depth() {
      reach();
      const now = performance.now();
      const inFlight = [...server.messages].filter((one) => one.token !== null && one.visibleAtMs > now).length;
      return { waiting: server.messages.size - inFlight, inFlight };
    },
    close: async () => leave(true),
    die: () => leave(false),
  };
}

/** Stores a published message as often as the faults say, or throws as they say. */
function accept(server: Server, id: string, body: Uint8Array): void {
  const { faults } = server;
  const use = (key: 'drop' | 'double' | 'unknownStored' | 'unknownLost') => {
    if (faults[key] === 0) return false;
    faults[key] -= 1;
    return true;
  };
  server.log.push(id);
  if (use('unknownLost')) throw new BrokerError('unknown', 'no confirmation came in time');
  if (use('drop')) return;
  const present = [...server.messages].some((one) => one.id === id);
  const copies = (present ? 0 : 1) + (use('double') ? 1 : 0);
  for (let copy = 0; copy < copies; copy += 1) {
    const visibleAtMs = performance.now() + faults.delayMs;
    server.messages.add({ id, body: Uint8Array.from(body), visibleAtMs, token: null, deliveries: 0 });
  }
  if (use('unknownStored')) {
    handOut(server);
    throw new BrokerError('unknown', 'no confirmation came in time');
  }
}

/** Gives visible messages to those who ask, then fills their prefetch, then sets the alarm for the next one. */
function handOut(server: Server): void {
  if (server.timer) clearTimeout(server.timer);
  server.timer = null;
  if (!server.reachable) return;
  for (const seat of server.seats) {
    while (seat.asking.length > 0) {
      const taken = fromHeld(seat) ?? take(server, seat);
      if (!taken) break;
      seat.asking.shift()?.(deliveryOf(server, seat, taken));
      while (seat.held.length < seat.prefetch) {
        const ahead = take(server, seat);
        if (!ahead) break;
        seat.held.push(ahead);
      }
    }
  }
  if (![...server.seats].some((seat) => seat.asking.length > 0)) return;
  const nextMs = Math.min(...[...server.messages].map((one) => one.visibleAtMs - performance.now()));
  if (Number.isFinite(nextMs)) server.timer = setTimeout(() => handOut(server), Math.max(1, nextMs));
}

/** A prefetched delivery that is still this seat's: one whose visibility ended may be out elsewhere. */
function fromHeld(seat: Seat): { message: Message; token: symbol } | null {
  const kept = seat.held.splice(0).filter(({ message, token }) => message.token === token);
  const first = kept.shift() ?? null;
  seat.held.push(...kept);
  return first;
}

function take(server: Server, seat: Seat): { message: Message; token: symbol } | null {
  const now = performance.now();
  const due = [...server.messages].filter((one) => one.visibleAtMs <= now);
  const message = server.faults.reorder ? due.at(-1) : due[0];
  if (!message) return null;
  const token = Symbol(message.id);
  message.token = token;
  message.deliveries += 1;
  message.visibleAtMs = now + seat.visibilityMs;
  return { message, token };
}

function deliveryOf(server: Server, seat: Seat, taken: { message: Message; token: symbol }): Delivery {
  const { message, token } = taken;
  // Fenced by the token: an earlier delivery cannot end its successor.
  const end = async (change: () => void) => {
    if (!server.reachable) throw new BrokerError('unavailable', 'the memory broker is stopped');
    if (message.token !== token || !server.messages.has(message)) return;
    change();
    handOut(server);
  };
  return {
    body: message.body,
    deliveries: message.deliveries,
    ack: () => end(() => server.messages.delete(message)),
    nak: (delayMs) =>
      end(() => {
        message.token = null;
        message.visibleAtMs = performance.now() + delayMs;
      }),
    extend: () =>
      end(() => {
        message.visibleAtMs = performance.now() + seat.visibilityMs;
      }),
  };
}

function consumerOf(server: Server, seat: Seat): Consumer {
  return {
    next(signal) {
      if (!seat.open || signal.aborted) return Promise.resolve(null);
      return new Promise((resolve) => {
        const answer = (delivery: Delivery | null) => {
          signal.removeEventListener('abort', abort);
          resolve(delivery);
        };
        const abort = () => {
          seat.asking.splice(seat.asking.indexOf(answer), 1);
          resolve(null);
        };
        signal.addEventListener('abort', abort, { once: true });
        seat.asking.push(answer);
        handOut(server);
      });
    },
    close: async () => closeSeat(server, seat, true),
  };
}

function closeSeat(server: Server, seat: Seat, giveBack: boolean): void {
  seat.open = false;
  server.seats.delete(seat);
  for (const answer of seat.asking.splice(0)) answer(null);
  for (const { message, token } of seat.held.splice(0)) {
    if (!giveBack || message.token !== token) continue;
    message.token = null;
    message.deliveries -= 1;
    message.visibleAtMs = performance.now();
  }
  handOut(server);
}
