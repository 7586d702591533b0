/** A process that renders and is to be killed: prints one line when its children have loaded and one of them is busy. */
import { createSharpImages } from '../../src/drivers/images-sharp.ts';
import { recipes } from '../../src/pipeline/recipe.ts';
import { childrenOf, defaultLimits, hostileScript } from './images-scene.ts';
import { until } from './until.ts';

const silent = { debug() {}, info() {}, warn() {}, error() {} };
const images = createSharpImages(
  { log: silent },
  { children: 1, warmSpare: 1, niceness: 10, limits: defaultLimits, script: hostileScript },
);
const recipe = recipes.get(1);
const [sourcePath = '', outputDir = ''] = process.argv.slice(2);
if (recipe) {
  const good = { sourcePath, outputDir, contentType: 'image/png', recipe };
  await images.render(good, new AbortController().signal);
  void images.render({ ...good, sourcePath: sourcePath.replace(/[^/]+$/, 'busy-1') }, new AbortController().signal);
}
const pids = await until('both children run', async () => {
  const found = await childrenOf(process.pid);
  return found.length === 2 ? found : null;
});
console.log(pids.join(' '));
