/** `Repr-Digest` (RFC 9530), a dictionary of structured fields (RFC 8941), as far as SHA-256 is concerned. */
import { SkrepkaError } from '../errors.ts';

const member = /^([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):((?:;[^,]*)?)$/;

/**
 * The declared SHA-256 in lower-case hex; null without a header, or when it names other algorithms only: RFC 9530, section
 * 2, has those ignored. Throws `validation` for a header that is not well-formed.
 */
export function reprDigest(header: string | undefined): string | null {
  if (header === undefined) return null;
  let sha256: string | null = null;
  for (const part of header.split(',')) {
    const [, algorithm, base64 = ''] = member.exec(part.trim()) ?? [];
    if (algorithm === undefined) throw malformed('is not of the form sha-256=:<base64>:');
    if (algorithm !== 'sha-256') continue;
    const digest = Buffer.from(base64, 'base64');
    if (digest.length !== 32) throw malformed('does not hold 32 bytes for sha-256');
    // RFC 8941, section 3.2: of a repeated key the last one counts.
    sha256 = digest.toString('hex');
  }
  return sha256;
}

function malformed(why: string): SkrepkaError {
  return new SkrepkaError('validation', { detail: `"repr-digest" ${why}.`, members: { field: 'repr-digest' } });
}
