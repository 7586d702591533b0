/**
 * The mix of pictures that a chat service is sent, as data, and how each is made of a photograph: 40 pictures, 25 of them
 * JPEGs, the rest what else people send. Everything is drawn from seeds: the same photographs and the same sharp make the
 * same bytes.
 */
import sharp, { type Sharp } from 'sharp';
import { seeded } from '../tests/support/pictures.ts';

/** How the picture is stored, which decides what decoding it costs. `jpeg-icc` carries a colour profile, `animated` frames. */
export const kinds = ['jpeg', 'jpeg-progressive', 'jpeg-icc', 'png', 'webp', 'avif', 'animated'] as const;
export type Kind = (typeof kinds)[number];

/** One picture of the mix. `from` is a file below `/usr/share` of the packages in `pictures.ts`. */
export interface Wanted {
  readonly name: string;
  readonly kind: Kind;
  readonly contentType: 'image/jpeg' | 'image/png' | 'image/webp' | 'image/avif' | 'image/gif';
  readonly from: string;
  make(path: string): Promise<Buffer>;
}

const mate = (name: string) => `backgrounds/mate/${name}`;
const plasma = (name: string, size = '2560x1600.jpg') => `wallpapers/${name}/contents/images/${size}`;

interface Camera {
  /** As the camera was held: 6 and 8 are portraits. */
  readonly orientation?: number;
  /** Long edge where it is not that of the photograph. Larger ones are enlarged and get grain, as a sensor of that size has. */
  readonly edge?: number;
  readonly quality?: number;
  readonly progressive?: boolean;
  /** `own`: that of the photograph. */
  readonly profile?: 'own' | 'srgb' | 'p3';
}

/**
 * The mix, by kind. A kind is told by its sum alone, so each has what makes pictures differ: turned ones, large ones, small ones. Half of
 * what comes from cameras has a profile: telephones write one, and whoever forwards a picture often drops it.
 */
export const wanted: readonly Wanted[] = [
  camera('jpeg', 'aqua', mate('nature/Aqua.jpg')),
  camera('jpeg', 'water', plasma('BytheWater')),
  camera('jpeg', 'ripple-portrait', plasma('ColdRipple'), { orientation: 6 }),
  camera('jpeg', 'night', plasma('DarkestHour')),
  camera('jpeg', 'evening', plasma('EveningGlow')),
  camera('jpeg', 'ladybird', mate('nature/LadyBird.jpg'), { quality: 92 }),
  camera('jpeg', 'wood-portrait', mate('nature/Wood.jpg'), { orientation: 6 }),
  camera('jpeg', 'landing-15mp', plasma('SafeLanding', '5120x2880.jpg')),
  camera('jpeg', 'storm-forwarded', mate('nature/Storm.jpg'), { edge: 1280, quality: 80 }),
  camera('jpeg-progressive', 'autumn', plasma('Autumn'), { progressive: true }),
  camera('jpeg-progressive', 'summer', plasma('summer_1am'), { progressive: true }),
  camera('jpeg-progressive', 'elephants-8mp', mate('abstract/Elephants_3840x2160.jpg'), { progressive: true }),
  camera('jpeg-progressive', 'volna-15mp', plasma('Volna', '5120x2880.jpg'), { progressive: true }),
  camera('jpeg-progressive', 'drops-web', mate('nature/RainDrops.jpg'), { edge: 1600, quality: 80, progressive: true }),
  camera('jpeg-icc', 'alone-srgb', plasma('OneStandsOut'), { profile: 'own' }),
  camera('jpeg-icc', 'path-srgb', plasma('Path'), { profile: 'own' }),
  camera('jpeg-icc', 'hills-srgb', plasma('PastelHills', '3200x2000.jpg'), { profile: 'srgb' }),
  camera('jpeg-icc', 'cups-p3', plasma('ColorfulCups'), { profile: 'p3' }),
  camera('jpeg-icc', 'flower-p3-portrait', mate('nature/YellowFlower.jpg'), { profile: 'p3', orientation: 6 }),
  camera('jpeg-icc', 'glow-12mp-p3', plasma('EveningGlow'), { profile: 'p3', edge: 4032 }),
  camera('jpeg-icc', 'leaf-srgb-portrait', plasma('FallenLeaf'), { profile: 'srgb', orientation: 6 }),
  camera('jpeg-icc', 'garden-srgb-headlong', mate('nature/Garden.jpg'), { profile: 'srgb', orientation: 3 }),
  camera('jpeg-icc', 'wings-p3-portrait', mate('nature/TwoWings.jpg'), { profile: 'p3', orientation: 8 }),
  camera('jpeg-icc', 'kite-12mp-srgb', plasma('Kite'), { profile: 'srgb', edge: 4032 }),
  camera('jpeg-icc', 'wood-12mp-p3-portrait', mate('nature/Wood.jpg'), { profile: 'p3', edge: 4032, orientation: 6 }),
  screenshot('desktop', plasma('Altai', '5120x2880.png'), 1920, 1080),
  screenshot('desktop-large', plasma('Honeywave', '5120x2880.jpg'), 2560, 1440),
  screenshot('laptop', plasma('Cluster', '3840x2160.png'), 2880, 1800),
  screenshot('phone', plasma('Kay', '1080x1920.png'), 1170, 2532),
  still('png', 'stripes-alpha', mate('desktop/MATE-Stripes-Dark.png'), 1920, (picture) => picture.png()),
  still('png', 'elarun-alpha', plasma('Elarun', '2560x1600.png'), 2560, (picture) => picture.png()),
  still('webp', 'dune', mate('nature/Dune.jpg'), 1680, (picture) => picture.webp({ quality: 82 })),
  still('webp', 'blinds', mate('nature/Blinds.jpg'), 1920, (picture) => picture.webp({ quality: 82 })),
  still('webp', 'meadow', mate('nature/GreenMeadow.jpg'), 1280, (picture) => picture.webp({ quality: 75 })),
  still('webp', 'elephants', mate('abstract/Elephants_5640x3172.jpg'), 3840, (picture) =>
    picture.webp({ quality: 85 }),
  ),
  still('avif', 'autumn', plasma('Autumn'), 2048, (picture) => picture.avif({ quality: 60, effort: 3 })),
  still('avif', 'garden', mate('nature/Garden.jpg'), 1600, (picture) => picture.avif({ quality: 60, effort: 3 })),
  animation('image/gif', 'pan', mate('nature/LadyBird.jpg'), { width: 480, height: 300, frames: 24 }),
  animation('image/gif', 'pan-long', plasma('summer_1am'), { width: 320, height: 240, frames: 40 }),
  animation('image/webp', 'sticker', plasma('FlyingKonqui', '2560x1600.png'), { width: 512, height: 512, frames: 20 }),
];

/** What a camera or a telephone writes: EXIF with orientation, 4:2:0, quality 88 unless told otherwise. */
function camera(kind: Kind & `jpeg${string}`, name: string, from: string, settings: Camera = {}): Wanted {
  return {
    name: `${kind}-${name}.jpg`,
    kind,
    contentType: 'image/jpeg',
    from,
    make: (path) => photograph(path, settings),
  };
}

async function photograph(path: string, settings: Camera): Promise<Buffer> {
  const { orientation = 1, quality = 88, progressive = false, profile, edge } = settings;
  const { width } = await sharp(path).metadata();
  let pixels = sharp(path).flatten();
  if (profile !== 'own') pixels = pixels.toColourspace('srgb');
  if (edge !== undefined) pixels = pixels.resize(edge, edge, { fit: 'inside', kernel: 'lanczos3' });
  if (edge !== undefined && edge > width) pixels = pixels.composite([await grain()]);
  // Stored as the sensor lay: turned back by what the reader will turn it.
  const turns: Readonly<Record<number, number>> = { 3: 180, 6: 270, 8: 90 };
  if (profile === 'own') pixels = pixels.keepIccProfile();
  else if (profile !== undefined) pixels = pixels.withIccProfile(profile);
  const upright = await pixels.png({ compressionLevel: 0 }).toBuffer();
  const picture = sharp(upright).rotate(turns[orientation] ?? 0);
  const kept = profile === undefined ? picture : picture.keepIccProfile();
  return withOrientation(await kept.jpeg({ quality, progressive, chromaSubsampling: '4:2:0' }).toBuffer(), orientation);
}

/** An EXIF segment (TIFF, big endian, one entry: tag 0x0112) after the start of the JPEG. sharp writes none without a profile. */
function withOrientation(jpeg: Buffer, orientation: number): Buffer {
  const entry = [0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0];
  const tiff = [0x4d, 0x4d, 0, 42, 0, 0, 0, 8, 0, 1, ...entry, 0, 0, 0, 0];
  const exif = [...Buffer.from('Exif\0\0'), ...tiff];
  const segment = Buffer.from([0xff, 0xe1, 0, exif.length + 2, ...exif]);
  return Buffer.concat([jpeg.subarray(0, 2), segment, jpeg.subarray(2)]);
}

/** Noise around middle grey: enlarging smooths, and a smooth JPEG decodes faster than one from a sensor. */
async function grain() {
  const random = seeded(7);
  const pixels = Uint8Array.from({ length: 256 * 256 }, () => 116 + Math.floor(random() * 24));
  const input = await sharp(pixels, { raw: { width: 256, height: 256, channels: 1 } })
    .png()
    .toBuffer();
  return { input, tile: true, blend: 'overlay' } as const;
}

function still(
  kind: 'png' | 'webp' | 'avif',
  name: string,
  from: string,
  edge: number,
  encode: (picture: Sharp) => Sharp,
): Wanted {
  const make = (path: string) => {
    const inside = { fit: 'inside', withoutEnlargement: true } as const;
    return encode(sharp(path).resize(edge, edge, inside).toColourspace('srgb')).toBuffer();
  };
  return { name: `${kind}-${name}.${kind}`, kind, contentType: `image/${kind}`, from, make };
}

/** A desktop with windows full of lines. No fonts: what is installed would change the bytes. */
function screenshot(name: string, from: string, width: number, height: number): Wanted {
  const make = (path: string) =>
    sharp(path)
      .resize(width, height, { fit: 'cover' })
      .flatten()
      .toColourspace('srgb')
      .composite([{ input: Buffer.from(windows(width, height)) }])
      .png()
      .toBuffer();
  return { name: `png-${name}.png`, kind: 'png', contentType: 'image/png', from, make };
}

function windows(width: number, height: number): string {
  const random = seeded(width + height);
  const panes: string[] = [];
  for (const [left, top, right, bottom, paper, ink] of [
    [0.04, 0.06, 0.6, 0.9, '#ffffff', '#24292f'],
    [0.5, 0.2, 0.96, 0.82, '#1e1e1e', '#c9d1d9'],
  ] as const) {
    const [x, y] = [Math.round(left * width), Math.round(top * height)];
    const [wide, high] = [Math.round((right - left) * width), Math.round((bottom - top) * height)];
    panes.push(`<rect x="${x}" y="${y}" width="${wide}" height="${high}" rx="8" fill="${paper}"/>`);
    for (let line = y + 40; line < y + high - 24; line += 20) {
      for (let at = x + 20; at < x + wide * (0.5 + random() * 0.45); ) {
        const word = 12 + Math.round(random() * 60);
        panes.push(`<rect x="${at}" y="${line}" width="${word}" height="9" rx="2" fill="${ink}"/>`);
        at += word + 8;
      }
    }
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">${panes.join('')}</svg>`;
}

interface Moving {
  readonly width: number;
  readonly height: number;
  readonly frames: number;
}

/** A window that wanders over the photograph, 80 ms a frame. */
function animation(contentType: 'image/gif' | 'image/webp', name: string, from: string, size: Moving): Wanted {
  const extension = contentType === 'image/gif' ? 'gif' : 'webp';
  return {
    name: `animated-${name}.${extension}`,
    kind: 'animated',
    contentType,
    from,
    make: (path) => pan(path, contentType, size),
  };
}

async function pan(path: string, contentType: string, { width, height, frames }: Moving): Promise<Buffer> {
  const ground = await sharp(path)
    .resize(Math.round(width * 1.5), Math.round(height * 1.5), { fit: 'cover' })
    .toColourspace('srgb')
    .ensureAlpha()
    .png()
    .toBuffer();
  const pictures: Buffer[] = [];
  for (let frame = 0; frame < frames; frame += 1) {
    const along = frame / (frames - 1);
    const window = { left: Math.round(along * width * 0.5), top: Math.round(along * height * 0.5), width, height };
    pictures.push(await sharp(ground).extract(window).raw().toBuffer());
  }
  const raw = { width, height: height * frames, channels: 4, pageHeight: height } as const;
  const moving = sharp(Buffer.concat(pictures), { raw, limitInputPixels: false });
  const delay = Array.from({ length: frames }, () => 80);
  return await (contentType === 'image/gif'
    ? moving.gif({ delay, effort: 3 })
    : moving.webp({ delay, quality: 75 })
  ).toBuffer();
}
