/**
 * Step 1 of 8, accept: from the bytes of a request to a 202. Before it: nothing; `admission.ts` is its door. After it: the relay.
 *
 * Durable when it returns: the staging object, then attachment, job (its bell set), history and answered key together.
 * Dies before the commit: an orphan in staging, which the janitor removes after a day; the client sends again with its key.
 * Dies after it: nothing is missing, the bell rings. A commit of unknown outcome is read back once and otherwise answered
 * with 503, its staging object kept: a refusal could be a lie, and deleting could lose an accepted file.
 */
import { createHash } from 'node:crypto';
import { SkrepkaError } from '../errors.ts';
import type { Admission, Place } from './admission.ts';
import { type Attachment, asAccepted, isImageType, type Kind, stagingKey } from './attachment.ts';
import { BlobError, type Blobs, type Clock, type Log, type Meter, type Reach, type Sniffer } from './ports.ts';
import { newestVersion } from './recipe.ts';
import { type Acceptance, type KeyName, type NewAttachment, type Store, StoreError } from './store.ts';

export interface Upload {
  readonly userId: string;
  readonly fileName: string;
  /** The media type that the client declared, lower case and without parameters; null when it declared none. */
  readonly declaredType: string | null;
  /** Bytes of the file as declared, null when unknown. */
  readonly declaredSize: number | null;
  /** What the file has at most, as far as is known: a form says no more than its own length. */
  readonly sizeMax: number | null;
  readonly idempotencyKey: string | null;
  readonly traceparent: string | null;
  /** Aborts when the client is gone. */
  readonly signal: AbortSignal;
  /** Called right before the first byte is asked for: the place of `100 Continue`. */
  readonly onAccepting?: () => void;
  /** What is known once the body has ended: multipart fields may follow the file. `sha256` in lower-case hex. */
  readonly trailer: () => Promise<{ alt: string | null; sha256: string | null }>;
}

export interface AcceptSettings {
  readonly uploadBytesMax: number;
  readonly uploadMsMax: number;
  readonly idempotencyMs: number;
  readonly spacingMs: number;
  /** The version of new uploads; 0: the newest of this build. */
  readonly pipelineVersion: number;
  /** Life of a key's reservation unless extended; it is extended at a third of it. */
  readonly reservationMs: number;
}

export interface AcceptDeps {
  readonly store: Store;
  readonly admission: Admission;
  readonly blobs: Blobs;
  readonly sniffer: Sniffer;
  readonly clock: Clock;
  readonly log: Log;
  readonly meter: Meter;
  readonly reach: Reach;
}

export interface Accept {
  /**
   * Takes the upload in. `replayed`: the key had been answered before, and this is that answer again.
   * Throws `SkrepkaError` (`file_too_large`, `empty_file`, `unsupported_image`, `digest_mismatch`, `idempotency_in_flight`,
   * `idempotency_mismatch`, `too_many_uploads`, `overloaded`, `upload_expired`, `storage_unavailable`, `unavailable`), what the
   * body or trailer throws, or the signal's reason. After a throw nothing is kept, except that an unknown commit keeps its staging object.
   */
  accept(upload: Upload, body: AsyncIterable<Uint8Array>): Promise<{ attachment: Attachment; replayed: boolean }>;
}

type HeldKey = KeyName & { readonly token: string };
type Answered = { readonly fingerprint: string; readonly resultId: string };

export function createAccept(deps: AcceptDeps, settings: AcceptSettings): Accept {
  const { store, blobs, clock, reach } = deps;

  async function accept(upload: Upload, body: AsyncIterable<Uint8Array>) {
    if (upload.declaredSize !== null && upload.declaredSize > settings.uploadBytesMax) throw tooLarge(settings);
    if (upload.declaredSize === 0) throw new SkrepkaError('empty_file');
    const token = clock.newId();
    const key: KeyName | null = upload.idempotencyKey
      ? { userId: upload.userId, scope: 'attachment', key: upload.idempotencyKey }
      : null;
    if (!key) return { attachment: await takeIn(upload, body, null), replayed: false };

    const reservation = await mapped(store.reserve({ ...key, token, leaseMs: settings.reservationMs }));
    if (reservation.kind === 'in_flight') throw inFlight(Math.min(reservation.retryAfterSeconds, retryAfterSecondsMax));
    if (reservation.kind === 'answered') return { attachment: await replay(upload, body, reservation), replayed: true };
    const done = new AbortController();
    void keepReserved({ ...key, token }, done.signal);
    try {
      return { attachment: await takeIn(upload, body, { ...key, token }), replayed: false };
    } catch (error) {
      // After an unknown commit the key may be answered already; the lease ends by itself if it is not.
      if (!isUnknown(error)) await store.dropReservation({ ...key, token }).catch(() => undefined);
      throw error;
    } finally {
      done.abort();
    }
  }

  /** A place, held until the row is there or nothing will be, whatever ends it. */
  async function takeIn(upload: Upload, body: AsyncIterable<Uint8Array>, key: HeldKey | null) {
    const place = await mapped(deps.admission.enter(upload.userId, upload.sizeMax));
    let acceptedBytes: number | null = null;
    try {
      const attachment = await keepSafe(upload, body, key, place);
      acceptedBytes = attachment.size;
      return attachment;
    } catch (error) {
      if (isUnknown(error)) acceptedBytes = upload.sizeMax ?? settings.uploadBytesMax;
      throw error;
    } finally {
      place.leave(acceptedBytes);
    }
  }

  async function keepSafe(
    upload: Upload,
    body: AsyncIterable<Uint8Array>,
    key: HeldKey | null,
    { startedAt }: Place,
  ): Promise<Attachment> {
    const id = clock.newId();
    const staging = stagingKey(id);
    const received = receive(upload, body, deps, settings);
    upload.onAccepting?.();
    try {
      const { size } = await blobs.put(staging, received.bytes, { signal: upload.signal, verify: true });
      const facts = received.facts();
      const { alt, sha256 } = await upload.trailer();
      if (sha256 !== null && sha256 !== facts.sha256) throw new SkrepkaError('digest_mismatch');
      if (size !== facts.size) {
        throw new SkrepkaError('storage_unavailable', {
          log: `expected ${facts.size} bytes in staging, found ${size}`,
        });
      }
      await reach('accept.stored', id);
      upload.signal.throwIfAborted();
      const row: NewAttachment = {
        id,
        jobId: clock.newId(),
        ownerId: upload.userId,
        fileName: upload.fileName,
        ...facts,
        alt,
        stagingKey: staging,
        version: settings.pipelineVersion || newestVersion,
        traceparent: upload.traceparent,
        startedAt,
        uploadMsMax: settings.uploadMsMax,
        spacingMs: settings.spacingMs,
        reservation: key && {
          ...key,
          fingerprint: fingerprint(upload, facts.sha256, alt),
          keepMs: settings.idempotencyMs,
        },
      };
      const attachment = await commit(row);
      await reach('accept.committed', id);
      deps.meter.count('accepted_total');
      deps.meter.count('accepted_bytes_total', undefined, facts.size);
      return attachment;
    } catch (error) {
      // No row names the object and none ever will: its id was made for this request alone.
      if (!isUnknown(error)) await blobs.deleteMany([staging]).catch(() => undefined);
      throw error instanceof BlobError
        ? new SkrepkaError('storage_unavailable', { cause: error, retryAfterSeconds: 5 })
        : error;
    }
  }

  async function commit(row: NewAttachment): Promise<Attachment> {
    let acceptance: Acceptance;
    try {
      acceptance = await store.accept(row);
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      if (error.fault === 'unavailable') throw unavailable(error);
      const attachment = await store.attachmentFor(row.ownerId, row.id).catch(() => null);
      // Absent now is not absent for ever: the server may still be committing what this connection sent.
      if (!attachment) throw unavailable(error);
      return asAccepted(attachment, row.alt);
    }
    if (acceptance.kind === 'too_old') throw new SkrepkaError('upload_expired');
    if (acceptance.kind === 'reservation_lost') throw inFlight(1);
    return acceptance.attachment;
  }

  /** The bytes of a repeated key are read and hashed, not stored: only they can tell whether it is the same request. */
  async function replay(upload: Upload, body: AsyncIterable<Uint8Array>, answered: Answered) {
    // No new work, but a body on its way like any other.
    const leave = deps.admission.repeat(upload.userId);
    try {
      return await compare(upload, body, answered);
    } finally {
      leave();
    }
  }

  async function compare(upload: Upload, body: AsyncIterable<Uint8Array>, answered: Answered): Promise<Attachment> {
    const received = receive(upload, body, deps, settings);
    upload.onAccepting?.();
    for await (const _ of received.bytes) upload.signal.throwIfAborted();
    const { alt, sha256 } = await upload.trailer();
    const facts = received.facts();
    if (sha256 !== null && sha256 !== facts.sha256) throw new SkrepkaError('digest_mismatch');
    if (fingerprint(upload, facts.sha256, alt) !== answered.fingerprint) throw new SkrepkaError('idempotency_mismatch');
    const attachment = await mapped(store.acceptedAttachment(upload.userId, answered.resultId));
    if (!attachment) throw new SkrepkaError('not_found');
    return asAccepted(attachment, alt);
  }

  async function keepReserved(name: HeldKey, signal: AbortSignal) {
    while (!signal.aborted) {
      await clock.sleep(settings.reservationMs / 3, signal);
      // A failure is no reason to stop: the accept statement itself compares the token.
      if (!signal.aborted)
        await store.extendReservation({ ...name, leaseMs: settings.reservationMs }).catch(() => false);
    }
  }

  return { accept };
}

/** Counts, hashes and recognises a body while it passes. `facts` are those of a body that has passed whole. */
function receive(
  upload: Upload,
  body: AsyncIterable<Uint8Array>,
  { sniffer, clock }: AcceptDeps,
  settings: AcceptSettings,
) {
  const startedMs = clock.monotonicMs();
  const hash = createHash('sha256');
  let size = 0;
  let head: Uint8Array = new Uint8Array(0);
  let type: { kind: Kind; contentType: string } | null = null;

  async function* bytes(): AsyncGenerator<Uint8Array> {
    for await (const chunk of body) {
      size += chunk.length;
      if (size > settings.uploadBytesMax) throw tooLarge(settings);
      // The commit compares the database's clock; this one only ends earlier what that would refuse anyway.
      if (clock.monotonicMs() - startedMs > settings.uploadMsMax) throw new SkrepkaError('upload_expired');
      hash.update(chunk);
      if (!type) {
        head = Buffer.concat([head, chunk.subarray(0, sniffer.headBytes - head.length)]);
        // Refused as soon as the head is known, not after gigabytes.
        if (head.length >= sniffer.headBytes) type = recognise(await sniffer.sniff(head), upload.declaredType);
      }
      yield chunk;
    }
    if (size === 0) throw new SkrepkaError('empty_file');
    type ??= recognise(await sniffer.sniff(head), upload.declaredType);
  }

  return {
    bytes: bytes(),
    facts() {
      if (!type) throw new Error('the body has not passed whole');
      return { size, sha256: hash.copy().digest('hex'), ...type };
    },
  };
}

/** Content decides, never the name nor the declared type; what claims to be a picture of ours and is none is refused. */
function recognise(
  sniffed: { contentType: string } | null,
  declaredType: string | null,
): { kind: Kind; contentType: string } {
  if (sniffed && isImageType(sniffed.contentType)) return { kind: 'image', contentType: sniffed.contentType };
  if (declaredType !== null && isImageType(declaredType)) throw new SkrepkaError('unsupported_image');
  return { kind: 'file', contentType: sniffed?.contentType ?? 'application/octet-stream' };
}

/** What makes two requests with one key the same request: bytes, name, type and alt. */
function fingerprint(upload: Upload, sha256: string, alt: string | null): string {
  return createHash('sha256')
    .update(JSON.stringify([sha256, upload.fileName, upload.declaredType, alt]))
    .digest('hex');
}

const tooLarge = (settings: AcceptSettings) =>
  new SkrepkaError('file_too_large', { members: { limit: settings.uploadBytesMax } });
/** A reservation lasts for a dead process; a living one is usually done much sooner. */
const retryAfterSecondsMax = 5;
const inFlight = (retryAfterSeconds: number) => new SkrepkaError('idempotency_in_flight', { retryAfterSeconds });
const unavailable = (cause: StoreError) => new SkrepkaError('unavailable', { cause, retryAfterSeconds: 5 });

function isUnknown(error: unknown): boolean {
  return error instanceof SkrepkaError && error.cause instanceof StoreError && error.cause.fault === 'unknown';
}

/** A verb that did nothing or only read: its failure is a plain 503. */
async function mapped<T>(verb: Promise<T>): Promise<T> {
  try {
    return await verb;
  } catch (error) {
    if (error instanceof StoreError) throw new SkrepkaError('unavailable', { cause: error, retryAfterSeconds: 5 });
    throw error;
  }
}
