/** The routes of attachments: upload, metadata with long-poll, list, alt text, delete. The bytes are in `content.ts`. */
import type { FastifySchemaCompiler } from 'fastify';
import type { TSchema } from 'typebox';
import { catalogue, SkrepkaError } from '../errors.ts';
import { type Attachment, attachmentStates } from '../pipeline/attachment.ts';
import { limits } from '../pipeline/message.ts';
import { type App, type HttpDeps, type HttpSettings, userOf } from './app.ts';
import {
  AttachmentSchema,
  compileSchema,
  Id,
  IdParams,
  nullable,
  PageOf,
  PageQuery,
  pageRequest,
  problems,
  ref,
  type Static,
  Type,
} from './schemas.ts';
import { textPattern } from './text.ts';
import { openUpload } from './upload.ts';
import { createWaits, fullSeconds } from './waits.ts';

export function attachmentRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void {
  uploadRoute(app, deps, settings);
  readRoute(app, deps, settings);
  listRoute(app, deps);
  editRoutes(app, deps, settings);
}

/** An attachment as clients see it. */
export function attachmentView(a: Attachment): Static<typeof AttachmentSchema> {
  return {
    id: a.id,
    state: a.state,
    kind: a.kind,
    file_name: a.fileName,
    content_type: a.contentType,
    size: a.size,
    sha256: a.sha256,
    alt: a.alt,
    width: a.width,
    height: a.height,
    frames: a.frames,
    placeholder: a.placeholder,
    pipeline_version: a.pipelineVersion,
    attempts: a.attempts,
    error_code: a.errorCode,
    error_message: a.errorCode && catalogue[a.errorCode].text,
    variants: a.variants.map((v) => ({
      name: v.name,
      content_type: v.contentType,
      width: v.width,
      height: v.height,
      size: v.size,
      sha256: v.sha256,
      url: `/v1/attachments/${a.id}/variants/${v.name}`,
    })),
    content_url: `/v1/attachments/${a.id}/content`,
    created_at: a.createdAt.toISOString(),
    updated_at: a.updatedAt.toISOString(),
    ready_at: a.readyAt?.toISOString() ?? null,
  };
}

const tags = ['attachments'];

/* -------------------------------------------------------------------------- upload */

const uploadDescription = `All bytes in this request, either as a form with one part \`file\` and optional text fields
\`alt\` and \`sha256\` in any order, or as a raw body with its \`Content-Type\` and a name from \`Content-Disposition\` or
\`?filename=\`. A 202 is a promise: the bytes are durable, and processing survives any crash.

With \`Idempotency-Key\` the same request is answered with the same attachment for 24 hours. With \`Repr-Digest\`
(\`sha-256=:…:\`), or the field \`sha256\`, the bytes are verified before anything is recorded.

Whether there is room for an upload is decided before its body is read: 429 when this account has too much under way, 503
when the service has, both with \`Retry-After\`. With \`Expect: 100-continue\` a refusal comes before the body is sent;
otherwise it closes the connection. \`GET /v1/limits\` has the figures.`;

const UploadQuery = Type.Object({
  filename: Type.Optional(Type.String({ maxLength: 4096, description: 'Name of a raw body.' })),
});
const binary = Type.Unsafe<unknown>({ description: 'The file.' });
const form = Type.Unsafe<unknown>({
  type: 'object',
  required: ['file'],
  additionalProperties: false,
  properties: {
    file: { type: 'string', contentMediaType: 'application/octet-stream', description: 'The file, with its name.' },
    alt: { type: 'string', maxLength: limits.altLengthMax, description: 'What the picture shows.' },
    sha256: { type: 'string', pattern: '^[0-9a-fA-F]{64}$', description: 'SHA-256 of the file in hex.' },
  },
});

/** The body's schema is for readers of the contract: there is no parsed body to check. */
const allButBody: FastifySchemaCompiler<TSchema> = (route) =>
  route.httpPart === 'body' ? () => true : compileSchema(route);

function uploadRoute(app: App, deps: HttpDeps, settings: HttpSettings): void {
  app.register(async (scope) => {
    // Every media type, and no parser: the handler reads the body itself, as it is asked for.
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', async () => undefined);
    scope.post(
      '/v1/attachments',
      {
        validatorCompiler: allButBody,
        schema: {
          tags,
          operationId: 'uploadAttachment',
          summary: 'Upload a file',
          description: uploadDescription,
          querystring: UploadQuery,
          headers: Type.Object({
            'idempotency-key': Type.Optional(Type.String({ description: 'Up to 255 printable ASCII characters.' })),
            'repr-digest': Type.Optional(Type.String({ description: 'RFC 9530; raw bodies only.' })),
            'content-disposition': Type.Optional(Type.String({ description: 'RFC 6266; the name of a raw body.' })),
          }),
          body: {
            content: { 'multipart/form-data': { schema: form }, '*/*': { schema: binary } },
          },
          response: {
            202: {
              description: 'Taken in: durable, and on its way.',
              headers: {
                location: { type: 'string', description: 'The attachment.' },
                'idempotency-replayed': {
                  type: 'string',
                  description: '`true` when the key had been answered before.',
                },
              },
              content: { 'application/json': { schema: ref(AttachmentSchema) } },
            },
            ...problems(
              ...(['validation', 'empty_file', 'malformed_multipart', 'file_missing', 'too_many_files'] as const),
              ...(['digest_mismatch', 'request_timeout', 'upload_expired', 'idempotency_in_flight'] as const),
              ...(['file_too_large', 'unsupported_image', 'unsupported_media_type', 'idempotency_mismatch'] as const),
              ...(['too_many_uploads', 'overloaded', 'unavailable', 'storage_unavailable'] as const),
            ),
          },
        },
      },
      async (request, reply) => {
        // The stall of a body is watched by itself; storage may take its time after the last byte.
        request.raw.socket.setTimeout(0);
        const intake = openUpload(
          {
            raw: request.raw,
            response: reply.raw,
            userId: userOf(request).id,
            queryName: (request.query as Static<typeof UploadQuery>).filename,
          },
          settings,
        );
        const { attachment, replayed } = await deps.accept.accept(intake.upload, intake.body).finally(intake.stop);
        reply.code(202).header('location', `/v1/attachments/${attachment.id}`);
        if (replayed) reply.header('idempotency-replayed', 'true');
        return attachmentView(attachment);
      },
    );
  });
}

/* --------------------------------------------------------------------------- reads */

const WaitQuery = Type.Object({
  wait: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: limits.waitSecondsMax,
      description: 'Seconds to wait for `ready` or `failed` before answering.',
    }),
  ),
});

const ListQuery = Type.Object({
  ...PageQuery.properties,
  state: Type.Optional(Type.Enum([...attachmentStates])),
});

const readDescription = `The owner may, and the members of a chat in which a message carries it.

With \`wait\` the answer comes when the attachment is \`ready\` or \`failed\`, or after so many seconds with what is so. An account, and the
service as a whole, may have only so many such requests wait at once: a further one is answered at once with what is so, and with
\`Retry-After\`. It is no refusal: the state is true, and a client that asks in a loop asks again after that time.`;

const isOver = (seen: Attachment | null) => seen === null || seen.state === 'ready' || seen.state === 'failed';

function readRoute(app: App, { store, signals, clock }: HttpDeps, settings: HttpSettings): void {
  const waits = createWaits({ signals, clock }, settings);
  app.addHook('preClose', async () => waits.close());

  app.get(
    '/v1/attachments/:id',
    {
      schema: {
        tags,
        operationId: 'getAttachment',
        summary: 'Read an attachment',
        description: readDescription,
        params: IdParams,
        querystring: WaitQuery,
        response: {
          200: {
            description: 'The attachment.',
            headers: {
              'retry-after': {
                type: 'string',
                description:
                  'Only where `wait` was asked for and there was no room to wait: ask again after so many seconds.',
              },
            },
            content: { 'application/json': { schema: ref(AttachmentSchema) } },
          },
          ...problems('validation', 'not_found', 'unavailable'),
        },
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      const { id: userId } = userOf(request);
      const left = new AbortController();
      // Still to come: `server.ts` lets nobody in here who is gone already.
      reply.raw.once('close', () => left.abort());
      const seconds = request.query.wait ?? 0;
      const place = seconds > 0 ? waits.enter(userId) : null;
      const options = { waitMs: place === null ? 0 : seconds * 1000, signal: left.signal };
      try {
        const attachment = await waits.until(id, () => store.attachmentFor(userId, id), isOver, options);
        if (!attachment) throw new SkrepkaError('not_found');
        if (seconds > 0 && place === null && !isOver(attachment)) reply.header('retry-after', fullSeconds);
        return attachmentView(attachment);
      } finally {
        place?.leave();
      }
    },
  );
}

function listRoute(app: App, { store }: HttpDeps): void {
  app.get(
    '/v1/attachments',
    {
      schema: {
        tags,
        operationId: 'listAttachments',
        summary: 'List your own attachments',
        querystring: ListQuery,
        response: {
          200: {
            description: 'A page, newest first.',
            content: { 'application/json': { schema: PageOf(ref(AttachmentSchema)) } },
          },
          ...problems('validation', 'unavailable'),
        },
      },
    },
    async (request) => {
      const filter = { state: request.query.state ?? null, ...pageRequest(request.query) };
      const page = await store.listAttachments(userOf(request).id, filter);
      return { items: page.items.map(attachmentView), next_cursor: page.nextCursor };
    },
  );
}

/* --------------------------------------------------------------------------- edits */

const AltBody = Type.Object(
  {
    alt: nullable(Type.String({ maxLength: limits.altLengthMax, pattern: textPattern })),
  },
  { additionalProperties: false },
);

function editRoutes(app: App, { store }: HttpDeps, settings: HttpSettings): void {
  /** What an edit that found nothing answers: those who may read the attachment learn that they may not edit it. */
  async function refusal(userId: string, id: string): Promise<SkrepkaError> {
    return new SkrepkaError((await store.attachmentFor(userId, id)) ? 'forbidden' : 'not_found');
  }

  app.patch(
    '/v1/attachments/:id',
    {
      schema: {
        tags,
        operationId: 'editAttachment',
        summary: 'Edit the alt text',
        params: IdParams,
        body: AltBody,
        response: {
          200: { description: 'Edited.', content: { 'application/json': { schema: ref(AttachmentSchema) } } },
          ...problems(
            ...(['validation', 'malformed_body', 'forbidden', 'not_found', 'body_too_large'] as const),
            ...(['unsupported_media_type', 'unavailable'] as const),
          ),
        },
      },
    },
    async (request) => {
      const { id: userId } = userOf(request);
      const edited = await store.editAlt(userId, request.params.id, request.body.alt || null);
      if (!edited) throw await refusal(userId, request.params.id);
      return attachmentView(edited);
    },
  );

  app.delete(
    '/v1/attachments/:id',
    {
      schema: {
        tags,
        operationId: 'deleteAttachment',
        summary: 'Delete an attachment',
        description: 'Ends access at once, in any state; objects go soon after.',
        params: Type.Object({ id: Id }),
        response: {
          204: { description: 'Deleted.', type: 'null' },
          ...problems('forbidden', 'not_found', 'unavailable'),
        },
      },
    },
    async (request, reply) => {
      const { id: userId } = userOf(request);
      const { id } = request.params;
      if (!(await store.deleteAttachment(userId, id, { graceMs: settings.graceMs }))) throw await refusal(userId, id);
      return reply.code(204).send(null);
    },
  );
}
