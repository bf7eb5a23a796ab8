-- The kinds that somebody runs: of each queue those that the newest deployment which serves it defines for it. Null where the
-- newest of all was registered by a release that did not remember them. Looks at the newest 200 deployments.
create or replace function pgclaim.kinds_in_force()
returns text[]
language sql stable
as $$
  with known as materialized (
    select r.n, r.deployment from pgclaim.revision r order by r.n desc limit 200
  ), served as materialized (
    select q.name as queue, max(d.n) as n
    from known d
    cross join lateral jsonb_array_elements_text(
      -- One that names no queues serves those of its kinds.
      case jsonb_typeof(d.deployment -> 'queues') when 'array' then d.deployment -> 'queues' else
        jsonb_path_query_array(d.deployment, '$.kinds[*].queue')
      end
    ) q(name)
    group by q.name
  )
  select case when (select d.deployment is not null from known d order by d.n desc limit 1) then array(
    select distinct k.v ->> 'name'
    from (select distinct s.n from served s) o
    join known d on d.n = o.n
    cross join lateral jsonb_array_elements(
      case jsonb_typeof(d.deployment -> 'kinds') when 'array' then d.deployment -> 'kinds' else '[]' end
    ) k(v)
    join served s on s.n = d.n and s.queue = k.v ->> 'queue'
  ) end
$$;

-- Waiting jobs by kind among those that come first: per queue the first ready ones, the first scheduled ones, the first blocked ones
-- of a key and of a name, so many of each. There is no index by kind: it would cost every enqueue, and answer what nobody can act on.
-- Answers: kind, how many, and whether any of those walks was cut, so that there may be more.
-- Index: job_ready, job_suspect, job_scheduled, job_gate_placed, job_gate_ranked.
create or replace function pgclaim.waiting_kinds(of_each integer, only_ready boolean)
returns table (kind text, n bigint, cut boolean)
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  return query
  with ready as materialized (
    select w.kind, w.o
    from pgclaim.ready_queues() q
    cross join lateral (
      select f.kind, row_number() over () as o
      from (
        select j.kind from pgclaim.job j where j.queue = q.queue and j.state = 'ready' and not j.suspect and not q.suspect
        order by j.queue, j.priority, j.rank, j.id limit of_each
      ) f
      union all
      select f.kind, row_number() over ()
      from (
        select j.kind from pgclaim.job j where j.queue = q.queue and j.state = 'ready' and j.suspect and q.suspect
        order by j.queue, j.priority, j.rank, j.id limit of_each
      ) f
    ) w
  ), others as materialized (
    select f.kind, row_number() over () as o
    from (select j.kind from pgclaim.job j where j.state = 'scheduled' order by j.run_at, j.id limit of_each) f
    where not only_ready
    union all
    select f.kind, row_number() over ()
    from (
      select j.kind from pgclaim.job j where j.state = 'blocked' and j.ordering_key is not null
      order by j.gate, j.place limit of_each
    ) f
    where not only_ready
    union all
    select f.kind, row_number() over ()
    from (
      select j.kind from pgclaim.job j where j.state = 'blocked' and j.ordering_key is null
      order by j.gate, j.priority, j.rank, j.id limit of_each
    ) f
    where not only_ready
  ), seen as (
    select * from ready union all select * from others
  )
  select s.kind, count(*), (select max(a.o) >= of_each from seen a)
  from seen s
  group by s.kind;
end $$;

-- Every kind with its policy: KindRow of src/inspection.ts, by name. Whether it is registered: see kinds_in_force. waiting: see
-- waiting_kinds.
-- Argument: {"ofEach"?: 1 .. 5,000 (2,000)}. Reads only. Raises: PC003.
create or replace function pgclaim.kinds_v1(request jsonb)
returns jsonb
language plpgsql stable
as $$
declare
  of_each constant integer := pgclaim.read_limit(request, 'ofEach', 2000, 5000);
  defined constant text[] := pgclaim.kinds_in_force();
  waiting jsonb;
  cut boolean;
begin
  select jsonb_object_agg(w.kind, w.n), bool_or(w.cut) into waiting, cut from pgclaim.waiting_kinds(of_each, false) w;
  return (
    select coalesce(jsonb_agg(jsonb_build_object(
      'name', k.name,
      'queue', k.queue,
      'revision', k.revision,
      'priority', k.priority,
      'timeoutMs', k.timeout_ms,
      'maxAttempts', k.max_attempts,
      'maxCrashes', k.max_crashes,
      'deadlineMs', k.deadline_ms,
      'orderingKey', k.ordering_key,
      'uniqueKey', k.unique_key,
      'locks', k.locks,
      'whenDead', k.when_dead,
      'registered', defined is null or k.name = any (defined),
      'waiting', jsonb_build_object('n', coalesce((waiting ->> k.name)::bigint, 0), 'capped', coalesce(cut, false))
    ) order by k.name), '[]')
    from pgclaim.kind k
  );
end $$;
