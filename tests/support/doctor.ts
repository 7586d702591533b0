/** What tests of doctor and strays share: a doctor for whom everything is old, objects that nobody names, and damage on request. */
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { newId } from '../../src/ids.ts';
import { attemptPrefix } from '../../src/pipeline/attachment.ts';
import { createDoctor, type Report } from '../../src/pipeline/doctor.ts';
import { chunks, type createPipeline } from './pipeline.ts';
import { createPainter, silent } from './ports-fake.ts';

export type Pipeline = Awaited<ReturnType<typeof createPipeline>>;

const dayMs = 86_400_000;

/** A doctor whose clock is `aheadMs` ahead: what was just written is that old to it. */
export function doctorOf(p: Pipeline, { aheadMs = 2 * dayMs, blobs = p.blobs.port } = {}) {
  const clock = {
    ...p.clock,
    wallMs: () => p.clock.wallMs() + aheadMs,
    sleep: (ms: number, signal?: AbortSignal) => p.clock.sleep(Math.min(ms, 10), signal),
  };
  const doctor = createDoctor({ store: p.store.port, blobs, clock, log: silent }, { ...p.settings, orphanMs: dayMs });
  const never = new AbortController().signal;
  return {
    ...doctor,
    examined: (options: { repair?: boolean; deep?: boolean } = {}): Promise<Report> =>
      doctor.examine({ repair: false, deep: false, who: 'operator', ...options }, never),
    swept: (options: { dryRun?: boolean } = {}) => doctor.sweep({ dryRun: false, ...options }, never),
  };
}

/** Kind, title of the detail and remedy of each finding, sorted: what most tests compare. */
export const told = (report: Report) =>
  report.findings.map(({ kind, detail, repair }) => `${kind} ${detail.split(':')[0]} ${repair}`).sort();

/** A key that an attempt of this attachment could have left. */
export const leftKey = (attachmentId: string, name = 'thumbnail.jpg') =>
  `${attemptPrefix(attachmentId, 1, 99, newId())}${name}`;

export async function plant(p: Pipeline, key: string, text = 'left'): Promise<string> {
  await p.blobs.port.put(key, chunks(text));
  return key;
}

/** An object whose name no driver would take from us: of somebody else. */
export async function plantStranger(p: Pipeline, key: string): Promise<string> {
  await mkdir(dirname(pathOf(p, key)), { recursive: true });
  await writeFile(pathOf(p, key), 'left');
  return key;
}

const pathOf = (p: Pipeline, key: string) => join(p.dir, 'objects', key);

/** Removes the file behind a key, as a broken disk would. */
export const lose = (p: Pipeline, key: string) => rm(pathOf(p, key));

/** Other bytes: as many as before, or fewer. */
export async function damage(p: Pipeline, key: string, how: 'flipped' | 'cut'): Promise<void> {
  const bytes = await readFile(pathOf(p, key));
  // Another file: the object may share its inode with a copy.
  await rm(pathOf(p, key));
  await writeFile(pathOf(p, key), how === 'cut' ? bytes.subarray(1) : bytes.map((byte) => byte ^ 1));
}

/** Everything that a doctor could have written. Not the bells: the relay rings on meanwhile. */
export async function written(p: Pipeline): Promise<unknown> {
  const { rows } = await p.pool.query(`select
    (select json_agg(cleanups order by id) from cleanups) as cleanups,
    (select json_agg(jsonb_build_array(id, state, generation, rebuild, fence, updated_at) order by id) from jobs) as jobs,
    (select count(*) from job_events) as events`);
  return rows[0];
}

/** A painter with a gate: open at first; `close` answers how to open it again. An attempt that is broken off does not wait for it. */
export function gated() {
  let gate = Promise.resolve();
  const painter = createPainter((signal) =>
    Promise.race([
      gate,
      new Promise<void>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true })),
    ]),
  );
  return {
    painter,
    close(): () => void {
      const { promise, resolve } = Promise.withResolvers<void>();
      gate = promise;
      return resolve;
    },
  };
}

/** Uploads, and waits until all is published. Relay and worker go on. */
export async function publish(p: Pipeline, ...texts: string[]) {
  p.startRelay();
  p.startWorker();
  const uploads = [];
  for (const text of texts) uploads.push(await p.upload(text));
  const ready = [];
  for (const { attachment } of uploads) ready.push(await p.untilState(attachment.id, 'ready'));
  return ready;
}
