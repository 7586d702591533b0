/**
 * File names in headers: read from `Content-Disposition` (RFC 6266, RFC 8187, RFC 7578), made safe to store, and written
 * back. A name is user text: it reaches a row and a header, never a path or a key.
 */
import { create, decodeExtended, parse } from 'content-disposition';
import { limits } from '../pipeline/message.ts';

export const defaultFileName = 'upload';

/**
 * `Content-Disposition` of a download: a quoted ASCII form, and `filename*` where that one loses something. Well-formed
 * for every name, whatever it holds.
 */
export function contentDisposition(type: 'inline' | 'attachment', fileName: string): string {
  // Rows may be older than today's rules: what cannot stand in a header is replaced here as well.
  const name = storedName(fileName);
  // RFC 6266, appendix D: no escapes and no percent signs in the plain form, which clients read in different ways.
  return create(name, { type, fallback: name.replace(/[^\x20-\x7e]|[%"\\]/gu, '_') });
}

/** The name that a raw upload gives itself, exactly as far as it can be stored; null without one. */
export function nameFromHeader(header: string | undefined): string | null {
  return header === undefined ? null : named(parse(header, { extended: false }).parameters);
}

/** What a multipart part says of itself; null where it is not a part of a form. `header` holds one byte a character. */
export function partFromHeader(header: string | undefined): { field: string; fileName: string | null } | null {
  if (header === undefined) return null;
  // In forms, browsers write `"`, CR and LF as %22, %0D, %0A and leave backslashes alone (HTML, 4.10.21.8).
  const { type, parameters } = parse(withoutEscapes(header), { extended: false, multipart: true });
  if (type !== 'form-data' || parameters.name === undefined) return null;
  return { field: asUtf8(parameters.name), fileName: named(parameters) };
}

/**
 * Other clients escape quotes by a backslash (RFC 2183), and then backslashes as well. A quote behind a backslash that ends
 * the parameter is no escape: that is how a browser writes a name with a backslash at its end.
 */
function withoutEscapes(header: string): string {
  const quotes = header.replace(/\\"(?![ \t]*(?:$|;[ \t]*[\w!#$%&'*+.^`|~-]+=))/g, '%22');
  return quotes === header ? header : quotes.replaceAll('\\\\', '\\');
}

function named(parameters: Readonly<Record<string, string | undefined>>): string | null {
  const { filename, 'filename*': encoded } = parameters;
  // RFC 6266, section 4.3: `filename*` wins where it can be decoded.
  const extended = encoded === undefined ? undefined : decodeExtended(encoded);
  if (extended !== undefined) return extended;
  return filename === undefined ? null : asUtf8(filename);
}

/** Header text arrives one byte a character. Clients send UTF-8 in it; what is not UTF-8 is taken as Latin-1. */
function asUtf8(text: string): string {
  const bytes = Buffer.from(text, 'latin1');
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return text;
  }
}

/**
 * The name as it is stored: the last part of a path, without control characters and halves of surrogate pairs, at most 255
 * code points with its extension kept. Everything else, normalisation form included, stays as it came.
 */
export function storedName(given: string | null): string {
  const leaf = lastPart(given ?? '')
    .toWellFormed()
    .replace(/\p{Cc}/gu, '_');
  if (leaf === '' || leaf === '.' || leaf === '..') return defaultFileName;
  const points = [...leaf];
  if (points.length <= limits.fileNameLengthMax) return leaf;
  const extension = [...(/\.[^.]{1,16}$/u.exec(leaf)?.[0] ?? '')];
  return [...points.slice(0, limits.fileNameLengthMax - extension.length), ...extension].join('');
}

/** Backslashes separate only in what is clearly a Windows path: on other systems they are part of a name. */
function lastPart(path: string): string {
  const name = path.slice(path.lastIndexOf('/') + 1);
  return /^(?:[a-z]:\\|\\\\)/i.test(name) ? name.slice(name.lastIndexOf('\\') + 1) : name;
}
