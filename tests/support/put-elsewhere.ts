/** A put in another process, which `blobs-put-child.ts` makes: for suites that kill it on its way. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { RunningPut } from '../contract/blobs.ts';
import type { PutTask } from './blobs-put-child.ts';

/** Starts the process; it is the caller's to kill. */
export function putInChild(task: PutTask): RunningPut {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'blobs-put-child.ts'), JSON.stringify(task)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const gone = once(child, 'exit');
  let said = '';
  let waiting: { position: number; resolve: () => void }[] = [];
  const positionOf = () => Math.max(-1, ...[...said.matchAll(/^at (\d+)$/gm)].map(([, at]) => Number(at)));
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    said += text;
    waiting = waiting.filter(({ position, resolve }) => positionOf() < position || resolve());
  });
  return {
    async asked(position) {
      if (positionOf() >= position) return;
      const reached = new Promise<void>((resolve) => waiting.push({ position, resolve }));
      await Promise.race([reached, gone.then(() => assert.fail('the putting process ended by itself'))]);
    },
    async kill() {
      child.kill('SIGKILL');
      await gone;
      return { resolved: said.includes('done\n') };
    },
  };
}
