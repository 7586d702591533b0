/** A verb of the command line as a process for tests: run to its end, its words, its code. */
import { execFile } from 'node:child_process';
import path from 'node:path';

const root = path.resolve(import.meta.dirname, '../..');

export interface Said {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs `skrepka <words>` with `settings` on top of this process's environment; without DATABASE_URL unless they name one. */
export async function skrepka(
  words: readonly string[],
  settings: Readonly<Record<string, string>> = {},
): Promise<Said> {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: '', ...settings };
  return await new Promise((resolve) => {
    execFile(process.execPath, ['src/main.ts', ...words], { cwd: root, env }, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, stdout, stderr });
    });
  });
}
