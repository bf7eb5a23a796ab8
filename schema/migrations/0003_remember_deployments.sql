-- What a rollback needs, and a job that was replaced while it ran.
-- Locks: ACCESS EXCLUSIVE on revision and cancel_request for as long as a catalogue change takes; no table is rewritten. Old
-- code: neither reads nor writes the new columns; what it registers cannot be put in force again, see use_revision_v1.

alter table pgclaim.revision
  add column deployment jsonb;  -- what register_v1 was asked for; null for one that was registered before this migration
comment on table pgclaim.revision is
  'Deployments by the digest of their kinds. A digest seen before never displaces a newer one, unless somebody says so.';

alter table pgclaim.cancel_request
  add column replaced boolean not null default false;  -- a successor has its unique key: it runs on, and is not retried

drop function if exists pgclaim.lock_gates(text[]);  -- has a second argument now
