/** Bodies for tests: noise that can be made again from its seed, and ways to cut it into pieces. */
import { createCipheriv } from 'node:crypto';

/** `size` bytes of noise; the same seed gives the same bytes, and a longer one begins like a shorter one. */
export function noise(size: number, seed: number): Buffer {
  const key = Buffer.alloc(16);
  key.writeUInt32BE(seed);
  return createCipheriv('aes-128-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(size));
}

/** The bytes in pieces of `pieceBytes`, each in its own turn of the event loop's microtasks. */
export async function* pieces(bytes: Uint8Array, pieceBytes = 7 * 1024): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += pieceBytes) yield bytes.subarray(at, at + pieceBytes);
}

/** Everything that a body yields, in one buffer. */
export async function wholeOf(body: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  // Copied: a body may use its buffer again.
  for await (const part of body) parts.push(Buffer.from(part));
  return Buffer.concat(parts);
}
