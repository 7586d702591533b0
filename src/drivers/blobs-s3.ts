/**
 * The `s3:` driver of the `Blobs` port: any store that speaks the S3 API with read-after-write consistency.
 *
 * Life of a put: bytes are gathered up to the size of a part. A body that ends before is one request of known length; a longer
 * one becomes a multipart upload, of which nothing is visible until it is completed, and which is aborted when anything
 * fails. What is aborted in vain (the process died) costs space until the bucket's lifecycle rule for incomplete uploads
 * removes it: `docs/operations.md` has that rule.
 *
 * Checksums of the SDK are a setting, since stores differ in which they take; size and SHA-256 are verified by the pipeline.
 */
import { Readable } from 'node:stream';
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
import { describe } from '../errors.ts';
import { checkBlobKey, checkBlobPrefix } from '../pipeline/blob-key.ts';
import { BlobError, type BlobFault, type Blobs } from '../pipeline/ports.ts';

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

const requestsMax = 3;
const listMax = 1000;
const copyLimit = 5 * 1024 ** 3;

export function createS3Blobs(settings: S3Settings): Blobs {
  const { bucket: Bucket } = settings;
  const client = connect(settings, settings.s3Endpoint);
  const presigner = settings.s3PublicEndpoint ? connect(settings, settings.s3PublicEndpoint) : client;

  async function headOf(key: string): Promise<{ size: number } | null> {
    try {
      const { ContentLength = 0 } = await client.send(new HeadObjectCommand({ Bucket, Key: key }));
      return { size: ContentLength };
    } catch (error) {
      const fault = faultOf(error);
      if (fault === 'missing') return null;
      throw blobError(error, `head ${key}`);
    }
  }

  return {
    async prepare() {
      await attempt('prepare the bucket', async () => {
        try {
          await client.send(new HeadBucketCommand({ Bucket }));
        } catch (error) {
          if (statusOf(error) !== 404) throw error;
          await client.send(new CreateBucketCommand({ Bucket })).catch((failure: unknown) => {
            // Another process was faster.
            if (!/BucketAlready(OwnedByYou|Exists)/.test(nameOf(failure))) throw failure;
          });
        }
      });
    },

    async put(key, body, options = {}) {
      checkBlobKey(key);
      options.signal?.throwIfAborted();
      return await putParts(
        client,
        { Bucket, Key: key, ContentType: options.contentType },
        body,
        settings.s3PartBytes,
        options.signal,
      );
    },

    async open(key, range) {
      checkBlobKey(key);
      const Range = range && `bytes=${range.start}-${range.end}`;
      const answer = await attempt(`open ${key}`, () => client.send(new GetObjectCommand({ Bucket, Key: key, Range })));
      const whole = /\/(\d+)$/.exec(answer.ContentRange ?? '')?.[1];
      return { size: Number(whole ?? answer.ContentLength ?? 0), body: faultyBody(answer.Body as Readable, key) };
    },

    async head(key) {
      checkBlobKey(key);
      return await headOf(key);
    },

    async copy(from, to) {
      checkBlobKey(from);
      checkBlobKey(to);
      const source = await headOf(from);
      if (!source) throw new BlobError('missing', `No object ${from}`);
      if (from === to) return;
      const { copyBytesMax = copyLimit } = settings;
      const request = { Bucket, Key: to, CopySource: `${Bucket}/${from}` };
      await attempt(`copy ${from}`, async () => {
        if (source.size <= copyBytesMax) await client.send(new CopyObjectCommand(request));
        else await copyParts(client, request, source.size, copyBytesMax);
      });
    },

    async deleteMany(keys) {
      for (const key of keys) checkBlobKey(key);
      for (let at = 0; at < keys.length; at += listMax) {
        const Objects = keys.slice(at, at + listMax).map((Key) => ({ Key }));
        const command = new DeleteObjectsCommand({ Bucket, Delete: { Objects, Quiet: true } });
        const { Errors = [] } = await attempt('delete', () => client.send(command));
        const failed = Errors.find((one) => one.Code !== 'NoSuchKey');
        if (failed) throw new BlobError('broken', `${failed.Key} was not deleted: ${failed.Code}`);
      }
    },

    async list(prefix, options = {}) {
      checkBlobPrefix(prefix);
      const MaxKeys = Math.min(Math.max(options.limit ?? listMax, 1), listMax);
      const command = new ListObjectsV2Command({ Bucket, Prefix: prefix, StartAfter: options.after, MaxKeys });
      const { Contents = [], IsTruncated } = await attempt('list', () => client.send(command));
      const objects = Contents.map(({ Key = '', Size = 0, LastModified = new Date() }) => ({
        key: Key,
        size: Size,
        modifiedAt: LastModified,
      }));
      return { objects, next: IsTruncated ? (objects.at(-1)?.key ?? null) : null };
    },

    async presign(key, { expiresSeconds, contentType, disposition }) {
      checkBlobKey(key);
      const command = new GetObjectCommand({
        Bucket,
        Key: key,
        ResponseContentType: contentType,
        ResponseContentDisposition: disposition,
      });
      return await getSignedUrl(presigner, command, { expiresIn: expiresSeconds });
    },

    async health() {
      await client.send(new HeadBucketCommand({ Bucket })).catch((error: unknown) => {
        throw new BlobError('unavailable', `The bucket cannot be reached: ${nameOf(error)}`, error);
      });
    },

    async close() {
      client.destroy();
      presigner.destroy();
    },
  };
}

function connect(settings: S3Settings, endpoint: string): S3Client {
  const when = settings.s3Checksums === 'when_supported' ? 'WHEN_SUPPORTED' : 'WHEN_REQUIRED';
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
    maxAttempts: requestsMax,
    requestHandler: {
      connectionTimeout: Math.min(settings.s3TimeoutMs, 5000),
      requestTimeout: settings.s3TimeoutMs,
      socketTimeout: settings.s3TimeoutMs,
      throwOnRequestTimeout: true,
    },
  });
}

interface Target {
  readonly Bucket: string;
  readonly Key: string;
  readonly ContentType?: string;
}

async function putParts(
  client: S3Client,
  target: Target,
  body: AsyncIterable<Uint8Array>,
  partBytes: number,
  signal: AbortSignal | undefined,
): Promise<{ size: number }> {
  const pieces = gather(body, partBytes)[Symbol.asyncIterator]();
  const first = await pieces.next();
  const bytes = first.done ? Buffer.alloc(0) : first.value;
  const options = { abortSignal: signal };
  try {
    if (bytes.length < partBytes) {
      const request = { ...target, Body: bytes, ContentLength: bytes.length };
      await attempt(`put ${target.Key}`, () => client.send(new PutObjectCommand(request), options), signal);
      return { size: bytes.length };
    }
    return await multipart(client, target, signal, async (UploadId) => {
      const parts: { ETag?: string; PartNumber: number }[] = [];
      let size = 0;
      for (let next: IteratorResult<Buffer> = { done: false, value: bytes }; !next.done; next = await pieces.next()) {
        signal?.throwIfAborted();
        const PartNumber = parts.length + 1;
        const request = {
          Bucket: target.Bucket,
          Key: target.Key,
          UploadId,
          PartNumber,
          Body: next.value,
          ContentLength: next.value.length,
        };
        const { ETag } = await attempt(
          `put ${target.Key}`,
          () => client.send(new UploadPartCommand(request), options),
          signal,
        );
        parts.push({ ETag, PartNumber });
        size += next.value.length;
      }
      return { parts, size };
    });
  } finally {
    await pieces.return?.(undefined);
  }
}

/** Pieces of exactly `partBytes`, the last one shorter and never empty. */
async function* gather(body: AsyncIterable<Uint8Array>, partBytes: number): AsyncGenerator<Buffer> {
  let chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body) {
    for (let rest = chunk; rest.length > 0; ) {
      const taken = rest.subarray(0, partBytes - size);
      chunks.push(taken);
      size += taken.length;
      rest = rest.subarray(taken.length);
      if (size < partBytes) continue;
      yield Buffer.concat(chunks, size);
      chunks = [];
      size = 0;
    }
  }
  if (size > 0) yield Buffer.concat(chunks, size);
}

/** Runs `work` inside a multipart upload: completed when it resolves, aborted when anything rejects. */
async function multipart<T extends { parts: { ETag?: string; PartNumber: number }[] }>(
  client: S3Client,
  target: Target,
  signal: AbortSignal | undefined,
  work: (uploadId: string | undefined) => Promise<T>,
): Promise<T> {
  const what = `put ${target.Key}`;
  const { UploadId } = await attempt(what, () => client.send(new CreateMultipartUploadCommand(target)), signal);
  const upload = { Bucket: target.Bucket, Key: target.Key, UploadId };
  try {
    const result = await work(UploadId);
    const command = new CompleteMultipartUploadCommand({ ...upload, MultipartUpload: { Parts: result.parts } });
    await attempt(what, () => client.send(command), signal);
    return result;
  } catch (error) {
    await client.send(new AbortMultipartUploadCommand(upload)).catch(() => undefined);
    throw error;
  }
}

async function copyParts(
  client: S3Client,
  request: Target & { CopySource: string },
  size: number,
  partBytes: number,
): Promise<void> {
  await multipart(client, { Bucket: request.Bucket, Key: request.Key }, undefined, async (UploadId) => {
    const parts: { ETag?: string; PartNumber: number }[] = [];
    for (let start = 0; start < size; start += partBytes) {
      const CopySourceRange = `bytes=${start}-${Math.min(start + partBytes, size) - 1}`;
      const PartNumber = parts.length + 1;
      const answer = await client.send(
        new UploadPartCopyCommand({ ...request, UploadId, PartNumber, CopySourceRange }),
      );
      parts.push({ ETag: answer.CopyPartResult?.ETag, PartNumber });
    }
    return { parts };
  });
}

/** A download that breaks off rejects with the port's error, not the socket's. */
function faultyBody(body: Readable, key: string): Readable {
  async function* chunks() {
    try {
      yield* body;
    } catch (error) {
      throw new BlobError('unavailable', `The download of ${key} broke off`, error);
    }
  }
  const readable = Readable.from(chunks(), { objectMode: false });
  // Destroying the one destroys the other: no socket is left behind a reader that is gone.
  readable.once('close', () => body.destroy());
  return readable;
}

async function attempt<T>(what: string, call: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  try {
    return await call();
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    throw error instanceof BlobError ? error : blobError(error, what);
  }
}

function blobError(error: unknown, what: string): BlobError {
  return new BlobError(faultOf(error), `S3 could not ${what}: ${nameOf(error)} (${describe(error)})`, error);
}

const nameOf = (error: unknown) => (error instanceof Error ? error.name : String(error));
const statusOf = (error: unknown) =>
  (error as { $metadata?: { httpStatusCode?: number } }).$metadata?.httpStatusCode ?? 0;

/** Whole-store refusals (keys, bucket, throttling) are `unavailable`: no attempt of any object would fare better. */
function faultOf(error: unknown): BlobFault {
  const name = nameOf(error);
  const status = statusOf(error);
  if (name === 'NoSuchKey' || (status === 404 && name !== 'NoSuchBucket' && name !== 'NoSuchUpload')) return 'missing';
  if (status >= 400 && status < 500 && ![401, 403, 404, 408, 429].includes(status)) return 'broken';
  return 'unavailable';
}
