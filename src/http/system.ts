/** The routes about the server itself: limits, health, metrics, and what the problem types mean. All public. */
import { catalogue, isCode, SkrepkaError } from '../errors.ts';
import { imageTypes, variantNames } from '../pipeline/attachment.ts';
import { limits } from '../pipeline/message.ts';
import type { App, HttpDeps, HttpSettings } from './app.ts';
import { createHealth } from './health.ts';
import { mayReadMetrics } from './metrics.ts';
import { problemOf } from './problems.ts';
import { ProblemSchema, problems, ref, type Static, Type } from './schemas.ts';

const tags = ['system'];
const config = { access: 'public' } as const;

export function systemRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void {
  limitRoutes(app, settings);
  healthRoutes(app, deps);
  metricsRoute(app, deps, settings);
  problemRoute(app);
  rootRoute(app);
}

/* -------------------------------------------------------------------------- limits */

const count = Type.Integer();
const LimitsSchema = Type.Object({
  upload_bytes_max: count,
  upload_seconds_max: count,
  upload_stall_seconds: count,
  pending_per_user_max: Type.Integer({ description: 'Unfinished uploads of one account; above it 429.' }),
  uploads_per_user_max: Type.Integer({ description: 'Uploads of one account that are on their way; above it 429.' }),
  uploads_per_minute_max: Type.Integer({ description: 'Accepted uploads of one account; above it 429.' }),
  backlog_max: Type.Integer({ description: 'Uploads of everybody that wait; above it 503.' }),
  staging_bytes_max: Type.Integer({ description: 'Bytes of everybody that are not published; above it 503.' }),
  uploads_max: Type.Integer({ description: 'Uploads that one process receives; above it 503.' }),
  file_name_length_max: count,
  alt_length_max: count,
  image_types: Type.Array(Type.String({ description: 'Rendered; everything else is stored as it is.' })),
  variants: Type.Array(Type.String()),
  pixels_max: Type.Integer({ description: 'Width × height × frames.' }),
  pixels_max_avif: count,
  frames_max: count,
  scans_max: count,
  message_length_max: count,
  message_attachments_max: count,
  chat_title_length_max: count,
  handle_length_max: count,
  password_length_min: count,
  password_length_max: count,
  page_default: count,
  page_max: count,
  wait_seconds_max: count,
  idempotency_key_length_max: count,
  idempotency_seconds: count,
  session_seconds: count,
  registration: Type.Enum(['open', 'closed']),
});

function limitRoutes(app: App, settings: HttpSettings): void {
  const answer: Static<typeof LimitsSchema> = {
    upload_bytes_max: settings.uploadBytesMax,
    upload_seconds_max: Math.floor(settings.uploadMsMax / 1000),
    upload_stall_seconds: Math.floor(settings.stallMs / 1000),
    pending_per_user_max: settings.pendingPerUserMax,
    uploads_per_user_max: settings.uploadsPerUserMax,
    uploads_per_minute_max: settings.uploadsPerMinuteMax,
    backlog_max: settings.backlogMax,
    staging_bytes_max: settings.stagingBytesMax,
    uploads_max: settings.uploadsMax,
    file_name_length_max: limits.fileNameLengthMax,
    alt_length_max: limits.altLengthMax,
    image_types: Object.keys(imageTypes),
    variants: [...variantNames],
    pixels_max: settings.pixelsMax,
    pixels_max_avif: settings.pixelsMaxAvif,
    frames_max: settings.framesMax,
    scans_max: settings.scansMax,
    message_length_max: limits.messageLengthMax,
    message_attachments_max: limits.messageAttachmentsMax,
    chat_title_length_max: limits.titleLengthMax,
    handle_length_max: limits.handleLengthMax,
    password_length_min: limits.passwordLengthMin,
    password_length_max: limits.passwordLengthMax,
    page_default: limits.pageDefault,
    page_max: limits.pageMax,
    wait_seconds_max: limits.waitSecondsMax,
    idempotency_key_length_max: limits.idempotencyKeyLengthMax,
    idempotency_seconds: Math.floor(settings.idempotencyMs / 1000),
    session_seconds: Math.floor(settings.sessionMs / 1000),
    registration: settings.registration === 'open' ? 'open' : 'closed',
  };
  app.get(
    '/v1/limits',
    { config, schema: { tags, operationId: 'getLimits', summary: 'Every limit', response: { 200: LimitsSchema } } },
    async () => answer,
  );
}

/* -------------------------------------------------------------------------- health */

const Component = Type.Enum(['ok', 'down', 'absent']);
const Components = Type.Object({ database: Component, storage: Component, broker: Component });

const ReadySchema = Type.Object({
  status: Type.Enum(['ok', 'degraded'], { description: '`degraded`: the broker is missing; uploads go on.' }),
  components: Components,
});

function healthRoutes(app: App, deps: HttpDeps): void {
  const ask = createHealth(deps);
  let closing = false;
  app.addHook('preClose', async () => {
    closing = true;
  });

  app.get(
    '/health/live',
    {
      config,
      schema: {
        tags,
        operationId: 'getLiveness',
        summary: 'Whether the process answers',
        response: { 200: Type.Object({ status: Type.Enum(['ok']) }) },
      },
    },
    async () => ({ status: 'ok' as const }),
  );

  app.get(
    '/health/ready',
    {
      config,
      schema: {
        tags,
        operationId: 'getReadiness',
        summary: 'Whether requests can be served',
        description: 'Fails without PostgreSQL or object storage. Acceptance does not need the broker.',
        response: {
          200: { description: 'Ready.', content: { 'application/json': { schema: ReadySchema } } },
          503: {
            description: '`unavailable`, with `components`.',
            content: { 'application/problem+json': { schema: ref(ProblemSchema) } },
          },
        },
      },
    },
    async (request, reply) => {
      const components = await ask();
      if (!closing && components.database === 'ok' && components.storage === 'ok') {
        return { status: components.broker === 'down' ? ('degraded' as const) : ('ok' as const), components };
      }
      const error = new SkrepkaError('unavailable', { retryAfterSeconds: 5 });
      const { headers, body } = problemOf(error, request.id);
      return reply.code(503).headers(headers).send(Object.assign(body, { components }));
    },
  );
}

/* ------------------------------------------------------------------------- metrics */

function metricsRoute(app: App, { metrics }: HttpDeps, settings: HttpSettings): void {
  app.get(
    '/metrics',
    {
      config,
      schema: {
        tags,
        operationId: 'getMetrics',
        summary: 'Metrics for Prometheus',
        description: 'Open on loopback; from elsewhere with the bearer token `METRICS_TOKEN`.',
        security: [{}, { metrics: [] }],
        response: {
          200: { description: 'Text exposition.', content: { 'text/plain': { schema: Type.String() } } },
          ...problems('unauthorized'),
        },
      },
    },
    async (request, reply) => {
      if (!mayReadMetrics(request.raw, settings.metricsToken)) throw new SkrepkaError('unauthorized');
      return reply.header('content-type', metrics.contentType).send(await metrics.render());
    },
  );
}

/* ------------------------------------------------------------------- problem types */

function problemRoute(app: App): void {
  app.get(
    '/problems/:code',
    {
      config,
      schema: {
        tags,
        operationId: 'getProblemType',
        summary: 'What a problem type means',
        params: Type.Object({ code: Type.String({ maxLength: 64 }) }),
        response: {
          200: Type.Object({
            code: Type.String(),
            title: Type.String(),
            status: Type.Unsafe<number | null>({
              type: ['integer', 'null'],
              description: 'Null where the code only ends jobs.',
            }),
            text: Type.String(),
          }),
          ...problems('not_found'),
        },
      },
    },
    async (request) => {
      const { code } = request.params;
      if (!isCode(code)) throw new SkrepkaError('not_found');
      const { title, status, text } = catalogue[code];
      return { code, title, status, text };
    },
  );
}

/* ---------------------------------------------------------------------------- root */

function rootRoute(app: App): void {
  app.get(
    '/',
    {
      config,
      schema: {
        tags,
        operationId: 'getRoot',
        summary: 'Where to begin',
        description: 'Leads people who open the server in a browser to its reference.',
        response: {
          302: {
            description: 'The reference.',
            type: 'null',
            headers: { location: { type: 'string', description: '`/docs`' } },
          },
        },
      },
    },
    async (_request, reply) => reply.redirect('/docs', 302),
  );
}
