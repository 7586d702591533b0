/**
 * One put in a process of its own, to be killed. Takes a task as JSON in its argument, writes `at BYTES` to standard
 * output whenever the driver asks for the byte at that position, and `done` when the put has resolved.
 */
import { writeSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { createFileBlobs } from '../../src/drivers/blobs-file.ts';
import { createS3Blobs, type S3Settings } from '../../src/drivers/blobs-s3.ts';
import type { Blobs } from '../../src/pipeline/ports.ts';
import { noise } from './bytes.ts';

export interface PutTask {
  /** Where the objects are: `file:///…`, or `s3:` with its settings. */
  readonly url: string;
  readonly s3?: S3Settings;
  readonly key: string;
  readonly size: number;
  readonly seed: number;
  readonly pieceBytes: number;
  /** The body hangs for ever once it has yielded this many bytes; null: it ends as bodies do. */
  readonly hangAt: number | null;
}

function open({ url, s3 }: PutTask): Blobs {
  if (s3) return createS3Blobs(s3);
  if (url.startsWith('file:')) return createFileBlobs({ dir: fileURLToPath(url) });
  throw new Error(`No driver for ${url}`);
}

async function* body(task: PutTask): AsyncGenerator<Uint8Array> {
  const bytes = noise(task.size, task.seed);
  for (let at = 0; ; at += task.pieceBytes) {
    // Not console.log: what a killed process has said must have left it.
    writeSync(1, `at ${Math.min(at, task.size)}\n`);
    if (task.hangAt !== null && at >= task.hangAt) await new Promise((resolve) => setTimeout(resolve, 2 ** 31 - 1));
    if (at >= task.size) return;
    yield bytes.subarray(at, at + task.pieceBytes);
  }
}

if (process.argv[2] !== undefined) {
  const task = JSON.parse(process.argv[2]) as PutTask;
  await open(task).put(task.key, body(task));
  writeSync(1, 'done\n');
}
