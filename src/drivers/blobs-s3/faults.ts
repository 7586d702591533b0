/** What an answer of an S3 store means to the `Blobs` port. Pure; knows the shape of the SDK's errors, not the SDK. */
import { BlobError, type BlobFault } from '../../pipeline/ports.ts';

/** `what`: verb and object, as in "put staging/…". */
export function blobError(error: unknown, what: string): BlobError {
  const status = statusOf(error);
  const reason = status === 0 ? textOf(error) : `${nameOf(error)} (${status})`;
  return new BlobError(faultOf(nameOf(error), status), `S3 could not ${what}: ${reason}`, bare(error));
}

/** The HTTP status that the store answered with; 0 when it did not answer. */
export function statusOf(error: unknown): number {
  const { $metadata } = error as { $metadata?: { httpStatusCode?: number } };
  return $metadata?.httpStatusCode ?? 0;
}

export function nameOf(error: unknown): string {
  return error instanceof Error ? error.name : 'Unknown';
}

/**
 * Refusals of the whole store (keys, bucket, region, throttling) are `unavailable`: no other object would fare better. So is
 * a 404 that does not say of the key that it is missing: a proxy's, or that of a bucket that is gone, must never read as
 * "the original is lost".
 */
function faultOf(name: string, status: number): BlobFault {
  if (name === 'NoSuchKey') return 'missing';
  const ofObject = status >= 400 && status < 500 && !wholeStore.has(status) && !wholeStoreNames.has(name);
  return ofObject ? 'broken' : 'unavailable';
}

const wholeStore = new Set([401, 403, 404, 407, 408, 409, 429]);
const wholeStoreNames = new Set([
  'AuthorizationHeaderMalformed',
  'ExpiredToken',
  'IllegalLocationConstraintException',
  'InvalidBucketName',
  'InvalidLocationConstraint',
  'InvalidToken',
  'RequestTimeout',
  'TokenRefreshRequired',
]);

/** Connection errors have a code where their message is empty: a refused connection to all addresses of a name. */
function textOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code } = error as { code?: unknown };
  return error.message || String(code ?? error.name);
}

/** The SDK's error holds request and answer, with the signature of the one and the memory of both: the cause that is kept has neither. */
function bare(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  const kept = new Error(error.message);
  kept.name = error.name;
  if (error.stack !== undefined) kept.stack = error.stack;
  return kept;
}
