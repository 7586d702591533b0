/** What worker tests share: painters that fail or wait, messages by hand, and questions about what an attempt left. */
import { type Code, SkrepkaError } from '../../src/errors.ts';
import { newId } from '../../src/ids.ts';
import { encodeRing, ringId } from '../../src/pipeline/job.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { type createPipeline, quick } from './pipeline.ts';
import { createPainter } from './ports-fake.ts';
import { until } from './until.ts';

export type Pipeline = Awaited<ReturnType<typeof createPipeline>>;

export const lost = () => new StoreError('unknown', 'the connection broke');
export const away = () => new StoreError('unavailable', 'away');
export const failing = (code: Code) =>
  createPainter(async () => {
    throw new SkrepkaError(code);
  });
/** A painter that waits for `go` or the signal. */
export function waiting() {
  let go = () => {};
  const gate = new Promise<void>((resolve) => {
    go = resolve;
  });
  const painter = createPainter((signal) =>
    Promise.race([
      gate,
      new Promise<void>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true })),
    ]),
  );
  return { painter, go };
}

export async function ring(p: Pipeline, attachmentId: string, times = 1) {
  const job = await p.jobOf(attachmentId);
  for (let i = 1; i <= times; i += 1) {
    const message = { jobId: job.id as string, ring: 1000 + i, traceparent: null };
    await p.memory.publish(ringId(message), encodeRing(message), { timeoutMs: 1000 });
  }
  return job;
}

export const settles = async (p: Pipeline) =>
  (await p.pool.query(`select 1 from job_events where to_state = 'succeeded'`)).rowCount;
export const drained = (p: Pipeline) =>
  until('the broker holds nothing', async () => {
    const { waiting: w, inFlight } = await p.memory.depth();
    return w + inFlight === 0;
  });

/** A claim as a worker that is about to die makes it. */
export const deadClaim = (
  jobId: string,
  leaseMs: number,
  budgets: { attemptsMax: number; crashesMax: number } = quick,
) => ({
  jobId,
  attemptId: newId(),
  worker: 'dead',
  leaseMs,
  marginMs: 0,
  versions: [1],
  budgets,
  graceMs: 50,
  unsupportedMs: 1000,
});
