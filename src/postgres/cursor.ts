/**
 * Cursors of lists that are ordered by id, newest first: UUIDv7 ids sort by creation, so the last id of a page is all
 * that the next page needs. It travels as the 16 bytes of that id in base64url, opaque to clients.
 */
import { SkrepkaError } from '../errors.ts';
import { isId } from '../ids.ts';
import type { Page } from '../pipeline/registry.ts';

/**
 * The id below which a page starts, or null for the first page. Rejects nothing silently: anything that `pageOf` cannot
 * have made throws `validation` with field `cursor`.
 */
export function cursorId(cursor: string | null): string | null {
  if (cursor === null) return null;
  const bytes = Buffer.from(cursor, 'base64url');
  // Buffer skips what is not base64url and ignores stray bits, so only a cursor that comes back unchanged was ours.
  if (bytes.length !== 16 || bytes.toString('base64url') !== cursor) {
    throw new SkrepkaError('validation', {
      detail: 'The cursor is not one that this server gave.',
      members: { field: 'cursor' },
    });
  }
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}

/** Cuts `limit + 1` fetched items to a page: the one too many only tells that there is a next page. */
export function pageOf<T extends { readonly id: string }>(fetched: readonly T[], limit: number): Page<T> {
  const items = fetched.slice(0, limit);
  const last = items.at(-1);
  return { items, nextCursor: fetched.length > limit && last ? encodeCursor(last.id) : null };
}

function encodeCursor(id: string): string {
  if (!isId(id)) throw new TypeError(`Expected a UUID for a cursor, received ${JSON.stringify(id)}`);
  return Buffer.from(id.replaceAll('-', ''), 'hex').toString('base64url');
}
