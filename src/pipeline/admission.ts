/**
 * Admission, the door of step 1 of 8, accept: decides before the body is read whether there is room for one more upload.
 * Before it: nothing, except that a key is reserved. After it: the bytes are taken in.
 *
 * Durable when it returns: nothing. A process that dies takes its places with it; nobody needs to repair them.
 *
 * A user is counted exactly: the database says what they have under way, this process adds what it has let in meanwhile.
 * The system is read once a second or once in 64 admissions, because the question costs more than an upload; between two
 * readings this process adds its own. What it cannot see is what other processes let in since, so n of them may pass a
 * limit by (n − 1) × (64 + MAX_UPLOADS) uploads, and no further. docs/operations.md has the proof.
 */
import { SkrepkaError } from '../errors.ts';
import type { Clock, Log, Meter } from './ports.ts';
import type { Arrival, Load, Store } from './store.ts';

export interface AdmissionSettings {
  /** Uploads that wait to be processed. */
  readonly backlogMax: number;
  /** Bytes of uploads that are not published yet. */
  readonly stagingBytesMax: number;
  /** Uploads that this process receives at once. */
  readonly uploadsMax: number;
  /** Unfinished uploads of one user. */
  readonly pendingPerUserMax: number;
  /** Uploads of one user that this process receives at once. */
  readonly uploadsPerUserMax: number;
  /** Accepted uploads of one user in a minute. */
  readonly uploadsPerMinuteMax: number;
  /** What an upload of unknown size may become. */
  readonly uploadBytesMax: number;
}

export interface AdmissionDeps {
  readonly store: Pick<Store, 'arrive' | 'load'>;
  readonly clock: Pick<Clock, 'monotonicMs' | 'random'>;
  readonly log: Log;
  readonly meter: Meter;
}

export interface Place {
  /** When the upload began, on the database's clock. */
  readonly startedAt: string;
  /** Gives the place back; only the first call counts. `acceptedBytes`: what was committed, or may have been; null: nothing was. */
  leave(acceptedBytes: number | null): void;
}

export interface Admission {
  /**
   * Takes a place for an upload of at most `sizeMax` bytes; null: unknown. Whoever gets one leaves it. Throws
   * `too_many_uploads` (what this user has: pending, at once, in a minute) and `overloaded` (what the service has: waiting
   * jobs, bytes in staging, uploads at once), both with the seconds to wait; rejects `StoreError` when nobody can say.
   */
  enter(userId: string, sizeMax: number | null): Promise<Place>;
  /**
   * Counts a repeat, whose body is only read to be compared: among the uploads that this process receives at once, and nowhere
   * else, for it is no new work. Answers how to end it; only the first call counts. Throws as `enter` does for those two limits.
   */
  repeat(userId: string): () => void;
}

/** How long and for how many admissions a reading of the system's load is good. */
export const reading = { ageMsMax: 1000, admissionsMax: 64 } as const;

type Why = 'pending' | 'parallel' | 'rate' | 'backlog' | 'staging' | 'uploads';

/** What is in this process, or came out of it since a reading began. */
interface Amount {
  count: number;
  bytes: number;
}

/** A user who has something under way here. `inside`: admitted; `entered`: those, the ones being decided on, and repeats. `accepted` only grows. */
interface Visitor {
  entered: number;
  inside: number;
  accepted: number;
}

/** The system as a reading found it, and what this process has done since. */
interface View {
  readonly load: Load;
  readonly atMs: number;
  /** Accepted here since the question was sent: the answer may not contain them. */
  readonly accepted: Amount;
  admissions: number;
  /** Those who were told to come back: they will want the room that becomes free before a later one. */
  refusals: number;
}

export function createAdmission(deps: AdmissionDeps, settings: AdmissionSettings): Admission {
  const visitors = new Map<string, Visitor>();
  const entered: Amount = { count: 0, bytes: 0 };
  const inside: Amount = { count: 0, bytes: 0 };
  const load = createLoad(deps);
  const refuse = createRefusal(deps);

  /** Both are known before anybody is asked: a flood ends here, and costs the database nothing. */
  function checkHere(visitor: Visitor): void {
    if (visitor.entered >= settings.uploadsPerUserMax)
      throw refuse('parallel', settings.uploadsPerUserMax, secondsForUploads);
    if (entered.count >= settings.uploadsMax) throw refuse('uploads', settings.uploadsMax, secondsForUploads);
  }

  /**
   * `before`: what this process had accepted of the user when `arrival` was asked for. What was accepted meanwhile may be in
   * both figures: then the answer errs on the strict side, and never on the other.
   */
  function checkUser(arrival: Arrival, visitor: Visitor, before: number, { load }: View): void {
    const own = visitor.inside + visitor.accepted - before;
    const over = arrival.pending + own + 1 - settings.pendingPerUserMax;
    if (over > 0) throw refuse('pending', settings.pendingPerUserMax, secondsToDrain(over, load));
    if (arrival.lately + own >= settings.uploadsPerMinuteMax) {
      throw refuse('rate', settings.uploadsPerMinuteMax, secondsForRate);
    }
  }

  function checkSystem(view: View, bytes: number): void {
    const { queued, stagingBytes } = view.load;
    const waiting = queued + view.accepted.count + inside.count;
    const staged = stagingBytes + view.accepted.bytes + inside.bytes;
    const over = waiting + 1 - settings.backlogMax;
    const bytesOver = staged + bytes - settings.stagingBytesMax;
    if (over <= 0 && bytesOver <= 0) return;
    view.refusals += 1;
    const jobsOver = over > 0 ? over : (bytesOver / Math.max(1, staged)) * Math.max(1, waiting);
    const seconds = secondsToDrain(jobsOver + view.refusals - 1, view.load);
    if (over > 0) throw refuse('backlog', settings.backlogMax, seconds);
    throw refuse('staging', settings.stagingBytesMax, seconds);
  }

  async function decide(userId: string, visitor: Visitor, bytes: number): Promise<Place> {
    const before = visitor.accepted;
    const arrival = await deps.store.arrive(userId);
    let view = load.fresh();
    while (view === null) {
      await load.refresh();
      view = load.fresh();
    }
    // From here to the end nothing waits: whoever is decided on next sees this one inside, and its admission counted.
    checkUser(arrival, visitor, before, view);
    checkSystem(view, bytes);
    view.admissions += 1;
    visitor.inside += 1;
    add(inside, 1, bytes);
    let left = false;
    return {
      startedAt: arrival.startedAt,
      leave(acceptedBytes) {
        if (left) return;
        left = true;
        visitor.inside -= 1;
        add(inside, -1, -bytes);
        if (acceptedBytes !== null) {
          visitor.accepted += 1;
          load.accepted(acceptedBytes);
        }
        exit(userId, visitor);
      },
    };
  }

  function exit(userId: string, visitor: Visitor): void {
    visitor.entered -= 1;
    add(entered, -1, 0);
    if (visitor.entered === 0) visitors.delete(userId);
  }

  function receive(userId: string): Visitor {
    const visitor = visitors.get(userId) ?? { entered: 0, inside: 0, accepted: 0 };
    checkHere(visitor);
    visitors.set(userId, visitor);
    visitor.entered += 1;
    add(entered, 1, 0);
    return visitor;
  }

  return {
    async enter(userId, sizeMax) {
      const visitor = receive(userId);
      try {
        return await decide(userId, visitor, Math.min(sizeMax ?? settings.uploadBytesMax, settings.uploadBytesMax));
      } catch (error) {
        exit(userId, visitor);
        throw error;
      }
    },
    repeat(userId) {
      const visitor = receive(userId);
      let left = false;
      return () => {
        if (!left) exit(userId, visitor);
        left = true;
      };
    },
  };
}

function add(amount: Amount, count: number, bytes: number): void {
  amount.count += count;
  amount.bytes += bytes;
}

/* ---------------------------------------------------------------- the system's load */

function createLoad({ store, clock }: AdmissionDeps) {
  let view: View | null = null;
  let running: Promise<void> | null = null;
  /** What was accepted since the last question was sent. */
  let accepted: Amount = { count: 0, bytes: 0 };

  async function read(): Promise<void> {
    const since: Amount = { count: 0, bytes: 0 };
    accepted = since;
    // The old view never becomes good again, so nobody is admitted while a new one is on its way: the bound depends on that.
    const load = await store.load();
    // Its age counts from the answer: a database that takes longer than a reading is good for must not stop all uploads.
    view = { load, atMs: clock.monotonicMs(), accepted: since, admissions: 0, refusals: 0 };
  }

  return {
    /** The reading, if it is good for one more admission. To be used before anything else happens. */
    fresh(): View | null {
      if (view === null || view.admissions >= reading.admissionsMax) return null;
      return clock.monotonicMs() - view.atMs < reading.ageMsMax ? view : null;
    },
    /** However many ask at once, the store is asked once. Rejects `StoreError`. */
    async refresh(): Promise<void> {
      running ??= read().finally(() => {
        running = null;
      });
      await running;
    },
    accepted: (bytes: number) => add(accepted, 1, bytes),
  };
}

/* ------------------------------------------------------------------------ refusals */

/** Uploads end within seconds; nobody measures how soon. */
const secondsForUploads = 3;
/** By then everything that counts has left the window. */
const secondsForRate = 60;
/** Nothing was finished within the last minute: what stands still cannot say when it goes on. */
const secondsStanding = 15;

function secondsToDrain(jobs: number, { finishedPerSecond }: Load): number {
  return finishedPerSecond > 0 ? jobs / finishedPerSecond : secondsStanding;
}

const secondsMax = 120;

/** All who were refused at one moment would come back at one moment. */
function spread(seconds: number, random: number): number {
  const clamped = Math.min(Math.max(seconds, 1), secondsMax);
  return Math.min(Math.max(Math.ceil(clamped * (0.8 + 0.4 * random)), 1), secondsMax);
}

/** A full service refuses thousands; the log says it once in this time. */
const silenceMs = 60_000;

function createRefusal({ clock, log, meter }: AdmissionDeps) {
  let saidAtMs = Number.NEGATIVE_INFINITY;

  return (why: Why, limit: number, seconds: number): SkrepkaError => {
    const ofUser = why === 'pending' || why === 'parallel' || why === 'rate';
    const code = ofUser ? 'too_many_uploads' : 'overloaded';
    meter.count('admissions_refused_total', { code, why });
    if (!ofUser && clock.monotonicMs() - saidAtMs >= silenceMs) {
      saidAtMs = clock.monotonicMs();
      log.warn({ why, limit }, 'the service is full: uploads are refused');
    }
    return new SkrepkaError(code, {
      log: `no upload is admitted: ${why}, at most ${limit}`,
      retryAfterSeconds: spread(seconds, clock.random()),
      ...(ofUser ? { detail: sentences[why](limit), members: { reason: why, limit } } : {}),
    });
  };
}

const sentences = {
  pending: (limit: number) => `This account has ${limit} unfinished uploads, as many as it may; try again later.`,
  parallel: (limit: number) => `This account is sending ${limit} uploads at once, as many as it may; try again later.`,
  rate: (limit: number) =>
    `This account has sent ${limit} uploads within a minute, as many as it may; try again later.`,
} as const;
