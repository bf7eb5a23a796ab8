-- Inserts jobs, all of them or none.
-- Argument: {"jobs": [{"kind", "payload", "runAt"?: timestamptz, "delayMs"?: integer, "deadlineAt"?: timestamptz,
--           "priority"?: 0..3}, ...], "strict"?: boolean}
-- Rows:     one for each job in order: (i, type, job_id), where type is enqueued, duplicate (nothing inserted, job_id is
--           the one that has the unique key), replaced or rescheduled (that one was changed), or successor (that one runs
--           right now, so this one follows it). If any is refused, only the refused ones:
--           (i, type 'unknown-kind' | 'invalid-payload' | 'payload-too-large' | 'invalid-run-at' | 'invalid-key' |
--           'priority-denied', detail).
-- Raises:   with strict the first refusal as PC002 (unknown kind) or PC003, instead of returning it.
-- Locks:    a unique key's row, until commit; for replace and reschedule it tries the job's lock. Gated jobs get their place
--           at COMMIT, see place_at_commit. Any isolation level: it is called inside callers' own transactions.
-- Security definer: a caller needs this function and nothing else; it reads policies the caller need not see. Priority may
-- be chosen only by a session that may also claim; locks and keys come from the kind and from nowhere else.
create or replace function pgclaim.enqueue_v1(request jsonb)
returns table (i integer, type text, job_id bigint, detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  max_payload_bytes constant integer := 1048576;
  trusted boolean;
  refusal record;
  refused boolean := false;
  ids bigint[];
  drawn bigint[];
  answers text[];
  u record;
begin
  trusted := request @? '$.jobs[*].priority' and has_function_privilege(session_user, 'pgclaim.claim_v1(jsonb)', 'execute');
  for refusal in
    select r.i, r.type, r.detail
    from (
      select
        (e.o - 1)::integer as i,
        case
          when k.name is null then 'unknown-kind'
          when jsonb_typeof(e.v -> 'payload') is null then 'invalid-payload'
          when octet_length((e.v -> 'payload')::text) > max_payload_bytes then 'payload-too-large'
          when not isfinite(coalesce((e.v ->> 'runAt')::timestamptz, now()))
            or not isfinite(coalesce((e.v ->> 'deadlineAt')::timestamptz, now())) then 'invalid-run-at'
          when e.v ->> 'priority' is not null and not trusted then 'priority-denied'
          when k.ordering_key is not null and pgclaim.render_key(k.ordering_key, e.v -> 'payload') is null then 'invalid-key'
          when k.unique_key is not null and pgclaim.render_key(k.unique_key, e.v -> 'payload') is null then 'invalid-key'
          when cardinality(k.locks || k.shared_locks || k.limit_names) > 0
            and pgclaim.render_keys(k.locks || k.shared_locks || k.limit_names, e.v -> 'payload') is null then 'invalid-key'
        end as type,
        case
          when k.name is null then e.v ->> 'kind'
          when octet_length((e.v -> 'payload')::text) > max_payload_bytes
            then octet_length((e.v -> 'payload')::text) || ' of at most ' || max_payload_bytes || ' bytes'
          else array_to_string(array_remove(k.ordering_key || (k.unique_key || (k.locks || k.shared_locks || k.limit_names)), null), ', ')
        end as detail
      from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
      left join pgclaim.kind k on k.name = e.v ->> 'kind'
    ) r
    where r.type is not null
    order by r.i
  loop
    refused := true;
    if coalesce((request ->> 'strict')::boolean, false) then
      perform pgclaim.raise_refusal(refusal.i, refusal.type, refusal.detail);
    end if;
    i := refusal.i;
    type := refusal.type;
    job_id := null;
    detail := refusal.detail;
    return next;
  end loop;
  if refused then
    return;
  end if;

  ids := array(
    select nextval('pgclaim.job_id_seq') from generate_series(1, jsonb_array_length(request -> 'jobs'))
  );
  drawn := ids;
  answers := array_fill('enqueued'::text, array[cardinality(ids)]);
  -- Unique keys one by one, in the order of the keys, so that two batches with the same keys wait for each other in one
  -- direction only.
  for u in
    select e.o::integer as o, k.name as kind, k.unique_for_ms, k.on_conflict, e.v, pgclaim.render_key(k.unique_key, e.v -> 'payload') as key
    from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
    join pgclaim.kind k on k.name = e.v ->> 'kind'
    where k.unique_key is not null
    order by k.name, key, e.o
  loop
    select c.answer, c.id into answers[u.o], ids[u.o]
    from pgclaim.claim_unique_key(u.kind, u.key, u.unique_for_ms, u.on_conflict, ids[u.o], u.v) c;
  end loop;

  -- Ids ascend with i, and so do the places that are drawn at COMMIT.
  insert into pgclaim.job (
    id, kind, queue, state, priority, rank, run_at, revision, payload, ordering_key, locks, shared_locks, limit_names,
    limit_maxes, gate, gate_width, when_dead, deadline_at, when_missed, unique_key
  )
  overriding system value
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
    case when d.gate is null then null when d.ordering_key is not null then 1 when d.limit_names is not null then d.limit_maxes[1] else 2 end,
    d.when_dead,
    d.deadline_at,
    d.when_missed,
    d.unique_key
  from (
    select
      r.*,
      case
        when r.ordering_key is not null then 'order:' || r.ordering_key
        when r.limit_names is not null then 'limit:' || r.limit_names[1]
        when r.locks is not null then 'lock:' || r.locks[1]
      end as gate
    from (
      select
        ids[e.o] as id,
        k.name as kind,
        k.queue,
        coalesce((e.v ->> 'priority')::smallint, k.priority) as priority,
        k.revision,
        k.target_latency_ms,
        k.when_dead,
        k.when_missed,
        coalesce(
          (e.v ->> 'runAt')::timestamptz,
          clock_timestamp() + coalesce((e.v ->> 'delayMs')::float8, 0) * interval '1 millisecond'
        ) as due,
        coalesce(
          (e.v ->> 'runAt')::timestamptz <= clock_timestamp(),
          coalesce((e.v ->> 'delayMs')::float8, 0) <= 0
        ) as is_due,
        e.v -> 'payload' as payload,
        case when k.ordering_key is not null then pgclaim.render_key(k.ordering_key, e.v -> 'payload') end as ordering_key,
        case when cardinality(k.locks) > 0 then pgclaim.render_keys(k.locks, e.v -> 'payload') end as locks,
        case when cardinality(k.shared_locks) > 0 then pgclaim.render_keys(k.shared_locks, e.v -> 'payload') end as shared_locks,
        -- In the kind's order, which pairs them with their maxima; the first one is the gate. A queue's limit comes last.
        nullif(array(
          select pgclaim.render_key(l.name, e.v -> 'payload') from unnest(k.limit_names) with ordinality l(name, n) order by l.n
        ) || case when q.max is not null then array['@queue/' || q.name] else '{}' end, '{}') as limit_names,
        nullif(k.limit_maxes || case when q.max is not null then array[q.max] else '{}' end, '{}') as limit_maxes,
        coalesce(
          (e.v ->> 'deadlineAt')::timestamptz,
          clock_timestamp() + k.deadline_ms * interval '1 millisecond'
        ) as deadline_at,
        case when k.unique_key is not null then pgclaim.render_key(k.unique_key, e.v -> 'payload') end as unique_key,
        e.o
      from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
      join pgclaim.kind k on k.name = e.v ->> 'kind'
      left join pgclaim.queue q on q.name = k.queue
      where ids[e.o] = drawn[e.o]
    ) r
  ) d
  order by d.o;

  return query
  select (n - 1), answers[n], ids[n], null::text
  from generate_series(1, cardinality(ids)) n;
end $$;

-- Gives a unique key to a new job, or finds who has it and does what the kind says.
-- A conflict waits for the transaction that inserted the key first, and when that one rolls back, this one has the key:
-- nothing is lost.
create or replace function pgclaim.claim_unique_key(
  job_kind text, wanted text, for_ms bigint, conflict text, new_id bigint, job jsonb
)
returns table (answer text, id bigint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  holder record;
  due timestamptz := coalesce(
    (job ->> 'runAt')::timestamptz,
    clock_timestamp() + coalesce((job ->> 'delayMs')::float8, 0) * interval '1 millisecond'
  );
begin
  answer := 'enqueued';
  id := new_id;
  loop
    insert into pgclaim.unique_key as k (kind, key, job_id, expires_at)
    values (job_kind, wanted, new_id, clock_timestamp() + for_ms * interval '1 millisecond')
    on conflict on constraint unique_key_pkey do update
    set job_id = excluded.job_id, expires_at = excluded.expires_at
    where k.expires_at <= clock_timestamp();
    if found then
      return next;
      return;
    end if;
    select k.job_id, j.id as live, j.state, j.gate
    into holder
    from pgclaim.unique_key k
    left join pgclaim.job j on j.id = k.job_id
    where k.kind = job_kind and k.key = wanted;
    -- Gone between the two statements: its job has just finished, so the key is free.
    exit when found;
  end loop;
  answer := 'duplicate';
  id := holder.job_id;
  if conflict = 'keep' or holder.live is null or holder.state = 'dead' then
    return next;
    return;
  end if;
  if not pgclaim.try_job_lock(job_kind, holder.job_id)
    -- Inside a tick the lock may be our own: an open attempt says that the job is being run.
    or exists (select from pgclaim.attempt a where a.job_id = holder.job_id and a.outcome is null) then
    -- It runs right now. Its payload is being worked on, so a new one must not vanish into it: a successor follows.
    if conflict = 'replace' then
      update pgclaim.unique_key k set job_id = new_id where k.kind = job_kind and k.key = wanted;
      answer := 'successor';
      id := new_id;
    end if;
    return next;
    return;
  end if;
  if conflict = 'replace' and not exists (
    select from pgclaim.job j
    join pgclaim.kind p on p.name = j.kind
    where j.id = holder.job_id
      and j.ordering_key is not distinct from case when p.ordering_key is not null then pgclaim.render_key(p.ordering_key, job -> 'payload') end
      and j.locks is not distinct from pgclaim.render_keys(p.locks, job -> 'payload')
      and j.shared_locks is not distinct from pgclaim.render_keys(p.shared_locks, job -> 'payload')
      and coalesce(j.limit_names[1:cardinality(p.limit_names)], '{}') = array(
        select pgclaim.render_key(l.name, job -> 'payload') from unnest(p.limit_names) with ordinality l(name, n) order by l.n
      )
  ) then
    -- Other keys than before: the row belongs into another gate, so the new job takes its place altogether.
    with gone as (
      delete from pgclaim.job j where j.id = holder.job_id and j.state in ('ready', 'scheduled', 'blocked') returning j.*
    )
    insert into pgclaim.history (
      job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, last_error, payload, ordering_key, place, deadline_at
    )
    select g.id, g.kind, g.queue, 'cancelled', g.attempt, g.failures, g.run_at, g.enqueued_at, g.last_error, g.payload,
      g.ordering_key, g.place, g.deadline_at
    from gone g;
    if found then
      update pgclaim.unique_key k set job_id = new_id where k.kind = job_kind and k.key = wanted;
      if holder.gate is not null then
        insert into pgclaim.recheck (gate) values (holder.gate);
      end if;
      answer := 'replaced';
      id := new_id;
      return next;
      return;
    end if;
  end if;
  update pgclaim.job j
  set
    payload = case conflict when 'replace' then job -> 'payload' else j.payload end,
    run_at = due,
    rank = coalesce(j.deadline_at, due + p.target_latency_ms * interval '1 millisecond'),
    state = case
      when j.state = 'blocked' then 'blocked'
      when due > clock_timestamp() then 'scheduled'
      when j.gate is not null and j.ordering_key is null and j.state = 'scheduled' then 'blocked'
      else 'ready'
    end
  from pgclaim.kind p
  where j.id = holder.job_id and j.state in ('ready', 'scheduled', 'blocked') and p.name = j.kind;
  if not found then
    -- Finished before we had its lock: begin again, the key may be free now.
    return query select c.answer, c.id from pgclaim.claim_unique_key(job_kind, wanted, for_ms, conflict, new_id, job) c;
    return;
  end if;
  if holder.gate is not null then
    insert into pgclaim.recheck (gate) values (holder.gate);
  end if;
  answer := case conflict when 'replace' then 'replaced' else 'rescheduled' end;
  return next;
end $$;

-- A refusal as an error, for strict callers.
create or replace function pgclaim.raise_refusal(i integer, type text, detail text)
returns void
language plpgsql volatile
as $$
begin
  if type = 'unknown-kind' then
    raise exception 'No kind "%" in the database.', coalesce(raise_refusal.detail, 'null')
      using errcode = 'PC002',
        detail = 'Known kinds: ' || coalesce((
          select string_agg(k.name, ', ' order by k.name) from (select o.name from pgclaim.kind o order by o.name limit 20) k
        ), 'none') || '.',
        hint = 'A kind is registered when a deployment that defines it first runs: trigger it once after the deploy.';
  elsif type = 'invalid-key' then
    raise exception 'Job %: the payload has no text, number or boolean for every key of its kind, or a key is longer than 500 bytes: %.', i, raise_refusal.detail
      using errcode = 'PC003', hint = 'The names in braces are paths in the payload.';
  elsif type = 'priority-denied' then
    raise exception 'Job %: this session may not choose a priority.', i
      using errcode = 'PC003', hint = 'Priorities belong to the kind; a role that may run jobs may choose another.';
  end if;
  raise exception 'Job %: %, %.', i, type, raise_refusal.detail
    using errcode = 'PC003', hint = 'The payload is a JSON value within the size limit; run_at is a finite instant.';
end $$;
