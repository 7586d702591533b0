/**
 * A render child that does what the source's file name says, or the last bytes of the source: hangs, crashes, swells, lies.
 * Everything else it renders, so that a test can see the next picture succeed.
 */
import { pbkdf2 } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import type { ChildRendering, Job } from '../../src/drivers/images-protocol.ts';
import { renderPicture } from '../../src/drivers/images-render.ts';
import { serveRenders } from '../../src/drivers/images-serve.ts';

/** Leaves a file named `started` in the output folder, so that a test knows, and never ends. */
function never(job: Job): Promise<ChildRendering> {
  writeFileSync(join(job.outputDir, 'started'), '');
  return new Promise(() => {});
}

const misdeeds: Readonly<Record<string, (job: Job) => Promise<ChildRendering>>> = {
  hang: never,
  /** Inside a thread of the pool, where a codec would be: nothing but a kill ends it. */
  busy(job) {
    pbkdf2('password', 'salt', 1e9, 64, 'sha512', () => {});
    return never(job);
  },
  segfault(job) {
    process.kill(process.pid, 'SIGSEGV');
    return never(job);
  },
  abort: () => process.abort(),
  leave: () => process.exit(3),
  /** What the kernel's out-of-memory killer does. */
  killed(job) {
    process.kill(process.pid, 'SIGKILL');
    return never(job);
  },
  async swell() {
    const held: number[][] = [];
    while (true) held.push(new Array(1_000_000).fill(held.length + 0.5));
  },
  async lie(job) {
    const rendering = await renderPicture(job);
    return { ...rendering, variants: rendering.variants.slice(1) };
  },
  async babble(job) {
    process.send?.({ kind: 'done', id: 'x', nonsense: true });
    return never(job);
  },
};

serveRenders((job) => {
  const byName = misdeeds[basename(job.sourcePath).split('-')[0] ?? ''];
  return (byName ?? misdeeds[misdeedIn(job.sourcePath)] ?? renderPicture)(job);
});

/** What `misled` put behind a picture. */
function misdeedIn(sourcePath: string): string {
  return /misdeed:(\w+)$/.exec(readFileSync(sourcePath).toString('latin1').slice(-30))?.[1] ?? '';
}
