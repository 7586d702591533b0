-- The schema after all migrations, for reading and review. Made by scripts/schema.ts; never applied, never edited.

create table attachments (
  id uuid not null,
  owner_id uuid not null,
  state text not null,
  kind text not null,
  file_name text not null,
  content_type text not null,
  size bigint not null,
  sha256 text not null,
  alt text,
  width integer,
  height integer,
  frames integer,
  placeholder text,
  pipeline_version integer not null default 0,
  error_code text,
  staging_key text not null,
  staging_gone_at timestamp with time zone,
  original_key text,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  ready_at timestamp with time zone,
  deleted_at timestamp with time zone,
  constraint attachments_pkey primary key (id),
  constraint attachments_kind_check check ((kind = any (array['image'::text, 'file'::text]))),
  constraint attachments_sha256_check check ((sha256 ~ '^[0-9a-f]{64}$'::text)),
  constraint attachments_size_check check ((size > 0)),
  constraint attachments_state_check check ((state = any (array['queued'::text, 'processing'::text, 'ready'::text, 'failed'::text]))),
  constraint failed_says_why check (((state = 'failed'::text) = (error_code is not null))),
  constraint published_has_original check (((pipeline_version > 0) = (original_key is not null))),
  constraint ready_is_published check (((state = 'ready'::text) = (pipeline_version > 0)))
);
create index attachments_by_owner on attachments (owner_id, id desc) where (deleted_at is null);
create index attachments_by_owner_and_state on attachments (owner_id, state, id desc) where (deleted_at is null);
create index attachments_by_version on attachments (pipeline_version, id) where ((state = 'ready'::text) and (kind = 'image'::text) and (deleted_at is null));
create index attachments_staging on attachments (created_at) INCLUDE (size) where (staging_gone_at is null);
create index attachments_unpublished on attachments (size) where ((staging_gone_at is null) and (state <> 'failed'::text));

create table chat_members (
  chat_id uuid not null,
  user_id uuid not null,
  added_at timestamp with time zone not null default now(),
  constraint chat_members_pkey primary key (chat_id, user_id)
);
create index chat_members_by_user on chat_members (user_id, chat_id);

create table chats (
  id uuid not null,
  title text not null,
  owner_id uuid not null,
  created_at timestamp with time zone not null default now(),
  constraint chats_pkey primary key (id)
);

create table cleanups (
  id bigint not null generated always as identity,
  key text not null,
  not_before timestamp with time zone not null default now(),
  passes integer not null default 0,
  reason text not null,
  created_at timestamp with time zone not null default now(),
  constraint cleanups_pkey primary key (id)
);
create index cleanups_by_key on cleanups (key);
create index cleanups_due on cleanups (not_before);

create table idempotency_keys (
  user_id uuid not null,
  scope text not null,
  key text not null,
  token uuid not null,
  lease_until timestamp with time zone not null,
  fingerprint text,
  result_id uuid,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone,
  constraint idempotency_keys_pkey primary key (user_id, scope, key),
  constraint answered_is_whole check ((((fingerprint is null) = (result_id is null)) and ((fingerprint is null) = (expires_at is null)))),
  constraint idempotency_keys_scope_check check ((scope = any (array['attachment'::text, 'message'::text])))
);
create index idempotency_keys_by_expiry on idempotency_keys (coalesce(expires_at, lease_until));

create table installation (
  id uuid not null default gen_random_uuid(),
  only_one boolean not null default true,
  constraint installation_pkey primary key (only_one),
  constraint installation_only_one_check check (only_one)
);

create table job_events (
  id bigint not null generated always as identity,
  job_id uuid not null,
  at timestamp with time zone not null default now(),
  from_state text,
  to_state text not null,
  fence integer not null,
  who text not null,
  reason text not null,
  code text,
  detail text,
  constraint job_events_pkey primary key (id),
  constraint job_events_reason_check check ((reason = any (array['accepted'::text, 'claimed'::text, 'crashed'::text, 'exhausted'::text, 'retried'::text, 'failed'::text, 'released'::text, 'settled'::text, 'superseded'::text, 'cancelled'::text, 'reprocessed'::text, 'replayed'::text, 'rebuilding'::text])))
);
create index job_events_by_job on job_events (job_id, id);

create table jobs (
  id uuid not null,
  attachment_id uuid not null,
  owner_id uuid not null,
  version integer not null,
  origin text not null default 'upload'::text,
  state text not null,
  not_before timestamp with time zone not null default now(),
  lease_until timestamp with time zone,
  ring_at timestamp with time zone,
  rung_at timestamp with time zone,
  rings integer not null default 0,
  confirmed integer not null default 0,
  fence integer not null default 0,
  attempt_id uuid,
  worker text,
  attempts integer not null default 0,
  failures integer not null default 0,
  strikes integer not null default 0,
  crashes integer not null default 0,
  releases integer not null default 0,
  generation integer not null default 1,
  error_code text,
  error_detail text,
  traceparent text,
  waited_ms integer,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  claimed_at timestamp with time zone,
  finished_at timestamp with time zone,
  turn timestamp with time zone not null default now(),
  rebuild boolean not null default false,
  history_gone_at timestamp with time zone,
  constraint jobs_pkey primary key (id),
  constraint jobs_attachment_id_version_key unique (attachment_id, version),
  constraint finished_says_when check (((state = any (array['queued'::text, 'processing'::text])) = (finished_at is null))),
  constraint jobs_origin_check check ((origin = any (array['upload'::text, 'reprocess'::text]))),
  constraint jobs_state_check check ((state = any (array['queued'::text, 'processing'::text, 'succeeded'::text, 'failed'::text, 'superseded'::text, 'cancelled'::text]))),
  constraint jobs_version_check check ((version > 0)),
  constraint only_a_bell_is_rung check (((rung_at is null) or (ring_at is not null))),
  constraint processing_has_a_lease check (((state = 'processing'::text) = (lease_until is not null))),
  constraint processing_has_an_attempt check (((state <> 'processing'::text) or (attempt_id is not null))),
  constraint unfinished_has_a_bell check (((state = any (array['queued'::text, 'processing'::text])) = (ring_at is not null)))
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.01);
create index jobs_by_owner on jobs (owner_id, id desc);
create index jobs_claimed on jobs (claimed_at desc) where (claimed_at is not null);
create index jobs_finished on jobs (finished_at) where (finished_at is not null);
create index jobs_history on jobs (finished_at) where (finished_at > coalesce(history_gone_at, '-infinity'::timestamp with time zone));
create index jobs_reprocessing on jobs (state, version) where (origin = 'reprocess'::text);
create index jobs_ringing on jobs (ring_at) where ((state = 'processing'::text) or (rung_at is not null));
create index jobs_unfinished on jobs (owner_id, origin, turn) INCLUDE (state, rebuild) where (state = any (array['queued'::text, 'processing'::text]));
create index jobs_unsuccessful on jobs (state, id desc) where (state = any (array['failed'::text, 'superseded'::text, 'cancelled'::text]));
create index jobs_waiting on jobs (origin desc, turn, ring_at) where ((state = 'queued'::text) and (rung_at is null));
create index jobs_waiting_due on jobs (ring_at) where ((state = 'queued'::text) and (rung_at is null));

create table login_failures (
  subject text not null,
  failures integer not null,
  window_until timestamp with time zone not null,
  constraint login_failures_pkey primary key (subject)
);

create table message_attachments (
  message_id uuid not null,
  attachment_id uuid not null,
  position integer not null,
  constraint message_attachments_pkey primary key (message_id, attachment_id)
);
create index message_attachments_by_attachment on message_attachments (attachment_id);

create table messages (
  id uuid not null,
  chat_id uuid not null,
  author_id uuid not null,
  text text not null,
  created_at timestamp with time zone not null default now(),
  deleted_at timestamp with time zone,
  constraint messages_pkey primary key (id)
);
create index messages_by_chat on messages (chat_id, id desc) where (deleted_at is null);

create table reprocessings (
  version integer not null,
  asked_at timestamp with time zone not null default now(),
  asked_by text not null,
  retry_failed boolean not null default false,
  after_id uuid,
  done_at timestamp with time zone,
  constraint reprocessings_pkey primary key (version),
  constraint reprocessings_version_check check ((version > 0))
);

create table sessions (
  token_hash bytea not null,
  user_id uuid not null,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone not null,
  constraint sessions_pkey primary key (token_hash)
);
create index sessions_by_expiry on sessions (expires_at);
create index sessions_by_user on sessions (user_id);

create table users (
  id uuid not null,
  handle text not null,
  password_hash text not null,
  role text not null,
  created_at timestamp with time zone not null default now(),
  constraint users_pkey primary key (id),
  constraint users_handle_key unique (handle),
  constraint users_role_check check ((role = any (array['user'::text, 'admin'::text])))
);

create table variants (
  attachment_id uuid not null,
  name text not null,
  pipeline_version integer not null,
  content_type text not null,
  width integer not null,
  height integer not null,
  size bigint not null,
  sha256 text not null,
  key text not null,
  constraint variants_pkey primary key (attachment_id, name),
  constraint variants_key_key unique (key),
  constraint variants_height_check check ((height > 0)),
  constraint variants_name_check check ((name = any (array['thumbnail'::text, 'crop'::text, 'optimized'::text]))),
  constraint variants_sha256_check check ((sha256 ~ '^[0-9a-f]{64}$'::text)),
  constraint variants_size_check check ((size > 0)),
  constraint variants_width_check check ((width > 0))
);

alter table attachments add constraint attachments_owner_id_fkey foreign key (owner_id) references users(id);
alter table chat_members add constraint chat_members_chat_id_fkey foreign key (chat_id) references chats(id);
alter table chat_members add constraint chat_members_user_id_fkey foreign key (user_id) references users(id);
alter table chats add constraint chats_owner_id_fkey foreign key (owner_id) references users(id);
alter table idempotency_keys add constraint idempotency_keys_user_id_fkey foreign key (user_id) references users(id);
alter table job_events add constraint job_events_job_id_fkey foreign key (job_id) references jobs(id);
alter table jobs add constraint jobs_attachment_id_fkey foreign key (attachment_id) references attachments(id);
alter table jobs add constraint jobs_owner_id_fkey foreign key (owner_id) references users(id);
alter table message_attachments add constraint message_attachments_attachment_id_fkey foreign key (attachment_id) references attachments(id);
alter table message_attachments add constraint message_attachments_message_id_fkey foreign key (message_id) references messages(id);
alter table messages add constraint messages_author_id_fkey foreign key (author_id) references users(id);
alter table messages add constraint messages_chat_id_fkey foreign key (chat_id) references chats(id);
alter table sessions add constraint sessions_user_id_fkey foreign key (user_id) references users(id);
alter table variants add constraint variants_attachment_id_fkey foreign key (attachment_id) references attachments(id);
