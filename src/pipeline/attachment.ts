/**
 * What an attachment is: its states, the transitions that are allowed, its keys in object storage. Pure.
 *
 * `docs/states.md` and `contracts/attachment-states.md` are proven equal to the tables here by `tests/tidy.test.ts`.
 */
import type { Code } from '../errors.ts';

export const attachmentStates = ['queued', 'processing', 'ready', 'failed'] as const;
export type AttachmentState = (typeof attachmentStates)[number];

/** From → to, with what does it. `ready` is never left: a newer version replaces the set behind it. */
export const attachmentTransitions: readonly { from: AttachmentState; to: AttachmentState; by: string }[] = [
  { from: 'queued', to: 'processing', by: 'claim' },
  { from: 'processing', to: 'queued', by: 'retry, release' },
  { from: 'processing', to: 'ready', by: 'settle' },
  { from: 'processing', to: 'failed', by: 'settle, claim of a spent budget' },
  { from: 'failed', to: 'queued', by: 'replay' },
];

export type Kind = 'image' | 'file';

/** The five content types that are rendered, each with the extension of its original's key. Everything else is stored, never decoded. */
export const imageTypes = {
  'image/jpeg': 'jpg',
  'image/png': 'png',
  'image/webp': 'webp',
  'image/gif': 'gif',
  'image/avif': 'avif',
} as const;
export type ImageType = keyof typeof imageTypes;

/** True for one of the five content types that are rendered. */
export function isImageType(value: string): value is ImageType {
  return Object.hasOwn(imageTypes, value);
}

export const variantNames = ['thumbnail', 'crop', 'optimized'] as const;
export type VariantName = (typeof variantNames)[number];

/** One published picture. Sizes in bytes and pixels; `sha256` in lower-case hex. */
export interface Variant {
  readonly name: VariantName;
  readonly contentType: string;
  readonly width: number;
  readonly height: number;
  readonly size: number;
  readonly sha256: string;
  readonly key: string;
}

/** An attachment as a reader sees it: the row, its job's counter and its current variants. */
export interface Attachment {
  readonly id: string;
  readonly ownerId: string;
  readonly state: AttachmentState;
  readonly kind: Kind;
  readonly fileName: string;
  readonly contentType: string;
  readonly size: number;
  readonly sha256: string;
  readonly alt: string | null;
  readonly width: number | null;
  readonly height: number | null;
  readonly frames: number | null;
  readonly placeholder: string | null;
  /** 0 until something is published. */
  readonly pipelineVersion: number;
  readonly attempts: number;
  readonly errorCode: Code | null;
  readonly originalKey: string | null;
  readonly variants: readonly Variant[];
  readonly createdAt: Date;
  readonly updatedAt: Date;
  readonly readyAt: Date | null;
}

/** The attachment as its 202 showed it: what a repeated idempotency key answers, whatever has become of it since. */
export function asAccepted(attachment: Attachment, alt: string | null): Attachment {
  return {
    ...attachment,
    state: 'queued',
    alt,
    width: null,
    height: null,
    frames: null,
    placeholder: null,
    pipelineVersion: 0,
    attempts: 0,
    errorCode: null,
    originalKey: null,
    variants: [],
    updatedAt: attachment.createdAt,
    readyAt: null,
  };
}

/** Where the original waits between acceptance and publication. Ids only: no user text ever reaches a key. */
export function stagingKey(attachmentId: string): string {
  return `staging/${attachmentId}`;
}

/** The folder of one attempt's objects. It ends in `/`, and a dead attempt can only ever write below its own. */
export function attemptPrefix(attachmentId: string, version: number, fence: number, attemptId: string): string {
  return `attachments/${attachmentId}/v${version}.${fence}-${attemptId}/`;
}

/** The original's file name inside an attempt's folder. `bin` for what is stored and never decoded. */
export function originalName(contentType: string): string {
  return `original.${isImageType(contentType) ? imageTypes[contentType] : 'bin'}`;
}
