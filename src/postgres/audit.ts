/** What the rows say must be in the storage: what the doctor compares with what is there. Reads only. */
import { isId } from '../ids.ts';
import { variantNames } from '../pipeline/attachment.ts';
import type { Audited } from '../pipeline/registry.ts';
import { type Pool, single } from './pool.ts';
import { member, toAttachmentState, toKind } from './shapes.ts';

interface AuditedRow {
  id: string;
  owner_id: string;
  kind: string;
  state: string;
  pipeline_version: number;
  size: number;
  sha256: string;
  staging_key: string | null;
  original_key: string | null;
  variants: { name: string; key: string; size: number; sha256: string }[];
}

/** A row and its variants are of one moment: they are read by one statement. */
const auditedColumns = `
  attachments.id, attachments.owner_id, attachments.kind, attachments.state, attachments.pipeline_version,
  attachments.size, attachments.sha256, attachments.original_key,
  case when attachments.staging_gone_at is null then attachments.staging_key end as staging_key,
  array(
    select jsonb_build_object('name', name, 'key', key, 'size', size, 'sha256', sha256)
    from variants
    where variants.attachment_id = attachments.id
    order by array_position(array['thumbnail', 'crop', 'optimized'], variants.name)
  ) as variants`;

/** Living attachments in the order of their ids, by the primary key: a page costs the same wherever it begins. */
export async function audit(
  pool: Pool,
  { after, limit }: { after: string | null; limit: number },
): Promise<readonly Audited[]> {
  const { rows } = await single<AuditedRow>(
    pool,
    `select ${auditedColumns}
     from attachments
     where attachments.id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
       and attachments.deleted_at is null
     order by attachments.id
     limit $2`,
    [after, limit],
    { writes: false },
  );
  return rows.map(toAudited);
}

/** One of them again: a listing and a row are never of the same moment. Deleted or unknown: null. */
export async function audited(pool: Pool, id: string): Promise<Audited | null> {
  if (!isId(id)) return null;
  const { rows } = await single<AuditedRow>(
    pool,
    `select ${auditedColumns}
     from attachments
     where attachments.id = $1
       and attachments.deleted_at is null`,
    [id],
    { writes: false },
  );
  return rows[0] ? toAudited(rows[0]) : null;
}

function toAudited(row: AuditedRow): Audited {
  return {
    id: row.id,
    ownerId: row.owner_id,
    kind: toKind(row.kind),
    state: toAttachmentState(row.state),
    version: row.pipeline_version,
    size: row.size,
    sha256: row.sha256,
    stagingKey: row.staging_key,
    originalKey: row.original_key,
    variants: row.variants.map(({ name, key, size, sha256 }) => ({
      name: member(variantNames, name, 'variants.name'),
      key,
      size,
      sha256,
    })),
  };
}
