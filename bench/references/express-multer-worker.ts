/**
 * The worker of the service that tutorials build: a BullMQ Worker that works on as many pictures at once as there are cores, makes
 * each variant by a sharp pipeline of its own from the file, and records the result.
 *
 * The variants are ours, the settings of their encoders ours or sharp's; sharp keeps its own number of threads. Started with an IPC channel; hears a
 * `Ground`, tells `{ url: null }` when it takes jobs, and ends with its parent.
 */
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { Worker } from 'bullmq';
import sharp, { type Sharp } from 'sharp';
import { newestVersion, recipes, type VariantRule } from '../../src/pipeline/recipe.ts';
import { connect } from './bullmq.ts';
import { hearGround, type ImageJob, queueName } from './express-multer-images.ts';
import { openPool, recordResult } from './uploads.ts';

const rules = recipes.get(newestVersion)?.variants ?? [];
const ground = await hearGround();
const pool = openPool(ground.databaseUrl, 10);
const worker = new Worker<ImageJob>(
  queueName,
  async ({ data }) => {
    const variants = await Promise.all(rules.map((rule) => makeVariant(data, rule)));
    await pool.query({ name: 'record', text: recordResult, values: [data.id, JSON.stringify(variants)] });
  },
  { connection: connect(ground.redisUrl), concurrency: availableParallelism() },
);
worker.on('error', () => {});
await worker.waitUntilReady();
process.send?.({ url: null });
process.once('disconnect', () => process.exit(0));

async function makeVariant(job: ImageJob, rule: VariantRule) {
  const moves = rule.format === 'webp' && (job.contentType === 'image/gif' || job.contentType === 'image/webp');
  const source = sharp(job.path, { animated: moves });
  const size = { width: rule.box.width, height: rule.box.height };
  const how = { fit: rule.fit, withoutEnlargement: rule.fit === 'inside' };
  const encoded =
    ground.encoders === 'ours'
      ? tuned(source.resize({ ...size, ...how }), rule)
      : plain(source.rotate().resize({ ...size, ...how }), rule);
  const file = path.join(ground.dir, `${job.id}-${rule.name}.${rule.format}`);
  const made = await encoded.toFile(file);
  return { name: rule.name, file, width: made.width, height: made.height, size: made.size };
}

/** Orientation comes after the resize, where sharp keeps its shrink-on-load; all boxes are square, so the result is the same. */
function tuned(fitted: Sharp, rule: VariantRule): Sharp {
  const upright = fitted.autoOrient();
  return rule.format === 'jpeg'
    ? upright.flatten({ background: '#ffffff' }).jpeg({ quality: rule.quality, mozjpeg: rule.mozjpeg })
    : upright.webp({ quality: rule.quality, effort: rule.effort });
}

/** Turned first, as most write it; sharp chooses what is not said. */
function plain(fitted: Sharp, { format, quality }: VariantRule): Sharp {
  return format === 'jpeg' ? fitted.jpeg({ quality }) : fitted.webp({ quality });
}
