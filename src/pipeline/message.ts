/** What people, chats and messages are: shapes and limits. Pure. */

export const limits = {
  handleLengthMax: 32,
  passwordLengthMin: 8,
  passwordLengthMax: 256,
  titleLengthMax: 120,
  messageLengthMax: 4000,
  messageAttachmentsMax: 10,
  fileNameLengthMax: 255,
  altLengthMax: 1000,
  idempotencyKeyLengthMax: 255,
  pageDefault: 50,
  pageMax: 200,
  waitSecondsMax: 30,
} as const;

/** Lower-case letters, digits, `_`, `.` and `-`, starting with a letter or digit. */
export const handlePattern = '^[a-z0-9][a-z0-9_.-]{1,31}$';

export type Role = 'user' | 'admin';

export interface User {
  readonly id: string;
  readonly handle: string;
  readonly role: Role;
  readonly createdAt: Date;
}

export interface Chat {
  readonly id: string;
  readonly title: string;
  readonly ownerId: string;
  readonly members: readonly { readonly id: string; readonly handle: string }[];
  readonly createdAt: Date;
}

export interface Message {
  readonly id: string;
  readonly chatId: string;
  readonly author: { readonly id: string; readonly handle: string };
  readonly text: string;
  /** In the order the author gave. Deleted attachments are left out. */
  readonly attachmentIds: readonly string[];
  readonly createdAt: Date;
}
