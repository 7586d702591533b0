/** Verbs about the system as a whole: how it is, what strays, what is lost, and who may operate it. */
import { randomBytes } from 'node:crypto';
import packageFile from '../package.json' with { type: 'json' };
import type { VerbOrder } from './cli-verbs.ts';
import { describe, StartError } from './errors.ts';
import { shapeQueue } from './http/operator-shapes.ts';
import { hashPassword } from './http/password.ts';
import { createDoctor, type Finding, type Report, type SweepReport } from './pipeline/doctor.ts';
import { recipes } from './pipeline/recipe.ts';
import { appliedMigrations } from './postgres/migrate.ts';
import type { Tools } from './verbs.ts';
import { progressLine } from './verbs-jobs.ts';
import { count, duration, escaped, pairs, size, table } from './verbs-show.ts';
import { buildBroker } from './wiring-engines.ts';

type OrderOf<K extends VerbOrder['kind']> = VerbOrder & { readonly kind: K };

/* ----------------------------------------------------------------------- status */

interface Part {
  readonly state: 'ok' | 'down';
  /** Its engine by scheme: the rest of a URL may hold a password. */
  readonly engine: string;
  readonly detail: string | null;
}

export async function showStatus(tools: Tools, { json }: OrderOf<'status'>): Promise<number> {
  const { store, operate, config, pool, say } = tools;
  const [storage, broker, queue, wish, migrations] = await Promise.all([
    storageState(tools),
    brokerState(tools),
    store.queue(),
    operate.reprocessing(),
    appliedMigrations(pool),
  ]);
  const database: Part = { state: 'ok', engine: tools.databaseName, detail: `schema ${migrations.at(-1)}` };
  const parts = { database, storage, broker };
  const shown = shapeQueue(queue, wish, config);
  const pipeline = { version: operate.version, recipes: [...recipes.keys()] };
  const code = Object.values(parts).every(({ state }) => state === 'ok') ? 0 : 1;
  if (json) {
    say(JSON.stringify({ version: packageFile.version, pipeline, components: parts, queue: shown }));
    return code;
  }
  const age = (seconds: number | null) => (seconds === null ? 'none' : duration(seconds * 1000));
  say(
    pairs([
      ['skrepka', packageFile.version],
      [
        'pipeline',
        `version ${pipeline.version} by the PIPELINE_VERSION of this terminal, of ${pipeline.recipes.join(', ')} of this build; what each API makes: skrepka_build_info`,
      ],
      ...Object.entries(parts).map(([name, part]): [string, string] => [
        name,
        `${part.state}  ${part.engine}${part.detail === null ? '' : `  ${part.detail}`}`,
      ]),
      ['waiting', `${queue.queued} of at most ${config.backlogMax}: ${queue.due} due, ${queue.announced} announced`],
      ['processing', String(queue.processing)],
      ['failed', String(queue.failed)],
      ['oldest due', age(queue.oldestDueSeconds)],
      [
        'staging',
        `${size(queue.stagingBytes)} of at most ${size(config.stagingBytesMax)}, oldest ${age(queue.oldestStagingSeconds)}`,
      ],
      ['pace', `${queue.acceptedPerSecond.toFixed(2)}/s accepted, ${queue.finishedPerSecond.toFixed(2)}/s finished`],
      ['clean-ups', String(queue.cleanups)],
      ['reprocessing', wish === null ? 'nobody has asked for it' : `to version ${wish.version}: ${progressLine(wish)}`],
    ]),
  );
  return code;
}

/** Longest wait for one part. */
const healthMs = 5000;

async function storageState({ blobs, config }: Tools): Promise<Part> {
  return { ...(await ask(() => blobs.health())), engine: schemeOf(config.blobsUrl) };
}

async function brokerState({ config, pool, log }: Tools): Promise<Part> {
  const engine = schemeOf(config.brokerUrl);
  const broker = await buildBroker(config, pool, log);
  try {
    return { ...(await ask(() => broker.health())), engine };
  } finally {
    await Promise.race([broker.close(), after(healthMs)]);
  }
}

async function ask(health: () => Promise<void>): Promise<Pick<Part, 'state' | 'detail'>> {
  try {
    await Promise.race([health(), after(healthMs).then(() => Promise.reject(new Error('it does not answer')))]);
    return { state: 'ok', detail: null };
  } catch (error) {
    return { state: 'down', detail: describe(error) };
  }
}

async function after(ms: number): Promise<void> {
  await new Promise<void>((resolve) => setTimeout(resolve, ms).unref());
}

const schemeOf = (url: string): string => url.slice(0, url.indexOf(':') + 1);

/* --------------------------------------------------------------- sweep, doctor */

export async function sweep(tools: Tools, { dryRun, json }: OrderOf<'sweep'>): Promise<number> {
  const onProgress = ({ listed }: { listed: number }) => tools.note(`${listed} objects listed`);
  const report = await createDoctor(tools, tools.config).sweep({ dryRun, onProgress }, tools.signal);
  if (json) tools.say(JSON.stringify(shapeSweep(report)));
  else showSweep(tools, report, dryRun);
  return report.complete ? 0 : 1;
}

function shapeSweep(report: SweepReport) {
  const stray = ({ key, size: bytes, modifiedAt, ours }: SweepReport['staging'][number]) => ({
    key,
    size: bytes,
    modified_at: modifiedAt.toISOString(),
    ours,
  });
  return {
    ...report,
    staging: report.staging.map(stray),
    published: report.published.map(stray),
    elsewhere: report.elsewhere.map(stray),
  };
}

function showSweep({ say }: Tools, report: SweepReport, dryRun: boolean): void {
  const strays = [...report.staging, ...report.published, ...report.elsewhere];
  const now = Date.now();
  if (strays.length > 0) {
    say(
      table(
        ['KEY', 'SIZE', 'AGE', 'OURS'],
        strays.map((stray) => [
          escaped(stray.key),
          size(stray.size),
          duration(now - stray.modifiedAt.getTime()),
          stray.ours ? 'yes' : 'no: left alone',
        ]),
      ),
    );
  }
  const found = report.found.staging + report.found.published + report.found.elsewhere;
  say(`${count(found, 'object')} of ${report.listed} named by no row, ${size(report.bytes)}.`);
  if (dryRun) say('Nothing was changed.');
  else if (found > 0)
    say(`${report.scheduled} sent to the clean-ups: the janitor looks each up once more, then deletes it.`);
  if (!report.complete) say('It was ended early.');
}

export async function examine(tools: Tools, { repair, deep, json }: OrderOf<'doctor'>): Promise<number> {
  const doctor = createDoctor(tools, tools.config);
  const report = await doctor.examine(
    {
      repair,
      deep,
      who: 'operator cli',
      onProgress: (done) =>
        tools.note(`${done.attachments} attachments, ${done.objects} objects, ${done.listed} listed`),
    },
    tools.signal,
  );
  if (json) tools.say(JSON.stringify(shapeReport(report)));
  else showReport(tools, report, { repair, deep });
  const found = Object.values(report.counts).reduce((sum, amount) => sum + amount, 0);
  return report.complete && found === report.repaired + report.alien ? 0 : 1;
}

function shapeReport({ findings, ...sums }: Report) {
  const shape = ({ attachmentId, ...finding }: Finding) => ({ ...finding, attachment_id: attachmentId });
  return { ...sums, findings: findings.map(shape) };
}

const remedies: Readonly<Record<Exclude<Finding['repair'], 'possible'>, string>> = {
  none: 'cannot be repaired',
  rebuilding: 'being made anew',
  under_way: 'a job is at it',
  scheduled: 'sent to the clean-ups',
};

function showReport({ say }: Tools, report: Report, { repair, deep }: { repair: boolean; deep: boolean }): void {
  // What only its bytes show is not seen again without reading them.
  const order = ({ kind }: Finding) => (deep && kind === 'damaged' ? 'doctor --deep --repair' : 'doctor --repair');
  const remedy = (found: Finding) => (found.repair === 'possible' ? order(found) : remedies[found.repair]);
  if (report.findings.length > 0) {
    say(
      table(
        ['KIND', 'REPAIR', 'KEY', 'DETAIL'],
        report.findings.map((found) => [found.kind, remedy(found), escaped(found.key), found.detail]),
      ),
    );
  }
  const found = Object.values(report.counts).reduce((sum, amount) => sum + amount, 0);
  say(
    `${count(report.attachments, 'attachment')} with ${count(report.objects, 'object')} examined, ${report.listed} objects listed: ${count(found, 'finding')}${repair ? `, ${report.repaired} under repair` : ''}.`,
  );
  if (report.findings.length < found) say(`The first ${report.findings.length} are shown.`);
  if (report.alien > 0) say(`${count(report.alien, 'key')} not of our making: left alone, and no fault.`);
  const orders = new Set(report.findings.filter((each) => each.repair === 'possible').map(order));
  if (orders.size > 0) say(`To repair what can be: ${[...orders].toSorted().at(0)}`);
  if (!report.complete) say('It was ended early: there may be more.');
}

/* --------------------------------------------------------------------- operator */

export async function makeOperator(tools: Tools, order: OrderOf<'operator'>): Promise<number> {
  const { people, clock, say } = tools;
  const { handle, reset, json } = order;
  const found = await people.credentials(handle);
  if (found !== null && found.user.role !== 'admin') {
    throw new StartError(
      `The handle "${handle}" is that of a user, who may be anybody: choose another for the operator.`,
    );
  }
  if (found !== null && !reset) {
    throw new StartError(`The operator "${handle}" exists: give the account a new password with --reset.`);
  }
  if (found === null && reset) {
    throw new StartError(`There is no operator "${handle}": leave --reset out to make the account.`);
  }
  const password = randomBytes(18).toString('base64url');
  const passwordHash = await hashPassword(password);
  if (found !== null) await people.setPassword(found.user.id, passwordHash);
  else if ((await people.createUser({ id: clock.newId(), handle, passwordHash, role: 'admin' })) === null) {
    throw new StartError(`Somebody has just taken the handle "${handle}": choose another.`);
  }
  if (json) say(JSON.stringify({ handle, password }));
  else {
    say(`The account of the operator, shown this once:\n  handle    ${handle}\n  password  ${password}`);
    if (reset) say('Its sessions are ended.');
  }
  return 0;
}
