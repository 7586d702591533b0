/**
 * What a key of object storage looks like, for every driver of the `Blobs` port. Pure.
 *
 * Segments of lower-case letters, digits, `.` and `-` that start with a letter or digit, joined by `/`. So no key can
 * name a parent folder, an absolute path, a hidden file or anything that some store would encode or fold.
 */
const keyForm = /^[a-z0-9][a-z0-9.-]{0,199}(\/[a-z0-9][a-z0-9.-]{0,199})*$/;
const prefixForm = /^([a-z0-9][a-z0-9.-]{0,199}\/)*([a-z0-9][a-z0-9.-]{0,199})?$/;

/** S3 allows 1,024 bytes; what we make is under 150. */
const keyLengthMax = 512;

/** Whether it is a key of ours. What others put beside our objects may have any name. */
export function isBlobKey(key: string): boolean {
  return typeof key === 'string' && key.length <= keyLengthMax && keyForm.test(key);
}

/** Throws a `TypeError` for anything that is not a key. */
export function checkBlobKey(key: string): void {
  if (!isBlobKey(key)) {
    throw new TypeError(`Expected a key of lower-case segments, received ${JSON.stringify(key)}`);
  }
}

/** Throws a `TypeError` for anything that no key can start with. The empty prefix means every object. */
export function checkBlobPrefix(prefix: string): void {
  if (typeof prefix !== 'string' || prefix.length > keyLengthMax || !prefixForm.test(prefix)) {
    throw new TypeError(`Expected the beginning of a key, received ${JSON.stringify(prefix)}`);
  }
}
