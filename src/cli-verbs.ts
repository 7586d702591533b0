/**
 * The operators' verbs of the command line: what they take, their help with examples, and what of it is refused before anything is
 * asked. `cli.ts` parses; `verbs.ts` does them.
 */
import type { Command } from 'commander';
import { type Code, isCode } from './errors.ts';
import { isId } from './ids.ts';
import { type JobState, jobStates } from './pipeline/job.ts';
import { handlePattern, limits } from './pipeline/message.ts';

export type VerbOrder = { readonly json: boolean } & (
  | { readonly kind: 'status' }
  | {
      readonly kind: 'jobs';
      readonly state: JobState | null;
      readonly errorCode: Code | null;
      readonly owner: string | null;
      readonly attachment: string | null;
      readonly limit: number;
      readonly cursor: string | null;
    }
  | { readonly kind: 'job'; readonly id: string }
  | { readonly kind: 'replay'; readonly ids: readonly string[] }
  | {
      readonly kind: 'replay-many';
      readonly errorCode: Code | null;
      /** Handle or id. */
      readonly owner: string | null;
      readonly olderThanMs: number | null;
      readonly youngerThanMs: number | null;
      readonly limit: number;
      readonly dryRun: boolean;
    }
  | {
      readonly kind: 'reprocess';
      readonly attachment: string | null;
      readonly retryFailed: boolean;
      readonly dryRun: boolean;
      readonly progress: boolean;
      readonly wait: boolean;
    }
  | { readonly kind: 'sweep'; readonly dryRun: boolean }
  | { readonly kind: 'doctor'; readonly repair: boolean; readonly deep: boolean }
  | { readonly kind: 'operator'; readonly handle: string; readonly reset: boolean }
);

/** Throws what `commander` shows as a complaint. */
type Refuse = (expected: string) => never;

/** Said at the end of every help of them. */
const where = `
It works on the engines that the environment names. Without DATABASE_URL it finds the PostgreSQL of a running
"npm start" in DATA_DIR (./data). All settings: docs/configuration.md.
Exit codes: 0 done, 1 refused or failed, 2 not understood.`;

/** Ends every complaint about a word. */
export const helpHint = (word: string): string => `Try "npm run -s skrepka -- ${word} --help".`;

/** Adds the verbs; `order` is called with what was asked for. */
export function addVerbs(program: Command, order: (asked: VerbOrder) => void, refuse: Refuse): void {
  const verb = (words: string, summary: string, description: string, examples: readonly string[]) => {
    const shown = examples.map((line) => `  npm run -s skrepka -- ${line}`).join('\n');
    return program
      .command(words)
      .summary(summary)
      .description(description)
      .option('--json', 'print JSON, for programs')
      .showHelpAfterError(helpHint(words))
      .addHelpText('after', `\nExamples:\n${shown}\n${where}`);
  };
  const parse = parsers(refuse);
  addReads(verb, order, parse);
  addReplay(verb, order, parse);
  addReprocess(verb, order, parse);
  addCare(verb, order, parse);
}

type Verb = (words: string, summary: string, description: string, examples: readonly string[]) => Command;
type Parse = ReturnType<typeof parsers>;
type Place = (asked: VerbOrder) => void;

function addReads(verb: Verb, order: Place, parse: Parse): void {
  verb(
    'status',
    'show how the parts are, what waits, and which versions run',
    'Shows the health of the parts, the queue with its limits, versions, and reprocessing. Ends with 1 when a part is down.',
    ['status', 'status --json'],
  ).action(({ json = false }) => order({ kind: 'status', json }));
  verb('jobs', 'list jobs, newest first', 'Lists jobs, newest first.', [
    'jobs --state failed',
    'jobs --error-code corrupt_image --owner ada',
    'jobs --attachment 019a7c3e-0000-7000-8000-000000000000',
    'jobs --state failed --limit 200 --json',
  ])
    .option('--state <state>', `only those in a state: ${jobStates.join(', ')}`, parse.state)
    .option('--error-code <code>', 'only those with an error code: see docs/errors.md', parse.code)
    .option('--owner <user>', 'only those of a user: handle or id', parse.user)
    .option('--attachment <id>', 'only those of an attachment', parse.id)
    .option('--limit <count>', `how many, at most ${limits.pageMax}`, parse.count(limits.pageMax), 20)
    .option('--cursor <cursor>', 'go on where the page before ended')
    .action(({ state = null, errorCode = null, owner = null, attachment = null, limit, cursor = null, json = false }) =>
      order({ kind: 'jobs', state, errorCode, owner, attachment, limit, cursor, json }),
    );
  verb(
    'job',
    'show one job: why it is as it is, its attempts and history',
    'Shows one job: its state and why, its attempts, its history, and what can be done. The id is that of a job, as "jobs" lists it, or of an attachment, whose newest job is shown.',
    ['job 019a7c3e-0000-7000-8000-000000000000'],
  )
    .argument('<id>', 'id of the job, or of its attachment', parse.id)
    .action((id, { json = false }) => order({ kind: 'job', id, json }));
}

function addReplay(verb: Verb, order: Place, parse: Parse): void {
  const manyMax = 100_000;
  verb(
    'replay',
    'try failed jobs again, by id or by filter',
    `Tries failed jobs again: a new generation of the same job, with its failures at zero. An id is that of a job, or of an attachment, whose newest job is meant. Nothing else is changed by it: a job that is queued, runs or has succeeded stays as it is, and so does one whose original is not kept any more. By id it ends with 1 when one of them was not replayed; by filter those are counted and it ends with 0. Needs ids, a filter, or --all.`,
    [
      'replay 019a7c3e-0000-7000-8000-000000000000',
      'replay --error-code render_timeout --dry-run',
      'replay --error-code storage_unavailable --younger-than 2h',
      'replay --owner ada --limit 10',
      'replay --all',
    ],
  )
    .argument('[ids...]', 'ids of jobs, or of their attachments', parse.ids)
    .option('--error-code <code>', 'those that failed with a code', parse.code)
    .option('--owner <user>', 'those of a user: handle or id', parse.user)
    .option('--older-than <age>', 'those that failed longer ago: 30s, 5m, 2h, 7d', parse.age)
    .option('--younger-than <age>', 'those that failed since', parse.age)
    .option('--all', 'every failed job')
    .option('--limit <count>', 'how many at most, oldest failure first', parse.count(manyMax), 1000)
    .option('--dry-run', 'only count them')
    .action((ids: readonly string[] = [], options, command: Command) => {
      const { errorCode = null, owner = null, olderThan = null, youngerThan = null, limit } = options;
      const { dryRun = false, all = false, json = false } = options;
      const isNarrowed = [errorCode, owner, olderThan, youngerThan].some((part) => part !== null);
      if (ids.length > 0) {
        if (isNarrowed || all || dryRun)
          command.error('error: give ids or a filter, not both; --dry-run goes with a filter');
        return order({ kind: 'replay', ids, json });
      }
      if (!isNarrowed && !all) command.error('error: say which: ids, --error-code, --owner, an age, or --all');
      return order({
        kind: 'replay-many',
        errorCode,
        owner,
        olderThanMs: olderThan,
        youngerThanMs: youngerThan,
        limit,
        dryRun,
        json,
      });
    });
}

function addReprocess(verb: Verb, order: Place, parse: Parse): void {
  verb(
    'reprocess',
    'bring ready attachments to the current pipeline version',
    `Brings ready attachments to the pipeline version of PIPELINE_VERSION, or to the newest of this build. The janitor makes the jobs little by little, and uploads go first; what is published is served until its newer set is. Asking again goes on with the same wish. Ctrl-C ends the waiting, not the reprocessing. With --wait it ends with 1 when jobs of it failed.`,
    [
      'reprocess --dry-run',
      'reprocess --wait',
      'reprocess --progress',
      'reprocess --retry-failed',
      'reprocess --attachment 019a7c3e-0000-7000-8000-000000000000',
    ],
  )
    .option('--attachment <id>', 'only this one', parse.id)
    .option('--retry-failed', 'replay failed jobs of the version as well')
    .option('--dry-run', 'only count them')
    .option('--progress', 'ask for nothing, show how far it is')
    .option('--wait', 'show how far it is until all is over')
    .action(({ attachment = null, ...flags }, command: Command) => {
      const { retryFailed = false, dryRun = false, progress = false, wait = false, json = false } = flags;
      if (progress && (attachment !== null || retryFailed || dryRun)) {
        command.error('error: --progress asks for nothing: it goes with --wait and --json alone');
      }
      if (wait && (attachment !== null || dryRun)) {
        command.error('error: --wait goes with neither --attachment nor --dry-run');
      }
      order({ kind: 'reprocess', attachment, retryFailed, dryRun, progress, wait, json });
    });
}

function addCare(verb: Verb, order: Place, parse: Parse): void {
  verb(
    'sweep',
    'send objects that no row names to the clean-ups',
    `Looks for objects that no row names and sends them to the clean-ups; the janitor looks each of them up once more and deletes it. Young ones are left alone: they may belong to an upload or attempt that runs. The janitor does this by itself from time to time.`,
    ['sweep --dry-run', 'sweep'],
  )
    .option('--dry-run', 'only list them')
    .action(({ dryRun = false, json = false }) => order({ kind: 'sweep', dryRun, json }));
  verb(
    'doctor',
    'compare rows with objects, both ways, and repair',
    `Compares what the database says with what the storage has, both ways, and reports every difference. With --repair a lost or damaged variant is made anew and an object that no row names goes to the clean-ups; a lost original cannot come back and is reported. What only --deep finds, only --deep --repair repairs. Ends with 1 while something is found that was not repaired; a key that is not of our making is told and left alone, and counts for nothing.`,
    ['doctor', 'doctor --repair', 'doctor --deep', 'doctor --deep --repair'],
  )
    .option('--repair', 'repair what can be repaired')
    .option('--deep', 'read every object and compare its digest: as long as it takes to read all of the storage')
    .action(({ repair = false, deep = false, json = false }) => order({ kind: 'doctor', repair, deep, json }));
  verb(
    'operator',
    "make an operator's account, or a new password for one",
    `Makes an account that may use /v1/admin, "operator" unless a handle is given, and prints its password, this once. With --reset it gives an operator who exists a new password instead, and ends all sessions of the account.`,
    ['operator', 'operator grace', 'operator --reset'],
  )
    .option('--reset', 'a new password for an account that exists')

    .argument('[handle]', 'of the account', parse.handle, 'operator')
    .action((handle, { reset = false, json = false }) => order({ kind: 'operator', handle, reset, json }));
}

/* --------------------------------------------------------------------- parsing */

const units: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

function parsers(refuse: Refuse) {
  const isHandle = (text: string) => new RegExp(handlePattern).test(text);
  return {
    id: (text: string): string =>
      isId(text) ? text : refuse('An id looks like 019a7c3e-0000-7000-8000-000000000000.'),
    ids: (text: string, before: readonly string[] = []): readonly string[] =>
      isId(text) ? [...before, text] : refuse('An id looks like 019a7c3e-0000-7000-8000-000000000000.'),
    handle: (text: string): string =>
      isHandle(text) ? text : refuse('A handle has 2 to 32 lower-case letters, digits, "_", "." and "-".'),
    user: (text: string): string => (isId(text) || isHandle(text) ? text : refuse('It is neither a handle nor an id.')),
    code: (text: string): Code => (isCode(text) ? text : refuse('Codes are in docs/errors.md.')),
    state: (text: string): JobState => {
      const state = jobStates.find((known) => known === text);
      return state ?? refuse(`Allowed are ${jobStates.join(', ')}.`);
    },
    count:
      (max: number) =>
      (text: string): number =>
        /^\d{1,9}$/.test(text) && Number(text) >= 1 && Number(text) <= max
          ? Number(text)
          : refuse(`Allowed is a whole number from 1 to ${max}.`),
    age: (text: string): number => {
      const [, digits, unit = ''] = /^(\d{1,6})([smhd])$/.exec(text) ?? [];
      return digits === undefined
        ? refuse('An age is written 30s, 5m, 2h or 7d.')
        : Number(digits) * (units[unit] ?? 0);
    },
  };
}
