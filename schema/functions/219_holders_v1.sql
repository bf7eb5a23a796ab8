-- The keys of names that we can name now: those of the jobs with an open attempt, the slots of ticks and the housekeepers' names.
-- A name that is held by somebody without an open attempt, between claim and fence, is not among them.
create or replace function pgclaim.known_names()
returns table (key bigint, class text, name text)
language sql stable
set enable_seqscan = off
set enable_nestloop = on
as $$
  with running as materialized (
    select j.*
    from pgclaim.open_attempts() o
    join pgclaim.job j on j.id = o.job_id
  ), names as (
    select 'order' as class, r.ordering_key as name, r.ordering_key as shown from running r where r.ordering_key is not null
    union
    select 'lock', x.name, x.name from running r cross join lateral unnest(r.locks || r.shared_locks) x(name)
    union
    select 'lock', x.name, x.name from pgclaim.reservation x
    union
    select 'gate', r.gate, r.gate from running r where r.gate is not null
    union
    select 'limit', l.name || '#' || s, l.name
    from (
      select m.name, max(m.max) as max
      from running r
      cross join lateral unnest(r.limit_names, r.limit_maxes) m(name, max)
      group by m.name
      limit 1000
    ) l
    cross join lateral generate_series(0, least(coalesce(l.max, 100), 1000) - 1) s
    union
    select 'tick', '#' || s, 'a tick''s slot' from generate_series(0, 199) s
    union
    select 'internal', x.name, x.name from unnest('{prune,register,reserve}'::text[]) x(name)
  )
  select pgclaim.name_key(n.class, n.name, i.seed), n.class, n.shown
  from names n
  cross join pgclaim.installation i
$$;

-- Who holds what, by the lock table.
-- Argument: {"cap"?: 1 .. 500 (500)}
-- Answers:  Holders of src/inspection.ts: the backends that hold the lock of a job or of a name we know, by the age of their
--           transaction, capped; what they hold beside it that nothing names, in hexadecimal, at most 100 each; and the open
--           attempts whose job's lock is free (or that have ended since this snapshot was taken), at most 500.
--           A session that this role may not see has no user, no state and no age. invocationId is null until the tick has ended.
-- Locks:    none; the lock table is read once. Reads only. Raises: PC003. Index: attempt_open, job_pkey.
create or replace function pgclaim.holders_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
-- Everything joined here is as long as the lock table, and the planner takes it for one row.
set enable_nestloop = off
set timezone = 'UTC'
as $$
declare
  cap constant integer := pgclaim.read_limit(request, 'cap', 500, 500);
  clock constant timestamptz := clock_timestamp();
  answer jsonb;
begin
  with held as materialized (
    select l.key, l.pid, l.shared from pgclaim.advisory_locks() l
  ), known as materialized (
    select k.key, min(k.class) as class, min(k.name) as name from pgclaim.known_names() k group by k.key
  ), attempts as materialized (
    select o.job_id, o.n, o.tick, o.kind, o.pid, pgclaim.ms_between(o.started_at, clock) as since_ms
    from pgclaim.open_attempts() o
  ), told as materialized (
    select
      h.key,
      h.pid,
      h.shared,
      coalesce(n.class, case when k.name is not null then 'job' end) as class,
      -- The low half of the id: all of it up to 2^32.
      coalesce(n.name, k.name || ' ' || (h.key & 4294967295)) as name,
      -- Those stand under jobs.
      a.pid is not null as is_on_record
    from held h
    left join known n on n.key = h.key
    left join pgclaim.kind k on k.namespace = (h.key >> 32) and n.key is null and not h.shared
    left join (
      select distinct i.pid, i.kind, i.job_id & 4294967295 as low from attempts i
    ) a on a.pid = h.pid and a.kind = k.name and a.low = (h.key & 4294967295)
  ), pids as materialized (
    select t.pid from told t where t.class is not null group by t.pid
  ), jobs as materialized (
    select
      a.pid,
      min(a.tick::text)::uuid as tick,
      jsonb_agg(
        jsonb_build_object('id', a.job_id::text, 'kind', a.kind, 'attempt', a.n, 'sinceMs', a.since_ms) order by a.job_id
      ) as list
    from attempts a
    where a.pid is not null
    group by a.pid
  ), names as materialized (
    select
      t.pid,
      jsonb_agg(jsonb_build_object('class', t.class, 'name', t.name, 'shared', t.shared) order by t.class, t.name)
        filter (where t.class is not null and not t.is_on_record) as named,
      jsonb_agg('0x' || to_hex(t.key) order by t.key) filter (where t.class is null and t.rank <= 100) as unknown
    from (
      select o.*, row_number() over (partition by o.pid, o.class is null order by o.key) as rank from told o
    ) t
    group by t.pid
  ), shown as materialized (
    select p.pid, a.usename, a.application_name, a.state, a.state_change, a.xact_start
    from pids p
    left join pg_catalog.pg_stat_activity a on a.pid = p.pid
    order by a.xact_start nulls last, p.pid
    limit cap
  )
  select jsonb_build_object(
    'now', clock,
    'holders', coalesce(jsonb_agg(jsonb_build_object(
      'pid', s.pid,
      -- Of a session that this role may not see there is a name and nothing else, which is no use.
      'user', case when s.state is not null then s.usename end,
      'applicationName', case when s.state is not null then s.application_name end,
      'state', s.state,
      'stateMs', pgclaim.ms_between(s.state_change, clock),
      'transactionMs', pgclaim.ms_between(s.xact_start, clock),
      'transactionStart', s.xact_start,
      'invocationId', (select t.invocation from pgclaim.tick t where t.id = w.tick),
      'tickId', w.tick,
      'jobs', coalesce(w.list, '[]'),
      'names', coalesce(n.named, '[]'),
      'unknownKeys', coalesce(n.unknown, '[]')
    ) order by s.xact_start nulls last, s.pid), '[]'),
    'capped', (select count(*) > cap from pids),
    'gone', coalesce((
      select jsonb_agg(jsonb_build_object('id', g.job_id::text, 'kind', g.kind, 'attempt', g.n, 'sinceMs', g.since_ms) order by g.job_id)
      from (select * from attempts a where a.pid is null order by a.job_id limit 500) g
    ), '[]')
  )
  into answer
  from shown s
  left join jobs w on w.pid = s.pid
  left join names n on n.pid = s.pid;
  return answer;
end $$;
