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
    return { kind: 'done', id: job.id, rssBytes: restingBytes(), rendering };
  } catch (error) {
    const code = codeOf(error);
    return {
      kind: 'refused',
      id: job.id,
      rssBytes: restingBytes(),
      code: isRefusal(code) ? code : 'internal',
      log: describe(error),
    };
  }
}

/** Resident memory after the working pixels were given back (3 ms); without the collection they linger for many renders. */
function restingBytes(): number {
  globalThis.gc?.();
  return process.memoryUsage.rss();
}

function tell(message: ChildMessage): void {
  process.send?.(message);
}
