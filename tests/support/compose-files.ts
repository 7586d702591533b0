/** The files of a deployment as data: `compose.yaml`, what lies on top of it, and the stack. Needs no Docker. */
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { isMap, isScalar, type Pair, parseDocument } from 'yaml';

const root = resolve(import.meta.dirname, '../..');

export type Json = Readonly<Record<string, unknown>>;

export interface Container extends Json {
  readonly image?: string;
  readonly build?: unknown;
  readonly ports?: readonly string[];
  readonly environment?: Readonly<Record<string, string | null>>;
  readonly healthcheck?: { readonly test?: readonly string[]; readonly disable?: boolean };
  readonly depends_on?: Readonly<Record<string, { readonly condition: string; readonly required?: boolean }>>;
  readonly deploy?: Json & { readonly resources?: { readonly limits?: Json } };
  readonly volumes?: readonly (string | Json)[];
  readonly secrets?: readonly string[];
}

export interface ComposeFile {
  readonly path: string;
  readonly text: string;
  readonly services: Readonly<Record<string, Container>>;
  readonly volumes: Json;
  readonly networks: Json;
  readonly secrets: Json;
  /** What is written above the member of a service, or an empty string. */
  commentAbove(service: string, member: string): string;
}

export function readText(path: string): string {
  return readFileSync(resolve(root, path), 'utf8');
}

/** Compose's own tags: `!reset` takes away what lies below, `!override` replaces it instead of adding to it. */
const customTags = ['!reset', '!override'].flatMap((tag) => [
  { tag, collection: 'map' as const },
  { tag, collection: 'seq' as const },
  { tag, resolve: () => null },
]);

/** Throws when the file is no YAML, or has a key twice. */
export function readCompose(path: string): ComposeFile {
  const text = readText(path);
  const document = parseDocument(text, { merge: true, customTags });
  const problem = document.errors[0] ?? document.warnings[0];
  if (problem) throw new Error(`${path}: ${problem.message}`);
  const content = document.toJS() as Json;
  const part = (name: string) => (content[name] ?? {}) as Json;
  return {
    path,
    text,
    services: part('services') as Readonly<Record<string, Container>>,
    volumes: part('volumes'),
    networks: part('networks'),
    secrets: part('secrets'),
    commentAbove(service, member) {
      const node = document.getIn(['services', service], true);
      const pair = isMap(node) ? node.items.find((item) => nameOf(item) === member) : undefined;
      return (isScalar(pair?.key) && pair.key.commentBefore) || '';
    },
  };
}

function nameOf({ key }: Pair): unknown {
  return isScalar(key) ? key.value : null;
}

/** A file on top of another, as far as services are concerned. */
export function onTop(below: ComposeFile, above: ComposeFile): Readonly<Record<string, Container>> {
  const names = new Set([...Object.keys(below.services), ...Object.keys(above.services)]);
  return Object.fromEntries([...names].map((name) => [name, { ...below.services[name], ...above.services[name] }]));
}

export interface Variable {
  readonly name: string;
  /** What stands in its place when it is not set; null when it has to be. */
  readonly fallback: string | null;
}

/** Every `${NAME…}` of a text, those inside of defaults as well. */
export function variablesOf(text: string): readonly Variable[] {
  const found: Variable[] = [];
  for (const { 1: name = '', 2: sign, index } of text.matchAll(/\$\{([A-Z][A-Z0-9_]*)(:[-?])?/g)) {
    const start = index + 2 + name.length + 2;
    found.push({ name, fallback: sign === ':-' ? text.slice(start, closing(text, start)) : null });
  }
  return found;
}

/** Where the brace that was open before `start` is closed. */
function closing(text: string, start: number): number {
  let depth = 1;
  for (let at = start; at < text.length; at += 1) {
    if (text[at] === '{') depth += 1;
    if (text[at] === '}') depth -= 1;
    if (depth === 0) return at;
  }
  throw new Error(`a brace is not closed: ${text.slice(start, start + 40)}`);
}
