/** The words of the command line: roles and verbs, their help, and what is refused. The only file that imports `commander`. */
import { Argument, Command, CommanderError, InvalidArgumentError } from 'commander';
import { addVerbs, helpHint, type VerbOrder } from './cli-verbs.ts';
import { type Role, roles } from './roles.ts';

export type Order =
  | { readonly kind: 'start' }
  | { readonly kind: 'migrate' }
  | { readonly kind: 'run'; readonly roles: readonly Role[] }
  | { readonly kind: 'verb'; readonly verb: VerbOrder }
  /** All was said: end with this code. 2: the words were not understood. */
  | { readonly kind: 'done'; readonly code: number };

const about: Readonly<Record<Role | 'all', string>> = {
  api: 'takes uploads and answers requests',
  relay: 'announces due jobs through the broker',
  worker: 'makes the variants and publishes attachments',
  janitor: 'removes what nobody needs any more',
  all: 'the four of them in one process',
};

const engines = `
The role runs against the engines that the environment names: DATABASE_URL (needed), BROKER_URL, BLOBS_URL.
Several roles may be named and share the process. SIGTERM drains it, a second one makes it hurry.
All settings: docs/configuration.md.`;

/** Reads the command line (without node and script). Help and complaints go to the terminal at once. */
export function readOrder(words: readonly string[], version: string): Order {
  let order: Order = { kind: 'done', code: 0 };
  const program = new Command('skrepka')
    .description('A message-and-attachment backend whose image pipeline survives crashes.')
    .version(version, '-v, --version', 'print the version')
    .helpOption('-h, --help', 'print this help')
    .helpCommand(false)
    .showHelpAfterError('Try "npm run -s skrepka -- --help".')
    .addHelpText('after', programHelp)
    .exitOverride();
  program
    .command('start')
    .summary('run everything on this machine')
    .description('Runs everything on this machine: PostgreSQL (unless DATABASE_URL names one), the API and a worker.')
    .addHelpText('after', startHelp)
    .showHelpAfterError(helpHint('start'))
    .action(() => {
      order = { kind: 'start' };
    });
  program
    .command('migrate')
    .summary('bring the database to the schema of this build')
    .description('Brings the database of DATABASE_URL to the schema of this build. Safe to run many times and at once.')
    .showHelpAfterError(helpHint('migrate'))
    .action(() => {
      order = { kind: 'migrate' };
    });
  addVerbs(
    program,
    (verb) => {
      order = { kind: 'verb', verb };
    },
    (expected) => {
      throw new InvalidArgumentError(expected);
    },
  );
  addRoles(program, (named) => {
    order = { kind: 'run', roles: roles.filter((role) => named.includes(role)) };
  });
  if (words.length === 0) {
    program.outputHelp({ error: true });
    return { kind: 'done', code: 2 };
  }
  try {
    program.parse([...words], { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    return { kind: 'done', code: error.exitCode === 0 ? 0 : 2 };
  }
  return order;
}

function addRoles(program: Command, run: (named: readonly Role[]) => void): void {
  const role = (word: Role | 'all') =>
    program
      .command(word)
      .summary(`role: ${about[word]}`)
      .description(`Runs the role ${word}: ${about[word]}.`)
      .addHelpText('after', engines)
      .showHelpAfterError(helpHint(word));
  for (const word of roles) {
    role(word)
      .addArgument(new Argument('[roles...]', 'further roles for the same process').choices([...roles]))
      .action((further: Role[]) => run([word, ...further]));
  }
  // It takes no further ones: there are none.
  role('all').action(() => run(roles));
}

const programHelp = `
In the folder of a clone "skrepka" is "npm run -s skrepka --", in the image it is the entry point:
  npm start                                   everything on this machine, with a PostgreSQL of its own in ./data
  npm run -s skrepka -- jobs --state failed   in another terminal, beside it
  docker compose exec api node src/main.ts jobs --state failed
"skrepka <word> --help" explains a word, with examples.`;

const startHelp = `
Settings (environment):
  PORT          port of the API, 8080
  HOST          address of the API, 127.0.0.1
  DATA_DIR      folder of all data, ./data
  DATABASE_URL  a PostgreSQL to use instead of the embedded one
All settings: docs/configuration.md.

The first start prints the account of the operator, once. Ctrl-C stops in order and keeps the data.`;
