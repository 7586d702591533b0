/**
 * `npm run scenario`: what Skrepka promises, told and proven with real processes.
 *
 * `--level` chooses the story: 3 is the promise of a 202 (`scenario-promise.ts`), 4 is what operators live through
 * (`scenario-operate.ts`). Everything happens in a folder and on ports of its own, and is cleared away afterwards. Prints ids
 * and times, never tokens. Exit code 0 only if every expectation held, 2 where it could not begin.
 */
import { parseArgs } from 'node:util';
import { CheckFailed, createChecks } from './checks.ts';
import { NoAnswer } from './http-client.ts';
import { createNarration } from './narration.ts';
import { playOperate } from './scenario-operate.ts';
import { playPromise } from './scenario-promise.ts';
import { setStage } from './stage.ts';
import { type EngineNames, engineNames, missingEngines, openEngines } from './stage-engines.ts';

const help = `Usage: npm run scenario -- [--level 3|4] [--engines embedded|jetstream-s3]

Tells and proves, with real processes that it starts, kills and clears away:

  --level 3   (default) the promise of a 202: no worker runs, an upload is accepted, API and
              PostgreSQL are killed and started again, a worker starts, the same id is ready
  --level 4   what operators live through: a crash between COMMIT and publish; a worker killed
              between the write and the ack; a failed job replayed; a hung worker told from a slow one

  --engines embedded       (default) the queue in PostgreSQL, objects in a folder
  --engines jetstream-s3   the bell in NATS JetStream, objects in S3 (a Ceph gateway): both must be installed

  --help      this text

Exit code: 0 all held, 1 something did not, 2 it could not begin.`;

const stories = {
  3: { play: playPromise, title: 'What a 202 of Skrepka promises' },
  4: { play: playOperate, title: 'What operators of Skrepka live through' },
};

process.exitCode = await main();

async function main(): Promise<number> {
  const wish = understand();
  if (wish === null) {
    console.log(help);
    return 0;
  }
  if (typeof wish === 'string') {
    console.error(wish);
    return 2;
  }
  return await tell(wish);
}

interface Wish {
  readonly level: 3 | 4;
  readonly engines: EngineNames;
}

/** What is wished for, null for the help, or the sentence that says why not. */
function understand(): Wish | string | null {
  let values: { level: string; engines: string; help: boolean };
  try {
    values = parseArgs({
      options: {
        level: { type: 'string', default: '3' },
        engines: { type: 'string', default: 'embedded' },
        help: { type: 'boolean', default: false },
      },
    }).values;
  } catch (error) {
    return `${(error as Error).message}\n\n${help}`;
  }
  const { level, engines } = values;
  if (values.help) return null;
  if (level !== '3' && level !== '4') return `Expected 3 or 4 for --level, received "${level}".`;
  const known = engineNames.find((name) => name === engines);
  if (!known) return `Expected ${engineNames.join(' or ')} for --engines, received "${engines}".`;
  const missing = missingEngines(known);
  if (missing) return `The servers of ${known} are not installed. On Debian: ${missing}`;
  return { level: level === '3' ? 3 : 4, engines: known };
}

async function tell({ level, engines }: Wish): Promise<number> {
  const { play, title } = stories[level];
  const narration = createNarration();
  const { say } = narration;
  const checks = createChecks((number, text) => say(`${String(number).padStart(2)}. ${text}`));
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => interrupted.abort());
  const stage = await setStage(interrupted.signal);
  const opening = openEngines(engines, stage.scope, stage.dataDir);
  const stopped = new Promise<never>((_, reject) => {
    interrupted.signal.addEventListener('abort', () => reject(new CheckFailed('Interrupted.')));
  });
  try {
    say(`${title}, with real processes in ${stage.folder}`);
    const opened = await Promise.race([opening, stopped]);
    stage.configure(opened.settings);
    say(`Its engines: ${opened.title}`);
    await Promise.race([play(stage, checks, narration, opened), stopped]);
    say(`All ${checks.count} expectations held.`);
    return 0;
  } catch (error) {
    console.error(error instanceof CheckFailed || error instanceof NoAnswer ? error.message : error);
    if (!interrupted.signal.aborted) console.error(`The last lines of the processes:\n${await stage.lastLines()}`);
    return 1;
  } finally {
    await opening.catch(() => undefined);
    await stage.clear();
  }
}
