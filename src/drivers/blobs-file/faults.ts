/** What an error number of the file system means in the words of the `Blobs` port. */
import { BlobError } from '../../pipeline/ports.ts';

export async function io<T>(direction: 'read' | 'write', subject: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw faultOf(error, direction, subject);
  }
}

const tooFew = new Set(['EMFILE', 'ENFILE', 'ENOMEM', 'EAGAIN', 'ESTALE', 'ETIMEDOUT', 'ENOTCONN', 'EROFS']);
const wrongShape = new Set(['EISDIR', 'ENOTDIR', 'EEXIST', 'ENOTEMPTY', 'ELOOP', 'ENAMETOOLONG', 'EFBIG']);

/**
 * A file that cannot be read is that object's trouble. A file that cannot be written (no space, no permission, a failing
 * disk) is everybody's, unless its name is taken by something else.
 */
export function faultOf(error: unknown, direction: 'read' | 'write', subject: string): BlobError {
  if (error instanceof BlobError) return error;
  const code = codeOf(error) ?? 'unknown';
  if (direction === 'read' && (code === 'ENOENT' || code === 'ENOTDIR')) {
    return new BlobError('missing', `No object ${subject}`, error);
  }
  const shared = tooFew.has(code) || (direction === 'write' && !wrongShape.has(code));
  return new BlobError(shared ? 'unavailable' : 'broken', `Cannot ${direction} ${subject} (${code})`, error);
}

export function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}

export function ignoreMissing(error: unknown): void {
  if (codeOf(error) !== 'ENOENT') throw error;
}

export function ignoreMissingObject(error: unknown): void {
  if (!(error instanceof BlobError && error.fault === 'missing')) throw error;
}

export function nullIfMissing(error: unknown): null {
  ignoreMissingObject(error);
  return null;
}
