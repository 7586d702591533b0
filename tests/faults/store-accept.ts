/** The model's verbs from accept to renew: steps 1 to 3. */
import type { Acceptance } from '../../src/pipeline/store.ts';
import {
  addCleanup,
  addEvent,
  attachmentOf,
  attemptOf,
  claimOf,
  finish,
  isUnfinished,
  type JobRow,
  type KeyRow,
  type Moments,
  moveFirst,
  newJob,
  nextTurn,
  prefixOf,
  type Tables,
  viewOf,
} from './store-tables.ts';

const minuteMs = 60_000;

type Name = { userId: string; scope: string; key: string };
const keyOf = (name: Name) => `${name.userId} ${name.scope} ${name.key}`;

type Verbs = Pick<
  Moments,
  | 'arrive'
  | 'load'
  | 'reserve'
  | 'extendReservation'
  | 'dropReservation'
  | 'accept'
  | 'acceptedAttachment'
  | 'attachmentFor'
>;

export function acceptVerbs(tables: Tables): Verbs {
  const { attachments, jobs, keys, nowMs } = tables;
  const held = (name: Name & { token: string }): KeyRow | null => {
    const row = keys.get(keyOf(name));
    return row && row.token === name.token && row.fingerprint === null ? row : null;
  };
  return {
    arrive(userId) {
      const own = [...jobs.values()].filter((job) => job.ownerId === userId && job.origin === 'upload');
      return {
        startedAt: new Date(nowMs()).toISOString(),
        pending: own.filter((job) => isUnfinished(job) && !job.rebuild).length,
        lately: own.filter((job) => job.createdAt > nowMs() - minuteMs).length,
      };
    },
    load() {
      const all = [...jobs.values()];
      const staged = [...attachments.values()].filter((row) => row.stagingGoneAt === null && row.state !== 'failed');
      const queued = all.filter((job) => job.state === 'queued' && job.origin === 'upload' && !job.rebuild);
      const finishedWithin = (seconds: number) =>
        all.filter((job) => job.finishedAt !== null && job.finishedAt > nowMs() - seconds * 1000).length;
      return {
        queued: queued.length,
        stagingBytes: staged.reduce((sum, row) => sum + row.size, 0),
        finishedPerSecond: Math.max(finishedWithin(60) / 60, finishedWithin(10) / 10),
      };
    },
    reserve(name) {
      const row = keys.get(keyOf(name));
      const isFree =
        !row ||
        (row.fingerprint === null && (row.leaseUntil <= nowMs() || row.token === name.token)) ||
        (row.expiresAt !== null && row.expiresAt <= nowMs());
      if (isFree) {
        const leaseUntil = nowMs() + name.leaseMs;
        keys.set(keyOf(name), { token: name.token, leaseUntil, fingerprint: null, resultId: null, expiresAt: null });
        return { kind: 'reserved' };
      }
      if (row.fingerprint !== null && row.resultId !== null) {
        return { kind: 'answered', fingerprint: row.fingerprint, resultId: row.resultId };
      }
      return { kind: 'in_flight', retryAfterSeconds: Math.max(1, Math.ceil((row.leaseUntil - nowMs()) / 1000)) };
    },
    extendReservation(name) {
      const row = held(name);
      if (row) row.leaseUntil = nowMs() + name.leaseMs;
      return row !== null;
    },
    dropReservation(name) {
      if (held(name)) keys.delete(keyOf(name));
    },
    accept: (upload) => accept(tables, upload, held),
    acceptedAttachment(ownerId, id) {
      const row = attachments.get(id);
      return row && row.ownerId === ownerId ? viewOf(tables, row) : null;
    },
    // Chats are not in the model: only the owner reads.
    attachmentFor(userId, id) {
      const row = attachments.get(id);
      return row && row.ownerId === userId && row.deletedAt === null ? viewOf(tables, row) : null;
    },
  };
}

function accept(
  tables: Tables,
  upload: Parameters<Moments['accept']>[0],
  held: (name: Name & { token: string }) => KeyRow | null,
): Acceptance {
  const now = tables.nowMs();
  const inTime = Date.parse(upload.startedAt) > now - upload.uploadMsMax;
  const key = upload.reservation && held(upload.reservation);
  const present = tables.attachments.get(upload.id);
  const refused = !inTime ? 'too_old' : upload.reservation && !key ? 'reservation_lost' : null;
  // Sent again after an unknown outcome: what is there is the answer.
  if (present) return { kind: 'accepted', attachment: viewOf(tables, present) };
  if (refused) return { kind: refused };
  if (key && upload.reservation) {
    key.fingerprint = upload.reservation.fingerprint;
    key.resultId = upload.id;
    key.expiresAt = now + upload.reservation.keepMs;
  }
  const turn = nextTurn(tables, { ownerId: upload.ownerId, origin: 'upload' }, upload.spacingMs);
  const { id, ownerId, kind, fileName, contentType, size, sha256, alt, stagingKey } = upload;
  tables.attachments.set(id, {
    ...{ id, ownerId, kind, fileName, contentType, size, sha256, alt, stagingKey },
    state: 'queued',
    width: null,
    height: null,
    frames: null,
    placeholder: null,
    pipelineVersion: 0,
    errorCode: null,
    stagingGoneAt: null,
    originalKey: null,
    createdAt: now,
    updatedAt: now,
    readyAt: null,
    deletedAt: null,
    variants: [],
  });
  const { jobId, version, traceparent } = upload;
  const job = newJob(tables, { id: jobId, attachmentId: id, ownerId, version, origin: 'upload', traceparent, turn });
  addEvent(tables, job, { from: null, who: 'api', reason: 'accepted' });
  return { kind: 'accepted', attachment: viewOf(tables, tables.attachments.get(id) as never) };
}

/* -------------------------------------------------------------------- relay */

type RelayVerbs = Pick<Moments, 'takeDue' | 'markRung' | 'ringAgain' | 'countAnnounced' | 'recentPace' | 'untilDueMs'>;

export function relayVerbs(tables: Tables): RelayVerbs {
  const { jobs, nowMs } = tables;
  const all = () => [...jobs.values()];
  const announced = () => all().filter((job) => job.rungAt !== null);
  const placed = () => announced().filter((job) => job.state === 'queued').length;
  const isDue = (job: JobRow) => job.ringAt !== null && job.ringAt <= nowMs();
  return {
    takeDue({ limit, window, takenMs }) {
      const again = all()
        .filter((job) => (job.state === 'processing' || job.rungAt !== null) && isDue(job))
        .sort((a, b) => (a.ringAt as number) - (b.ringAt as number))
        .slice(0, limit);
      const free = Math.max(0, window - placed());
      const fresh = all()
        .filter((job) => job.state === 'queued' && job.rungAt === null && isDue(job))
        .sort(byTurn)
        .slice(0, Math.min(limit - again.length, free));
      const taken = [...again, ...fresh];
      for (const job of taken) {
        job.rings += 1;
        job.rungAt = nowMs();
        job.ringAt = nowMs() + takenMs;
      }
      return taken.sort(byTurn).map((job) => ({
        jobId: job.id,
        ring: job.rings,
        traceparent: job.traceparent,
        again: job.confirmed > 0,
      }));
    },
    markRung(ring, { baseMs, capMs, jitter }) {
      const job = jobs.get(ring.jobId);
      if (!job || job.rings !== ring.ring || job.rungAt === null || isDue(job)) return false;
      job.ringAt = nowMs() + Math.min(capMs, baseMs * 2 ** Math.min(job.confirmed, 40)) * jitter;
      job.confirmed += 1;
      return true;
    },
    ringAgain(limit) {
      const waiting = announced()
        .filter((job) => (job.ringAt as number) > nowMs())
        .sort((a, b) => (a.rungAt as number) - (b.rungAt as number))
        .slice(0, limit);
      for (const job of waiting) job.ringAt = nowMs();
      return waiting.length;
    },
    countAnnounced: () => announced().length,
    recentPace() {
      const answered = all()
        .filter((job) => job.waitedMs !== null && job.claimedAt !== null && job.claimedAt > nowMs() - 5 * minuteMs)
        .sort((a, b) => (b.claimedAt as number) - (a.claimedAt as number))
        .slice(0, 100);
      const sum = answered.reduce((total, job) => total + (job.waitedMs as number), 0);
      const lately = all().filter((job) => job.claimedAt !== null && job.claimedAt > nowMs() - 5_000).length;
      return { waitMs: answered.length === 0 ? 0 : sum / answered.length, claimsPerSecond: lately / 5 };
    },
    untilDueMs(capMs) {
      const bells = all().flatMap((job) => (job.ringAt === null ? [] : [job.ringAt]));
      return Math.max(0, Math.min(capMs, ...bells.map((ringAt) => Math.ceil(ringAt - nowMs()))));
    },
  };
}

/** Uploads before reprocessing, then by turn, then by id. */
function byTurn(a: JobRow, b: JobRow): number {
  if (a.origin !== b.origin) return a.origin === 'upload' ? -1 : 1;
  return a.turn - b.turn || (a.id < b.id ? -1 : 1);
}

/* -------------------------------------------------------------------- claim */

type ClaimVerbs = Pick<Moments, 'claim' | 'readAttempt' | 'renew'>;

export function claimVerbs(tables: Tables): ClaimVerbs {
  const { jobs, nowMs } = tables;
  return {
    claim(request) {
      const job = jobs.get(request.jobId);
      if (!job || !isUnfinished(job)) return { kind: 'refused', reason: 'finished' };
      if (job.state === 'queued' && job.notBefore > nowMs()) return { kind: 'refused', reason: 'not_yet' };
      if (job.state === 'processing' && (job.leaseUntil as number) > nowMs())
        return { kind: 'refused', reason: 'leased' };
      if (!request.versions.includes(job.version)) {
        job.ringAt = nowMs() + request.unsupportedMs;
        job.rungAt = null;
        return { kind: 'refused', reason: 'unsupported' };
      }
      const attachment = attachmentOf(tables, job);
      const from = job.state;
      if (from === 'processing') {
        addCleanup(tables, { key: prefixOf(attemptOf(job)), afterMs: request.graceMs, passes: 1, reason: 'crashed' });
        job.crashes += 1;
        if (job.crashes >= request.budgets.crashesMax) {
          job.errorCode = 'worker_lost';
          job.errorDetail = `the lease of ${job.worker} ended without a word`;
          job.rebuild = false;
          finish(tables, job, 'failed');
          const why = { code: 'worker_lost', detail: job.errorDetail } as const;
          addEvent(tables, job, { from, who: request.worker, reason: 'exhausted', ...why });
          moveFirst(tables, attachment, 'failed', 'worker_lost');
          return { kind: 'refused', reason: 'exhausted' };
        }
      }
      const waited = {
        dueMs: Math.max(0, nowMs() - Math.max(job.notBefore, job.leaseUntil ?? 0)),
        acceptedMs: nowMs() - attachment.createdAt,
      };
      begin(tables, job, request);
      addEvent(tables, job, { from, who: request.worker, reason: from === 'processing' ? 'crashed' : 'claimed' });
      if (from === 'queued') moveFirst(tables, attachment, 'processing', null);
      return { kind: 'claimed', claim: claimOf(tables, job), waited };
    },
    readAttempt(jobId, attemptId) {
      const job = jobs.get(jobId);
      if (!job || job.attemptId !== attemptId) return { kind: 'lost' };
      if (job.state === 'processing') return { kind: 'running', claim: claimOf(tables, job) };
      return { kind: 'ended', jobState: job.state };
    },
    renew(attempt, { leaseMs, marginMs }) {
      const job = jobs.get(attempt.jobId);
      if (!job || job.fence !== attempt.fence || job.attemptId !== attempt.attemptId || job.state !== 'processing')
        return false;
      job.leaseUntil = nowMs() + leaseMs;
      job.ringAt = nowMs() + leaseMs + marginMs;
      job.rungAt = null;
      return true;
    },
  };
}

function begin(tables: Tables, job: JobRow, request: Parameters<Moments['claim']>[0]): void {
  const now = tables.nowMs();
  job.state = 'processing';
  job.fence += 1;
  job.attemptId = request.attemptId;
  job.worker = request.worker;
  job.attempts += 1;
  job.confirmed = 0;
  job.leaseUntil = now + request.leaseMs;
  job.ringAt = now + request.leaseMs + request.marginMs;
  job.waitedMs = job.rungAt === null ? null : Math.max(0, now - job.rungAt);
  job.rungAt = null;
  job.claimedAt = now;
  job.updatedAt = now;
}
