/** Starts one PostgreSQL for a whole run of `node --test --test-global-setup=tests/support/global-setup.ts`. */
import { startServer, type TestServer } from './server.ts';

let server: TestServer | null = null;

export async function globalSetup(): Promise<void> {
  server = await startServer();
  // The test processes inherit it; `postgres.ts` reads it.
  process.env.SKREPKA_TEST_POSTGRES = server.url;
}

export async function globalTeardown(): Promise<void> {
  await server?.stop();
}
