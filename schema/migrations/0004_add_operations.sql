-- What the person on call asks: who woke us and when, what was done in each minute, how deep the queues are, who did what to a
-- job, where it came from.
-- Locks: ACCESS EXCLUSIVE on job, history and tick for as long as a catalogue change takes, no table is rewritten; SHARE on tick and
-- job while their new indexes are built (tick keeps a week; those of job hold dead letters, retries and deadlines only). Old code:
-- writes ticks without the new facts, and jobs without a trace; both are shown as not known.

alter table pgclaim.job
  add column trace  text collate "C",   -- W3C traceparent of whoever enqueued it
  add column source text collate "C";   -- what enqueued it: api, cli, dashboard, schedule <name>, job <id>; null: code or SQL

alter table pgclaim.history
  add column trace  text collate "C",
  add column source text collate "C";

-- Halted keys, without reading the dead letters that halt nothing.
create index job_halting on pgclaim.job (gate, place)
  where state = 'dead' and when_dead = 'halt' and ordering_key is not null;

-- The other dead letters of an ordering key: those that let others pass. Filled by a death or a skip, never by an enqueue.
create index job_passed on pgclaim.job (gate, place)
  where state = 'dead' and when_dead = 'skip' and ordering_key is not null;

-- Retries among the scheduled, and dead letters that missed their deadline: without these a page of either reads its way through
-- all the others. Only a failure that is retried, or a missed deadline, pays for them.
create index job_retrying on pgclaim.job (run_at, id) where state = 'scheduled' and failures > 0;
create index job_missed on pgclaim.job (dead_at, id) where state = 'dead' and dead_reason = 'missed';

-- Slack: who is late, who will be. Only jobs with a deadline pay for it.
create index job_deadline on pgclaim.job (deadline_at, id) where deadline_at is not null and state <> 'dead';

-- Ticks newest first, those that are not rolled up yet, and those that are old enough to be pruned, for which alone there was
-- the other one.
create index tick_newest on pgclaim.tick (decided_at, id);
drop index pgclaim.tick_decided;
create index tick_invocation on pgclaim.tick (invocation);

create table pgclaim.trigger (
  name          text        collate "C" not null,  -- as in reports: cron */5 * * * *, http /api/trigger, manual
  type          text        collate "C" not null,
  first_seen_at timestamptz not null default clock_timestamp(),
  last_seen_at  timestamptz not null default clock_timestamp(),
  last_work_at  timestamptz,                       -- the last wake that found something due
  recent        timestamptz[] not null default '{}',  -- the last 21 times it woke us, the newest last
  constraint trigger_pkey primary key (name),
  constraint trigger_type_known check (type in ('cron', 'http', 'manual')),
  constraint trigger_name_length check (length(name) between 1 and 200)
) with (fillfactor = 50);
comment on table pgclaim.trigger is 'What wakes us. A wake that finds nothing leaves its mark here and nowhere else.';

create table pgclaim.trigger_minute (
  name   text        collate "C" not null,
  at     timestamptz not null,               -- start of the minute
  woken  integer     not null default 0,
  worked integer     not null default 0,     -- of those, the ones that found something due
  constraint trigger_minute_pkey primary key (name, at)
) with (fillfactor = 50);
create index trigger_minute_at on pgclaim.trigger_minute (at);

create table pgclaim.trigger_bump (
  name   text        collate "C" not null,
  at     timestamptz not null,
  worked boolean     not null
);
comment on table pgclaim.trigger_bump is
  'Wakes that met another one of the same trigger: nobody waits for a row, the next one of the trigger counts them.';
create index trigger_bump_name on pgclaim.trigger_bump (name, at);

-- What was done, from the reports of ticks. Widths: 1 (minute, two days), 60 (hour, ninety days), 0 (since ever, one row of
-- each kind at 'epoch').
create table pgclaim.rollup (
  width     smallint    not null,
  at        timestamptz not null,
  kind      text        collate "C" not null,
  done      bigint      not null default 0,
  retried   bigint      not null default 0,
  dead      bigint      not null default 0,
  snoozed   bigint      not null default 0,
  released  bigint      not null default 0,
  cancelled bigint      not null default 0,
  missed    bigint      not null default 0,
  late      bigint[]    not null default '{}',  -- from due to done: a count for each bucket of late_bounds_ms(), not cumulative
  late_ms   bigint      not null default 0,     -- the sum of it
  constraint rollup_pkey primary key (width, at, kind),
  constraint rollup_width_known check (width in (0, 1, 60))
) with (fillfactor = 70);

create table pgclaim.tick_rollup (
  width     smallint    not null,
  at        timestamptz not null,
  committed bigint      not null default 0,
  lost      bigint      not null default 0,
  claimed   bigint      not null default 0,
  skipped   jsonb       not null default '{}',  -- reason: count
  constraint tick_rollup_pkey primary key (width, at),
  constraint tick_rollup_width_known check (width in (0, 1, 60))
) with (fillfactor = 70);

-- The queues' depth, sampled once a minute by wake, each cell counted to a cap.
create table pgclaim.depth (
  queue      text        collate "C" not null,
  state      text        collate "C" not null,  -- ready, scheduled, retrying, blocked, dead
  n          bigint      not null,
  capped     boolean     not null,
  sampled_at timestamptz not null,
  constraint depth_pkey primary key (queue, state)
) with (fillfactor = 50);

-- When a step of housekeeping ran last, and up to where it got.
create table pgclaim.housekeeping (
  step    text        collate "C" not null,
  ran_at  timestamptz not null,
  took_ms integer     not null default 0,
  upto    timestamptz,
  constraint housekeeping_pkey primary key (step)
);

-- Who did what to a job by hand.
create table pgclaim.action (
  id     bigint      generated always as identity,
  job_id bigint      not null,
  at     timestamptz not null default clock_timestamp(),
  verb   text        collate "C" not null,
  actor  text        collate "C" not null,   -- the role that acted: dashboard, api, cli, or a database role; never a secret
  detail text        collate "C",
  constraint action_pkey primary key (id)
);
create index action_job on pgclaim.action (job_id, id);
create index action_at on pgclaim.action using brin (at) with (pages_per_range = 16, autosummarize = on);

-- Answers of enqueue calls that carried an Idempotency-Key, for a day.
create table pgclaim.request_key (
  role_name  name        not null,              -- who used it: a key of another role is another key
  key        text        collate "C" not null,
  digest     text        collate "C" not null,  -- of the request: the same key with another body is refused
  answer     jsonb,
  created_at timestamptz not null default clock_timestamp(),
  constraint request_key_pkey primary key (role_name, key)
);
create index request_key_created on pgclaim.request_key (created_at);

-- Functions whose rows grew are made anew by the release's functions, in this same transaction. Old code selects its columns by
-- name and does not miss the new one.
drop function if exists pgclaim.fence_v1(jsonb);
drop function if exists pgclaim.derive_jobs(jsonb, bigint[], timestamptz);
