/**
 * What strikes in a storm, and the schedule: decks of strikes, shuffled by the seed, played side by side. The seed decides what
 * strikes whom, where, for how long and in which order; how that falls on the work is the machine's own.
 */
import type { Point } from '../../../src/pipeline/ports.ts';
import { seeded } from '../pictures.ts';
import { type Crew, type Dependency, longStopMs, type Member } from './crew.ts';
import { lasts } from './lasts.ts';

export interface Strike {
  /** What the report counts. */
  readonly kind: string;
  readonly target: string;
  /** Whom it needs for itself. */
  readonly member?: Member;
  /** Whether it struck: some wait for their moment. */
  run(random: () => number): Promise<boolean | undefined>;
}

export interface Told {
  readonly counts: ReadonlyMap<string, number>;
  /** Every strike in its order, with its time. */
  readonly story: readonly string[];
}

/** How long a strike waits for its moment. */
const patienceMs = 90_000;

/** Plays every deck once, all side by side. Resolves when every fault is over. */
export async function play(decks: readonly (readonly Strike[])[], crew: Crew, seed: number): Promise<Told> {
  const counts = new Map(decks.flat().map(({ kind }) => [kind, 0]));
  const story: string[] = [];
  const startMs = performance.now();
  await Promise.all(decks.map((deck, at) => playDeck(deck, seeded(seed * 100 + at))));
  return { counts, story };

  async function playDeck(deck: readonly Strike[], random: () => number): Promise<void> {
    const left = shuffled(deck, random);
    while (left.length > 0) {
      const free = left.findIndex(({ member }) => member === undefined || !crew.isBusy(member));
      const [strike] = left.splice(Math.max(0, free), 1) as [Strike];
      await lasts(200 + Math.floor(random() * 800));
      await playOne(strike, random);
    }
  }

  async function playOne(strike: Strike, random: () => number): Promise<void> {
    const run = async () => {
      const beganMs = performance.now() - startMs;
      const struck = (await strike.run(random)) !== false;
      const endedMs = performance.now() - startMs;
      const [began, ended] = [beganMs, endedMs].map((ms) => (ms / 1000).toFixed(1));
      story.push(
        `${began} to ${ended} s: ${strike.kind}, ${strike.target}${struck ? '' : ' (its moment did not come)'}`,
      );
      return struck;
    };
    // A moment that does not come may come later: a busy machine has fewer of them.
    const giveUpMs = performance.now() + patienceMs;
    while (performance.now() < giveUpMs) {
      const struck = await (strike.member === undefined ? run() : crew.alone(strike.member, run));
      if (!struck) continue;
      counts.set(strike.kind, (counts.get(strike.kind) ?? 0) + 1);
      return;
    }
  }
}

function shuffled<T>(deck: readonly T[], random: () => number): T[] {
  const left = [...deck];
  return deck.map(() => left.splice(Math.floor(random() * left.length), 1)[0] as T);
}

/* ----------------------------------------------------------------- processes */

export function kills(crew: Crew): Strike[] {
  const kill = (member: Member, point: Point | null = null): Strike => ({
    kind: point === null ? 'SIGKILL' : 'SIGKILL at a point',
    target: point === null ? member : `${member} at ${point}`,
    member,
    run: async () => void (await crew.kill(member, point)),
  });
  return [
    kill('api'),
    kill('api 2', 'accept.committed'),
    kill('api', 'accept.stored'),
    kill('relay', 'relay.published'),
    kill('relay'),
    kill('janitor', 'janitor.deleting'),
    kill('worker'),
    kill('worker 2', 'worker.settled'),
    kill('worker', 'worker.stored'),
    kill('worker 2'),
  ];
}

/** Two decks: workers sleep at any time, and so do the others. */
export function stops(crew: Crew): Strike[][] {
  const stop = (member: Member, ms: number, point: Point | null = null): Strike => ({
    kind: ms >= longStopMs ? 'SIGSTOP longer than a lease' : 'SIGSTOP for a while',
    target: point === null ? member : `${member} at ${point}`,
    member,
    run: () => crew.stop(member, ms, point),
  });
  return [
    [stop('worker', longStopMs, 'worker.stored'), stop('worker 2', longStopMs), stop('worker', 4_000)],
    // An upload that sleeps longer than an orphan may live must not be committed when it wakes; one that sleeps longer than
    // the reservation of its key must not be when another has the key.
    [
      stop('api 2', longStopMs + 3_000, 'accept.stored'),
      stop('api', 5_000, 'accept.stored'),
      stop('relay', 5_000, 'relay.taken'),
      stop('janitor', 5_000),
    ],
  ];
}

/* --------------------------------------------------------------------- lines */

export interface Moment {
  readonly member: Member;
  readonly dependency: Dependency;
  /** Part of a message whose answer is to be lost. */
  readonly word: string;
}

/** What is lost between the processes and PostgreSQL. */
const databaseMoments: readonly Moment[] = [
  { member: 'api', dependency: 'database', word: 'insert into attachments' },
  { member: 'api 2', dependency: 'database', word: 'insert into attachments' },
  { member: 'worker', dependency: 'database', word: 'commit' },
  { member: 'worker 2', dependency: 'database', word: 'commit' },
  { member: 'relay', dependency: 'database', word: 'set rings = jobs.rings + 1' },
];

/** `more`: moments on the lines to other engines. `silent`: the lines that go silent besides those to PostgreSQL. */
export function badLines(
  crew: Crew,
  more: readonly Moment[],
  silent: readonly (readonly [Member, Dependency])[],
): Strike[][] {
  const halfOpen = (member: Member, dependency: Dependency, ms: number): Strike => ({
    kind: 'half-open line',
    target: `${member} to its ${dependency}`,
    async run() {
      const line = crew.line(member, dependency);
      line?.swallow('all');
      await lasts(ms);
      line?.swallow('nothing');
      line?.cutAll();
      return line !== null;
    },
  });
  const bad = [
    halfOpen('worker', 'database', longStopMs),
    halfOpen('api', 'database', 3_000),
    ...silent.map(([member, dependency]) => halfOpen(member, dependency, 4_000)),
    lateSettle(crew, 'worker 2'),
    ...(['relay', 'worker 2'] as const).map((member) => noAnswers(crew, member)),
    ...(['api', 'worker 2'] as const).map((member) => slow(crew, member)),
    ...(['janitor', 'api 2', 'worker'] as const).map((member) => cut(crew, member)),
  ];
  const lost = [...databaseMoments, ...more].map((moment) => lostAnswer(crew, moment));
  return [bad, [...lost, lost202(crew, 'api'), lost202(crew, 'api 2')]];
}

/** The engine did it, the answer is lost, and the line stays away for a while: nobody can ask what became of it. */
function lostAnswer(crew: Crew, { member, dependency, word }: Moment): Strike {
  return {
    kind: 'lost answer',
    target: `${member} from its ${dependency}, of "${word}"`,
    async run() {
      const line = crew.line(member, dependency);
      if (line === null || !(await heardSoon(line.heard(word)))) return false;
      line.cutAll();
      line.refuse(true);
      await lasts(1_500);
      line.refuse(false);
      return true;
    },
  };
}

function lost202(crew: Crew, member: 'api' | 'api 2'): Strike {
  return {
    kind: 'lost 202',
    target: member,
    async run() {
      const front = crew.front(member);
      front.cutAfter('POST /v1/attachments', 1);
      return await heardSoon(front.heard('POST /v1/attachments'));
    },
  };
}

const momentMs = 6_000;
export const heardSoon = (heard: Promise<void>): Promise<boolean> =>
  Promise.race([heard.then(() => true), lasts(momentMs).then(() => false)]);

/** The settle of an attempt is held up on its way until the lease is over and another has the job, and then it arrives. */
function lateSettle(crew: Crew, member: 'worker' | 'worker 2'): Strike {
  return {
    kind: 'settle held up longer than a lease',
    target: member,
    member,
    async run() {
      const line = crew.line(member, 'database');
      if (!(await crew.whileAt(member, 'worker.stored', () => line?.delay(longStopMs)))) return false;
      await lasts(longStopMs);
      line?.delay(0);
      return true;
    },
  };
}

function noAnswers(crew: Crew, member: Member): Strike {
  return {
    kind: 'swallowed answers',
    target: `${member} from its database`,
    async run() {
      const line = crew.line(member, 'database');
      line?.swallow('answers');
      await lasts(2_500);
      line?.swallow('nothing');
      line?.cutAll();
      return line !== null;
    },
  };
}

function slow(crew: Crew, member: Member): Strike {
  return {
    kind: 'slow line',
    target: `${member} to its database`,
    async run(random) {
      const line = crew.line(member, 'database');
      line?.delay(50 + Math.floor(random() * 250));
      await lasts(3_000);
      line?.delay(0);
      // What is still on its way must not be overtaken by what is not late.
      line?.cutAll();
      return line !== null;
    },
  };
}

function cut(crew: Crew, member: Member): Strike {
  return {
    kind: 'cut line',
    target: `${member} to its database`,
    async run() {
      crew.line(member, 'database')?.cutAll();
    },
  };
}
