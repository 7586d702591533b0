/**
 * The loop of a render child: one job at a time over IPC, an answer each, and an end as soon as the parent is gone.
 */
import { codeOf, describe } from '../errors.ts';
import { type ChildMessage, type ChildRendering, isRefusal, type Job } from './images-protocol.ts';

/** Serves renders until the parent disconnects. `render` throws `SkrepkaError`s; any other error is `internal`. */
export function serveRenders(render: (job: Job) => Promise<ChildRendering>): void {
  // Ctrl-C reaches the whole process group, but a drain lets the render in hand finish: the parent decides.
  process.on('SIGINT', () => {});
  process.on('SIGTERM', () => {});
  // SIGKILL, because an orderly exit waits for the thread that is inside a codec.
  process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  process.on('message', (job: Job) => {
    void answer(job, render).then(tell);
  });
  tell({ kind: 'ready' });
}

async function answer(job: Job, render: (job: Job) => Promise<ChildRendering>): Promise<ChildMessage> {
  try {
    const rendering = await render(job);
    return { kind: 'done', id: job.id, rssBytes: await restingBytes(), rendering };
  } catch (error) {
    const code = codeOf(error);
    return {
      kind: 'refused',
      id: job.id,
      rssBytes: await restingBytes(),
      code: isRefusal(code) ? code : 'internal',
      log: describe(error),
    };
  }
}

/** How far memory may grow before it is collected. A collection costs up to 10 ms, a small picture 30. */
const growthBytesMax = 32 * 1024 * 1024;
/** Least since the last collection. What that one could not free is no reason for another. */
let leastBytes = process.memoryUsage.rss();

/**
 * Resident memory after the pixels were given back. V8 does not see them in its books: left to it, 100 MB of an animation
 * stayed for all renders after it. They are freed one turn of the event loop after the collection that found them, and
 * some are found by the second only.
 */
async function restingBytes(): Promise<number> {
  let bytes = process.memoryUsage.rss();
  const grown = () => bytes - leastBytes > growthBytesMax;
  if (grown()) {
    for (let round = 0; round < 3 && grown(); round += 1) {
      globalThis.gc?.();
      await new Promise((resolve) => setImmediate(resolve));
      bytes = process.memoryUsage.rss();
    }
    leastBytes = bytes;
  }
  leastBytes = Math.min(leastBytes, bytes);
  return bytes;
}

function tell(message: ChildMessage): void {
  process.send?.(message);
}
