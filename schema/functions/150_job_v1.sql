-- One job with its attempts, unfinished or from history; null where there is none. Reads only.
-- "running" is no column: it is whether somebody holds the job's lock while an attempt is open.
create or replace function pgclaim.job_v1(id bigint)
returns jsonb
language sql stable
as $$
  select to_jsonb(r) || jsonb_build_object(
    'attempts', coalesce((
      select jsonb_agg(jsonb_build_object(
        'n', a.n,
        'tick', a.tick,
        'quarantined', a.quarantined,
        'startedAt', a.started_at,
        'endedAt', a.ended_at,
        'outcome', a.outcome,
        'error', a.error
      ) order by a.n)
      from (
        select * from pgclaim.attempt o where o.job_id = job_v1.id order by o.n desc limit 100
      ) a
    ), '[]')
  )
  from (
    select
      j.id::text as "id",
      j.kind,
      j.queue,
      case
        when j.state = 'ready' and exists (
          select from pgclaim.attempt o where o.job_id = j.id and o.outcome is null
        ) and exists (
          select from pg_catalog.pg_locks l
          join pgclaim.kind k on k.name = j.kind
          where l.locktype = 'advisory'
            and l.granted
            and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
            and l.objsubid = 1
            and ((l.classid::bigint << 32) | l.objid::bigint) = pgclaim.job_key(k.namespace, j.id)
        ) then 'running'
        else j.state
      end as "state",
      j.attempt,
      j.failures,
      j.suspect,
      j.run_at as "runAt",
      j.enqueued_at as "enqueuedAt",
      null::timestamptz as "finishedAt",
      j.dead_at as "deadAt",
      j.dead_reason as "deadReason",
      j.last_error as "lastError",
      j.payload,
      j.ordering_key as "orderingKey",
      j.place::text as "place",
      j.unique_key as "uniqueKey",
      j.deadline_at as "deadlineAt",
      array_to_json(j.locks || j.shared_locks || j.limit_names) as "locks"
    from pgclaim.job j
    where j.id = job_v1.id
    union all
    select
      h.job_id::text, h.kind, h.queue, h.outcome, h.attempts, h.failures, false, h.run_at, h.enqueued_at, h.finished_at,
      null, null, h.last_error, h.payload, h.ordering_key, h.place::text, null, h.deadline_at, null
    from pgclaim.history h
    where h.job_id = job_v1.id
  ) r
$$;
