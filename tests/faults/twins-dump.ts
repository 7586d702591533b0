/** All rows of both twins in one form: times as milliseconds from now, jobs by attachment and version, clean-ups as a set. */
import type { Pool } from '../../src/postgres/pool.ts';
import type { Tables } from './store-tables.ts';

type Row = Record<string, unknown>;

interface Cleanup {
  readonly key: string;
  readonly reason: string;
  readonly passes: number;
  readonly notBefore: number;
}

/** Clean-ups have ids of their own on each side: what they are comes first, then when. */
function byWhatAndWhen(a: Cleanup, b: Cleanup): number {
  const what = ({ key, reason, passes }: Cleanup) => `${key} ${reason} ${passes}`;
  return what(a).localeCompare(what(b)) || a.notBefore - b.notBefore;
}

export function dumpModel(tables: Tables): unknown {
  const now = tables.nowMs();
  const since = (row: object): Row =>
    Object.fromEntries(
      Object.entries(row).map(([name, value]) => [
        name,
        typeof value === 'number' && value > 1e12 ? value - now : value,
      ]),
    );
  const jobs = [...tables.jobs.values()].map((job) => {
    const { id: _id, ...row } = since(job);
    const events = (tables.events.get(job.id) ?? []).map((event) => ({ ...since(event) }));
    return { ...row, events, name: `${job.attachmentId} ${job.version}` };
  });
  return {
    attachments: Object.fromEntries([...tables.attachments.values()].map((row) => [row.id, since(row)])),
    jobs: Object.fromEntries(jobs.map(({ name, ...job }) => [name, job])),
    cleanups: [...tables.cleanups.values()]
      .map(({ key, reason, passes, notBefore }) => ({ key, reason, passes, notBefore: notBefore - now }))
      .sort(byWhatAndWhen),
    keys: Object.fromEntries([...tables.keys].map(([name, row]) => [name, since(row)])),
    wishes: Object.fromEntries([...tables.wishes.values()].map((row) => [row.version, since(row)])),
  };
}

const sql = `
  select json_build_object(
    'attachments', (select coalesce(json_agg(to_jsonb(a) || jsonb_build_object('variants', (
      select coalesce(jsonb_agg(to_jsonb(v) order by array_position(array['thumbnail', 'crop', 'optimized'], v.name)), '[]')
      from variants v where v.attachment_id = a.id
    ))), '[]') from attachments a),
    'jobs', (select coalesce(json_agg(to_jsonb(j) || jsonb_build_object('events', (
      select coalesce(jsonb_agg(to_jsonb(e) order by e.id), '[]') from job_events e where e.job_id = j.id
    ))), '[]') from jobs j),
    'cleanups', (select coalesce(json_agg(c), '[]') from cleanups c),
    'keys', (select coalesce(json_agg(k), '[]') from idempotency_keys k),
    'wishes', (select coalesce(json_agg(r), '[]') from reprocessings r)
  ) as dump`;

/** `now`: of the model, in milliseconds. */
export async function dumpSql(pool: Pool, now: number): Promise<unknown> {
  const { rows } = await pool.query<{ dump: Record<string, Row[]> }>(sql);
  const dump = rows[0]?.dump as Record<string, Row[]>;
  const rowsOf = (name: string) => (dump[name] ?? []).map((row) => camel(row, now));
  const attachments = rowsOf('attachments').map((row) => ({
    ...row,
    variants: (row.variants as Row[]).map(({ attachmentId: _a, pipelineVersion: _v, ...variant }) => variant),
  }));
  const jobs = rowsOf('jobs').map(({ id: _id, ...row }) => ({
    ...row,
    events: (row.events as Row[]).map(({ id: _e, jobId: _j, fromState: from, toState: to, ...event }) => ({
      ...event,
      from,
      to,
    })),
  })) as Row[];
  return {
    attachments: Object.fromEntries(attachments.map((row) => [(row as Row).id, row])),
    jobs: Object.fromEntries(jobs.map((row) => [`${row.attachmentId} ${row.version}`, row])),
    cleanups: rowsOf('cleanups')
      .map(({ key, reason, passes, notBefore }) => ({ key, reason, passes, notBefore }) as Cleanup)
      .sort(byWhatAndWhen),
    keys: Object.fromEntries(
      rowsOf('keys').map(({ userId, scope, key, createdAt: _c, ...row }) => [`${userId} ${scope} ${key}`, row]),
    ),
    wishes: Object.fromEntries(rowsOf('wishes').map((row) => [row.version, row])),
  };
}

const timestamp = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d)?$/;

function camel(value: unknown, now: number): Row {
  return convert(value, now) as Row;
}

function convert(value: unknown, now: number): unknown {
  if (typeof value === 'string')
    return timestamp.test(value) ? Date.parse(value.replace(/([+-]\d\d)$/, '$1:00')) - now : value;
  if (Array.isArray(value)) return value.map((item) => convert(item, now));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).map(([name, inner]) => [
    name.replace(/_([a-z])/g, (_all, letter: string) => letter.toUpperCase()),
    convert(inner, now),
  ]);
  return Object.fromEntries(entries);
}
