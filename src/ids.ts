/** Identifiers. Public ids are UUIDv7 (RFC 9562, section 5.7): sortable by creation, unguessable enough not to be a secret. */
import { randomFillSync } from 'node:crypto';
import { v7 } from 'uuid';

/** A new UUIDv7 in lower-case text form. */
export function newId(): string {
  return v7();
}

const uuidForm = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** True for a lower-case textual UUID of any version: what a path parameter must be before it meets SQL. */
export function isId(value: unknown): value is string {
  return typeof value === 'string' && uuidForm.test(value);
}

/** A new W3C `traceparent` (Trace Context, level 1), sampled. */
export function newTraceparent(): string {
  return `00-${randomHex(16)}-${randomHex(8)}-01`;
}

const drawn = Buffer.alloc(4096);
let used = drawn.length;

/** At most 4096 random bytes in hex, for names and ids and never for secrets: drawn many at a time, since a draw costs more than what it names. */
export function randomHex(bytes: number): string {
  if (used + bytes > drawn.length) {
    randomFillSync(drawn);
    used = 0;
  }
  used += bytes;
  return drawn.toString('hex', used - bytes, used);
}

const traceparentForm = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

/** True for a well-formed version 00 `traceparent`. */
export function isTraceparent(value: unknown): value is string {
  return typeof value === 'string' && traceparentForm.test(value);
}
