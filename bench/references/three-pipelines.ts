/**
 * What most services do: a sharp pipeline from the file for each variant, each decoding it anew. The outputs are those of ours, in the
 * same sizes and with the same settings of the encoders; neither a placeholder nor digests nor a look at the header is asked of it.
 */
import sharp from 'sharp';
import { type ChildVariant, type Job, variantPath } from '../../src/drivers/images-protocol.ts';
import type { VariantRule } from '../../src/pipeline/recipe.ts';

/** As ours: the cheapest there is on a machine whose cores all render. */
sharp.concurrency(1);

process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
process.on('message', async (job: Job) => {
  const variants: Omit<ChildVariant, 'sha256'>[] = [];
  for (const rule of job.recipe.variants) variants.push(await makeVariant(job, rule));
  // What only ours tells is filled in: the parent takes no other answer.
  const filled = variants.map((variant) => ({ ...variant, sha256: '0'.repeat(64) }));
  const rendering = { width: 1, height: 1, frames: 1, placeholder: 'none', variants: filled };
  process.send?.({ kind: 'done', id: job.id, rssBytes: 0, rendering });
});
process.send?.({ kind: 'ready' });

/**
 * Orientation comes after the resize, where sharp keeps its shrink-on-load. The other way round, as most write it, a turned JPEG is
 * turned at full size, and ours would look better than it is. All boxes are square, so that the result is the same.
 */
async function makeVariant(job: Job, rule: VariantRule): Promise<Omit<ChildVariant, 'sha256'>> {
  const moves = rule.format === 'webp' && (job.contentType === 'image/gif' || job.contentType === 'image/webp');
  const fitted = sharp(job.sourcePath, { animated: moves })
    .resize(rule.box.width, rule.box.height, { fit: rule.fit, withoutEnlargement: rule.fit === 'inside' })
    .autoOrient();
  const encoded =
    rule.format === 'jpeg'
      ? fitted.flatten({ background: '#ffffff' }).jpeg({ quality: rule.quality, mozjpeg: rule.mozjpeg })
      : fitted.webp({ quality: rule.quality, effort: rule.effort });
  const { width, height, pageHeight = height, size } = await encoded.toFile(variantPath(job.outputDir, rule));
  return { width, height: pageHeight, size };
}
