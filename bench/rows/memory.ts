/**
 * How much memory large uploads take of the API, and a set of pictures of a render child: a ceiling each, in every round.
 *
 * An upload is never held: what the API needs beyond its idle size is buffers. Each figure is of an API that was started for it, since
 * a heap that has grown before would hide what grows now.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { Agent, type IncomingMessage, request } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { bareDataBytes, startChild } from '../../src/drivers/images-process.ts';
import { newestVersion, recipes } from '../../src/pipeline/recipe.ts';
import { onEnd, type Scope } from '../../tests/support/on-end.ts';
import { missingPictures, type Picture, pictures } from '../pictures.ts';
import { type BenchUser, openProduct, type Product } from '../product.ts';
import type { Bound, Figures, Row } from '../row.ts';
import { withScope } from '../scope.ts';
import { peakMiBOf, resetPeak, residentMiBOfProcess } from '../usage.ts';

/** Uploads at the same time, each of so many MiB. */
interface Load {
  readonly figure: string;
  readonly count: number;
  readonly mebibytes: number;
  readonly form: boolean;
}

const loadsOf = (large: number, each: number): readonly Load[] =>
  [false, true].flatMap((form) => [
    { figure: form ? 'oneFormMiB' : 'oneMiB', count: 1, mebibytes: large, form },
    { figure: form ? 'eightFormMiB' : 'eightMiB', count: 8, mebibytes: each, form },
  ]);

const mebi = 1024 * 1024;
const api = 'API';
const child = 'render child';
const quickPictures = 6;

const bound = (name: string, side: string, figure: string, atMost?: number): Bound => ({
  name,
  side,
  figure,
  unit: 'MiB',
  ...(atMost === undefined ? {} : { goal: { atMost } }),
});

export const row: Row = {
  name: 'memory',
  title: 'Memory of large uploads and of rendering',
  about:
    'The most that the API has resident (VmHWM) during an upload of 1 GB, and during eight of 128 MB at once, less what it has resident before them, raw and as a form. ' +
    'No worker runs meanwhile. The most that one render child ever has resident over the pictures of the benchmarks without AVIF, one after the other.',
  rounds: 3,
  missing: missingPictures,
  async open(_scope, { quick, say }) {
    const set = (await pictures(say)).filter(({ contentType }) => contentType !== 'image/avif');
    const loads = quick ? loadsOf(64, 8) : loadsOf(1024, 128);
    return {
      sides: [
        { name: api, run: () => withScope((scope) => runUploads(scope, loads)) },
        { name: child, run: () => withScope((scope) => runRender(scope, quick ? set.slice(0, quickPictures) : set)) },
      ],
      ratios: [],
      bounds: [
        bound('API beyond idle: 1 GB, raw', api, 'oneMiB', 40),
        bound('API beyond idle: 1 GB, multipart', api, 'oneFormMiB', 40),
        bound('API beyond idle: 8 × 128 MB, raw', api, 'eightMiB', 128),
        bound('API beyond idle: 8 × 128 MB, multipart', api, 'eightFormMiB', 128),
        bound('API: idle', api, 'idleMiB'),
        bound('Render child: pictures without AVIF', child, 'peakMiB', 350),
      ],
    };
  },
};

/* ------------------------------------------------------------------- uploads */

async function runUploads(scope: Scope, loads: readonly Load[]): Promise<Figures> {
  const product = await openProduct(scope, {
    roles: [['api', 'relay', 'janitor']],
    settings: { MAX_UPLOAD_BYTES: '1100MiB', MAX_STAGING_BYTES: '20GiB' },
  });
  const user = await product.user();
  const figures: Record<string, number> = {};
  for (const load of loads) Object.assign(figures, await measure(product, user, load));
  return figures;
}

async function measure(product: Product, user: BenchUser, load: Load): Promise<Figures> {
  await product.kill('api');
  await product.start('api');
  // Code and connections that every upload needs are part of being idle.
  for (let sent = 0; sent < 10; sent += 1) await send(product.url, user.token, { ...load, mebibytes: 1 });
  await product.untilCalm();
  const pid = product.processes.api;
  await resetPeak(pid);
  const idleMiB = await residentMiBOfProcess(pid);
  await Promise.all(Array.from({ length: load.count }, () => send(product.url, user.token, load)));
  return { [load.figure]: (await peakMiBOf(pid)) - idleMiB, idleMiB };
}

/** Sends bytes that are no picture, as fast as the server takes them, from one buffer. Rejects unless they are accepted. */
async function send(url: string, token: string, { mebibytes, form }: Pick<Load, 'mebibytes' | 'form'>): Promise<void> {
  const chunk = randomBytes(mebi);
  const boundary = randomBytes(12).toString('hex');
  const disposition = 'Content-Disposition: form-data; name="file"; filename="large.bin"';
  const head = form ? `--${boundary}\r\n${disposition}\r\nContent-Type: application/octet-stream\r\n\r\n` : '';
  const tail = form ? `\r\n--${boundary}--\r\n` : '';
  const sending = request(new URL('/v1/attachments', url), {
    method: 'POST',
    agent: new Agent({ keepAlive: false }),
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': form ? `multipart/form-data; boundary=${boundary}` : 'application/octet-stream',
      'content-length': mebibytes * mebi + head.length + tail.length,
    },
  });
  const answered = once(sending, 'response');
  answered.catch(() => undefined);
  sending.write(head);
  for (let sent = 0; sent < mebibytes; sent += 1) {
    if (!sending.write(chunk)) await Promise.race([once(sending, 'drain'), answered]);
  }
  sending.end(tail);
  const [response] = (await answered) as [IncomingMessage];
  response.resume();
  await once(response, 'end');
  if (response.statusCode !== 202)
    throw new Error(`Expected 202 for ${mebibytes} MiB, received ${response.statusCode}`);
}

/* -------------------------------------------------------------------- render */

/** As the product has them by default. */
const limits = { pixelsMax: 50_000_000, pixelsMaxAvif: 16_000_000, framesMax: 500, scansMax: 64 };

async function runRender(scope: Scope, set: readonly Picture[]): Promise<Figures> {
  const recipe = recipes.get(newestVersion);
  if (!recipe) throw new Error(`Expected recipe ${newestVersion}, found none`);
  const outputDir = await mkdtemp(path.join(tmpdir(), 'skrepka-bench-'));
  onEnd(scope, () => rm(outputDir, { recursive: true, force: true }));
  const script = new URL('../../src/drivers/images-child.ts', import.meta.url);
  const settings = { memoryBytes: 600 * mebi, bareBytes: await bareDataBytes(), niceness: 10, startMs: 30_000 };
  const rendering = startChild({ script, ...settings });
  onEnd(scope, async () => {
    rendering.kill();
    await rendering.ended;
  });
  if (!(await rendering.ready)) throw new Error(`The render child did not start: ${(await rendering.ended).log}`);
  for (const [at, { name, contentType, path: sourcePath }] of set.entries()) {
    const answer = await rendering.ask({ id: at + 1, sourcePath, outputDir, contentType, recipe, limits });
    if (answer?.kind !== 'done') throw new Error(`Expected a rendering of ${name}, received ${answer?.kind ?? 'none'}`);
  }
  return { peakMiB: await peakMiBOf(rendering.pid ?? 0) };
}
