/**
 * The error catalogue: every code that a client, an operator or a job row can ever carry.
 *
 * Status, fate and the public sentence are data here, never decided elsewhere. `docs/errors.md` is proven equal to this
 * table by `tests/tidy.test.ts`. What a client reads (`text`) and what the log reads (`log`, `cause`) are kept apart.
 */

/**
 * What becomes of a job attempt that ends with the code. `caller` codes never end an attempt: they refuse a request.
 * `twice` is permanent from its second occurrence on: one crash can be bad luck, two are the picture's doing.
 */
export type Fate = 'caller' | 'permanent' | 'twice' | 'retry';

interface Entry {
  /** HTTP status where the code can answer a request; null where it only ever ends a job. */
  readonly status: number | null;
  readonly fate: Fate;
  /** RFC 9457 `title`: the same for every occurrence. */
  readonly title: string;
  /** The sentence for users: no path, key, host or stack. */
  readonly text: string;
}

const caller = (status: number, title: string, text: string): Entry => ({ status, fate: 'caller', title, text });
const job = (fate: Fate, title: string, text: string): Entry => ({ status: null, fate, title, text });

export const catalogue = {
  validation: caller(400, 'Invalid request', 'A field of the request is missing or not of the expected form.'),
  malformed_request: caller(400, 'Malformed request', 'The request line, a header or the path is not well-formed.'),
  malformed_body: caller(400, 'Malformed body', 'The body could not be read as the declared media type.'),
  empty_file: caller(400, 'Empty file', 'The uploaded file has no bytes.'),
  malformed_multipart: caller(400, 'Malformed multipart body', 'The multipart body is broken off or not well-formed.'),
  file_missing: caller(400, 'File missing', 'The multipart body has no part named "file".'),
  too_many_files: caller(400, 'Too many files', 'The multipart body has more than one file; send one per request.'),
  digest_mismatch: caller(400, 'Digest mismatch', 'The received bytes do not have the declared SHA-256 digest.'),
  unauthorized: caller(401, 'Unauthorized', 'A valid bearer token is needed.'),
  invalid_credentials: caller(401, 'Invalid credentials', 'The handle or the password is wrong.'),
  forbidden: caller(403, 'Forbidden', 'This account may not do that.'),
  registration_closed: caller(403, 'Registration closed', 'This server does not accept new accounts.'),
  not_found: caller(404, 'Not found', 'There is nothing here that this account may see.'),
  method_not_allowed: caller(405, 'Method not allowed', 'The resource exists, but not for this method.'),
  request_timeout: caller(408, 'Request too slow', 'The request did not arrive in time.'),
  upload_expired: caller(
    408,
    'Upload took too long',
    'The upload took longer than allowed and was not kept; send it again.',
  ),
  attachment_not_ready: caller(409, 'Attachment not ready', 'The attachment is still being processed.'),
  attachment_failed: caller(409, 'Attachment failed', 'The attachment could not be processed.'),
  idempotency_in_flight: caller(409, 'Request in flight', 'A request with this idempotency key is still running.'),
  already_succeeded: caller(409, 'Already succeeded', 'The job has succeeded; there is nothing to replay.'),
  job_unfinished: caller(409, 'Job unfinished', 'The job is queued or running; nothing was changed.'),
  job_ended: caller(
    409,
    'Job ended',
    'The job is over for good: superseded, cancelled, or its attachment was deleted or shows a newer version.',
  ),
  staging_gone: caller(409, 'Original not kept', 'The bytes of the failed upload are not kept any more.'),
  handle_taken: caller(409, 'Handle taken', 'Another account has this handle.'),
  file_too_large: caller(413, 'File too large', 'The file is larger than this server accepts.'),
  body_too_large: caller(413, 'Body too large', 'The request body is larger than this route accepts.'),
  unsupported_media_type: caller(415, 'Unsupported media type', 'This route does not take that media type.'),
  unsupported_image: caller(415, 'Unsupported image', 'The content is not an image of any supported type.'),
  range_not_satisfiable: caller(416, 'Range not satisfiable', 'The requested range is outside the object.'),
  idempotency_mismatch: caller(422, 'Idempotency key reused', 'This idempotency key was used with other content.'),
  headers_too_large: caller(
    431,
    'Headers too large',
    'The request line and headers are larger than this server accepts.',
  ),
  too_many_uploads: caller(429, 'Too many uploads', 'This account has too many uploads at once; try again later.'),
  too_many_logins: caller(429, 'Too many log-in attempts', 'Too many failed log-ins; try again later.'),
  unavailable: caller(503, 'Temporarily unavailable', 'The service cannot answer this now; try again later.'),
  overloaded: caller(503, 'Overloaded', 'The service has as much work as it can keep; try again later.'),
  corrupt_image: job('permanent', 'Corrupt image', 'The image is damaged and cannot be decoded.'),
  too_many_pixels: job('permanent', 'Too many pixels', 'The image has more pixels than this server renders.'),
  too_many_frames: job('permanent', 'Too many frames', 'The animation has more frames than this server renders.'),
  too_many_scans: job('permanent', 'Too many scans', 'The progressive JPEG has more scans than this server renders.'),
  staging_lost: job('permanent', 'Original lost', 'The uploaded bytes are gone; please upload the file again.'),
  staging_corrupt: job('permanent', 'Original damaged', 'The stored bytes are damaged; please upload the file again.'),
  worker_lost: job('permanent', 'Processing kept dying', 'Processing this file ended unexpectedly several times.'),
  render_timeout: job('twice', 'Rendering took too long', 'Rendering this image took longer than allowed.'),
  render_memory: job(
    'twice',
    'Rendering needed too much memory',
    'Rendering this image needed more memory than allowed.',
  ),
  render_crashed: job('twice', 'Rendering crashed', 'The image decoder crashed on this image.'),
  storage_unavailable: {
    status: 503,
    fate: 'retry',
    title: 'Storage unavailable',
    text: 'The file storage could not read or write this object; try again later.',
  },
  internal: {
    status: 500,
    fate: 'retry',
    title: 'Internal error',
    text: 'Something went wrong on our side.',
  },
} as const satisfies Record<string, Entry>;

export type Code = keyof typeof catalogue;

/** True for a string that is a code of the catalogue: how rows and child processes are parsed at the border. */
export function isCode(value: unknown): value is Code {
  return typeof value === 'string' && Object.hasOwn(catalogue, value);
}

export interface ErrorExtras {
  /** For the log and the operator only. Never sent to a client. */
  readonly log?: string;
  readonly cause?: unknown;
  /** A more precise public sentence than the catalogue's; carries no path, key, host or stack. */
  readonly detail?: string;
  /** RFC 9457 extension members, e.g. `{ field: '/alt' }` or `{ state: 'queued' }`. */
  readonly members?: Readonly<Record<string, string | number | boolean | null>>;
  readonly retryAfterSeconds?: number;
}

/** The only error class that is thrown on purpose. `message` is for the log. */
export class SkrepkaError extends Error {
  readonly code: Code;
  readonly detail: string;
  readonly members: Readonly<Record<string, string | number | boolean | null>>;
  readonly retryAfterSeconds: number | null;

  constructor(code: Code, extras: ErrorExtras = {}) {
    super(extras.log ?? catalogue[code].text, extras.cause === undefined ? undefined : { cause: extras.cause });
    this.name = 'SkrepkaError';
    this.code = code;
    this.detail = extras.detail ?? catalogue[code].text;
    this.members = extras.members ?? {};
    this.retryAfterSeconds = extras.retryAfterSeconds ?? null;
  }
}

/** The code that an arbitrary thrown value stands for: its own, or `internal`. */
export function codeOf(error: unknown): Code {
  return error instanceof SkrepkaError ? error.code : 'internal';
}

/** One line for a log: messages along the `cause` chain, no stack. */
export function describe(error: unknown): string {
  const parts: string[] = [];
  for (let at: unknown = error, depth = 0; at !== undefined && at !== null && depth < 5; depth += 1) {
    // An error of several addresses has a code and no message.
    parts.push(at instanceof Error ? at.message || String((at as { code?: unknown }).code ?? at.name) : String(at));
    at = at instanceof Error ? at.cause : undefined;
  }
  return parts.join(': ');
}

/** A refusal to start or to run a verb: `message` is one sentence for the terminal that says what, where and what to do. */
export class StartError extends Error {
  constructor(sentence: string, cause?: unknown) {
    super(sentence, cause === undefined ? undefined : { cause });
    this.name = 'StartError';
  }
}
