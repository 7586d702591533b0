/**
 * The bytes: originals and variants, whole or in part, streamed from object storage.
 *
 * The row names the object, and a newer pipeline version names another. A reader that finds its object gone follows the
 * row once more; what is still missing then is an outage of storage, not an absence.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { describe, SkrepkaError } from '../errors.ts';
import { type Attachment, isImageType, variantNames } from '../pipeline/attachment.ts';
import { BlobError } from '../pipeline/ports.ts';
import { type App, type HttpDeps, type HttpSettings, userOf } from './app.ts';
import { select } from './conditions.ts';
import { contentDisposition } from './disposition.ts';
import { Id, IdParams, problems, Type } from './schemas.ts';

/** Seconds after which a client may ask again for what is being processed. */
const notReadySeconds = 1;

/** One object as it is served. */
interface Piece {
  readonly key: string;
  readonly contentType: string;
  readonly size: number;
  readonly sha256: string;
  readonly fileName: string;
}

type Pick = (attachment: Attachment) => Piece | null;

export function contentRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void {
  const paths = [
    {
      url: '/v1/attachments/:id/content',
      operationId: 'getContent',
      summary: 'Download the original',
      params: IdParams,
    },
    {
      url: '/v1/attachments/:id/variants/:name',
      operationId: 'getVariant',
      summary: 'Download a variant',
      params: Type.Object({ id: Id, name: Type.Enum([...variantNames]) }),
    },
  ];
  for (const { url, operationId, summary, params } of paths) {
    const schema = { tags: ['content'], operationId, summary, description, params, headers, response };
    const handler = (request: FastifyRequest, reply: FastifyReply) => serve(deps, settings, request, reply);
    app.get(url, { exposeHeadRoute: false, schema }, handler);
    // Its own route: the one that the framework derives would open the object, and count the bytes it does not send.
    app.head(url, { schema: { ...schema, operationId: `${operationId}Head`, hide: true } }, handler);
  }
}

async function serve(
  deps: HttpDeps,
  settings: HttpSettings,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const { id, name } = request.params as { id: string; name?: string };
  const { id: userId } = userOf(request);
  const pick: Pick = name === undefined ? original : (attachment) => variant(attachment, name);
  const look = async () => published(await deps.store.attachmentFor(userId, id), pick);

  const piece = await look();
  if (answerWithoutBytes(request, reply, piece)) return reply.send();
  if (settings.delivery === 'redirect' && (await redirect(deps, settings, reply, piece))) return reply.send();
  // Headers come after it is open: a refusal must not look like the picture.
  const opened = await open(deps, piece, look, request);
  // The row may have moved on to another version between the two looks: then everything is told of the one opened.
  const selection = describePiece(request, reply, opened.piece);
  // The answer has begun by then: the framework breaks the connection, and a shorter file is never taken for the whole.
  opened.body.once('error', (error) =>
    deps.log.warn({ requestId: request.id, error: describe(error) }, 'a download broke off'),
  );
  return reply.code(selection.kind === 'part' ? 206 : 200).send(opened.body);
}

/**
 * Sends the client to the store for a short while, with type and disposition pinned in the signature. Ranges and conditions
 * go along with it. An access that ends meanwhile ends with the URL: that is the lag of a revocation. False where the store has no URLs.
 */
async function redirect(
  { blobs }: HttpDeps,
  settings: HttpSettings,
  reply: FastifyReply,
  piece: Piece,
): Promise<boolean> {
  const location = await blobs.presign(piece.key, {
    expiresSeconds: settings.presignSeconds,
    contentType: piece.contentType,
    disposition: dispositionOf(piece),
  });
  if (location === null) return false;
  reply.code(307).headers({ location, 'cache-control': 'no-store' });
  return true;
}

/* ------------------------------------------------------------------------- which object */

/** Throws `not_found`, `attachment_not_ready` (with `state`), `attachment_failed` (with `error_code`). */
function published(attachment: Attachment | null, pick: Pick): Piece {
  if (!attachment) throw new SkrepkaError('not_found');
  const { state, errorCode } = attachment;
  if (state === 'failed') {
    throw new SkrepkaError('attachment_failed', { members: { state, error_code: errorCode } });
  }
  if (state !== 'ready') {
    throw new SkrepkaError('attachment_not_ready', { members: { state }, retryAfterSeconds: notReadySeconds });
  }
  const piece = pick(attachment);
  if (!piece) throw new SkrepkaError('not_found');
  return piece;
}

function original(attachment: Attachment): Piece | null {
  const { originalKey: key, contentType, size, sha256, fileName } = attachment;
  return key === null ? null : { key, contentType, size, sha256, fileName };
}

const extensions: Readonly<Record<string, string>> = { 'image/jpeg': 'jpg', 'image/webp': 'webp' };

function variant(attachment: Attachment, name: string): Piece | null {
  const found = attachment.variants.find((each) => each.name === name);
  if (!found) return null;
  const stem = attachment.fileName.replace(/(?<=.)\.[^.]*$/u, '');
  return { ...found, fileName: `${stem}-${name}.${extensions[found.contentType] ?? 'bin'}` };
}

/* ---------------------------------------------------------------------- headers, status */

/** Access can end, so caches ask again each time. */
const cacheControl = 'private, no-cache';

/** Inline only for what we render: everything else could be a page. */
const dispositionOf = (piece: Piece) =>
  contentDisposition(isImageType(piece.contentType) ? 'inline' : 'attachment', piece.fileName);

const etagOf = (piece: Piece) => `"${piece.sha256}"`;

function selectionOf(request: FastifyRequest, piece: Piece) {
  const { headers, method } = request;
  const conditions = {
    method,
    ifNoneMatch: headers['if-none-match'],
    ifRange: headers['if-range']?.toString(),
    range: headers.range,
  };
  return select(conditions, etagOf(piece), piece.size);
}

/** Answers what opens nothing: 304, HEAD, and 416 by throwing. True when it did. */
function answerWithoutBytes(request: FastifyRequest, reply: FastifyReply, piece: Piece): boolean {
  const { kind } = selectionOf(request, piece);
  if (kind === 'unsatisfiable') {
    reply.header('content-range', `bytes */${piece.size}`);
    throw new SkrepkaError('range_not_satisfiable', { members: { size: piece.size } });
  }
  if (kind === 'unchanged') reply.code(304).headers({ etag: etagOf(piece), 'cache-control': cacheControl });
  else if (request.method === 'HEAD') describePiece(request, reply, piece);
  return kind === 'unchanged' || request.method === 'HEAD';
}

/** Sets the headers of a piece that is served, whole or in part. */
function describePiece(request: FastifyRequest, reply: FastifyReply, piece: Piece) {
  const selection = selectionOf(request, piece);
  reply.headers({
    etag: etagOf(piece),
    'accept-ranges': 'bytes',
    'content-type': piece.contentType,
    'content-length': piece.size,
    'content-disposition': dispositionOf(piece),
    'content-security-policy': "sandbox; default-src 'none'",
    'cache-control': cacheControl,
  });
  if (selection.kind === 'part') {
    const { start, end } = selection.range;
    reply.headers({ 'content-range': `bytes ${start}-${end}/${piece.size}`, 'content-length': end - start + 1 });
  }
  return selection;
}

/* -------------------------------------------------------------------------------- bytes */

/** Opens the piece, or what the row names now if that is gone. Throws `storage_unavailable`. */
async function open(deps: HttpDeps, piece: Piece, look: () => Promise<Piece>, request: FastifyRequest) {
  const opened = await tryOpen(deps, piece, request);
  if (opened) return opened;
  const now = await look();
  const again = now.key === piece.key ? null : await tryOpen(deps, now, request);
  if (again) return again;
  deps.meter.count('objects_missing_total');
  throw new SkrepkaError('storage_unavailable', {
    log: `no object ${now.key}, which a row names: "skrepka doctor --repair" makes a lost variant anew and tells what else is lost`,
    retryAfterSeconds: 5,
  });
}

async function tryOpen({ blobs }: HttpDeps, piece: Piece, request: FastifyRequest) {
  const selection = selectionOf(request, piece);
  try {
    const { size, body } = await blobs.open(piece.key, selection.kind === 'part' ? selection.range : undefined);
    if (size === piece.size) return { piece, body };
    body.destroy();
    throw new BlobError('broken', `expected ${piece.size} bytes under ${piece.key}, received ${size}`);
  } catch (error) {
    if (error instanceof BlobError && error.fault === 'missing') return null;
    throw error;
  }
}

/* ----------------------------------------------------------------------------- contract */

const description = `Streams the object. \`ETag\` is its SHA-256 and strong; one range is served, several are answered with
the whole. Pictures of the types that are rendered are shown inline, everything else is a download. \`HEAD\` is answered
as well. Before \`ready\` the answer is 409 with \`state\` and \`Retry-After\`, after \`failed\` 409 with \`error_code\`.`;

const headers = Type.Object({
  range: Type.Optional(Type.String({ description: 'One range of bytes.' })),
  'if-none-match': Type.Optional(Type.String()),
  'if-range': Type.Optional(Type.String()),
});

const bytes = { '*/*': { schema: Type.Unsafe<unknown>({ description: 'The bytes.' }) } };
const text = (words: string) => ({ type: 'string', description: words });
const served = {
  etag: text('The SHA-256, quoted.'),
  'content-disposition': text('The name, in ASCII and in full.'),
  'accept-ranges': text('`bytes`'),
};

const response = {
  200: { description: 'The whole object.', headers: served, content: bytes },
  206: { description: 'One range.', headers: { ...served, 'content-range': text('Which bytes.') }, content: bytes },
  307: {
    description: 'With `DELIVERY=redirect`: a presigned URL of the store that answers for at most a minute.',
    headers: { location: text('The URL.') },
    type: 'null',
  },
  304: { description: 'The client has it already.', headers: { etag: text('The SHA-256, quoted.') }, type: 'null' },
  ...problems(
    ...(['not_found', 'attachment_not_ready', 'attachment_failed', 'range_not_satisfiable'] as const),
    ...(['unavailable', 'storage_unavailable'] as const),
  ),
};
