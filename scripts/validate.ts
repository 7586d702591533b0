/**
 * `npm run validate`: the contract's documents against their schemas, and against what the code says.
 *
 * `contracts/openapi.json` is a valid OpenAPI 3.1 document; every example of `contracts/examples.json` obeys the schema
 * that it names; `contracts/infrastructure.json` obeys its schema, names every setting, and names none that is not there.
 */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { Validator } from '@seriousme/openapi-schema-validator';
import { Ajv2020, type ErrorObject } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import { roles } from '../src/roles.ts';
import { table } from '../src/settings.ts';

/** What was looked at, and one sentence for each thing that is wrong. */
export interface Verdict {
  readonly operations: number;
  readonly examples: number;
  readonly components: number;
  readonly problems: readonly string[];
}

export const contractFiles = [
  'openapi.json',
  'examples.json',
  'job.schema.json',
  'infrastructure.json',
  'infrastructure.schema.json',
] as const;
/** The parsed files of `contracts/`. */
export type Contract = Readonly<Record<(typeof contractFiles)[number], unknown>>;

interface Example {
  readonly name: string;
  readonly schema: string;
  readonly value: unknown;
}

type Json = Readonly<Record<string, unknown>>;

/** Reads `contracts/` of this checkout. */
export async function readContract(): Promise<Contract> {
  const folder = path.resolve(import.meta.dirname, '../contracts');
  const read = async (name: string) => [name, JSON.parse(await readFile(path.join(folder, name), 'utf8'))];
  return Object.fromEntries(await Promise.all(contractFiles.map(read))) as Contract;
}

/** Never rejects for a bad contract: that is what `problems` are for. */
export async function validate(contract: Contract): Promise<Verdict> {
  const problems: string[] = [];
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  // The package is CommonJS: under `nodenext` its default export is one level deeper.
  formats.default(ajv);
  ajv.addSchema(closed(contract['openapi.json']) as Json, 'openapi.json');
  for (const name of ['job.schema.json', 'infrastructure.schema.json'] as const) ajv.addSchema(contract[name] as Json);

  problems.push(...(await openApiProblems(contract['openapi.json'] as Json)));
  const { examples = [] } = contract['examples.json'] as { examples?: readonly Example[] };
  for (const example of examples) problems.push(...exampleProblems(ajv, example));
  problems.push(...coverageProblems(contract['openapi.json'] as Json, examples));
  problems.push(...obeys(ajv, 'infrastructure.schema.json', contract['infrastructure.json'], 'infrastructure.json'));
  const { components = [] } = contract['infrastructure.json'] as { components?: readonly Component[] };
  problems.push(...componentProblems(components));
  const operations = Object.values((contract['openapi.json'] as { paths?: Json }).paths ?? {});
  return {
    operations: operations.flatMap((methods) => Object.keys(methods as Json)).length,
    examples: examples.length,
    components: components.length,
    problems,
  };
}

/* --------------------------------------------------------------- openapi */

async function openApiProblems(document: Json): Promise<string[]> {
  const validator = new Validator();
  // It writes into what it is given.
  const { valid, errors } = await validator.validate(structuredClone(document));
  if (!valid) return sentences('openapi.json', errors);
  return validator.version === '3.1' ? [] : [`openapi.json: expected OpenAPI 3.1, received ${validator.version}`];
}

/* -------------------------------------------------------------- examples */

function exampleProblems(ajv: Ajv2020, { name, schema, value }: Example): string[] {
  return obeys(ajv, schema, value, `example ${name}`);
}

function coverageProblems(document: Json, examples: readonly Example[]): string[] {
  const names = examples.map(({ name }) => name);
  const doubled = names.filter((name, at) => names.indexOf(name) !== at);
  const { schemas = {} } = (document.components ?? {}) as { schemas?: Json };
  // A schema is shown when an example names it, or an operation whose schema refers to it.
  const shown = JSON.stringify(examples.map(({ schema }) => [schema, resolve(document, schema)]));
  const bare = Object.keys(schemas).filter((name) => !shown.includes(`#/components/schemas/${name}"`));
  return [
    ...doubled.map((name) => `examples.json: there are two examples named ${name}`),
    ...bare.map((name) => `examples.json: no example shows the schema ${name}`),
  ];
}

/** The part of the document that a reference names, or null. */
function resolve(document: Json, schema: string): unknown {
  const [file, pointer] = schema.split('#');
  if (file !== 'openapi.json' || pointer === undefined) return null;
  const steps = pointer.split('/').slice(1);
  const step = (at: unknown, name: string) => (at as Json | null)?.[name.replaceAll('~1', '/').replaceAll('~0', '~')];
  return steps.reduce(step, document as unknown) ?? null;
}

/**
 * The document with every object that lists its members closed: an example with a member that no schema knows is a stale
 * example, although a client would have to take it.
 */
function closed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(closed);
  if (typeof value !== 'object' || value === null) return value;
  const whole = Object.fromEntries(Object.entries(value).map(([name, part]) => [name, closed(part)]));
  const open = whole.type === 'object' && 'properties' in whole && !('additionalProperties' in whole);
  return open ? { ...whole, additionalProperties: false } : whole;
}

/* -------------------------------------------------------- infrastructure */

interface Component {
  readonly name: string;
  readonly kind: 'role' | 'engine';
  readonly needs?: readonly string[];
  readonly uses?: readonly string[];
  readonly settings: Readonly<Record<string, string>>;
}

function componentProblems(components: readonly Component[]): string[] {
  const problems: string[] = [];
  const named = (kind: string) => components.filter((component) => component.kind === kind).map(({ name }) => name);
  if (named('role').sort().join() !== [...roles].sort().join()) {
    problems.push(`infrastructure.json: expected the roles ${roles.join(', ')}, received ${named('role').join(', ')}`);
  }
  const defaults = new Map<string, string>(Object.values(table).map(({ env, fallback }) => [env, fallback]));
  const known = new Set<string>();
  for (const { name, needs = [], uses = [], settings = {} } of components) {
    for (const engine of [...needs, ...uses]) {
      if (!named('engine').includes(engine))
        problems.push(`infrastructure.json: ${name} needs ${engine}, which is not there`);
    }
    for (const [setting, value] of Object.entries(settings)) {
      known.add(setting);
      const expected = defaults.get(setting);
      if (expected === undefined) problems.push(`infrastructure.json: ${name} has ${setting}, which is no setting`);
      else if (expected !== value) {
        problems.push(`infrastructure.json: the default of ${setting} is "${expected}", ${name} says "${value}"`);
      }
    }
  }
  const left = [...defaults.keys()].filter((setting) => !known.has(setting));
  return [...problems, ...left.map((setting) => `infrastructure.json: no component has the setting ${setting}`)];
}

/* ---------------------------------------------------------------- shared */

function obeys(ajv: Ajv2020, schema: string, value: unknown, about: string): string[] {
  let check: ReturnType<Ajv2020['getSchema']>;
  try {
    check = ajv.getSchema(schema);
  } catch (error) {
    return [`${about}: the schema ${schema} cannot be used: ${(error as Error).message}`];
  }
  if (check === undefined) return [`${about}: there is no schema ${schema}`];
  return check(value) ? [] : sentences(about, check.errors ?? []);
}

function sentences(about: string, errors: string | readonly ErrorObject[] | undefined): string[] {
  if (errors === undefined || typeof errors === 'string') return [`${about}: ${errors ?? 'it is not valid'}`];
  return errors.map(({ instancePath, message, params }) => {
    const extra = 'additionalProperty' in params ? ` (${params.additionalProperty})` : '';
    return `${about}: ${instancePath || 'it'} ${message}${extra}`;
  });
}

if (import.meta.main) {
  const { operations, examples, components, problems } = await validate(await readContract());
  for (const problem of problems) console.error(problem);
  console.log(
    `OpenAPI 3.1 document with ${operations} operations, ${examples} examples, ${components} components: ` +
      (problems.length === 0 ? 'all valid.' : `${problems.length} problems.`),
  );
  process.exitCode = problems.length === 0 ? 0 : 1;
}
