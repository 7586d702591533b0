/** What a file is by its first bytes: the five types, their lookalikes, and heads made to hurt. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import sharp, { type Sharp } from 'sharp';
import { createSniffer } from '../../src/drivers/sniffer-file-type.ts';
import { noise } from '../support/bytes.ts';

const sniffer = createSniffer();

async function typeOf(head: Uint8Array | string): Promise<string | null> {
  const bytes = typeof head === 'string' ? Buffer.from(head, 'latin1') : head;
  return (await sniffer.sniff(bytes))?.contentType ?? null;
}

/** An ISO base media file's first box, followed by something. */
function ftyp(major: string, ...compatible: string[]): Buffer {
  const size = Buffer.alloc(4);
  size.writeUInt32BE(16 + compatible.length * 4);
  return Buffer.concat([
    size,
    Buffer.from(`ftyp${major}\0\0\0\0${compatible.join('')}`),
    Buffer.from('\0\0\0\x08free'),
  ]);
}

function picture(): Sharp {
  return sharp({ create: { width: 8, height: 8, channels: 3, background: '#3a7' } });
}

test('real pictures of the five types are recognised from their head', async () => {
  const made: Record<string, Buffer> = {
    'image/jpeg': await picture().jpeg().toBuffer(),
    'image/png': await picture().png().toBuffer(),
    'image/webp': await picture().webp().toBuffer(),
    'image/gif': await picture().gif().toBuffer(),
    'image/avif': await picture().avif().toBuffer(),
  };
  for (const [expected, bytes] of Object.entries(made)) {
    assert.equal(await typeOf(bytes.subarray(0, sniffer.headBytes)), expected);
    assert.equal(await typeOf(bytes.subarray(0, 40)), expected, `${expected} by 40 bytes`);
  }
});

test('a photograph is a JPEG', async () => {
  const photograph = await readFile(new URL('../../examples/photo.jpg', import.meta.url));
  assert.equal(await typeOf(photograph.subarray(0, sniffer.headBytes)), 'image/jpeg');
});

test('an animated PNG and a PNG with a profile larger than the head are PNGs', async () => {
  const plain = await picture().png().toBuffer();
  const chunk = (type: string, size: number) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(size);
    return Buffer.concat([length, Buffer.from(type), Buffer.alloc(size), Buffer.alloc(4)]);
  };
  const header = plain.subarray(0, 33);
  assert.equal(await typeOf(Buffer.concat([header, chunk('acTL', 8), plain.subarray(33)])), 'image/png');
  assert.equal(
    await typeOf(Buffer.concat([header, chunk('iCCP', 500_000)]).subarray(0, sniffer.headBytes)),
    'image/png',
  );
});

test('AVIF is told by its major brand, or by its compatible brands when the major one is general', async () => {
  assert.equal(await typeOf(ftyp('avif', 'mif1', 'miaf')), 'image/avif');
  assert.equal(await typeOf(ftyp('avis', 'msf1')), 'image/avif');
  assert.equal(await typeOf(ftyp('mif1', 'miaf', 'avif')), 'image/avif');
  assert.equal(await typeOf(ftyp('msf1', 'avis')), 'image/avif');
});

test('HEIC is not AVIF, nor is anything else of the family', async () => {
  assert.equal(await typeOf(ftyp('heic', 'mif1', 'heic')), 'image/heic');
  assert.equal(await typeOf(ftyp('mif1', 'heic')), 'image/heif');
  assert.equal(await typeOf(ftyp('msf1', 'hevc')), 'image/heif-sequence');
  assert.notEqual(await typeOf(ftyp('isom', 'avif')), 'image/avif');
  assert.notEqual(await typeOf(ftyp('mp42', 'isom')), 'image/avif');
  // A brand behind the box's end is not among its brands.
  assert.notEqual(await typeOf(Buffer.concat([ftyp('mif1', 'heic'), Buffer.from('avif')])), 'image/avif');
});

test('lookalikes are not the five types', async () => {
  assert.equal(await typeOf(`\xff\xd8\xff\xf7${'\0'.repeat(40)}`), 'image/jls');
  assert.equal(await typeOf('RIFF\x10\0\0\0WAVEfmt '), 'audio/wav');
  assert.equal(await typeOf('RIFF\x10\0\0\0WEB'), null);
  assert.equal(await typeOf('\x89PNG\r\n\x1a\n'), null);
  assert.equal(await typeOf('GIF88a\x01\0\x01\0'), null);
  assert.equal(await typeOf('<!doctype html><img src=cat.jpg>'), null);
  assert.equal(await typeOf('%PDF-1.7\n'), 'application/pdf');
  assert.equal(await typeOf(`II*\0\x08\0\0\0${'\0'.repeat(60)}`), 'image/tiff');
  assert.equal(await typeOf(`BM${'\0'.repeat(60)}`), 'image/bmp');
  assert.equal(await typeOf(`8BPS\0\x01${'\0'.repeat(60)}`), 'image/vnd.adobe.photoshop');
});

test('a name inside the bytes changes nothing', async () => {
  assert.equal(await typeOf('cat.jpg image/jpeg JFIF'), null);
});

test('nothing is known of no bytes, of one byte and of noise, and nothing rejects', async () => {
  assert.equal(await typeOf(''), null);
  for (let byte = 0; byte < 256; byte += 1) assert.equal(await typeOf(Buffer.from([byte])), null);
  for (let seed = 0; seed < 500; seed += 1) await typeOf(noise(seed * 8, seed));
});

test('heads that begin like something and go on as noise never reject, and never become one of the five', async () => {
  const beginnings = [
    'PK\x03\x04',
    '\x1aE\xdf\xa3',
    'OggS\0',
    'ID3\x04\0\0\x7f\x7f\x7f\x7f',
    '0&\xb2u\x8ef\xcf\x11\xa6\xd9\0\xaa\0b\xcel',
    'II*\0',
    'MM\0*',
    'II*\0\x10\0\0\0CR',
    '\0\0\0\x18ftyp',
    '\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1',
    '<?xml ',
    '\x1f\x8b\x08',
    'RIFF\xff\xff\xff\xffAVI ',
    '7z\xbc\xaf\x27\x1c',
    '\xef\xbb\xbf',
    '\xff\xfe<\0?\0x\0m\0l\0',
    'FORM\0\0\0\x10',
    '\0\x01\0\0',
  ];
  const five = new Set(['image/jpeg', 'image/png', 'image/gif', 'image/webp', 'image/avif']);
  for (const beginning of beginnings) {
    for (let seed = 0; seed < 40; seed += 1) {
      const head = Buffer.concat([Buffer.from(beginning, 'latin1'), noise(seed * 100, seed)]);
      assert.ok(!five.has((await typeOf(head)) ?? ''), `${JSON.stringify(beginning)}, seed ${seed}`);
    }
  }
});

test('only the head is looked at, however much is given', async () => {
  const zip = Buffer.concat([Buffer.from('PK\x03\x04', 'latin1'), noise(3_000_000, 1)]);
  assert.equal(await typeOf(zip), await typeOf(zip.subarray(0, sniffer.headBytes)));
});
