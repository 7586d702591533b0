/**
 * The queue of the broker `valkey:` as it lies on the server: its keys, and every script that touches them.
 *
 * `<name>:rings` is a stream with one consumer group, `<name>:epoch` a text that changes whenever the stream is made anew, and
 * `<name>:rings` also the channel on which sleepers are woken. What is out or held back is pending in the group, and its
 * deadline is its idle time: an entry can be taken when it has been idle for `farMs`, so one taken for 60 s is marked as idle for
 * `farMs` − 60 s already, and one given back at once for all of it. The server's clock alone counts, every entry has a
 * deadline of its own, and a consumer's death needs nobody who notices it.
 *
 * Each verb is one script, hence one transaction. The queue may vanish at any time (FLUSHALL, an empty disk): a verb that finds
 * no group makes it anew and goes on.
 */
import { randomUUID } from 'node:crypto';
import { describe } from '../errors.ts';
import { BrokerError, type Log } from '../pipeline/ports.ts';
import { type Argument, type Line, type Reply, replyCode, type Script, toScript } from './broker-valkey-connection.ts';

/** Names one hand-over: the entry, who has it, and for which time it was handed out. Every end compares all three. */
export interface Holding {
  readonly id: string;
  readonly consumer: string;
  readonly deliveries: number;
}

export interface Taken extends Holding {
  readonly body: Uint8Array;
}

export interface Queue {
  /** Makes or verifies the keys, and answers which queue is there. Rejects `refused` with one sentence when something else is. */
  prepare(): Promise<string>;
  /** Resolves when the server has it. `waitMs`: for how long it may wait for a connection. */
  add(body: Uint8Array, waitMs: number): Promise<void>;
  /** Waiting or expired → out for `visibilityMs`. `nextMs`: until another entry can be taken, as far as known now. */
  take(consumer: string, limit: number, visibilityMs: number): Promise<{ taken: readonly Taken[]; nextMs: number }>;
  /** Out → gone. */
  remove(holding: Holding): Promise<void>;
  /** Out → waiting, to be taken after `delayMs`. */
  release(holding: Holding, delayMs: number): Promise<void>;
  /** Out → out for `visibilityMs` from now on. */
  extend(holding: Holding, visibilityMs: number): Promise<void>;
  /** Taken and never handed out → waiting, as if it had not been taken. */
  giveBack(holdings: readonly Holding[]): Promise<void>;
  /** Forgets the name of a consumer that holds nothing. */
  leave(consumer: string): Promise<void>;
  /** Forgets the names of consumers that hold nothing and have not asked for `idleMs`. */
  sweep(idleMs: number): Promise<void>;
  depth(): Promise<{ waiting: number; inFlight: number }>;
  /** Which queue is there. It is made if there is none. */
  look(): Promise<string>;
}

/** Longer than any visibility and any delay. */
const farMs = 7 * 24 * 3_600_000;

export function createQueue({ line, log }: { line: Line; log: Pick<Log, 'warn'> }, name: string): Queue {
  const keys = [`${name}:rings`, `${name}:epoch`];

  async function prepare(): Promise<string> {
    const epoch = await line.run(prepareScript, keys, [name, randomUUID()]).catch((error: unknown) => {
      if (replyCode(error) !== 'FOREIGN') throw error;
      throw new BrokerError('refused', foreign(keys, describe(error)), error);
    });
    return text(epoch);
  }

  async function run(script: Script, values: readonly Argument[], waitMs?: number): Promise<Reply> {
    try {
      return await line.run(script, keys, [name, ...values], waitMs);
    } catch (error) {
      if (replyCode(error) !== 'NOGROUP') throw error;
      log.warn({ stream: keys[0] }, 'broker: the stream is gone; making it anew');
      await prepare();
      return await line.run(script, keys, [name, ...values], waitMs);
    }
  }

  const fence = ({ id, consumer, deliveries }: Holding) => [id, consumer, deliveries];
  const wholeMs = (ms: number) => Math.min(farMs, Math.max(0, Math.round(ms)));

  return {
    prepare,
    async add(body, waitMs) {
      await run(addScript, [Buffer.from(body)], waitMs);
    },
    async take(consumer, limit, visibilityMs) {
      const reply = await run(takeScript, [consumer, limit, wholeMs(visibilityMs), farMs]);
      const [nextMs, ...entries] = list(reply);
      return { taken: entries.map((entry) => toTaken(entry, consumer)), nextMs: Number(nextMs) };
    },
    async remove(holding) {
      await run(removeScript, fence(holding));
    },
    async release(holding, delayMs) {
      await run(releaseScript, [...fence(holding), farMs - wholeMs(delayMs)]);
    },
    async extend(holding, visibilityMs) {
      await run(extendScript, [...fence(holding), farMs - wholeMs(visibilityMs)]);
    },
    async giveBack(holdings) {
      await run(giveBackScript, [farMs, ...holdings.flatMap(fence)]);
    },
    async leave(consumer) {
      await run(leaveScript, [consumer]);
    },
    async sweep(idleMs) {
      await run(sweepScript, [idleMs]);
    },
    async depth() {
      const [waiting, inFlight] = list(await run(depthScript, [farMs]));
      return { waiting: Number(waiting), inFlight: Number(inFlight) };
    },
    async look() {
      return text(await run(lookScript, []));
    },
  };
}

const foreign = (keys: readonly string[], what: string) =>
  `Valkey holds something else under ${keys.join(' or ')} (${what.replace(/^.*FOREIGN /, '')}); choose another BROKER_NAME, or delete these keys.`;

const list = (reply: Reply): readonly Reply[] => (Array.isArray(reply) ? reply : []);
const text = (reply: Reply | undefined): string => (Buffer.isBuffer(reply) ? reply.toString() : '');

function toTaken(entry: Reply, consumer: string): Taken {
  const [id, deliveries, body] = list(entry);
  return {
    id: text(id),
    consumer,
    deliveries: Number(deliveries),
    body: Buffer.isBuffer(body) ? body : Buffer.alloc(0),
  };
}

/* ----------------------------------------------------------------- scripts */

/** The owner of what was given back and has not been taken again. */
const nobody = 'nobody';

/** Of every script: the keys, the group, and whether a hand-over is still the one that its holder thinks of. */
const opening = `
local rings, epoch, group = KEYS[1], KEYS[2], ARGV[1]
local function held(id, consumer, deliveries)
  local pending = redis.call('XPENDING', rings, group, id, id, 1)[1]
  return pending and pending[2] == consumer and pending[4] == tonumber(deliveries)
end
`;

const script = (body: string) => toScript(opening + body);

/** A stream with entries, but neither our group nor our epoch, is somebody else's: acking would delete from it. */
const prepareScript = script(`
for key, kind in pairs({ [rings] = 'stream', [epoch] = 'string' }) do
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    return redis.error_reply('FOREIGN ' .. key .. ' is a ' .. found .. ', not a ' .. kind)
  end
end
local grouped = false
if redis.call('EXISTS', rings) == 1 then
  for _, one in ipairs(redis.call('XINFO', 'GROUPS', rings)) do
    grouped = grouped or one[2] == group
  end
  if not grouped and redis.call('EXISTS', epoch) == 0 and redis.call('XLEN', rings) > 0 then
    return redis.error_reply('FOREIGN ' .. rings .. ' is a stream without the group ' .. group)
  end
end
if not grouped then
  redis.call('XGROUP', 'CREATE', rings, group, '0', 'MKSTREAM')
end
if not grouped or redis.call('EXISTS', epoch) == 0 then
  redis.call('SET', epoch, ARGV[2])
end
return redis.call('GET', epoch)
`);

const addScript = script(`
if not redis.call('XADD', rings, 'NOMKSTREAM', '*', 'body', ARGV[2]) then
  return redis.error_reply('NOGROUP the stream is gone')
end
redis.call('PUBLISH', rings, '')
return 1
`);

/** First what is due again, then what is new. XCLAIM and not XAUTOCLAIM, because only the former sets the idle time. */
const takeScript = script(`
local consumer, limit, visible, far = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local taken = {}
local function body(fields)
  for at = 1, #fields, 2 do
    if fields[at] == 'body' then return fields[at + 1] end
  end
  return ''
end
for _, due in ipairs(redis.call('XPENDING', rings, group, 'IDLE', far, '-', '+', limit)) do
  -- An entry that somebody deleted from the stream is no longer pending after this, and not in the answer.
  local entry = redis.call('XCLAIM', rings, group, consumer, 0, due[1], 'IDLE', far - visible)[1]
  if entry then table.insert(taken, { entry[1], due[4] + 1, body(entry[2]) }) end
end
if #taken < limit then
  local streams = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', limit - #taken, 'STREAMS', rings, '>')
  for _, entry in ipairs(streams and streams[1][2] or {}) do
    redis.call('XCLAIM', rings, group, consumer, 0, entry[1], 'IDLE', far - visible, 'JUSTID')
    table.insert(taken, { entry[1], 1, body(entry[2]) })
  end
end
local next = far
if #taken < limit then
  for _, pending in ipairs(redis.call('XPENDING', rings, group, '-', '+', 1000)) do
    next = math.min(next, math.max(0, far - pending[3]))
  end
end
return { next, unpack(taken) }
`);

const removeScript = script(`
if held(ARGV[2], ARGV[3], ARGV[4]) then
  redis.call('XACK', rings, group, ARGV[2])
  redis.call('XDEL', rings, ARGV[2])
end
return 1
`);

const releaseScript = script(`
if held(ARGV[2], ARGV[3], ARGV[4]) then
  redis.call('XCLAIM', rings, group, '${nobody}', 0, ARGV[2], 'IDLE', ARGV[5], 'JUSTID')
  redis.call('PUBLISH', rings, '')
end
return 1
`);

const extendScript = script(`
if held(ARGV[2], ARGV[3], ARGV[4]) then
  redis.call('XCLAIM', rings, group, ARGV[3], 0, ARGV[2], 'IDLE', ARGV[5], 'JUSTID')
end
return 1
`);

const giveBackScript = script(`
for at = 3, #ARGV, 3 do
  local id, deliveries = ARGV[at], tonumber(ARGV[at + 2])
  if held(id, ARGV[at + 1], deliveries) then
    redis.call('XCLAIM', rings, group, '${nobody}', 0, id, 'IDLE', ARGV[2], 'RETRYCOUNT', deliveries - 1, 'JUSTID')
  end
end
redis.call('PUBLISH', rings, '')
return 1
`);

/** DELCONSUMER would take what is pending with it, for ever. */
const leaveScript = script(`
if #redis.call('XPENDING', rings, group, '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', rings, group, ARGV[2])
end
return 1
`);

const sweepScript = script(`
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', rings, group)) do
  local about = {}
  for at = 1, #consumer, 2 do about[consumer[at]] = consumer[at + 1] end
  if about.pending == 0 and about.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', rings, group, about.name)
  end
end
return 1
`);

/** What was acked is deleted, so the stream holds what is pending and what is new, and nothing else. */
const depthScript = script(`
local pending = redis.call('XPENDING', rings, group)
local out = pending[1]
for _, owner in ipairs(pending[4] or {}) do
  if owner[1] == '${nobody}' then out = out - tonumber(owner[2]) end
end
for _, due in ipairs(redis.call('XPENDING', rings, group, 'IDLE', ARGV[2], '-', '+', 1000)) do
  if due[2] ~= '${nobody}' then out = out - 1 end
end
return { math.max(0, redis.call('XLEN', rings) - out), out }
`);

const lookScript = script(`
if redis.call('EXISTS', rings, epoch) < 2 then return redis.error_reply('NOGROUP the stream is gone') end
return redis.call('GET', epoch)
`);
