-- Up Migration

-- Which installation this database is: what shares the objects' folder with it can be told from what was mounted by mistake.
-- One row for ever, also in a copy that was restored from a backup.
create table installation (
  id uuid not null default gen_random_uuid(),
  only_one boolean primary key default true check (only_one)
);
insert into installation default values;

-- Down Migration

drop table installation;
