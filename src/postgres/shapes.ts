/**
 * Rows of the store's tables, parsed once into the narrow types of the pipeline, and the columns that such a row needs.
 *
 * A value that no build could have written is an impossible state: it throws, and fails the request, never the data.
 */
import { type Code, isCode } from '../errors.ts';
import {
  type Attachment,
  type AttachmentState,
  attachmentStates,
  type Kind,
  type Variant,
  variantNames,
} from '../pipeline/attachment.ts';
import { type JobState, jobStates } from '../pipeline/job.ts';
import type { JobEvent, JobView } from '../pipeline/registry.ts';
import type { Claim } from '../pipeline/store.ts';

/** The columns of an `AttachmentRow`, of `attachments`. `attempts` are those of the job of the newest version. */
export const attachmentColumns = `
  attachments.id, attachments.owner_id, attachments.state, attachments.kind, attachments.file_name,
  attachments.content_type, attachments.size, attachments.sha256, attachments.alt, attachments.width,
  attachments.height, attachments.frames, attachments.placeholder, attachments.pipeline_version,
  attachments.error_code, attachments.original_key, attachments.created_at, attachments.updated_at,
  attachments.ready_at,
  (
    select jobs.attempts
    from jobs
    where jobs.attachment_id = attachments.id
    order by jobs.version desc
    limit 1
  ) as attempts,
  coalesce(
    (
      select json_agg(variants order by array_position(array['thumbnail', 'crop', 'optimized'], variants.name))
      from variants
      where variants.attachment_id = attachments.id
    ),
    '[]'
  ) as variants`;

export interface AttachmentRow {
  id: string;
  owner_id: string;
  state: string;
  kind: string;
  file_name: string;
  content_type: string;
  size: number;
  sha256: string;
  alt: string | null;
  width: number | null;
  height: number | null;
  frames: number | null;
  placeholder: string | null;
  pipeline_version: number;
  error_code: string | null;
  original_key: string | null;
  created_at: Date;
  updated_at: Date;
  ready_at: Date | null;
  attempts: number | null;
  variants: VariantRow[];
}

interface VariantRow {
  name: string;
  content_type: string;
  width: number;
  height: number;
  size: number;
  sha256: string;
  key: string;
}

export function toAttachment(row: AttachmentRow): Attachment {
  return {
    id: row.id,
    ownerId: row.owner_id,
    state: toAttachmentState(row.state),
    kind: toKind(row.kind),
    fileName: row.file_name,
    contentType: row.content_type,
    size: row.size,
    sha256: row.sha256,
    alt: row.alt,
    width: row.width,
    height: row.height,
    frames: row.frames,
    placeholder: row.placeholder,
    pipelineVersion: row.pipeline_version,
    attempts: row.attempts ?? 0,
    errorCode: toCode(row.error_code),
    originalKey: row.original_key,
    variants: row.variants.map(toVariant),
    createdAt: row.created_at,
    updatedAt: row.updated_at,
    readyAt: row.ready_at,
  };
}

function toVariant(row: VariantRow): Variant {
  return {
    name: member(variantNames, row.name, 'variants.name'),
    contentType: row.content_type,
    width: row.width,
    height: row.height,
    size: row.size,
    sha256: row.sha256,
    key: row.key,
  };
}

/** What a worker needs to know of a job that it holds. */
export interface ClaimRow {
  job_id: string;
  attachment_id: string;
  version: number;
  fence: number;
  attempt_id: string;
  failures: number;
  crashes: number;
  traceparent: string | null;
  kind: string;
  content_type: string;
  size: number;
  sha256: string;
  staging_key: string;
  original_key: string | null;
}

export function toClaim(row: ClaimRow): Claim {
  return {
    attempt: {
      jobId: row.job_id,
      attachmentId: row.attachment_id,
      version: row.version,
      fence: row.fence,
      attemptId: row.attempt_id,
    },
    kind: toKind(row.kind),
    contentType: row.content_type,
    size: row.size,
    sha256: row.sha256,
    stagingKey: row.staging_key,
    originalKey: row.original_key,
    failures: row.failures,
    crashes: row.crashes,
    traceparent: row.traceparent,
  };
}

/** The columns of a `JobRow`, of `jobs`. */
export const jobColumns = `
  jobs.id, jobs.attachment_id, jobs.owner_id, jobs.version, jobs.origin, jobs.generation, jobs.state, jobs.attempts, jobs.failures, jobs.crashes,
  jobs.releases, jobs.rings, jobs.fence, jobs.error_code, jobs.error_detail, jobs.worker, jobs.not_before,
  jobs.lease_until, jobs.ring_at, jobs.created_at, jobs.updated_at, jobs.finished_at,
  jobs.history_gone_at`;

export interface JobRow {
  id: string;
  attachment_id: string;
  owner_id: string;
  version: number;
  origin: string;
  generation: number;
  state: string;
  attempts: number;
  failures: number;
  crashes: number;
  releases: number;
  rings: number;
  fence: number;
  error_code: string | null;
  error_detail: string | null;
  worker: string | null;
  not_before: Date;
  lease_until: Date | null;
  ring_at: Date | null;
  created_at: Date;
  updated_at: Date;
  finished_at: Date | null;
  history_gone_at: Date | null;
}

export function toJobView(row: JobRow): JobView {
  return {
    id: row.id,
    attachmentId: row.attachment_id,
    ownerId: row.owner_id,
    version: row.version,
    origin: member(['upload', 'reprocess'] as const, row.origin, 'jobs.origin'),
    generation: row.generation,
    state: toJobState(row.state),
    attempts: row.attempts,
    failures: row.failures,
    crashes: row.crashes,
    releases: row.releases,
    rings: row.rings,
    fence: row.fence,
    errorCode: toCode(row.error_code),
    errorDetail: row.error_detail,
    worker: row.worker,
    notBefore: row.not_before,
    leaseUntil: row.lease_until,
    ringAt: row.ring_at,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
    finishedAt: row.finished_at,
    historyGoneAt: row.history_gone_at,
  };
}

/** An event as JSON inside its job's row. */
export interface EventRow {
  at: string;
  from_state: string | null;
  to_state: string;
  fence: number;
  who: string;
  reason: string;
  code: string | null;
  detail: string | null;
}

export function toJobEvent(row: EventRow): JobEvent {
  return {
    at: new Date(row.at),
    from: row.from_state === null ? null : toJobState(row.from_state),
    to: toJobState(row.to_state),
    fence: row.fence,
    who: row.who,
    reason: row.reason,
    code: toCode(row.code),
    detail: row.detail,
  };
}

export function toJobState(value: string): JobState {
  return member(jobStates, value, 'jobs.state');
}

export function toAttachmentState(value: string): AttachmentState {
  return member(attachmentStates, value, 'attachments.state');
}

export function toKind(value: string): Kind {
  return member(['image', 'file'] as const, value, 'attachments.kind');
}

/** A code of a newer build is shown as `internal`: the only value here that may be ahead of this build's words. */
function toCode(value: string | null): Code | null {
  if (value === null) return null;
  return isCode(value) ? value : 'internal';
}

export function member<T extends string>(set: readonly T[], value: string, column: string): T {
  const found = set.find((one) => one === value);
  if (found === undefined) throw new Error(`Expected one of ${set.join(', ')} for ${column}, received ${value}`);
  return found;
}
