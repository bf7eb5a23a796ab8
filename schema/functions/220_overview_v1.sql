-- How many jobs have their deadline in a range, to 10,000. Index: job_deadline.
create or replace function pgclaim.count_deadlines(since timestamptz, until timestamptz)
returns jsonb
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  n bigint;
begin
  select count(*) into n
  from (
    select from pgclaim.job j
    where j.deadline_at is not null and j.state <> 'dead' and j.deadline_at >= since and j.deadline_at < until
    limit 10001
  ) d;
  return jsonb_build_object('n', least(n, 10000), 'capped', n > 10000);
end $$;

-- Time left to the deadlines of unfinished jobs. at risk: not late yet, and nearer to the deadline than the kind's p95 from due to
-- done in the last 24 hours (the bound of its bucket), or a retry that is due after the deadline; among the first 10,000 deadlines
-- to come within the longest of those p95s, and the first 10,000 retries.
-- Index: job_deadline, job_retrying, rollup_pkey.
create or replace function pgclaim.slack_view(clock timestamptz)
returns jsonb
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  tight record;
  risky bigint[];
  p95s jsonb;
  longest bigint;
  looked bigint;
  retried bigint;
  more bigint[];
begin
  select j.id, j.deadline_at into tight
  from pgclaim.job j
  where j.deadline_at is not null and j.state <> 'dead'
  order by j.deadline_at, j.id
  limit 1;
  select jsonb_object_agg(k.kind, k.p95), max(k.p95) into p95s, longest
  from (
    select b.kind, (pgclaim.late_bounds_ms())[least(min(b.o) filter (where b.below >= 0.95 * b.total), 13)] as p95
    from (
      select s.kind, s.o, sum(s.n) over (partition by s.kind order by s.o) as below, sum(s.n) over (partition by s.kind) as total
      from (
        select r.kind, u.o::integer as o, sum(u.n) as n
        from pgclaim.rollup r
        cross join lateral unnest(r.late) with ordinality u(n, o)
        where r.width = 60 and r.at >= clock - interval '24 hours'
        group by r.kind, u.o
      ) s
    ) b
    where b.total > 0
    group by b.kind
  ) k;
  select array_agg(d.id) filter (where d.deadline_at < clock + (p95s ->> d.kind)::bigint * interval '1 millisecond'), count(*)
  into risky, looked
  from (
    select j.id, j.kind, j.deadline_at from pgclaim.job j
    where j.deadline_at is not null and j.state <> 'dead'
      and j.deadline_at >= clock and j.deadline_at < clock + longest * interval '1 millisecond'
    order by j.deadline_at, j.id
    limit 10001
  ) d;
  select array_agg(d.id) filter (where d.run_at > d.deadline_at and d.deadline_at >= clock), count(*)
  into more, retried
  from (
    select j.id, j.run_at, j.deadline_at from pgclaim.job j
    where j.state = 'scheduled' and j.failures > 0
    order by j.run_at, j.id
    limit 10001
  ) d;
  return jsonb_build_object(
    'late', pgclaim.count_deadlines('-infinity', clock),
    'under1m', pgclaim.count_deadlines(clock, clock + interval '1 minute'),
    'under5m', pgclaim.count_deadlines(clock + interval '1 minute', clock + interval '5 minutes'),
    'under15m', pgclaim.count_deadlines(clock + interval '5 minutes', clock + interval '15 minutes'),
    'over15m', pgclaim.count_deadlines(clock + interval '15 minutes', 'infinity'),
    'tightestMs', pgclaim.ms_between(clock, tight.deadline_at),
    'tightest', tight.id::text,
    'atRisk', (
      select jsonb_build_object('n', count(distinct u.id), 'capped', looked > 10000 or retried > 10000)
      from unnest(risky || more) u(id)
    )
  );
end $$;

-- The state of the whole installation, from one snapshot. Argument: {}. Answers: Overview of src/inspection.ts, queues and triggers
-- as StoredQueue and StoredTrigger of src/operations.ts. depth is what wake has sampled, all queues added up; halted keys, dead
-- letters and missed ones are counted live to 1,000, what waits behind the first 1,000 halted keys to 10,000.
-- Locks: none. Reads only.
-- Index: job_dead, job_missed, job_halting, job_gate_placed, job_scheduled, and those of queue_rows, slack_view, trigger_rows.
create or replace function pgclaim.overview_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashagg = off
set timezone = 'UTC'
as $$
declare
  clock constant timestamptz := clock_timestamp();
  queues jsonb;
  runs record;
  counts record;
  sampled record;
  defined constant text[] := pgclaim.kinds_in_force();
begin
  select
    coalesce(array_agg(o.job_id), '{}') as ids, coalesce(array_agg(o.queue), '{}') as queues, count(*) as n,
    min(o.started_at) as oldest
  into runs
  from pgclaim.open_attempts() o
  where o.pid is not null;
  queues := pgclaim.queue_rows(runs.ids, runs.queues);
  select
    (select count(*) from (select from pgclaim.job j where j.state = 'dead' limit 1001) d) as dead,
    (select j.dead_at from pgclaim.job j where j.state = 'dead' order by j.dead_at desc, j.id desc limit 1) as newest_dead,
    (
      select count(*) from (
        select from pgclaim.job j where j.state = 'dead' and j.dead_reason = 'missed' limit 1001
      ) m
    ) as missed,
    (
      select count(*) from (
        select distinct j.gate from pgclaim.job j
        where j.state = 'dead' and j.when_dead = 'halt' and j.ordering_key is not null
        limit 1001
      ) h
    ) as halted,
    (
      select count(*) from (
        select from (
          select distinct j.gate from pgclaim.job j
          where j.state = 'dead' and j.when_dead = 'halt' and j.ordering_key is not null
          order by j.gate
          limit 1000
        ) h
        cross join lateral (
          select from pgclaim.job b
          where b.gate = h.gate and b.state = 'blocked' and b.ordering_key is not null
          order by b.gate, b.place
          limit 10001
        ) b
        limit 10001
      ) w
    ) as behind,
    (select j.run_at from pgclaim.job j where j.state = 'scheduled' order by j.run_at, j.id limit 1) as next_due,
    (select max((q.v ->> 'oldestReadyMs')::bigint) from jsonb_array_elements(queues) q(v)) as oldest_ready
  into counts;
  select
    max(d.sampled_at) as at,
    jsonb_object_agg(s.state, jsonb_build_object('n', coalesce(d.n, 0), 'capped', coalesce(d.capped, false))) as depth
  into sampled
  from unnest('{ready,scheduled,retrying,blocked,dead}'::text[]) s(state)
  left join (
    select o.state, sum(o.n) as n, bool_or(o.capped) as capped, max(o.sampled_at) as sampled_at
    from pgclaim.depth o
    group by o.state
  ) d on d.state = s.state;
  return jsonb_build_object(
    'now', clock,
    'database', current_database(),
    'schema', (select c.relnamespace::regnamespace::text from pg_catalog.pg_class c where c.oid = 'pgclaim.job'::regclass),
    'migration', (select max(m.version) from pgclaim.migration m),
    'sampledAt', sampled.at,
    'depth', sampled.depth,
    'running', runs.n,
    'longestRunMs', pgclaim.ms_between(runs.oldest, clock),
    'oldestReadyMs', counts.oldest_ready,
    'nextDueAt', counts.next_due,
    'dead', jsonb_build_object('n', least(counts.dead, 1000), 'capped', counts.dead > 1000),
    'newestDeadAt', counts.newest_dead,
    'haltedKeys', jsonb_build_object('n', least(counts.halted, 1000), 'capped', counts.halted > 1000),
    -- Cut twice: of each key, and of the keys.
    'behindHalted', jsonb_build_object('n', least(counts.behind, 10000), 'capped', counts.behind > 10000 or counts.halted > 1000),
    'missed', jsonb_build_object('n', least(counts.missed, 1000), 'capped', counts.missed > 1000),
    'slack', pgclaim.slack_view(clock),
    'historyRows', (
      select nullif(c.reltuples, -1)::bigint from pg_catalog.pg_class c where c.oid = 'pgclaim.history'::regclass
    ),
    'queues', queues,
    'triggers', pgclaim.trigger_rows(clock),
    -- Nobody runs them, so they stand in front of their queues' ready jobs.
    'unregistered', coalesce(case when defined is not null then (
      select jsonb_agg(w.kind order by w.kind) from pgclaim.waiting_kinds(500, true) w where not w.kind = any (defined)
    ) end, '[]')
  );
end $$;
