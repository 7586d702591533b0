/**
 * Messages: posting, with an idempotency key where the client wants to be sure, reading and deleting.
 *
 * Broker, workers and object storage are never asked: a message goes out while all of them are down, and it may carry
 * attachments that are still queued.
 */
import { createHash } from 'node:crypto';
import { SkrepkaError } from '../errors.ts';
import { limits, type Message } from '../pipeline/message.ts';
import type { SendResult } from '../pipeline/people.ts';
import type { KeyName } from '../pipeline/store.ts';
import { type App, type HttpDeps, type HttpSettings, userOf } from './app.ts';
import { Id, IdParams, PageOf, PageQuery, pageRequest, problems, ref, type Static, Time, Type } from './schemas.ts';
import { textPattern } from './text.ts';

const MessageShape = Type.Object(
  {
    id: Id,
    chat_id: Id,
    author: Type.Object({ id: Id, handle: Type.String() }),
    text: Type.String(),
    attachment_ids: Type.Array(Id, { description: 'In the order given. Deleted attachments are left out.' }),
    created_at: Time,
  },
  { $id: 'Message' },
);

const NewMessage = Type.Object(
  {
    text: Type.Optional(
      Type.String({
        maxLength: limits.messageLengthMax,
        pattern: textPattern,
        default: '',
        description: 'Counted in Unicode code points. May be empty when there are attachments.',
      }),
    ),
    attachment_ids: Type.Optional(
      Type.Array(Id, {
        maxItems: limits.messageAttachmentsMax,
        uniqueItems: true,
        default: [],
        description: 'Attachments of the author, in any state but `failed`.',
      }),
    ),
  },
  { additionalProperties: false },
);

const SendHeaders = Type.Object({
  'idempotency-key': Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: limits.idempotencyKeyLengthMax,
      pattern: '^[\\x20-\\x7e]+$',
      description: 'Sending again with the same key and content answers the same message, and sends none.',
    }),
  ),
});

/** A reservation outlives the longest transaction (30 s); the process that held it is then surely done, or dead. */
const reservationMs = 45_000;

/** `/v1/chats/{id}/messages`, `/v1/messages/{id}`. */
export function messageRoutes(app: App, deps: HttpDeps, settings: HttpSettings): void {
  app.addSchema(MessageShape);

  app.post(
    '/v1/chats/:id/messages',
    {
      schema: {
        tags: ['messages'],
        operationId: 'sendMessage',
        summary: 'Send a message',
        params: IdParams,
        headers: SendHeaders,
        body: NewMessage,
        response: {
          201: ref(MessageShape),
          ...problems(
            'validation',
            'malformed_body',
            'not_found',
            'attachment_failed',
            'idempotency_in_flight',
            'body_too_large',
            'unsupported_media_type',
            'idempotency_mismatch',
          ),
        },
      },
    },
    async (request, reply) => {
      const { text = '', attachment_ids: attachmentIds = [] } = request.body;
      if (text === '' && attachmentIds.length === 0) {
        const detail = 'A message needs a text or an attachment.';
        throw new SkrepkaError('validation', { detail, members: { field: '/text' } });
      }
      const draft = { chatId: request.params.id, authorId: userOf(request).id, text, attachmentIds };
      const key = request.headers['idempotency-key'];
      const message = key === undefined ? await send(deps, draft) : await sendOnce(deps, settings, draft, key);
      return reply.code(201).header('location', `/v1/messages/${message.id}`).send(shapeMessage(message));
    },
  );

  app.get(
    '/v1/chats/:id/messages',
    {
      schema: {
        tags: ['messages'],
        operationId: 'listMessages',
        summary: 'List the messages of a chat, newest first',
        params: IdParams,
        querystring: PageQuery,
        response: { 200: PageOf(ref(MessageShape)), ...problems('validation', 'not_found') },
      },
    },
    async (request) => {
      const page = await deps.people.listMessages(userOf(request).id, request.params.id, pageRequest(request.query));
      if (page === null) throw new SkrepkaError('not_found');
      return { items: page.items.map(shapeMessage), next_cursor: page.nextCursor };
    },
  );

  singleMessageRoutes(app, deps);
}

function singleMessageRoutes(app: App, deps: HttpDeps): void {
  app.get(
    '/v1/messages/:id',
    {
      schema: {
        tags: ['messages'],
        operationId: 'getMessage',
        summary: 'Get a message',
        params: IdParams,
        response: { 200: ref(MessageShape), ...problems('not_found') },
      },
    },
    async (request) => {
      const message = await deps.people.messageFor(userOf(request).id, request.params.id);
      if (message === null) throw new SkrepkaError('not_found');
      return shapeMessage(message);
    },
  );

  app.delete(
    '/v1/messages/:id',
    {
      schema: {
        tags: ['messages'],
        operationId: 'deleteMessage',
        summary: 'Delete a message of one’s own',
        description: 'Ends at once the access to attachments that the message gave.',
        params: IdParams,
        response: { 204: Type.Null({ description: 'Done.' }), ...problems('forbidden', 'not_found') },
      },
    },
    async (request, reply) => {
      const outcome = await deps.people.deleteMessage(userOf(request).id, request.params.id);
      if (outcome === 'forbidden')
        throw new SkrepkaError('forbidden', { detail: 'Only its author deletes a message.' });
      if (outcome === 'not_found') throw new SkrepkaError('not_found');
      return reply.code(204).send(null);
    },
  );
}

interface Draft {
  readonly chatId: string;
  readonly authorId: string;
  readonly text: string;
  readonly attachmentIds: readonly string[];
}

type Reservation = KeyName & { token: string; fingerprint: string; keepMs: number };

async function send(deps: HttpDeps, draft: Draft, reservation: Reservation | null = null): Promise<Message> {
  return sentOrThrow(await deps.people.send({ id: deps.clock.newId(), ...draft, reservation }), draft);
}

/**
 * Reserves the key, sends, and lets the sending transaction answer the key: either both are there or neither is. A key
 * that was answered for the same content answers again, whatever has become of the message since.
 */
async function sendOnce(deps: HttpDeps, settings: HttpSettings, draft: Draft, key: string): Promise<Message> {
  const name: KeyName = { userId: draft.authorId, scope: 'message', key };
  const token = deps.clock.newId();
  const fingerprint = fingerprintOf(draft);
  const found = await deps.store.reserve({ ...name, token, leaseMs: reservationMs });
  if (found.kind === 'in_flight') throw inFlight(found.retryAfterSeconds);
  if (found.kind === 'answered') {
    if (found.fingerprint !== fingerprint) throw new SkrepkaError('idempotency_mismatch');
    const message = await deps.people.sentMessage(draft.authorId, found.resultId);
    if (message === null) throw new Error(`Expected the message ${found.resultId} of an answered key, received none`);
    return message;
  }
  try {
    return await send(deps, draft, { ...name, token, fingerprint, keepMs: settings.idempotencyMs });
  } catch (error) {
    // Right also when the commit's outcome is unknown: the transaction locks the key's row until it ends, and an answered
    // key is not dropped. If this fails as well, the lease ends by itself.
    await deps.store.dropReservation({ ...name, token }).catch(() => undefined);
    throw error;
  }
}

function fingerprintOf({ chatId, text, attachmentIds }: Draft): string {
  return createHash('sha256')
    .update(JSON.stringify([chatId, text, attachmentIds]))
    .digest('hex');
}

function sentOrThrow(result: SendResult, { attachmentIds }: Draft): Message {
  switch (result.kind) {
    case 'sent':
      return result.message;
    case 'no_chat':
      throw new SkrepkaError('not_found');
    case 'bad_attachment': {
      const field = `/attachment_ids/${attachmentIds.indexOf(result.id)}`;
      if (result.reason === 'failed') throw new SkrepkaError('attachment_failed', { members: { field } });
      const detail = `"${field}" is not an attachment of this account.`;
      throw new SkrepkaError('validation', { detail, members: { field } });
    }
    case 'reservation_lost':
      throw inFlight(1);
  }
}

function inFlight(retryAfterSeconds: number): SkrepkaError {
  return new SkrepkaError('idempotency_in_flight', { retryAfterSeconds });
}

function shapeMessage(message: Message): Static<typeof MessageShape> {
  return {
    id: message.id,
    chat_id: message.chatId,
    author: { id: message.author.id, handle: message.author.handle },
    text: message.text,
    attachment_ids: [...message.attachmentIds],
    created_at: message.createdAt.toISOString(),
  };
}
