/**
 * What operators see and do: the queue, the jobs, one job with its attempts and its history, replay, reprocessing. For `role: admin` only.
 *
 * Whatever changes something is told in the history as `operator <handle>`, and asking again changes nothing and says so.
 */
import type { FastifyRequest } from 'fastify';
import { SkrepkaError } from '../errors.ts';
import { attemptsOf, createOperate, type Operate } from '../pipeline/operate.ts';
import type { JobView, Replay, Reprocessed } from '../pipeline/registry.ts';
import { type App, type HttpDeps, type HttpSettings, userOf } from './app.ts';
import {
  AttemptShape,
  ErrorCode,
  EventShape,
  JobShape,
  JobState,
  MaybeReprocessing,
  QueueShape,
  ReplayedShape,
  ReprocessingShape,
  shapeAttempt,
  shapeEvent,
  shapeJob,
  shapeQueue,
  shapeReplayed,
  shapeReprocessing,
} from './operator-shapes.ts';
import { Id, IdParams, PageOf, PageQuery, pageRequest, problems, ref, type Static, Type } from './schemas.ts';

/** Jobs that one request for a replay of many looks at. */
const replay = { limitDefault: 100, limitMax: 1000 } as const;
const secondsMax = 10 * 365 * 86_400;

const tags = ['operators'];
const config = { access: 'admin' } as const;

/** `/v1/admin`. */
export function operatorRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void {
  app.addSchema(JobShape);
  app.addSchema(ReprocessingShape);
  const operate = createOperate(deps, settings);
  queueRoute(app, deps, settings, operate);
  jobRoutes(app, deps);
  replayRoutes(app, operate);
  reprocessRoutes(app, deps, operate);
}

/** What the history says of who asked. */
const who = (request: FastifyRequest): string => `operator ${userOf(request).handle}`;

/* ------------------------------------------------------------------------- reads */

function queueRoute(app: App, { store }: HttpDeps, settings: HttpSettings, operate: Operate): void {
  app.get(
    '/v1/admin/queue',
    {
      config,
      schema: {
        tags,
        operationId: 'getQueue',
        summary: 'How much waits, how long, how fast it goes, and what is allowed',
        response: { 200: QueueShape },
      },
    },
    async () => shapeQueue(await store.queue(), await operate.reprocessing(), settings),
  );
}

const JobsQuery = Type.Object({
  ...PageQuery.properties,
  state: Type.Optional(JobState),
  error_code: Type.Optional(ErrorCode),
  owner_id: Type.Optional(Id),
  attachment_id: Type.Optional(Id),
});

function jobRoutes(app: App, { store }: HttpDeps): void {
  app.get(
    '/v1/admin/jobs',
    {
      config,
      schema: {
        tags,
        operationId: 'listJobs',
        summary: 'List jobs, newest first',
        querystring: JobsQuery,
        response: { 200: PageOf(ref(JobShape)), ...problems('validation') },
      },
    },
    async ({ query }) => {
      const { state = null, error_code: errorCode = null, owner_id: ownerId = null } = query;
      const filter = { state, errorCode, ownerId, attachmentId: query.attachment_id ?? null };
      const page = await store.listJobs({ ...filter, ...pageRequest(query) });
      return { items: page.items.map(shapeJob), next_cursor: page.nextCursor };
    },
  );

  app.get(
    '/v1/admin/jobs/:id',
    {
      config,
      schema: {
        tags,
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
      const found = await store.job(request.params.id);
      if (found === null) throw new SkrepkaError('not_found');
      const { job, events } = found;
      const attempts = attemptsOf(events, job.generation).map(shapeAttempt);
      return { job: shapeJob(job), attempts, events: events.map(shapeEvent) };
    },
  );
}

/* ------------------------------------------------------------------------ replay */

const ages = Type.Integer({ minimum: 0, maximum: secondsMax, description: 'Counted from when it failed.' });

const ReplayBody = Type.Object(
  {
    error_code: Type.Optional(ErrorCode),
    owner_id: Type.Optional(Id),
    older_than_seconds: Type.Optional(ages),
    younger_than_seconds: Type.Optional(ages),
    all: Type.Optional(Type.Boolean({ description: 'Needed when nothing else narrows it.' })),
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: replay.limitMax, default: replay.limitDefault })),
    dry_run: Type.Optional(Type.Boolean({ description: 'Only counts.' })),
  },
  { additionalProperties: false },
);

function replayRoutes(app: App, operate: Operate): void {
  app.post(
    '/v1/admin/jobs/:id/replay',
    {
      config,
      schema: {
        tags,
        operationId: 'replayJob',
        summary: 'Try a failed job again',
        description: 'A new generation: counters begin at zero. A job in any other state is left as it is.',
        params: IdParams,
        response: {
          202: Type.Object({ job: ref(JobShape) }),
          ...problems('not_found', 'already_succeeded', 'job_unfinished', 'job_ended', 'staging_gone'),
        },
      },
    },
    async (request, reply) => {
      const { replay: outcome, job } = await operate.replay(request.params.id, who(request));
      if (outcome !== 'replayed') throw refusal(outcome, job);
      // Replayed, and gone since: its attachment was deleted.
      if (job === null) throw new SkrepkaError('not_found');
      return reply.code(202).send({ job: shapeJob(job) });
    },
  );

  app.post(
    '/v1/admin/replay',
    {
      config,
      schema: {
        tags,
        operationId: 'replayJobs',
        summary: 'Try failed jobs again, the oldest failure first',
        description: 'Needs a filter, or `all`. Those that cannot be replayed are counted in `skipped`.',
        body: ReplayBody,
        response: {
          200: ReplayedShape,
          ...problems('validation', 'malformed_body', 'body_too_large', 'unsupported_media_type'),
        },
      },
    },
    async (request) => {
      const { limit = replay.limitDefault, dry_run: dryRun = false } = request.body;
      const filter = failedFilter(request.body);
      return shapeReplayed(await operate.replayMany(filter, { limit, dryRun, who: who(request) }));
    },
  );
}

function refusal(outcome: Exclude<Replay, 'replayed'>, job: JobView | null): SkrepkaError {
  return new SkrepkaError(outcome, outcome === 'not_found' || job === null ? {} : { members: { state: job.state } });
}

/** Throws `validation` for a filter that would take everything without having said so. */
function failedFilter(body: Static<typeof ReplayBody>) {
  const {
    error_code: errorCode = null,
    owner_id: ownerId = null,
    older_than_seconds: older,
    younger_than_seconds: younger,
  } = body;
  const isNarrowed = errorCode !== null || ownerId !== null || older !== undefined || younger !== undefined;
  if (!isNarrowed && body.all !== true) {
    throw new SkrepkaError('validation', {
      detail: 'Narrow it by "error_code", "owner_id" or an age, or say "all": true.',
      members: { field: '/all' },
    });
  }
  const ms = (value: number | undefined) => (value === undefined ? null : value * 1000);
  return { errorCode, ownerId, olderThanMs: ms(older), youngerThanMs: ms(younger) };
}

/* ------------------------------------------------------------------ reprocessing */

const outcomes = ['asked', 'made', 'replayed', 'exists', 'current'] as const;

const ReprocessBody = Type.Object(
  {
    attachment_id: Type.Optional(Id),
    retry_failed: Type.Optional(Type.Boolean({ description: 'Replay failed jobs of the version as well.' })),
    dry_run: Type.Optional(Type.Boolean({ description: 'Only counts.' })),
  },
  { additionalProperties: false },
);

const ReprocessShape = Type.Object({
  version: Type.Integer({ description: 'The version that is made: `PIPELINE_VERSION`, or the newest of the build.' }),
  matching: Type.Integer({ description: 'Ready attachments below it; of one attachment 1 or 0.' }),
  outcome: Type.Union([Type.Enum([...outcomes]), Type.Null()], {
    description:
      '`asked`: the wish is written down. Of one attachment: `made` a job, `replayed` the failed one; nothing changed: `exists`, a job of the version is unfinished, `current`. Null: a dry run.',
  }),
  reprocessing: MaybeReprocessing,
});

function reprocessRoutes(app: App, { store }: HttpDeps, operate: Operate): void {
  app.get(
    '/v1/admin/reprocess',
    {
      config,
      schema: {
        tags,
        operationId: 'getReprocessing',
        summary: 'How far reprocessing is',
        response: { 200: ReprocessShape },
      },
    },
    async () => {
      const [matching, wish] = await Promise.all([store.countBelow(operate.version), operate.reprocessing()]);
      return { version: operate.version, matching, outcome: null, reprocessing: shapeReprocessing(wish) };
    },
  );

  app.post(
    '/v1/admin/reprocess',
    {
      config,
      schema: {
        tags,
        operationId: 'reprocess',
        summary: 'Bring ready attachments to the current pipeline version',
        description:
          'All of them, little by little and after the uploads, or one. What is published is served until the newer set is. 200: nothing was changed. Asking again goes on with the same wish.',
        body: ReprocessBody,
        response: {
          200: ReprocessShape,
          202: ReprocessShape,
          ...problems(
            'validation',
            'malformed_body',
            'not_found',
            'attachment_not_ready',
            'body_too_large',
            'unsupported_media_type',
          ),
        },
      },
    },
    async (request, reply) => {
      const { attachment_id: id, retry_failed: retryFailed = false, dry_run: dryRun = false } = request.body;
      const answer =
        id === undefined
          ? await reprocessAll(operate, { retryFailed, dryRun, who: who(request) })
          : await reprocessOne(operate, id, { dryRun, who: who(request) });
      return reply.code(answer.isNews ? 202 : 200).send(answer.body);
    },
  );
}

interface ReprocessAnswer {
  readonly isNews: boolean;
  readonly body: Static<typeof ReprocessShape>;
}

async function reprocessAll(
  operate: Operate,
  options: { retryFailed: boolean; dryRun: boolean; who: string },
): Promise<ReprocessAnswer> {
  const { version, matching, wish } = await operate.reprocessAll(options);
  const outcome = options.dryRun ? null : 'asked';
  return { isNews: !options.dryRun, body: { version, matching, outcome, reprocessing: shapeReprocessing(wish) } };
}

async function reprocessOne(
  operate: Operate,
  id: string,
  { dryRun, who: name }: { dryRun: boolean; who: string },
): Promise<ReprocessAnswer> {
  const outcome: Reprocessed = dryRun ? await operate.foresee(id) : await operate.reprocessOne(id, name);
  if (outcome === 'not_found') throw new SkrepkaError('not_found');
  if (outcome === 'not_ready') {
    throw new SkrepkaError('attachment_not_ready', {
      detail: 'Nothing of the attachment is published yet. If its job failed, replay the job.',
      retryAfterSeconds: 5,
    });
  }
  const isNews = !dryRun && (outcome === 'made' || outcome === 'replayed');
  const matching = outcome === 'current' ? 0 : 1;
  const reprocessing = shapeReprocessing(await operate.reprocessing());
  return { isNews, body: { version: operate.version, matching, outcome: dryRun ? null : outcome, reprocessing } };
}
