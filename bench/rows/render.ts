/** What a picture costs from upload to ready, beside a bare loop that renders the same files with the same settings. */
import { availableParallelism } from 'node:os';
import { missingPictures, oneOfEach, type Picture, pictures } from '../pictures.ts';
import { type BenchUser, openProduct, type Product } from '../product.ts';
import { openRenderers, type Renderers, scripts } from '../renderers.ts';
import type { Figures, Row } from '../row.ts';
import { cpuMsOf } from '../usage.ts';

const ours = 'Skrepka';
const bare = 'bare loop';
/** Uploads on the way at once: enough that the workers never wait for one. */
const uploadsAtOnce = 4;

export const row: Row = {
  name: 'render',
  title: 'Pictures from upload to ready',
  about:
    '40 mixed pictures of real photographs, uploaded over HTTP by a client that is not counted, until all are ready, against as many bare Node ' +
    'processes as there are cores: the same decode, variants, digests and placeholder, the same niceness, memory limit and settings of sharp, from ' +
    'files on disk to files on disk, without fsync. CPU is that of all our processes and PostgreSQL until they are calm again.',
  rounds: 5,
  missing: missingPictures,
  async open(scope, { quick, say }) {
    const mix = await pictures(say);
    const work = quick ? mix.slice(0, 10) : [...mix, ...mix];
    const warmUp = oneOfEach(mix);
    const product = await openProduct(scope);
    const user = await product.user();
    // Three times: code that ran once is not warm yet, and there are several render children.
    await uploadAll(user, [...warmUp, ...warmUp, ...warmUp]);
    const loop = await openRenderers(scope, { script: scripts.bare, count: availableParallelism() }, warmUp);
    return {
      sides: [
        { name: bare, run: () => runBare(loop, work) },
        { name: ours, run: () => runOurs(product, user, work) },
      ],
      ratios: [
        { name: 'CPU a picture', ours, reference: bare, figure: 'cpuMs', goal: { atMost: 1.07 }, kind: 'cpu' },
        {
          name: 'ready pictures a second',
          ours,
          reference: bare,
          figure: 'perSecond',
          goal: { atLeast: 0.95 },
          kind: 'wall',
        },
      ],
      bounds: [
        { name: 'CPU of the API a picture', side: ours, figure: 'apiCpuMs', unit: 'ms' },
        { name: 'CPU of PostgreSQL a picture', side: ours, figure: 'postgresCpuMs', unit: 'ms' },
        { name: 'CPU of the worker and its children a picture', side: ours, figure: 'workerCpuMs', unit: 'ms' },
      ],
    };
  },
};

async function runBare(loop: Renderers, work: readonly Picture[]): Promise<Figures> {
  const cpuBefore = await loop.cpuMs();
  const startMs = performance.now();
  await loop.renderAll(work);
  const tookMs = performance.now() - startMs;
  const cpuMs = (await loop.cpuMs()) - cpuBefore;
  return { perSecond: (1000 * work.length) / tookMs, cpuMs: cpuMs / work.length };
}

async function runOurs(product: Product, user: BenchUser, work: readonly Picture[]): Promise<Figures> {
  await product.untilCalm();
  const before = await spent(product);
  const startMs = performance.now();
  await uploadAll(user, work);
  const tookMs = performance.now() - startMs;
  // What is done after a picture is ready is a part of what it costs.
  await product.untilCalm();
  const after = await spent(product);
  const each = (name: keyof typeof before) => (after[name] - before[name]) / work.length;
  return {
    perSecond: (1000 * work.length) / tookMs,
    cpuMs: each('all'),
    apiCpuMs: each('api'),
    postgresCpuMs: each('postgres'),
    workerCpuMs: each('workers'),
  };
}

async function spent({ roots, processes: { api, postgres, workers } }: Product) {
  return {
    all: await cpuMsOf(roots),
    api: await cpuMsOf([api]),
    postgres: await cpuMsOf([postgres]),
    workers: await cpuMsOf(workers),
  };
}

/** Resolves when all are ready. Throws when one is refused or fails. */
async function uploadAll(user: BenchUser, work: readonly Picture[]): Promise<void> {
  const left = [...work];
  const ids: string[] = [];
  const client = async () => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      const { status, id } = await user.upload(next.bytes, { contentType: next.contentType, fileName: next.name });
      if (status !== 202) throw new Error(`Expected 202 for ${next.name}, received ${status}`);
      ids.push(id);
    }
  };
  await Promise.all(Array.from({ length: uploadsAtOnce }, client));
  await user.untilReady(ids);
}
