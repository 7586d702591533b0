/**
 * What becomes of accepted pictures when a process is killed: one SIGKILL of each, while pictures arrive and are worked on, the process
 * started again a second later.
 *
 * Accepted is what was answered with 202. Lost is what of it is not ready when all others have been for a while, nobody having sent
 * it again. Late is how long the last one took after the last start.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { available, installCommand } from '../../tests/support/engines/valkey.ts';
import type { Scope } from '../../tests/support/on-end.ts';
import { sendAll } from '../arrivals.ts';
import { missingPictures, type Picture, pictures } from '../pictures.ts';
import { openProduct } from '../product.ts';
import { once } from '../references/uploads.ts';
import type { Bound, Figures, Row } from '../row.ts';
import { withScope } from '../scope.ts';
import { openTutorial, type TutorialPart } from '../tutorial.ts';

const ours = 'Skrepka';
const tutorial = 'Express, multer, BullMQ, sharp';
const inMemory = 'the same with Redis as its image starts it';
const everyMs = 150;
/** As a supervisor waits. */
const beforeStartMs = 1_000;
/**
 * A worker of BullMQ finds the jobs of a dead one within a minute, ours within a lease of 45 s: when nothing more became ready for so
 * long, nothing more will.
 */
const patienceMs = 120_000;

const oursParts = ['api', 'workers', 'postgres'] as const;
const theirParts = ['api', 'worker', 'redis', 'postgres'] as const satisfies readonly TutorialPart[];

export const row: Row = {
  name: 'kills',
  title: 'Accepted and lost under one SIGKILL of each process',
  about:
    'Pictures arrive all the time; one process after the other is killed in the middle of its work and started again a second later; nobody sends a picture ' +
    'again. Lost is what was answered with 202 and is not ready when two minutes have brought nothing more. The reference is that of the row `whole`, whose Redis keeps a file as ' +
    'BullMQ advises; Redis as its image starts it, which tutorials do, keeps none and is killed once as well.',
  rounds: 1,
  missing: () => missingPictures() ?? (available() ? null : installCommand),
  async open(_scope, { quick, say }) {
    const mix = await pictures(say);
    const work = mix.slice(0, quick ? 8 : 24);
    const kills = quick
      ? [killsOf(tutorial, ['api'], openTheirs('file')), killsOf(ours, ['api'], openOurs)]
      : [
          killsOf(tutorial, theirParts, openTheirs('file')),
          killsOf(inMemory, ['redis'], openTheirs('memory')),
          killsOf(ours, oursParts, openOurs),
        ];
    return {
      sides: kills.map(({ name, run }) => ({ name, run: () => run(work, say) })),
      ratios: [],
      bounds: kills.flatMap(boundsOf),
    };
  },
};

interface Kills {
  readonly name: string;
  readonly parts: readonly string[];
  run(work: readonly Picture[], say: (line: string) => void): Promise<Figures>;
}

function killsOf<Part extends string>(
  name: string,
  parts: readonly Part[],
  open: (scope: Scope) => Promise<Victim<Part>>,
): Kills {
  const run: Kills['run'] = (work, say) => withScope(async (scope) => strikeAll(await open(scope), parts, work, say));
  return { name, parts, run };
}

function boundsOf({ name: side, parts }: Kills): Bound[] {
  const count = (what: string, figure: string): Bound => ({ name: `${side}: ${what}`, side, figure, unit: 'count' });
  const goal = side === ours ? { goal: { atMost: 0 } } : {};
  return [
    count('accepted', 'accepted'),
    { ...count('lost', 'lost'), ...goal },
    ...parts.map((part) => count(`lost when ${part} was killed`, `lost ${part}`)),
    { name: `${side}: the last one was ready after the last start`, side, figure: 'lateMs', unit: 'ms' },
  ];
}

interface Victim<Part extends string> {
  readonly databaseUrl: string;
  /** Where its uploads are recorded, with `id` and `state`. */
  readonly table: 'uploads' | 'attachments';
  upload(picture: Picture): Promise<string | null>;
  kill(part: Part): Promise<void>;
  start(part: Part): Promise<void>;
}

function openTheirs(redis: 'file' | 'memory') {
  return async (scope: Scope): Promise<Victim<TutorialPart>> => {
    const { databaseUrl, upload, kill, start } = await openTutorial(scope, { redis });
    return { databaseUrl, table: 'uploads', upload, kill, start };
  };
}

async function openOurs(scope: Scope): Promise<Victim<(typeof oursParts)[number]>> {
  const product = await openProduct(scope);
  const user = await product.user();
  return {
    databaseUrl: product.databaseUrl,
    table: 'attachments',
    async upload({ bytes, contentType, name }) {
      const { id } = await user.upload(bytes, { contentType, fileName: name, multipart: true });
      return id || null;
    },
    kill: product.kill,
    start: product.start,
  };
}

async function strikeAll<Part extends string>(
  victim: Victim<Part>,
  parts: readonly Part[],
  work: readonly Picture[],
  say: (line: string) => void,
): Promise<Figures> {
  const accepted = new Map<Part, readonly string[]>();
  for (const part of parts) {
    const [answers] = await Promise.all([
      sendAll(work, everyMs, victim.upload),
      strike(victim, part, (work.length * everyMs) / 2),
    ]);
    accepted.set(
      part,
      answers.flatMap(({ id }) => id ?? []),
    );
    say(`${part} was killed: ${accepted.get(part)?.length} of ${work.length} accepted`);
  }
  const all = [...accepted.values()].flat();
  const startMs = performance.now();
  let ready = await readyOf(victim, all);
  let lastMs = performance.now();
  while (ready.size < all.length && performance.now() - lastMs < patienceMs) {
    await pause(250);
    const now = await readyOf(victim, all);
    if (now.size > ready.size) lastMs = performance.now();
    ready = now;
  }
  const lateMs = lastMs - startMs;
  const lost = (ids: readonly string[]) => ids.filter((id) => !ready.has(id)).length;
  return {
    accepted: all.length,
    lost: lost(all),
    lateMs,
    ...Object.fromEntries([...accepted].map(([part, ids]) => [`lost ${part}`, lost(ids)])),
  };
}

/** In the middle of the uploads, so that the process is in the middle of something. */
async function strike<Part extends string>(victim: Victim<Part>, part: Part, beforeKillMs: number): Promise<void> {
  await pause(beforeKillMs);
  await victim.kill(part);
  await pause(beforeStartMs);
  await victim.start(part);
}

function readyOf({ databaseUrl, table }: Victim<never>, ids: readonly string[]): Promise<ReadonlySet<string>> {
  return once(databaseUrl, async (client) => {
    const { rows } = await client.query<{ id: string }>(
      `select id from ${table} where id = any ($1) and state = 'ready'`,
      [ids],
    );
    return new Set(rows.map(({ id }) => id));
  });
}
