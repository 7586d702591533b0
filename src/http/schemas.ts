/**
 * The shapes that several routes share, as TypeBox schemas: they validate, serialise, type and document at once.
 *
 * Those with an `$id` are components of the OpenAPI document; routes name them with `ref`.
 */
import type { FastifySchemaCompiler } from 'fastify';
import Type, { type Static, type TSchema } from 'typebox';
import { Compile } from 'typebox/compile';
import { type Code, catalogue } from '../errors.ts';
import { attachmentStates, variantNames } from '../pipeline/attachment.ts';
import { limits } from '../pipeline/message.ts';
import type { App } from './app.ts';

export { type Static, Type };

/**
 * The validator of every route. Queries, paths and headers arrive as text: whole numbers among them become numbers, and
 * nothing else is converted. The library's own conversion takes 1.5 for 1 and the first of two values for the only one.
 */
export const compileSchema: FastifySchemaCompiler<TSchema> = ({ schema, httpPart }) => {
  const shape = Compile(schema);
  return (given: unknown) => {
    const value = httpPart === 'body' ? given : withNumbers(schema, given);
    return shape.Check(value) ? { value } : { error: shape.Errors(value) };
  };
};

function withNumbers(schema: TSchema, given: unknown): unknown {
  const { properties = {} } = schema as { properties?: Readonly<Record<string, { type?: unknown }>> };
  const value: Record<string, unknown> = { ...(given as object) };
  for (const [name, { type }] of Object.entries(properties)) {
    const text = value[name];
    if (type === 'integer' && typeof text === 'string' && /^-?\d{1,15}$/.test(text)) value[name] = Number(text);
  }
  return value;
}

/** A reference to a shared schema, typed as what it stands for. */
export function ref<T extends TSchema>(schema: T & { $id?: string }) {
  if (schema.$id === undefined) throw new TypeError('Expected a schema with an $id for a reference, received none');
  return Type.Unsafe<Static<T>>({ $ref: `${schema.$id}#` });
}

/** `type` or null, in the short form of OpenAPI 3.1. */
export function nullable<T extends TSchema>(schema: T) {
  const { type, ...rest } = schema as unknown as { type: string };
  return Type.Unsafe<Static<T> | null>({ ...rest, type: [type, 'null'] });
}

export const Id = Type.String({
  pattern: '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$',
  description: 'UUIDv7, lower case.',
});
export const Time = Type.String({ format: 'date-time', description: 'RFC 3339, UTC.' });
export const Sha256 = Type.String({ pattern: '^[0-9a-f]{64}$', description: 'SHA-256 in lower-case hex.' });
export const IdParams = Type.Object({ id: Id });

/** Query of every list. Add members with `Type.Object({ ...PageQuery.properties, … })`. */
export const PageQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: limits.pageMax, default: limits.pageDefault, description: 'Items a page.' }),
  ),
  cursor: Type.Optional(Type.String({ maxLength: 512, description: '`next_cursor` of the page before.' })),
});

/** The page that a query asks for, with the default filled in. */
export function pageRequest(query: Static<typeof PageQuery>): { limit: number; cursor: string | null } {
  return { limit: query.limit ?? limits.pageDefault, cursor: query.cursor ?? null };
}

/** Answer of every list, newest first. */
export function PageOf<T extends TSchema>(item: T) {
  return Type.Object({
    items: Type.Array(item),
    next_cursor: nullable(Type.String({ description: 'Null on the last page.' })),
  });
}

export const ProblemSchema = Type.Object(
  {
    type: Type.String({ description: 'Stable URI reference of the kind of problem: `/problems/<code>`.' }),
    title: Type.String(),
    status: Type.Integer(),
    detail: Type.String({ description: 'A sentence for people.' }),
    code: Type.Enum(
      (Object.keys(catalogue) as Code[]).filter((code) => catalogue[code].status !== null),
      { description: 'Stable code for programs.' },
    ),
    instance: Type.Optional(Type.String({ description: 'The request, as found in the log.' })),
    field: Type.Optional(
      Type.String({
        description: 'What was wrong: a JSON pointer into the body (`/alt`), or the name of a parameter or header.',
      }),
    ),
  },
  { $id: 'Problem', additionalProperties: true, description: 'RFC 9457. Members beyond these depend on `code`.' },
);

export const VariantSchema = Type.Object(
  {
    name: Type.Enum([...variantNames]),
    content_type: Type.String(),
    width: Type.Integer(),
    height: Type.Integer(),
    size: Type.Integer({ description: 'Bytes.' }),
    sha256: Sha256,
    url: Type.String(),
  },
  { $id: 'Variant' },
);

export const AttachmentSchema = Type.Object(
  {
    id: Id,
    state: Type.Enum([...attachmentStates]),
    kind: Type.Enum(['image', 'file']),
    file_name: Type.String({ description: 'As uploaded; never a path.' }),
    content_type: Type.String({ description: 'Told by the content, never by name or declared type.' }),
    size: Type.Integer({ description: 'Bytes of the original.' }),
    sha256: Sha256,
    alt: nullable(Type.String()),
    width: nullable(Type.Integer({ description: 'As a person sees it, after orientation.' })),
    height: nullable(Type.Integer()),
    frames: nullable(Type.Integer()),
    placeholder: nullable(Type.String({ description: 'ThumbHash, base64.' })),
    pipeline_version: Type.Integer({ description: '0 until something is published.' }),
    attempts: Type.Integer(),
    error_code: nullable(Type.String()),
    error_message: nullable(Type.String()),
    variants: Type.Array(ref(VariantSchema)),
    content_url: Type.String(),
    created_at: Time,
    updated_at: Time,
    ready_at: nullable(Time),
  },
  { $id: 'Attachment' },
);

/** Makes the shared schemas known to `app`, before any route. */
export function addSharedSchemas(app: App): void {
  for (const schema of [ProblemSchema, VariantSchema, AttachmentSchema]) app.addSchema(schema);
}

interface ProblemResponse {
  description: string;
  content: { 'application/problem+json': { schema: TSchema } };
}

/**
 * The refusals of a route, for its `response`: `{ 201: …, ...problems('validation', 'handle_taken') }`. One response a
 * status, whose description lists the codes.
 */
export function problems(...codes: readonly Code[]): Record<number, ProblemResponse> {
  const byStatus: Record<number, ProblemResponse> = {};
  for (const code of codes) {
    const { status, text } = catalogue[code];
    if (status === null) throw new TypeError(`Expected a code that can answer a request, received ${code}`);
    const line = `\`${code}\`: ${text}`;
    const known = byStatus[status];
    if (known) known.description += `\n\n${line}`;
    else {
      byStatus[status] = { description: line, content: { 'application/problem+json': { schema: ref(ProblemSchema) } } };
    }
  }
  return byStatus;
}
