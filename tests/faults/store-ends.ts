/** The model's verbs that end an attempt, a job or an attachment: steps 6 and after. */
import { catalogue, SkrepkaError } from '../../src/errors.ts';
import { type Attempt, endsJob } from '../../src/pipeline/job.ts';
import type { Result } from '../../src/pipeline/store.ts';
import {
  type AttachmentRow,
  addCleanup,
  addEvent,
  attachmentOf,
  finish,
  isUnfinished,
  type JobRow,
  jobsOf,
  type Moments,
  moveFirst,
  prefixOf,
  queueAgain,
  type Tables,
} from './store-tables.ts';

type Verbs = Pick<Moments, 'settle' | 'fail' | 'release' | 'deleteAttachment'>;

type Held =
  | { readonly kind: 'held'; readonly job: JobRow; readonly attachment: AttachmentRow }
  | { readonly kind: 'cancelled' }
  | { readonly kind: 'lost' };

export function endVerbs(tables: Tables): Verbs {
  const { nowMs } = tables;

  /** The guard of every end. */
  function hold(attempt: Attempt): Held {
    const job = tables.jobs.get(attempt.jobId);
    const isOwn = job && job.fence === attempt.fence && job.attemptId === attempt.attemptId;
    if (isOwn && job.state === 'processing') return { kind: 'held', job, attachment: attachmentOf(tables, job) };
    return { kind: isOwn && job.state === 'cancelled' ? 'cancelled' : 'lost' };
  }

  function clean(attempt: Attempt, graceMs: number, reason: string): void {
    addCleanup(tables, { key: prefixOf(attempt), afterMs: graceMs, passes: 1, reason });
  }

  return {
    settle(attempt, result, { graceMs, replacedMs, who }) {
      assertOwnKeys(attempt, result);
      const held = hold(attempt);
      if (held.kind === 'cancelled') clean(attempt, graceMs, 'cancelled');
      if (held.kind !== 'held') return held.kind;
      const { job, attachment } = held;
      const { pipelineVersion } = attachment;
      const publishes = pipelineVersion < job.version || (job.rebuild && pipelineVersion === job.version);
      job.rebuild = false;
      job.errorCode = null;
      job.errorDetail = null;
      if (!publishes) {
        finish(tables, job, 'superseded');
        addEvent(tables, job, { from: 'processing', who, reason: 'superseded' });
        clean(attempt, graceMs, 'superseded');
        return 'superseded';
      }
      publish(tables, attachment, job, result, replacedMs);
      finish(tables, job, 'succeeded');
      addEvent(tables, job, { from: 'processing', who, reason: 'settled' });
      return 'ready';
    },
    fail(attempt, { code, detail, retryMs }, { budgets, graceMs, who }) {
      const held = hold(attempt);
      if (held.kind === 'lost') return 'lost';
      clean(attempt, graceMs, held.kind === 'held' ? 'failed' : 'cancelled');
      if (held.kind === 'cancelled') return 'cancelled';
      const { job, attachment } = held;
      job.failures += 1;
      if (catalogue[code].fate === 'twice') job.strikes += 1;
      job.errorCode = code;
      job.errorDetail = detail;
      if (endsJob(code, job.failures, job.strikes, budgets)) {
        job.rebuild = false;
        finish(tables, job, 'failed');
        addEvent(tables, job, { from: 'processing', who, reason: 'failed', code, detail });
        moveFirst(tables, attachment, 'failed', code);
        return 'failed';
      }
      queueAgain(tables, job, nowMs() + retryMs);
      addEvent(tables, job, { from: 'processing', who, reason: 'retried', code, detail });
      moveFirst(tables, attachment, 'queued', null);
      return 'retried';
    },
    release(attempt, { reason, delayMs, graceMs, who }) {
      const held = hold(attempt);
      if (held.kind === 'lost') return 'lost';
      clean(attempt, graceMs, held.kind === 'held' ? 'released' : 'cancelled');
      if (held.kind === 'cancelled') return 'cancelled';
      const { job, attachment } = held;
      job.releases += 1;
      queueAgain(tables, job, nowMs() + delayMs);
      addEvent(tables, job, { from: 'processing', who, reason: 'released', detail: reason });
      moveFirst(tables, attachment, 'queued', null);
      return 'released';
    },
    deleteAttachment(ownerId, id, { graceMs }) {
      const attachment = tables.attachments.get(id);
      if (!attachment || attachment.ownerId !== ownerId || attachment.deletedAt !== null) return false;
      let running = false;
      for (const job of jobsOf(tables, id).filter(isUnfinished)) {
        const from = job.state;
        running ||= from === 'processing';
        job.rebuild = false;
        finish(tables, job, 'cancelled');
        addEvent(tables, job, { from, who: 'owner', reason: 'cancelled' });
      }
      attachment.deletedAt = nowMs();
      attachment.stagingGoneAt ??= nowMs();
      attachment.updatedAt = nowMs();
      attachment.variants = [];
      const folder = `attachments/${id}/`;
      addCleanup(tables, { key: attachment.stagingKey, afterMs: 0, passes: 0, reason: 'deleted' });
      if (!running) addCleanup(tables, { key: folder, afterMs: 0, passes: 0, reason: 'deleted' });
      addCleanup(tables, { key: folder, afterMs: graceMs, passes: 1, reason: 'deleted' });
      return true;
    },
  };
}

function assertOwnKeys(attempt: Attempt, result: Result): void {
  const prefix = prefixOf(attempt);
  const keys = [...result.variants.map((variant) => variant.key), ...(result.originalKey ? [result.originalKey] : [])];
  if (keys.some((key) => !key.startsWith(prefix))) {
    throw new SkrepkaError('internal', { log: `Expected keys below ${prefix} in a result` });
  }
}

function publish(tables: Tables, attachment: AttachmentRow, job: JobRow, result: Result, replacedMs: number): void {
  const now = tables.nowMs();
  if (attachment.originalKey === null && result.originalKey === null) {
    throw new SkrepkaError('internal', { log: `Expected an original in the first result of ${attachment.id}` });
  }
  for (const { key } of attachment.variants) {
    addCleanup(tables, { key, afterMs: replacedMs, passes: 0, reason: 'replaced' });
  }
  const hadOriginal = attachment.originalKey !== null;
  attachment.variants = result.variants;
  attachment.state = 'ready';
  attachment.pipelineVersion = job.version;
  attachment.originalKey ??= result.originalKey;
  attachment.width = result.width;
  attachment.height = result.height;
  attachment.frames = result.frames;
  attachment.placeholder = result.placeholder;
  attachment.errorCode = null;
  attachment.stagingGoneAt ??= now;
  attachment.readyAt ??= now;
  attachment.updatedAt = now;
  if (!hadOriginal) {
    addCleanup(tables, { key: attachment.stagingKey, afterMs: 0, passes: 0, reason: 'published' });
  } else if (result.originalKey !== null) {
    addCleanup(tables, { key: result.originalKey, afterMs: 0, passes: 0, reason: 'replaced' });
  }
}
