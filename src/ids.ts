/** Identifiers. Public ids are UUIDv7 (RFC 9562, section 5.7): sortable by creation, unguessable enough not to be a secret. */
import { randomFillSync } from 'node:crypto';
import { v7 } from 'uuid';

let lastMs = 0;
let counter = 0;

/** A new UUIDv7 in lower-case text form. Those of one process are in the order of their making, also within a millisecond. */
export function newId(): string {
  const random = draw(16);
  const nowMs = Date.now();
  if (nowMs > lastMs) {
    lastMs = nowMs;
    // Half of its range is left to count on (RFC 9562, section 6.2).
    counter = random.readUInt32BE(0) >>> 1;
  } else {
    counter = (counter + 1) >>> 0;
    if (counter === 0) lastMs += 1;
  }
  return v7({ random, msecs: lastMs, seq: counter });
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

/** Random bytes, valid until the next are drawn: many at a time, since a draw costs more than what it names. */
function draw(bytes: number): Buffer {
  if (used + bytes > drawn.length) {
    randomFillSync(drawn);
    used = 0;
  }
  used += bytes;
  return drawn.subarray(used - bytes, used);
}

/** At most 4096 random bytes in hex: for names and ids, never for secrets, which must not lie about in memory. */
export function randomHex(bytes: number): string {
  return draw(bytes).toString('hex');
}

const traceparentForm = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

/** True for a well-formed version 00 `traceparent`. */
export function isTraceparent(value: unknown): value is string {
  return typeof value === 'string' && traceparentForm.test(value);
}
