-- Registers the kinds of a deployment under their digest and answers its revision.
-- Argument: {"digest": text, "kinds": [{"name", "queue", "priority", "targetLatencyMs", "timeoutMs", "maxAttempts",
--           "maxCrashes", "backoff", "minBackoffMs", "maxBackoffMs", "alone"}, ...]}
-- A digest seen before changes nothing, so that an old deployment that is still running never displaces a newer one.
-- Locks: the name "register", until the transaction ends. Raises: PC001.
create or replace function pgclaim.register_v1(request jsonb)
returns integer
language plpgsql volatile
as $$
declare
  known integer;
  base integer;
  next_namespace integer;
  k record;
begin
  perform pgclaim.require_read_committed();
  perform pg_advisory_xact_lock(pgclaim.name_key('internal', 'register', i.seed)) from pgclaim.installation i;
  select r.n into known from pgclaim.revision r where r.digest = request ->> 'digest';
  if found then
    return known;
  end if;
  select coalesce(max(r.n), 0) + 1 into known from pgclaim.revision r;
  insert into pgclaim.revision (n, digest) values (known, request ->> 'digest');
  select i.namespace_base into base from pgclaim.installation i;
  select coalesce(max(o.namespace), base) + 1 into next_namespace from pgclaim.kind o;
  for k in
    select p.*
    from jsonb_to_recordset(request -> 'kinds') as p(
      name text, queue text, priority smallint, "targetLatencyMs" bigint, "timeoutMs" bigint, "maxAttempts" integer,
      "maxCrashes" integer, backoff text, "minBackoffMs" bigint, "maxBackoffMs" bigint, alone boolean
    )
    order by p.name
  loop
    insert into pgclaim.kind as o (
      name, namespace, revision, queue, priority, target_latency_ms, timeout_ms, max_attempts, max_crashes,
      backoff, min_backoff_ms, max_backoff_ms, alone
    )
    values (
      k.name, next_namespace, known, k.queue, k.priority, k."targetLatencyMs", k."timeoutMs", k."maxAttempts",
      k."maxCrashes", k.backoff, k."minBackoffMs", k."maxBackoffMs", k.alone
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
      alone = excluded.alone
    -- An unchanged policy keeps its revision, so both deployments go on claiming the kind during a rollout.
    where (o.queue, o.priority, o.target_latency_ms, o.timeout_ms, o.max_attempts, o.max_crashes, o.backoff,
        o.min_backoff_ms, o.max_backoff_ms, o.alone)
      is distinct from (excluded.queue, excluded.priority, excluded.target_latency_ms, excluded.timeout_ms,
        excluded.max_attempts, excluded.max_crashes, excluded.backoff, excluded.min_backoff_ms,
        excluded.max_backoff_ms, excluded.alone);
    next_namespace := next_namespace + 1;
  end loop;
  return known;
end $$;
