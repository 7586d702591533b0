/**
 * The `Sniffer` port: what a file is by its first bytes, never by its name or declared type.
 *
 * The five types that are rendered are told by their own signatures, here; everything else is asked of `file-type`. Why
 * not all of it: it calls an animated PNG another type than a PNG when the animation shows in the head, and an AVIF
 * whose major brand is a general one a HEIF.
 */
import { fileTypeFromBuffer } from 'file-type';
import { type ImageType, isImageType } from '../pipeline/attachment.ts';
import type { Sniffer } from '../pipeline/ports.ts';

/** What `file-type` recommends for a sample. */
const headBytes = 4100;

/** `sniff` answers null for anything unknown, and never rejects: a hostile head is an unknown one. */
export function createSniffer(): Sniffer {
  return {
    headBytes,
    async sniff(head) {
      const bytes = head.subarray(0, headBytes);
      const contentType = imageTypeOf(bytes) ?? (await otherTypeOf(bytes));
      return contentType === null ? null : { contentType };
    },
  };
}

function imageTypeOf(head: Uint8Array): ImageType | null {
  if (isJpeg(head)) return 'image/jpeg';
  // PNG, section 5.2: signature, then IHDR. An APNG is a PNG with more in it.
  if (text(head, 0, 8) === '\x89PNG\r\n\x1a\n' && text(head, 12, 16) === 'IHDR') return 'image/png';
  if (text(head, 0, 6) === 'GIF87a' || text(head, 0, 6) === 'GIF89a') return 'image/gif';
  if (text(head, 0, 4) === 'RIFF' && text(head, 8, 12) === 'WEBP') return 'image/webp';
  return isAvif(head) ? 'image/avif' : null;
}

/** SOI and the beginning of a marker. SOI and F7 begin a JPEG-LS, which is another format. */
function isJpeg(head: Uint8Array): boolean {
  return text(head, 0, 3) === '\xff\xd8\xff' && head[3] !== 0xf7;
}

/**
 * ISO/IEC 14496-12, section 4.3: size, `ftyp`, major brand, minor version, compatible brands. The general brands `mif1`
 * and `msf1` say only "HEIF"; the compatible brands say which codec.
 */
function isAvif(head: Uint8Array): boolean {
  if (head.length < 16 || text(head, 4, 8) !== 'ftyp') return false;
  const major = text(head, 8, 12);
  if (major === 'avif' || major === 'avis') return true;
  if (major !== 'mif1' && major !== 'msf1') return false;
  const end = Math.min(new DataView(head.buffer, head.byteOffset).getUint32(0), head.length);
  for (let at = 16; at + 4 <= end; at += 4) {
    const brand = text(head, at, at + 4);
    if (brand === 'avif' || brand === 'avis') return true;
  }
  return false;
}

async function otherTypeOf(head: Uint8Array): Promise<string | null> {
  try {
    const mime = (await fileTypeFromBuffer(head))?.mime ?? null;
    // It is laxer: three letters make a GIF, and Apple's CgBI a PNG. What failed the signatures above would only fail to render.
    return mime === null || isImageType(mime) ? null : mime;
  } catch {
    // Its parsers throw on some malformed heads: what cannot be parsed is not known.
    return null;
  }
}

function text(head: Uint8Array, start: number, end: number): string {
  return String.fromCharCode(...head.subarray(start, end));
}
