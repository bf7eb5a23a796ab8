-- Every queue that has a kind, a row, a sample or a ready job: StoredQueue of src/operations.ts, by name.
-- open: the jobs that run, as open_attempts has them. Live: the first ready job of each priority that nobody runs, and the next due
-- one, if it is among the 10,000 that are due next. From the rollups: done in the last 10 minutes, by minute; the histogram of the
-- last hour, by the kinds the queue has today. From the samples: the depth.
-- Index: job_ready and job_suspect, a probe for each queue and priority, job_scheduled, rollup_pkey.
create or replace function pgclaim.queue_rows(running_ids bigint[], running_queues text[])
returns jsonb
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set timezone = 'UTC'
as $$
declare
  clock constant timestamptz := clock_timestamp();
  answer jsonb;
begin
  with names as materialized (
    select k.queue as name from pgclaim.kind k
    union
    select q.name from pgclaim.queue q
    union
    select d.queue from pgclaim.depth d
    union
    select r.queue from pgclaim.ready_queues() r
  ), due as materialized (
    select n.queue, min(n.run_at) as at
    from (select j.queue, j.run_at from pgclaim.job j where j.state = 'scheduled' order by j.run_at, j.id limit 10000) n
    group by n.queue
  ), busy as materialized (
    select u.queue, count(*) as n from unnest(running_queues) u(queue) group by u.queue
  ), depths as materialized (
    select d.queue, jsonb_object_agg(d.state, jsonb_build_object('n', d.n, 'capped', d.capped)) as states
    from pgclaim.depth d
    group by d.queue
  ), hour as materialized (
    select k.queue, r.at, r.done, r.late
    from pgclaim.rollup r
    join pgclaim.kind k on k.name = r.kind
    where r.width = 1 and r.at >= clock - interval '1 hour'
  ), rates as materialized (
    select h.queue, sum(h.done) as done from hour h where h.at >= clock - interval '10 minutes' group by h.queue
  ), lates as materialized (
    select b.queue, jsonb_agg(b.n order by b.o) as late
    from (
      select h.queue, u.o, sum(u.n) as n
      from hour h
      cross join lateral unnest(h.late) with ordinality u(n, o)
      group by h.queue, u.o
    ) b
    group by b.queue
  )
  select coalesce(jsonb_agg(jsonb_build_object(
    'name', n.name,
    'pausedAt', q.paused_at,
    'max', q.max,
    'oldestReadyMs', pgclaim.ms_between(o.run_at, clock),
    'nextDueAt', d.at,
    'running', coalesce(b.n, 0),
    'depth', coalesce(s.states, '{}'),
    'donePerMinute', round(coalesce(r.done, 0) / 10.0, 1),
    'late', coalesce(l.late, '[]')
  ) order by n.name), '[]')
  into answer
  from names n
  left join pgclaim.queue q on q.name = n.name
  left join due d on d.queue = n.name
  left join busy b on b.queue = n.name
  left join depths s on s.queue = n.name
  left join rates r on r.queue = n.name
  left join lates l on l.queue = n.name
  left join lateral (
    select min(f.run_at) as run_at
    from generate_series(0, 3) p(priority)
    cross join lateral (
      (
        select j.run_at from pgclaim.job j
        where j.queue = n.name and j.priority = p.priority and j.state = 'ready' and not j.suspect
          and not j.id = any (running_ids)
        order by j.queue, j.priority, j.rank, j.id
        limit 1
      )
      union all
      (
        select j.run_at from pgclaim.job j
        where j.queue = n.name and j.priority = p.priority and j.state = 'ready' and j.suspect
          and not j.id = any (running_ids)
        order by j.queue, j.priority, j.rank, j.id
        limit 1
      )
    ) f
  ) o on true;
  return answer;
end $$;

-- The queues. Argument: {}. Answers: [StoredQueue, ...], see queue_rows. Reads only.
create or replace function pgclaim.queues_v1(request jsonb)
returns jsonb
language plpgsql stable
as $$
declare
  ids bigint[];
  queues text[];
begin
  select array_agg(o.job_id), array_agg(o.queue) into ids, queues from pgclaim.open_attempts() o where o.pid is not null;
  return pgclaim.queue_rows(coalesce(ids, '{}'), coalesce(queues, '{}'));
end $$;
