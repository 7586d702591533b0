/** Chats and their members. A chat is not there for whoever is not in it: 404, whether it exists or not. */
import { SkrepkaError } from '../errors.ts';
import { isId } from '../ids.ts';
import { type Chat, handlePattern, limits } from '../pipeline/message.ts';
import { type App, type HttpDeps, type HttpSettings, userOf } from './app.ts';
import { Id, IdParams, PageOf, PageQuery, pageRequest, problems, ref, type Static, Time, Type } from './schemas.ts';
import { visibleTextPattern } from './text.ts';

const ChatShape = Type.Object(
  {
    id: Id,
    title: Type.String(),
    owner_id: Id,
    members: Type.Array(Type.Object({ id: Id, handle: Type.String() }), { description: 'The owner among them.' }),
    created_at: Time,
  },
  { $id: 'Chat' },
);

const NewChat = Type.Object(
  { title: Type.String({ minLength: 1, maxLength: limits.titleLengthMax, pattern: visibleTextPattern }) },
  { additionalProperties: false },
);

/** An id is longer than a handle can be, so the two cannot be mistaken for each other. */
const MemberParams = Type.Object({
  id: Id,
  user: Type.Union([Id, Type.String({ pattern: handlePattern })], { description: 'Id or handle of an account.' }),
});

const NothingShape = Type.Null({ description: 'Done.' });

/** `/v1/chats` and `/v1/chats/{id}/members`. */
export function chatRoutes(app: App, deps: HttpDeps, _settings: HttpSettings): void {
  app.addSchema(ChatShape);

  app.post(
    '/v1/chats',
    {
      schema: {
        tags: ['messages'],
        operationId: 'createChat',
        summary: 'Open a chat',
        body: NewChat,
        response: {
          201: ref(ChatShape),
          ...problems('validation', 'malformed_body', 'body_too_large', 'unsupported_media_type'),
        },
      },
    },
    async (request, reply) => {
      const { id: ownerId } = userOf(request);
      const chat = await deps.people.createChat({ id: deps.clock.newId(), title: request.body.title, ownerId });
      return reply.code(201).header('location', `/v1/chats/${chat.id}`).send(shapeChat(chat));
    },
  );

  app.get(
    '/v1/chats',
    {
      schema: {
        tags: ['messages'],
        operationId: 'listChats',
        summary: 'List the chats of this account, newest first',
        querystring: PageQuery,
        response: { 200: PageOf(ref(ChatShape)), ...problems('validation') },
      },
    },
    async (request) => {
      const page = await deps.people.listChats(userOf(request).id, pageRequest(request.query));
      return { items: page.items.map(shapeChat), next_cursor: page.nextCursor };
    },
  );

  app.get(
    '/v1/chats/:id',
    {
      schema: {
        tags: ['messages'],
        operationId: 'getChat',
        summary: 'Get a chat',
        params: IdParams,
        response: { 200: ref(ChatShape), ...problems('not_found') },
      },
    },
    async (request) => {
      const chat = await deps.people.chatFor(userOf(request).id, request.params.id);
      if (chat === null) throw new SkrepkaError('not_found');
      return shapeChat(chat);
    },
  );

  memberRoutes(app, deps);
}

function memberRoutes(app: App, { people }: HttpDeps): void {
  app.put(
    '/v1/chats/:id/members/:user',
    {
      schema: {
        tags: ['messages'],
        operationId: 'addMember',
        summary: 'Add a member',
        description: 'For the owner of the chat. Adding somebody twice changes nothing.',
        params: MemberParams,
        response: { 204: NothingShape, ...problems('forbidden', 'not_found') },
      },
    },
    async (request, reply) => {
      const userId = await accountId(people, request.params.user);
      const outcome = await people.addMember(userOf(request).id, request.params.id, userId);
      if (outcome === 'not_owner')
        throw new SkrepkaError('forbidden', { detail: 'Only the owner of a chat adds members.' });
      if (outcome === 'no_user') throw new SkrepkaError('not_found', { detail: 'There is no such account.' });
      if (outcome === 'not_member') throw new SkrepkaError('not_found');
      return reply.code(204).send(null);
    },
  );

  app.delete(
    '/v1/chats/:id/members/:user',
    {
      schema: {
        tags: ['messages'],
        operationId: 'removeMember',
        summary: 'Remove a member, or leave',
        description: 'For the owner of the chat, and for the member itself. The owner stays.',
        params: MemberParams,
        response: { 204: NothingShape, ...problems('forbidden', 'not_found') },
      },
    },
    async (request, reply) => {
      const userId = await accountId(people, request.params.user);
      const outcome = await people.removeMember(userOf(request).id, request.params.id, userId);
      if (outcome === 'not_owner')
        throw new SkrepkaError('forbidden', { detail: 'Only the owner of a chat removes others.' });
      if (outcome === 'is_owner')
        throw new SkrepkaError('forbidden', { detail: 'The owner of a chat cannot be removed.' });
      if (outcome === 'not_member') throw new SkrepkaError('not_found');
      return reply.code(204).send(null);
    },
  );
}

/** A handle without an account becomes an id without one, so that the guards are asked in the same order for both. */
async function accountId(people: HttpDeps['people'], idOrHandle: string): Promise<string> {
  if (isId(idOrHandle)) return idOrHandle;
  const found = await people.credentials(idOrHandle);
  return found?.user.id ?? nobodyId;
}

const nobodyId = '00000000-0000-0000-0000-000000000000';

function shapeChat(chat: Chat): Static<typeof ChatShape> {
  return {
    id: chat.id,
    title: chat.title,
    owner_id: chat.ownerId,
    members: chat.members.map(({ id, handle }) => ({ id, handle })),
    created_at: chat.createdAt.toISOString(),
  };
}
