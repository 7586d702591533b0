/**
 * `npm run test:faults`: the fault suite by hand, as long as one likes. `npm test` plays the default part of it.
 *
 * Seeds are played in processes of their own, a few hundred each, and only sums are kept: a night takes no more memory than a minute.
 */
import { writeFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { gapsIn } from '../tests/faults/coverage.ts';
import { mutants } from '../tests/faults/mutants.ts';
import { playMutants, type Verdict } from '../tests/faults/mutants-play.ts';
import { exhaustiveOrders, playOrders, seedOrders } from '../tests/faults/play-all.ts';
import type { Found, Share } from '../tests/faults/player.ts';
import { playSeed, story } from '../tests/faults/schedule.ts';
import { startServer } from '../tests/support/server.ts';

const help = `Usage: npm run test:faults -- [options]

Plays the pipeline's own modules against simulated clocks, stores, brokers, storages and processes, with faults at
every effect, and holds the result to the invariants of docs/failures.md. Prints every violation with its schedule.

  --seeds N              random schedules to play (2000)
  --from F               the first seed (0)
  --exhaustive           every single fault and every pair of faults of one upload: on unless --seeds is given
  --no-exhaustive        not those
  --seed S               plays this one schedule and prints its whole story
  --mutants              takes the guards out of a copy of the source, one at a time, and sees whether each is
                         missed; nothing else is played. Starts a PostgreSQL of its own
  --json FILE            writes the figures there as well
  --help                 this text

Exit code: 0 all held (of mutants: all were caught), 1 something did not, 2 the options make no sense.`;

/** Of what was seen of a mutant; the file has all of it. */
const seenLengthMax = 120;
const progressMs = 10_000;

process.exitCode = await main();

async function main(): Promise<number> {
  const wish = understand();
  if (typeof wish === 'string') {
    console.error(`${wish}\n\n${help}`);
    return 2;
  }
  if (wish.help) {
    console.log(help);
    return 0;
  }
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => interrupted.abort());
  try {
    if (wish.seed !== null) return await tellSeed(wish.seed);
    if (wish.mutants) return await tellMutants(wish.json, interrupted.signal);
    return await tellSchedules(wish, interrupted.signal);
  } catch (error) {
    if (!interrupted.signal.aborted) throw error;
    console.error('Interrupted.');
    return 1;
  }
}

interface Wish {
  readonly seeds: number;
  readonly from: number;
  readonly seed: number | null;
  readonly exhaustive: boolean;
  readonly mutants: boolean;
  readonly json: string | null;
  readonly help: boolean;
}

/** What is wished for, or the sentence that says why it cannot be. */
function understand(): Wish | string {
  try {
    const { values } = parseArgs({
      options: {
        seeds: { type: 'string' },
        from: { type: 'string', default: '0' },
        seed: { type: 'string' },
        exhaustive: { type: 'boolean' },
        mutants: { type: 'boolean', default: false },
        json: { type: 'string' },
        help: { type: 'boolean', default: false },
      },
      allowNegative: true,
    });
    return {
      seeds: countOf('--seeds', values.seeds ?? '2000'),
      from: countOf('--from', values.from),
      seed: values.seed === undefined ? null : countOf('--seed', values.seed),
      exhaustive: values.exhaustive ?? values.seeds === undefined,
      mutants: values.mutants,
      json: values.json ?? null,
      help: values.help,
    };
  } catch (error) {
    return (error as Error).message;
  }
}

function countOf(name: string, text: string): number {
  const number = Number(text);
  if (!/^\d+$/.test(text) || number > 0xffff_ffff) {
    throw new Error(`Expected a whole number up to ${0xffff_ffff} for ${name}, received "${text}".`);
  }
  return number;
}

/* ------------------------------------------------------------------- one seed */

async function tellSeed(seed: number): Promise<number> {
  const outcome = await playSeed(seed);
  for (const line of story(outcome)) console.log(line);
  const { violation, steps, answered, virtualMs } = outcome;
  console.log(
    `Seed ${seed}: ${steps.length} effects in ${Math.round(virtualMs / 60_000)} simulated minutes, ${answered} uploads answered 202.`,
  );
  console.log(violation ? violation.message : 'All invariants held.');
  return violation ? 1 : 0;
}

/* ------------------------------------------------------------------ schedules */

async function tellSchedules(wish: Wish, signal: AbortSignal): Promise<number> {
  const started = performance.now();
  const progress = createProgress();
  const seeds = await playOrders(seedOrders(wish.from, wish.seeds), {
    signal,
    onShare: ({ played }) => progress(`${count(played)} of ${count(wish.seeds)} seeds`),
  });
  const first = wish.seeds > 0 ? `, ${wish.from} to ${wish.from + wish.seeds - 1}` : '';
  console.log(
    `Seeds: ${count(seeds.played)}${first}. Effects: ${count(seeds.steps)}. Answered 202: ${count(seeds.answered)}.`,
  );
  const { missing, undeclared } = gapsIn(seeds.counts);
  console.log(
    `Kinds of fault that struck: ${Object.keys(seeds.counts).length - missing.length} of site and fate, ${missing.length} did not.`,
  );
  if (undeclared.length > 0) console.log(`Not declared: ${undeclared.join(', ')}`);
  let exhaustive: Share | null = null;
  if (wish.exhaustive) {
    exhaustive = await playOrders(exhaustiveOrders(true), {
      signal,
      onShare: ({ singles, pairs }) => progress(`${count(singles)} single faults and ${count(pairs)} pairs`),
    });
    console.log(`Single faults of one upload: ${count(exhaustive.singles)}. Pairs: ${count(exhaustive.pairs)}.`);
  }
  const violations = [...seeds.violations, ...(exhaustive?.violations ?? [])];
  for (const { schedule, sentence } of violations) console.log(`VIOLATED by ${schedule}: ${sentence}`);
  await tellStory(violations);
  const seconds = Math.round((performance.now() - started) / 1000);
  console.log(`${violations.length === 0 ? 'All invariants held' : 'Violations were found'} in ${seconds} s.`);
  if (wish.json) await save(wish.json, { from: wish.from, seeds, exhaustive, missing, seconds });
  return violations.length === 0 && undeclared.length === 0 ? 0 : 1;
}

/** Of the first seed that does not hold. The others are a command away. */
async function tellStory(violations: readonly Found[]): Promise<void> {
  const seed = /^--seed (\d+)$/.exec(violations[0]?.schedule ?? '')?.[1];
  if (seed === undefined) return;
  console.log(`The end of the story of seed ${seed}; npm run test:faults -- --seed ${seed} tells all of it:`);
  for (const line of story(await playSeed(Number(seed))).slice(-60)) console.log(line);
}

/* -------------------------------------------------------------------- mutants */

async function tellMutants(json: string | null, signal: AbortSignal): Promise<number> {
  const server = await startServer();
  try {
    const progress = createProgress();
    let done = 0;
    const onVerdict = ({ mutant }: Verdict) => {
      done += 1;
      progress(`${done} of ${mutants.length} mutants, at last: ${mutant.name}`);
    };
    const verdicts = await playMutants(mutants, { postgres: server.url, signal, onVerdict });
    console.log('| mutant | invariant | by | needed | seen |\n|---|---|---|---|---|');
    for (const verdict of verdicts) console.log(rowOf(verdict));
    if (json) await save(json, { mutants: verdicts.map(({ mutant, ...rest }) => ({ ...mutant, ...rest })) });
    const caught = verdicts.filter(({ why }) => why === null).length;
    console.log(`mutants caught ${caught} of ${verdicts.length}`);
    return caught === verdicts.length ? 0 : 1;
  } finally {
    await server.stop();
  }
}

function rowOf({ mutant, seen, effort, why }: Verdict): string {
  const by = typeof mutant.by === 'string' ? { seeds: 'simulation', twins: 'PostgreSQL' }[mutant.by] : 'a test';
  const said = why === null ? (seen ?? '') : `NOT CAUGHT: ${why}`;
  const short = said.replace(/\s+/g, ' ').replaceAll('|', '\\|');
  const cut = why === null && short.length > seenLengthMax ? `${short.slice(0, seenLengthMax)}…` : short;
  return `| ${mutant.name} | ${mutant.kills[0]} | ${by} | ${effort} | ${cut} |`;
}

/* -------------------------------------------------------------------- telling */

/** Says how far it has come, every few seconds, on the error stream: the other one is for the figures. */
function createProgress(): (text: string) => void {
  let saidAt = performance.now();
  return (text) => {
    if (performance.now() - saidAt < progressMs) return;
    saidAt = performance.now();
    console.error(`… ${text}`);
  };
}

function count(number: number): string {
  return number.toLocaleString('en-US');
}

async function save(file: string, figures: unknown): Promise<void> {
  await writeFile(file, `${JSON.stringify(figures, null, 2)}\n`);
}
