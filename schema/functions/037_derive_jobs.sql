-- The rows that requests make: what the kind says, and what it says of the payload. The one place where a job's keys, locks,
-- limits, gate and deadline come from, for a new job and for one that is replaced.
-- Where it comes from is said there too: a trace that is none is left out, since telemetry is no reason to lose a job, and a source
-- is cut to 200 characters.
-- Arguments: the jobs as in enqueue_v1; an id for each, null for one that makes no row; the instant that "now" is.
create or replace function pgclaim.derive_jobs(jobs jsonb, job_ids bigint[], clock timestamptz)
returns table (
  id bigint, kind text, queue text, state text, priority smallint, rank timestamptz, run_at timestamptz, revision integer,
  payload jsonb, ordering_key text, locks text[], shared_locks text[], limit_names text[], limit_maxes integer[], gate text,
  gate_width integer, when_dead text, deadline_at timestamptz, when_missed text, unique_key text, trace text, source text
)
language sql stable
as $$
  select
    d.id,
    d.kind,
    d.queue,
    -- A gated job waits for its place; of a limit or a name, one that is not due yet waits for its time first.
    case
      when d.gate is not null and (d.ordering_key is not null or d.is_due) then 'blocked'
      when d.is_due then 'ready'
      else 'scheduled'
    end,
    d.priority,
    coalesce(d.deadline_at, d.due + d.target_latency_ms * interval '1 millisecond'),
    d.due,
    d.revision,
    d.payload,
    d.ordering_key,
    d.locks,
    d.shared_locks,
    d.limit_names,
    d.limit_maxes,
    d.gate,
    case
      when d.gate is null then null
      when d.ordering_key is not null then 1
      when d.gate like 'limit:%' then d.limit_maxes[coalesce(d.gate_limit, 1)]
      else 2
    end,
    d.when_dead,
    d.deadline_at,
    d.when_missed,
    d.unique_key,
    d.trace,
    d.source
  from (
    select
      r.*,
      -- Of one that is due later it counts from then.
      coalesce(r.asked_deadline, r.due + r.deadline_after) as deadline_at,
      -- Ordering key, first limit of the payload's, first exclusive name, first limit of all: where everybody of a kind or a
      -- queue waited at one gate, those of one busy name would stand there and hide the free ones. A name has a gate in each
      -- queue: in one for all, the jobs of a paused queue, or of one that nobody serves, would stand in everybody's way. 
      case
        when r.ordering_key is not null then 'order:' || r.ordering_key
        when r.gate_limit is not null then pgclaim.gate_of('limit', r.queue, r.limit_names[r.gate_limit])
        when r.locks is not null then pgclaim.gate_of('lock', r.queue, r.locks[1])
        when r.limit_names is not null then pgclaim.gate_of('limit', r.queue, r.limit_names[1])
      end as gate
    from (
      select
        job_ids[e.o] as id,
        k.name as kind,
        k.queue,
        coalesce((e.v ->> 'priority')::numeric::smallint, k.priority) as priority,
        k.revision,
        k.target_latency_ms,
        k.when_dead,
        k.when_missed,
        coalesce(
          (e.v ->> 'runAt')::timestamptz,
          clock + coalesce((e.v ->> 'delayMs')::float8, 0) * interval '1 millisecond'
        ) as due,
        coalesce(
          (e.v ->> 'runAt')::timestamptz <= clock,
          coalesce((e.v ->> 'delayMs')::float8, 0) <= 0
        ) as is_due,
        e.v -> 'payload' as payload,
        case when k.ordering_key is not null then pgclaim.render_key(k.ordering_key, e.v -> 'payload') end as ordering_key,
        case when cardinality(k.locks) > 0 then pgclaim.render_keys(k.locks, e.v -> 'payload') end as locks,
        case when cardinality(k.shared_locks) > 0 then pgclaim.render_keys(k.shared_locks, e.v -> 'payload') end as shared_locks,
        (
          select min(l.n)::integer from unnest(k.limit_names) with ordinality l(name, n) where l.name like '%{%'
        ) as gate_limit,
        -- In the kind's order, which pairs them with their maxima. A queue's limit comes last.
        nullif(array(
          select pgclaim.render_key(l.name, e.v -> 'payload') from unnest(k.limit_names) with ordinality l(name, n) order by l.n
        ) || case when q.max is not null then array['@queue/' || q.name] else '{}' end, '{}') as limit_names,
        nullif(k.limit_maxes || case when q.max is not null then array[q.max] else '{}' end, '{}') as limit_maxes,
        (e.v ->> 'deadlineAt')::timestamptz as asked_deadline,
        k.deadline_ms * interval '1 millisecond' as deadline_after,
        case when k.unique_key is not null then pgclaim.render_key(k.unique_key, e.v -> 'payload') end as unique_key,
        pgclaim.read_trace(e.v ->> 'trace') as trace,
        left(pgclaim.printable(e.v ->> 'source'), 200) as source,
        e.o
      from jsonb_array_elements(jobs) with ordinality e(v, o)
      join pgclaim.kind k on k.name = e.v ->> 'kind'
      left join pgclaim.queue q on q.name = k.queue
      where job_ids[e.o] is not null
    ) r
  ) d
$$;
