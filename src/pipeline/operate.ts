/**
 * What operators ask for, over the store: replays of one and of many, reprocessing, and attempts read out of a history.
 *
 * Nothing is decided here that the store does not decide again under its locks, so two operators at once, or one who asks twice,
 * do no harm: whoever comes second is told that nothing was changed. It dies at any instruction without leaving anything half done.
 */
import type { Code } from '../errors.ts';
import type { Clock, Log } from './ports.ts';
import { newestVersion } from './recipe.ts';
import type { FailedFilter, JobEvent, JobView, Replay, Reprocessed, Reprocessing } from './registry.ts';
import type { Store } from './store.ts';

export interface OperateDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
}

export interface OperateSettings {
  /** The version that reprocessing makes; 0: the newest of this build. */
  readonly pipelineVersion: number;
  readonly spacingMs: number;
}

/** How a replay of many went. Each job that was looked at is counted once: `replayed`, or by why it was skipped. */
export interface Replayed {
  /** Failed jobs that fitted the filter when it began. */
  readonly matched: number;
  readonly replayed: number;
  readonly skipped: Readonly<Partial<Record<Replay, number>>>;
}

export interface ReprocessAsked {
  readonly version: number;
  /** Ready attachments below the version. */
  readonly matching: number;
  /** Null when nobody asked for the version yet. */
  readonly wish: Reprocessing | null;
}

export interface Operate {
  /** The version that reprocessing makes. */
  readonly version: number;
  /** `who` is for the history: `operator <handle>`. The job is as it stands afterwards; null when there is none. */
  replay(jobId: string, who: string): Promise<{ replay: Replay; job: JobView | null }>;
  /** Oldest failure first, at most `limit` replayed or skipped. A dry run only counts. */
  replayMany(
    filter: FailedFilter,
    options: { limit: number; dryRun: boolean; who: string; onProgress?: (done: number) => void },
  ): Promise<Replayed>;
  reprocessOne(attachmentId: string, who: string): Promise<Reprocessed>;
  /** What `reprocessOne` would answer, but for a job of the version that exists already: that only the doing tells. */
  foresee(attachmentId: string): Promise<'made' | 'current' | 'not_ready' | 'not_found'>;
  /** Writes the wish down, or only counts. The leading janitor makes its jobs little by little. */
  reprocessAll(options: { retryFailed: boolean; dryRun: boolean; who: string }): Promise<ReprocessAsked>;
  reprocessing(): Promise<Reprocessing | null>;
  /** Tells how the wish stands, every `everyMs`, until all its jobs are over or `signal` aborts. Answers the last. */
  follow(everyMs: number, tell: (wish: Reprocessing) => void, signal: AbortSignal): Promise<Reprocessing | null>;
}

/** Ids that one question to the store asks for. */
const batchMax = 100;

export function createOperate({ store, clock, log }: OperateDeps, settings: OperateSettings): Operate {
  const { spacingMs } = settings;
  const version = settings.pipelineVersion || newestVersion;

  return {
    version,

    async replay(jobId, who) {
      const replay = await store.replay(jobId, { who, spacingMs });
      if (replay === 'replayed') log.info({ jobId, who }, 'replayed');
      const found = replay === 'not_found' ? null : await store.job(jobId);
      return { replay, job: found?.job ?? null };
    },

    async replayMany(filter, { limit, dryRun, who, onProgress = () => {} }) {
      const matched = await store.countFailed(filter);
      const outcomes = new Map<Replay, number>();
      if (!dryRun) {
        for await (const jobId of failedJobs(filter, limit)) {
          const outcome = await store.replay(jobId, { who, spacingMs });
          outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
          onProgress(sum(outcomes.values()));
        }
        log.info({ who, ...Object.fromEntries(outcomes) }, 'replayed many');
      }
      const { replayed = 0, ...skipped } = Object.fromEntries(outcomes) as Partial<Record<Replay, number>>;
      return { matched, replayed, skipped };
    },

    async reprocessOne(attachmentId, who) {
      const outcome = await store.reprocess(attachmentId, { version, who });
      log.info({ attachmentId, version, who, outcome }, 'reprocessing of one was asked for');
      return outcome;
    },

    async foresee(attachmentId) {
      const row = await store.audited(attachmentId);
      if (row === null) return 'not_found';
      if (row.state !== 'ready') return 'not_ready';
      return row.kind !== 'image' || row.version >= version ? 'current' : 'made';
    },

    async reprocessAll({ retryFailed, dryRun, who }) {
      const matching = await store.countBelow(version);
      if (dryRun) return { version, matching, wish: await store.reprocessing(version) };
      const wish = await store.askReprocessing({ version, retryFailed, who });
      log.info({ version, matching, retryFailed, who }, 'reprocessing was asked for');
      return { version, matching, wish };
    },

    reprocessing: () => store.reprocessing(version),

    async follow(everyMs, tell, signal) {
      while (true) {
        const wish = await store.reprocessing(version);
        if (wish === null) return null;
        tell(wish);
        if ((wish.doneAt !== null && wish.unfinished === 0) || signal.aborted) return wish;
        await clock.sleep(everyMs, signal);
      }
    },
  };

  /**
   * At most `limit` different ones. What was skipped is still failed and comes first again, and what was replayed may have failed
   * once more meanwhile: each question asks for as many more as were seen, and none is given twice.
   */
  async function* failedJobs(filter: FailedFilter, limit: number): AsyncGenerator<string> {
    const seen = new Set<string>();
    while (seen.size < limit) {
      const asked = await store.failedJobs(filter, seen.size + Math.min(batchMax, limit - seen.size));
      const fresh = asked.filter((id) => !seen.has(id)).slice(0, limit - seen.size);
      if (fresh.length === 0) return;
      for (const id of fresh) {
        seen.add(id);
        yield id;
      }
    }
  }
}

function sum(numbers: Iterable<number>): number {
  let total = 0;
  for (const number of numbers) total += number;
  return total;
}

/* -------------------------------------------------------------------- attempts */

/** One claim of a job. `outcome` is the reason of the event that ended it; `crashed`: its lease ended without a word; `running`: not ended. */
export interface AttemptView {
  readonly fence: number;
  readonly generation: number;
  readonly worker: string;
  readonly startedAt: Date;
  readonly endedAt: Date | null;
  readonly outcome: string;
  readonly code: Code | null;
  /** For operators: may name keys and hosts, never credentials. */
  readonly detail: string | null;
}

/**
 * The attempts in a job's history: they are not stored, so that the two can never disagree. One begins with every event that leads to
 * `processing`, and ends with the next event: when that is another claim, the lease had ended without a word, and the time is that
 * at which it was noticed. `generation` is the job's present one: counted back from it, since the oldest events may be gone.
 */
export function attemptsOf(events: readonly JobEvent[], generation: number): AttemptView[] {
  const attempts: AttemptView[] = [];
  let at = generation - events.filter(beginsGeneration).length;
  for (const event of events) {
    if (beginsGeneration(event)) at += 1;
    const running = attempts.at(-1);
    if (running && running.endedAt === null) {
      // `exhausted` is what the claim found; the attempt before it crashed like those before.
      const outcome = event.reason === 'exhausted' ? 'crashed' : event.reason;
      attempts[attempts.length - 1] = {
        ...running,
        endedAt: event.at,
        outcome,
        code: event.code,
        detail: event.detail,
      };
    }
    if (event.to !== 'processing') continue;
    const opened = { fence: event.fence, generation: at, worker: event.who, startedAt: event.at };
    attempts.push({ ...opened, endedAt: null, outcome: 'running', code: null, detail: null });
  }
  return attempts;
}

/** A replay or a rebuild: counters begin anew. */
export function beginsGeneration(event: JobEvent): boolean {
  return event.reason === 'replayed' || event.reason === 'rebuilding';
}
