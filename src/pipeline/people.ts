/**
 * The port for people, chats and messages: small, complete and boring. The driver is `src/postgres/`.
 *
 * It knows nothing of jobs, brokers or objects, so messages keep working while workers, broker or storage are down.
 */
import type { Chat, Message, Role, User } from './message.ts';
import type { Page, PageRequest } from './registry.ts';
import type { KeyName } from './store.ts';

export type SendResult =
  | { readonly kind: 'sent'; readonly message: Message }
  /** The chat does not exist, or the author is not a member. */
  | { readonly kind: 'no_chat' }
  /** `id` is not the author's, is deleted, or has failed. */
  | { readonly kind: 'bad_attachment'; readonly id: string; readonly reason: 'unknown' | 'failed' }
  | { readonly kind: 'reservation_lost' };

export interface People {
  /** Null when the handle is taken. `passwordHash` is the encoded scrypt form. */
  createUser(user: { id: string; handle: string; passwordHash: string; role: Role }): Promise<User | null>;
  /** By handle, with the hash, for a log-in. */
  credentials(handle: string): Promise<{ user: User; passwordHash: string } | null>;
  user(id: string): Promise<User | null>;
  /** Replaces the password of an account, and ends its sessions. */
  setPassword(userId: string, passwordHash: string): Promise<void>;

  /** `tokenHash` is the SHA-256 of the token: the token itself is never stored. */
  createSession(session: { tokenHash: Uint8Array; userId: string; ttlMs: number }): Promise<{ expiresAt: Date }>;
  /** The user of a live session; null when unknown, ended or expired. */
  sessionUser(tokenHash: Uint8Array): Promise<User | null>;
  endSession(tokenHash: Uint8Array): Promise<void>;

  /** Counts a failed log-in against `subject` (a hash of handle and address), and answers how many it has in the window. */
  recordLoginFailure(subject: string, windowMs: number): Promise<number>;
  /** Failed log-ins of the subject in its running window, and seconds until that ends. */
  loginFailures(subject: string, windowMs: number): Promise<{ count: number; retryAfterSeconds: number }>;
  clearLoginFailures(subject: string): Promise<void>;

  createChat(chat: { id: string; title: string; ownerId: string }): Promise<Chat>;
  chatFor(userId: string, chatId: string): Promise<Chat | null>;
  listChats(userId: string, page: PageRequest): Promise<Page<Chat>>;
  /** Guard: `actorId` owns the chat. `no_user`: no such account. Adding twice is fine. */
  addMember(actorId: string, chatId: string, userId: string): Promise<'added' | 'not_member' | 'not_owner' | 'no_user'>;
  /** Guard: `actorId` owns the chat, or leaves it; the owner cannot be removed. */
  removeMember(
    actorId: string,
    chatId: string,
    userId: string,
  ): Promise<'removed' | 'not_member' | 'not_owner' | 'is_owner'>;

  /** Guard: the author is a member; every attachment is the author's own, not deleted, not failed. With a reservation, answers it in the same transaction. */
  send(message: {
    id: string;
    chatId: string;
    authorId: string;
    text: string;
    attachmentIds: readonly string[];
    reservation: (KeyName & { token: string; fingerprint: string; keepMs: number }) | null;
  }): Promise<SendResult>;
  listMessages(userId: string, chatId: string, page: PageRequest): Promise<Page<Message> | null>;
  messageFor(userId: string, messageId: string): Promise<Message | null>;
  /** What a key was answered with, for its author: the message as it was sent, also when it, or what it carries, was deleted since. */
  sentMessage(authorId: string, messageId: string): Promise<Message | null>;
  /** Guard: the author's own. Ends the access that the message gave. False: not there for this user; `forbidden`: somebody else's in a chat of this user's. */
  deleteMessage(userId: string, messageId: string): Promise<'deleted' | 'not_found' | 'forbidden'>;
}
