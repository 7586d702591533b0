/** The routes about the server itself: limits, health, metrics, and what the problem types mean. All public. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { catalogue, isCode, SkrepkaError } from '../errors.ts';
import { imageTypes, variantNames } from '../pipeline/attachment.ts';
import { limits } from '../pipeline/message.ts';
import type { App, HttpDeps, HttpSettings } from './app.ts';
import { problemOf } from './problems.ts';
import { ProblemSchema, problems, ref, type Static, Type } from './schemas.ts';

const tags = ['system'];
const config = { access: 'public' } as const;

/** Longest wait for one component's answer. */
const healthMs = 2000;

export function systemRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void {
  limitRoutes(app, settings);
  healthRoutes(app, deps);
  metricsRoute(app, deps, settings);
  problemRoute(app);
}

/* -------------------------------------------------------------------------- limits */

const count = Type.Integer();
const LimitsSchema = Type.Object({
  upload_bytes_max: count,
  upload_seconds_max: count,
  upload_stall_seconds: count,
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
type Components = Static<typeof Components>;

const ReadySchema = Type.Object({
  status: Type.Enum(['ok', 'degraded'], { description: '`degraded`: the broker is missing; uploads go on.' }),
  components: Components,
});

function healthRoutes(app: App, deps: HttpDeps): void {
  let running: Promise<Components> | null = null;
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
      // However many probes ask at once, each component is asked once.
      running ??= check(deps).finally(() => {
        running = null;
      });
      const components = await running;
      if (!closing && components.database === 'ok' && components.storage === 'ok') {
        return { status: components.broker === 'down' ? ('degraded' as const) : ('ok' as const), components };
      }
      const error = new SkrepkaError('unavailable', { retryAfterSeconds: 5 });
      const { headers, body } = problemOf(error, request.id);
      return reply.code(503).headers(headers).send(Object.assign(body, { components }));
    },
  );
}

async function check({ store, blobs, broker, log }: HttpDeps): Promise<Components> {
  const probe = async (name: string, part: { health(): Promise<void> } | null) => {
    if (!part) return 'absent' as const;
    const overdue = AbortSignal.timeout(healthMs);
    try {
      await Promise.race([part.health(), rejection(overdue)]);
      return 'ok' as const;
    } catch (error) {
      log.warn({ component: name, error: error instanceof Error ? error.message : String(error) }, 'component is down');
      return 'down' as const;
    }
  };
  const [database, storage, queue] = await Promise.all([
    probe('database', store),
    probe('storage', blobs),
    probe('broker', broker),
  ]);
  return { database, storage, broker: queue };
}

function rejection(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
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
      if (!isLocal(request) && !hasToken(request, settings.metricsToken)) throw new SkrepkaError('unauthorized');
      return reply.header('content-type', metrics.contentType).send(await metrics.render());
    },
  );
}

/** From this very machine, and not through a proxy on it, which would make everybody local. */
function isLocal({ headers, socket }: FastifyRequest): boolean {
  const address = socket.remoteAddress ?? '';
  const loopback = address === '::1' || /^(?:::ffff:)?127\./.test(address);
  return loopback && headers.forwarded === undefined && headers['x-forwarded-for'] === undefined;
}

function hasToken({ headers }: FastifyRequest, expected: string): boolean {
  const given = /^bearer +(.+)$/i.exec(headers.authorization ?? '')?.[1];
  if (expected === '' || given === undefined) return false;
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given), digest(expected));
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
