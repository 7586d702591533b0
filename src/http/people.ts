/** Accounts and sessions: registering, logging in and out, and the account that is asking. */
import { SkrepkaError } from '../errors.ts';
import { handlePattern, limits, type User } from '../pipeline/message.ts';
import { type App, type HttpDeps, type HttpSettings, userOf } from './app.ts';
import { createDoorkeeper, type Doorkeeper, type LoggedIn, tokenHashOf } from './auth.ts';
import { Id, problems, type Static, Time, Type } from './schemas.ts';
import { textPattern } from './text.ts';

const Handle = Type.String({
  pattern: handlePattern,
  maxLength: limits.handleLengthMax,
  description: 'Lower-case letters, digits, `_`, `.` and `-`, beginning with a letter or digit; 2 to 32 characters.',
});

const UserShape = Type.Object({ id: Id, handle: Handle, role: Type.Enum(['user', 'admin']), created_at: Time });

const LoggedInShape = Type.Object({
  user: UserShape,
  token: Type.String({ description: 'Bearer token. Shown this once.' }),
  expires_at: Time,
});

const Registration = Type.Object(
  {
    handle: Handle,
    password: Type.String({
      minLength: limits.passwordLengthMin,
      maxLength: limits.passwordLengthMax,
      pattern: textPattern,
    }),
  },
  { additionalProperties: false },
);

/** Not the rules of today's passwords: an account may have an older one. */
const Credentials = Type.Object(
  {
    handle: Handle,
    password: Type.String({ minLength: 1, maxLength: limits.passwordLengthMax, pattern: textPattern }),
  },
  { additionalProperties: false },
);

/** `/v1/users`, `/v1/sessions`. */
export function peopleRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void {
  const doorkeeper = createDoorkeeper(deps, settings);
  userRoutes(app, doorkeeper);
  sessionRoutes(app, deps, doorkeeper);
}

function userRoutes(app: App, doorkeeper: Doorkeeper): void {
  app.post(
    '/v1/users',
    {
      config: { access: 'public' },
      schema: {
        tags: ['people'],
        operationId: 'register',
        summary: 'Make an account and log it in',
        body: Registration,
        response: {
          201: LoggedInShape,
          ...problems(
            'validation',
            'malformed_body',
            'registration_closed',
            'handle_taken',
            'body_too_large',
            'unsupported_media_type',
            'unavailable',
          ),
        },
      },
    },
    async (request, reply) => {
      const { handle, password } = request.body;
      return reply
        .code(201)
        .header('cache-control', 'no-store')
        .send(shapeLoggedIn(await doorkeeper.register(handle, password, request.ip)));
    },
  );

  app.get(
    '/v1/users/me',
    {
      config: { access: 'user' },
      schema: {
        tags: ['people'],
        operationId: 'me',
        summary: 'The account that is asking',
        response: { 200: UserShape },
      },
    },
    async (request) => shapeUser(userOf(request)),
  );
}

function sessionRoutes(app: App, deps: HttpDeps, doorkeeper: Doorkeeper): void {
  app.post(
    '/v1/sessions',
    {
      config: { access: 'public' },
      schema: {
        tags: ['people'],
        operationId: 'logIn',
        summary: 'Log in',
        description: 'Failed log-ins of a handle from one address are counted; too many are answered 429 for a while.',
        body: Credentials,
        response: {
          201: LoggedInShape,
          ...problems(
            'validation',
            'malformed_body',
            'invalid_credentials',
            'body_too_large',
            'unsupported_media_type',
            'too_many_logins',
            'unavailable',
          ),
        },
      },
    },
    async (request, reply) => {
      const { handle, password } = request.body;
      const loggedIn = await doorkeeper.logIn(handle, password, request.ip);
      return reply.code(201).header('cache-control', 'no-store').send(shapeLoggedIn(loggedIn));
    },
  );

  app.delete(
    '/v1/sessions/current',
    {
      config: { access: 'user' },
      schema: {
        tags: ['people'],
        operationId: 'logOut',
        summary: 'End the session of this token',
        response: {
          204: Type.Null({ description: 'The token is worth nothing from now on.' }),
        },
      },
    },
    async (request, reply) => {
      const tokenHash = tokenHashOf(request);
      if (tokenHash === null || tokenHash === 'malformed') throw new SkrepkaError('unauthorized');
      await deps.people.endSession(tokenHash);
      return reply.code(204).send(null);
    },
  );
}

function shapeUser(user: User): Static<typeof UserShape> {
  return { id: user.id, handle: user.handle, role: user.role, created_at: user.createdAt.toISOString() };
}

function shapeLoggedIn({ user, token, expiresAt }: LoggedIn): Static<typeof LoggedInShape> {
  return { user: shapeUser(user), token, expires_at: expiresAt.toISOString() };
}
