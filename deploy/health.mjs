/**
 * The health check of a container: exit code 0 when its process is well, 1 when it is not or does not answer.
 *
 * Plain JavaScript, without a dependency, because it runs every few seconds. Without a word it asks an API whether it is ready
 * for work; `live` asks whether it answers at all: for orchestrators that kill what is unhealthy; `role` asks the same of
 * a process without the API, on METRICS_PORT.
 */
const { PORT = '8080', METRICS_PORT = '9464' } = process.env;
const questions = { ready: [PORT, 'ready'], live: [PORT, 'live'], role: [METRICS_PORT, 'live'] };
const [port, question] = questions[process.argv[2] ?? 'ready'] ?? questions.ready;
const url = `http://127.0.0.1:${port}/health/${question}`;

try {
  const answer = await fetch(url, { signal: AbortSignal.timeout(4000) });
  console.log(await answer.text());
  process.exitCode = answer.ok ? 0 : 1;
} catch (error) {
  console.log(`No answer from ${url}: ${error.cause?.code ?? error.message}`);
  process.exitCode = 1;
}
