/**
 * From an HTTP request to an `Upload`: raw bodies and multipart forms become one stream of file bytes and what is said
 * about it. Nothing is read here before `accept` asks for the first byte.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { SkrepkaError } from '../errors.ts';
import { isTraceparent, newTraceparent } from '../ids.ts';
import type { Upload } from '../pipeline/accept.ts';
import { limits } from '../pipeline/message.ts';
import { gone, readBody } from './body.ts';
import { inviteBody } from './connections.ts';
import { reprDigest } from './digest.ts';
import { nameFromHeader, partFromHeader, storedName } from './disposition.ts';
import { boundaryOf, type Part, readParts } from './multipart.ts';

/** What a form may be larger than its file: delimiters, headers and the two text fields. */
const formBytesMax = 64 * 1024;

export interface Intake {
  readonly upload: Upload;
  readonly body: AsyncGenerator<Uint8Array>;
  /** Lets go of the request. To be called before it is answered, however much of the body was read. */
  stop(): void;
}

interface UploadRequest {
  readonly raw: IncomingMessage;
  readonly response: ServerResponse;
  readonly userId: string;
  /** `?filename=`. */
  readonly queryName: string | undefined;
}

interface UploadSettings {
  readonly uploadBytesMax: number;
  readonly uploadMsMax: number;
  readonly stallMs: number;
}

/**
 * Looks at the headers and prepares the rest. Throws `validation` (naming the field), `unsupported_media_type`,
 * `malformed_multipart` and `file_too_large`; the body throws what `readBody` and `readParts` throw, `file_missing`,
 * `too_many_files` and `validation`.
 */
export function openUpload(request: UploadRequest, settings: UploadSettings): Intake {
  const { headers } = request.raw;
  // What is stored is what is sent; a coded body would be published with its coding and without a word about it.
  // RFC 9112, section 6.1: what is coded for the transfer would be stored in its coding.
  if (!/^(chunked)?$/i.test(headers['transfer-encoding']?.trim() ?? '')) {
    throw new SkrepkaError('unsupported_media_type', { members: { field: 'transfer-encoding' } });
  }
  const coding = headers['content-encoding']?.trim().toLowerCase() ?? 'identity';
  if (coding !== 'identity')
    throw new SkrepkaError('unsupported_media_type', { members: { field: 'content-encoding' } });
  const common = {
    userId: request.userId,
    idempotencyKey: idempotencyKey(headers['idempotency-key']),
    traceparent: isTraceparent(headers.traceparent) ? headers.traceparent : newTraceparent(),
    signal: departure(request.raw, request.response),
    onAccepting: () => inviteBody(request.raw),
  };
  const type = mediaType(headers['content-type']);
  const waits = { stallMs: settings.stallMs, wholeMs: settings.uploadMsMax };
  const length = declaredLength(request.raw);
  if (type !== 'multipart/form-data') {
    const sha256 = reprDigest(headers['repr-digest']?.toString());
    const fileName = storedName(nameFromHeader(headers['content-disposition']) ?? request.queryName ?? null);
    const trailer = async () => ({ alt: null, sha256 });
    const sizes = { declaredSize: length, sizeMax: length };
    const { bytes, stop } = readBody(request.raw, waits);
    return { upload: { ...common, fileName, declaredType: type, ...sizes, trailer }, body: bytes, stop };
  }
  const boundary = boundaryOf(headers['content-type'] ?? '');
  if (boundary === null) throw new SkrepkaError('malformed_multipart', { log: 'no boundary in the content type' });
  // A form in chunks declares no length, and only its file is counted by `accept`: the whole is counted as it comes.
  const limit = {
    bytes: settings.uploadBytesMax + formBytesMax,
    exceeded: () => new SkrepkaError('file_too_large', { members: { limit: settings.uploadBytesMax } }),
  };
  if (length !== null && length > limit.bytes) throw limit.exceeded();
  const { bytes, stop } = readBody(request.raw, { ...waits, limit });
  const form = createForm(readParts(bytes, boundary), request.queryName ?? null);
  const upload: Upload = {
    ...common,
    // Said by the part, so only known once the file's first byte was asked for; `accept` needs them after that.
    get fileName() {
      return form.file().fileName;
    },
    get declaredType() {
      return form.file().declaredType;
    },
    declaredSize: null,
    sizeMax: length,
    trailer: form.trailer,
  };
  return { upload, body: form.body(), stop };
}

/** Aborts when the connection ends before the answer has left. */
function departure(request: IncomingMessage, response: ServerResponse): AbortSignal {
  const controller = new AbortController();
  response.once('close', () => {
    if (!response.writableFinished) controller.abort(gone());
  });
  if (request.socket.destroyed) controller.abort(gone());
  return controller.signal;
}

/** The media type in lower case without parameters, null when none is declared. */
function mediaType(contentType: string | undefined): string | null {
  return contentType?.split(';', 1)[0]?.trim().toLowerCase() || null;
}

/** Bytes of the body; null when it comes in chunks. Without any word about a body there is none. */
function declaredLength({ headers }: IncomingMessage): number | null {
  if (headers['transfer-encoding'] !== undefined) return null;
  return Number(headers['content-length'] ?? 0);
}

/** The header's value as it stands. Throws `validation` for an empty, longer or unprintable one. */
export function idempotencyKey(header: string | string[] | undefined): string | null {
  if (header === undefined) return null;
  const key = header.toString();
  if (/^[\x20-\x7e]+$/.test(key) && key.length <= limits.idempotencyKeyLengthMax) return key;
  throw new SkrepkaError('validation', {
    detail: `"idempotency-key" must be 1 to ${limits.idempotencyKeyLengthMax} printable ASCII characters.`,
    members: { field: 'idempotency-key' },
  });
}

/* --------------------------------------------------------------------------- forms */

interface FileFacts {
  readonly fileName: string;
  readonly declaredType: string | null;
}

function createForm(parts: AsyncGenerator<Part>, queryName: string | null) {
  const fields = new Map<string, string>();
  let file: FileFacts | null = null;

  /** Reads text fields up to the next part that is a file; null at the end of the form. */
  async function nextFile(): Promise<Part | null> {
    for (;;) {
      const { done, value: part } = await parts.next();
      if (done) return null;
      const disposition = partFromHeader(part.headers.get('content-disposition'));
      if (!disposition) throw new SkrepkaError('malformed_multipart', { log: 'a part is not a field of a form' });
      refuseCoding(part);
      if (disposition.field !== 'file') {
        await readField(fields, disposition.field, part);
        continue;
      }
      if (file) throw new SkrepkaError('too_many_files');
      file = {
        fileName: storedName(disposition.fileName ?? queryName),
        declaredType: mediaType(part.headers.get('content-type')),
      };
      return part;
    }
  }

  return {
    file(): FileFacts {
      if (!file) throw new Error('Expected the file part to have begun, received a question before it');
      return file;
    },
    async *body(): AsyncGenerator<Uint8Array> {
      const part = await nextFile();
      if (!part) throw new SkrepkaError('file_missing');
      yield* part.body;
    },
    async trailer() {
      await nextFile();
      return { alt: textOf(fields.get('alt')), sha256: sha256Of(fields.get('sha256')) };
    },
  };
}

/** RFC 7578, section 4.7: part codings are deprecated, and none but the trivial ones was ever sent by a browser. */
function refuseCoding(part: Part): void {
  const coding = part.headers.get('content-transfer-encoding')?.toLowerCase() ?? 'binary';
  if (['binary', '8bit', '7bit'].includes(coding)) return;
  throw new SkrepkaError('malformed_multipart', { log: 'a part has a content transfer coding' });
}

/** In UTF-8 bytes; four for each character that `alt` may have. */
const fieldBytesMax: ReadonlyMap<string, number> = new Map([
  ['alt', 4 * limits.altLengthMax],
  ['sha256', 64],
  ['_charset_', 64],
]);

async function readField(fields: Map<string, string>, name: string, part: Part): Promise<void> {
  const bytesMax = fieldBytesMax.get(name);
  if (bytesMax === undefined) throw invalid(name.slice(0, 100), 'is not a field of this form');
  if (fields.has(name)) throw invalid(name, 'is given twice');
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of part.body) {
    size += chunk.length;
    if (size > bytesMax) throw invalid(name, 'is too long');
    // A copy: it is valid only until more is asked for.
    chunks.push(Buffer.from(chunk));
  }
  try {
    fields.set(name, new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Buffer.concat(chunks)));
  } catch (error) {
    throw invalid(name, 'is not UTF-8', error);
  }
}

function textOf(alt: string | undefined): string | null {
  if (alt === undefined || alt === '') return null;
  if (alt.includes('\0')) throw invalid('alt', 'must not hold NUL');
  if ([...alt].length > limits.altLengthMax)
    throw invalid('alt', `must have at most ${limits.altLengthMax} characters`);
  return alt;
}

function sha256Of(field: string | undefined): string | null {
  if (field === undefined) return null;
  if (!/^[0-9a-f]{64}$/i.test(field)) throw invalid('sha256', 'must be 64 hexadecimal digits');
  return field.toLowerCase();
}

function invalid(field: string, why: string, cause?: unknown): SkrepkaError {
  return new SkrepkaError('validation', { detail: `"${field}" ${why}.`, members: { field }, cause });
}
