/** Bodies of uploads that are made once and sent often: a picture of a given size, raw or in a form. */
import { randomBytes } from 'node:crypto';
import sharp from 'sharp';

export interface Body {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly bytes: Uint8Array;
}

/** A picture of 640 × 480 that takes a worker little, to begin with. */
const head = await sharp({ create: { width: 640, height: 480, channels: 3, background: '#3a6ea5' } })
  .jpeg()
  .toBuffer();

/** A JPEG of exactly `size` bytes: a small picture, and after its end what fills it up. Accepting looks at the first bytes and hashes all. */
export function uploadBytes(size: number): Uint8Array {
  return paddedTo(size, head);
}

/** What follows the end of a picture, no decoder reads. */
export function paddedTo(size: number, picture: Uint8Array): Uint8Array {
  return Buffer.concat([picture, randomBytes(size - picture.length)]);
}

export function rawOf(bytes: Uint8Array): Body {
  return { path: '/v1/attachments?filename=cat.jpg', headers: { 'content-type': 'image/jpeg' }, bytes };
}

/** A form with one file, as a browser writes it (RFC 7578). */
export function formOf(bytes: Uint8Array): Body {
  const boundary = `----bench${randomBytes(12).toString('hex')}`;
  const disposition = 'Content-Disposition: form-data; name="file"; filename="cat.jpg"';
  return {
    path: '/v1/attachments',
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
    bytes: Buffer.concat([
      Buffer.from(`--${boundary}\r\n${disposition}\r\nContent-Type: image/jpeg\r\n\r\n`),
      bytes,
      Buffer.from(`\r\n--${boundary}--\r\n`),
    ]),
  };
}
