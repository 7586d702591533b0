/**
 * The part of step 5, store, that needs no pixels: the original from staging to its place below the prefix of the attempt, and
 * the look at what was stored. It goes on beside the rendering, as soon as the source was verified: read back after it, an
 * original of 5 MB is a third of what its owner waits beyond the rendering.
 *
 * Durable when it returns: an object that no row names. An attempt that fails, or dies, sends its whole prefix to the
 * clean-ups, so that a picture which cannot be rendered costs a copy and leaves nothing.
 */
import { createHash } from 'node:crypto';
import { SkrepkaError } from '../errors.ts';
import { attemptPrefix, originalName } from './attachment.ts';
import { giveBack, interruptible } from './blob-body.ts';
import type { Blobs } from './ports.ts';
import type { Claim } from './store.ts';

/**
 * Copies the staged original inside the storage and reads it back. Answers its key; null where an earlier version has published
 * it. Throws `SkrepkaError('storage_unavailable')`, `BlobError` or the signal's reason, and that at once: a storage that hangs does not
 * keep a claim from being given back. A copy that is under way then may still land; its key goes to the clean-ups with its attempt.
 */
export async function storeOriginal(claim: Claim, blobs: Blobs, signal: AbortSignal): Promise<string | null> {
  if (claim.originalKey !== null) return null;
  signal.throwIfAborted();
  const { attachmentId, version, fence, attemptId } = claim.attempt;
  const key = `${attemptPrefix(attachmentId, version, fence, attemptId)}${originalName(claim.contentType)}`;
  await orAborted(blobs.copy(claim.stagingKey, key), signal);
  await verifyStored(blobs, key, claim, signal);
  return key;
}

/** `ready` means downloadable: nothing is published that was not read back whole. Throws the signal's reason at once. */
export async function verifyStored(
  blobs: Blobs,
  key: string,
  expected: { size: number; sha256: string },
  signal: AbortSignal,
) {
  const found = await digest(await openBody(blobs, key, signal));
  if (found.size !== expected.size || found.sha256 !== expected.sha256) {
    throw new SkrepkaError('storage_unavailable', {
      log: `object ${key} was stored as ${found.size} bytes with digest ${found.sha256}`,
    });
  }
}

/** The bytes of an object. They end with the signal's reason as soon as it aborts, however long the storage is silent. */
export async function openBody(
  blobs: Pick<Blobs, 'open'>,
  key: string,
  signal: AbortSignal,
): Promise<AsyncIterable<Uint8Array>> {
  const { body } = await orAborted(blobs.open(key), signal, (late) => late.body.destroy());
  return interruptible(body, signal);
}

/** Size and lower-case hex SHA-256 of an opened object; its chunks are used up. */
export async function digest(body: AsyncIterable<Uint8Array>): Promise<{ size: number; sha256: string }> {
  const hash = createHash('sha256');
  let size = 0;
  for await (const chunk of body) {
    hash.update(chunk);
    size += chunk.length;
    giveBack(chunk);
  }
  return { size, sha256: hash.digest('hex') };
}

/** What comes of it, or the signal's reason as soon as it aborts. `drop` gets what comes after that, where somebody has to end it. */
async function orAborted<T>(work: Promise<T>, signal: AbortSignal, drop: (late: T) => void = () => {}): Promise<T> {
  const aborted = Promise.withResolvers<never>();
  const onAbort = () => {
    aborted.reject(signal.reason);
    work.then(drop, () => {});
  };
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    if (signal.aborted) onAbort();
    return await Promise.race([work, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

/**
 * Both results; when one fails the other is still waited for, because what goes on after an attempt was given up would be the
 * write of a zombie. Throws what `first` threw, else what `second` did.
 */
export async function both<A, B>(first: Promise<A>, second: Promise<B>): Promise<[A, B]> {
  const ends = await Promise.allSettled([first, second]);
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
  return await Promise.all([first, second]);
}
