/** Time on the processor of rendering, by how the picture is stored: the render child of ours and three sharp pipelines from the file. */
import { type Kind, kinds } from '../picture-mix.ts';
import { missingPictures, oneOfEach, type Picture, pictures } from '../pictures.ts';
import { openRenderers, scripts } from '../renderers.ts';
import type { Figures, Ratio, Row } from '../row.ts';
import { withScope } from '../scope.ts';

const ours = 'Skrepka';
const three = 'three pipelines';

const words: Readonly<Record<Kind, string>> = {
  jpeg: 'JPEG',
  'jpeg-progressive': 'progressive JPEG',
  'jpeg-icc': 'JPEG with a profile',
  png: 'PNG',
  webp: 'WebP',
  avif: 'AVIF',
  animated: 'animated GIF and WebP',
};

export const row: Row = {
  name: 'formats',
  title: 'CPU of rendering, by format',
  about:
    'A render child of ours against a process with a sharp pipeline from the file for each variant: same files, sizes, encoder settings, niceness, ' +
    'memory limit and threads, one picture at a time. Ours makes a placeholder and digests besides, and looks for bombs before it decodes; ' +
    'the pipelines turn after they resize, which is the cheaper order.',
  rounds: 5,
  missing: missingPictures,
  async open(_scope, { quick, say }) {
    const mix = await pictures(say);
    const passes = quick ? 1 : 2;
    const work = new Map(kinds.map((kind) => [kind, mix.filter((one) => one.kind === kind).slice(0, quick ? 1 : 40)]));
    const warmUp = oneOfEach(mix);
    return {
      sides: [
        { name: three, run: () => measure(scripts.three, work, warmUp, passes) },
        { name: ours, run: () => measure(scripts.child, work, warmUp, passes) },
      ],
      ratios: [
        ratio('the mixed set', 'mixedCpuMs', 0.7),
        ...kinds.map((kind) => ratio(words[kind], figureOf(kind), 1)),
      ],
      bounds: [],
    };
  },
};

function figureOf(kind: Kind): string {
  return `${kind.replace(/-(.)/, (_, letter: string) => letter.toUpperCase())}CpuMs`;
}

function ratio(name: string, figure: string, atMost: number): Ratio {
  return { name, ours, reference: three, figure, goal: { atMost }, kind: 'cpu' };
}

/** Milliseconds a picture: of each kind, and of the mix as it is composed. A new process each time, warmed by one of each kind. */
async function measure(
  script: URL,
  work: ReadonlyMap<Kind, readonly Picture[]>,
  warmUp: readonly Picture[],
  passes: number,
): Promise<Figures> {
  return await withScope(async (scope) => {
    const process_ = await openRenderers(scope, { script, count: 1 }, warmUp);
    const figures: Record<string, number> = {};
    let [allMs, count] = [0, 0];
    for (const [kind, some] of work) {
      const beforeMs = await process_.cpuMs();
      for (let pass = 0; pass < passes; pass += 1) await process_.renderAll(some);
      const spentMs = (await process_.cpuMs()) - beforeMs;
      figures[figureOf(kind)] = spentMs / some.length / passes;
      allMs += spentMs;
      count += some.length * passes;
    }
    figures.mixedCpuMs = allMs / count;
    return figures;
  });
}
