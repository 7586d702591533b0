/**
 * Every rule for code, tests and the clone can fail: each gets an example that breaks it and one that keeps it. Examples
 * are strings, so that the rules, which look at syntax, do not find them here.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as repository from '../support/tidy-repository.ts';
import * as rules from '../support/tidy-rules.ts';
import { modulesIn, type Rule, repositoryFiles } from '../support/tidy-source.ts';

type Files = Readonly<Record<string, string>>;

const listOf = (files: Files) => Object.entries(files).map(([path, text]) => ({ path, text }));
const check = (rule: Rule, files: Files) => rule(listOf(files));

/** `bad` breaks the rule at exactly the places in `at`, and what is in `good` does not. */
function breaks(rule: Rule, example: { bad: Files; at: readonly string[]; good?: Files }) {
  const found = check(rule, example.bad).map((offence) => offence.split(' ', 1)[0]);
  assert.deepEqual([...new Set(found)].sort(), [...example.at].sort());
  if (example.good) assert.deepEqual(check(rule, example.good), []);
}

const lines = (count: number, line = '  f();') => Array(count).fill(line).join('\n');

describe('the dependency rule', () => {
  const rule = rules.dependencyRule;

  test('catches http that imports postgres, also for a type', () =>
    breaks(rule, {
      bad: {
        'src/http/a.ts': "import { a } from '../postgres/a.ts';",
        'src/http/b.ts': "\nimport type { a } from '../postgres/a.ts';",
        'src/http/c.ts': "let a: import('../postgres/a.ts').A;",
        'src/http/d.ts': "await import('../drivers/blobs-file.ts');",
        'src/http/e.ts': "export type { a } from '../wiring.ts';",
        'src/http/f.ts': "import { type a } from '../cli.ts';",
      },
      at: [
        'src/http/a.ts:1',
        'src/http/b.ts:2',
        'src/http/c.ts:1',
        'src/http/d.ts:1',
        'src/http/e.ts:1',
        'src/http/f.ts:1',
      ],
      good: {
        'src/http/a.ts': "import { a } from '../pipeline/a.ts';\nimport '../errors.ts';\nimport x from 'fastify';",
      },
    }));

  test('catches a pipeline that knows a package, a setting or a driver', () =>
    breaks(rule, {
      bad: {
        'src/pipeline/a.ts':
          "import pg from 'pg';\nimport { a } from '../config.ts';\nimport '../drivers/blobs-file.ts';",
      },
      at: ['src/pipeline/a.ts:1', 'src/pipeline/a.ts:2', 'src/pipeline/a.ts:3'],
      good: {
        'src/pipeline/a.ts': "import 'node:stream';\nimport './b.ts';\nimport '../ids.ts';\nimport '../errors.ts';",
      },
    }));

  test('catches one driver that imports another, or the database', () =>
    breaks(rule, {
      bad: {
        'src/drivers/blobs-s3.ts': "import './blobs-file.ts';",
        'src/drivers/broker-postgres.ts': "import '../postgres/pool.ts';",
        'src/drivers/images-sharp.ts': "import './scratch-file.ts';",
        'src/postgres/store.ts': "import '../pipeline/accept.ts';",
      },
      at: [
        'src/postgres/store.ts:1',
        'src/drivers/blobs-s3.ts:1',
        'src/drivers/broker-postgres.ts:1',
        'src/drivers/images-sharp.ts:1',
      ],
      good: {
        'src/drivers/broker-postgres.ts': "import './broker-postgres-queue.ts';",
        'src/drivers/images-sharp.ts': "import './images-pool.ts';\nimport '../pipeline/ports.ts';",
        'src/drivers/blobs-file.ts': "import './blobs-file/walk.ts';",
      },
    }));

  test('catches a part that nobody placed, and lets wiring.ts see everything', () =>
    breaks(rule, {
      bad: { 'src/misc.ts': 'f();', 'src/errors.ts': "import './ids.ts';" },
      at: ['src/misc.ts:1', 'src/errors.ts:1'],
      good: {
        'src/wiring.ts': "import './http/server.ts';\nimport './postgres/store.ts';\nimport './drivers/blobs-file.ts';",
      },
    }));
});

describe('code', () => {
  test('a pipeline that looks at a clock, a die, a file or the process is caught', () =>
    breaks(rules.pipelineThroughPorts, {
      bad: {
        'src/pipeline/a.ts':
          "import 'node:fs';\nf(Date.now());\nf(new Date());\nf(Math.random());\nsetTimeout(f, 1);\nf(process.pid);\nf(randomUUID());",
      },
      at: [1, 2, 3, 4, 5, 6, 7].map((line) => `src/pipeline/a.ts:${line}`),
      good: {
        'src/pipeline/a.ts': "import { createHash } from 'node:crypto';\nf(new Date(ms));",
        'src/http/a.ts': 'Date.now();',
      },
    }));

  test('a package in two files is caught, and types in the same folder are not', () =>
    breaks(rules.oneFileEachPackage, {
      bad: {
        'src/a/a.ts': "import pg from 'pg';",
        'src/a/b.ts': "import { Pool } from 'pg/lib';",
        'src/b/c.ts': "import type { Pool } from 'pg';",
        'src/b/d.ts': "import '@x/y';",
        'src/b/e.ts': "import z from '@x/y/z';",
      },
      at: ['src/a/b.ts:1', 'src/b/c.ts:1', 'src/b/e.ts:1'],
      good: {
        'src/a/a.ts': "import pg from 'pg';",
        'src/a/b.ts': "import { type Pool } from 'pg';\nimport type * as x from 'pg';",
      },
    }));

  test('the environment outside config.ts is caught in every spelling', () =>
    breaks(rules.environmentInConfigOnly, {
      bad: {
        'src/a.ts': 'f(process.env.A);',
        'src/b.ts': "f(process['env']);",
        'src/c.ts': "import { env } from 'node:process';",
        'src/d.ts': 'const { env } = process;',
      },
      at: ['src/a.ts:1', 'src/b.ts:1', 'src/c.ts:1', 'src/d.ts:1'],
      good: {
        'src/config.ts': 'f(process.env);',
        'src/a.ts': '// process.env\nf(process.pid);',
        'tests/a.ts': 'process.env;',
      },
    }));

  test('a file of 401 lines is caught', () =>
    breaks(rules.shortFiles, {
      bad: { 'src/a.ts': lines(401), 'src/postgres/migrations/1.sql': lines(401), 'tests/a.ts': lines(401) },
      at: ['src/a.ts:401', 'src/postgres/migrations/1.sql:401', 'tests/a.ts:401'],
      good: { 'src/a.ts': `${lines(400)}\n`, 'docs/a.md': lines(500) },
    }));

  test('a function of 71 lines is caught: declared, arrow or method', () =>
    breaks(rules.shortFunctions, {
      bad: {
        'src/a.ts': `function a() {\n${lines(69)}\n}`,
        'src/b.ts': `const b = () => {\n${lines(69)}\n};`,
        'src/c.ts': `export const c = {\n  m() {\n${lines(69)}\n}\n};`,
        'src/d.ts': `function d() {\n  app.get('/x', () => {\n${lines(66)}\n  });\n  f();\n}`,
      },
      at: ['src/a.ts:1', 'src/b.ts:1', 'src/c.ts:2', 'src/d.ts:1'],
      good: { 'src/a.ts': `function a(): void {\n${lines(68)}\n}` },
    }));

  test('a nested function declaration and a method count for themselves alone', () =>
    breaks(rules.shortFunctions, {
      bad: { 'src/a.ts': `function outer() {\n  function inner() {\n${lines(69)}\n  }\n}` },
      at: ['src/a.ts:2'],
      good: {
        'src/a.ts': `function outer() {\n${lines(40)}\n\n  /** Says. */\n  function inner() {\n${lines(60)}\n  }\n  return {\n    m() {\n${lines(60)}\n    },\n  };\n}`,
        'tests/a.ts': `test('a promise', () => {\n${lines(60)}\n});\ndescribe('b', () => {\n  test('c d', () => {\n${lines(60)}\n  });\n});`,
      },
    }));

  test('names that say nothing are caught in paths and exports', () =>
    breaks(rules.sayingNames, {
      bad: {
        'src/utils.ts': '',
        'src/common/a.ts': '',
        'src/pool-helper.ts': '',
        'src/a.ts': '\nexport class JobManager {}',
        'src/b.ts': 'export interface MailService {}',
        'src/c.ts': 'export const helpers = 1;',
      },
      at: ['src/utils.ts:1', 'src/common/a.ts:1', 'src/pool-helper.ts:1', 'src/a.ts:2', 'src/b.ts:1', 'src/c.ts:1'],
      good: { 'src/a.ts': 'export const imageTypes = 1;\nconst util = 2;', 'src/library.ts': '' },
    }));

  test('a file without a comment at its top is caught', () =>
    breaks(rules.headers, {
      bad: {
        'src/a.ts': "import 'x';\n/** Says what it holds. */",
        'src/b.ts': '/** */\nf();',
        'scripts/c.mjs': '// Hm.\nf();',
      },
      at: ['src/a.ts:1', 'src/b.ts:1', 'scripts/c.mjs:1'],
      good: {
        'src/a.ts': '#!/usr/bin/env node\n/** Says what this file holds. */\nf();',
        'src/b.ts': '// Says what\n// this file holds.\nf();',
      },
    }));

  const header = (opening: string) =>
    `/**\n * ${opening}: x. Before it: x. After it: x.\n *\n * Durable: x. Dies in it: the bell rings. */`;
  const steps: Files = Object.fromEntries(
    Object.entries(rules.stepFiles).map(([path, opening]) => [path, header(opening)]),
  );
  for (const lack of ['Step 1 of 8, accept', 'Before it: ', 'After it: ', 'Durable', 'Dies', 'bell']) {
    test(`a step file whose header lacks "${lack.trim()}" is caught`, () => {
      const path = 'src/pipeline/accept.ts';
      breaks(rules.stepHeaders, {
        bad: { ...steps, [path]: (steps[path] ?? '').replace(lack, '') },
        at: [`${path}:1`],
        good: steps,
      });
    });
  }
  test('a step file that is gone is caught', () =>
    breaks(rules.stepHeaders, { bad: { ...steps, 'src/pipeline/relay.ts': '' }, at: ['src/pipeline/relay.ts:1'] }));

  test('what is left to do is caught in every kind of file', () =>
    breaks(rules.nothingLeftToDo, {
      bad: { 'src/a.ts': `\n// ${'TO'}${'DO'}: later`, 'docs/a.md': `${'FIX'}${'ME'}` },
      at: ['src/a.ts:2', 'docs/a.md:1'],
      good: { 'src/a.ts': 'const todo = 1;' },
    }));

  test('enums, decorators, namespaces and classes are caught, and errors are not', () =>
    breaks(rules.erasableSyntax, {
      bad: {
        'src/a.ts': 'enum A { B }',
        'src/b.ts': 'declare const enum A { B }',
        'src/c.ts': '@sealed\nclass A extends Error {}',
        'src/d.ts': '\nexport class A {}',
        'src/e.ts': 'const a = class extends Set {};',
        'src/f.ts': 'namespace A { export const b = 1; }',
        'src/g.ts': 'class A extends Error { constructor(private readonly a: string) { super(); } }',
      },
      at: ['src/a.ts:1', 'src/b.ts:1', 'src/c.ts:1', 'src/d.ts:2', 'src/e.ts:1', 'src/f.ts:1', 'src/g.ts:1'],
      good: {
        'src/a.ts': 'export class A extends Error {\n  readonly code: string = "a";\n}\nconst b = <T>(c: T): T => c;',
      },
    }));

  test('a module that main.ts does not reach is caught', () =>
    breaks(rules.reachable, {
      bad: {
        'src/main.ts': "import './a.ts';",
        'src/a.ts': "// import './b.ts'",
        'src/b.ts': "import './a.ts';",
        'src/c.mjs': '',
      },
      at: ['src/b.ts:1', 'src/c.mjs:1'],
      good: {
        'src/main.ts':
          "import type { A } from './a.ts';\nawait import('./b/b.ts');\nfork(new URL('./child.ts', import.meta.url));",
        'src/a.ts': "export * from './c.ts';",
        'src/b/b.ts': "import '../d.ts';",
        'src/c.ts': '',
        'src/d.ts': '',
        'src/child.ts': '',
      },
    }));
});

describe('the decoder', () => {
  test('that a role loads is caught, and that of a child is not', () =>
    breaks(rules.decoderInChildrenOnly, {
      bad: {
        'src/main.ts': "import './a.ts';",
        'src/a.ts': "await import('./b.ts');",
        'src/b.ts': "import sharp from 'sharp';",
      },
      at: ['src/b.ts:1'],
      good: {
        'src/main.ts': "import './a.ts';",
        'src/a.ts': "fork(new URL('./b.ts', import.meta.url));\nimport type { B } from './b.ts';",
        'src/b.ts': "import sharp from 'sharp';",
      },
    }));
});

describe('tests', () => {
  test('a test that is skipped, singled out, put off or expected to fail is caught', () =>
    breaks(repository.noTestLeftOut, {
      bad: {
        'tests/a.test.ts': "test.skip('a', f);\ndescribe.only('a', f);\nit.todo('a');\nt.skip();",
        'tests/b.test.ts':
          "test('a', { skip: true }, f);\nawait t.test('a', { only: true }, f);\ntest('a', { expectFailure: true }, f);",
      },
      at: [1, 2, 3, 4]
        .map((line) => `tests/a.test.ts:${line}`)
        .concat([1, 2, 3].map((line) => `tests/b.test.ts:${line}`)),
      good: { 'tests/a.test.ts': "test('a', { timeout: 1 }, f);\nlist.skip(1);\nf({ skip: 1 });" },
    }));

  test('a test that sleeps is caught', () =>
    breaks(repository.noSleeping, {
      bad: {
        'tests/a.test.ts':
          "import { setTimeout as pause } from 'node:timers/promises';\nawait new Promise((done) => setTimeout(done, 5));",
        'tests/contract/b.ts': 'globalThis.setInterval(f, 1);',
      },
      at: ['tests/a.test.ts:1', 'tests/a.test.ts:2', 'tests/contract/b.ts:1'],
      good: { 'tests/support/a.ts': 'setTimeout(f, 1);', 'tests/a.test.ts': "// setTimeout(f)\nf('setTimeout(f)');" },
    }));

  test('a title of one word, or given twice in a block, is caught', () =>
    breaks(repository.titlesPromise, {
      bad: { 'tests/a.test.ts': "test('works', f);\ntest('one promise', f);\ntest('one promise', f);" },
      at: ['tests/a.test.ts:1', 'tests/a.test.ts:3'],
      good: {
        'tests/a.test.ts':
          "describe('a', () => { test('one promise', f); });\ndescribe('b', () => { test('one promise', f); });",
      },
    }));

  test('tests in a file that the runner does not look for are caught', () =>
    breaks(repository.testsAreFound, {
      bad: { 'tests/http/a.ts': "import { test } from 'node:test';" },
      at: ['tests/http/a.ts:1'],
      good: {
        'tests/http/a.test.ts': "import 'node:test';",
        'tests/contract/a.ts': "import 'node:test';",
        'tests/http/b.ts': '',
      },
    }));
});

describe('what a clone holds', () => {
  test('a script or a part of tests that nobody names is caught', () =>
    breaks(repository.nothingUnused, {
      bad: { 'scripts/a.ts': '', 'tests/support/b.ts': "import './b.ts';", 'tests/c.test.ts': '' },
      at: ['scripts/a.ts:1', 'tests/support/b.ts:1'],
      good: { 'scripts/a.ts': '', 'package.json': '"a": "node scripts/a.ts"', 'tests/c.test.ts': '' },
    }));

  test('a folder of one machine is caught', () =>
    breaks(repository.noMachinePath, {
      bad: {
        'a.md': `see ${'/wo'}${'rk/main'}`,
        'b.ts': `\nf('${'/ho'}${'me/me'}');`,
        'c.ts': `f('file://${'/ro'}${'ot/x'}')`,
      },
      at: ['a.md:1', 'b.ts:2', 'c.ts:1'],
      good: { 'a.md': 'the path /works/well, https://example.org/work/x, ./work/x and a/home/x' },
    }));

  test('the server of a package registry is caught', () =>
    breaks(repository.noRegistryHost, {
      bad: { 'a.md': `https://${'registry'}.npmjs.org/x`, Dockerfile: `FROM x\nRUN curl ${'deb'}.debian.org` },
      at: ['a.md:1', 'Dockerfile:2'],
      good: { 'a.md': 'www.npmjs.com' },
    }));

  test('a lock file with a resolved URL is caught, and one that is missing', () => {
    breaks(repository.lockWithoutServers, {
      bad: { 'package-lock.json': '{\n"resolved": "https://example.org/x.tgz"}' },
      at: ['package-lock.json:2'],
      good: { 'package-lock.json': '{ "integrity": "sha512-x" }' },
    });
    breaks(repository.lockWithoutServers, { bad: {}, at: ['package-lock.json:1'] });
  });
});

describe('the rules themselves', () => {
  test('every rule of this kind has an example here', () => {
    const self = repositoryFiles().find(({ path }) => path === 'tests/tidy/tidy-rules.test.ts');
    const names = Object.entries({ ...rules, ...repository }).filter(([, value]) => typeof value === 'function');
    assert.ok(names.length >= 17);
    for (const [name] of names)
      assert.match(self?.text ?? '', new RegExp(`\\.${name}\\b`), `${name} has no bad example`);
  });

  test('the list of files holds the sources, the tests and the documents, and nothing installed', () => {
    const paths = repositoryFiles().map(({ path }) => path);
    for (const path of ['src/errors.ts', 'tests/tidy.test.ts', 'package.json', '.gitignore'])
      assert.ok(paths.includes(path), path);
    assert.ok(modulesIn(repositoryFiles(), 'src/').length > 20);
    assert.equal(
      paths.find((path) => path.startsWith('node_modules/') || path.startsWith('.git/')),
      undefined,
    );
  });
});
