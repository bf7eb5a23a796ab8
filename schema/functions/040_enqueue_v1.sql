-- Inserts jobs, all of them or none.
-- Argument: {"jobs": [{"kind", "payload", "runAt"?: timestamptz, "delayMs"?: integer, "deadlineAt"?: timestamptz,
--           "priority"?: 0..3, "trace"?: W3C traceparent, "source"?: text (what enqueues it)}, ...], "strict"?: boolean, "keysUntil"?: timestamptz (finish: until when it may wait for unique
--           keys inside a tick, if that is sooner than in two seconds)}
-- Rows:     one for each job in order: (i, type, job_id), where type is enqueued, duplicate (nothing inserted, job_id is
--           the one that has the unique key), replaced or rescheduled (that one was changed, be it an earlier one of this
--           call), or successor (that one runs right now, so this one follows it). If any is refused, only the refused ones:
--           (i, type 'unknown-kind' | 'invalid-payload' | 'payload-too-large' | 'invalid-run-at' | 'invalid-key' |
--           'invalid-priority' | 'priority-denied', detail).
-- Raises:   with strict the first refusal as PC002 (unknown kind) or PC003, instead of returning it; PC003 for a request that
--           cannot be read at all; PC006 inside a tick that has enqueued behind more keys, names and limits than fit.
-- Locks:    see claim_unique_key. Inside a tick it waits two seconds at most for all its keys, so that somebody's long
--           transaction costs the handler that wants the key one attempt, and not the tick its time. Gated jobs get their
--           place at COMMIT, see place_at_commit. Any isolation level: it is called inside callers' own transactions.
-- Security definer: a caller needs this function and nothing else; it reads policies the caller need not see. Only who may
-- also claim may choose a priority, or stand in the past: a run_at or deadline of anybody else that has passed is now, and a
-- delay below zero none, since whoever was due first goes first. Locks and keys come from the kind and from nowhere else.
-- A source is believed of those who may claim or operate, and dropped of anybody else: what stands in a job's record as a schedule's
-- or another job's doing must not be anybody's word. A trace decides nothing, so anybody may give one.
create or replace function pgclaim.enqueue_v1(request jsonb)
returns table (i integer, type text, job_id bigint, detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  max_payload_bytes constant integer := 1048576;
  -- Instants that JavaScript reads in the form in which JSON has them. One beyond, in one row, would fail every tick.
  first_instant constant timestamptz := '0001-01-01 00:00:00+00';
  last_instant constant timestamptz := '9999-12-31 23:59:59.999999+00';
  max_delay_ms constant float8 := 315360000000;
  -- One instant for the whole call: of a batch, ids break the tie of equal ranks, so it runs in its own order.
  clock constant timestamptz := clock_timestamp();
  trusted constant boolean := has_function_privilege(pgclaim.caller(), 'pgclaim.claim_v1(jsonb)', 'execute');
  believed constant boolean := trusted or has_function_privilege(pgclaim.caller(), 'pgclaim.operate_v1(jsonb)', 'execute');
  in_tick constant boolean := pgclaim.in_tick();
  keys_until timestamptz;
  refusal record;
  refused boolean := false;
  ids bigint[];
  drawn bigint[];
  answers text[];
  wanted jsonb[];  -- the jobs, where a later one has changed an earlier one of the same key
  earlier integer;
  usual_timeout text;
  u record;
  given record;
begin
  -- Every field is read here once. What cannot be read is the caller's fault, and is told by a SQLSTATE of ours.
  begin
    keys_until := least((request ->> 'keysUntil')::timestamptz, clock + interval '2 seconds');
    for refusal in
      select r.i, r.type, r.detail
      from (
        select
          (e.o - 1)::integer as i,
          case
            when k.name is null then 'unknown-kind'
            when jsonb_typeof(e.v -> 'payload') is null then 'invalid-payload'
            when octet_length((e.v -> 'payload')::text) > max_payload_bytes then 'payload-too-large'
            when (e.v ->> 'runAt')::timestamptz not between first_instant and last_instant
              or (e.v ->> 'deadlineAt')::timestamptz not between first_instant and last_instant
              or (e.v ->> 'delayMs')::float8 not between -max_delay_ms and max_delay_ms then 'invalid-run-at'
            when e.v ->> 'priority' is not null and not trusted then 'priority-denied'
            when e.v ->> 'priority' is not null and not e.v -> 'priority' in ('0', '1', '2', '3') then 'invalid-priority'
            when k.ordering_key is not null and pgclaim.render_key(k.ordering_key, e.v -> 'payload') is null then 'invalid-key'
            when k.unique_key is not null and pgclaim.render_key(k.unique_key, e.v -> 'payload') is null then 'invalid-key'
            when cardinality(k.locks || k.shared_locks || k.limit_names) > 0
              and pgclaim.render_keys(k.locks || k.shared_locks || k.limit_names, e.v -> 'payload') is null then 'invalid-key'
          end as type,
          case
            when k.name is null then e.v ->> 'kind'
            when jsonb_typeof(e.v -> 'payload') is null then 'missing'
            when octet_length((e.v -> 'payload')::text) > max_payload_bytes
              then octet_length((e.v -> 'payload')::text) || ' of at most ' || max_payload_bytes || ' bytes'
            when (e.v ->> 'runAt')::timestamptz not between first_instant and last_instant then e.v ->> 'runAt'
            when (e.v ->> 'deadlineAt')::timestamptz not between first_instant and last_instant then e.v ->> 'deadlineAt'
            when (e.v ->> 'delayMs')::float8 not between -max_delay_ms and max_delay_ms then e.v ->> 'delayMs'
            when e.v ->> 'priority' is not null and not (trusted and e.v -> 'priority' in ('0', '1', '2', '3')) then e.v ->> 'priority'
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
  exception when data_exception or program_limit_exceeded then
    raise exception 'The request cannot be read: %.', sqlerrm
      using errcode = 'PC003',
        hint = 'Expected {"jobs": [{"kind", "payload", "runAt"?, "delayMs"?, "deadlineAt"?, "priority"?, "trace"?, '
          || '"source"?}, ...], '
          || '"strict"?: boolean}.';
  end;
  if refused then
    return;
  end if;

  if not trusted and request @? '$.jobs[*] ? (exists(@.runAt) || exists(@.delayMs) || exists(@.deadlineAt))' then
    request := jsonb_set(request, '{jobs}', (
      select jsonb_agg(
        e.v
          || case when (e.v ->> 'runAt')::timestamptz < clock then jsonb_build_object('runAt', clock) else '{}' end
          || case when (e.v ->> 'delayMs')::float8 < 0 then jsonb_build_object('delayMs', 0) else '{}' end
          || case when (e.v ->> 'deadlineAt')::timestamptz < clock then jsonb_build_object('deadlineAt', clock) else '{}' end
        order by e.o
      )
      from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
    ));
  end if;

  if not believed and request @? '$.jobs[*].source' then
    request := jsonb_set(request, '{jobs}', (
      select jsonb_agg(e.v - 'source' order by e.o) from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
    ));
  end if;

  ids := array(
    select nextval('pgclaim.job_id_seq') from generate_series(1, jsonb_array_length(request -> 'jobs'))
  );
  drawn := ids;
  answers := array_fill('enqueued'::text, array[cardinality(ids)]);
  -- Unique keys one by one, in the order of the keys, so that two batches with the same keys wait for each other in one
  -- direction only.
  for u in
    select
      e.o::integer as o, k.name as kind, k.unique_for_ms, k.on_conflict, e.v, pgclaim.render_key(k.unique_key, e.v -> 'payload') as key
    from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
    join pgclaim.kind k on k.name = e.v ->> 'kind'
    where k.unique_key is not null
    order by k.name, key, e.o
  loop
    if in_tick then
      usual_timeout := coalesce(usual_timeout, current_setting('lock_timeout'));
      perform set_config(
        'lock_timeout', greatest(1, extract(epoch from keys_until - clock_timestamp()) * 1000)::integer || 'ms', true
      );
    end if;
    select c.* into given
    from pgclaim.claim_unique_key(u.kind, u.key, u.unique_for_ms, u.on_conflict, drawn[u.o], drawn, u.v, clock) c;
    answers[u.o] := given.answer;
    ids[u.o] := given.id;
    continue when given.answer <> 'own';
    -- An earlier one of this call has the key. It is not inserted yet, so it is changed here.
    earlier := array_position(drawn, ids[u.o]);
    wanted := coalesce(wanted, array(select v from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o) order by o));
    case u.on_conflict
      when 'replace' then
        answers[u.o] := 'replaced';
        wanted[earlier] := u.v;
      when 'reschedule' then
        answers[u.o] := 'rescheduled';
        wanted[earlier] := wanted[earlier]
          || jsonb_build_object('runAt', u.v -> 'runAt', 'delayMs', u.v -> 'delayMs')
          || case when u.v ->> 'deadlineAt' is not null then jsonb_build_object('deadlineAt', u.v -> 'deadlineAt') else '{}' end;
      else
        answers[u.o] := 'duplicate';
    end case;
  end loop;
  if usual_timeout is not null then
    perform set_config('lock_timeout', usual_timeout, true);
  end if;

  -- Ids ascend with i, and so do the places that are drawn at COMMIT.
  insert into pgclaim.job (
    id, kind, queue, state, priority, rank, run_at, revision, payload, ordering_key, locks, shared_locks, limit_names,
    limit_maxes, gate, gate_width, when_dead, deadline_at, when_missed, unique_key, trace, source
  )
  overriding system value
  select
    d.id, d.kind, d.queue, d.state, d.priority, d.rank, d.run_at, d.revision, d.payload, d.ordering_key, d.locks,
    d.shared_locks, d.limit_names, d.limit_maxes, d.gate, d.gate_width, d.when_dead, d.deadline_at, d.when_missed, d.unique_key,
    d.trace, d.source
  from pgclaim.derive_jobs(
    coalesce(to_jsonb(wanted), request -> 'jobs'),
    array(select case when t.mine = t.answered then t.mine end from unnest(drawn, ids) with ordinality t(mine, answered, n) order by t.n),
    clock
  ) d
  order by d.id;

  if in_tick then
    perform pgclaim.check_gates();
  end if;

  return query
  select (n - 1), answers[n], ids[n], null::text
  from generate_series(1, cardinality(ids)) n;
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
  elsif type = 'invalid-priority' then
    raise exception 'Job %: priority is %; expected an integer from 0 to 3.', i, raise_refusal.detail
      using errcode = 'PC003', hint = 'Smaller runs first.';
  elsif type = 'priority-denied' then
    raise exception 'Job %: this session may not choose a priority.', i
      using errcode = 'PC003', hint = 'Priorities belong to the kind; a role that may run jobs may choose another.';
  end if;
  raise exception 'Job %: %, %.', i, type, raise_refusal.detail
    using errcode = 'PC003',
      hint = 'The payload is a JSON value within the size limit; instants lie in the years 1 to 9999, delays within ten years.';
end $$;
