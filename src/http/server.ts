/**
 * The HTTP frame: everything that holds for every route. Routes are in the files beside this one, listed in `routes`.
 *
 * A request: headers and id → 404 or 405 → who is asking (`auth.ts`) → body → validation → handler. Whatever is thrown on
 * the way is answered by `problems.ts`; handlers throw `SkrepkaError` and never shape an error themselves.
 *
 * Convention for a route file: `export function xRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void`, adding
 * routes with `app.get('/v1/x/:id', { config: { access: 'user' }, schema: { tags, operationId, summary, params, response:
 * { 200: Shape, ...problems('not_found') } } }, handler)`. `userOf(request)` is the account that asks. A 401 and, for
 * operators, a 403 are declared for every route with access `user` or `admin`; the rest of its refusals it names itself.
 */
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import Fastify, { type FastifyReply, type FastifyRequest, type RouteOptions } from 'fastify';
import packageFile from '../../package.json' with { type: 'json' };
import { describe, SkrepkaError } from '../errors.ts';
import { newId } from '../ids.ts';
import type { App, HttpDeps, HttpSettings } from './app.ts';
import { attachmentRoutes } from './attachments.ts';
import { authenticate } from './auth.ts';
import { gone } from './body.ts';
import { chatRoutes } from './chats.ts';
import { answerAndClose, answerBrokenConnection, bodyIsOpen, holdContinue } from './connections.ts';
import { contentRoutes } from './content.ts';
import { installContract, installReference } from './docs.ts';
import { readJson } from './json.ts';
import { messageRoutes } from './messages.ts';
import { operatorRoutes } from './operator.ts';
import { peopleRoutes } from './people.ts';
import { problemOf, toCatalogue } from './problems.ts';
import { addSharedSchemas, compileSchema, problems } from './schemas.ts';
import { systemRoutes } from './system.ts';

/** A socket on which nothing moves in either direction is closed; long-polls and stalled uploads end earlier. */
const idleSocketMs = 120_000;
const headersMs = 30_000;
const sweepMs = 100;

export interface HttpServer {
  readonly app: App;
  /** Resolves with where it listens. Rejects with the socket's own error, e.g. `EADDRINUSE`. */
  listen(): Promise<{ url: string; port: number }>;
  /** Takes no new connections, ends long-polls, lets running requests finish. */
  close(): Promise<void>;
}

type Routes = (app: App, deps: HttpDeps, settings: HttpSettings) => void;

const routes: readonly Routes[] = [
  systemRoutes,
  attachmentRoutes,
  contentRoutes,
  peopleRoutes,
  chatRoutes,
  messageRoutes,
  operatorRoutes,
];

/** Builds the whole server, ready to listen. */
export async function createServer(deps: HttpDeps, settings: HttpSettings): Promise<HttpServer> {
  const app = createApp(deps);
  const methods = collectMethods(app);
  holdContinue(app.server);
  app.decorateRequest('user', null);
  app.setErrorHandler((error, request, reply) => answerError(deps, error, request, reply));
  app.setNotFoundHandler(() => {
    throw new SkrepkaError('not_found');
  });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', (request: FastifyRequest) => readJson(request.raw));
  app.addHook('onRequest', async (request, reply) => {
    setFrameHeaders(request, reply);
    // Not `onResponse`: that one says nothing of a client that went away before its answer.
    // The framework's own clock of a reply runs only with its logger or its `onResponse`.
    const startedMs = deps.clock.monotonicMs();
    reply.raw.once('close', () => logAnswer(deps, request, reply, deps.clock.monotonicMs() - startedMs));
    refuseUnroutable(request, methods);
  });
  app.addHook('onRequest', authenticate(deps.people));
  app.addHook('preHandler', async (request) => refuseDeparted(request));
  declareAccess(app);
  await installContract(app, packageFile.version);
  addSharedSchemas(app);
  for (const add of routes) add(app, deps, settings);
  await installReference(app);
  await app.ready();

  return {
    app,
    async listen() {
      await app.listen({ host: settings.host, port: settings.port });
      const address = app.server.address();
      const port = typeof address === 'object' && address ? address.port : settings.port;
      const host = settings.host.includes(':') ? `[${settings.host}]` : settings.host;
      return { url: `http://${host}:${port}`, port };
    },
    async close() {
      // A connection whose request was running when closing began would stay open for its whole keep-alive time.
      const sweep = setInterval(() => app.server.closeIdleConnections(), sweepMs);
      await app.close().finally(() => clearInterval(sweep));
    },
  };
}

/**
 * Of a body, unread: less than one read of a socket brings, 64 KiB, so that each is handed on by itself. Node joins what it has queued,
 * into a copy; its parts are found by the collector alone, and full collections for their sake held up every sixtieth upload of 200 KB.
 */
const queuedBytesMax = 16 * 1024;

function createApp(deps: HttpDeps): App {
  return Fastify({
    // The port's log is used directly: the framework's own lines would carry URLs with user text in them.
    logger: false,
    genReqId: () => newId(),
    bodyLimit: Number.MAX_SAFE_INTEGER,
    connectionTimeout: idleSocketMs,
    // A whole upload may take an hour; its progress is watched by `upload.ts`, other bodies by `json.ts`.
    requestTimeout: 0,
    forceCloseConnections: 'idle',
    return503OnClosing: false,
    http: {
      requireHostHeader: false,
      headersTimeout: headersMs,
      connectionsCheckingInterval: 5000,
      highWaterMark: queuedBytesMax,
    },
    routerOptions: { maxParamLength: 256 },
    clientErrorHandler: answerBrokenConnection,
    frameworkErrors: (error, request, reply) => {
      setFrameHeaders(request, reply);
      answerError(deps, error, request, reply);
    },
  })
    .withTypeProvider<TypeBoxTypeProvider>()
    .setValidatorCompiler(compileSchema);
}

/* ------------------------------------------------------------------- every answer */

function setFrameHeaders(request: FastifyRequest, reply: FastifyReply): void {
  reply.headers({
    'x-request-id': request.id,
    'x-content-type-options': 'nosniff',
    'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
    'referrer-policy': 'no-referrer',
    'cross-origin-resource-policy': 'same-origin',
    'cache-control': 'no-store',
  });
}

function answerError(deps: HttpDeps, thrown: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const error = toCatalogue(thrown);
  const { status, headers, body } = problemOf(error, request.id);
  if (status >= 500) {
    const fields = { requestId: request.id, code: error.code, error: describe(error), stack: stackOf(error) };
    if (error.code === 'internal') deps.log.error(fields, 'request failed');
    else deps.log.warn(fields, 'request could not be answered');
  }
  const text = JSON.stringify(body);
  if (bodyIsOpen(request.raw) && !reply.raw.headersSent) {
    reply.hijack();
    void answerAndClose(request.raw, reply.raw, { status, headers: { ...reply.getHeaders(), ...headers }, text });
    return;
  }
  reply.code(status).headers(headers).send(text);
}

/** The stack of what was thrown first: the catalogue's error on top of it says nothing new. */
function stackOf(error: SkrepkaError): string | undefined {
  return error.code !== 'internal' ? undefined : ((error.cause as Error | undefined)?.stack ?? error.stack);
}

function logAnswer(deps: HttpDeps, request: FastifyRequest, reply: FastifyReply, tookMs: number): void {
  const route = request.routeOptions.url ?? 'none';
  const { statusCode } = reply;
  deps.meter.observe('http_request_seconds', tookMs / 1000, {
    method: request.method,
    route,
    status: String(statusCode),
  });
  const fields = {
    requestId: request.id,
    method: request.method,
    route,
    status: statusCode,
    ms: Math.round(tookMs),
    userId: request.user?.id,
    ...(reply.raw.writableFinished ? {} : { aborted: true }),
  };
  if (route.startsWith('/health') || route === '/metrics') deps.log.debug(fields, 'answered');
  else deps.log.info(fields, 'answered');
}

/* ------------------------------------------------------------------------ routing */

/** Method names by path pattern, kept up to date while routes are added. */
function collectMethods(app: App): Map<string, Set<string>> {
  const methods = new Map<string, Set<string>>();
  app.addHook('onRoute', (route) => {
    const known = methods.get(route.url) ?? new Set<string>();
    for (const method of [route.method].flat()) known.add(method);
    methods.set(route.url, known);
  });
  return methods;
}

/**
 * Ends a request whose client went away while it was read or waited for the database: nobody would see the answer, and a
 * handler that waits for the end of its connection would have missed it. Of a connection that was reset the system tells no
 * address, before anything else tells of it.
 */
function refuseDeparted({ raw: { socket } }: FastifyRequest): void {
  if (socket.destroyed || socket.remoteAddress === undefined) throw gone();
}

/** Ends what no route takes before anybody is asked who they are or a body is read. */
function refuseUnroutable(request: FastifyRequest, methods: Map<string, Set<string>>): void {
  // RFC 9112, section 3.2: a request of HTTP/1.1 without a host is bad. Node would answer it without a body.
  if (request.raw.httpVersion === '1.1' && request.headers.host === undefined) {
    throw new SkrepkaError('malformed_request', { members: { field: 'host' } });
  }
  if (!request.is404) return;
  const path = request.url.split('?', 1)[0] ?? '';
  const allowed = [...methods].filter(([pattern]) => matches(pattern, path)).flatMap(([, names]) => [...names]);
  if (allowed.length === 0) throw new SkrepkaError('not_found');
  throw new SkrepkaError('method_not_allowed', { members: { allow: [...new Set(allowed)].sort().join(', ') } });
}

function matches(pattern: string, path: string): boolean {
  const wanted = pattern.split('/');
  const given = path.split('/');
  return wanted.length === given.length && wanted.every((part, at) => part.startsWith(':') || part === given[at]);
}

/**
 * Tells the OpenAPI document who may call a route, from the same word that `auth.ts` obeys, and what asking who it is may
 * end with. What a route says of the same status itself goes before.
 */
function declareAccess(app: App): void {
  const ofUsers = problems('unauthorized', 'unavailable');
  const ofOperators = problems('unauthorized', 'forbidden', 'unavailable');
  app.addHook('onRoute', (route: RouteOptions) => {
    const access = route.config?.access ?? 'user';
    if (!route.schema || access === 'public') return;
    const schema = route.schema as typeof route.schema & { security?: object[]; response?: Record<number, object> };
    schema.security ??= [{ bearer: [] }];
    schema.response = { ...(access === 'admin' ? ofOperators : ofUsers), ...schema.response };
  });
}
