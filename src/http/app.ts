/**
 * What every route file shares: the type of the server, what it is given, who is asking.
 *
 * A route file exports one function `xRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void`, which adds routes
 * to `app`. `server.ts` calls them in a plain list. A route says who may call it in `config.access`; without a word it
 * needs a token.
 */
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import type {
  FastifyBaseLogger,
  FastifyInstance,
  FastifyRequest,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
} from 'fastify';
import { SkrepkaError } from '../errors.ts';
import type { Accept } from '../pipeline/accept.ts';
import type { User } from '../pipeline/message.ts';
import type { People } from '../pipeline/people.ts';
import type { Blobs, Broker, Clock, Log, Meter, Signals } from '../pipeline/ports.ts';
import type { Store } from '../pipeline/store.ts';

export type App = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression<RawServerDefault>,
  RawReplyDefaultExpression<RawServerDefault>,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>;

/** `public`: anybody. `user`: a live token. `admin`: a live token of an operator. */
export type Access = 'public' | 'user' | 'admin';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Who may call the route; `user` when it says nothing. */
    access?: Access;
  }
  interface FastifyRequest {
    /** Set by `auth.ts` before any other hook of the route; null on public routes without a token. */
    user: User | null;
  }
}

export interface HttpDeps {
  readonly store: Store;
  readonly people: People;
  readonly blobs: Blobs;
  /** Null where this process does not talk to one. */
  readonly broker: Pick<Broker, 'health' | 'depth'> | null;
  readonly accept: Accept;
  readonly signals: Signals;
  readonly log: Log;
  readonly meter: Meter;
  readonly metrics: { readonly contentType: string; render(): Promise<string> };
  readonly clock: Clock;
}

/** A part of the configuration, under the same names. Durations in milliseconds, sizes in bytes. */
export interface HttpSettings {
  readonly host: string;
  readonly port: number;
  readonly uploadBytesMax: number;
  readonly uploadMsMax: number;
  readonly stallMs: number;
  readonly backlogMax: number;
  readonly stagingBytesMax: number;
  readonly uploadsMax: number;
  readonly pendingPerUserMax: number;
  readonly uploadsPerUserMax: number;
  readonly uploadsPerMinuteMax: number;
  readonly waitsMax: number;
  readonly waitsPerUserMax: number;
  readonly pixelsMax: number;
  readonly pixelsMaxAvif: number;
  readonly framesMax: number;
  readonly scansMax: number;
  readonly metricsToken: string;
  /** `stream` or `redirect`. */
  readonly delivery: string;
  readonly presignSeconds: number;
  readonly registration: string;
  readonly idempotencyMs: number;
  readonly sessionMs: number;
  readonly loginFailuresMax: number;
  readonly loginWindowMs: number;
  /** After which objects of a deleted attachment are cleaned. */
  readonly graceMs: number;
  /** The version that reprocessing makes; 0: the newest of this build. */
  readonly pipelineVersion: number;
  readonly spacingMs: number;
}

/** The account that is asking. Throws `unauthorized` where the route let a stranger in. */
export function userOf(request: FastifyRequest): User {
  if (request.user === null) throw new SkrepkaError('unauthorized');
  return request.user;
}
