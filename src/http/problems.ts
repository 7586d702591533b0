/**
 * What becomes of anything thrown on the way of a request: one entry of the catalogue, as `application/problem+json`
 * (RFC 9457). The only place that knows the errors of the HTTP framework.
 */
import { type Code, catalogue, SkrepkaError } from '../errors.ts';
import { BlobError } from '../pipeline/ports.ts';
import { StoreError } from '../pipeline/store.ts';

export const problemType = 'application/problem+json; charset=utf-8';

/** Seconds that a client should wait when a dependency is down: long enough to matter, short enough for a person. */
const outageSeconds = 5;

export interface Problem {
  /** Stable, relative to the server: `/problems/<code>`, which answers with a description. */
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly code: Code;
  /** The request, as found in the log: `urn:uuid:…`. */
  readonly instance?: string;
  readonly [member: string]: unknown;
}

/** The catalogue's error for whatever was thrown. Unknown things become `internal`, their text only ever a `cause`. */
export function toCatalogue(error: unknown): SkrepkaError {
  if (error instanceof SkrepkaError) {
    return catalogue[error.code].status === null ? new SkrepkaError('internal', { cause: error }) : error;
  }
  if (error instanceof StoreError) {
    return new SkrepkaError('unavailable', { cause: error, retryAfterSeconds: outageSeconds });
  }
  if (error instanceof BlobError) {
    return new SkrepkaError('storage_unavailable', { cause: error, retryAfterSeconds: outageSeconds });
  }
  if (isFailedValidation(error)) return validationError(error);
  return new SkrepkaError(codeOfFramework(error), { cause: error });
}

/** The body and headers that answer a request with `error`. `requestId` null: not even a request was read. */
export function problemOf(
  error: SkrepkaError,
  requestId: string | null,
): { status: number; headers: Record<string, string>; body: Problem } {
  const { status, title } = catalogue[error.code];
  const headers: Record<string, string> = { 'content-type': problemType, 'cache-control': 'no-store' };
  if (error.retryAfterSeconds !== null) {
    headers['retry-after'] = String(Math.max(1, Math.ceil(error.retryAfterSeconds)));
  }
  // RFC 9110, sections 11.6.1 and 10.2.1: a 401 names its scheme, a 405 the methods.
  // RFC 6750, section 3.1: nor does it keep quiet about a token that was sent in vain.
  const { allow, error: reason, ...members } = error.members;
  const refused = reason === undefined ? '' : `, error="${reason}"`;
  if (status === 401) headers['www-authenticate'] = `Bearer realm="skrepka"${refused}`;
  if (allow !== undefined) headers.allow = String(allow);
  return {
    status: status ?? 500,
    headers,
    body: {
      ...members,
      type: `/problems/${error.code}`,
      title,
      status: status ?? 500,
      detail: error.detail,
      code: error.code,
      ...(requestId === null ? {} : { instance: `urn:uuid:${requestId}` }),
    },
  };
}

/* --------------------------------------------------------- the framework's errors */

interface FailedValidation {
  readonly validation: readonly {
    readonly keyword?: string;
    readonly instancePath: string;
    readonly message?: string;
    readonly params?: Readonly<Record<string, unknown>>;
  }[];
  readonly validationContext?: string;
}

function isFailedValidation(error: unknown): error is FailedValidation {
  return error instanceof Error && Array.isArray((error as Partial<FailedValidation>).validation);
}

/**
 * `field` is a JSON pointer into a body (`/alt`), the plain name of a query parameter or header (`limit`). A path parameter
 * that cannot be an id names nothing that exists: 404.
 */
function validationError(error: FailedValidation): SkrepkaError {
  if (error.validationContext === 'params') return new SkrepkaError('not_found', { cause: error });
  const first = error.validation[0];
  const pointer = (first?.instancePath ?? '') + namedMember(first?.params);
  const field = error.validationContext === 'body' ? pointer : pointer.slice(1);
  const where = field === '' ? 'The body' : `"${field}"`;
  const detail = `${where} ${sentenceOf(first)}.`;
  return new SkrepkaError('validation', { cause: error, detail, members: { field } });
}

/** What the validator says in the words of schemas is said in those of requests. */
function sentenceOf({ keyword, message, params }: Partial<FailedValidation['validation'][number]> = {}): string {
  // A member that the schema does not know is matched with the schema \`false\`, which nothing satisfies.
  if (keyword === 'boolean' || keyword === 'additionalProperties') return 'is not known';
  if (keyword === 'type' && params?.type === 'object') return 'must be a JSON object, {} at the least';
  if (keyword === 'required') return 'is missing';
  if (keyword === 'enum' && Array.isArray(params?.allowedValues))
    return `must be one of ${params.allowedValues.join(', ')}`;
  return message ?? 'is not of the expected form';
}

/** A missing or surplus member is reported at its parent; the client wants its own name. */
function namedMember(params: Readonly<Record<string, unknown>> | undefined): string {
  for (const list of [params?.requiredProperties, params?.additionalProperties]) {
    if (Array.isArray(list) && typeof list[0] === 'string') {
      return `/${list[0].replaceAll('~', '~0').replaceAll('/', '~1')}`;
    }
  }
  return '';
}

const frameworkCodes: Readonly<Record<string, Code>> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: 'unsupported_media_type',
  FST_ERR_CTP_BODY_TOO_LARGE: 'body_too_large',
  FST_ERR_CTP_EMPTY_JSON_BODY: 'malformed_body',
  FST_ERR_CTP_INVALID_JSON_BODY: 'malformed_body',
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: 'malformed_body',
  FST_ERR_BAD_URL: 'malformed_request',
  FST_ERR_MAX_PARAM_LENGTH: 'not_found',
  FST_ERR_NOT_FOUND: 'not_found',
};

function codeOfFramework(error: unknown): Code {
  const { code, statusCode } = (error ?? {}) as { code?: unknown; statusCode?: unknown };
  const known = typeof code === 'string' ? frameworkCodes[code] : undefined;
  if (known) return known;
  // A body stream that broke off is given 400 by the framework; everything else is our own fault.
  return statusCode === 400 ? 'malformed_body' : 'internal';
}
