/**
 * Random verbs for the twins, with random but sensible things given to them.
 *
 * Mostly of jobs and attempts that are there, sometimes of those that were, since zombies are half of the point.
 */
import type { Code } from '../../src/errors.ts';
import { attemptPrefix, stagingKey, variantNames } from '../../src/pipeline/attachment.ts';
import type { Attempt } from '../../src/pipeline/job.ts';
import type { NewAttachment, Result, Store } from '../../src/pipeline/store.ts';
import type { JobRow, Moments, Tables } from './store-tables.ts';
import { type Chapter, createStories } from './twins-stories.ts';

/** Every duration that a verb is given is a whole number of these. */
export const unitMs = 2 * 3_600_000;

export type Verb = keyof Moments & keyof Store;

export interface Choices {
  readonly tables: Tables;
  readonly owners: readonly string[];
  newId(): string;
  between(min: number, max: number): number;
  pick<T>(from: readonly T[]): T;
  hex(length: number): string;
}

export interface Next {
  readonly verb: Verb;
  readonly args: readonly unknown[];
}

const budgets = { attemptsMax: 3, crashesMax: 2 };
const who = 'twin';
/** A story begins instead of one in so many verbs. */
const storyEvery = 4;
const graceMs = 6 * unitMs;
const renewal = { leaseMs: 4 * unitMs, marginMs: unitMs };
const codes: readonly Code[] = ['corrupt_image', 'render_crashed', 'render_timeout', 'internal', 'storage_unavailable'];

/** What verbs are given, drawn from what there is. */
type Things = ReturnType<typeof createThings>;

/** The verbs and how often each comes. */
export function createGiven(choices: Choices): { next(): Next } {
  const things = createThings(choices);
  const weighted = [...uploadVerbs(choices, things), ...attemptVerbs(things), ...operatorVerbs(choices, things)];
  const total = weighted.reduce((sum, [weight]) => sum + weight, 0);
  const stories = createStories({ ...choices, ...things });
  const chapters: Chapter[] = [];
  return {
    next() {
      if (chapters.length === 0 && choices.between(0, storyEvery) === 0) chapters.push(...stories.next());
      const told = chapters.shift()?.();
      if (told) return told;
      let drawn = choices.between(1, total);
      for (const [weight, make] of weighted) {
        drawn -= weight;
        if (drawn <= 0) return make();
      }
      return things.claim();
    },
  };
}

type Weighted = readonly (readonly [weight: number, make: () => Next])[];

function uploadVerbs({ between, pick, owners }: Choices, things: Things): Weighted {
  return [
    [8, () => ({ verb: 'accept', args: [things.upload()] })],
    [4, () => ({ verb: 'reserve', args: [{ ...things.keyName(), leaseMs: 3 * unitMs }] })],
    [1, () => ({ verb: 'extendReservation', args: [{ ...things.keyName(), leaseMs: 3 * unitMs }] })],
    [1, () => ({ verb: 'dropReservation', args: [things.keyName()] })],
    [1, () => ({ verb: 'arrive', args: [pick(owners)] })],
    [1, () => ({ verb: 'load', args: [] })],
    [1, () => ({ verb: 'queue', args: [] })],
    [8, things.takeDue],
    [5, () => things.markOf(things.jobId(), between(1, 3))],
    [2, things.ringAllAgain],
    [1, () => ({ verb: 'countAnnounced', args: [] })],
    [1, () => things.deleteBy(pick(owners), things.attachmentId())],
    [1, () => ({ verb: 'attachmentFor', args: [pick(owners), things.attachmentId()] })],
    [1, () => ({ verb: 'acceptedAttachment', args: [pick(owners), things.attachmentId()] })],
  ];
}

function attemptVerbs(things: Things): Weighted {
  return [
    [24, things.claim],
    [3, () => things.ofAttempt(things.renewOf)],
    [3, () => things.ofAttempt((one) => ({ verb: 'readAttempt', args: [one.jobId, one.attemptId] }))],
    [10, () => things.ofAttempt(things.settleOf)],
    [7, () => things.ofAttempt(things.failOf)],
    [3, () => things.ofAttempt(things.releaseOf)],
  ];
}

function operatorVerbs({ between, pick }: Choices, things: Things): Weighted {
  return [
    [4, () => things.replayOf(things.jobId())],
    [3, () => things.reprocessOf(things.attachmentId())],
    [2, () => ({ verb: 'askReprocessing', args: [{ version: between(2, 3), retryFailed: between(0, 1) === 1, who }] })],
    [3, () => ({ verb: 'feedReprocessing', args: [{ window: between(1, 4), limit: between(1, 3) }] })],
    [1, () => ({ verb: 'reprocessing', args: [between(2, 3)] })],
    [1, () => ({ verb: 'countBelow', args: [2] })],
    [3, things.rebuild],
    [1, () => ({ verb: 'failedJobs', args: [things.filter(), between(1, 5)] })],
    [1, () => ({ verb: 'countFailed', args: [things.filter()] })],
    [1, () => ({ verb: 'audit', args: [{ after: pick([null, things.attachmentId()]), limit: between(1, 5) }] })],
    [1, () => ({ verb: 'audited', args: [things.attachmentId()] })],
    [2, things.namedOfAll],
    [1, () => ({ verb: 'awaitingCleanup', args: [things.anyKeys()] })],
    [2, () => ({ verb: 'passedCleanup', args: [things.cleanup(), 2 * unitMs] })],
    [1, () => ({ verb: 'expire', args: [100] })],
    [1, () => things.retireAfter(30 * unitMs, 3)],
  ];
}

function createThings(choices: Choices) {
  const { tables, owners, newId, between, pick } = choices;
  const attempts: Attempt[] = [];
  const tokens = Array.from({ length: 4 }, newId);
  const units = (max: number) => between(1, max) * unitMs;
  const keyName = () => ({
    userId: pick(owners),
    scope: 'attachment' as const,
    key: `key-${between(1, 3)}`,
    token: pick(tokens),
  });
  /** Of half of the verbs: only what happens to one attachment again and again leads far from where it began. */
  let focus: string | null = null;
  const isFocused = (one: JobRow) => one.attachmentId === focus;

  function attachmentId(): string {
    if (focus === null || between(0, 39) === 0) focus = pick([...tables.attachments.keys()]) ?? null;
    return (between(0, 1) === 0 ? focus : pick([...tables.attachments.keys()])) ?? newId();
  }

  function jobId(): string {
    const jobs = [...tables.jobs.values()];
    return pick(between(0, 1) === 0 && jobs.some(isFocused) ? jobs.filter(isFocused) : jobs)?.id ?? newId();
  }

  function learnAttempts(): void {
    for (const { id: of, attachmentId: on, version, fence, attemptId } of tables.jobs.values()) {
      if (attemptId === null || attempts.some((one) => one.attemptId === attemptId)) continue;
      attempts.push({ jobId: of, attachmentId: on, version, fence, attemptId });
    }
  }

  /** The attempt that runs, or one that ran: best of all a zombie, whose successor runs. */
  function attempt(): Attempt | null {
    learnAttempts();
    const isLast = (one: Attempt) => tables.jobs.get(one.jobId)?.attemptId === one.attemptId;
    const runs = (one: Attempt) => tables.jobs.get(one.jobId)?.state === 'processing';
    const zombies = attempts.filter((one) => runs(one) && !isLast(one));
    const running = attempts.filter((one) => runs(one) && isLast(one));
    const drawn = between(0, 9);
    const last = drawn < 7 && running.length > 0 ? running : attempts.filter(isLast);
    return (drawn === 9 ? pick(attempts) : drawn === 8 ? pick(zombies) : pick(last)) ?? pick(attempts) ?? null;
  }

  const ofAttempt = (make: (one: Attempt) => Next): Next => {
    const one = attempt();
    return one ? make(one) : claim();
  };

  /** Who comes first among equals is not said, so all are taken where there are any. */
  function takeDue(): Next {
    const waiting = [...tables.jobs.values()].filter((one) => one.ringAt !== null);
    const isTied = (times: number[]) => new Set(times).size < times.length;
    const tied = isTied(waiting.map(({ turn }) => turn)) || isTied(waiting.map(({ ringAt }) => ringAt as number));
    const [limit, window] = tied ? [1_000, 1_000] : [between(1, 6), between(1, 8)];
    return { verb: 'takeDue', args: [{ limit, window, takenMs: 2 * unitMs }] };
  }

  function claim(): Next {
    const unfinished = [...tables.jobs.values()].filter((one) => one.ringAt !== null);
    if (unfinished.length === 0 && between(0, 4) > 0) return { verb: 'accept', args: [upload()] };
    const near = unfinished.some(isFocused) ? unfinished.filter(isFocused) : unfinished;
    const wanted = between(0, 9) === 0 ? null : pick(near);
    return claimBy(wanted?.id ?? jobId(), between(0, 7) === 0 ? [1] : [1, 2]);
  }

  function claimBy(ofJob: string, versions: readonly number[]): Next {
    const times = { leaseMs: 4 * unitMs, marginMs: unitMs, graceMs, unsupportedMs: 3 * unitMs };
    return { verb: 'claim', args: [{ jobId: ofJob, attemptId: newId(), worker: 'w', versions, budgets, ...times }] };
  }

  const filter = () => ({
    errorCode: pick([null, pick(codes)]),
    ownerId: pick([null, pick(owners)]),
    olderThanMs: pick([null, units(20)]),
    youngerThanMs: pick([null, units(40)]),
  });
  const cleanup = () => {
    const { id, key, passes } = pick([...tables.cleanups.values()]) ?? { id: '0', key: 'none', passes: 0 };
    return { id, key, passes };
  };
  const keysOf = (id: string) => tables.attachments.get(id)?.variants.map(({ key }) => key) ?? [];
  const anyKeys = () => {
    learnAttempts();
    return [
      ...[...tables.attachments.values()].flatMap((row) => [row.stagingKey, row.originalKey ?? 'staging/none']),
      ...attempts.map(
        (one) => `${attemptPrefix(one.attachmentId, one.version, one.fence, one.attemptId)}thumbnail.jpg`,
      ),
    ];
  };

  const rebuildBy = (id: string, keys: readonly string[]): Next => ({ verb: 'rebuild', args: [id, { keys, who }] });

  function rebuild(): Next {
    const id = attachmentId();
    return rebuildBy(id, between(0, 4) === 0 ? ['another'] : keysOf(id));
  }

  const upload = () => newUpload(choices, between(0, 2) > 0 ? null : keyName());
  return {
    ...{ keyName, jobId, attachmentId, ofAttempt, takeDue, claim, upload, filter, cleanup, anyKeys, rebuild },
    ...createEnds(choices, units),
    claimOf: (ofJob: string) => claimBy(ofJob, [1, 2]),
    ...plain,
    deleteOf: (id: string) => plain.deleteBy(tables.attachments.get(id)?.ownerId ?? pick(owners), id),
    namedOfAll: (): Next => ({ verb: 'namedAmong', args: [anyKeys()] }),
    rebuildOf: (id: string) => rebuildBy(id, keysOf(id)),
  };
}

/** Verbs that need nothing but what they are told. */
const plain = {
  replayOf: (ofJob: string): Next => ({ verb: 'replay', args: [ofJob, { who, spacingMs: unitMs }] }),
  deleteBy: (owner: string, id: string): Next => ({ verb: 'deleteAttachment', args: [owner, id, { graceMs }] }),
  retireAfter: (failedMs: number, limit: number): Next => ({
    verb: 'retire',
    args: [{ failedMs, historyMs: 60 * unitMs, limit }],
  }),
  retireAll: (): Next => plain.retireAfter(0, 1_000),
  reprocessOf: (id: string): Next => ({ verb: 'reprocess', args: [id, { version: 2, who }] }),
  /** For so long that none is due by itself when the next verb comes. */
  takeAll: (): Next => ({ verb: 'takeDue', args: [{ limit: 1_000, window: 1_000, takenMs: 9 * unitMs }] }),
  markOf: (ofJob: string, ring: number): Next => ({
    verb: 'markRung',
    args: [
      { jobId: ofJob, ring, traceparent: null },
      { baseMs: 3 * unitMs, capMs: 24 * unitMs, jitter: 1 },
    ],
  }),
  ringAllAgain: (): Next => ({ verb: 'ringAgain', args: [1_000] }),
};

/** What an attempt may say: that it is done, failed, given back, or still there. */
function createEnds(choices: Choices, units: (max: number) => number) {
  const settleOf = (one: Attempt): Next => ({
    verb: 'settle',
    args: [one, newResult(choices, one), { graceMs, replacedMs: 9 * unitMs, who }],
  });
  const failBy = (one: Attempt, code: Code): Next => ({
    verb: 'fail',
    args: [one, { code, detail: 'why', retryMs: units(4) }, { budgets, graceMs, who }],
  });
  const failOf = (one: Attempt): Next => failBy(one, choices.pick(codes));
  const failForGoodOf = (one: Attempt): Next => failBy(one, 'corrupt_image');
  const releaseOf = (one: Attempt): Next => ({
    verb: 'release',
    args: [one, { reason: 'why', delayMs: units(3), graceMs, who }],
  });
  const renewOf = (one: Attempt): Next => ({ verb: 'renew', args: [one, renewal] });
  const endsOf = (one: Attempt) => [settleOf(one), failOf(one), releaseOf(one), renewOf(one)];
  return { settleOf, failOf, failForGoodOf, releaseOf, renewOf, endsOf };
}

function newUpload(
  { tables, owners, newId, between, pick, hex }: Choices,
  name: { userId: string; scope: 'attachment'; key: string; token: string } | null,
): NewAttachment {
  const id = newId();
  return {
    id,
    jobId: newId(),
    ownerId: name?.userId ?? pick(owners),
    kind: between(0, 4) === 0 ? 'file' : 'image',
    fileName: 'a.jpg',
    contentType: 'image/jpeg',
    size: between(1, 9_999),
    sha256: hex(64),
    alt: null,
    stagingKey: stagingKey(id),
    version: between(1, 2),
    traceparent: null,
    startedAt: new Date(tables.nowMs() - pick([0, 0, 0, 0, 0, 0, 0, 30]) * unitMs).toISOString(),
    uploadMsMax: 12 * unitMs,
    spacingMs: unitMs,
    reservation: name && { ...name, fingerprint: hex(8), keepMs: 40 * unitMs },
  };
}

function newResult({ tables, between, hex }: Choices, one: Attempt): Result {
  const prefix = attemptPrefix(one.attachmentId, one.version, one.fence, one.attemptId);
  const isFile = tables.attachments.get(one.attachmentId)?.kind === 'file';
  const hasOriginal = (tables.attachments.get(one.attachmentId)?.originalKey ?? null) !== null && between(0, 3) > 0;
  const variants = variantNames.map((name) => ({
    ...{
      name,
      contentType: 'image/jpeg',
      width: 10,
      height: 10,
      size: 5,
      sha256: hex(64),
      key: `${prefix}${name}.jpg`,
    },
  }));
  return {
    originalKey: hasOriginal ? null : `${prefix}original.jpg`,
    width: 40,
    height: 30,
    frames: 1,
    placeholder: 'AAAA',
    variants: isFile ? [] : variants,
  };
}
