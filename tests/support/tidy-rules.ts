/**
 * The rules of the house for code, each a function from files to findings. `tests/tidy.test.ts` holds the repository to
 * them; `tests/tidy/tidy-rules.test.ts` proves of each that it can fail. The rules for documents are in
 * `tidy-documents.ts`.
 */
import {
  type ImportOf,
  importsOf,
  isTree,
  lineOf,
  modulesIn,
  nameOf,
  nodesOf,
  type Offence,
  packageOf,
  type Rule,
  type SourceFile,
  stem,
  stringOf,
  type Tree,
  targetOf,
  treeOf,
} from './tidy-source.ts';

/* ------------------------------------------------------------------ the dependency rule */

/** Files of `src/` that anybody may import: they import nothing of ours but each other. */
const leaves = ['batches', 'errors', 'ids', 'process-tag', 'roles', 'setting'];
const tables = ['settings-engines', 'settings-limits'];
const platform = ['settings', 'config', 'telemetry', 'lifecycle'];

/**
 * Who may import whom. `http`, `cli` → `pipeline` ← `postgres`, `drivers`; only `wiring` and `verbs` see everything. A layer may
 * always import itself, except that one driver never imports another.
 */
const mayImport: Readonly<Record<string, readonly string[] | 'everything'>> = {
  ...Object.fromEntries(leaves.map((leaf) => [leaf, []])),
  ...Object.fromEntries(tables.map((table) => [table, ['setting']])),
  settings: ['setting', ...tables],
  config: ['settings', ...leaves],
  telemetry: ['pipeline', 'settings', 'config', ...leaves],
  lifecycle: ['pipeline', 'settings', 'config', ...leaves],
  pipeline: ['errors', 'ids'],
  http: ['pipeline', 'settings', 'config', ...leaves],
  console: ['pipeline', 'http', 'settings', 'config', ...leaves],
  postgres: ['pipeline', ...leaves],
  drivers: ['pipeline', ...leaves],
  cli: ['pipeline', ...platform, ...leaves],
  // The supervisor gets the database from wiring: of the pipeline it knows the log alone.
  supervisor: ['pipeline', ...platform, ...leaves],
  wiring: 'everything',
  // A verb is wired as a role is: out of drivers and ports, by hand. Nothing but `main` may import it.
  verbs: 'everything',
  main: ['cli', 'supervisor', 'wiring', 'verbs', ...platform, ...leaves],
};

/** Files at the top of `src/` that are parts of another. */
const partOf: Readonly<Record<string, string>> = { child: 'supervisor', 'data-folder': 'supervisor' };

/** The layer of a file of `src/`: its folder or, at the top, its own name. `cli-jobs.ts` is a part of `cli`. */
function layerOf(path: string): string {
  const [, first = '', second] = path.split('/');
  if (second !== undefined) return first;
  const name = partOf[stem(first)] ?? stem(first);
  return name in mayImport ? name : (name.split('-')[0] ?? name);
}

/** `broker-postgres-queue` and `broker-postgres` are one driver; all of `images-…` is one. */
function driverOf(path: string): string {
  const words = (path.split('/')[2] ?? '').replace(/\..*$/, '').split('-');
  return words.slice(0, words[0] === 'broker' || words[0] === 'blobs' ? 2 : 1).join('-');
}

export const dependencyRule: Rule = (files) =>
  modulesIn(files, 'src/').flatMap((file) => {
    const layer = layerOf(file.path);
    const allowed = mayImport[layer];
    if (allowed === undefined) return [`${file.path}:1 has no layer in the dependency rule`];
    if (allowed === 'everything') return [];
    return importsOf(file).flatMap(({ specifier, line }) => {
      const target = targetOf(file, specifier);
      if (target === 'package.json' && layer !== 'pipeline') return [];
      if (target === null) {
        if (layer !== 'pipeline' || specifier.startsWith('node:')) return [];
        return [`${file.path}:${line} imports the package ${specifier} into the pipeline`];
      }
      const other = target.startsWith('src/') ? layerOf(target) : target;
      if (other !== layer && !allowed.includes(other)) return [`${file.path}:${line} ${layer} imports ${target}`];
      if ((layer === 'drivers' || layer === 'postgres') && target in stepFiles) {
        return [`${file.path}:${line} ${layer} imports the step ${target}, not a port`];
      }
      const foreign = layer === 'drivers' && other === 'drivers' && driverOf(target) !== driverOf(file.path);
      return foreign ? [`${file.path}:${line} one driver imports another, ${target}`] : [];
    });
  });

const pure = new Set(['node:crypto', 'node:stream', 'node:buffer']);
const impure = new Set([
  'setTimeout',
  'setInterval',
  'setImmediate',
  'fetch',
  'randomBytes',
  'randomUUID',
  'randomInt',
]);
const impureMembers = new Set(['Date.now', 'Math.random', 'performance.now', 'AbortSignal.timeout']);

/** The pipeline reads no clock, draws no random number, touches no file and opens no socket except through its ports. */
export const pipelineThroughPorts: Rule = (files) =>
  modulesIn(files, 'src/pipeline/').flatMap((file) => [
    ...importsOf(file)
      .filter(({ specifier }) => specifier.startsWith('node:') && !pure.has(specifier))
      .map(({ specifier, line }) => `${file.path}:${line} imports ${specifier}`),
    ...[...nodesOf(treeOf(file))].flatMap(({ node }) => {
      const callee = node.callee as Tree | undefined;
      const called = node.type === 'CallExpression' && callee ? nameOf(callee) : null;
      const member = callee?.type === 'MemberExpression' ? `${nameOf(callee.object)}.${nameOf(callee.property)}` : '';
      const now =
        node.type === 'NewExpression' && nameOf(callee) === 'Date' && (node.arguments as unknown[]).length === 0;
      const global = node.type === 'MemberExpression' && nameOf(node.object) === 'process';
      const found =
        impure.has(called ?? '') || (node.type === 'CallExpression' && impureMembers.has(member)) || now || global;
      return found ? [`${file.path}:${lineOf(node)} goes past the ports`] : [];
    }),
  ]);

/** A package is imported by one file; others of the same folder may import its types. */
export const oneFileEachPackage: Rule = (files) => {
  const users = new Map<string, { path: string; line: number; typeOnly: boolean }[]>();
  for (const file of modulesIn(files, 'src/')) {
    for (const { specifier, line, typeOnly } of importsOf(file)) {
      const name = packageOf(specifier);
      if (name) users.set(name, [...(users.get(name) ?? []), { path: file.path, line, typeOnly }]);
    }
  }
  return [...users].flatMap(([name, all]) => {
    const values = [...new Set(all.filter((use) => !use.typeOnly).map((use) => use.path))];
    const home = values[0] ?? all[0]?.path ?? '';
    const folder = home.slice(0, home.lastIndexOf('/'));
    return all
      .filter((use) => use.path !== home && !(use.typeOnly && use.path.slice(0, use.path.lastIndexOf('/')) === folder))
      .map((use) => `${use.path}:${use.line} imports ${name}, which ${home} imports already`);
  });
};

/** Only `config.ts` reads the environment. */
export const environmentInConfigOnly: Rule = (files) =>
  modulesIn(files, 'src/')
    .filter(({ path }) => path !== 'src/config.ts')
    .flatMap((file) =>
      [...nodesOf(treeOf(file))].flatMap(({ node }) => {
        const member = node.type === 'MemberExpression' && nameOf(node.object) === 'process';
        const read = member && (nameOf(node.property) === 'env' || stringOf(node.property) === 'env');
        const taken = node.type === 'ImportSpecifier' && nameOf(node.imported) === 'env';
        const unpacked =
          node.type === 'VariableDeclarator' &&
          nameOf(node.init) === 'process' &&
          isTree(node.id) &&
          node.id.type === 'ObjectPattern';
        return read || taken || unpacked ? [`${file.path}:${lineOf(node)} reads the environment`] : [];
      }),
    );

/* ------------------------------------------------------------------ lengths and names */

const code = ['src/', 'tests/', 'scripts/', 'bench/', 'examples/'];
export const fileLinesMax = 400;
export const functionLinesMax = 70;

export const shortFiles: Rule = (files) =>
  [
    ...modulesIn(files, ...code),
    ...files.filter(({ path }) => /^src\/.*\.sql$/.test(path) && !path.endsWith('/schema.sql')),
  ].flatMap(({ path, text }) => {
    const lines = text.trimEnd().split('\n').length;
    return lines > fileLinesMax ? [`${path}:${lines} has ${lines} lines`] : [];
  });

const functions = new Set(['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression']);
const isFunction = (value: unknown): value is Tree => isTree(value) && functions.has(value.type);

/**
 * Nested function declarations, methods of a returned object and the callbacks of tests are measured on their own and count
 * for nothing around them, with the comment above them. All other callbacks count.
 */
export const shortFunctions: Rule = (files) =>
  modulesIn(files, ...code).flatMap((file) => {
    const lines = file.text.split('\n');
    const found = [...nodesOf(treeOf(file))].filter(({ node }) => isFunction(node));
    const own = found
      .filter(({ node, ancestors }) => standsAlone(file, node, ancestors.at(-1)))
      .map(({ node }) => ({ node, lines: range(firstCommentAbove(lines, lineOf(node)), endOf(node)) }));
    return found.flatMap(({ node }) => {
      const counted = new Set(range(lineOf(node), endOf(node)));
      if (counted.size <= functionLinesMax) return [];
      for (const { node: inner, lines: without } of own) {
        if (inner.start <= node.start || inner.end > node.end) continue;
        for (const line of without) counted.delete(line);
      }
      const name = nameOf(node.id) ?? 'a function';
      return counted.size > functionLinesMax ? [`${file.path}:${lineOf(node)} ${name} has ${counted.size} lines`] : [];
    });
  });

const endOf = (node: Tree) => node.loc?.end.line ?? 0;
const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

/** The first line of the comment and blank lines that stand right above `line`, or `line` itself. */
function firstCommentAbove(lines: readonly string[], line: number): number {
  let first = line;
  while (first > 1 && /^\s*(?:$|\/\*|\*|\/\/)/.test(lines[first - 2] ?? 'x')) first -= 1;
  return first;
}

function standsAlone({ path }: SourceFile, node: Tree, parent: Tree | undefined): boolean {
  if (node.type === 'FunctionDeclaration') return true;
  if (parent?.type === 'Property') return parent.method === true;
  // In tests: what follows a title, whatever the function that takes both is called.
  if (parent?.type !== 'CallExpression' || !path.startsWith('tests/')) return false;
  const [title] = parent.arguments as Tree[];
  return title?.type === 'TemplateLiteral' || stringOf(title) !== null;
}

const bannedWords = ['utils', 'util', 'helpers', 'helper', 'common', 'lib', 'types', 'manager', 'service'];
const bannedEnd = /(?:Utils?|Helpers?|Managers?|Services?)$/;
const exported =
  /^export (?:default )?(?:declare |abstract |async )*(?:const|let|function\*?|class|interface|type)\s+([\w$]+)/gm;

/** Names that say nothing: of files, of folders, of what is exported. */
export const sayingNames: Rule = (files) => [
  ...files.flatMap(({ path }) =>
    path.split('/').some((part) =>
      part
        .toLowerCase()
        .split(/[-_.]/)
        .some((word) => bannedWords.includes(word)),
    )
      ? [`${path}:1 has a name that says nothing`]
      : [],
  ),
  ...modulesIn(files, ...code).flatMap(({ path, text }) =>
    [...text.matchAll(exported)]
      .filter(([, name = '']) => bannedWords.includes(name.toLowerCase()) || bannedEnd.test(name))
      .map((match) => `${path}:${lineAt(text, match.index)} exports ${match[1]}`),
  ),
];

const lineAt = (text: string, index: number) => text.slice(0, index).split('\n').length;

/* ------------------------------------------------------------------ comments and syntax */

export const headers: Rule = (files) =>
  modulesIn(files, ...code).flatMap((file) => (headerOf(file) === '' ? [`${file.path}:1 has no header comment`] : []));

/** The comment that a file opens with, in one line; empty when it opens with anything else, or the comment says nothing. */
function headerOf({ text }: SourceFile): string {
  const body = text.replace(/^#!.*\n/, '');
  const comment = /^\/\*\*?([\s\S]*?)\*\//.exec(body)?.[1] ?? /^(?:\/\/.*\n)+/.exec(body)?.[0] ?? '';
  const words = comment
    .replace(/^\s*(?:\*|\/\/)/gm, ' ')
    .replace(/\s+/g, ' ')
    .trim();
  return words.split(' ').length >= 4 ? words : '';
}

export const stepFiles: Readonly<Record<string, string>> = {
  'src/pipeline/accept.ts': 'Step 1 of 8, accept',
  'src/pipeline/relay.ts': 'Step 2 of 8, relay',
  'src/pipeline/worker.ts': 'Step 3 of 8, claim',
  'src/pipeline/render.ts': 'Step 4 of 8, render',
  'src/pipeline/outcome.ts': 'Steps 5 to 7 of 8, store, settle, ack',
  'src/pipeline/janitor.ts': 'Step 8 of 8, clean',
};

/** Each step says where it stands, what is durable after it, what a death in it leaves, and who repairs that. */
export const stepHeaders: Rule = (files) =>
  Object.entries(stepFiles).flatMap(([path, opening]) => {
    const file = files.find((candidate) => candidate.path === path);
    if (!file) return [`${path}:1 is missing`];
    const header = headerOf(file);
    const last = opening.includes('Step 8 of 8');
    const wanted: [boolean, string][] = [
      [header.startsWith(opening), `does not open with "${opening}"`],
      [header.includes('Before it: '), 'does not say what comes before it'],
      [last || header.includes('After it: '), 'does not say what comes after it'],
      [/\bDurable\b/.test(header), 'does not say what is durable'],
      [/\bDies\b/.test(header), 'does not say what happens when the process dies in it'],
      [/\bDies\b.*(?:janitor|bell|next claim|redelivery|swept|leads next)/.test(header), 'does not say who repairs it'],
    ];
    return wanted.filter(([ok]) => !ok).map(([, lack]) => `${path}:1 the header ${lack}`);
  });

// Put together here, so that this file does not hold what it looks for.
const leftovers = new RegExp(`\\b(?:${['TO' + 'DO', 'FIX' + 'ME', 'XX' + 'X'].join('|')})\\b`);

export const nothingLeftToDo: Rule = (files) =>
  linesOf(files).flatMap(({ path, line, text }) =>
    leftovers.test(text) ? [`${path}:${line} leaves something to do`] : [],
  );

/** Every line of every file but the lock file. */
function* linesIn(files: readonly SourceFile[]) {
  for (const { path, text } of files) {
    if (path === 'package-lock.json') continue;
    for (const [index, line] of text.split('\n').entries()) yield { path, line: index + 1, text: line };
  }
}
const linesOf = (files: readonly SourceFile[]) => [...linesIn(files)];

/** No enum, namespace, parameter property or decorator: only what Node can erase. And no class but of errors. */
export const erasableSyntax: Rule = (files) =>
  modulesIn(files, ...code).flatMap((file) => {
    const enums = [...file.text.matchAll(/^(?:export )?(?:declare )?(?:const )?enum\s+\w+/gm)];
    const found: Offence[] = enums.map((match) => `${file.path}:${lineAt(file.text, match.index)} declares an enum`);
    try {
      for (const { node } of nodesOf(treeOf(file))) {
        if (!node.type.startsWith('Class') || node.type === 'ClassBody') continue;
        if (nameOf(node.superClass) !== 'Error')
          found.push(`${file.path}:${lineOf(node)} has a class that is no error`);
      }
    } catch (error) {
      found.push(
        `${file.path}:1 cannot be erased or parsed: ${error instanceof Error ? error.message : String(error)}`,
      );
    }
    return found;
  });

/* ------------------------------------------------------------------ reachability */

/** Every module of `src/` is reached from `src/main.ts` by imports or by the URL of a file beside the one that names it. */
export const reachable: Rule = (files) => {
  if (!files.some(({ path }) => path === 'src/main.ts')) return ['src/main.ts:1 is missing'];
  const seen = reachedFrom(files, () => true);
  return modulesIn(files, 'src/')
    .filter((file) => !seen.has(file))
    .map(({ path }) => `${path}:1 is not reached from src/main.ts`);
};

/** What decodes pictures is loaded by no role: only by the children that are started from its file's URL. */
export const decoderInChildrenOnly: Rule = (files) =>
  [...reachedFrom(files, ({ isUrl, typeOnly }) => !isUrl && !typeOnly)].flatMap((file) =>
    importsOf(file)
      .filter(({ specifier, typeOnly }) => packageOf(specifier) === 'sharp' && !typeOnly)
      .map(({ line }) => `${file.path}:${line} loads the decoder into a role`),
  );

function reachedFrom(files: readonly SourceFile[], follows: (edge: ImportOf) => boolean): Set<SourceFile> {
  const modules = new Map(modulesIn(files, 'src/').map((file) => [file.path, file]));
  const seen = new Set<SourceFile>();
  const open = ['src/main.ts'];
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    const file = modules.get(path);
    if (!file || seen.has(file)) continue;
    seen.add(file);
    for (const edge of importsOf(file).filter(follows)) open.push(targetOf(file, edge.specifier) ?? '');
  }
  return seen;
}
