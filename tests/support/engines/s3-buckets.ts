/** Buckets of a real S3 server for tests, each with the driver on it, and a look behind the driver. */
import { HeadObjectCommand, ListMultipartUploadsCommand, S3Client } from '@aws-sdk/client-s3';
import { createS3Blobs, type S3Settings } from '../../../src/drivers/blobs-s3.ts';
import type { Blobs } from '../../../src/pipeline/ports.ts';
import type { BlobsHarness, RunningPut } from '../../contract/blobs.ts';
import { putInChild } from '../put-elsewhere.ts';
import { type CephServer, keys } from './ceph.ts';

export interface Bucket {
  readonly settings: S3Settings;
  readonly blobs: Blobs;
  /** Another driver on the same bucket. */
  open(change: Partial<S3Settings>): Blobs;
  /** Keys of multipart uploads that are neither completed nor aborted. */
  unfinished(): Promise<readonly string[]>;
  /** The store's own word on an object: the ETag of an upload in parts ends in their number. */
  look(key: string): Promise<{ etag: string; contentType: string }>;
  close(): Promise<void>;
}

/** The smallest part that the S3 API allows. */
export const partBytes = 5 * 1024 * 1024;

let made = 0;

export function settingsOf(server: Pick<CephServer, 'url'>, change: Partial<S3Settings> = {}): S3Settings {
  made += 1;
  return {
    bucket: `tests-${process.pid}-${made}`,
    s3Endpoint: server.url,
    s3PublicEndpoint: '',
    // What this server calls its only region.
    s3Region: 'default',
    s3PathStyle: 'yes',
    s3Checksums: 'when_required',
    ...keys,
    s3PartBytes: partBytes,
    s3TimeoutMs: 20_000,
    ...change,
  };
}

/** A bucket of its own. It is gone with the server. */
export async function makeBucket(server: CephServer, change: Partial<S3Settings> = {}): Promise<Bucket> {
  const settings = settingsOf(server, change);
  const opened: Blobs[] = [];
  const open = (other: Partial<S3Settings>) => {
    const blobs = createS3Blobs({ ...settings, ...other });
    opened.push(blobs);
    return blobs;
  };
  const client = new S3Client({
    region: settings.s3Region,
    endpoint: server.url,
    forcePathStyle: true,
    credentials: { accessKeyId: keys.s3AccessKeyId, secretAccessKey: keys.s3SecretAccessKey },
  });
  const blobs = open({});
  await open({ s3Endpoint: server.url }).prepare();
  return {
    settings,
    blobs,
    open,
    async unfinished() {
      const { Uploads = [] } = await client.send(new ListMultipartUploadsCommand({ Bucket: settings.bucket }));
      return Uploads.map(({ Key = '' }) => Key);
    },
    async look(Key) {
      const found = await client.send(new HeadObjectCommand({ Bucket: settings.bucket, Key }));
      return { etag: found.ETag ?? '', contentType: found.ContentType ?? '' };
    },
    async close() {
      for (const one of opened) await one.close();
      client.destroy();
    },
  };
}

/** What a process of ours is told, to use such a bucket. */
export function environmentOf(settings: S3Settings): Record<string, string> {
  return {
    BLOBS_URL: `s3://${settings.bucket}`,
    S3_ENDPOINT: settings.s3Endpoint,
    S3_REGION: settings.s3Region,
    S3_PATH_STYLE: settings.s3PathStyle,
    S3_ACCESS_KEY_ID: settings.s3AccessKeyId,
    S3_SECRET_ACCESS_KEY: settings.s3SecretAccessKey,
    S3_PART_BYTES: String(settings.s3PartBytes),
    S3_TIMEOUT: `${settings.s3TimeoutMs}ms`,
  };
}

/** What the suite of the port works on. */
export async function openHarness(server: CephServer): Promise<BlobsHarness> {
  const bucket = await makeBucket(server);
  const puts: RunningPut[] = [];
  return {
    blobs: bucket.blobs,
    residue: bucket.unfinished,
    async putElsewhere(task) {
      const put = putInChild({ url: 's3:', s3: bucket.settings, ...task });
      puts.push(put);
      return put;
    },
    async close() {
      for (const put of puts) await put.kill();
      await bucket.close();
    },
  };
}
