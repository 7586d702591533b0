/**
 * The catalogue of metrics: what each one is, which values its labels may have, which roles tell it.
 *
 * A metric that is not here is not recorded, and neither is a label's value that is not in its set: what is scraped stays
 * small whatever happens. Counters of closed sets are told as 0 from the start: an alarm on an increase sees the first event
 * only when there was a 0 before it. `docs/operations.md` has the same list for readers, and a test holds them together.
 */
import { catalogue as codes } from './errors.ts';
import type { Role } from './roles.ts';

/** The values that a label may have; null where another closed set bounds them: routes, methods, versions. */
type Values = readonly string[] | null;

export interface Metric {
  readonly kind: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly labels: Readonly<Record<string, Values>>;
  /** Who tells it. */
  readonly roles: readonly Role[] | 'all';
  /** Upper bounds of a histogram, seconds. */
  readonly buckets?: readonly number[];
}

export const prefix = 'skrepka_';

/** Pieces of work: from a small settle to the longest render. */
const workSeconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
/** What a person waits for: from at once to a backlog of an hour. */
const waitSeconds = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600];

/** `disk`: a worker's own. */
const dependencies = ['store', 'storage', 'broker', 'disk'];
/** What a job can fail with. */
const failures = Object.entries(codes).flatMap(([code, { fate }]) => (fate === 'caller' ? [] : [code]));

export const metrics: Readonly<Record<string, Metric>> = {
  build_info: {
    ...gauge('all', 'Always 1; its labels are the build, the Node that runs it and the pipeline version of new jobs.'),
    labels: { version: null, node: null, pipeline_version: null },
  },
  breaker_open: {
    ...gauge('all', '1 while work is held because a dependency is away, else 0.'),
    labels: { dependency: dependencies },
  },
  breaker_trips_total: counter('all', 'Times that work was held because a dependency was away.', {
    dependency: dependencies,
  }),
  breaker_probes_failed_total: counter('all', 'Questions to a dependency that was away, and still was.', {
    dependency: dependencies,
  }),

  jobs_queued: gauge(['api'], 'Jobs waiting.'),
  jobs_due: gauge(['api'], 'Jobs that could be claimed now.'),
  jobs_announced: gauge(['api'], 'Jobs announced and not yet claimed.'),
  jobs_processing: gauge(['api'], 'Jobs under a lease.'),
  jobs_failed: gauge(['api'], 'Jobs that failed and are kept.'),
  jobs_oldest_queued_seconds: gauge(['api'], 'Age of the oldest waiting job.'),
  jobs_oldest_due_seconds: gauge(['api'], 'For how long the longest due job could have been claimed.'),
  staging_bytes: gauge(['api'], 'Bytes of originals that are not published and not given up.'),
  staging_oldest_seconds: gauge(['api'], 'Age of the oldest of those originals.'),
  cleanups_waiting: gauge(['api'], 'Objects or prefixes that wait to be deleted.'),
  backlog_limit: gauge(['api'], 'Waiting jobs of uploads from which on uploads are refused.'),
  staging_limit_bytes: gauge(['api'], 'Bytes of staging from which on uploads are refused.'),
  broker_waiting: gauge(['api'], 'Messages that wait in the broker, as far as it tells.'),
  broker_in_flight: gauge(['api'], 'Messages that the broker has handed out and that are not ended.'),
  component_up: {
    ...gauge(['api'], '1 when a component answered the health check, 0 when it did not.'),
    labels: { component: ['database', 'storage', 'broker'] },
  },

  http_request_seconds: histogram('api', 'Answering a request.', workSeconds, {
    method: null,
    route: null,
    status: null,
  }),
  accepted_total: counter(['api'], 'Uploads answered with 202.'),
  accepted_bytes_total: counter(['api'], 'Bytes of those uploads.'),
  admissions_refused_total: counter(['api'], 'Uploads refused before their body was read.', {
    code: ['too_many_uploads', 'overloaded'],
    why: ['pending', 'parallel', 'rate', 'backlog', 'staging', 'uploads'],
  }),
  objects_missing_total: counter(['api'], 'Downloads that found no object where a row names one.'),

  bells_rung_total: counter(['relay'], 'Announcements that the broker confirmed.', {
    marked: ['true', 'false'],
    again: ['true', 'false'],
  }),
  bells_hastened_total: counter(['relay', 'worker'], 'Announced jobs made due again before their time.', {
    reason: ['disrupted', 'starved'],
  }),
  relay_faults_total: counter(['relay'], 'Rounds and announcements of the relay that failed.', {
    dependency: ['store', 'broker'],
  }),

  worker_slots: gauge(['worker'], 'Attempts that this worker runs at once, at most.'),
  worker_slots_busy: gauge(['worker'], 'Attempts that it runs now.'),
  worker_starved_seconds: gauge(
    ['worker'],
    'For how long it has had a free slot and got nothing while a due job waited.',
  ),
  claims_refused_total: counter(['worker'], 'Deliveries whose job was not to be claimed.', {
    reason: ['finished', 'leased', 'not_yet', 'exhausted', 'unsupported'],
  }),
  claim_wait_seconds: histogram('worker', 'Due to claim: for how long a job could have been claimed.', waitSeconds),
  download_seconds: histogram('worker', 'Fetching and verifying one original.', workSeconds),
  render_seconds: histogram('worker', 'Making the variants of one picture.', workSeconds),
  store_seconds: histogram('worker', 'Storing the variants of one picture, and reading them back.', workSeconds),
  settle_seconds: histogram('worker', 'Publishing one result.', workSeconds),
  attempt_seconds: histogram('worker', 'Claim to settle of attempts that published.', workSeconds),
  ready_seconds: histogram('worker', 'Accept to ready of first versions.', waitSeconds),
  attempts_total: counter(['worker'], 'Ended attempts.', {
    outcome: ['ready', 'superseded', 'cancelled', 'retried', 'failed', 'released', 'lost'],
  }),
  attempt_failures_total: counter(['worker'], 'Failures by code, and what became of the job.', {
    code: failures,
    outcome: ['retried', 'failed'],
  }),
  releases_total: counter(['worker'], 'Claims given back without a failure.', {
    why: ['drain', 'expired', 'alone', 'store', 'storage', 'disk', 'renderer'],
  }),
  leases_broken_total: counter(['worker'], 'Attempts broken off.', { why: ['lost', 'expired', 'drain'] }),
  render_children: gauge(['worker'], 'Render processes that are alive.'),
  render_children_replaced_total: counter(['worker'], 'Render processes that were killed or died.', {
    reason: ['deadline', 'aborted', 'retired', 'astray', 'died'],
  }),

  janitor_leads: gauge(['janitor'], '1 while this janitor is the active one, else 0.'),
  objects_deleted_total: counter(['janitor'], 'Objects that nobody named any more.'),
  strays_found_total: counter(['janitor'], 'Objects that no row names, sent to the clean-ups.', {
    place: ['staging', 'published'],
  }),
  retired_total: counter(['janitor'], 'What was kept for a time only, and ended.', { what: ['staging', 'history'] }),
  reprocessing_fed_total: counter(['janitor'], 'Jobs made of wishes to reprocess.'),
  janitor_faults_total: counter(['janitor'], 'Rounds of the janitor that failed.'),
};

function gauge(roles: Metric['roles'], help: string): Metric {
  return { kind: 'gauge', help, labels: {}, roles };
}

function counter(roles: Metric['roles'], help: string, labels: Metric['labels'] = {}): Metric {
  return { kind: 'counter', help, labels, roles };
}

function histogram(role: Role, help: string, buckets: readonly number[], labels: Metric['labels'] = {}): Metric {
  return { kind: 'histogram', help, labels, roles: [role], buckets };
}
