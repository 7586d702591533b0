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
  rebuildOf(attachmentId: string): Next;
  reprocessOf(attachmentId: string): Next;
  takeAll(): Next;
  markOf(jobId: string, ring: number): Next;
  ringAllAgain(): Next;
}

export function createStories(makers: Makers): { next(): readonly Chapter[] } {
  const stories = [zombie(makers), zombie(makers), late(makers), overtaken(makers), lostMessage(makers)];
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
function overtaken({ tables, pick, claimOf, settleOf, rebuildOf, reprocessOf }: Makers): () => Chapter[] {
  return () => {
    const old = pick([...tables.attachments.values()].filter((row) => isOld(tables, row.id)));
    if (!old) return [];
    const ofVersion = (version: number) => jobsOf(tables, old.id).find((job) => job.version === version);
    const claim = (version: number) => () => {
      const job = ofVersion(version);
      return job ? claimOf(job.id) : null;
    };
    const settle = (version: number) => () => {
      const job = ofVersion(version);
      return job?.state === 'processing' ? settleOf(attemptOf(job)) : null;
    };
    const begun: Chapter[] = [() => rebuildOf(old.id), claim(1), () => reprocessOf(old.id), claim(2)];
    return [...begun, settle(2), settle(1)];
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
