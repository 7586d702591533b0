/**
 * What the tidy rules look at: the files of the repository as a list in memory, and each module as its syntax tree.
 *
 * Rules never read the disk, so that a test can hand them a bad example. Types are stripped as Node strips them, which
 * keeps every position; imports of types are kept, because the dependency rule holds for them as well.
 */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { stripTypeScriptTypes } from 'node:module';
import { basename, dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Node, parse } from 'acorn';

/** `path` is relative to the repository's root, with `/`. */
export interface SourceFile {
  readonly path: string;
  readonly text: string;
}

/** One finding, as `path:line what is wrong`. */
export type Offence = string;
export type Rule = (files: readonly SourceFile[]) => readonly Offence[];

export interface ImportOf {
  readonly specifier: string;
  readonly line: number;
  readonly typeOnly: boolean;
  /** The URL of a file, not an import: what is loaded there runs elsewhere. */
  readonly isUrl: boolean;
}

/** A syntax node with its fields open: the tree is walked, not typed. */
export type Tree = Node & { readonly [field: string]: unknown };

/** The repository's root folder. */
export const root = fileURLToPath(new URL('../../', import.meta.url));

/** Of these only the name counts. */
const binaries = /\.(?:jpe?g|png|webp|gif|avif|ico|woff2?|bin|gz)$/;

/** Every file that is tracked or would be: what git lists, and without git everything but what `.gitignore` names. */
export function repositoryFiles(): SourceFile[] {
  return listed()
    .filter((path) => statSync(join(root, path), { throwIfNoEntry: false })?.isFile())
    .map((path) => ({ path, text: binaries.test(path) ? '' : readFileSync(join(root, path), 'utf8') }));
}

function listed(): string[] {
  try {
    const out = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    return out.split('\0').filter(Boolean).sort();
  } catch {
    // An unpacked archive, or a machine without git.
    return walkFolder('').sort();
  }
}

function walkFolder(folder: string): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.name === 'node_modules' || entry.name === '.git' || path === 'data') return [];
    if (entry.isDirectory()) return walkFolder(path);
    return entry.name === '.env' || entry.name.endsWith('.log') ? [] : [path];
  });
}

/** The modules among `files` below `folder`, e.g. `src/`. */
export function modulesIn(files: readonly SourceFile[], ...folders: string[]): SourceFile[] {
  return files.filter(({ path }) => /\.(?:ts|mjs|js)$/.test(path) && folders.some((folder) => path.startsWith(folder)));
}

const trees = new WeakMap<SourceFile, Tree>();

/** The syntax tree of a module. Throws the stripper's or parser's error for what Node could not run either. */
export function treeOf(file: SourceFile): Tree {
  const known = trees.get(file);
  if (known) return known;
  const source = file.path.endsWith('.ts')
    ? stripTypeScriptTypes(revealTypeImports(file.text), { mode: 'strip' })
    : file.text;
  const tree = parse(source, {
    ecmaVersion: 'latest',
    sourceType: 'module',
    locations: true,
    allowHashBang: true,
  }) as Node as Tree;
  trees.set(file, tree);
  return tree;
}

/** `import type … from` becomes `import      … from` of the same length, and survives the stripping. */
function revealTypeImports(text: string): string {
  return text
    .replace(/^(\s*import) type(?=\s+(?:[{*]|[\w$]+\s*(?:,|from\b)))/gm, '$1     ')
    .replace(/^(\s*export) type(?=\s+(?:\*|\{[^}]*\}\s*from\b))/gm, '$1     ');
}

/** All nodes below `node` with their ancestors, outermost first. */
export function* nodesOf(
  node: Tree,
  ancestors: readonly Tree[] = [],
): Generator<{ node: Tree; ancestors: readonly Tree[] }> {
  yield { node, ancestors };
  const below = [...ancestors, node];
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) if (isTree(child)) yield* nodesOf(child, below);
  }
}

export function isTree(value: unknown): value is Tree {
  return typeof value === 'object' && value !== null && typeof (value as { type?: unknown }).type === 'string';
}

/** The name of an identifier, or null for any other node. */
export function nameOf(value: unknown): string | null {
  return isTree(value) && value.type === 'Identifier' ? (value.name as string) : null;
}

/** The text of a string literal or of a template without expressions, or null. */
export function stringOf(value: unknown): string | null {
  if (!isTree(value)) return null;
  if (value.type === 'Literal') return typeof value.value === 'string' ? value.value : null;
  if (value.type !== 'TemplateLiteral') return null;
  const quasis = value.quasis as { value: { cooked: string } }[];
  return quasis.length === 1 ? (quasis[0]?.value.cooked ?? null) : null;
}

export function lineOf(node: Node): number {
  return node.loc?.start.line ?? 0;
}

/** What a module imports: statically, dynamically, as types, and as the URL of a file beside it. */
export function importsOf(file: SourceFile): ImportOf[] {
  const found: ImportOf[] = [];
  for (const { node } of nodesOf(treeOf(file))) {
    const specifier = stringOf(node.source);
    if (/^(?:Import|Export\w+)Declaration$/.test(node.type) && specifier !== null) {
      const statement = file.text.slice(node.start, node.end);
      const typeOnly = /^(?:import|export)\s+type\b/.test(statement) || isEmptied(node, statement);
      found.push({ specifier, line: lineOf(node), typeOnly, isUrl: false });
    }
    if (node.type === 'ImportExpression' && specifier !== null)
      found.push({ specifier, line: lineOf(node), typeOnly: false, isUrl: false });
    if (node.type === 'NewExpression' && nameOf(node.callee) === 'URL') {
      const [path, base] = node.arguments as unknown[];
      const url = stringOf(path);
      if (url?.startsWith('.') && isTree(base))
        found.push({ specifier: url, line: lineOf(node), typeOnly: false, isUrl: true });
    }
  }
  return [...found, ...typeExpressions(file)];
}

/** `import { type A } from 'x'`, whose names are all gone. `import 'x'` and `import {} from 'x'` were never any. */
function isEmptied(node: Tree, statement: string): boolean {
  return (node.specifiers as unknown[] | undefined)?.length === 0 && /\{\s*type\b/.test(statement);
}

/** `import('x').Y` in the place of a type, which the stripping removes. */
function typeExpressions(file: SourceFile): ImportOf[] {
  const found: ImportOf[] = [];
  for (const [index, text] of file.text.split('\n').entries()) {
    if (/^\s*(?:\*|\/\/)/.test(text)) continue;
    for (const match of text.matchAll(/[:<|&(]\s*import\('([^']+)'\)\./g)) {
      found.push({ specifier: match[1] ?? '', line: index + 1, typeOnly: true, isUrl: false });
    }
  }
  return found;
}

/** Where a relative specifier leads, from the root; null for a package or a module of Node. */
export function targetOf(file: SourceFile, specifier: string): string | null {
  return specifier.startsWith('.') ? normalize(join(dirname(file.path), specifier)) : null;
}

/** The package that a specifier names; null for a relative one and for Node's own. */
export function packageOf(specifier: string): string | null {
  if (specifier.startsWith('.') || specifier.startsWith('node:')) return null;
  return specifier.split('/', specifier.startsWith('@') ? 2 : 1).join('/');
}

/** A file's name without its folder and its first extension on. */
export function stem(path: string): string {
  return basename(path).replace(/\..*$/, '');
}
