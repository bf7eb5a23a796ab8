-- Registers the kinds of a deployment under their digest and answers its revision.
-- Argument: {"digest": text, "kinds": [{"name", "queue", "priority", "targetLatencyMs", "timeoutMs", "maxAttempts",
--           "maxCrashes", "backoff", "minBackoffMs", "maxBackoffMs", "alone", "orderingKey", "whenDead", "locks",
--           "sharedLocks", "limitNames", "limitMaxes", "uniqueKey", "uniqueForMs", "onConflict", "deadlineMs",
--           "whenMissed"}, ...], "queueMax"?: {queue: integer}, "queues"?: [text] (those this deployment serves),
--           "schedules"?: see write_schedules; a deployment without any, or with null, leaves them alone}
-- A digest seen before changes nothing, so that an old deployment that is still running never displaces a newer one; see
-- use_revision_v1 for a rollback.
-- Locks: the name "register", until the transaction ends. Raises: PC001.
create or replace function pgclaim.register_v1(request jsonb)
returns integer
language plpgsql volatile
as $$
declare
  known integer;
begin
  perform pgclaim.require_read_committed();
  perform pg_advisory_xact_lock(pgclaim.name_key('internal', 'register', i.seed)) from pgclaim.installation i;
  select r.n into known from pgclaim.revision r where r.digest = request ->> 'digest';
  if found then
    return known;
  end if;
  select coalesce(max(r.n), 0) + 1 into known from pgclaim.revision r;
  insert into pgclaim.revision (n, digest, deployment) values (known, request ->> 'digest', request);
  perform pgclaim.put_in_force(known, request);
  return known;
end $$;

-- Writes what a deployment wants, as revision `known`. The caller holds the name "register". Argument: register_v1's.
create or replace function pgclaim.put_in_force(known integer, request jsonb)
returns void
language plpgsql volatile
as $$
declare
  base integer;
  next_namespace integer;
  k record;
  queues constant text[] := array(select jsonb_array_elements_text(coalesce(request -> 'queues', '[]')));
begin
  select i.namespace_base into base from pgclaim.installation i;
  select coalesce(max(o.namespace), base) + 1 into next_namespace from pgclaim.kind o;
  for k in
    select p.*
    from jsonb_to_recordset(request -> 'kinds') as p(
      name text, queue text, priority smallint, "targetLatencyMs" bigint, "timeoutMs" bigint, "maxAttempts" integer,
      "maxCrashes" integer, backoff text, "minBackoffMs" bigint, "maxBackoffMs" bigint, alone boolean,
      "orderingKey" text, "whenDead" text, locks text[], "sharedLocks" text[], "limitNames" text[], "limitMaxes" integer[],
      "uniqueKey" text, "uniqueForMs" bigint, "onConflict" text, "deadlineMs" bigint, "whenMissed" text
    )
    order by p.name
  loop
    insert into pgclaim.kind as o (
      name, namespace, revision, queue, priority, target_latency_ms, timeout_ms, max_attempts, max_crashes,
      backoff, min_backoff_ms, max_backoff_ms, alone, ordering_key, when_dead, locks, shared_locks, limit_names,
      limit_maxes, unique_key, unique_for_ms, on_conflict, deadline_ms, when_missed
    )
    values (
      k.name, next_namespace, known, k.queue, k.priority, k."targetLatencyMs", k."timeoutMs", k."maxAttempts",
      k."maxCrashes", k.backoff, k."minBackoffMs", k."maxBackoffMs", k.alone, k."orderingKey",
      coalesce(k."whenDead", 'halt'), coalesce(k.locks, '{}'), coalesce(k."sharedLocks", '{}'),
      coalesce(k."limitNames", '{}'), coalesce(k."limitMaxes", '{}'), k."uniqueKey", k."uniqueForMs",
      coalesce(k."onConflict", 'keep'), k."deadlineMs", coalesce(k."whenMissed", 'dead')
    )
    on conflict (name) do update
    set
      revision = excluded.revision,
      queue = excluded.queue,
      priority = excluded.priority,
      target_latency_ms = excluded.target_latency_ms,
      timeout_ms = excluded.timeout_ms,
      max_attempts = excluded.max_attempts,
      max_crashes = excluded.max_crashes,
      backoff = excluded.backoff,
      min_backoff_ms = excluded.min_backoff_ms,
      max_backoff_ms = excluded.max_backoff_ms,
      alone = excluded.alone,
      ordering_key = excluded.ordering_key,
      when_dead = excluded.when_dead,
      locks = excluded.locks,
      shared_locks = excluded.shared_locks,
      limit_names = excluded.limit_names,
      limit_maxes = excluded.limit_maxes,
      unique_key = excluded.unique_key,
      unique_for_ms = excluded.unique_for_ms,
      on_conflict = excluded.on_conflict,
      deadline_ms = excluded.deadline_ms,
      when_missed = excluded.when_missed
    -- An unchanged policy keeps its revision, so both deployments go on claiming the kind during a rollout.
    where (o.queue, o.priority, o.target_latency_ms, o.timeout_ms, o.max_attempts, o.max_crashes, o.backoff,
        o.min_backoff_ms, o.max_backoff_ms, o.alone, o.ordering_key, o.when_dead, o.locks, o.shared_locks, o.limit_names,
        o.limit_maxes, o.unique_key, o.unique_for_ms, o.on_conflict, o.deadline_ms, o.when_missed)
      is distinct from (excluded.queue, excluded.priority, excluded.target_latency_ms, excluded.timeout_ms,
        excluded.max_attempts, excluded.max_crashes, excluded.backoff, excluded.min_backoff_ms,
        excluded.max_backoff_ms, excluded.alone, excluded.ordering_key, excluded.when_dead, excluded.locks,
        excluded.shared_locks, excluded.limit_names, excluded.limit_maxes, excluded.unique_key, excluded.unique_for_ms,
        excluded.on_conflict, excluded.deadline_ms, excluded.when_missed);
    next_namespace := next_namespace + 1;
  end loop;
  -- Limits of queues are the deployment's as a whole; one that it serves and does not name has none. Other queues are
  -- another deployment's.
  update pgclaim.queue q set max = null
  where q.max is not null and q.name = any (queues) and not coalesce(request -> 'queueMax', '{}') ? q.name;
  insert into pgclaim.queue as q (name, max)
  select m.key, m.value::integer from jsonb_each_text(coalesce(request -> 'queueMax', '{}')) m order by m.key
  on conflict on constraint queue_pkey do update set max = excluded.max;
  if jsonb_typeof(request -> 'schedules') = 'array' then
    perform pgclaim.write_schedules(known, queues, request -> 'schedules');
  end if;
end $$;

-- After a rollback: makes a deployment that was registered before the newest one again, with its policies, queue limits and
-- schedules. It gets a number of its own at the end, so its invocations claim what the newer one has enqueued meanwhile, whose
-- payloads it must be able to read. The newer one goes back behind it; rolling forward, use that one, or deploy a new build.
-- Answers: {"type": 'used', "revision": integer} | {"type": 'current'} | {"type": 'not-found'} | {"type": 'unknown'} (it was
--          registered by a release that did not remember what was asked for: deploy it once more with any change).
-- Own short transaction. Locks: the name "register", until it ends. Raises: PC001.
create or replace function pgclaim.use_revision_v1(n integer)
returns jsonb
language plpgsql volatile
as $$
declare
  r record;
  newest integer;
begin
  perform pgclaim.require_read_committed();
  perform pg_advisory_xact_lock(pgclaim.name_key('internal', 'register', i.seed)) from pgclaim.installation i;
  select o.deployment into r from pgclaim.revision o where o.n = use_revision_v1.n;
  if not found then
    return jsonb_build_object('type', 'not-found');
  elsif r.deployment is null then
    return jsonb_build_object('type', 'unknown');
  end if;
  select max(o.n) into newest from pgclaim.revision o;
  if newest = use_revision_v1.n then
    return jsonb_build_object('type', 'current');
  end if;
  update pgclaim.revision o set n = newest + 1 where o.n = use_revision_v1.n;
  perform pgclaim.put_in_force(newest + 1, r.deployment);
  return jsonb_build_object('type', 'used', 'revision', newest + 1);
end $$;

-- The newest deployment that has changed a kind or a schedule of this one, or dropped a schedule; null without any. Reads
-- what the deployment asked for only where there is a newer one at all.
create or replace function pgclaim.superseded_by(mine integer)
returns integer
language plpgsql stable
as $$
declare
  newest integer;
  asked jsonb;
begin
  select max(r.n) into newest from pgclaim.revision r;
  if newest is not distinct from mine then
    return null;
  end if;
  select r.deployment into asked from pgclaim.revision r where r.n = mine;
  return greatest(
    (
      select max(k.revision)
      from jsonb_array_elements(asked -> 'kinds') d(v)
      join pgclaim.kind k on k.name = d.v ->> 'name' and k.revision > mine
    ),
    (
      select max(coalesce(s.revision, newest))
      from jsonb_array_elements(
        case jsonb_typeof(asked -> 'schedules') when 'array' then asked -> 'schedules' else '[]' end
      ) d(v)
      left join pgclaim.schedule s on s.name = d.v ->> 'name'
      where s.name is null or s.revision > mine
    )
  );
end $$;

-- The deployments that have registered, the newest first. Reads only.
create or replace function pgclaim.revisions_v1()
returns table (n integer, digest text, registered_at timestamptz, kinds text[])
language sql stable
as $$
  select r.n, r.digest, r.registered_at, array(
    select k.v ->> 'name' from jsonb_array_elements(r.deployment -> 'kinds') k(v) order by k.v ->> 'name'
  )
  from pgclaim.revision r
  order by r.n desc
$$;
