-- Up Migration

create table users (
  id uuid primary key,
  handle text not null unique,
  password_hash text not null,
  role text not null check (role in ('user', 'admin')),
  created_at timestamptz not null default now()
);

-- The token itself is never stored: only its SHA-256.
create table sessions (
  token_hash bytea primary key,
  user_id uuid not null references users (id),
  created_at timestamptz not null default now(),
  expires_at timestamptz not null
);

create index sessions_by_user on sessions (user_id);
create index sessions_by_expiry on sessions (expires_at);

create table login_failures (
  subject text primary key,
  failures int not null,
  window_until timestamptz not null
);

create table chats (
  id uuid primary key,
  title text not null,
  owner_id uuid not null references users (id),
  created_at timestamptz not null default now()
);

create table chat_members (
  chat_id uuid not null references chats (id),
  user_id uuid not null references users (id),
  added_at timestamptz not null default now(),
  primary key (chat_id, user_id)
);

create index chat_members_by_user on chat_members (user_id, chat_id);

-- A deleted attachment keeps its row as a tombstone: it outlives late writes of objects.
-- pipeline_version 0: nothing is published yet.
create table attachments (
  id uuid primary key,
  owner_id uuid not null references users (id),
  state text not null check (state in ('queued', 'processing', 'ready', 'failed')),
  kind text not null check (kind in ('image', 'file')),
  file_name text not null,
  content_type text not null,
  size bigint not null check (size > 0),
  sha256 text not null check (sha256 ~ '^[0-9a-f]{64}$'),
  alt text,
  width int,
  height int,
  frames int,
  placeholder text,
  pipeline_version int not null default 0,
  error_code text,
  staging_key text not null,
  staging_gone_at timestamptz,
  original_key text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  ready_at timestamptz,
  deleted_at timestamptz,
  constraint ready_is_published check ((state = 'ready') = (pipeline_version > 0)),
  constraint published_has_original check ((pipeline_version > 0) = (original_key is not null)),
  constraint failed_says_why check ((state = 'failed') = (error_code is not null))
);

create index attachments_by_owner on attachments (owner_id, id desc) where deleted_at is null;
create index attachments_by_owner_and_state on attachments (owner_id, state, id desc) where deleted_at is null;

-- The current set only: a newer version replaces the rows in its settle and sends the old keys to the clean-ups.
create table variants (
  attachment_id uuid not null references attachments (id),
  name text not null check (name in ('thumbnail', 'crop', 'optimized')),
  pipeline_version int not null,
  content_type text not null,
  width int not null check (width > 0),
  height int not null check (height > 0),
  size bigint not null check (size > 0),
  sha256 text not null check (sha256 ~ '^[0-9a-f]{64}$'),
  key text not null unique,
  primary key (attachment_id, name)
);

create table messages (
  id uuid primary key,
  chat_id uuid not null references chats (id),
  author_id uuid not null references users (id),
  text text not null,
  created_at timestamptz not null default now(),
  deleted_at timestamptz
);

create index messages_by_chat on messages (chat_id, id desc) where deleted_at is null;

create table message_attachments (
  message_id uuid not null references messages (id),
  attachment_id uuid not null references attachments (id),
  position int not null,
  primary key (message_id, attachment_id)
);

create index message_attachments_by_attachment on message_attachments (attachment_id);

-- The job is its own outbox: an unfinished one always has a time at which its bell rings next.
--   not_before, lease_until  decide claims and are read by nothing else
--   ring_at                  decides when the relay announces; no claim reads it
--   rung_at                  tells that the present ring_at was set by the relay
--   rings, fence             never go back, not even on replay: message ids and keys are made of them
create table jobs (
  id uuid primary key,
  attachment_id uuid not null references attachments (id),
  owner_id uuid not null references users (id),
  version int not null check (version > 0),
  origin text not null default 'upload' check (origin in ('upload', 'reprocess')),
  state text not null check (state in ('queued', 'processing', 'succeeded', 'failed', 'superseded', 'cancelled')),
  not_before timestamptz not null default now(),
  lease_until timestamptz,
  ring_at timestamptz,
  rung_at timestamptz,
  rings int not null default 0,
  -- Rings confirmed since the last claim: each doubles the wait for the next.
  confirmed int not null default 0,
  fence int not null default 0,
  attempt_id uuid,
  worker text,
  attempts int not null default 0,
  failures int not null default 0,
  -- Failures whose code is permanent from its second occurrence on.
  strikes int not null default 0,
  crashes int not null default 0,
  releases int not null default 0,
  -- Grows with a replay, which zeroes failures, strikes, crashes and releases.
  generation int not null default 1,
  error_code text,
  error_detail text,
  traceparent text,
  -- Wait between the last ring and the last claim.
  waited_ms int,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  claimed_at timestamptz,
  finished_at timestamptz,
  unique (attachment_id, version),
  constraint unfinished_has_a_bell check ((state in ('queued', 'processing')) = (ring_at is not null)),
  constraint only_a_bell_is_rung check (rung_at is null or ring_at is not null),
  -- attempt_id stays behind when an attempt ends: a worker that lost the answer of its settle reads it back.
  constraint processing_has_a_lease check ((state = 'processing') = (lease_until is not null)),
  constraint processing_has_an_attempt check (state <> 'processing' or attempt_id is not null),
  constraint finished_says_when check ((state in ('queued', 'processing')) = (finished_at is null))
);

-- The two halves of the unfinished, as the relay reads them: what was never announced since its bell was set and needs a
-- place in the window, uploads before reprocessing; and what needs none (leases, repeated rings), which the window counts.
-- One index over ring_at alone read the whole backlog at every poll while the window was full.
create index jobs_waiting on jobs (origin desc, ring_at) where state = 'queued' and rung_at is null;
create index jobs_ringing on jobs (ring_at) where state = 'processing' or rung_at is not null;
create index jobs_by_state on jobs (state, id desc);
create index jobs_created on jobs (created_at);
create index jobs_finished on jobs (finished_at) where finished_at is not null;
create index jobs_claimed on jobs (claimed_at desc) where claimed_at is not null;

-- Hot rows die fast: clean them early, and leave room for updates in place.
alter table jobs set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);

-- Every transition of a job; replaying them gives the row's state, fence and counters (src/postgres/history.ts says how).
create table job_events (
  id bigint generated always as identity primary key,
  job_id uuid not null references jobs (id),
  at timestamptz not null default now(),
  from_state text,
  to_state text not null,
  fence int not null,
  who text not null,
  reason text not null check (
    reason in (
      'accepted', 'claimed', 'crashed', 'exhausted', 'retried', 'failed', 'released', 'settled', 'superseded', 'cancelled'
    )
  ),
  code text,
  -- For operators: may name keys and hosts, never credentials.
  detail text
);

create index job_events_by_job on job_events (job_id, id);

-- What nobody names any more. A key that ends in '/' is a prefix.
create table cleanups (
  id bigint generated always as identity primary key,
  key text not null,
  not_before timestamptz not null default now(),
  passes int not null default 0,
  reason text not null,
  created_at timestamptz not null default now()
);

create index cleanups_due on cleanups (not_before);

create table idempotency_keys (
  user_id uuid not null references users (id),
  scope text not null check (scope in ('attachment', 'message')),
  key text not null,
  token uuid not null,
  lease_until timestamptz not null,
  -- Null until answered.
  fingerprint text,
  result_id uuid,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  primary key (user_id, scope, key),
  constraint answered_is_whole check ((fingerprint is null) = (result_id is null) and (fingerprint is null) = (expires_at is null))
);

create index idempotency_keys_by_expiry on idempotency_keys (coalesce(expires_at, lease_until));

-- Down Migration

drop table idempotency_keys, cleanups, job_events, jobs, message_attachments, messages, variants, attachments, chat_members, chats, login_failures, sessions, users;
