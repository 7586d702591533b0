/**
 * A storm of faults on any engines: users upload real photographs while a seeded schedule of faults strikes every process, every
 * engine and the lines between them, several at once. Then the faults end, all must come to an end by itself, and a checker
 * that knows every answered 202 compares what was promised with what there is.
 *
 * `STORM_SEED` chooses another schedule. It decides what strikes whom and in which order; the moments in the work of the
 * processes on which a strike falls are the machine's own, so a seed makes a failure likely again, not certain.
 */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import type { Scope } from '../support/on-end.ts';
import { type Checker, createChecker } from '../support/storm/checker.ts';
import { type Crew, openCrew } from '../support/storm/crew.ts';
import type { OpenStorm } from '../support/storm/embedded.ts';
import { type Load, openLoad } from '../support/storm/load.ts';
import { kills, play, stops, type Told } from '../support/storm/strikes.ts';
import { postWatch, reportOf } from '../support/storm/watchman.ts';
import { until } from '../support/until.ts';

/** On the busiest machine: every wait inside has a deadline of its own. */
const wholeStorm = { timeout: 600_000 };
const seed = Number(process.env.STORM_SEED ?? 1);

interface Storm {
  readonly told: Told;
  readonly crew: Crew;
  readonly load: Load;
  readonly checker: Checker;
  readonly watched: readonly string[];
  readonly disk: string;
}

/** Registers the storm on the engines of this name, and what must hold after it. */
export function storm(name: string, open: OpenStorm): void {
  describe(`a storm of faults on ${name}`, () => {
    const ends: (() => Promise<void>)[] = [];
    let it: Storm;
    /** A failure shows how to have this storm again, and what happened in it. */
    const nothing = (wrong: readonly string[]) => {
      if (wrong.length === 0) return;
      const told = it.told.story.join('\n  ');
      assert.fail(`STORM_SEED=${seed}\n  ${wrong.join('\n  ')}\nAfter this storm:\n  ${told}`);
    };

    before(async () => {
      it = await passThrough({ after: (clean) => void ends.push(clean) }, open);
    }, wholeStorm);
    after(async () => {
      // For whoever looks into it: what happened, and everything that the processes said.
      const file = process.env.STORM_OUTPUT;
      if (file && it) await writeFile(file, [...it.told.story, it.crew.output()].join('\n'));
      for (const end of ends) await end();
    });

    test('brings every accepted upload to an end by itself once the faults are over', async () =>
      nothing(await it.checker.unfinished()));
    test('loses no answered 202: byte for byte the original and a whole set of variants, and only corrupt pictures fail', async () =>
      nothing(await it.checker.promises()));
    test('never makes two attachments or two jobs of one key, nor a row that nobody was answered', async () =>
      nothing(await it.checker.doubles()));
    test('lets no version, fence or ring fall, ends nothing twice and replaces nothing published, at any moment', async () =>
      nothing(it.watched));
    test('charges no good picture with the faults of others', async () => nothing(await it.checker.failures()));
    test('leaves a history that explains every row', async () => nothing(await it.checker.histories()));
    test('leaves exactly the objects that rows name once the janitor is quiet', async () =>
      nothing(await it.checker.objects()));
    test('answers uploads and questions with what a client can use: 202, or try again', () => nothing(it.load.wrongs));
    test('ends no process but those that were killed', () => nothing(it.crew.deaths));
    test('has struck with every kind of fault, while uploads were taken in', (t) => {
      const accepted = acceptedOf(it.load);
      t.diagnostic(`seed ${seed}: ${accepted} uploads answered with 202, ${corrupt(it.load)} of them corrupt`);
      t.diagnostic(`answers by status: ${JSON.stringify(Object.fromEntries(it.load.answers))} (0: none)`);
      t.diagnostic(`a full disk is ${it.disk}`);
      for (const [kind, count] of it.told.counts) t.diagnostic(`${String(count).padStart(3)} × ${kind}`);
      const missing = [...it.told.counts].filter(([, count]) => count === 0).map(([kind]) => `never struck: ${kind}`);
      nothing(missing);
      assert.ok(accepted >= acceptedMin);
      assert.ok(corrupt(it.load) > 0);
    });
  });
}

/** A busy machine takes longer for them. */
const acceptedMin = 40;
const acceptedOf = (load: Load) => load.sent.filter(({ ids }) => ids.length > 0).length;
const corrupt = (load: Load) => load.sent.filter(({ isCorrupt }) => isCorrupt).length;

/** From the first process to the last answer. */
async function passThrough(scope: Scope, open: OpenStorm): Promise<Storm> {
  const engines = await open(scope);
  await postWatch(engines.postgres);
  const crew = await openCrew(scope, engines);
  const load = await openLoad(crew, { seed, users: 8, keysMax: 200 });
  const over = new AbortController();
  const running = load.run(over.signal);
  const told = await Promise.race([
    play([kills(crew), ...stops(crew), ...engines.decks(crew)], crew, seed),
    // It only ends before when it failed.
    running.then(() => Promise.reject(new Error('the load ended before the storm'))),
  ]);
  const isLoad = () => acceptedOf(load) >= acceptedMin;
  await until(`${acceptedMin} uploads are accepted`, isLoad, { deadlineMs: 120_000 }).finally(() => over.abort());
  await running;
  const checker = createChecker(engines.postgres, engines.blobs, load.sent);
  await checker.unfinished();
  return { told, crew, load, checker, watched: await reportOf(engines.postgres), disk: engines.disk };
}
