/** The whole service, from the upload to three variants, beside the one that tutorials build: pace, answers under load, cost. */
import { availableParallelism } from 'node:os';
import { available, installCommand } from '../../tests/support/engines/valkey.ts';
import { until } from '../../tests/support/until.ts';
import { sendAll } from '../arrivals.ts';
import { missingPictures, type Picture, pictures } from '../pictures.ts';
import { openProduct } from '../product.ts';
import { once } from '../references/uploads.ts';
import type { Figures, Row } from '../row.ts';
import { openTutorial, type Tutorial } from '../tutorial.ts';
import { cpuMsOf, percentile } from '../usage.ts';

const ours = 'Skrepka';
const tutorial = 'Express, multer, BullMQ, sharp';
const plain = 'the same with sharp left to itself';
/** More than the cores can render, so that every worker is busy from the first second to the last picture. */
const everyMs = 1000 / (8 * availableParallelism());

export const row: Row = {
  name: 'whole',
  title: 'The whole service: pictures made ready per second, and answers under load',
  about:
    'Mixed pictures sent as forms, eight a second and core, until all are ready: the product as it is shipped against Express 5, multer to disk, BullMQ on ' +
    'Redis and a worker with one job a core that makes the same three variants with the same settings by three sharp pipelines from the file. ' +
    'It runs once with our settings of the encoders, for which the goals are, and once as tutorials write it, with qualities alone, which is told. ' +
    'Theirs has no accounts, limits, digests, checks of what was stored, or fsync of files; its Redis has an append-only file flushed every second.',
  rounds: 5,
  missing: () => missingPictures() ?? (available() ? null : installCommand),
  async open(scope, { quick, say }) {
    const mix = await pictures(say);
    const work = quick ? mix.slice(0, 12) : [...mix, ...mix];
    const product = await openProduct(scope);
    const user = await product.user();
    const sides: { readonly [name: string]: Service } = {
      [tutorial]: serviceOf(await openTutorial(scope)),
      [plain]: serviceOf(await openTutorial(scope, { encoders: 'plain' })),
      [ours]: {
        databaseUrl: product.databaseUrl,
        table: 'attachments',
        roots: () => product.roots,
        async upload({ bytes, contentType, name }) {
          const { id } = await user.upload(bytes, { contentType, fileName: name, multipart: true });
          return id || null;
        },
      },
    };
    for (const side of Object.values(sides)) await serve(side, mix.slice(0, 4));
    const compared = { ours, reference: tutorial } as const;
    const comparedPlain = { ours, reference: plain } as const;
    return {
      sides: Object.entries(sides).map(([name, side]) => ({ name, run: () => serve(side, work) })),
      ratios: [
        { ...compared, name: 'pictures ready per second', figure: 'perSecond', goal: { atLeast: 1.4 }, kind: 'wall' },
        { ...compared, name: 'p95 of the answer under load', figure: 'p95Ms', goal: { atMost: 0.2 }, kind: 'wall' },
        { ...compared, name: 'p50 of the answer under load', figure: 'p50Ms', kind: 'wall' },
        { ...compared, name: 'CPU per picture, servers included', figure: 'cpuMs', kind: 'cpu' },
        {
          ...comparedPlain,
          name: 'pictures ready per second, sharp left to itself',
          figure: 'perSecond',
          kind: 'wall',
        },
        { ...comparedPlain, name: 'CPU per picture, sharp left to itself', figure: 'cpuMs', kind: 'cpu' },
      ],
      bounds: [],
    };
  },
};

interface Service {
  readonly databaseUrl: string;
  /** Where its uploads are recorded, with a `state`. */
  readonly table: 'uploads' | 'attachments';
  roots(): readonly number[];
  upload(picture: Picture): Promise<string | null>;
}

function serviceOf(theirs: Tutorial): Service {
  return { databaseUrl: theirs.databaseUrl, table: 'uploads', roots: () => theirs.roots, upload: theirs.upload };
}

async function serve(service: Service, work: readonly Picture[]): Promise<Figures> {
  const before = { cpuMs: await cpuMsOf(service.roots()), ready: await countReady(service), atMs: performance.now() };
  const answers = await sendAll(work, everyMs, service.upload);
  const refused = answers.filter(({ id }) => id === null).length;
  if (refused > 0) throw new Error(`Expected 202 for every picture, ${refused} of ${work.length} were not answered so`);
  await until('all pictures are ready', async () => (await countReady(service)) === before.ready + work.length, {
    deadlineMs: 300_000,
    everyMs: 50,
  });
  const wallMs = performance.now() - before.atMs;
  const times = answers.map(({ answerMs }) => answerMs).sort((one, other) => one - other);
  return {
    perSecond: (1000 * work.length) / wallMs,
    p50Ms: percentile(times, 50),
    p95Ms: percentile(times, 95),
    cpuMs: ((await cpuMsOf(service.roots())) - before.cpuMs) / work.length,
  };
}

function countReady({ databaseUrl, table }: Service): Promise<number> {
  return once(databaseUrl, async (client) => {
    const { rows } = await client.query<{ ready: number }>(
      `select count(*)::int as ready from ${table} where state = 'ready'`,
    );
    return rows[0]?.ready ?? 0;
  });
}
