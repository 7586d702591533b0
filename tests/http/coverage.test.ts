/**
 * Every declared response of every route is given by the running server, and is what the OpenAPI document says it is.
 * The document is the list: a route or status that nobody exercises fails here.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, it } from 'node:test';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { StoreError } from '../../src/pipeline/store.ts';
import { ask, exercises, type Served, serve } from '../support/exercises.ts';
import { png, startUploads } from '../support/uploads.ts';

interface Operation {
  readonly operationId: string;
  readonly security?: readonly object[];
  readonly requestBody?: { readonly content: Readonly<Record<string, unknown>> };
  readonly responses: Readonly<
    Record<string, { description: string; content?: Readonly<Record<string, { schema: object }>> }>
  >;
}

const file = path.join(import.meta.dirname, '../../contracts/openapi.json');
const document = JSON.parse(await readFile(file, 'utf8')) as { paths: Record<string, Record<string, Operation>> };
const operations = Object.entries(document.paths).flatMap(([url, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({
    name: `${method.toUpperCase()} ${url}`,
    url,
    method,
    operation,
  })),
);

const ajv = new Ajv2020({ strict: false, allErrors: true });
addFormats.default(ajv);
ajv.addSchema({ ...document, $id: 'openapi' });

/** Fails unless the answer has the status, a declared media type, and a body of its schema. */
async function check(url: string, method: string, status: number, response: Response): Promise<void> {
  const bytes = Buffer.from(await response.arrayBuffer());
  const shown = bytes.toString().slice(0, 500);
  assert.equal(response.status, status, shown);
  const { content, description } =
    document.paths[url]?.[method]?.responses[status] ?? assert.fail(`${status} is not declared`);
  const type = response.headers.get('content-type')?.split(';', 1)[0] ?? '';
  if (!content) {
    assert.equal(bytes.length, 0, `no body was declared: ${shown}`);
    return;
  }
  const declared = content[type] ? type : '*/*';
  assert.ok(content[declared], `${type} was not declared`);
  if (!type.endsWith('json')) return;
  const at = ['paths', url, method, 'responses', String(status), 'content', declared, 'schema'];
  const pointer = at.map((part) => encodeURIComponent(part.replaceAll('~', '~0').replaceAll('/', '~1'))).join('/');
  const validate = ajv.compile({ $ref: `openapi#/${pointer}` });
  assert.ok(validate(JSON.parse(bytes.toString())), `${ajv.errorsText(validate.errors)} in ${shown}`);
  if (status >= 400) {
    const problem = JSON.parse(bytes.toString()) as { status: number; code: string };
    assert.equal(type, 'application/problem+json');
    assert.equal(problem.status, status);
    assert.ok(description.includes(`\`${problem.code}\``), `${problem.code} was not declared`);
  }
}

const samples: Readonly<Record<string, string>> = { code: 'not_found', name: 'crop' };

/** A path that fits the pattern, of things that are not there. */
const anyPath = (url: string) =>
  url.replace(/\{(\w+)\}/g, (_all, name) => samples[name] ?? '019a0000-0000-7000-8000-000000000000');

const isJson = ({ requestBody }: Operation) => requestBody?.content['application/json'] !== undefined;

/** What the frame answers on every route of a kind needs no exercise of its own. */
function commonExercises(
  name: string,
  url: string,
  operation: Operation,
): Partial<Record<number, (s: Served) => Promise<Response>>> {
  const line = `${name.split(' ')[0]} ${anyPath(url)}`;
  const oversized = 'x'.repeat(70_000);
  // Whoever may not call a route is told before its body is looked at.
  const caller = (s: Served) => (url.startsWith('/v1/admin/') ? s.operator : s.ada);
  return {
    ...(operation.security?.some((each) => 'bearer' in each) && { 401: (s: Served) => ask(s, line, { as: null }) }),
    ...(url.startsWith('/v1/admin/') && { 403: (s: Served) => ask(s, line) }),
    ...(isJson(operation) && {
      413: (s: Served) => ask(s, line, { json: oversized, as: caller(s) }),
      415: (s: Served) => ask(s, line, { body: 'x', headers: { 'content-type': 'text/plain' }, as: caller(s) }),
    }),
  };
}

/** A store and people that are out of reach. */
function unreachable<T extends object>(real: T): T {
  const down = () => Promise.reject(new StoreError('unavailable', 'down'));
  return new Proxy(real, { get: () => down });
}

/** The routes that may send a client to the store. */
const redirected = ['/v1/attachments/{id}/content', '/v1/attachments/{id}/variants/{name}'];

/** A body that gets past validation, for the routes that touch the database without a token. */
const credentials = { handle: 'somebody', password: 'correct horse' };

describe('every declared response', () => {
  it('has an exercise, and every exercise is declared', () => {
    const declared = operations.flatMap(({ name, operation }) =>
      Object.keys(operation.responses).map((status) => `${name} ${status}`),
    );
    const given = operations.flatMap(({ name, url, operation }) => {
      const all = { 503: true, ...commonExercises(name, url, operation), ...exercises[name] };
      const registration = name === 'POST /v1/users' ? { 403: true } : {};
      const redirection = redirected.includes(url) ? { 307: true } : {};
      return Object.keys({ ...all, ...registration, ...redirection }).map((status) => `${name} ${status}`);
    });
    const optional = new Set(
      operations.filter(({ operation }) => !operation.responses['503']).map(({ name }) => `${name} 503`),
    );
    assert.deepEqual(given.filter((each) => !optional.has(each)).toSorted(), declared.toSorted());
    assert.deepEqual(
      Object.keys(exercises).filter((name) => !operations.some((each) => each.name === name)),
      [],
    );
  });

  it('is given by the server as the document says', async (t) => {
    const s = await serve(await startUploads(t, { settings: { stallMs: 500 } }));
    for (const { name, url, method, operation } of operations) {
      const all = { ...commonExercises(name, url, operation), ...exercises[name] };
      for (const [status, exercise] of Object.entries(all)) {
        if (!exercise) continue;
        await t.test(`${name} answers ${status} as declared`, async () => {
          await check(url, method, Number(status), await exercise(s));
        });
      }
    }
  });

  it('is 503 on every route that needs the database when there is none', async (t) => {
    const uploads = await startUploads(t, {
      deps: (real) => ({ store: unreachable(real.store), people: unreachable(real.people) }),
    });
    for (const { name, url, method, operation } of operations.filter((each) => each.operation.responses['503'])) {
      await t.test(`${name} answers 503 as declared`, async () => {
        const line = `${name.split(' ')[0]} ${anyPath(url)}`;
        const known = { uploads, ada: uploads.ada };
        const response = await ask(known, line, isJson(operation) ? { json: credentials } : {});
        assert.match(response.headers.get('retry-after') ?? '', /^[1-9]/);
        await check(url, method, 503, response);
      });
    }
  });

  it('is 403 for registering where that is closed', async (t) => {
    const uploads = await startUploads(t, { settings: { registration: 'closed' } });
    await check(
      '/v1/users',
      'post',
      403,
      await ask({ uploads, ada: uploads.ada }, 'POST /v1/users', { json: credentials, as: null }),
    );
  });

  it('is 307 for bytes where downloads are redirected', async (t) => {
    const uploads = await startUploads(t, {
      settings: { delivery: 'redirect' },
      deps: ({ blobs }) => ({ blobs: { ...blobs, presign: async (key) => `https://store.example/${key}` } }),
    });
    const { id } = (await uploads.send(png())).body;
    await uploads.publish(id);
    for (const url of redirected) {
      const path = url.replace('{id}', id).replace('{name}', 'crop');
      const response = await fetch(uploads.url + path, {
        headers: { authorization: `Bearer ${uploads.ada.token}` },
        redirect: 'manual',
      });
      await check(url, 'get', 307, response);
    }
  });
});
