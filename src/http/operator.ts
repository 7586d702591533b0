/**
 * What operators see: the queue, the jobs, and one job with its attempts and its history. For `role: admin` only.
 *
 * Attempts are not stored: they are read out of the job's history, so that the two can never disagree.
 */
import { type Code, catalogue, SkrepkaError } from '../errors.ts';
import { jobStates } from '../pipeline/job.ts';
import type { JobEvent, JobView, QueueView } from '../pipeline/registry.ts';
import type { App, HttpDeps, HttpSettings } from './app.ts';
import {
  Id,
  IdParams,
  nullable,
  PageOf,
  PageQuery,
  pageRequest,
  problems,
  ref,
  type Static,
  Time,
  Type,
} from './schemas.ts';

const QueueShape = Type.Object({
  queued: Type.Integer({ description: 'Jobs that wait.' }),
  due: Type.Integer({ description: 'Of these, how many could be claimed now.' }),
  announced: Type.Integer({ description: 'Queued jobs that are announced and not claimed yet.' }),
  in_flight: Type.Integer({ description: 'Jobs that a worker holds.' }),
  failed: Type.Integer(),
  oldest_queued_seconds: nullable(Type.Number({ description: 'Age of the oldest job that waits.' })),
  accepted_per_second: Type.Number({ description: 'Over the last minute.' }),
  finished_per_second: Type.Number({ description: 'Over the last minute.' }),
  cleanups: Type.Integer({ description: 'Keys and prefixes that wait to be deleted.' }),
});

const JobState = Type.Enum([...jobStates]);
const codes = Object.keys(catalogue) as Code[];

const JobShape = Type.Object(
  {
    id: Id,
    attachment_id: Id,
    owner_id: Id,
    version: Type.Integer({ description: 'The pipeline version that it makes.' }),
    state: JobState,
    attempts: Type.Integer({ description: 'Claims.' }),
    failures: Type.Integer({ description: 'Attempts that a worker ended as failed.' }),
    crashes: Type.Integer({ description: 'Leases that ended without a word.' }),
    releases: Type.Integer({ description: 'Claims given back through no fault of the job.' }),
    rings: Type.Integer({ description: 'Announcements.' }),
    fence: Type.Integer(),
    error_code: nullable(Type.String()),
    error_detail: nullable(Type.String({ description: 'For operators; may name keys and hosts.' })),
    worker: nullable(Type.String({ description: 'Who claimed it last.' })),
    not_before: Time,
    lease_until: nullable(Time),
    ring_at: nullable(Time),
    created_at: Time,
    updated_at: Time,
    finished_at: nullable(Time),
  },
  { $id: 'Job' },
);

const AttemptShape = Type.Object({
  fence: Type.Integer(),
  worker: Type.String(),
  started_at: Time,
  ended_at: nullable(Time),
  outcome: Type.String({
    description:
      '`running`, `settled`, `retried`, `failed`, `released`, `superseded`, `cancelled`, or `crashed`: its lease ended without a word.',
  }),
  code: nullable(Type.String()),
  detail: nullable(Type.String({ description: 'For operators; may name keys and hosts.' })),
});

const EventShape = Type.Object({
  at: Time,
  from: nullable(Type.String()),
  to: JobState,
  fence: Type.Integer(),
  who: Type.String(),
  reason: Type.String(),
  code: nullable(Type.String()),
  detail: nullable(Type.String()),
});

const JobsQuery = Type.Object({
  ...PageQuery.properties,
  state: Type.Optional(JobState),
  error_code: Type.Optional(Type.Enum(codes)),
});

/** `/v1/admin`. */
export function operatorRoutes(app: App, deps: HttpDeps, _settings: HttpSettings): void {
  app.addSchema(JobShape);

  app.get(
    '/v1/admin/queue',
    {
      config: { access: 'admin' },
      schema: {
        tags: ['operators'],
        operationId: 'getQueue',
        summary: 'How much waits, how long, and how fast it goes',
        response: { 200: QueueShape },
      },
    },
    async () => shapeQueue(await deps.store.queue()),
  );

  app.get(
    '/v1/admin/jobs',
    {
      config: { access: 'admin' },
      schema: {
        tags: ['operators'],
        operationId: 'listJobs',
        summary: 'List jobs, newest first',
        querystring: JobsQuery,
        response: { 200: PageOf(ref(JobShape)), ...problems('validation') },
      },
    },
    async ({ query }) => {
      const filter = { state: query.state ?? null, errorCode: query.error_code ?? null, ownerId: null };
      const page = await deps.store.listJobs({ ...filter, ...pageRequest(query) });
      return { items: page.items.map(shapeJob), next_cursor: page.nextCursor };
    },
  );

  app.get(
    '/v1/admin/jobs/:id',
    {
      config: { access: 'admin' },
      schema: {
        tags: ['operators'],
        operationId: 'getJob',
        summary: 'Get a job with its attempts and its history, oldest first',
        params: IdParams,
        response: {
          200: Type.Object({ job: ref(JobShape), attempts: Type.Array(AttemptShape), events: Type.Array(EventShape) }),
          ...problems('not_found'),
        },
      },
    },
    async (request) => {
      const found = await deps.store.job(request.params.id);
      if (found === null) throw new SkrepkaError('not_found');
      return { job: shapeJob(found.job), attempts: attemptsOf(found.events), events: found.events.map(shapeEvent) };
    },
  );
}

type AttemptView = Static<typeof AttemptShape>;

/**
 * The attempts in a job's history. One begins with every event that leads to `processing`, and ends with the next event:
 * when that is another claim, the lease had ended without a word, and the time is that at which it was noticed.
 */
export function attemptsOf(events: readonly JobEvent[]): AttemptView[] {
  const attempts: AttemptView[] = [];
  for (const event of events) {
    const running = attempts.at(-1);
    if (running && running.ended_at === null) {
      running.ended_at = event.at.toISOString();
      // `exhausted` is what the claim found; the attempt before it crashed like those before.
      running.outcome = event.reason === 'exhausted' ? 'crashed' : event.reason;
      running.code = event.code;
      running.detail = event.detail;
    }
    if (event.to === 'processing') {
      const opened = { fence: event.fence, worker: event.who, started_at: event.at.toISOString() };
      attempts.push({ ...opened, ended_at: null, outcome: 'running', code: null, detail: null });
    }
  }
  return attempts;
}

function shapeQueue(queue: QueueView): Static<typeof QueueShape> {
  return {
    queued: queue.queued,
    due: queue.due,
    announced: queue.announced,
    in_flight: queue.processing,
    failed: queue.failed,
    oldest_queued_seconds: queue.oldestQueuedSeconds,
    accepted_per_second: queue.acceptedPerSecond,
    finished_per_second: queue.finishedPerSecond,
    cleanups: queue.cleanups,
  };
}

function shapeJob(job: JobView): Static<typeof JobShape> {
  return {
    id: job.id,
    attachment_id: job.attachmentId,
    owner_id: job.ownerId,
    version: job.version,
    state: job.state,
    attempts: job.attempts,
    failures: job.failures,
    crashes: job.crashes,
    releases: job.releases,
    rings: job.rings,
    fence: job.fence,
    error_code: job.errorCode,
    error_detail: job.errorDetail,
    worker: job.worker,
    not_before: job.notBefore.toISOString(),
    lease_until: job.leaseUntil?.toISOString() ?? null,
    ring_at: job.ringAt?.toISOString() ?? null,
    created_at: job.createdAt.toISOString(),
    updated_at: job.updatedAt.toISOString(),
    finished_at: job.finishedAt?.toISOString() ?? null,
  };
}

function shapeEvent(event: JobEvent): Static<typeof EventShape> {
  return { ...event, at: event.at.toISOString() };
}
