-- Up Migration

-- A job is written five times between its upload and its end, and each time anew in every index that its row is in. So what is asked
-- rarely, or is few, no longer has an entry of every job:
--   jobs_by_state     jobs that ended without success; those that succeeded are nearly all there are, the unfinished have their own
--   jobs_created      ids begin with their time, as the count of uploads in the last minute reads them
--   jobs_backlog      counted from the unfinished, whose index has all that the count looks at
drop index jobs_by_state, jobs_created, jobs_backlog, jobs_unfinished_by_owner;
create index jobs_unfinished on jobs (owner_id, origin, turn) include (state, rebuild) where state in ('queued', 'processing');
create index jobs_unsuccessful on jobs (state, id desc) where state in ('failed', 'superseded', 'cancelled');

-- Down Migration

drop index jobs_unfinished, jobs_unsuccessful;
create index jobs_by_state on jobs (state, id desc);
create index jobs_created on jobs (created_at);
create index jobs_backlog on jobs (origin) where state = 'queued' and not rebuild;
create index jobs_unfinished_by_owner on jobs (owner_id, origin, turn) where state in ('queued', 'processing');
