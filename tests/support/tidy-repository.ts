/**
 * The rules of the house for tests, and for everything that a clone holds. Functions from files to findings, as in
 * `tidy-rules.ts`.
 */
import { basename } from 'node:path';
import {
  importsOf,
  isTree,
  lineOf,
  modulesIn,
  nameOf,
  nodesOf,
  type Offence,
  type Rule,
  stem,
  stringOf,
  type Tree,
  treeOf,
} from './tidy-source.ts';

const testWords = new Set(['test', 'it', 'describe', 'suite', 't']);
const evasions = new Set(['skip', 'only', 'todo']);

/** No test is left out: neither as `test.skip(…)` and `t.skip()`, nor as `{ skip: true }`, nor as `expectFailure`. */
export const noTestLeftOut: Rule = (files) =>
  modulesIn(files, 'tests/').flatMap((file) =>
    [...nodesOf(treeOf(file))].flatMap(({ node }) => {
      if (node.type !== 'CallExpression') return [];
      const callee = node.callee as Tree;
      const word = nameOf(callee.property) ?? '';
      if (callee.type === 'MemberExpression' && evasions.has(word) && testWords.has(rootName(callee))) {
        return [`${file.path}:${lineOf(node)} calls .${word}`];
      }
      if (!testWords.has(rootName(callee))) return [];
      return (node.arguments as Tree[])
        .filter((argument) => argument.type === 'ObjectExpression')
        .flatMap((argument) => argument.properties as Tree[])
        .map((property) => nameOf(property.key) ?? '')
        .filter((key) => evasions.has(key) || key === 'expectFailure')
        .map((key) => `${file.path}:${lineOf(node)} sets ${key}`);
    }),
  );

/** The leftmost name of `a.b.c`. */
function rootName(node: Tree): string {
  return node.type === 'MemberExpression' && isTree(node.object) ? rootName(node.object) : (nameOf(node) ?? '');
}

/** Tests wait for a condition: the timers that make polling possible live in `tests/support/`. */
export const noSleeping: Rule = (files) =>
  modulesIn(files, 'tests/')
    .filter(({ path }) => !path.startsWith('tests/support/'))
    .flatMap((file) => {
      const found: Offence[] = importsOf(file)
        .filter(({ specifier }) => specifier === 'node:timers/promises' || specifier === 'node:timers')
        .map(({ line }) => `${file.path}:${line} imports timers`);
      for (const { node } of nodesOf(treeOf(file))) {
        if (node.type !== 'CallExpression') continue;
        const callee = node.callee as Tree;
        const called = nameOf(callee.type === 'MemberExpression' ? callee.property : callee);
        if (called === 'setTimeout' || called === 'setInterval') {
          found.push(`${file.path}:${lineOf(node)} calls ${called}`);
        }
      }
      return found;
    });

/** A title says what is promised, so that gaps show: several words, and no two alike in one block. */
export const titlesPromise: Rule = (files) =>
  modulesIn(files, 'tests/').flatMap((file) => {
    const seen = new Set<string>();
    return [...nodesOf(treeOf(file))].flatMap(({ node, ancestors }) => {
      const title =
        node.type === 'CallExpression' && isTest(node.callee as Tree) ? stringOf((node.arguments as Tree[])[0]) : null;
      if (title === null) return [];
      const block = ancestors.findLast((above) => above.type === 'CallExpression')?.start ?? 0;
      const twice = seen.has(`${block} ${title}`);
      seen.add(`${block} ${title}`);
      if (twice) return [`${file.path}:${lineOf(node)} has a second test "${title}"`];
      return title.trim().split(/\s+/).length < 2 ? [`${file.path}:${lineOf(node)} "${title}" is no promise`] : [];
    });
  });

const isTest = (callee: Tree) =>
  nameOf(callee) === 'test' ||
  nameOf(callee) === 'it' ||
  (nameOf(callee.property) === 'test' && rootName(callee) === 't');

/* ------------------------------------------------------------------ everything that a clone holds */

// Put together from pieces, so that this file does not hold what it looks for.
const machinePath = new RegExp(
  `(?<=^|[^\\w.\\-/}]|:\\/\\/)/(?:${['wo' + 'rk', 'ro' + 'ot', 'ho' + 'me', 'Us' + 'ers'].join('|')})/[\\w.]`,
);
const hosts = [
  ['registry', 'npmjs', 'org'],
  ['registry', 'yarnpkg', 'com'],
  ['registry', 'npmmirror', 'com'],
  ['deb', 'debian', 'org'],
  ['security', 'debian', 'org'],
  ['snapshot', 'debian', 'org'],
  ['files', 'pythonhosted', 'org'],
  ['pypi', 'org'],
  ['proxy', 'golang', 'org'],
  ['static', 'crates', 'io'],
].map((parts) => parts.join('.'));

/** No folder of the machine that it was written on. */
export const noMachinePath: Rule = (files) =>
  files.flatMap(({ path, text }) =>
    text
      .split('\n')
      .flatMap((line, index) => (machinePath.test(line) ? [`${path}:${index + 1} names a folder of one machine`] : [])),
  );

/** Packages come through the ordinary clients as they are configured where they run. */
export const noRegistryHost: Rule = (files) =>
  files.flatMap(({ path, text }) =>
    text.split('\n').flatMap((line, index) => {
      const host = hosts.find((candidate) => line.includes(candidate));
      return host ? [`${path}:${index + 1} names the registry ${host}`] : [];
    }),
  );

/** The lock file pins versions and digests, not the server that they once came from. */
export const lockWithoutServers: Rule = (files) => {
  const lock = files.find(({ path }) => path === 'package-lock.json');
  if (!lock) return ['package-lock.json:1 is missing'];
  return lock.text
    .split('\n')
    .flatMap((line, index) =>
      /"resolved":\s*"\w+:\/\//.test(line) ? [`${lock.path}:${index + 1} has a resolved URL`] : [],
    );
};

/** Everything that runs ends in `.test.ts`, which is what the runner looks for; suites that others run are in `tests/contract/`. */
export const testsAreFound: Rule = (files) =>
  modulesIn(files, 'tests/')
    .filter((file) => !file.path.endsWith('.test.ts'))
    .filter((file) => !file.path.startsWith('tests/support/') && !file.path.startsWith('tests/contract/'))
    .filter((file) => importsOf(file).some(({ specifier }) => specifier === 'node:test'))
    .map((file) => `${file.path}:1 ${stem(file.path)} has tests that the runner would not find`);

/** What only tests and scripts use is used: the name of its file stands in another one, of whatever kind. */
export const nothingUnused: Rule = (files) =>
  modulesIn(files, 'tests/', 'scripts/')
    .filter(({ path }) => !path.endsWith('.test.ts'))
    .filter(({ path }) => !files.some((other) => other.path !== path && other.text.includes(basename(path))))
    .map(({ path }) => `${path}:1 is named by no other file`);
