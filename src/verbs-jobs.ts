/**
 * Verbs about jobs: look at them, replay them, reprocess. With `--json` they print what the HTTP API answers for the same.
 */
import type { VerbOrder } from './cli-verbs.ts';
import { type Code, catalogue, SkrepkaError, StartError } from './errors.ts';
import { shapeAttempt, shapeEvent, shapeJob, shapeReplayed, shapeReprocessing } from './http/operator-shapes.ts';
import { isId } from './ids.ts';
import { type AttemptView, attemptsOf } from './pipeline/operate.ts';
import type { JobEvent, JobView, Replay, Reprocessed, Reprocessing } from './pipeline/registry.ts';
import type { Tools } from './verbs.ts';
import { count, duration, pairs, table, time } from './verbs-show.ts';

type OrderOf<K extends VerbOrder['kind']> = VerbOrder & { readonly kind: K };

/** What the history says of who asked at a terminal: whoever may use the database. */
const who = 'operator cli';

/* ------------------------------------------------------------------------- look */

export async function listJobs(tools: Tools, order: OrderOf<'jobs'>): Promise<number> {
  const { store, say } = tools;
  const { state, errorCode, limit } = order;
  const ownerId = await ownerOf(tools, order.owner);
  const filter = { state, errorCode, ownerId, attachmentId: order.attachment };
  const page = await store.listJobs({ ...filter, limit, cursor: order.cursor }).catch(refuseCursor);
  if (order.json) {
    say(JSON.stringify({ items: page.items.map(shapeJob), next_cursor: page.nextCursor }));
    return 0;
  }
  if (page.items.length === 0) {
    say('No such jobs.');
    return 0;
  }
  const handles = await handlesOf(tools, page.items);
  const now = Date.now();
  say(
    table(
      ['JOB', 'STATE', 'CODE', 'VERSION', 'ATTEMPTS', 'OWNER', 'SINCE'],
      page.items.map((job) => [
        job.id,
        job.state,
        job.errorCode,
        job.version,
        job.attempts,
        handles.get(job.ownerId) ?? job.ownerId,
        duration(now - (job.finishedAt ?? job.createdAt).getTime()),
      ]),
    ),
  );
  if (page.nextCursor) say(`More: add --cursor ${page.nextCursor}`);
  return 0;
}

/** A cursor is the one thing that the command line cannot judge by itself. */
function refuseCursor(error: unknown): never {
  if (error instanceof SkrepkaError && error.code === 'validation') {
    throw new StartError('The cursor is not one that "jobs" has printed: leave it out to begin at the newest.', error);
  }
  throw error;
}

/** The id of a user that was named by handle or id; null stays null. */
async function ownerOf({ people }: Tools, named: string | null): Promise<string | null> {
  if (named === null || isId(named)) return named;
  const found = await people.credentials(named);
  if (found === null) throw new StartError(`There is no user with the handle "${named}".`);
  return found.user.id;
}

async function handlesOf({ people }: Tools, jobs: readonly JobView[]): Promise<ReadonlyMap<string, string>> {
  const ids = [...new Set(jobs.map((job) => job.ownerId))];
  const users = await Promise.all(ids.map((id) => people.user(id)));
  return new Map(users.flatMap((user) => (user === null ? [] : [[user.id, user.handle] as const])));
}

export async function showJob(tools: Tools, order: OrderOf<'job'>): Promise<number> {
  const { store, say } = tools;
  const byId = await store.job(order.id);
  const ofAttachment = byId === null ? await jobsOf(tools, order.id) : [];
  const found = byId ?? (ofAttachment[0] ? await store.job(ofAttachment[0].id) : null);
  if (found === null) throw new StartError(`There is no job, and no attachment with a job, of the id ${order.id}.`);
  const { job, events } = found;
  const attempts = attemptsOf(events, job.generation);
  if (order.json) {
    say(JSON.stringify({ job: shapeJob(job), attempts: attempts.map(shapeAttempt), events: events.map(shapeEvent) }));
    return 0;
  }
  const handle = (await handlesOf(tools, [job])).get(job.ownerId);
  say(`${pairs(facts(job, handle ?? 'unknown'))}\n`);
  say(attempts.length === 0 ? 'Attempts: none in the history\n' : `Attempts\n${attemptTable(attempts)}\n`);
  say(events.length === 0 ? 'History: not kept any more (HISTORY_RETENTION)' : `History\n${eventTable(events)}`);
  const advice = adviceFor(job);
  if (advice) say(`\n${advice}`);
  if (ofAttachment.length > 1)
    say(`\nIt is the newest of several: npm run -s skrepka -- jobs --attachment ${order.id}`);
  return 0;
}

/** The newest two jobs of an attachment: users know the ids of attachments, not those of jobs. */
async function jobsOf({ store }: Pick<Tools, 'store'>, attachmentId: string): Promise<readonly JobView[]> {
  const any = { state: null, errorCode: null, ownerId: null, cursor: null };
  return (await store.listJobs({ ...any, attachmentId, limit: 2 })).items;
}

function facts(job: JobView, handle: string): [string, string][] {
  const rows: [string, string][] = [
    ['job', job.id],
    ['attachment', job.attachmentId],
    ['owner', `${handle} (${job.ownerId})`],
    ['state', job.errorCode === null ? job.state : `${job.state}: ${job.errorCode}`],
  ];
  if (job.errorCode !== null) rows.push(['the owner reads', catalogue[job.errorCode].text]);
  if (job.errorDetail !== null) rows.push(['detail', job.errorDetail]);
  rows.push(
    ['makes', `pipeline version ${job.version}, from ${job.origin}, generation ${job.generation}`],
    [
      'counts',
      `${count(job.attempts, 'attempt')}, ${count(job.failures, 'failure')}, ${job.crashes} crashed, ${job.releases} given back, ${count(job.rings, 'ring')}`,
    ],
    ['created', time(job.createdAt)],
  );
  if (job.state === 'queued') rows.push(['not before', time(job.notBefore)]);
  if (job.leaseUntil !== null) rows.push(['lease', `until ${time(job.leaseUntil)}, of ${job.worker}`]);
  if (job.ringAt !== null) rows.push(['next ring', time(job.ringAt)]);
  if (job.finishedAt !== null) rows.push(['finished', time(job.finishedAt)]);
  return rows;
}

function attemptTable(attempts: readonly AttemptView[]): string {
  return table(
    ['FENCE', 'GENERATION', 'STARTED', 'TOOK', 'OUTCOME', 'CODE', 'WORKER', 'DETAIL'],
    attempts.map((attempt) => [
      attempt.fence,
      attempt.generation,
      time(attempt.startedAt),
      attempt.endedAt === null ? null : duration(attempt.endedAt.getTime() - attempt.startedAt.getTime()),
      attempt.outcome,
      attempt.code,
      attempt.worker,
      attempt.detail,
    ]),
  );
}

function eventTable(events: readonly JobEvent[]): string {
  return table(
    ['AT', 'FROM', 'TO', 'REASON', 'CODE', 'WHO'],
    events.map((event) => [time(event.at), event.from, event.to, event.reason, event.code, event.who]),
  );
}

function adviceFor(job: JobView): string | null {
  switch (job.state) {
    case 'failed':
      if (job.errorCode === 'staging_lost' || job.errorCode === 'staging_corrupt') return uploadAgain;
      return `${(job.errorCode && remedies[job.errorCode]) ?? 'A replay helps once the cause is gone.'}\nTo try it again: npm run -s skrepka -- replay ${job.id}`;
    case 'queued':
      return 'It waits for a worker. When "status" tells that due jobs wait long, look at relay and workers.';
    case 'processing':
      return 'A worker has it until its lease ends; a hung or dead one loses it then.';
    default:
      return null;
  }
}

const byLimit = (setting: string) =>
  `The picture is above ${setting}. A replay helps after that was raised and the workers were started again.`;
const uploadAgain =
  'The owner has to upload the file again: a replay helps only when the object was put back under its key, whole. "doctor" tells what else is lost.';

/** What can be done about a failure. */
const remedies: Readonly<Partial<Record<Code, string>>> = {
  corrupt_image: 'The picture itself is the cause. A replay helps only when a newer build can decode it.',
  too_many_pixels: byLimit('MAX_PIXELS (AVIF: MAX_PIXELS_AVIF)'),
  too_many_frames: byLimit('MAX_FRAMES'),
  too_many_scans: byLimit('MAX_SCANS'),
  render_timeout:
    'It took longer than RENDER_TIMEOUT. A replay helps when the machine was overloaded, or after that was raised.',
  render_memory:
    'It needed more than RENDER_MEMORY. A replay helps after that was raised and the workers were started again.',
  render_crashed: 'The decoder crashed on it. A replay helps when a newer build does not.',
  worker_lost: 'Its workers died or hung while they had it: look at their log and their memory first, then replay.',
  storage_unavailable:
    'The storage refused this object again and again. A replay helps once "status" and "doctor" find the storage well.',
  internal: 'A fault of ours: the detail and the log of the worker say where. A replay helps once it is mended.',
};

/* ----------------------------------------------------------------------- replay */

const refusals: Readonly<Record<Exclude<Replay, 'replayed'>, string>> = {
  already_succeeded: 'it has succeeded; there is nothing to replay',
  job_unfinished: 'it is queued or running already',
  job_ended: 'it was superseded or cancelled, or its attachment was deleted or shows a newer version',
  staging_gone: 'its original is not kept any more (FAILED_RETENTION); the owner has to upload it again',
  not_found: 'there is no such job, and no attachment with a job',
};

export async function replayJobs({ operate, store, say }: Tools, order: OrderOf<'replay'>): Promise<number> {
  const results: { id: string; result: Replay; job: ReturnType<typeof shapeJob> | null }[] = [];
  for (const id of order.ids) {
    const byId = await operate.replay(id, who);
    // An owner tells the id of the attachment: its newest job is meant.
    const [newest] = byId.replay === 'not_found' ? await jobsOf({ store }, id) : [];
    const { replay, job } = newest === undefined ? byId : await operate.replay(newest.id, who);
    const named = newest === undefined ? id : `${id}  job ${newest.id}`;
    results.push({ id, result: replay, job: job === null ? null : shapeJob(job) });
    if (order.json) continue;
    if (replay === 'replayed') say(`${named}  replayed: it is queued, in generation ${job?.generation ?? 'unknown'}`);
    else say(`${named}  nothing was changed: ${refusals[replay]}`);
  }
  if (order.json) say(JSON.stringify({ results }));
  return results.every(({ result }) => result === 'replayed') ? 0 : 1;
}

export async function replayMany(tools: Tools, order: OrderOf<'replay-many'>): Promise<number> {
  const { operate, say, note } = tools;
  const { errorCode, olderThanMs, youngerThanMs, limit, dryRun } = order;
  const filter = { errorCode, ownerId: await ownerOf(tools, order.owner), olderThanMs, youngerThanMs };
  const onProgress = (done: number) => note(`${done} looked at`);
  const answer = await operate.replayMany(filter, { limit, dryRun, who, onProgress });
  if (order.json) {
    say(JSON.stringify(shapeReplayed(answer)));
    return 0;
  }
  const { matched, replayed, skipped } = answer;
  if (dryRun) {
    say(
      `${count(matched, 'failed job')} matched; up to ${Math.min(matched, limit)} would be replayed. Nothing was changed.`,
    );
    return 0;
  }
  say(`${count(matched, 'failed job')} matched, ${replayed} replayed.`);
  for (const [reason, amount] of Object.entries(skipped)) {
    say(`${amount} skipped: ${refusals[reason as keyof typeof refusals]}`);
  }
  const seen = replayed + Object.values(skipped).reduce((sum, amount) => sum + amount, 0);
  if (matched > seen) say(`${matched - seen} left for another time: the limit was ${limit}.`);
  return 0;
}

/* -------------------------------------------------------------------- reprocess */

const outcomes: Readonly<Record<Reprocessed, string>> = {
  made: 'a job was made',
  replayed: 'its failed job of the version was replayed',
  exists: 'nothing was changed: a job of the version is unfinished',
  current: 'nothing was changed: it is at the version, or above',
  not_ready: 'nothing was changed: nothing of it is published yet; if its job failed, replay that',
  not_found: 'there is no such attachment',
};

export async function reprocess(tools: Tools, order: OrderOf<'reprocess'>): Promise<number> {
  if (order.attachment !== null) return await reprocessOne(tools, order.attachment, order);
  const { operate, store, say } = tools;
  const { retryFailed, dryRun, progress, wait, json } = order;
  const asksNothing = progress || dryRun;
  const { version, matching, wish } = await operate.reprocessAll({ retryFailed, dryRun: asksNothing, who });
  if (!json) {
    if (dryRun) say(`${count(matching, 'ready attachment')} below pipeline version ${version}. Nothing was changed.`);
    else if (wish === null)
      say(`Nobody has asked for pipeline version ${version} yet. ${count(matching, 'ready attachment')} below it.`);
    else if (!wait) say(`Pipeline version ${version}: ${progressLine(wish)}`);
  }
  const last = wait && wish !== null ? await waitFor(tools, json) : wish;
  if (!json && wait && last !== null && !isOver(last)) {
    say('It was ended early: the reprocessing goes on. Its progress: reprocess --progress');
  }
  const outcome = asksNothing ? null : 'asked';
  const left = wait ? await store.countBelow(version) : matching;
  if (json) say(JSON.stringify({ version, matching: left, outcome, reprocessing: shapeReprocessing(last) }));
  return wait && last !== null && last.failed > 0 ? 1 : 0;
}

async function reprocessOne(
  { operate, say }: Tools,
  id: string,
  { dryRun, json }: OrderOf<'reprocess'>,
): Promise<number> {
  const outcome = dryRun ? await operate.foresee(id) : await operate.reprocessOne(id, who);
  if (json) say(JSON.stringify({ version: operate.version, attachment_id: id, outcome, dry_run: dryRun }));
  else if (dryRun && outcome === 'made')
    say(`${id}  would be brought to pipeline version ${operate.version}. Nothing was changed.`);
  else say(`${id}  pipeline version ${operate.version}: ${outcomes[outcome]}`);
  return outcome === 'not_ready' || outcome === 'not_found' ? 1 : 0;
}

async function waitFor({ operate, say, signal }: Tools, json: boolean): Promise<Reprocessing | null> {
  let before = '';
  const tell = (wish: Reprocessing) => {
    const line = progressLine(wish);
    if (!json && line !== before) say(line);
    before = line;
  };
  return await operate.follow(1000, tell, signal);
}

const isOver = ({ doneAt, unfinished }: Reprocessing): boolean => doneAt !== null && unfinished === 0;

/** How a wish stands. One that has ended does not take up what has become ready below its version since: that needs another. */
export function progressLine(wish: Reprocessing): string {
  const { version, remaining, unfinished, succeeded, failed, doneAt } = wish;
  const made = `${unfinished} unfinished, ${succeeded} succeeded, ${failed} failed`;
  if (doneAt !== null && remaining > 0) {
    return `the wish has ended: ${made} so far; ${remaining} more are ready below version ${version}: ask again`;
  }
  return `${isOver(wish) ? 'all is over' : 'under way'}: ${remaining} to come, ${made}`;
}
