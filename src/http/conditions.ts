/** Conditional and range requests (RFC 9110, sections 13 and 14), for objects with a strong validator. Pure. */
import type { ByteRange } from '../pipeline/ports.ts';

export interface Conditions {
  readonly method: string;
  readonly ifNoneMatch: string | undefined;
  readonly ifRange: string | undefined;
  readonly range: string | undefined;
}

/** `whole` 200, `part` 206, `unchanged` 304, `unsatisfiable` 416. */
export type Selection =
  | { readonly kind: 'whole' }
  | { readonly kind: 'part'; readonly range: ByteRange }
  | { readonly kind: 'unchanged' }
  | { readonly kind: 'unsatisfiable' };

/** What of an object of `size` bytes answers the request. `etag` is strong and quoted. */
export function select(conditions: Conditions, etag: string, size: number): Selection {
  // Section 13.2.2: If-None-Match is decided before Range and If-Range.
  if (conditions.ifNoneMatch !== undefined && names(conditions.ifNoneMatch, etag)) return { kind: 'unchanged' };
  // Section 14.2: Range means something for GET only.
  if (conditions.range === undefined || conditions.method !== 'GET') return { kind: 'whole' };
  // Section 13.1.5: compared strongly; a date never matches, for no date is ever sent.
  if (conditions.ifRange !== undefined && conditions.ifRange.trim() !== etag) return { kind: 'whole' };
  return selectRange(conditions.range, size);
}

/** Section 13.1.2: a weak comparison against a list, or `*`. */
function names(header: string, etag: string): boolean {
  if (header.trim() === '*') return true;
  return header.split(',').some((entry) => entry.trim().replace(/^W\//, '') === etag);
}

/** Section 14.2: what cannot be understood is ignored, and so are several ranges, which a server need not serve. */
function selectRange(header: string, size: number): Selection {
  const match = /^bytes=\s*(\d*)-(\d*)\s*$/i.exec(header);
  const [, first = '', last = ''] = match ?? [];
  if (!match || (first === '' && last === '')) return { kind: 'whole' };
  if (first === '') {
    const count = Math.min(Number(last), size);
    return count === 0 ? { kind: 'unsatisfiable' } : { kind: 'part', range: { start: size - count, end: size - 1 } };
  }
  const start = Number(first);
  const end = last === '' ? size - 1 : Math.min(Number(last), size - 1);
  if (last !== '' && Number(last) < start) return { kind: 'whole' };
  return start >= size ? { kind: 'unsatisfiable' } : { kind: 'part', range: { start, end } };
}
