/**
 * The health check of an API in a container: exit code 0 when it is ready for work, 1 when it is not or does not answer.
 *
 * Plain JavaScript, without a dependency, because it runs every few seconds. `node deploy/health.mjs live` asks whether
 * the process answers at all: for orchestrators that kill what is unhealthy.
 */
const question = process.argv[2] === 'live' ? 'live' : 'ready';
const url = `http://127.0.0.1:${process.env.PORT || 8080}/health/${question}`;

try {
  const answer = await fetch(url, { signal: AbortSignal.timeout(4000) });
  console.log(await answer.text());
  process.exitCode = answer.ok ? 0 : 1;
} catch (error) {
  console.log(`No answer from ${url}: ${error.cause?.code ?? error.message}`);
  process.exitCode = 1;
}
