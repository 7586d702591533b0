/** `npm run validate`: what is in the repository is valid, and whatever is broken in it is found. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { type Contract, readContract, validate } from '../../scripts/validate.ts';
import { newId, newTraceparent } from '../../src/ids.ts';
import { decodeRing, encodeRing } from '../../src/pipeline/job.ts';

type Parameter = { name: string };
type Json = Record<string, unknown>;
type Examples = { examples: { name: string; schema: string; value: Json }[] };
type Infrastructure = { components: (Json & { name: string; settings: Record<string, string> })[] };

const contract = await readContract();

/** The problems of the contract after one of its files was changed. */
async function problemsOf<T>(file: keyof Contract, change: (content: T) => void): Promise<readonly string[]> {
  const changed = structuredClone(contract) as Contract & Json;
  change(changed[file] as T);
  return (await validate(changed)).problems;
}

function exampleOf(content: Examples, name: string): Json {
  const value = content.examples.find((example) => example.name === name)?.value;
  assert.ok(value, `there is no example ${name}`);
  return value;
}

function component(content: Infrastructure, name: string) {
  const found = content.components.find((candidate) => candidate.name === name);
  assert.ok(found, `there is no component ${name}`);
  return found;
}

test('the documents of the contract are valid, and there is something in each', async () => {
  const { problems, operations, examples, components } = await validate(contract);
  assert.deepEqual(problems, []);
  assert.ok(operations > 20 && examples > 30 && components >= 7, `${operations}, ${examples}, ${components}`);
});

test('an OpenAPI document that breaks the specification is found', async () => {
  const broken = await problemsOf<Json>('openapi.json', (document) => {
    (document.paths as Json)['/v1/more'] = { get: { responses: 'none' } };
  });
  assert.match(broken.join('\n'), /^openapi\.json: /m);
  const bare = await problemsOf<Json>('openapi.json', (document) => {
    delete document.info;
  });
  assert.match(bare.join('\n'), /^openapi\.json: .*info/m);
});

test('an OpenAPI document of another version is found', async () => {
  const problems = await problemsOf<Json>('openapi.json', (document) => {
    document.openapi = '3.0.3';
  });
  assert.match(problems.join('\n'), /^openapi\.json: /m);
});

test('an example without a member, with a wrong one or with one that nobody knows is found', async () => {
  const missing = await problemsOf<Examples>('examples.json', (content) => {
    delete exampleOf(content, 'attachment-ready').sha256;
  });
  assert.match(missing.join('\n'), /^example attachment-ready: .*sha256/m);
  const wrong = await problemsOf<Examples>('examples.json', (content) => {
    exampleOf(content, 'attachment-queued').state = 'waiting';
  });
  assert.match(wrong.join('\n'), /^example attachment-queued: \/state /m);
  const unknown = await problemsOf<Examples>('examples.json', (content) => {
    exampleOf(content, 'message').subject = 'old';
  });
  assert.match(unknown.join('\n'), /^example message: .*subject/m);
});

test('an example with a malformed time is found', async () => {
  const problems = await problemsOf<Examples>('examples.json', (content) => {
    exampleOf(content, 'me').created_at = 'yesterday';
  });
  assert.match(problems.join('\n'), /^example me: \/created_at .*date-time/m);
});

test('an example whose schema is not there, and a second one of the same name, are found', async () => {
  const problems = await problemsOf<Examples>('examples.json', ({ examples }) => {
    const [first] = examples;
    assert.ok(first);
    examples.push({ ...first, schema: 'openapi.json#/components/schemas/Nobody' });
  });
  assert.match(problems.join('\n'), /Nobody/);
  assert.match(problems.join('\n'), new RegExp(`two examples named ${contractFirst()}`));
});

function contractFirst(): string {
  return (contract['examples.json'] as Examples).examples[0]?.name ?? '';
}

test('a schema of the API that no example shows is found', async () => {
  const problems = await problemsOf<Examples>('examples.json', (content) => {
    content.examples = content.examples.filter(({ schema }) => !schema.includes('~1chats'));
    content.examples = content.examples.filter(({ name }) => name !== 'chat');
  });
  assert.match(problems.join('\n'), /no example shows the schema Chat$/m);
});

test('an example of the broker’s message that is none is found', async () => {
  const problems = await problemsOf<Examples>('examples.json', (content) => {
    exampleOf(content, 'ring').ring = 0;
  });
  assert.match(problems.join('\n'), /^example ring: \/ring /m);
});

test('an infrastructure file that breaks its schema is found', async () => {
  const role = await problemsOf<Infrastructure>('infrastructure.json', (content) => {
    delete component(content, 'worker').without;
  });
  assert.match(role.join('\n'), /^infrastructure\.json: .*without/m);
  const engine = await problemsOf<Infrastructure>('infrastructure.json', (content) => {
    component(content, 'broker').password = 'secret';
  });
  assert.match(engine.join('\n'), /^infrastructure\.json: .*password/m);
});

test('a role that is missing, and an engine that is needed and not there, are found', async () => {
  const missing = await problemsOf<Infrastructure>('infrastructure.json', (content) => {
    content.components = content.components.filter(({ name }) => name !== 'janitor');
  });
  assert.match(missing.join('\n'), /expected the roles/);
  const needed = await problemsOf<Infrastructure>('infrastructure.json', (content) => {
    content.components = content.components.filter(({ name }) => name !== 'blobs');
  });
  assert.match(needed.join('\n'), /api needs blobs/);
});

test('a setting that is unknown, missing or has another default is found', async () => {
  const unknown = await problemsOf<Infrastructure>('infrastructure.json', (content) => {
    component(content, 'api').settings.COLOUR = 'blue';
  });
  assert.match(unknown.join('\n'), /api has COLOUR/);
  const missing = await problemsOf<Infrastructure>('infrastructure.json', (content) => {
    delete component(content, 'worker').settings.RENDER_TIMEOUT;
  });
  assert.match(missing.join('\n'), /no component has the setting RENDER_TIMEOUT/);
  const other = await problemsOf<Infrastructure>('infrastructure.json', (content) => {
    component(content, 'worker').settings.LEASE = '46s';
  });
  assert.match(other.join('\n'), /the default of LEASE is "45s", worker says "46s"/);
});

test('every request of examples/requests.http is an operation of the API, with parameters that it has', async () => {
  const { paths } = contract['openapi.json'] as { paths: Record<string, Record<string, { parameters?: Parameter[] }>> };
  const text = await readFile(new URL('../../examples/requests.http', import.meta.url), 'utf8');
  const requests = [...text.matchAll(/^(GET|POST|PUT|PATCH|DELETE) \{\{baseUrl\}\}(\/[^\s?]*)(?:\?(\S+))?$/gm)];
  assert.ok(requests.length > 20, `${requests.length} requests`);
  for (const [line, method = '', path = '', query = ''] of requests) {
    const steps = path.split('/');
    const fits = (template: string) => {
      const parts = template.split('/');
      return parts.length === steps.length && parts.every((part, at) => part.startsWith('{') || part === steps[at]);
    };
    const operation = Object.entries(paths).find(([template]) => fits(template))?.[1][method.toLowerCase()];
    assert.ok(operation, line);
    const known = new Set(operation.parameters?.map(({ name }) => name));
    for (const name of new URLSearchParams(query).keys()) assert.ok(known.has(name), `${line}: ${name}`);
  }
});

/* ------------------------------------------------------- the broker's message */

const isRing = new Ajv2020({ strict: true }).compile(contract['job.schema.json'] as Json);

test('what is sent through a broker obeys job.schema.json, and every member of the schema is sent', () => {
  const sent = new Set<string>();
  for (const traceparent of [null, newTraceparent()]) {
    for (const ring of [1, 2, 1000, Number.MAX_SAFE_INTEGER]) {
      const bytes = encodeRing({ jobId: newId(), ring, traceparent });
      assert.ok(bytes.length < 1024);
      const message = JSON.parse(new TextDecoder().decode(bytes)) as Json;
      assert.ok(isRing(message), JSON.stringify(isRing.errors));
      for (const member of Object.keys(message)) sent.add(member);
    }
  }
  const { properties, required } = contract['job.schema.json'] as { properties: Json; required: string[] };
  assert.deepEqual([...sent].sort(), Object.keys(properties).sort());
  assert.deepEqual(required, ['v', 'job', 'ring']);
});

test('what job.schema.json refuses for its version, job or ring a worker refuses as well', () => {
  const good = { v: 1, job: newId(), ring: 1 };
  const bad: Json[] = [
    { ...good, v: 2 },
    { ...good, v: '1' },
    { job: good.job, ring: 1 },
    { ...good, job: 'x' },
    { ...good, job: good.job.toUpperCase() },
    { v: 1, ring: 1 },
    { ...good, ring: 0 },
    { ...good, ring: 1.5 },
    { ...good, ring: '1' },
    { ...good, ring: 2 ** 53 },
    { v: 1, job: good.job },
  ];
  const read = (message: Json) => decodeRing(new TextEncoder().encode(JSON.stringify(message)));
  assert.ok(isRing(good) && read(good));
  for (const message of bad) {
    assert.equal(isRing(message), false, JSON.stringify(message));
    assert.equal(read(message), null, JSON.stringify(message));
  }
});
