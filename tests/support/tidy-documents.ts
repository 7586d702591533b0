/**
 * The rules of the house for documents: what they say is what the code does. Each answers with its findings; the tables
 * of the code come as arguments, the documents as text. `tests/tidy/tidy-documents.test.ts` proves that each can fail.
 */
import { dirname, join, normalize } from 'node:path';
import {
  isTree,
  modulesIn,
  nameOf,
  nodesOf,
  type Offence,
  type SourceFile,
  stringOf,
  type Tree,
  treeOf,
} from './tidy-source.ts';

/* ------------------------------------------------------------------ Markdown */

export interface Row {
  readonly line: number;
  /** Cells by the heading of their column, in lower case, with code marks and bold taken off. */
  readonly cells: Readonly<Record<string, string>>;
}

export interface Table {
  /** The nearest headings above, outermost first, in lower case. */
  readonly under: readonly string[];
  readonly rows: readonly Row[];
}

/** The tables of a Markdown text. */
export function tablesOf(markdown: string): Table[] {
  const tables: Table[] = [];
  const under: string[] = [];
  const lines = markdown.split('\n');
  for (let at = 0; at < lines.length; at += 1) {
    const heading = /^(#+)\s+(.*)$/.exec(lines[at] ?? '');
    if (heading) under.splice((heading[1]?.length ?? 1) - 1, under.length, (heading[2] ?? '').toLowerCase());
    if (!lines[at]?.startsWith('|') || !/^\|[\s:|-]+\|\s*$/.test(lines[at + 1] ?? '')) continue;
    const columns = cellsOf(lines[at] ?? '').map((cell) => cell.toLowerCase());
    const rows: Row[] = [];
    for (at += 2; lines[at]?.startsWith('|'); at += 1) {
      const cells = cellsOf(lines[at] ?? '');
      rows.push({
        line: at + 1,
        cells: Object.fromEntries(columns.map((column, index) => [column, cells[index] ?? ''])),
      });
    }
    // The line after a table may be a heading: the loop looks at it again.
    at -= 1;
    tables.push({ under: under.filter(Boolean), rows });
  }
  return tables;
}

function cellsOf(line: string): string[] {
  const inner = line.trim().slice(1, -1);
  return inner.split(/(?<!\\)\|/).map((cell) =>
    cell
      .replace(/\*\*|`/g, '')
      .replaceAll('\\|', '|')
      .trim(),
  );
}

/** Rows of all tables below a heading that starts with `heading`, given in lower case. */
function rowsUnder(markdown: string, heading: string): Row[] {
  return tablesOf(markdown)
    .filter((table) => table.under.some((title) => title.startsWith(heading)))
    .flatMap((table) => table.rows);
}

/** What stands on one side only. `expected` are the keys of the code; a row of the document is one of them or an offence. */
function differences(
  path: string,
  expected: ReadonlySet<string>,
  rows: readonly { line: number; key: string }[],
): Offence[] {
  const written = new Set(rows.map((row) => row.key));
  const twice = rows.filter((row, index) => rows.findIndex((other) => other.key === row.key) !== index);
  return [
    ...rows.filter((row) => !expected.has(row.key)).map((row) => `${path}:${row.line} is not in the code: ${row.key}`),
    ...twice.map((row) => `${path}:${row.line} stands there twice: ${row.key}`),
    ...[...expected].filter((key) => !written.has(key)).map((key) => `${path}:1 lacks: ${key}`),
  ];
}

const keyOf = (...parts: (string | number | null)[]) => parts.map((part) => part ?? '–').join(' | ');

/* ------------------------------------------------------------------ equal to the code */

type Entry = { readonly status: number | null; readonly fate: string; readonly title: string; readonly text: string };

/** Columns `code`, `status`, `fate`, `title`, `text`; `–` where there is no status. */
export function errorsEqual(catalogue: Readonly<Record<string, Entry>>, document: SourceFile): Offence[] {
  const expected = new Set(
    Object.entries(catalogue).map(([code, { status, fate, title, text }]) => keyOf(code, status, fate, title, text)),
  );
  const rows = tablesOf(document.text)
    .flatMap((table) => table.rows)
    .filter((row) => 'code' in row.cells && 'fate' in row.cells)
    .map(({ line, cells }) => ({
      line,
      key: keyOf(cells.code ?? '', cells.status ?? '', cells.fate ?? '', cells.title ?? '', cells.text ?? ''),
    }));
  return differences(document.path, expected, rows);
}

type Transition = { readonly from: string | null; readonly to: string; readonly by: string };

/** Below the heading, a table with `state` names every state, and one with `from`, `to`, `by` every transition. */
export function statesEqual(
  heading: string,
  states: readonly string[],
  transitions: readonly Transition[],
  document: SourceFile,
): Offence[] {
  const rows = rowsUnder(document.text, heading);
  const named = rows
    .filter((row) => 'state' in row.cells)
    .map((row) => ({ line: row.line, key: row.cells.state ?? '' }));
  const moved = rows
    .filter((row) => 'from' in row.cells)
    .map(({ line, cells }) => ({ line, key: keyOf(cells.from ?? '', cells.to ?? '', cells.by ?? '') }));
  return [
    ...differences(document.path, new Set(states), named),
    ...differences(document.path, new Set(transitions.map(({ from, to, by }) => keyOf(from, to, by))), moved),
  ];
}

type Step = { readonly from: string | null; readonly to: string };

/** Two tables of the code name the same steps from state to state, whatever they call them. */
export function stepsEqual(path: string, expected: readonly Step[], found: readonly Step[]): Offence[] {
  const keys = [...new Set(found.map(({ from, to }) => keyOf(from, to)))];
  return differences(
    path,
    new Set(expected.map(({ from, to }) => keyOf(from, to))),
    keys.map((key) => ({ line: 1, key })),
  );
}

interface Recipe {
  readonly version: number;
  readonly workingEdge: number;
  readonly variants: readonly {
    readonly name: string;
    readonly format: string;
    readonly fit: string;
    readonly box: { readonly width: number; readonly height: number };
    readonly quality: number;
    readonly mozjpeg?: boolean;
    readonly effort?: number;
  }[];
}

/** Below `Pipeline version N`: columns `name`, `format`, `fit`, `box`, `quality`, `encoder`, and the working edge in words. */
export function recipesEqual(recipes: Iterable<Recipe>, newest: number, document: SourceFile): Offence[] {
  const found: Offence[] = [];
  for (const { version, workingEdge, variants } of recipes) {
    const rows = rowsUnder(document.text, `pipeline version ${version}`)
      .filter((row) => 'quality' in row.cells)
      .map(({ line, cells }) => ({
        line,
        key: keyOf(
          cells.name ?? '',
          cells.format ?? '',
          cells.fit ?? '',
          cells.box ?? '',
          cells.quality ?? '',
          cells.encoder ?? '',
        ),
      }));
    const expected = variants.map((rule) => {
      const encoder = rule.effort === undefined ? `mozjpeg ${rule.mozjpeg ? 'on' : 'off'}` : `effort ${rule.effort}`;
      return keyOf(rule.name, rule.format, rule.fit, `${rule.box.width}×${rule.box.height}`, rule.quality, encoder);
    });
    found.push(...differences(document.path, new Set(expected), rows));
    if (!document.text.includes(`long edge of at most ${workingEdge} pixels`)) {
      found.push(`${document.path}:1 lacks the working edge of version ${version}, ${workingEdge} pixels`);
    }
  }
  if (!document.text.includes(`The newest version is ${newest}.`))
    found.push(`${document.path}:1 lacks the newest version, ${newest}`);
  return found;
}

/* ------------------------------------------------------------------ names what exists */

/** A title as it stands in the file; that of a template as a form, whose gaps the pieces of a case fill. */
type Title = string | RegExp;

/** The titles of a file: of each block or test its own, after those of the blocks around it. */
function titlesOf(file: SourceFile): Title[][] {
  return [...nodesOf(treeOf(file))].flatMap(({ node, ancestors }) => {
    const own = titleOf(node);
    return own === null ? [] : [[...ancestors.map(titleOf).filter((title) => title !== null), own]];
  });
}

/** Whatever takes a title and a function: test, it, describe, or the word of a suite that runs against several drivers. */
function titleOf(node: Tree): Title | null {
  if (node.type !== 'CallExpression') return null;
  const [title, ...rest] = node.arguments as Tree[];
  if (!title || !rest.some((argument) => /Function/.test(argument.type))) return null;
  return stringOf(title) ?? (title.type === 'TemplateLiteral' ? formOf(title) : null);
}

function formOf(template: Tree): RegExp {
  const quasis = template.quasis as { value: { cooked: string } }[];
  const parts = quasis.map((quasi) => quasi.value.cooked.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  return new RegExp(`^${parts.join('(.+?)')}$`);
}

/** `wanted`: the title of a test, after those of as many blocks around it as make it clear. */
function hasTitle(file: SourceFile, wanted: readonly string[]): boolean {
  const cases = casesOf(file);
  const fits = (title: Title | undefined, text: string) => {
    if (title === undefined || typeof title === 'string') return title === text;
    const pieces = title.exec(text)?.slice(1);
    return pieces !== undefined && cases.some((strings) => pieces.every((piece) => strings.has(piece)));
  };
  return titlesOf(file).some((titles) => wanted.every((text, index) => fits(titles.at(index - wanted.length), text)));
}

/** Words and numbers that stand together: those of one object or array, as in a table of cases; and each by itself. */
function casesOf(file: SourceFile): Set<string>[] {
  const known = casesKnown.get(file);
  if (known) return known;
  const cases = [...nodesOf(treeOf(file))].map(({ node }) => {
    const members = ((node.properties ?? node.elements ?? [node]) as (Tree | null)[])
      .map((member) => (member?.type === 'Property' ? (member.value as Tree) : member))
      .map((value) => stringOf(value) ?? (typeof value?.value === 'number' ? String(value.value) : null));
    return new Set(members.filter((text) => text !== null));
  });
  casesKnown.set(file, cases);
  return cases;
}

const casesKnown = new WeakMap<SourceFile, Set<string>[]>();

/** A `test` cell holds `path › title` or `path › block › title`, several of them joined by `<br>`. Other cells of the column are offences. */
export function testsExist(document: SourceFile, files: readonly SourceFile[]): Offence[] {
  const rows = tablesOf(document.text).flatMap((table) => table.rows.filter((row) => 'test' in row.cells));
  if (rows.length === 0) return [`${document.path}:1 has no row with a test`];
  return rows.flatMap(({ line, cells }) =>
    (cells.test ?? '').split(/\s*<br>\s*/).flatMap((reference) => {
      const [path = '', ...titles] = reference.split(' › ');
      const file = files.find((candidate) => candidate.path === path && path.startsWith('tests/'));
      if (!file || titles.length === 0)
        return [`${document.path}:${line} names no test: ${reference || 'an empty cell'}`];
      return hasTitle(file, titles) ? [] : [`${document.path}:${line} ${path} has no test "${titles.join(' › ')}"`];
    }),
  );
}

/**
 * Cases are numbered from 1 without a gap: a row of a table with the column `case` has the number, and one that has no test
 * yet is a point of the list, `- **12**, …`.
 */
export function casesComplete(document: SourceFile): Offence[] {
  const inTables = tablesOf(document.text)
    .flatMap((table) => table.rows)
    .filter((row) => 'case' in row.cells)
    .map(({ line, cells }) => ({ line, key: cells.case ?? '' }));
  const inList = document.text.split('\n').flatMap((text, index) => {
    const number = /^- \*\*(\d+)\*\*/.exec(text)?.[1];
    return number === undefined ? [] : [{ line: index + 1, key: number }];
  });
  const rows = [...inTables, ...inList];
  if (rows.length === 0) return [`${document.path}:1 has no case`];
  const last = Math.max(0, ...rows.map(({ key }) => Number(key)).filter(Number.isSafeInteger));
  return differences(document.path, new Set(Array.from({ length: last }, (_, index) => String(index + 1))), rows);
}

const topFolders = 'src|tests|docs|contracts|examples|scripts|bench|deploy|\\.ci|\\.github';
const mention = new RegExp(
  `(?<![\\w./-])(?:${topFolders})/[\\w./*-]*|(?<![\\w./-])[\\w.-]+\\.(?:md|json)(?![\\w/])`,
  'g',
);

/** Every path that a document names, in a link or in words, exists. `*` stands for anything. */
export function pathsExist(document: SourceFile, files: readonly SourceFile[]): Offence[] {
  const exists = (path: string) => existsAmong(files, path);
  const folder = dirname(document.path);
  return document.text.split('\n').flatMap((text, index) => {
    const links = [...text.matchAll(/\]\((?!\w+:)([^)#\s]*)(?:#[^)]*)?\)/g)]
      .map(([, target = '']) => target)
      .filter(Boolean);
    const lost = links.map((target) => normalize(join(folder, target))).filter((target) => !exists(target));
    const words = text.replace(/\]\([^)]*\)/g, ']').replace(/\w+:\/\/\S+/g, '');
    for (const [found] of words.matchAll(mention)) {
      const path = found.replace(/[.,;:]+$/, '');
      const beside = normalize(join(folder, path));
      if (!exists(path) && !(!path.includes('/') && exists(beside))) lost.push(path);
    }
    return lost.map((path) => `${document.path}:${index + 1} names ${path}, which does not exist`);
  });
}

const quoted = new RegExp(`\`((?:${topFolders})/[\\w./*-]*)\``, 'g');

/** Every path of ours that a comment of the code gives in backquotes exists. */
export function commentPathsExist(files: readonly SourceFile[]): Offence[] {
  return modulesIn(files, 'src/', 'scripts/', 'tests/').flatMap((file) =>
    file.text.split('\n').flatMap((text, index) => {
      if (!/^\s*(?:\/?\*|\/\/)/.test(text)) return [];
      return [...text.matchAll(quoted)]
        .map(([, path = '']) => path)
        .filter((path) => !existsAmong(files, path))
        .map((path) => `${file.path}:${index + 1} names ${path}, which does not exist`);
    }),
  );
}

function existsAmong(files: readonly SourceFile[], path: string): boolean {
  const clean = path.replace(/\/+$/, '');
  const form = clean.includes('*') ? patternOf(clean) : null;
  return files.some((file) => form?.test(file.path) ?? (file.path === clean || file.path.startsWith(`${clean}/`)));
}

const patternOf = (path: string) => new RegExp(`^${path.replace(/[.+?^${}()|[\]\\]/g, '\\$&').replace(/\*+/g, '.*')}$`);

/** Every decision is in the index, with its own heading as what it decides. */
export function decisionsListed(index: SourceFile, files: readonly SourceFile[]): Offence[] {
  const expected = files
    .filter(({ path }) => /^docs\/decisions\/\d{4}-[^/]*\.md$/.test(path))
    .map(({ path, text }) =>
      keyOf(path.slice('docs/decisions/'.length), /^# \d+[.:]? (.*)$/m.exec(text)?.[1] ?? 'nothing'),
    );
  const rows = tablesOf(index.text).flatMap((table) =>
    table.rows.map(({ line, cells }) => ({
      line,
      key: keyOf(/\]\(([^)]*)\)/.exec(cells.page ?? '')?.[1] ?? '', cells.decides ?? ''),
    })),
  );
  return differences(index.path, new Set(expected), rows);
}

/** A link to a heading, in this document or another, finds one. Slugs are GitHub's. */
export function linksLead(document: SourceFile, files: readonly SourceFile[]): Offence[] {
  const slugs = (text: string) =>
    [...text.matchAll(/^#+\s+(.*)$/gm)].map(([, title = '']) =>
      title
        .toLowerCase()
        .replace(/[^\p{L}\p{N}\s_-]/gu, '')
        .replace(/\s/g, '-'),
    );
  return document.text.split('\n').flatMap((text, index) =>
    [...text.matchAll(/\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)/g)].flatMap(([, target = '', slug = '']) => {
      const path = target === '' ? document.path : normalize(join(dirname(document.path), target));
      const other = files.find((file) => file.path === path);
      // A lost file is `pathsExist`'s to tell.
      if (!other || slugs(other.text).includes(slug)) return [];
      return [`${document.path}:${index + 1} links to #${slug}, which ${path} has not`];
    }),
  );
}

/** The commands that a translation tells its readers to paste are those of its original; comments are its own. */
export function walksEqual(original: SourceFile, translation: SourceFile): Offence[] {
  const walk = ({ text }: SourceFile) =>
    [...text.matchAll(/^```bash\n(.*?)^```$/gms)].flatMap(([, block = '']) =>
      block.split('\n').filter((line) => line !== '' && !line.startsWith('#')),
    );
  const [expected, received] = [walk(original), walk(translation)];
  const at = expected.findIndex((line, index) => line !== received[index]);
  if (at === -1 && expected.length === received.length) return [];
  return [`${translation.path} does not go the walk of ${original.path} from "${expected[at] ?? 'its end'}" on`];
}

/** Every metric that the code counts, observes or lists as a gauge, and every row with a `metric` in the document. */
export function metricsEqual(document: SourceFile, files: readonly SourceFile[]): Offence[] {
  const expected = new Set<string>();
  for (const file of files) {
    for (const { node } of nodesOf(treeOf(file))) for (const name of metricsOf(node)) expected.add(`skrepka_${name}`);
  }
  const rows = tablesOf(document.text)
    .flatMap((table) => table.rows)
    .filter((row) => 'metric' in row.cells)
    .map((row) => ({ line: row.line, key: row.cells.metric ?? '' }));
  return differences(document.path, expected, rows);
}

/** `meter.count('x')`, `deps.meter.observe('x', …)`, and the keys of a constant named `…Gauges`. */
function metricsOf(node: Tree): string[] {
  if (node.type === 'VariableDeclarator' && /Gauges$/.test(nameOf(node.id) ?? '') && isTree(node.init)) {
    const properties = (node.init.properties ?? []) as Tree[];
    return properties.map((property) => nameOf(property.key) ?? '');
  }
  const callee = node.callee;
  if (node.type !== 'CallExpression' || !isTree(callee) || callee.type !== 'MemberExpression') return [];
  const meter = nameOf(callee.object) ?? nameOf((callee.object as Tree).property);
  const name = stringOf((node.arguments as Tree[])[0]);
  return meter === 'meter' && name !== null ? [name] : [];
}
