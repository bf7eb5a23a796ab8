-- Order, lock sets, limits, unique keys, deadlines, queues, schedules, cancel.
-- Locks: ACCESS EXCLUSIVE on job and kind for as long as a catalogue change takes; no table is rewritten, since every new
-- column is nullable or has a constant default. Old code: reads and writes what it knew; it neither sees nor claims gated
-- jobs, because they are not in the claim index until a refill of new code has promoted them.

alter table pgclaim.kind
  add column ordering_key  text collate "C",            -- templates over the payload: account:{account}
  add column when_dead     text collate "C" not null default 'halt',
  add column locks         text[] collate "C" not null default '{}',
  add column shared_locks  text[] collate "C" not null default '{}',
  add column limit_names   text[] collate "C" not null default '{}',
  add column limit_maxes   integer[] not null default '{}',
  add column unique_key    text collate "C",
  add column unique_for_ms bigint,                      -- null: while the job is unfinished
  add column on_conflict   text collate "C" not null default 'keep',
  add column deadline_ms   bigint,
  add column when_missed   text collate "C" not null default 'dead',
  add constraint kind_when_dead_known check (when_dead in ('halt', 'skip')),
  add constraint kind_on_conflict_known check (on_conflict in ('keep', 'replace', 'reschedule')),
  add constraint kind_when_missed_known check (when_missed in ('dead', 'run')),
  add constraint kind_limits_paired check (cardinality(limit_names) = cardinality(limit_maxes));

create table pgclaim.queue (
  name      text    collate "C" not null,
  paused_at timestamptz,
  max       integer,  -- jobs of this queue at a time; null: no limit
  constraint queue_pkey primary key (name),
  constraint queue_max_range check (max >= 1)
);
comment on table pgclaim.queue is 'Queues that are paused or limited. A queue without a row is neither.';

create sequence pgclaim.place_seq cache 1;
comment on sequence pgclaim.place_seq is 'Places of gated jobs, drawn at COMMIT under the gate locks: their order is the order of commits.';

alter table pgclaim.job
  add column ordering_key text collate "C",
  add column locks        text[] collate "C",
  add column shared_locks text[] collate "C",
  add column limit_names  text[] collate "C",
  add column limit_maxes  integer[],
  add column gate         text collate "C",   -- ordering key, else first limit, else first exclusive name; with its class
  add column gate_width   integer,            -- rows of the gate that may stand in the claim index
  add column place        bigint,             -- null from insert until COMMIT: seen by its own transaction only
  add column when_dead    text collate "C" not null default 'halt',
  add column deadline_at  timestamptz,
  add column when_missed  text collate "C" not null default 'dead',
  add column unique_key   text collate "C";

alter table pgclaim.job
  drop constraint job_state_known,
  drop constraint job_dead_reason_known,
  add constraint job_state_known check (state in ('scheduled', 'ready', 'blocked', 'dead')),
  add constraint job_dead_reason_known check (dead_reason in ('attempts', 'handler', 'crashed', 'missed')),
  add constraint job_blocked_has_gate check (state <> 'blocked' or gate is not null),
  add constraint job_gate_has_width check ((gate is null) = (gate_width is null));

-- Of a gate: the rows in the claim index; those that keep an ordering key without standing there; the waiting rows in the
-- order in which refill promotes them, an ordering key by place and the others by rank.
create index job_gate_ready on pgclaim.job (gate, place) where gate is not null and state = 'ready';
create index job_gate_held on pgclaim.job (gate, place)
  where gate is not null and (state = 'scheduled' or (state = 'dead' and when_dead = 'halt'));
create index job_gate_placed on pgclaim.job (gate, place) where state = 'blocked' and ordering_key is not null;
create index job_gate_ranked on pgclaim.job (gate, priority, rank, id) where state = 'blocked' and ordering_key is null;
-- Rows of a transaction that has not committed yet. Empty, as far as anybody else can see.
create index job_unplaced on pgclaim.job (gate, id) where gate is not null and place is null;

-- What take_locks answers.
create type pgclaim.taken as (keys bigint[], shared boolean[], after bigint[], reason text, class text, name text);

-- Somebody who could not see must look again: append only, read and deleted under the gate lock.
create table pgclaim.recheck (
  id   bigint generated always as identity,
  gate text collate "C" not null,
  constraint recheck_pkey primary key (id)
);
create index recheck_gate on pgclaim.recheck (gate, id);

-- A job that waited too long for its names: others let these names pass until it has run, see reserve_v1.
create table pgclaim.reservation (
  name       text        collate "C" not null,
  job_id     bigint      not null,
  shared     boolean     not null,
  since      timestamptz not null,  -- since when the job waits; of two that want one name the older goes first
  renewed_at timestamptz not null,  -- when a claim last found the job refused; one that nobody tries to run lapses
  constraint reservation_pkey primary key (name, job_id)
);
create index reservation_job on pgclaim.reservation (job_id);

-- Uniqueness by unique index. It outlives the job where "once per period" is asked for.
create table pgclaim.unique_key (
  kind       text        collate "C" not null,
  key        text        collate "C" not null,
  job_id     bigint      not null,
  expires_at timestamptz,  -- null: while the job is unfinished
  constraint unique_key_pkey primary key (kind, key)
);
create index unique_key_job on pgclaim.unique_key (job_id);
create index unique_key_expires on pgclaim.unique_key (expires_at) where expires_at is not null;

create table pgclaim.cancel_request (
  job_id       bigint      not null,
  requested_at timestamptz not null default clock_timestamp(),
  constraint cancel_request_pkey primary key (job_id)
);

create table pgclaim.schedule (
  name       text        collate "C" not null,
  cron       text        collate "C" not null,
  time_zone  text        collate "C" not null,
  kind       text        collate "C" not null,
  payload    jsonb       not null,
  catch_up   text        collate "C" not null,
  definition text        collate "C" not null,  -- digest of the six above: an old deployment cannot fire a newer rule
  revision   integer     not null,
  next_at    timestamptz not null,
  fresh      boolean     not null default true,  -- next_at is when it was registered; no occurrence is known yet
  last_at    timestamptz,
  paused_at  timestamptz,
  failed_at  timestamptz,  -- when firing it failed last, null since it succeeded: it goes to the end of the line
  fault      text        collate "C",
  constraint schedule_pkey primary key (name),
  constraint schedule_catch_up_known check (catch_up in ('all', 'last', 'none'))
);
create index schedule_due on pgclaim.schedule (next_at) where paused_at is null;

alter table pgclaim.attempt
  drop constraint attempt_outcome_known,
  add constraint attempt_outcome_known
    check (outcome in ('done', 'failed', 'snoozed', 'released', 'interrupted', 'crashed', 'cancelled'));

alter table pgclaim.history
  drop constraint history_outcome_known,
  add constraint history_outcome_known check (outcome in ('done', 'discarded', 'cancelled')),
  add column ordering_key text collate "C",
  add column place        bigint,
  add column deadline_at  timestamptz;

-- At COMMIT of whoever enqueued gated jobs; see place_at_commit in schema/functions.
create function pgclaim.place_at_commit()
returns trigger
language plpgsql
as $$ begin return null; end $$;

create constraint trigger job_place_at_commit
  after insert on pgclaim.job
  deferrable initially deferred
  for each row
  when (new.gate is not null and new.place is null)
  execute function pgclaim.place_at_commit();

-- Who was granted what by grant_v1: a function that is made anew has lost its grants, so migrate gives them again.
create table pgclaim.grantee (
  scope     text collate "C" not null,
  role_name name not null,
  constraint grantee_pkey primary key (scope, role_name)
);

insert into pgclaim.grantee (scope, role_name)
select distinct f.scope, r.rolname
from (values
  ('enqueue', 'pgclaim.enqueue_v1(jsonb)'), ('run', 'pgclaim.claim_v1(jsonb)'), ('operate', 'pgclaim.retry_v1(bigint)')
) f(scope, signature)
join pg_catalog.pg_proc p on p.oid = to_regprocedure(f.signature)
cross join lateral pg_catalog.aclexplode(p.proacl) a
join pg_catalog.pg_roles r on r.oid = a.grantee
where a.grantee <> p.proowner;

-- Functions whose rows or arguments grew are made anew by the release's functions, in this same transaction.
drop function if exists pgclaim.claim_v1(jsonb);
drop function if exists pgclaim.fence_v1(jsonb);
drop function if exists pgclaim.enqueue(text, jsonb, timestamptz);
