/**
 * Who is asking: bearer tokens, the hook that turns one into an account, registering and logging in.
 *
 * A token is 256 random bits behind `skr_`, a prefix by which people and secret scanners know it. The database holds its
 * SHA-256 only: a token has no structure to guess, so a fast hash is enough. Passwords are another matter (`password.ts`).
 * Neither is ever logged, nor does any answer tell whether a handle exists, except when it is to be registered.
 */
import { createHash, randomBytes } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { SkrepkaError } from '../errors.ts';
import { newId } from '../ids.ts';
import type { User } from '../pipeline/message.ts';
import type { People } from '../pipeline/people.ts';
import type { HttpDeps, HttpSettings } from './app.ts';
import { createGate, networkOf } from './gate.ts';
import { hashPassword, verifyPassword } from './password.ts';

export interface LoggedIn {
  readonly user: User;
  /** Shown once, never stored. */
  readonly token: string;
  readonly expiresAt: Date;
}

export interface Doorkeeper {
  /** Makes an account and logs it in. Throws `registration_closed`, `handle_taken`, or `unavailable` when too many passwords are being hashed. */
  register(handle: string, password: string, address: string | undefined): Promise<LoggedIn>;
  /** Throws `invalid_credentials`; `too_many_logins` after too many failures of this handle from this address; `unavailable` as above. */
  logIn(handle: string, password: string, address: string | undefined): Promise<LoggedIn>;
}

type DoorkeeperDeps = Pick<HttpDeps, 'people' | 'clock'>;
type DoorkeeperSettings = Pick<HttpSettings, 'registration' | 'sessionMs' | 'loginFailuresMax' | 'loginWindowMs'>;

/**
 * Half of libuv's four threads may hash, the other half stays free for files and names. A line of 32 is cleared in about
 * four seconds, on a busy machine in ten; whoever comes later is better told so than kept waiting.
 */
const hashing = { passingMax: 2, waitingMax: 32, waitMsMax: 10_000, retryAfterSeconds: 5 } as const;

export const operatorHandle = 'operator';

/** Registers and logs in. One for each server: it bounds the hashing of its process. */
export function createDoorkeeper({ people, clock }: DoorkeeperDeps, settings: DoorkeeperSettings): Doorkeeper {
  const gate = createGate({ clock }, hashing);

  async function open(user: User): Promise<LoggedIn> {
    const token = `${tokenPrefix}${randomBytes(32).toString('base64url')}`;
    const session = { tokenHash: hashToken(token), userId: user.id, ttlMs: settings.sessionMs };
    const { expiresAt } = await people.createSession(session);
    return { user, token, expiresAt };
  }

  return {
    async register(handle, password, address) {
      if (settings.registration !== 'open') throw new SkrepkaError('registration_closed');
      // Kept for the account that the first start makes, which must not find a stranger in its place.
      if (handle === operatorHandle) throw handleTaken();
      const passwordHash = await gate.pass(networkOf(address), () => hashPassword(password));
      const user = await people.createUser({ id: newId(), handle, passwordHash, role: 'user' });
      if (user === null) throw handleTaken();
      return open(user);
    },

    async logIn(handle, password, address) {
      const subject = createHash('sha256').update(`${handle}\n${address}`).digest('hex');
      const user = await gate.pass(networkOf(address), () =>
        checkPassword(people, settings, { handle, password, subject }),
      );
      await people.clearLoginFailures(subject);
      return open(user);
    },
  };
}

/**
 * Counter, password and counting happen while holding a place in the gate: however many guesses arrive at once, no more
 * than the gate's places can overtake the count.
 */
async function checkPassword(
  people: People,
  settings: DoorkeeperSettings,
  { handle, password, subject }: { handle: string; password: string; subject: string },
): Promise<User> {
  const before = await people.loginFailures(subject, settings.loginWindowMs);
  if (before.count >= settings.loginFailuresMax) {
    throw new SkrepkaError('too_many_logins', { retryAfterSeconds: before.retryAfterSeconds });
  }
  const found = await people.credentials(handle);
  if ((await verifyPassword(password, found?.passwordHash ?? null)) && found) return found.user;
  await people.recordLoginFailure(subject, settings.loginWindowMs);
  throw new SkrepkaError('invalid_credentials');
}

function handleTaken(): SkrepkaError {
  return new SkrepkaError('handle_taken', { members: { field: '/handle' } });
}

/**
 * Makes the operator's account when there is none, and answers its credentials: the only time that they can be read.
 * Null when the account exists. For the first start.
 */
export async function ensureOperator(people: People): Promise<{ handle: string; password: string } | null> {
  if (await people.credentials(operatorHandle)) return null;
  const password = randomBytes(18).toString('base64url');
  const passwordHash = await hashPassword(password);
  const user = await people.createUser({ id: newId(), handle: operatorHandle, passwordHash, role: 'admin' });
  return user ? { handle: operatorHandle, password } : null;
}

/* ------------------------------------------------------------------- tokens */

const tokenPrefix = 'skr_';
const tokenForm = /^skr_[A-Za-z0-9_-]{43}$/;

function hashToken(token: string): Uint8Array {
  return createHash('sha256').update(token).digest();
}

/** The hash of the token that the request carries; null without one. `malformed`: something else in a bearer's place. */
export function tokenHashOf(request: FastifyRequest): Uint8Array | 'malformed' | null {
  // RFC 9110, section 11.1: the scheme's case does not matter.
  const bearer = /^bearer(?: +(.*))?$/i.exec(request.headers.authorization ?? '');
  if (bearer === null) return null;
  const [, token = ''] = bearer;
  return tokenForm.test(token) ? hashToken(token) : 'malformed';
}

/**
 * The hook that sets `request.user` on every route that is not public, before its body is read. Throws `unauthorized`, and
 * `forbidden` where an operator is asked for. Public routes look at no token: they answer while the database is down.
 */
export function authenticate(people: Pick<People, 'sessionUser'>) {
  return async (request: FastifyRequest): Promise<void> => {
    const access = request.routeOptions.config.access ?? 'user';
    if (access === 'public') return;
    const tokenHash = tokenHashOf(request);
    if (tokenHash === null) throw new SkrepkaError('unauthorized');
    const user = tokenHash === 'malformed' ? null : await people.sessionUser(tokenHash);
    if (user === null) {
      // RFC 6750, section 3.1: a client that sent a token is told that it is the token. `problems.ts` puts it in the header.
      throw new SkrepkaError('unauthorized', {
        detail: 'The token is not known, has expired or was ended.',
        members: { error: 'invalid_token' },
      });
    }
    request.user = user;
    if (access === 'admin' && user.role !== 'admin') throw new SkrepkaError('forbidden');
  };
}
