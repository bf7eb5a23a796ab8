-- The tables of one installation. Private: functions and views are the interface.
-- Locks: none that anybody can feel, everything here is new. Old code: none exists before this.

create table pgclaim.installation (
  singleton      boolean     not null default true,
  seed           bigint      not null,  -- seeds the hash of lock names, so two installations never share a key
  namespace_base integer     not null,  -- first namespace of this installation; kinds get base + 1, base + 2, ...
  created_at     timestamptz not null default clock_timestamp(),
  constraint installation_pkey primary key (singleton),
  constraint installation_singleton check (singleton)
);
comment on table pgclaim.installation is 'One row: what makes this installation''s lock keys its own.';

-- The base keeps clear of 0 and -1 in the upper half, where hashtext() and hand-picked ids of other users live,
-- and of the top, so that 2^20 kinds fit above it.
insert into pgclaim.installation (seed, namespace_base)
select
  ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(64)::bigint,
  1048576 + floor(random() * 1072693248)::integer;

create table pgclaim.revision (
  n             integer     not null,
  digest        text        collate "C" not null,  -- of the kinds a deployment defines
  registered_at timestamptz not null default clock_timestamp(),
  constraint revision_pkey primary key (n),
  constraint revision_digest_key unique (digest)
);
comment on table pgclaim.revision is 'Deployments by the digest of their kinds. A digest seen before never displaces a newer one.';

create table pgclaim.kind (
  name              text     collate "C" not null,
  namespace         integer  not null,  -- upper 32 bits of its jobs' lock keys
  revision          integer  not null,  -- the revision that brought the policy below
  queue             text     collate "C" not null,
  priority          smallint not null,
  target_latency_ms bigint   not null,
  timeout_ms        bigint   not null,
  max_attempts      integer  not null,
  max_crashes       integer  not null,
  backoff           text     collate "C" not null,
  min_backoff_ms    bigint   not null,
  max_backoff_ms    bigint   not null,
  alone             boolean  not null,
  constraint kind_pkey primary key (name),
  constraint kind_namespace_key unique (namespace),
  constraint kind_name_length check (length(name) between 1 and 200),
  constraint kind_priority_range check (priority between 0 and 3),
  constraint kind_backoff_known check (backoff in ('exponential', 'fixed', 'custom')),
  constraint kind_backoff_range check (min_backoff_ms >= 0 and max_backoff_ms >= min_backoff_ms),
  constraint kind_attempts_range check (max_attempts >= 1 and max_crashes >= 1)
);
comment on table pgclaim.kind is 'The policy of each kind, so that jobs enqueued from SQL get the same as jobs enqueued from code.';

create table pgclaim.job (
  id          bigint      generated always as identity,
  kind        text        collate "C" not null,
  queue       text        collate "C" not null,
  state       text        collate "C" not null,
  priority    smallint    not null,
  rank        timestamptz not null,  -- due time + the kind's target latency; the smallest runs first
  run_at      timestamptz not null,
  revision    integer     not null,  -- of the kind's policy at enqueue; older deployments leave the job alone
  attempt     integer     not null default 0,  -- highest attempt number closed under the job lock
  failures    integer     not null default 0,  -- handled failures, against max_attempts
  crash_base  integer     not null default 0,  -- attempts up to this one no longer count as crashes
  suspect     boolean     not null default false,  -- its last started attempt ended in silence: quarantine only
  enqueued_at timestamptz not null default clock_timestamp(),
  dead_at     timestamptz,
  dead_reason text        collate "C",
  last_error  text,
  payload     jsonb       not null,
  constraint job_pkey primary key (id),
  constraint job_state_known check (state in ('scheduled', 'ready', 'dead')),
  constraint job_dead_says_why check ((state = 'dead') = (dead_at is not null and dead_reason is not null)),
  constraint job_dead_reason_known check (dead_reason in ('attempts', 'handler', 'crashed'))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
comment on table pgclaim.job is 'Unfinished work and dead letters. There is no "running" state: who runs a job holds its lock.';

-- Two ranges, so that suspects never stand in front of other jobs and the other way round.
create index job_ready on pgclaim.job (queue, priority, rank, id) where state = 'ready' and not suspect;
create index job_suspect on pgclaim.job (queue, priority, rank, id) where state = 'ready' and suspect;
create index job_scheduled on pgclaim.job (run_at, id) where state = 'scheduled';
create index job_dead on pgclaim.job (dead_at, id) where state = 'dead';

create table pgclaim.attempt (
  job_id      bigint      not null,
  n           integer     not null,
  tick        uuid        not null,
  quarantined boolean     not null,
  started_at  timestamptz not null default clock_timestamp(),
  ended_at    timestamptz,
  outcome     text        collate "C",  -- null means open
  error       text,
  constraint attempt_pkey primary key (job_id, n),
  constraint attempt_outcome_known
    check (outcome in ('done', 'failed', 'snoozed', 'released', 'interrupted', 'crashed')),
  constraint attempt_closed_has_end check ((outcome is null) = (ended_at is null))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
comment on table pgclaim.attempt is 'The fence. Numbers are never reused; closed rows are pruned by age alone.';

create index attempt_open on pgclaim.attempt (job_id) where outcome is null;
-- Prune asks these three whether anything is old. A range that is not summarized yet is read whole by each wake, and a
-- table that only grows is seldom vacuumed: hence short ranges, summarized as soon as they are full.
create index attempt_started on pgclaim.attempt using brin (started_at) with (pages_per_range = 16, autosummarize = on);

create table pgclaim.tick (
  id         uuid        not null,
  outcome    text        collate "C" not null,
  invocation text        collate "C" not null,
  decided_at timestamptz not null default clock_timestamp(),
  report     jsonb,
  constraint tick_pkey primary key (id),
  constraint tick_outcome_known check (outcome in ('committed', 'lost'))
);
comment on table pgclaim.tick is 'Whoever inserts a tick''s row first decides its fate: finish (committed) or settle (lost).';
create index tick_decided on pgclaim.tick using brin (decided_at) with (pages_per_range = 16, autosummarize = on);

create table pgclaim.history (
  job_id      bigint      not null,
  kind        text        collate "C" not null,
  queue       text        collate "C" not null,
  outcome     text        collate "C" not null,
  attempts    integer     not null,
  failures    integer     not null,
  run_at      timestamptz not null,
  enqueued_at timestamptz not null,
  finished_at timestamptz not null default clock_timestamp(),
  last_error  text,
  payload     jsonb       not null,
  constraint history_pkey primary key (job_id),
  constraint history_outcome_known check (outcome in ('done', 'discarded'))
);
comment on table pgclaim.history is 'Finished jobs, pruned by retention.done.';
create index history_finished on pgclaim.history using brin (finished_at) with (pages_per_range = 16, autosummarize = on);
