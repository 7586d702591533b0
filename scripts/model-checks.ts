/**
 * What is asked of `model/pipeline.pml`: on which instances it must hold, which guards have a twin that holds alone, and which
 * mutants must fail, by which invariant. `scripts/model.ts` runs them; the words are those of `docs/model.md`.
 */

/** The size of an instance. What is left out is the model's own default. */
export interface Instance {
  /** 2: with a newer pipeline version. */
  readonly JOBS?: 1 | 2;
  readonly RELAYS?: 1 | 2;
  readonly FAULTS: number;
  readonly WISHES: number;
  readonly MESSAGES_MAX?: 1 | 2;
  readonly CRASHES_MAX?: number;
  /** 1: the picture kills every worker that renders it. 2: it fails every time. */
  readonly POISON?: 1 | 2;
  /** 1: one of the workers lacks the recipe of version 2. */
  readonly OLD_BUILD?: 1;
  /** The number of a branch: reaching it is a failure. */
  readonly PROBE?: number;
}

export interface Check {
  /** Of the table, unique. A mutant's is the name of its `#ifdef`. */
  readonly name: string;
  readonly says: string;
  readonly instance: Instance;
  /** The guard that is taken away. */
  readonly without?: string;
  /** A property of what comes in the end, searched for cycles under weak fairness, instead of assertions. */
  readonly eventually?: 'finishes' | 'rings';
  /** `holds`; `reached`; or the invariant of `docs/failures.md` that must be seen broken. */
  readonly expected: string;
  /** Minutes and gigabytes: not in a default run. */
  readonly large?: true;
}

const upload = { JOBS: 1, FAULTS: 2, WISHES: 0, MESSAGES_MAX: 1 } as const;
const wished = { JOBS: 1, FAULTS: 1, WISHES: 1, MESSAGES_MAX: 1 } as const;
const versions = { JOBS: 2, FAULTS: 0, WISHES: 2, MESSAGES_MAX: 1 } as const;
const killer = { JOBS: 1, FAULTS: 0, WISHES: 0, MESSAGES_MAX: 1, POISON: 1 } as const;
const broken = { ...killer, POISON: 2 } as const;

const holding: readonly Omit<Check, 'expected'>[] = [
  { name: 'upload', says: 'one upload, two faults', instance: upload },
  {
    name: 'wishes',
    says: 'one upload, a fault, a wish, messages doubled twice',
    instance: { ...wished, MESSAGES_MAX: 2 },
  },
  { name: 'versions', says: 'two versions, a fault, a wish', instance: { ...versions, FAULTS: 1, WISHES: 1 } },
  { name: 'rebuilds', says: 'two versions, two wishes: reprocessing beside a rebuild', instance: versions },
  { name: 'builds', says: 'two versions, one worker of an older build', instance: { ...versions, OLD_BUILD: 1 } },
  { name: 'relays', says: 'two relays, a fault', instance: { ...wished, WISHES: 0, RELAYS: 2 } },
  {
    name: 'killer',
    says: 'a picture that kills every worker, a fault, a wish',
    instance: { ...killer, FAULTS: 1, WISHES: 1 },
  },
  {
    name: 'broken',
    says: 'a picture that fails every time, a fault, a wish',
    instance: { ...broken, FAULTS: 1, WISHES: 1 },
  },
  { name: 'finishes', says: 'every job finishes', instance: { ...upload, FAULTS: 1 }, eventually: 'finishes' },
  { name: 'finishes-wished', says: 'every job finishes, also after a wish', instance: wished, eventually: 'finishes' },
  {
    name: 'finishes-killer',
    says: 'also one that kills every worker',
    instance: { ...killer, FAULTS: 1 },
    eventually: 'finishes',
  },
  {
    name: 'finishes-broken',
    says: 'also one that fails every time',
    instance: { ...broken, FAULTS: 1 },
    eventually: 'finishes',
  },
  { name: 'rings', says: 'every silence ends', instance: wished, eventually: 'rings' },
  { name: 'upload-large', says: 'one upload, three faults', instance: { ...upload, FAULTS: 3 }, large: true },
  { name: 'wishes-large', says: 'one upload, two faults, a wish', instance: { ...wished, FAULTS: 2 }, large: true },
  { name: 'replays-large', says: 'one upload, a fault, two wishes', instance: { ...wished, WISHES: 2 }, large: true },
  {
    name: 'versions-large',
    says: 'two versions, a fault, two wishes',
    instance: { ...versions, FAULTS: 1 },
    large: true,
  },
  {
    name: 'finishes-large',
    says: 'every job finishes: two faults, a wish',
    instance: { ...wished, FAULTS: 2 },
    eventually: 'finishes',
    large: true,
  },
];

/** Branches that a search must take: what is never reached holds whatever it says. */
const probes: readonly Omit<Check, 'expected'>[] = [
  { name: 'superseded', says: 'a settle meets a newer version', instance: { ...versions, PROBE: 1 } },
  { name: 'exhausted', says: 'a claim finds the budget of crashes spent', instance: { ...upload, PROBE: 2 } },
  {
    name: 'unsupported',
    says: 'an older build meets a newer version',
    instance: { ...versions, OLD_BUILD: 1, PROBE: 3 },
  },
  { name: 'own-end', says: 'a settle whose answer was lost is read back', instance: { ...upload, PROBE: 4 } },
  { name: 'deleted-under', says: 'a settle meets its attachment deleted', instance: { ...wished, PROBE: 5 } },
  { name: 'foreign-ack', says: 'an ack takes a message that is not its own', instance: { ...upload, PROBE: 6 } },
  { name: 'late-put', says: 'a put lands after the job succeeded', instance: { ...upload, PROBE: 7 } },
  { name: 'lost-lease', says: 'a renewal tells that the lease is lost', instance: { ...upload, PROBE: 8 } },
  { name: 'at-rest', says: 'rest with version 2 published', instance: { ...versions, PROBE: 9 } },
];

/** Two guards stand side by side, and in this model either of them is enough. Taken away alone they are missed by nobody. */
const spares: readonly Omit<Check, 'expected'>[] = [
  { name: 'FENCE_ALONE', says: 'the guard of the ends without the attempt id', instance: upload },
  { name: 'ATTEMPT_ALONE', says: 'the guard of the ends without the fence', instance: upload },
  { name: 'PASS_BLIND', says: 'no look-up before deleting, only in the search', instance: upload },
  { name: 'SEARCH_BLIND', says: 'no look-up in the search, only before deleting', instance: { ...upload, FAULTS: 1 } },
];

const mutants: readonly Check[] = [
  { name: 'ANSWER_BEFORE_COMMIT', says: '202 before the rows are committed', instance: upload, expected: 'I3' },
  { name: 'STAGING_DELETED', says: 'staging deleted when the commit is unknown', instance: upload, expected: 'I1' },
  { name: 'MARK_BEFORE_CONFIRM', says: 'marked before the broker confirmed', instance: upload, expected: 'I14' },
  { name: 'MARK_WITHOUT_RUNG', says: 'the mark does not compare `rung_at`', instance: upload, expected: 'I17' },
  {
    name: 'MARK_WITHOUT_RINGS',
    says: 'the mark does not compare `rings`',
    instance: { ...upload, RELAYS: 2 },
    expected: 'I17',
  },
  { name: 'MARK_WHEN_DUE', says: 'the mark puts off a bell that was hastened', instance: upload, expected: 'I16' },
  { name: 'RERING_NEEDS_PLACE', says: 'a repeated ring needs a place in the window', instance: upload, expected: 'I6' },
  { name: 'LEASE_SILENT', says: 'no bell after a lease’s end', instance: upload, expected: 'I6' },
  { name: 'LEASE_IGNORED', says: 'a claim does not look at the lease', instance: upload, expected: 'I12' },
  {
    name: 'CLAIM_READS_BELL',
    says: 'a claim reads `ring_at`',
    instance: { ...upload, FAULTS: 0 },
    eventually: 'finishes',
    expected: 'I6',
  },
  { name: 'BUDGET_ENDLESS', says: 'the budget of crashes never ends', instance: killer, expected: 'I6' },
  { name: 'CRASH_UNCOUNTED', says: 'a claim counts no crash', instance: killer, expected: 'I6' },
  { name: 'FAILURES_ENDLESS', says: 'the budget of failures never ends', instance: broken, expected: 'I6' },
  { name: 'NO_FENCE', says: 'the ends compare only the state', instance: upload, expected: 'I8' },
  { name: 'NO_STATE', says: 'the ends do not compare the state', instance: upload, expected: 'I8' },
  { name: 'RENEW_UNFENCED', says: 'a renewal compares only the state', instance: upload, expected: 'I8' },
  {
    name: 'FENCE_RESET',
    says: 'a replay lets the fence begin anew',
    instance: { ...wished, CRASHES_MAX: 1 },
    expected: 'I9',
  },
  { name: 'VERSION_AT_CLAIM', says: 'the version is compared at the claim only', instance: versions, expected: 'I10' },
  { name: 'SHARED_KEYS', says: 'attempts share their keys', instance: upload, expected: 'I11' },
  { name: 'ACK_BEFORE_SETTLE', says: 'acked before the settle', instance: upload, expected: 'I15' },
  { name: 'LATE_ACK', says: 'a worker that lost its lease acks', instance: upload, expected: 'I13' },
  { name: 'NO_LOOKUP', says: 'deleted because a listing did not know it', instance: upload, expected: 'I20' },
  { name: 'RUNNING_UNSEEN', says: 'the look-up does not see the running attempt', instance: upload, expected: 'I20' },
  { name: 'ORPHAN_YOUNG', says: 'orphans are taken at any age', instance: upload, expected: 'I3' },
  { name: 'NO_SEARCH', says: 'nobody searches for strays', instance: upload, expected: 'I19' },
  {
    name: 'REPLAY_BLIND',
    says: 'a replay does not look whether staging is gone',
    instance: { ...wished, CRASHES_MAX: 1, WISHES: 2 },
    expected: 'I1',
  },
  {
    name: 'REPROCESS_BLIND',
    says: 'a reprocessing does not look for a job that exists',
    instance: versions,
    expected: 'I4',
  },
  { name: 'DELETE_KEEPS_JOB', says: 'a delete leaves the job as it is', instance: wished, expected: 'I26' },
];

const without = <T extends { name: string }>(check: T): T & { without: string } => ({ ...check, without: check.name });

export const checks: readonly Check[] = [
  ...holding.map((check) => ({ ...check, expected: 'holds' })),
  ...probes.map((check) => ({ ...check, expected: 'reached' })),
  ...spares.map((check) => without({ ...check, expected: 'holds' })),
  ...mutants.map(without),
];
