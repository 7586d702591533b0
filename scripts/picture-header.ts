/** What a JPEG or WebP says of itself, read from its markers and chunks: no decoder, so that a proof needs only Node. */

export interface PictureHeader {
  readonly width: number;
  readonly height: number;
  /** Names of metadata that it carries: `EXIF or XMP`, `ICC`, `comment`. */
  readonly metadata: readonly string[];
}

const startOfScan = 0xda;
/** SOF0 to SOF15 without DHT (C4), JPG (C8) and DAC (CC). */
const framesStart = new Set([0xc0, 0xc1, 0xc2, 0xc3, 0xc5, 0xc6, 0xc7, 0xc9, 0xca, 0xcb, 0xcd, 0xce, 0xcf]);
const metadataMarkers: Readonly<Record<number, string>> = { 225: 'EXIF or XMP', 226: 'ICC', 254: 'comment' };

/** ITU T.81, annex B. Throws when the bytes do not run from SOI over one SOF to EOI. */
export function readJpeg(bytes: Buffer): PictureHeader {
  if (bytes.readUInt16BE(0) !== 0xffd8) throw new Error('no SOI marker at the beginning');
  if (bytes.readUInt16BE(bytes.length - 2) !== 0xffd9) throw new Error('no EOI marker at the end');
  const metadata: string[] = [];
  let size: { width: number; height: number } | null = null;
  for (let at = 2; ; ) {
    if (bytes[at] !== 0xff) throw new Error(`no marker at byte ${at}`);
    const marker = bytes[at + 1] ?? 0;
    if (marker === startOfScan) break;
    if (framesStart.has(marker)) size = { height: bytes.readUInt16BE(at + 5), width: bytes.readUInt16BE(at + 7) };
    const name = metadataMarkers[marker];
    if (name !== undefined) metadata.push(name);
    at += 2 + bytes.readUInt16BE(at + 2);
  }
  if (size === null) throw new Error('no SOF marker before the scan');
  return { ...size, metadata };
}

/** The WebP container (RFC 9649). Throws when the bytes are not one whole RIFF file with a picture. */
export function readWebp(bytes: Buffer): PictureHeader {
  const name = (at: number) => bytes.toString('latin1', at, at + 4);
  if (name(0) !== 'RIFF' || name(8) !== 'WEBP') throw new Error('no RIFF header of a WebP');
  if (bytes.readUInt32LE(4) + 8 !== bytes.length) throw new Error('the RIFF size is not the size of the file');
  const metadata: string[] = [];
  let size: { width: number; height: number } | null = null;
  for (let at = 12; at < bytes.length; ) {
    size ??= webpSize(bytes, name(at), at + 8);
    if (name(at) === 'EXIF' || name(at) === 'XMP ') metadata.push('EXIF or XMP');
    if (name(at) === 'ICCP') metadata.push('ICC');
    const length = bytes.readUInt32LE(at + 4);
    at += 8 + length + (length % 2);
  }
  if (size === null) throw new Error('no VP8, VP8L or VP8X chunk');
  return { ...size, metadata };
}

function webpSize(bytes: Buffer, chunk: string, at: number): { width: number; height: number } | null {
  if (chunk === 'VP8X') return { width: bytes.readUIntLE(at + 4, 3) + 1, height: bytes.readUIntLE(at + 7, 3) + 1 };
  if (chunk === 'VP8L') {
    if (bytes[at] !== 0x2f) throw new Error('no VP8L signature');
    const bits = bytes.readUInt32LE(at + 1);
    return { width: (bits & 0x3fff) + 1, height: ((bits >>> 14) & 0x3fff) + 1 };
  }
  if (chunk !== 'VP8 ') return null;
  if (bytes.readUIntBE(at + 3, 3) !== 0x9d012a) throw new Error('no VP8 start code');
  return { width: bytes.readUInt16LE(at + 6) & 0x3fff, height: bytes.readUInt16LE(at + 8) & 0x3fff };
}
