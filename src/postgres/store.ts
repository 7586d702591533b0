/**
 * The store's port on PostgreSQL, put together from its parts. What is added here is the telling: `due` when a bell was
 * set, `changed` when an attachment changed its state, both after the commit and never inside a transaction.
 */
import { inBatches } from '../batches.ts';
import type { Signals } from '../pipeline/ports.ts';
import { type Store, StoreError } from '../pipeline/store.ts';
import * as attachments from './attachments.ts';
import { audit, audited } from './audit.ts';
import * as bells from './bells.ts';
import * as claims from './claims.ts';
import * as cleanups from './cleanups.ts';
import { countFailed, failedJobs } from './failures.ts';
import * as generations from './generations.ts';
import * as idempotency from './idempotency.ts';
import { schemaProblem } from './migrate.ts';
import { ownStatement, type Pool, transaction } from './pool.ts';
import * as queue from './queue.ts';
import * as reprocessings from './reprocessings.ts';
import { retire } from './retention.ts';
import * as endings from './settle.ts';

export interface StoreSettings {
  /** How often the leader's connection is asked whether it lives. */
  readonly leadCheckMs?: number;
}

/** `pool` stays its caller's to end, after `close`, which ends the leads. A lead holds one connection of the pool. */
export function createStore(
  { pool, signals }: { pool: Pool; signals: Signals },
  { leadCheckMs = 5_000 }: StoreSettings = {},
): Store {
  const closing = new AbortController();
  const leads = new Set<Promise<unknown>>();
  const claim = claims.createClaim(pool);
  const settle = endings.createSettle(pool);

  /** An end of an attempt: a bell was set, and perhaps an attachment's state. */
  function told<Kind>(attachmentId: string, end: endings.End<Kind>): Kind {
    if (end.changed) signals.announce('changed', attachmentId);
    if (end.kind === 'retried' || end.kind === 'released') signals.announce('due');
    return end.kind;
  }

  return {
    ...untold(pool),
    ...operated(pool, signals),
    async accept(upload) {
      const acceptance = await attachments.accept(pool, upload);
      if (acceptance.kind === 'accepted') signals.announce('due');
      return acceptance;
    },
    async claim(request) {
      const { result, changed } = await claim(request);
      if (changed !== null) signals.announce('changed', changed);
      return result;
    },
    settle: async (attempt, result, options) => told(attempt.attachmentId, await settle(attempt, result, options)),
    fail: async (attempt, failure, options) =>
      told(attempt.attachmentId, await endings.fail(pool, attempt, failure, options)),
    release: async (attempt, options) => told(attempt.attachmentId, await endings.release(pool, attempt, options)),
    async deleteAttachment(ownerId, id, { graceMs }) {
      const deleted = await attachments.deleteAttachment(pool, ownerId, id, graceMs);
      if (deleted) signals.announce('changed', id);
      return deleted;
    },
    lead(name, work) {
      const led = cleanups.lead(pool, name, work, { checkMs: leadCheckMs, closing: closing.signal });
      const done = led.catch(() => undefined).finally(() => leads.delete(done));
      leads.add(done);
      return led;
    },
    async close() {
      closing.abort();
      await Promise.all(leads);
    },
  };
}

type Told = 'accept' | 'claim' | 'settle' | 'fail' | 'release' | 'deleteAttachment' | 'lead' | 'close';
type Operated = 'replay' | 'reprocess' | 'rebuild' | 'feedReprocessing';

/** The operators' verbs that set bells. */
function operated(pool: Pool, signals: Signals): Pick<Store, Operated> {
  return {
    async replay(jobId, options) {
      const { kind, changed } = await generations.replay(pool, jobId, options);
      if (changed !== null) signals.announce('changed', changed);
      if (kind === 'replayed') signals.announce('due');
      return kind;
    },
    async reprocess(attachmentId, options) {
      const reprocessed = await reprocessings.reprocess(pool, attachmentId, options);
      if (reprocessed === 'made' || reprocessed === 'replayed') signals.announce('due');
      return reprocessed;
    },
    async rebuild(attachmentId, options) {
      const rebuild = await generations.rebuild(pool, attachmentId, options);
      if (rebuild === 'rebuilding') signals.announce('due');
      return rebuild;
    },
    async feedReprocessing(options) {
      const made = await reprocessings.feedReprocessing(pool, options);
      if (made > 0) signals.announce('due');
      return made;
    },
  };
}

/** The verbs after which nobody needs to be woken. */
function untold(pool: Pool): Omit<Store, Told | Operated> {
  const mark = inBatches((marks: readonly bells.Mark[]) => bells.markRung(pool, marks), ownStatement);
  const pass = inBatches((passed: readonly cleanups.Passed[]) => cleanups.passedCleanups(pool, passed), ownStatement);
  return {
    arrive: (userId) => attachments.arrive(pool, userId),
    load: () => attachments.load(pool),
    reserve: (name) => idempotency.reserve(pool, name),
    extendReservation: (name) => idempotency.extendReservation(pool, name),
    dropReservation: (name) => idempotency.dropReservation(pool, name),

    takeDue: (options) => bells.takeDue(pool, options),
    markRung: (ring, options) => mark({ ring, ...options }),
    ringAgain: (limit) => bells.ringAgain(pool, limit),
    countAnnounced: () => bells.countAnnounced(pool),
    recentPace: () => bells.recentPace(pool),
    untilDueMs: (capMs) => bells.untilDueMs(pool, capMs),

    readAttempt: (jobId, attemptId) => claims.readAttempt(pool, jobId, attemptId),
    renew: (attempt, options) => claims.renew(pool, attempt, options),

    dueCleanups: (limit) => cleanups.dueCleanups(pool, limit),
    namedAmong: (keys) => cleanups.namedAmong(pool, keys),
    awaitingCleanup: (keys) => cleanups.awaitingCleanup(pool, keys),
    passedCleanup: (cleanup, againMs) => pass({ cleanup, againMs }),
    knownAttachments: (ids) => cleanups.knownAttachments(pool, ids),
    expire: (limit) => cleanups.expire(pool, limit),
    retire: (options) => retire(pool, options),
    addCleanups: (keys, options) => cleanups.addCleanups(pool, keys, options),

    attachmentFor: (userId, id) => attachments.attachmentFor(pool, userId, id),
    acceptedAttachment: (ownerId, id) => attachments.acceptedAttachment(pool, ownerId, id),
    listAttachments: (ownerId, filter) => attachments.listAttachments(pool, ownerId, filter),
    editAlt: (ownerId, id, alt) => attachments.editAlt(pool, ownerId, id, alt),
    queue: () => queue.queue(pool),
    listJobs: (filter) => queue.listJobs(pool, filter),
    job: (id) => queue.job(pool, id),
    failedJobs: (filter, limit) => failedJobs(pool, filter, limit),
    countFailed: (filter) => countFailed(pool, filter),
    askReprocessing: (options) => reprocessings.askReprocessing(pool, options),
    reprocessing: (version) => reprocessings.reprocessing(pool, version),
    countBelow: (version) => reprocessings.countBelow(pool, version),
    audit: (options) => audit(pool, options),
    audited: (id) => audited(pool, id),
    health: () => health(pool),
  };
}

async function health(pool: Pool): Promise<void> {
  const problem = await transaction(pool, schemaProblem);
  if (problem) throw new StoreError('unavailable', problem);
}
