/**
 * The users of a storm: each sends real photographs, each with a key, and does what a good client does with no answer, with
 * 409, 429 and 503: it sends again with its key. Now and then it forgets the answer, or sends twice at once. Some
 * pictures are broken, and must come to an honest end.
 */
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import sharp from 'sharp';
import { noise } from '../bytes.ts';
import { register, sha256 } from '../client.ts';
import { seeded } from '../pictures.ts';
import { until } from '../until.ts';
import type { Crew } from './crew.ts';

export type User = Awaited<ReturnType<typeof register>>;

/** A key, and what was answered to it. */
export interface Sent {
  readonly user: User;
  readonly userName: string;
  readonly key: string;
  readonly bytes: Buffer;
  readonly sha256: string;
  readonly isCorrupt: boolean;
  /** The id of each 202, in the order of their coming. */
  readonly ids: string[];
}

export interface Load {
  readonly sent: readonly Sent[];
  /** Answers that no client of a service under faults should get. */
  readonly wrongs: readonly string[];
  /** How often each status came; 0: no answer. */
  readonly answers: ReadonlyMap<number, number>;
  /** Uploads until `over` aborts, then brings to an end what it has begun. */
  run(over: AbortSignal): Promise<void>;
}

export interface LoadOptions {
  readonly seed: number;
  readonly users: number;
  /** No new key beyond so many. */
  readonly keysMax: number;
}

/** Longer than an API is ever stopped: a client that waits is there when it wakes. */
const answerMs = 20_000;
/** A key is answered within this after the storm at the latest. */
const patienceMs = 180_000;
/** Unanswered or unfinished uploads of one user. */
const openMax = 3;
/** 408: it slept on the way, and is asked to send again. */
const tryAgain = new Set([408, 409, 429, 503]);

export async function openLoad(crew: Crew, options: LoadOptions): Promise<Load> {
  const sources = await readSources();
  const sent: Sent[] = [];
  const wrongs: string[] = [];
  const answers = new Map<number, number>();
  const users = await Promise.all(
    Array.from({ length: options.users }, async (_, at) => {
      const random = seeded(options.seed * 1000 + at);
      return { name: `user ${at}`, random, user: await register(() => crew.base(random)) };
    }),
  );

  /** One answer, whatever it takes: 202 and its id, or null for an answer that is wrong. */
  async function persist(one: Sent): Promise<string | null> {
    const attempt = async () => {
      const headers = { 'idempotency-key': one.key };
      const response = await one.user
        .send(one.bytes, 'image/jpeg', headers, AbortSignal.timeout(answerMs))
        .catch(() => null);
      const body = await response?.text().catch(() => null);
      const status = body == null ? 0 : (response?.status ?? 0);
      answers.set(status, (answers.get(status) ?? 0) + 1);
      if (status === 0 || tryAgain.has(status)) return false;
      if (status === 202) return (JSON.parse(body ?? '') as { id: string }).id;
      wrongs.push(`${one.userName}, key ${one.key}: ${status} ${body}`);
      return 'wrong';
    };
    const found = await until(`key ${one.key} is answered`, attempt, { deadlineMs: patienceMs, everyMs: 250 });
    if (found === 'wrong') return null;
    one.ids.push(found);
    return found;
  }

  async function isFinished(user: User, id: string): Promise<boolean> {
    try {
      const response = await user.ask(`/v1/attachments/${id}`, { signal: AbortSignal.timeout(answerMs) });
      const shown = (await response.json()) as { state?: string };
      if (![200, 429, 503].includes(response.status)) wrongs.push(`${id}: ${response.status} ${JSON.stringify(shown)}`);
      return ['ready', 'failed'].includes(shown.state ?? '');
    } catch {
      return false;
    }
  }

  async function live({ name, random, user }: (typeof users)[number], over: AbortSignal): Promise<void> {
    const running = new Set<Promise<void>>();
    for (let number = 0; !over.aborted && sent.length < options.keysMax; number += 1) {
      const key = `${name}.${number}`;
      const isCorrupt = number % 8 === 2;
      const bytes = drawPicture(sources, random, { name: key, isCorrupt });
      const one: Sent = { user, userName: name, key, bytes, sha256: sha256(bytes), isCorrupt, ids: [] };
      sent.push(one);
      const habit = random();
      const work = follow(one, habit, over).finally(() => running.delete(work));
      running.add(work);
      if (running.size >= openMax) await Promise.race(running);
    }
    await Promise.all(running);
    if (!over.aborted) await once(over, 'abort');
  }

  /** From the first byte to the end of the job, as far as the storm lets it see that. */
  async function follow(one: Sent, habit: number, over: AbortSignal): Promise<void> {
    const [id] = await Promise.all(habit < 0.5 ? [persist(one), persist(one)] : [persist(one)]);
    if (habit > 0.85) await persist(one);
    if (id === null || id === undefined) return;
    const isOver = async () => over.aborted || (await isFinished(one.user, id));
    await until(`${id} is finished or the storm is over`, isOver, { deadlineMs: patienceMs, everyMs: 200 });
  }

  return {
    sent,
    wrongs,
    answers,
    async run(over) {
      await Promise.all(users.map((user) => live(user, over)));
    },
  };
}

interface Sources {
  readonly small: Buffer;
  readonly landscapes: readonly Buffer[];
  /** More than one part of S3, and soon rendered: a picture with a film behind its end, as telephones make them. */
  readonly large: Buffer;
}

/** Small enough for a busy machine to render each within its time: what is at stake here is not the pixels. */
async function readSources(): Promise<Sources> {
  const folder = path.resolve(import.meta.dirname, '../../fixtures/orientation');
  const small = await readFile(path.join(folder, 'small_6.jpg'));
  const numbers = [1, 2, 3, 4, 5, 6, 7, 8];
  const landscapes = await Promise.all(
    numbers.map((at) =>
      sharp(path.join(folder, `landscape_${at}.jpg`))
        .resize(480, 480, { fit: 'inside' })
        .keepMetadata()
        .toBuffer(),
    ),
  );
  return { small, landscapes, large: Buffer.concat([small, noise(6 * 1024 * 1024, 1)]) };
}

/** Every picture is another one: bytes behind its end give it a digest of its own. */
function drawPicture(
  { small, landscapes, large }: Sources,
  random: () => number,
  { name, isCorrupt }: { name: string; isCorrupt: boolean },
): Buffer {
  const kind = random();
  const landscape = landscapes[Math.floor(random() * landscapes.length)] as Buffer;
  const mark = Buffer.from(`\0${name}`);
  // The header is whole and half of the picture is not there.
  if (isCorrupt) return Buffer.concat([landscape.subarray(0, Math.floor(landscape.length / 2)), mark]);
  return Buffer.concat([kind < 0.55 ? small : kind < 0.9 ? landscape : large, mark]);
}
