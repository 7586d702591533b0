/** The one PostgreSQL of a test run, kept by a process of its own that cleans up when this one ends, however it ends. */
import { fork } from 'node:child_process';
import path from 'node:path';

export interface TestServer {
  /** Of the superuser, in its own database. */
  readonly url: string;
  /** Resolves when server and folder are gone. */
  stop(): Promise<void>;
}

/** Starts a throw-away PostgreSQL with the database `template_skrepka`, migrated. It does not keep this process alive. */
export async function startServer(): Promise<TestServer> {
  const keeper = fork(path.join(import.meta.dirname, 'keeper.ts'), {
    // Away from the terminal's Ctrl-C: the keeper outlives us by the time that cleaning up takes.
    detached: true,
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    execArgv: [],
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, NODE_OPTIONS: undefined },
  });
  const ended = new Promise<void>((resolve) => keeper.once('exit', () => resolve()));
  const url = await new Promise<string>((resolve, reject) => {
    keeper.once('error', reject);
    keeper.once('message', (message: { url?: string; error?: string }) => {
      if (message.url) resolve(message.url);
      else reject(new Error(`The PostgreSQL of the tests did not start: ${message.error}`));
    });
    ended.then(() => reject(new Error('The PostgreSQL of the tests did not start')));
  });
  keeper.unref();
  keeper.channel?.unref();
  return {
    url,
    async stop() {
      keeper.ref();
      if (keeper.connected) keeper.disconnect();
      await ended;
    },
  };
}
