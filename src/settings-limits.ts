/** The settings that bound what one request, one user and one picture may take. A part of the table of `settings.ts`. */
import { day, gibi, hour, setting as s } from './setting.ts';

export const limits = {
  uploadBytesMax: s('Limits', 'MAX_UPLOAD_BYTES', 'bytes', '25MiB', 'Largest accepted file.', {
    min: 1,
    max: 5 * gibi,
  }),
  uploadMsMax: s(
    'Limits',
    'MAX_UPLOAD_TIME',
    'duration',
    '1h',
    'Longest time from the first byte of an upload to its commit.',
    {
      min: 1000,
      max: day,
    },
  ),
  stallMs: s('Limits', 'UPLOAD_STALL', 'duration', '60s', 'An upload that sends nothing for this long is ended.', {
    min: 1000,
    max: hour,
  }),
  backlogMax: s(
    'Limits',
    'MAX_BACKLOG',
    'int',
    '10000',
    'Uploads that wait to be processed; above it new ones are answered 503.',
    {
      min: 1,
      max: 1e7,
    },
  ),
  stagingBytesMax: s(
    'Limits',
    'MAX_STAGING_BYTES',
    'bytes',
    '10GiB',
    'Bytes of uploads that are not published yet; above it 503. At least `MAX_UPLOAD_BYTES`.',
    {
      min: 1,
      max: 1024 * gibi,
    },
  ),
  uploadsMax: s('Limits', 'MAX_UPLOADS', 'int', '256', 'Uploads that one API process receives at once; above it 503.', {
    min: 1,
    max: 100_000,
  }),
  pendingPerUserMax: s(
    'Limits',
    'MAX_PENDING_PER_USER',
    'int',
    '200',
    'Unfinished uploads of one user; above it 429.',
    {
      min: 1,
      max: 1e6,
    },
  ),
  uploadsPerUserMax: s(
    'Limits',
    'MAX_UPLOADS_PER_USER',
    'int',
    '16',
    'Uploads of one user that one API process receives at once; above it 429. At most `MAX_UPLOADS`.',
    {
      min: 1,
      max: 10_000,
    },
  ),
  uploadsPerMinuteMax: s(
    'Limits',
    'MAX_UPLOADS_PER_MINUTE',
    'int',
    '1200',
    'Accepted uploads of one user in a minute; above it 429.',
    {
      min: 1,
      max: 1e6,
    },
  ),
  waitsMax: s(
    'Limits',
    'MAX_WAITS',
    'int',
    '2000',
    'Requests with `wait` that one API process lets wait; above it they are answered at once, with what is so.',
    {
      min: 0,
      max: 1e6,
    },
  ),
  waitsPerUserMax: s(
    'Limits',
    'MAX_WAITS_PER_USER',
    'int',
    '100',
    'Those of one user; the same above it. At most `MAX_WAITS`.',
    {
      min: 0,
      max: 1e6,
    },
  ),
  pixelsMax: s('Limits', 'MAX_PIXELS', 'int', '50000000', 'Width × height × frames of a picture that is rendered.', {
    min: 1,
    max: 1e9,
  }),
  pixelsMaxAvif: s(
    'Limits',
    'MAX_PIXELS_AVIF',
    'int',
    '16000000',
    'The same for AVIF, whose decoder needs far more memory.',
    {
      min: 1,
      max: 1e9,
    },
  ),
  framesMax: s('Limits', 'MAX_FRAMES', 'int', '500', 'Frames of an animation that is rendered.', {
    min: 1,
    max: 10_000,
  }),
  scansMax: s('Limits', 'MAX_SCANS', 'int', '64', 'Scans of a progressive JPEG that is rendered.', {
    min: 1,
    max: 10_000,
  }),
} as const;
