/**
 * How long an upload waits for its answer while every worker renders: 20 uploads a second, come what may.
 *
 * The reference is ourselves with no worker at all, on the same arrivals. An answer is timed from the moment at which its upload was meant
 * to be sent. The workers have a backlog of large pictures that outlasts the measurement, and whether they were busy is looked up.
 */
import { availableParallelism } from 'node:os';
import { setTimeout as pause } from 'node:timers/promises';
import sharp from 'sharp';
import type { Role } from '../../src/roles.ts';
import { onEnd, type Scope } from '../../tests/support/on-end.ts';
import { until } from '../../tests/support/until.ts';
import { sendAll } from '../arrivals.ts';
import { missingPictures, type Picture, pictures } from '../pictures.ts';
import { openProduct, type Product } from '../product.ts';
import { openPool } from '../references/uploads.ts';
import type { Figures, Row } from '../row.ts';
import { withScope } from '../scope.ts';
import { paddedTo } from '../upload-body.ts';
import { median, percentile } from '../usage.ts';

const idle = 'no worker';
const busy = 'every worker busy';
const everyMs = 50;
const uploadSize = 200 * 1024;
/** Who upload in turn: nobody has more under way than one user may. */
const usersCount = 8;
const warmUploads = 60;

interface Load {
  readonly uploads: number;
  /** Pictures that wait in front of the workers when the measurement begins. */
  readonly backlog: number;
}
/** A core renders one to three of the mix a second, and the uploads are rendered as well: the backlog lasts for all of it. */
const whole: Load = { uploads: 600, backlog: 60 + 60 * availableParallelism() };
const little: Load = { uploads: 80, backlog: 12 + 12 * availableParallelism() };

export const row: Row = {
  name: 'accept-under-load',
  title: 'Accepting uploads while every worker renders',
  about:
    '20 uploads a second of 200 KB, each timed from the moment at which it was meant to be sent. The reference is ours without a worker; everything else is equal. ' +
    'The workers render a backlog of the mixed pictures, and then the uploads themselves.',
  rounds: 5,
  missing: missingPictures,
  async open(_scope, { quick, say }) {
    const mix = await pictures(say);
    const upload = await smallPhotograph(mix);
    const load = quick ? little : whole;
    return {
      sides: [
        { name: idle, run: () => withScope((scope) => runIdle(scope, upload, load)) },
        { name: busy, run: () => withScope((scope) => runBusy(scope, upload, load, mix)) },
      ],
      ratios: [
        { name: 'p95', ours: busy, reference: idle, figure: 'p95Ms', goal: { atMost: 1.5 }, kind: 'wall' },
        { name: 'p50', ours: busy, reference: idle, figure: 'p50Ms', kind: 'wall' },
        { name: 'p99', ours: busy, reference: idle, figure: 'p99Ms', kind: 'wall' },
      ],
      bounds: [
        // Asked of the measurement itself: had the workers run out of work, it would show nothing.
        { name: 'jobs still waiting at the end', side: busy, figure: 'waiting', unit: 'count', goal: { atLeast: 1 } },
        { name: 'looks that found every slot taken', side: busy, figure: 'busyPercent', unit: '%' },
      ],
    };
  },
};

/** A photograph of the mix as a phone sends it after shrinking it, filled up to the very size. */
async function smallPhotograph(mix: readonly Picture[]): Promise<Uint8Array> {
  const source = mix.find(({ contentType }) => contentType === 'image/jpeg');
  if (!source) throw new Error('Expected a JPEG among the pictures, found none');
  for (let width = 1600; ; width = Math.round(width * 0.9)) {
    const bytes = await sharp(source.bytes).autoOrient().resize({ width }).jpeg({ quality: 80 }).toBuffer();
    if (bytes.length <= uploadSize) return paddedTo(uploadSize, bytes);
  }
}

/* ---------------------------------------------------------------------- sides */

async function runIdle(scope: Scope, upload: Uint8Array, load: Load): Promise<Figures> {
  const product = await openProduct(scope, { roles: [['api', 'relay', 'janitor']] });
  return await sendUploads(product, upload, load);
}

async function runBusy(scope: Scope, upload: Uint8Array, load: Load, mix: readonly Picture[]): Promise<Figures> {
  const roles: readonly (readonly Role[])[] = [['api', 'relay', 'janitor'], ['worker']];
  const product = await openProduct(scope, { roles });
  const flood = await product.user();
  for (let sent = 0; sent < load.backlog; sent += 1) {
    const { bytes, contentType, name } = mix[sent % mix.length] ?? { bytes: upload, contentType: '', name: '' };
    const { status } = await flood.upload(bytes, { contentType, fileName: name });
    if (status !== 202) throw new Error(`Expected 202 for a picture of the backlog, received ${status}`);
  }
  const watch = watchWorkers(scope, product.databaseUrl);
  await until('every worker is busy', () => watch.isBusy());
  watch.begin();
  const figures = await sendUploads(product, upload, load);
  return { ...figures, busyPercent: watch.busyPercent(), waiting: watch.waiting() };
}

async function sendUploads(product: Product, upload: Uint8Array, { uploads }: Load): Promise<Figures> {
  const users = await Promise.all(Array.from({ length: usersCount }, () => product.user()));
  const turns = Array.from({ length: warmUploads + uploads }, (_, turn) => turn);
  const answered = await sendAll(turns, everyMs, async (turn) => {
    const user = users[turn % usersCount];
    const answer = await user?.upload(upload, { contentType: 'image/jpeg', fileName: 'cat.jpg' });
    if (answer?.status !== 202) throw new Error(`Expected 202 for an upload, received ${answer?.status}`);
    return answer.id;
  });
  const refused = answered.filter(({ id }) => id === null).length;
  if (refused > 0) throw new Error(`Expected 202 for every upload, ${refused} of ${answered.length} had none`);
  const sorted = answered.slice(warmUploads).map(({ answerMs }) => answerMs);
  sorted.sort((one, other) => one - other);
  return { p50Ms: median(sorted), p95Ms: percentile(sorted, 95), p99Ms: percentile(sorted, 99) };
}

/** Looks four times a second at how many jobs are being worked on, and how many wait. Between two jobs a slot is free for a moment. */
function watchWorkers(scope: Scope, databaseUrl: string) {
  const ended = new AbortController();
  const pool = openPool(databaseUrl, 1);
  let now = { running: 0, waiting: 0 };
  let looks = 0;
  let busyLooks = 0;
  const isBusy = () => now.running >= availableParallelism();
  const watching = (async () => {
    while (!ended.signal.aborted) {
      const { rows } = await pool.query<typeof now>(
        `select count(*) filter (where state = 'processing')::int as running,
           count(*) filter (where state = 'queued')::int as waiting
         from jobs
         where state in ('queued', 'processing')`,
      );
      now = rows[0] ?? now;
      looks += 1;
      if (isBusy()) busyLooks += 1;
      await pause(250, undefined, { signal: ended.signal }).catch(() => undefined);
    }
  })();
  // Its failure is that of the one who asks.
  watching.catch(() => undefined);
  onEnd(scope, async () => {
    ended.abort();
    await watching.catch(() => undefined);
    await pool.end();
  });
  return {
    isBusy,
    waiting: () => now.waiting,
    begin() {
      looks = 0;
      busyLooks = 0;
    },
    busyPercent: () => (100 * busyLooks) / looks,
  };
}
