/**
 * Passwords: scrypt (RFC 7914) from Node, its parameters kept with each hash, compared in constant time.
 *
 * Form: `$scrypt$ln=15,r=8,p=3$salt$key`, base64 without padding, after the PHC string format. Hashing runs on libuv's
 * threads, never on the event loop; how many at once is the caller's matter (`gate.ts`).
 */
import { randomBytes, type ScryptOptions, scrypt, timingSafeEqual } from 'node:crypto';

/**
 * 2^15 × 8 × 128 bytes = 32 MiB a hash, three passes, about 0.2 s of one core: OWASP's equivalent of 2^17 with one pass,
 * whose 128 MiB a log-in would be a lever against small hosts.
 */
const cost = { log2: 15, blockSize: 8, passes: 3 } as const;
const saltBytes = 16;
const keyBytes = 32;

interface Encoded {
  readonly log2: number;
  readonly blockSize: number;
  readonly passes: number;
  readonly salt: Buffer;
  readonly key: Buffer;
}

/** The encoded hash of a password, under a fresh salt. About 0.2 s and 32 MiB. */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(saltBytes);
  const key = await derive(password, { ...cost, salt, key: Buffer.alloc(keyBytes) });
  return `$scrypt$ln=${cost.log2},r=${cost.blockSize},p=${cost.passes}$${unpadded(salt)}$${unpadded(key)}`;
}

/**
 * Whether `password` is the one behind `encoded`. Null stands for an account that does not exist: it costs the same time
 * and is never right, so that the time tells nothing about handles. Throws for a hash that is not of the form above.
 */
export async function verifyPassword(password: string, encoded: string | null): Promise<boolean> {
  const expected = encoded === null ? nobody : parse(encoded);
  const key = await derive(password, expected);
  return timingSafeEqual(key, expected.key) && encoded !== null;
}

const nobody: Encoded = { ...cost, salt: randomBytes(saltBytes), key: randomBytes(keyBytes) };

const form = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

function parse(encoded: string): Encoded {
  const [, log2, blockSize, passes, salt, key] = form.exec(encoded) ?? [];
  if (salt === undefined || key === undefined)
    throw new Error('Expected an encoded scrypt hash, received another form');
  return {
    log2: Number(log2),
    blockSize: Number(blockSize),
    passes: Number(passes),
    salt: Buffer.from(salt, 'base64'),
    key: Buffer.from(key, 'base64'),
  };
}

function derive(password: string, { log2, blockSize, passes, salt, key }: Encoded): Promise<Buffer> {
  const N = 2 ** log2;
  // Node's own ceiling of 32 MiB leaves no room for the blocks of the passes.
  const options: ScryptOptions = { N, r: blockSize, p: passes, maxmem: 2 * 128 * N * blockSize };
  // NFKC: one password however a keyboard composes it (NIST SP 800-63B, section 5.1.1.2).
  const normalized = password.normalize('NFKC');
  return new Promise((resolve, reject) => {
    scrypt(normalized, salt, key.length, options, (error, derived) => (error ? reject(error) : resolve(derived)));
  });
}

function unpadded(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '');
}
