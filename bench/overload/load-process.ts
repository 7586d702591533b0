/**
 * The process that makes the load, so that what it spends is not counted as ours. It plays one wish at a time and answers
 * with everything that happened; `openLoad` is its other end.
 *
 * An open loop sends at the intended moments, whether answers came or not, and tells the intended moment with each: a
 * latency that counts from the real one would leave out what a late sender makes its users wait (coordinated omission).
 */
import { type ChildProcess, fork } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { Agent, get } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { onEnd, type Scope } from '../../tests/support/on-end.ts';
import { nowMs, sendUpload, type Try } from './sending.ts';

export interface Arrival {
  /** From the beginning. */
  readonly atMs: number;
  /** Which of the tokens. */
  readonly user: number;
  readonly expect: boolean;
  /** Comes back when `Retry-After` says, until it is accepted. */
  readonly patient: boolean;
}

export interface Wish {
  readonly url: string;
  readonly tokens: readonly string[];
  readonly picture: string;
  /** Closed: so many clients, each with one upload under way until it is ready. Open: it lasts that long also when nobody comes any more. */
  readonly play:
    | { readonly kind: 'open'; readonly arrivals: readonly Arrival[]; readonly durationMs: number }
    | { readonly kind: 'closed'; readonly clients: number; readonly durationMs: number };
}

export interface Sent {
  readonly user: number;
  readonly expect: boolean;
  readonly intendedAt: number;
  /** Of the uploaded bytes. */
  readonly sha256: string;
  readonly size: number;
  /** One, unless it came back. The last is the outcome. */
  readonly tries: readonly Try[];
}

export interface Played {
  readonly beganAt: number;
  /** When the last answer had come. */
  readonly endedAt: number;
  readonly sent: readonly Sent[];
}

export interface Load {
  readonly pid: number;
  /** Rejects when its process ends. */
  play(wish: Wish): Promise<Played>;
}

export function openLoad(scope: Scope): Load {
  // Away from the terminal's Ctrl-C, which is for us; without its channel it ends.
  const child: ChildProcess = fork(fileURLToPath(import.meta.url), ['play'], { detached: true });
  const ended = once(child, 'exit');
  onEnd(scope, async () => {
    child.kill('SIGKILL');
    await ended;
  });
  return {
    pid: child.pid ?? 0,
    async play(wish) {
      child.send(wish);
      const word = await Promise.race([once(child, 'message'), ended.then(() => null)]);
      if (word === null) throw new Error('The process that makes the load ended');
      const [answer] = word as [Played | { readonly failure: string }];
      if ('failure' in answer) throw new Error(`The process that makes the load failed: ${answer.failure}`);
      return answer;
    },
  };
}

/* ----------------------------------------------------------------- in the process */

/** A second one after the sum is known, so that every upload has a digest of its own for the price of its tail. */
const tailBytes = 16;
/** Of a client in a closed loop, which is not there to be refused; how many were is told. */
const refusedMs = 100;
const patientMsMax = 180_000;
/** As long as the product lets a question wait. */
const waitSeconds = 20;

if (process.argv[2] === 'play' && process.send) {
  process.on('disconnect', () => process.exit(0));
  process.on('message', (wish: Wish) => {
    void play(wish).then(
      (played) => process.send?.(played),
      (error: Error) => process.send?.({ failure: error.stack ?? error.message }),
    );
  });
}

async function play(wish: Wish): Promise<Played> {
  const bytes = await readFile(wish.picture);
  const digest = createHash('sha256').update(bytes);
  const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY });
  const send = async (user: number, expect: boolean): Promise<{ sha256: string; size: number; last: Try }> => {
    const tail = randomBytes(tailBytes);
    const last = await sendUpload({
      url: new URL('/v1/attachments?filename=picture.jpg', wish.url),
      agent,
      headers: { authorization: `Bearer ${wish.tokens[user]}`, 'content-type': 'image/jpeg' },
      body: [bytes, tail],
      expect,
    });
    return { sha256: digest.copy().update(tail).digest('hex'), size: bytes.length + tailBytes, last };
  };
  const beganAt = nowMs();
  try {
    const sent =
      wish.play.kind === 'open'
        ? await playOpen(wish.play, beganAt, send)
        : await playClosed(wish, wish.play, { agent, beganAt, send });
    return { beganAt, endedAt: nowMs(), sent };
  } finally {
    agent.destroy();
  }
}

type Send = (user: number, expect: boolean) => Promise<{ sha256: string; size: number; last: Try }>;

async function playOpen(
  { arrivals, durationMs }: { readonly arrivals: readonly Arrival[]; readonly durationMs: number },
  beganAt: number,
  send: Send,
): Promise<readonly Sent[]> {
  const running: Promise<Sent>[] = [];
  for (const arrival of arrivals) {
    const intendedAt = beganAt + arrival.atMs;
    const earlyMs = intendedAt - nowMs();
    // A timer is a millisecond late at least; who is late sends at once, and the record tells how late.
    if (earlyMs > 1) await pause(earlyMs - 0.5);
    running.push(playArrival(arrival, intendedAt, send));
  }
  await pause(Math.max(0, beganAt + durationMs - nowMs()));
  return await Promise.all(running);
}

async function playArrival({ user, expect, patient }: Arrival, intendedAt: number, send: Send): Promise<Sent> {
  const tries: Try[] = [];
  for (;;) {
    const { sha256, size, last } = await send(user, expect);
    tries.push(last);
    const again = patient && last.status !== 202 && last.retryAfterSeconds !== null;
    if (!again || nowMs() - intendedAt > patientMsMax) return { user, expect, intendedAt, sha256, size, tries };
    await pause(last.retryAfterSeconds * 1000);
  }
}

async function playClosed(
  wish: Wish,
  { clients, durationMs }: { readonly clients: number; readonly durationMs: number },
  { agent, beganAt, send }: { readonly agent: Agent; readonly beganAt: number; readonly send: Send },
): Promise<readonly Sent[]> {
  const sent: Sent[] = [];
  const client = async (index: number) => {
    const user = index % wish.tokens.length;
    while (nowMs() - beganAt < durationMs) {
      const intendedAt = nowMs();
      const { sha256, size, last } = await send(user, false);
      sent.push({ user, expect: false, intendedAt, sha256, size, tries: [last] });
      if (last.id === null) await pause(refusedMs);
      else
        await untilEnded(
          new URL(`/v1/attachments/${last.id}?wait=${waitSeconds}`, wish.url),
          wish.tokens[user] ?? '',
          agent,
        );
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, index) => client(index)));
  return sent;
}

/** Ready or failed: which of them is looked up in the database. */
async function untilEnded(url: URL, token: string, agent: Agent): Promise<void> {
  for (;;) {
    const state = await new Promise<string>((resolve, reject) => {
      const asking = get(url, { agent, headers: { authorization: `Bearer ${token}` } }, (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (part: string) => {
          text += part;
        });
        response.once('error', reject);
        response.once('end', () => {
          if (response.statusCode === 200) resolve((JSON.parse(text) as { state: string }).state);
          else reject(new Error(`Expected 200 for an attachment, received ${response.statusCode}: ${text}`));
        });
      });
      asking.once('error', reject);
    });
    if (state === 'ready' || state === 'failed') return;
  }
}
