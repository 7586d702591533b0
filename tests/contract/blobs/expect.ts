/** What the cases of the `Blobs` suite ask again and again. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { BlobError, type BlobFault, type Blobs, type ByteRange } from '../../../src/pipeline/ports.ts';
import { wholeOf } from '../../support/bytes.ts';

export async function read(blobs: Blobs, key: string, range?: ByteRange): Promise<Buffer> {
  const { body } = await blobs.open(key, range);
  return await wholeOf(body);
}

/** Compares by digest: a failure should print two lines, not five megabytes. */
export function sameBytes(actual: Uint8Array, expected: Uint8Array, about: string): void {
  assert.equal(actual.length, expected.length, `${about}: length`);
  assert.equal(sha256(actual), sha256(expected), `${about}: digest`);
}

export async function keysOf(blobs: Blobs, prefix = ''): Promise<string[]> {
  return (await blobs.list(prefix)).objects.map(({ key }) => key);
}

export function fault(expected: BlobFault): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof BlobError, `expected a BlobError, received ${String(error)}`);
    assert.equal(error.fault, expected);
    return true;
  };
}

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
