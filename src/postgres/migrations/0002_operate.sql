-- Up Migration

-- What decides the order in which waiting jobs get a place (src/postgres/turns.ts): one user's thousand stand behind another's one,
-- and nobody waits for ever.
alter table jobs add column turn timestamptz not null default now();
update jobs set turn = created_at where state in ('queued', 'processing');
-- The job makes the published version's variants anew, because some were lost.
alter table jobs add column rebuild boolean not null default false;
-- Events older than their retention were removed: from then on the history does not explain the row.
alter table jobs add column history_gone_at timestamptz;

-- By turn for places: whether a bell is due is seen in the index, so that those that are not cost no look at their rows. By time for
-- the question when the next bell is due.
drop index jobs_waiting;
create index jobs_waiting on jobs (origin desc, turn, ring_at) where state = 'queued' and rung_at is null;
create index jobs_waiting_due on jobs (ring_at) where state = 'queued' and rung_at is null;
create index jobs_by_owner on jobs (owner_id, id desc);
create index jobs_unfinished_by_owner on jobs (owner_id, origin, turn) where state in ('queued', 'processing');
-- The backlog, small enough to be counted every second. A doctor's repair of many is no upload, and holds none up.
create index jobs_backlog on jobs (origin) where state = 'queued' and not rebuild;
-- Whose events are still kept, or again since a replay; longest finished first.
create index jobs_history on jobs (finished_at) where finished_at > coalesce(history_gone_at, '-infinity');

-- What staging holds, and since when.
create index attachments_staging on attachments (created_at) include (size) where staging_gone_at is null;
-- What admission counts of it: what failed is kept for a while, and must not close the service.
create index attachments_unpublished on attachments (size) where staging_gone_at is null and state <> 'failed';
-- Whether a clean-up waits for an object: asked of every stray.
create index cleanups_by_key on cleanups (key);
-- What a newer version has still to make: pictures, since a file has no variants.
create index attachments_by_version on attachments (pipeline_version, id) where state = 'ready' and kind = 'image' and deleted_at is null;
-- How far it is, and how many of its jobs are unfinished.
create index jobs_reprocessing on jobs (state, version) where origin = 'reprocess';

alter table job_events drop constraint job_events_reason_check;
alter table job_events add constraint job_events_reason_check check (
  reason in (
    'accepted', 'claimed', 'crashed', 'exhausted', 'retried', 'failed', 'released', 'settled', 'superseded', 'cancelled',
    'reprocessed', 'replayed', 'rebuilding'
  )
);

-- An operator's wish to bring everything to a version: its jobs are made little by little, so that uploads go first.
create table reprocessings (
  version int primary key check (version > 0),
  asked_at timestamptz not null default now(),
  asked_by text not null,
  retry_failed boolean not null default false,
  -- The last attachment that was looked at.
  after_id uuid,
  done_at timestamptz
);

-- Down Migration

drop table reprocessings;
alter table job_events drop constraint job_events_reason_check;
alter table job_events add constraint job_events_reason_check check (
  reason in (
    'accepted', 'claimed', 'crashed', 'exhausted', 'retried', 'failed', 'released', 'settled', 'superseded', 'cancelled'
  )
);
drop index cleanups_by_key, jobs_reprocessing, attachments_by_version, attachments_unpublished, attachments_staging, jobs_unfinished_by_owner, jobs_by_owner, jobs_waiting_due, jobs_waiting;
create index jobs_waiting on jobs (origin desc, ring_at) where state = 'queued' and rung_at is null;
alter table jobs drop column history_gone_at, drop column rebuild, drop column turn;
