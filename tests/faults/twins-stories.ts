/**
 * Stories for the twins: a few verbs that belong together, on the way to what single random verbs reach too rarely. Each verb is
 * made when its turn comes, from what there is then; null where the story has come to nothing.
 */
import type { Attempt } from '../../src/pipeline/job.ts';
import { attemptOf, type JobRow, jobsOf, type Tables } from './store-tables.ts';
import type { Next } from './twins-given.ts';

export type Chapter = () => Next | null;

/** The verbs of which stories are made. */
export interface Makers {
  readonly tables: Tables;
  pick<T>(from: readonly T[]): T;
  claimOf(jobId: string): Next;
  /** Each verb with which an attempt ends, or prolongs its lease. */
  endsOf(attempt: Attempt): readonly Next[];
  settleOf(attempt: Attempt): Next;
  /** Ends its job, however often it has failed before. */
  failForGoodOf(attempt: Attempt): Next;
  replayOf(jobId: string): Next;
  /** Staging of everything that has failed goes. */
  retireAll(): Next;
  rebuildOf(attachmentId: string): Next;
  reprocessOf(attachmentId: string): Next;
  takeAll(): Next;
  markOf(jobId: string, ring: number): Next;
  ringAllAgain(): Next;
  deleteOf(attachmentId: string): Next;
  /** Which of all keys that ever were are named. */
  namedOfAll(): Next;
}

export function createStories(makers: Makers): { next(): readonly Chapter[] } {
  const stories = [
    ...[zombie(makers), zombie(makers), late(makers), lostMessage(makers), staleMark(makers), staleMark(makers)],
    ...[overtaken(makers), tooOld(makers), sourceGone(makers)],
    ...[deletedUnder(makers), deletedAfter(makers)],
  ];
  return { next: () => makers.pick(stories)() };
}

const running = (tables: Tables) => [...tables.jobs.values()].filter((job) => job.state === 'processing');
const isOver = (tables: Tables) => (job: JobRow) => (job.leaseUntil as number) <= tables.nowMs();

/** An attempt whose lease has ended wants to end while its successor runs. */
function zombie(makers: Makers): () => Chapter[] {
  const { tables, pick } = makers;
  return () => {
    const job = pick(running(tables).filter(isOver(tables)));
    if (!job) return [];
    const before = attemptOf(job);
    return [() => makers.claimOf(job.id), () => pick(makers.endsOf(before))];
  };
}

/** An attempt wants to end, and has ended. */
function late({ tables, pick, endsOf }: Makers): () => Chapter[] {
  return () => {
    const job = pick(running(tables));
    if (!job) return [];
    const attempt = attemptOf(job);
    return [() => pick(endsOf(attempt)), () => pick(endsOf(attempt))];
  };
}

/** A set of an older version is made anew, and a newer version is published before it is settled. */
function overtaken(makers: Makers): () => Chapter[] {
  const { tables, pick, rebuildOf, reprocessOf } = makers;
  return () => {
    const old = pick([...tables.attachments.values()].filter((row) => isOld(tables, row.id)));
    if (!old) return [];
    const [first, second] = [attemptsAt(makers, old.id, 1), attemptsAt(makers, old.id, 2)];
    const begun: Chapter[] = [() => rebuildOf(old.id), first.claim, () => reprocessOf(old.id), second.claim];
    return [...begun, second.settle, first.settle];
  };
}

/** A set of an older version could not be made anew, a newer version is published, and the older one is wished for again. */
function tooOld(makers: Makers): () => Chapter[] {
  const { tables, pick, rebuildOf, reprocessOf } = makers;
  return () => {
    const old = pick([...tables.attachments.values()].filter((row) => isOld(tables, row.id)));
    if (!old) return [];
    const [first, second] = [attemptsAt(makers, old.id, 1), attemptsAt(makers, old.id, 2)];
    const failed: Chapter[] = [() => rebuildOf(old.id), first.claim, first.failForGood];
    return [...failed, () => reprocessOf(old.id), second.claim, second.settle, first.replay];
  };
}

/** An upload failed for good, its original was given up, and it is wished for again. */
function sourceGone(makers: Makers): () => Chapter[] {
  const { tables, pick, retireAll } = makers;
  const isWaiting = (job: JobRow) => job.state === 'queued' && job.notBefore <= tables.nowMs();
  return () => {
    const job = pick([...tables.jobs.values()].filter((one) => one.origin === 'upload' && isWaiting(one)));
    if (!job) return [];
    const only = attemptsAt(makers, job.attachmentId, job.version);
    return [only.claim, only.failForGood, retireAll, only.replay];
  };
}

/** Chapters about the job of one attachment and version, which may not be there yet. */
function attemptsAt(makers: Makers, attachmentId: string, version: number) {
  const { tables, claimOf, settleOf, failForGoodOf, replayOf } = makers;
  const tell = (of: (job: JobRow) => Next | null) => () => {
    const job = jobsOf(tables, attachmentId).find((one) => one.version === version);
    return job ? of(job) : null;
  };
  const whileItRuns = (of: (attempt: Attempt) => Next) =>
    tell((job) => (job.state === 'processing' ? of(attemptOf(job)) : null));
  return {
    claim: tell((job) => claimOf(job.id)),
    settle: whileItRuns(settleOf),
    failForGood: whileItRuns(failForGoodOf),
    replay: tell((job) => replayOf(job.id)),
  };
}

function isOld(tables: Tables, id: string): boolean {
  const row = tables.attachments.get(id);
  return row?.state === 'ready' && row.deletedAt === null && row.kind === 'image' && row.pipelineVersion === 1;
}

/** The message that tells of a dead attempt was confirmed, and is lost. */
function lostMessage({ tables, pick, takeAll, markOf, ringAllAgain }: Makers): () => Chapter[] {
  return () => {
    const job = pick(running(tables).filter(isOver(tables)));
    if (!job) return [];
    return [takeAll, () => markOf(job.id, job.rings), ringAllAgain];
  };
}

/** A job is claimed, its bell hastened or even taken again, before the first relay that took it has its confirmation. */
function staleMark({ tables, pick, claimOf, takeAll, markOf, ringAllAgain }: Makers): () => Chapter[] {
  return () => {
    const job = pick([...tables.jobs.values()].filter((one) => one.ringAt !== null && one.ringAt <= tables.nowMs()));
    if (!job) return [];
    const rung = () => markOf(job.id, job.rings);
    return pick([
      [takeAll, () => claimOf(job.id), rung],
      [takeAll, ringAllAgain, rung],
      [takeAll, ringAllAgain, takeAll, () => markOf(job.id, job.rings - 1)],
    ]);
  };
}

/** An attachment is deleted under its attempt, which wants to end. */
function deletedUnder({ tables, pick, deleteOf, settleOf, endsOf, namedOfAll }: Makers): () => Chapter[] {
  return () => {
    const job = pick(running(tables));
    if (!job) return [];
    const attempt = attemptOf(job);
    const end = () => pick([settleOf(attempt), ...endsOf(attempt)]);
    return [namedOfAll, () => deleteOf(job.attachmentId), end, namedOfAll];
  };
}

/** What is published is deleted. */
function deletedAfter({ tables, pick, deleteOf, namedOfAll }: Makers): () => Chapter[] {
  return () => {
    const shown = pick(
      [...tables.attachments.values()].filter((row) => row.state === 'ready' && row.deletedAt === null),
    );
    return shown ? [() => deleteOf(shown.id), namedOfAll] : [];
  };
}
