-- The names a job needs, with who has each now: LockView of src/inspection.ts, in the order in which claim takes them.
-- The backend that holds the job's own lock is "mine". A session of another role has an age only for who may see it.
-- Reads the lock table once, and the activity of those who hold one of these names. Index: job_pkey.
create or replace function pgclaim.job_locks(id bigint)
returns jsonb
language sql stable
as $$
  with held as materialized (
    select l.key, l.pid, l.shared from pgclaim.advisory_locks() l
  ), job as materialized (
    select j.*, k.namespace, i.seed, pgclaim.job_key(k.namespace, j.id) as own_key
    from pgclaim.job j
    join pgclaim.kind k on k.name = j.kind
    cross join pgclaim.installation i
    where j.id = job_locks.id
  ), limits as (
    select m.name, min(m.max) as max
    from job j
    cross join lateral unnest(j.limit_names, pgclaim.current_maxes(j.kind, j.queue, j.payload, j.limit_names, j.limit_maxes))
      m(name, max)
    where m.max is not null
    group by m.name
  ), names as (
    select 1 as o, 'key' as class, j.ordering_key as name, pgclaim.name_key('order', j.ordering_key, j.seed) as key, null::integer as max
    from job j
    where j.ordering_key is not null
    union all
    select 2, 'limit', l.name, null, l.max from limits l
    union all
    select 3, 'exclusive', x.name, pgclaim.name_key('lock', x.name, j.seed), null
    from job j cross join lateral unnest(j.locks) x(name)
    union all
    select 4, 'shared', x.name, pgclaim.name_key('lock', x.name, j.seed), null
    from job j cross join lateral unnest(j.shared_locks) x(name)
    union all
    select 5, 'job', j.id::text, j.own_key, null from job j
  ), slots as materialized (
    select l.name, h.pid
    from limits l
    cross join job j
    cross join lateral generate_series(0, least(l.max, 2000) - 1) s
    join held h on h.key = pgclaim.name_key('limit', l.name || '#' || s, j.seed)
  )
  select coalesce(jsonb_agg(jsonb_build_object(
    'class', n.class,
    'name', n.name,
    'heldBy', case when b.pid is not null then jsonb_build_object(
      'pid', b.pid,
      'sinceMs', pgclaim.ms_between(a.xact_start, clock_timestamp()),
      'mine', b.pid = (select min(h.pid) from held h join job j on h.key = j.own_key)
    ) end,
    'taken', case when n.class = 'limit' then (select count(*) from slots s where s.name = n.name) end,
    'max', n.max
  ) order by n.o, n.name), '[]')
  from names n
  -- Of several sharers, or takers of slots, the first.
  left join lateral (
    select min(p.pid) as pid
    from (
      select h.pid from held h where h.key = n.key
      union all
      select s.pid from slots s where n.class = 'limit' and s.name = n.name
    ) p
  ) b on true
  left join pg_catalog.pg_stat_activity a on a.pid = b.pid
$$;

-- One job with all that is known of it, unfinished or from history; null where there is none.
-- Argument: {"id": text, "behindCap"?: 1 .. 10,000 (10,000)}. Answers: JobDetail of src/inspection.ts. Of the payload the first
--           65,536 characters as text; payloadBytes is its length as text here, and not what it takes on disk as in the lists.
-- Locks:    none. Reads only. Raises: PC003 for what is no id.
-- Index:    job_pkey or history_pkey, attempt_pkey, tick_pkey, action_job, job_gate_placed.
create or replace function pgclaim.job_detail_v1(request jsonb)
returns jsonb
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set timezone = 'UTC'
as $$
declare
  max_text constant integer := 65536;
  wanted constant bigint := pgclaim.read_id(request);
  cap constant integer := pgclaim.read_limit(request, 'behindCap', 10000, 10000);
  item jsonb;
  more jsonb;
  waiting bigint;
  r record;
begin
  select j.payload::text as payload, j.gate, j.place, jsonb_build_object(
    'suspect', j.suspect,
    'revision', j.revision,
    'place', j.place::text,
    'trace', j.trace,
    'source', j.source,
    'lastError', j.last_error
  ) as facts, j.ordering_key is not null as is_ordered
  into r
  from pgclaim.job j
  where j.id = wanted;
  if found then
    select o.item into item from pgclaim.job_rows(array[wanted]) o;
    if r.is_ordered then
      select count(*) into waiting
      from (
        select from pgclaim.job j
        where j.gate = r.gate and j.state = 'blocked' and j.ordering_key is not null and j.place > r.place
        limit cap + 1
      ) b;
    end if;
  else
    select h.payload::text as payload, jsonb_build_object(
      'suspect', false,
      'revision', null,
      'place', h.place::text,
      'trace', h.trace,
      'source', h.source,
      'lastError', h.last_error
    ) as facts
    into r
    from pgclaim.history h
    where h.job_id = wanted;
    if not found then
      return null;
    end if;
    select o.item into item from pgclaim.history_rows(array[wanted]) o;
  end if;
  select jsonb_build_object(
    'idempotencyKey', wanted || '-' || right(to_hex(i.seed), 8),
    'payloadText', left(r.payload, max_text),
    'payloadCut', length(r.payload) > max_text,
    'payloadBytes', octet_length(r.payload),
    'attempts', coalesce((
      select jsonb_agg(jsonb_build_object(
        'n', a.n,
        'tick', a.tick,
        'quarantined', a.quarantined,
        'startedAt', a.started_at,
        'endedAt', a.ended_at,
        'outcome', a.outcome,
        'error', a.error,
        'invocationId', t.invocation
      ) order by a.n)
      from (select * from pgclaim.attempt o where o.job_id = wanted order by o.n desc limit 100) a
      left join pgclaim.tick t on t.id = a.tick
    ), '[]'),
    'actions', coalesce((
      select jsonb_agg(jsonb_build_object('at', a.at, 'verb', a.verb, 'actor', a.actor, 'detail', a.detail) order by a.id)
      from (select * from pgclaim.action o where o.job_id = wanted order by o.id desc limit 100) a
    ), '[]'),
    'locks', pgclaim.job_locks(wanted),
    'behind', case when waiting is not null then
      jsonb_build_object('n', least(waiting, cap), 'capped', waiting > cap) end
  )
  into more
  from pgclaim.installation i;
  return item || r.facts || more;
end $$;

-- The whole payload of a job as text: {"id": text} -> {"payload": text}, null where there is no such job. Text, because a number
-- of 64 bits does not survive a parser. Reads only. Raises: PC003. Index: job_pkey, history_pkey.
create or replace function pgclaim.payload_v1(request jsonb)
returns jsonb
language plpgsql stable
as $$
declare
  wanted constant bigint := pgclaim.read_id(request);
begin
  return coalesce(
    (select jsonb_build_object('payload', j.payload::text) from pgclaim.job j where j.id = wanted),
    (select jsonb_build_object('payload', h.payload::text) from pgclaim.history h where h.job_id = wanted)
  );
end $$;
