/**
 * The `s3:` driver of the `Blobs` port: any store that speaks the S3 API with read-after-write consistency.
 *
 * Life of a put: bytes are gathered up to the size of a part. A body that ends before is one request of known length; a longer
 * one becomes a multipart upload, of which nothing is visible until it is completed, and which is aborted when anything
 * fails. What could not be aborted (the process died, the store was away) costs space until the bucket's lifecycle rule for
 * incomplete uploads removes it: `docs/operations.md` has that rule.
 *
 * Time: a call with all its attempts takes at most the time-out; what only asks gets a third of it for each attempt, so
 * that a connection which is dead without knowing is noticed in time for another. A download may take as long as its reader
 * likes, but its store may not be silent for longer than the time-out.
 *
 * Checksums of the SDK are a setting, since stores differ in which they take. On the way the bytes of every put are covered by
 * its signature, which has their SHA-256; size and digest of what is stored are verified by the pipeline.
 */
import { randomUUID } from 'node:crypto';
import type { Readable } from 'node:stream';
import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  CopyObjectCommand,
  CreateBucketCommand,
  CreateMultipartUploadCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  HeadBucketCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
  UploadPartCommand,
  UploadPartCopyCommand,
} from '@aws-sdk/client-s3';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import { checkBlobKey, checkBlobPrefix } from '../pipeline/blob-key.ts';
import { type BlobEntry, BlobError, type Blobs } from '../pipeline/ports.ts';
import { partsOf, watched } from './blobs-s3/bytes.ts';
import { blobError, nameOf, statusOf } from './blobs-s3/faults.ts';

export interface S3Settings {
  readonly bucket: string;
  /** `http://` or `https://`; empty: the one of AWS for the region. */
  readonly s3Endpoint: string;
  /** The endpoint in presigned URLs; empty: the same. */
  readonly s3PublicEndpoint: string;
  readonly s3Region: string;
  readonly s3PathStyle: string;
  readonly s3Checksums: string;
  readonly s3AccessKeyId: string;
  readonly s3SecretAccessKey: string;
  readonly s3PartBytes: number;
  readonly s3TimeoutMs: number;
  /** Largest object that one CopyObject takes: 5 GiB by the S3 API. */
  readonly copyBytesMax?: number;
}

const attemptsMax = 3;
const listMax = 1000;
const copyLimit = 5 * 1024 ** 3;

export function createS3Blobs(settings: S3Settings): Blobs {
  const { bucket: Bucket, s3TimeoutMs, s3PartBytes, copyBytesMax = copyLimit } = settings;
  const client = connect(settings, settings.s3Endpoint);
  const presigner = settings.s3PublicEndpoint ? connect(settings, settings.s3PublicEndpoint) : client;
  const call = createCall(s3TimeoutMs);
  const uploads = createUploads(client, call, s3TimeoutMs / attemptsMax);

  function bucketExists(): Promise<boolean> {
    return call(`reach the bucket ${Bucket}`, (options) =>
      client.send(new HeadBucketCommand({ Bucket }), options).then(() => true, falseIfAbsent),
    );
  }

  async function look(key: string) {
    const found = await call(`look ${key} up`, (options) =>
      client.send(new HeadObjectCommand({ Bucket, Key: key }), options).catch(falseIfAbsent),
    );
    if (found) return found;
    // The answer to a HEAD has no body that tells a missing key from a missing bucket.
    if (!(await bucketExists())) throw new BlobError('unavailable', `The bucket ${Bucket} does not exist`);
    return null;
  }

  async function send(
    key: string,
    body: AsyncIterable<Uint8Array>,
    contentType: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<number> {
    const target = { Bucket, Key: key, ContentType: contentType };
    const parts = partsOf(body, s3PartBytes, signal);
    try {
      const first = await parts.next();
      const bytes = first.done ? Buffer.alloc(0) : first.value;
      if (bytes.length === s3PartBytes) return await uploads.putParts(target, bytes, parts, signal);
      const command = new PutObjectCommand({ ...target, Body: bytes, ContentLength: bytes.length });
      await call(`put ${key}`, (options) => client.send(command, options), { moves: true, signal });
      return bytes.length;
    } finally {
      await parts.return(undefined);
    }
  }

  return {
    async prepare() {
      if (await bucketExists()) return;
      try {
        await call(`make the bucket ${Bucket}`, (options) => client.send(new CreateBucketCommand({ Bucket }), options));
      } catch (error) {
        // Another process may have been faster.
        if (!(await bucketExists())) throw error;
      }
    },

    async put(key, body, { contentType, signal, verify = false } = {}) {
      checkBlobKey(key);
      signal?.throwIfAborted();
      const size = await send(key, body, contentType, signal);
      return verify ? { size: (await look(key))?.ContentLength ?? 0 } : { size };
    },

    async open(key, range) {
      checkBlobKey(key);
      const Range = range && `bytes=${range.start}-${range.end}`;
      const answer = await call(`open ${key}`, (options) =>
        client.send(new GetObjectCommand({ Bucket, Key: key, Range }), options),
      );
      const whole = /\/(\d+)$/.exec(answer.ContentRange ?? '')?.[1];
      const body = watched(answer.Body as Readable, s3TimeoutMs, (error) => blobError(error, `read ${key} to its end`));
      return { size: Number(whole ?? answer.ContentLength ?? 0), body };
    },

    async head(key) {
      checkBlobKey(key);
      const found = await look(key);
      return found && { size: found.ContentLength ?? 0 };
    },

    async copy(from, to) {
      checkBlobKey(from);
      checkBlobKey(to);
      const source = await look(from);
      if (!source) throw new BlobError('missing', `No object ${from}`);
      if (from === to) return;
      const target = { Bucket, Key: to, ContentType: source.ContentType };
      const size = source.ContentLength ?? 0;
      const CopySource = `${Bucket}/${from}`;
      if (size > copyBytesMax) return await uploads.copyParts(target, CopySource, size, copyBytesMax);
      const command = new CopyObjectCommand({ Bucket, Key: to, CopySource });
      await call(`copy ${from}`, (options) => client.send(command, options), { moves: true });
    },

    async deleteMany(keys) {
      for (const key of keys) checkBlobKey(key);
      for (let at = 0; at < keys.length; at += listMax) {
        const Objects = keys.slice(at, at + listMax).map((Key) => ({ Key }));
        const command = new DeleteObjectsCommand({ Bucket, Delete: { Objects, Quiet: true } });
        const { Errors = [] } = await call('delete', (options) => client.send(command, options));
        const failed = Errors.find((one) => one.Code !== 'NoSuchKey');
        if (!failed) continue;
        const { Code = 'Unknown', Key } = failed;
        // The answer as a whole was 200; its codes are those of whole answers.
        const isOurs = ['AccessDenied', 'InternalError', 'ServiceUnavailable', 'SlowDown'].includes(Code);
        throw new BlobError(isOurs ? 'unavailable' : 'broken', `S3 could not delete ${Key}: ${Code}`);
      }
    },

    async list(prefix, { after, limit = listMax } = {}) {
      checkBlobPrefix(prefix);
      const wanted = Math.min(Math.max(limit, 1), listMax);
      const objects: BlobEntry[] = [];
      let ContinuationToken: string | undefined;
      // A page may have less than was asked for, even nothing, and still not be the last.
      do {
        const page = { Bucket, Prefix: prefix, StartAfter: after, MaxKeys: wanted - objects.length, ContinuationToken };
        const answer = await call('list', (options) => client.send(new ListObjectsV2Command(page), options));
        for (const { Key = '', Size = 0, LastModified = new Date() } of answer.Contents ?? []) {
          objects.push({ key: Key, size: Size, modifiedAt: LastModified });
        }
        ContinuationToken = answer.IsTruncated ? answer.NextContinuationToken : undefined;
      } while (ContinuationToken !== undefined && objects.length < wanted);
      return { objects, next: ContinuationToken === undefined ? null : (objects.at(-1)?.key ?? null) };
    },

    async presign(key, { expiresSeconds, contentType, disposition }) {
      checkBlobKey(key);
      const command = new GetObjectCommand({
        Bucket,
        Key: key,
        ResponseContentType: contentType,
        ResponseContentDisposition: disposition,
        ResponseCacheControl: 'private, no-store',
      });
      return await call(`sign ${key}`, () => getSignedUrl(presigner, command, { expiresIn: expiresSeconds }));
    },

    async health() {
      // Read access only: a probe that writes would cost a billed request, and an object that a listing could see.
      if (!(await bucketExists())) throw new BlobError('unavailable', `The bucket ${Bucket} does not exist`);
    },

    async close() {
      client.destroy();
      presigner.destroy();
    },
  };
}

function falseIfAbsent(error: unknown): false {
  if (statusOf(error) === 404) return false;
  throw error;
}

function connect(settings: S3Settings, endpoint: string): S3Client {
  const when = settings.s3Checksums === 'when_supported' ? 'WHEN_SUPPORTED' : 'WHEN_REQUIRED';
  // One connection for each open download, and a reader may be slow: a limit would make everybody else wait for it.
  const agent = { keepAlive: true, maxSockets: Number.POSITIVE_INFINITY };
  return new S3Client({
    region: settings.s3Region,
    endpoint: endpoint || undefined,
    forcePathStyle: settings.s3PathStyle === 'yes',
    // Without keys of its own the SDK looks where the machine keeps its role.
    credentials: settings.s3AccessKeyId
      ? { accessKeyId: settings.s3AccessKeyId, secretAccessKey: settings.s3SecretAccessKey }
      : undefined,
    requestChecksumCalculation: when,
    responseChecksumValidation: when,
    // The SDK waits between attempts with full jitter.
    maxAttempts: attemptsMax,
    // It would open a connection of its own for every large put, and hold back a time-out until the store said "continue".
    expectContinueHeader: false,
    requestHandler: {
      httpAgent: agent,
      httpsAgent: agent,
      connectionTimeout: Math.min(settings.s3TimeoutMs / attemptsMax, 5000),
      throwOnRequestTimeout: true,
      // See `watched`.
      socketTimeout: 0,
    },
  });
}

/* ------------------------------------------------------------------ calls */

interface CallOptions {
  readonly abortSignal: AbortSignal;
  readonly requestTimeout: number;
}
type Call = <T>(
  what: string,
  send: (options: CallOptions) => Promise<T>,
  how?: {
    /** Bytes move, on the way or inside the store: one attempt may take the whole time. */
    readonly moves?: boolean;
    readonly signal?: AbortSignal;
    readonly limitMs?: number;
  },
) => Promise<T>;

/** What bounds every call and turns its failure into the port's. Rejects `BlobError` or the reason of `signal`. */
function createCall(timeoutMs: number): Call {
  return async (what, send, { moves = false, signal, limitMs = timeoutMs } = {}) => {
    signal?.throwIfAborted();
    const end = new AbortController();
    const onAbort = () => end.abort();
    // Not `AbortSignal.timeout`: its end would reach the body of an answer that is still being read.
    const timer = setTimeout(onAbort, limitMs);
    signal?.addEventListener('abort', onAbort);
    try {
      return await send({
        abortSignal: end.signal,
        requestTimeout: moves ? limitMs : Math.ceil(limitMs / attemptsMax),
      });
    } catch (error) {
      signal?.throwIfAborted();
      throw blobError(end.signal.aborted ? new Error(`No answer within ${limitMs} ms`) : error, what);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
    }
  };
}

/* ---------------------------------------------------------------- uploads */

interface Target {
  readonly Bucket: string;
  readonly Key: string;
  readonly ContentType: string | undefined;
}
interface Part {
  readonly ETag: string | undefined;
  readonly PartNumber: number;
}

/** Multipart uploads: nothing is visible until they are completed, and they are aborted when anything fails. */
function createUploads(client: S3Client, call: Call, abortMs: number) {
  async function within(
    target: Target,
    signal: AbortSignal | undefined,
    sendParts: (UploadId: string | undefined) => Promise<readonly Part[]>,
  ): Promise<void> {
    const { Bucket, Key } = target;
    const token = randomUUID();
    const create = new CreateMultipartUploadCommand({ ...target, Metadata: { upload: token } });
    // Not ended by the signal: an upload whose id nobody has heard cannot be aborted.
    const { UploadId } = await call(`put ${Key}`, (options) => client.send(create, options));
    try {
      await complete({ Bucket, Key, UploadId }, await sendParts(UploadId), token, signal);
    } catch (error) {
      const abort = new AbortMultipartUploadCommand({ Bucket, Key, UploadId });
      await call(`abort ${Key}`, (options) => client.send(abort, options), { limitMs: abortMs }).catch(() => undefined);
      throw error;
    }
  }

  async function complete(
    upload: { Bucket: string; Key: string; UploadId: string | undefined },
    Parts: readonly Part[],
    token: string,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { Bucket, Key } = upload;
    const command = new CompleteMultipartUploadCommand({ ...upload, MultipartUpload: { Parts: [...Parts] } });
    try {
      await call(`put ${Key}`, (options) => client.send(command, options), { moves: true, signal });
    } catch (error) {
      // No such upload: perhaps because an earlier attempt, whose answer was lost, has completed it.
      if (!(error instanceof BlobError) || nameOf(error.cause) !== 'NoSuchUpload') throw error;
      const look = new HeadObjectCommand({ Bucket, Key });
      const { Metadata } = await call(`look ${Key} up`, (options) => client.send(look, options), { signal });
      if (Metadata?.upload !== token) throw error;
    }
  }

  return {
    /** Sends `first` and all further parts, one after the other; resolves with the size of all. */
    async putParts(target: Target, first: Buffer, more: AsyncIterable<Buffer>, signal?: AbortSignal): Promise<number> {
      const { Bucket, Key } = target;
      let size = 0;
      await within(target, signal, async (UploadId) => {
        const parts: Part[] = [];
        const send = async (Body: Buffer) => {
          const part = { Bucket, Key, UploadId, PartNumber: parts.length + 1, Body, ContentLength: Body.length };
          const command = new UploadPartCommand(part);
          const how = { moves: true, signal };
          const { ETag } = await call(`put ${Key}`, (options) => client.send(command, options), how);
          parts.push({ ETag, PartNumber: part.PartNumber });
          size += Body.length;
        };
        await send(first);
        for await (const bytes of more) await send(bytes);
        return parts;
      });
      return size;
    },

    /** Copies inside the store, `partBytes` at a time. */
    async copyParts(target: Target, CopySource: string, size: number, partBytes: number): Promise<void> {
      const { Bucket, Key } = target;
      await within(target, undefined, async (UploadId) => {
        const parts: Part[] = [];
        for (let start = 0; start < size; start += partBytes) {
          const CopySourceRange = `bytes=${start}-${Math.min(start + partBytes, size) - 1}`;
          const part = { Bucket, Key, UploadId, PartNumber: parts.length + 1, CopySource, CopySourceRange };
          const command = new UploadPartCopyCommand(part);
          const answer = await call(`copy to ${Key}`, (options) => client.send(command, options), { moves: true });
          parts.push({ ETag: answer.CopyPartResult?.ETag, PartNumber: part.PartNumber });
        }
        return parts;
      });
    },
  };
}
