/**
 * Looks at every change of a row from inside PostgreSQL, by triggers, and writes down what must never happen, even for a
 * moment. It hinders nothing.
 */
import type { KillablePostgres } from './postgres.ts';

const triggers = `
create table watch_log (at timestamptz not null default clock_timestamp(), what text not null, id uuid not null, detail text not null);

create function watch_jobs() returns trigger language plpgsql as $$
declare
  said text := '';
begin
  if new.fence < old.fence then said := said || ' fence fell'; end if;
  if new.rings < old.rings then said := said || ' rings fell'; end if;
  if new.attempts < old.attempts then said := said || ' attempts fell'; end if;
  if old.finished_at is not null and new.state <> old.state then said := said || ' ended and went on'; end if;
  if new.state = 'succeeded' and old.state not in ('processing', 'succeeded') then said := said || ' settled unclaimed'; end if;
  if new.fence <> old.fence and old.state = 'processing' and old.lease_until > now() then said := said || ' two leases'; end if;
  if said <> '' then
    insert into watch_log (what, id, detail) values ('job:' || said, old.id, old.state || ' → ' || new.state || ', fence ' || old.fence || ' → ' || new.fence);
  end if;
  return null;
end $$;
create trigger watch after update on jobs for each row execute function watch_jobs();

create function watch_attachments() returns trigger language plpgsql as $$
declare
  said text := '';
begin
  if new.pipeline_version < old.pipeline_version then said := said || ' version fell'; end if;
  if old.state in ('ready', 'failed') and new.state <> old.state then said := said || ' ended and went on'; end if;
  if old.original_key is not null and new.original_key is distinct from old.original_key then said := said || ' another original'; end if;
  if new.sha256 <> old.sha256 or new.size <> old.size then said := said || ' other bytes'; end if;
  if said <> '' then
    insert into watch_log (what, id, detail) values ('attachment:' || said, old.id, old.state || ' → ' || new.state);
  end if;
  return null;
end $$;
create trigger watch after update on attachments for each row execute function watch_attachments();

create function watch_lasting() returns trigger language plpgsql as $$
begin
  insert into watch_log (what, id, detail)
  values (tg_table_name || ': ' || lower(tg_op) || ' of what stays', (to_jsonb(old) ->> coalesce(tg_argv[0], 'id'))::uuid, to_jsonb(old)::text);
  return null;
end $$;
create trigger watch_gone after delete on jobs for each row execute function watch_lasting();
create trigger watch_gone after delete on attachments for each row execute function watch_lasting();
create trigger watch_gone after update or delete on variants for each row execute function watch_lasting('attachment_id');`;

export async function postWatch(postgres: KillablePostgres): Promise<void> {
  await postgres.talk((client) => client.query(triggers));
}

/** What it wrote down, a sentence each. */
export async function reportOf(postgres: KillablePostgres): Promise<string[]> {
  const { rows } = await postgres.talk((client) => client.query('select what, id, detail from watch_log order by at'));
  return rows.map(({ what, id, detail }) => `${what}, ${id}: ${detail}`);
}
