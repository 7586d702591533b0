/**
 * A gate before costly work: a few pass at once, some wait in line for a bounded time, the rest is sent away at once.
 *
 * Password hashing needs it: libuv has four threads for files, names and scrypt alike, and each hash takes 32 MiB. And
 * anybody may ask for one, so the line is shared among those who ask: they take turns by where they come from, and when it
 * is full, whoever has fewest in it takes the place of the last of whoever has most. Who has
 * one address, or one network of IPv6, can fill the line and keeps nobody else out; whoever has more of them than the line has places,
 * as a whole /48 with its 65,536 networks, still can. A limit for each would do less: behind a proxy everybody comes from one address.
 */
import { SkrepkaError } from '../errors.ts';
import type { Clock } from '../pipeline/ports.ts';

export interface Gate {
  /**
   * Runs `work` when its turn comes: first come, first served among those of one `from`, and in turns between them. Rejects
   * `unavailable` when the line is full, its place goes to another or the wait gets too long; else as `work` does.
   */
  pass<T>(from: string, work: () => Promise<T>): Promise<T>;
}

export interface GateSettings {
  readonly passingMax: number;
  readonly waitingMax: number;
  /** Longest wait in line. */
  readonly waitMsMax: number;
  /** Told to those who are sent away. */
  readonly retryAfterSeconds: number;
}

interface Waiter {
  /** Ends the wait: with its turn, or with why there will be none. */
  end(why: string | null): void;
}

export function createGate({ clock }: { clock: Pick<Clock, 'sleep'> }, settings: GateSettings): Gate {
  /** By where they come from; the first key has the next turn. */
  const line = new Map<string, Waiter[]>();
  let waiting = 0;
  let passing = 0;

  /** The place goes over without being counted down in between, so that no newcomer can slip in. */
  function leave(): void {
    const [next] = line;
    if (next === undefined) {
      passing -= 1;
      return;
    }
    const [from, [first]] = next;
    if (first === undefined) throw new Error('Expected somebody in the line, received an empty one');
    remove(from, first);
    const rest = line.get(from);
    if (rest !== undefined) {
      line.delete(from);
      line.set(from, rest);
    }
    first.end(null);
  }

  function remove(from: string, waiter: Waiter): boolean {
    const all = line.get(from) ?? [];
    const others = all.filter((one) => one !== waiter);
    if (others.length === all.length) return false;
    waiting -= 1;
    if (others.length === 0) line.delete(from);
    else line.set(from, others);
    return true;
  }

  /** False when the newcomer would have as much of the line as whoever has most. */
  function makeRoom(from: string): boolean {
    const share = (line.get(from)?.length ?? 0) + 1;
    const [most, longest] = [...line].reduce((one, other) => (other[1].length > one[1].length ? other : one));
    const last = longest.at(-1);
    if (share >= longest.length || last === undefined) return false;
    remove(most, last);
    last.end('Its place in the line went to another');
    return true;
  }

  async function stand(from: string): Promise<void> {
    if (waiting >= settings.waitingMax && !makeRoom(from)) throw sentAway('The line is full');
    const ended = new AbortController();
    const why = await new Promise<string | null>((resolve) => {
      const waiter: Waiter = { end: resolve };
      line.set(from, [...(line.get(from) ?? []), waiter]);
      waiting += 1;
      void clock.sleep(settings.waitMsMax, ended.signal).then(() => {
        if (remove(from, waiter)) waiter.end('The wait in line was too long');
      });
    });
    ended.abort();
    if (why !== null) throw sentAway(why);
  }

  const sentAway = (log: string) =>
    new SkrepkaError('unavailable', { retryAfterSeconds: settings.retryAfterSeconds, log });

  return {
    async pass(from, work) {
      if (passing < settings.passingMax) passing += 1;
      else await stand(from);
      try {
        return await work();
      } finally {
        leave();
      }
    },
  };
}

/**
 * Where a request comes from, as far as one sender goes: an address of IPv4, or a network of IPv6, of whose 2^64 addresses
 * (RFC 4291, section 2.5.1) a single machine may use as many as it likes.
 * Without an address, as the system gives none of a connection that was reset, it is one place for all of those.
 */
export function networkOf(address: string | undefined): string {
  if (address === undefined) return 'unknown';
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return mapped;
  if (!address.includes(':')) return address;
  const [head = '', tail] = address.split('::');
  const groups = head === '' ? [] : head.split(':');
  const rest = tail === undefined || tail === '' ? [] : tail.split(':');
  const zeros = Array.from({ length: Math.max(0, 8 - groups.length - rest.length) }, () => '0');
  return [...groups, ...zeros, ...rest].slice(0, 4).join(':');
}
