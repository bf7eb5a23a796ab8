-- Lines of a list, for at most a page of ids: JobRow of src/inspection.ts. Their order is the array's.
-- "why" is found for these jobs alone: the head of their key, their queue, and the lock table, read once.
-- A payload is read where it is stored in 2,048 bytes or less, and else only its size, as it is stored.
-- Index: job_pkey, attempt_open, job_gate_ready, job_gate_held, job_gate_placed.
create or replace function pgclaim.job_rows(ids bigint[])
returns table (o bigint, id bigint, item jsonb)
language plpgsql stable
set jit = off
set enable_seqscan = off
set timezone = 'UTC'
as $$
declare
  clock constant timestamptz := clock_timestamp();
  seed bigint;
  held bigint[];       -- in any mode
  exclusive bigint[];
begin
  select i.seed into seed from pgclaim.installation i;
  select coalesce(array_agg(l.key), '{}'), coalesce(array_agg(l.key) filter (where not l.shared), '{}')
  into held, exclusive
  from pgclaim.advisory_locks() l;
  return query
  with page as materialized (
    select
      u.o,
      j.*,
      a.n as open_n,
      j.state in ('ready', 'blocked') and a.n is not null
        and pgclaim.job_key(k.namespace, j.id) in (select unnest(exclusive)) as is_running,
      k.max_attempts,
      pg_column_size(j.payload) as bytes,
      q.paused_at,
      h.id as head,
      h.state as head_state,
      case
        when j.limit_names is not null then pgclaim.current_maxes(
          j.kind, j.queue, case when j.revision < k.revision and pg_column_size(j.payload) <= 2048 then j.payload end,
          j.limit_names, j.limit_maxes
        )
      end as maxes
    from unnest(ids) with ordinality u(id, o)
    join pgclaim.job j on j.id = u.id
    left join pgclaim.kind k on k.name = j.kind
    left join pgclaim.queue q on q.name = j.queue
    left join lateral (
      select i.n from pgclaim.attempt i where i.job_id = j.id and i.outcome is null order by i.n desc limit 1
    ) a on true
    left join lateral pgclaim.key_head(j.gate) h on j.ordering_key is not null and j.state <> 'dead'
  ), full_limits as materialized (
    select l.name
    from (
      select m.name, min(m.max) as max
      from page p
      cross join lateral unnest(p.limit_names, p.maxes) m(name, max)
      where m.max is not null
      group by m.name
    ) l
    where l.max <= (
      select count(*) from generate_series(0, least(l.max, 2000) - 1) s
      where pgclaim.name_key('limit', l.name || '#' || s, seed) in (select unnest(held))
    )
  ), busy_names as materialized (
    select n.name, n.shared
    from (
      select distinct x.name, false as shared from page p cross join lateral unnest(p.locks) x(name)
      union all
      select distinct x.name, true from page p cross join lateral unnest(p.shared_locks) x(name)
    ) n
    where case
      when n.shared then pgclaim.name_key('lock', n.name, seed) in (select unnest(exclusive))
      else pgclaim.name_key('lock', n.name, seed) in (select unnest(held))
    end
  ), told as (
    select
      p.*,
      case
        when p.is_running then 'running'
        when p.state = 'scheduled' and p.failures > 0 then 'retrying'
        else p.state
      end as shown,
      case
        when p.is_running then array['running', null]
        when p.state = 'dead' then array['dead', null]
        when p.run_at > clock then array[case when p.failures > 0 then 'backoff' else 'scheduled' end, null]
        when p.head <> p.id and p.head_state = 'dead' then array['halted', p.head::text]
        when p.paused_at is not null then array['paused', p.queue]
        when p.head <> p.id then array['behind', p.head::text]
        when p.ordering_key is not null and pgclaim.name_key('order', p.ordering_key, seed) in (select unnest(exclusive))
          then array['busy', p.ordering_key]
        when b.name is not null then array['busy', b.name]
        when l.name is not null then array['limit', l.name]
        when p.suspect then array['suspect', null]
        -- Of a name or a limit that is free now: whoever stands in the claim index before it.
        when p.state = 'blocked' and p.ordering_key is null and g.id is not null then array['behind', g.id::text]
        else array['due', null]
      end as why
    from page p
    left join lateral (
      select n.name from busy_names n
      where (not n.shared and n.name = any (p.locks)) or (n.shared and n.name = any (p.shared_locks))
      order by n.name limit 1
    ) b on true
    left join lateral (
      select f.name from full_limits f where f.name = any (p.limit_names) order by f.name limit 1
    ) l on true
    left join lateral (
      select i.id from pgclaim.job i where i.gate = p.gate and i.state = 'ready' order by i.gate, i.place limit 1
    ) g on p.state = 'blocked' and p.ordering_key is null
  )
  select
    t.o,
    t.id,
    jsonb_build_object(
      'id', t.id::text,
      'kind', t.kind,
      'queue', t.queue,
      'state', t.shown,
      'priority', t.priority,
      'attempt', greatest(t.attempt, t.open_n),
      'failures', t.failures,
      'maxAttempts', t.max_attempts,
      'runAt', t.run_at,
      'enqueuedAt', t.enqueued_at,
      'endedAt', t.dead_at,
      'deadReason', t.dead_reason,
      'deadlineAt', t.deadline_at,
      'slackMs', pgclaim.ms_between(coalesce(t.dead_at, clock), t.deadline_at),
      'orderingKey', t.ordering_key,
      'uniqueKey', t.unique_key,
      'why', jsonb_build_object('reason', t.why[1], 'what', t.why[2]),
      'error', left(t.last_error, 200),
      'preview', case when t.bytes <= 2048 then left(t.payload::text, 160) end,
      'payloadBytes', t.bytes
    )
  from told t;
end $$;

-- The same of finished jobs. Index: history_pkey.
create or replace function pgclaim.history_rows(ids bigint[])
returns table (o bigint, id bigint, item jsonb)
language plpgsql stable
set enable_seqscan = off
set timezone = 'UTC'
as $$
begin
  return query
  select
    u.o,
    h.job_id,
    jsonb_build_object(
      'id', h.job_id::text,
      'kind', h.kind,
      'queue', h.queue,
      'state', h.outcome,
      'priority', null,
      'attempt', h.attempts,
      'failures', h.failures,
      'maxAttempts', k.max_attempts,
      'runAt', h.run_at,
      'enqueuedAt', h.enqueued_at,
      'endedAt', h.finished_at,
      'deadReason', null,
      'deadlineAt', h.deadline_at,
      'slackMs', pgclaim.ms_between(h.finished_at, h.deadline_at),
      'orderingKey', h.ordering_key,
      'uniqueKey', null,
      'why', '{"reason": "ended", "what": null}'::jsonb,
      'error', left(h.last_error, 200),
      'preview', case when pg_column_size(h.payload) <= 2048 then left(h.payload::text, 160) end,
      'payloadBytes', pg_column_size(h.payload)
    )
  from unnest(ids) with ordinality u(id, o)
  join pgclaim.history h on h.job_id = u.id
  left join pgclaim.kind k on k.name = h.kind;
end $$;
