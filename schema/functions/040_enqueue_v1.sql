-- Inserts jobs, all of them or none.
-- Argument: {"jobs": [{"kind", "payload", "runAt"?: timestamptz, "delayMs"?: integer, "deadlineAt"?: timestamptz,
--           "priority"?: 0..3}, ...], "strict"?: boolean, "keysUntil"?: timestamptz (finish: until when it may wait for unique
--           keys inside a tick, if that is sooner than in two seconds)}
-- Rows:     one for each job in order: (i, type, job_id), where type is enqueued, duplicate (nothing inserted, job_id is
--           the one that has the unique key), replaced or rescheduled (that one was changed, be it an earlier one of this
--           call), or successor (that one runs right now, so this one follows it). If any is refused, only the refused ones:
--           (i, type 'unknown-kind' | 'invalid-payload' | 'payload-too-large' | 'invalid-run-at' | 'invalid-key' |
--           'invalid-priority' | 'priority-denied', detail).
-- Raises:   with strict the first refusal as PC002 (unknown kind) or PC003, instead of returning it; PC003 for a request that
--           cannot be read at all.
-- Locks:    see claim_unique_key. Inside a tick it waits two seconds at most for all its keys, so that somebody's long
--           transaction costs the handler that wants the key one attempt, and not the tick its time. Gated jobs get their place at
--           COMMIT, see place_at_commit. Any isolation level: it is called inside callers' own transactions.
-- Security definer: a caller needs this function and nothing else; it reads policies the caller need not see. Only who may
-- also claim may choose a priority, or stand in the past: a run_at or deadline of anybody else that has passed is now, and a
-- delay below zero none, since whoever was due first goes first. Locks and keys come from the kind and from nowhere else.
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
  -- Whoever SET ROLE is that role; inside a definer's function current_user is the definer.
  trusted constant boolean := has_function_privilege(
    coalesce(nullif(current_setting('role'), 'none'), session_user), 'pgclaim.claim_v1(jsonb)', 'execute'
  );
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
        hint = 'Expected {"jobs": [{"kind", "payload", "runAt"?, "delayMs"?, "deadlineAt"?, "priority"?}, ...], "strict"?: boolean}.';
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
    if coalesce(current_setting('pgclaim.tick', true), '') <> '' then
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
    limit_maxes, gate, gate_width, when_dead, deadline_at, when_missed, unique_key
  )
  overriding system value
  select
    d.id, d.kind, d.queue, d.state, d.priority, d.rank, d.run_at, d.revision, d.payload, d.ordering_key, d.locks,
    d.shared_locks, d.limit_names, d.limit_maxes, d.gate, d.gate_width, d.when_dead, d.deadline_at, d.when_missed, d.unique_key
  from pgclaim.derive_jobs(
    coalesce(to_jsonb(wanted), request -> 'jobs'),
    array(select case when t.mine = t.answered then t.mine end from unnest(drawn, ids) with ordinality t(mine, answered, n) order by t.n),
    clock
  ) d
  order by d.id;

  return query
  select (n - 1), answers[n], ids[n], null::text
  from generate_series(1, cardinality(ids)) n;
end $$;

-- The rows that requests make: what the kind says, and what it says of the payload. The one place where a job's keys, locks,
-- limits, gate and deadline come from, for a new job and for one that is replaced.
-- Arguments: the jobs as in enqueue_v1; an id for each, null for one that makes no row; the instant that "now" is.
create or replace function pgclaim.derive_jobs(jobs jsonb, job_ids bigint[], clock timestamptz)
returns table (
  id bigint, kind text, queue text, state text, priority smallint, rank timestamptz, run_at timestamptz, revision integer,
  payload jsonb, ordering_key text, locks text[], shared_locks text[], limit_names text[], limit_maxes integer[], gate text,
  gate_width integer, when_dead text, deadline_at timestamptz, when_missed text, unique_key text
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
    d.unique_key
  from (
    select
      r.*,
      -- Of one that is due later it counts from then.
      coalesce(r.asked_deadline, r.due + r.deadline_after) as deadline_at,
      -- Ordering key, first limit of the payload's, first exclusive name, first limit of all: where everybody of a kind or a
      -- queue waited at one gate, those of one busy name would stand there and hide the free ones. A name has a gate in each
      -- queue: in one for all, the jobs of a paused queue, or of one that nobody serves, would stand in everybody's way. A
      -- queue's name may have colons; written as they are, q and x:y would meet q:x and y at one gate. See refill.
      case
        when r.ordering_key is not null then 'order:' || r.ordering_key
        when r.gate_limit is not null then 'limit:' || replace(r.queue, ':', '%3A') || ':' || r.limit_names[r.gate_limit]
        when r.locks is not null then 'lock:' || replace(r.queue, ':', '%3A') || ':' || r.locks[1]
        when r.limit_names is not null then 'limit:' || replace(r.queue, ':', '%3A') || ':' || r.limit_names[1]
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
        e.o
      from jsonb_array_elements(jobs) with ordinality e(v, o)
      join pgclaim.kind k on k.name = e.v ->> 'kind'
      left join pgclaim.queue q on q.name = k.queue
      where job_ids[e.o] is not null
    ) r
  ) d
$$;

-- Gives a unique key to a new job, or finds who has it and does what the kind says.
-- The key is free while nobody's row has it; a conflict waits for the transaction that inserted it first, and when that one
-- rolls back, this one has the key: nothing is lost. A row that is over its period is taken over, and so is one that its job
-- has left behind: finish does not wait for a key that somebody has locked.
-- Answers: enqueued, duplicate, replaced, rescheduled, successor; or own, where the job that has the key is one of `mine`,
--          the jobs of this call, which are not inserted yet.
-- Locks:   keep: none but a new key's row. replace and reschedule: the key's row until commit, so that of two callers the
--          second changes what the first has left, and one key never gets two waiting jobs; then it tries the job's lock.
--          A duplicate keeps no lock. Above READ COMMITTED a key or job that changed after the snapshot raises 40001.
create or replace function pgclaim.claim_unique_key(
  job_kind text, wanted text, for_ms bigint, conflict text, new_id bigint, mine bigint[], job jsonb, clock timestamptz
)
returns table (answer text, id bigint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  holder record;
  expiry constant timestamptz := clock + for_ms * interval '1 millisecond';
begin
  loop
    answer := 'enqueued';
    id := new_id;
    insert into pgclaim.unique_key (kind, key, job_id, expires_at) values (job_kind, wanted, new_id, expiry)
    on conflict on constraint unique_key_pkey do nothing;
    if found then
      return next;
      return;
    end if;
    select k.job_id, k.expires_at, j.id as live, j.state
    into holder
    from pgclaim.unique_key k
    left join pgclaim.job j on j.id = k.job_id
    where k.kind = job_kind and k.key = wanted;
    -- Gone between the two statements: its job has just finished, so the key is free.
    continue when not found;
    id := holder.job_id;
    if id = any (mine) then
      answer := 'own';
      return next;
      return;
    end if;
    if holder.expires_at <= clock_timestamp() or (holder.expires_at is null and holder.live is null) then
      update pgclaim.unique_key k
      set job_id = new_id, expires_at = expiry
      where k.kind = job_kind and k.key = wanted
        and k.job_id = holder.job_id and k.expires_at is not distinct from holder.expires_at;
      continue when not found;
      answer := 'enqueued';
      id := new_id;
      return next;
      return;
    end if;
    answer := 'duplicate';
    if conflict = 'keep' or holder.live is null or holder.state = 'dead' then
      return next;
      return;
    end if;
    if conflict = 'replace' then
      answer := pgclaim.change_holder(job_kind, wanted, holder.job_id, conflict, new_id, job, clock);
    else
      begin
        answer := pgclaim.change_holder(job_kind, wanted, holder.job_id, conflict, new_id, job, clock);
        if answer = 'running' then
          -- Undone with its locks: whoever runs the job frees the key when it is done, and must not wait for this caller.
          raise exception sqlstate 'PC0SK';
        end if;
      exception when sqlstate 'PC0SK' then
        answer := 'duplicate';
      end;
    end if;
    continue when answer = 'again';
    if answer in ('moved', 'successor') then
      id := new_id;
    end if;
    answer := case answer when 'moved' then 'replaced' else answer end;
    return next;
    return;
  end loop;
end $$;

-- Changes the job that has a unique key, as replace or reschedule says, unless it runs.
-- replace: payload, due time, deadline, priority and everything else the kind derives from them, with all attempts before it;
-- the job keeps its id and place. If it belongs behind another gate now, the new job takes its place altogether.
-- reschedule: the due time, and the kind's deadline with it where that still counts from the due time; a deadline that the
-- caller asks for; nothing else.
-- Answers: replaced, rescheduled, moved (the new job has the key), successor (replace, while the job runs: the new job has the
--          key), running (reschedule, while the job runs), again (the key or the job is not what it was).
-- Running is: somebody holds the job's lock, or an attempt of it is open, which tells inside a tick, where the lock may be
-- our own. A lock without an attempt is somebody's for a moment, a tick's before its fence or a wake's: that is waited out. A
-- job of our tick that has missed its deadline has no attempt and will die, whatever is written to it. One that somebody wants
-- cancelled counts as running: the next wake takes it out, with whatever payload it has by then.
create or replace function pgclaim.change_holder(
  job_kind text, wanted text, holder_id bigint, conflict text, new_id bigint, job jsonb, clock timestamptz
)
returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  h record;
  n record;
  is_free boolean;
  is_open boolean;
  is_late boolean;
  will_miss boolean;
  is_doomed boolean;
  moved_deadline timestamptz;
  tries integer := 0;
begin
  perform from pgclaim.unique_key k where k.kind = job_kind and k.key = wanted and k.job_id = holder_id for update;
  if not found then
    return 'again';
  end if;
  loop
    is_free := pgclaim.try_job_lock(job_kind, holder_id);
    is_open := exists (select from pgclaim.attempt a where a.job_id = holder_id and a.outcome is null);
    exit when is_free or is_open or tries >= 20;
    tries := tries + 1;
    perform pg_sleep(0.005);
  end loop;
  is_late := exists (
    select from pgclaim.job j
    where j.id = holder_id and j.when_missed = 'dead' and j.deadline_at < clock_timestamp() and j.state <> 'dead'
  );
  will_miss := is_late and coalesce(current_setting('pgclaim.tick', true), '') <> '';
  is_doomed := exists (select from pgclaim.cancel_request r where r.job_id = holder_id);
  if not is_free or is_open or will_miss or is_doomed then
    if conflict = 'reschedule' then
      return 'running';
    end if;
    -- Its payload is being worked on, so a new one must not vanish into it. It runs on; should it not end done, it is not
    -- tried again, since that would be the old payload's work after the new one's. One that is late and was not started will be
    -- a dead letter that says so, and stays one.
    update pgclaim.unique_key k set job_id = new_id where k.kind = job_kind and k.key = wanted;
    insert into pgclaim.cancel_request (job_id, replaced)
    select holder_id, true
    where is_open or not is_late
    on conflict on constraint cancel_request_pkey do nothing;
    return 'successor';
  end if;
  -- A new statement after the lock. The row may be locked for a moment by whoever promotes it.
  select j.* into h from pgclaim.job j
  where j.id = holder_id and j.state in ('ready', 'scheduled', 'blocked')
  for update;
  if not found then
    return 'again';
  end if;
  select d.* into n from pgclaim.derive_jobs(jsonb_build_array(job), array[new_id], clock) d;
  select case
    -- Present and null is not asked for: that is what pgclaim.enqueue sends without one.
    when job ->> 'deadlineAt' is not null or h.deadline_at is null or h.deadline_at = h.run_at + k.deadline_ms * interval '1 millisecond'
      then n.deadline_at
    else h.deadline_at
  end
  into moved_deadline
  from pgclaim.kind k
  where k.name = job_kind;
  if conflict = 'replace' and h.gate is distinct from n.gate then
    with gone as (
      delete from pgclaim.job j where j.id = holder_id returning j.*
    )
    insert into pgclaim.history (
      job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, last_error, payload, ordering_key, place, deadline_at
    )
    select g.id, g.kind, g.queue, 'cancelled', g.attempt, g.failures, g.run_at, g.enqueued_at, g.last_error, g.payload,
      g.ordering_key, g.place, g.deadline_at
    from gone g;
    update pgclaim.unique_key k set job_id = new_id where k.kind = job_kind and k.key = wanted;
  else
    update pgclaim.job j
    set
      run_at = n.run_at,
      rank = case conflict
        when 'replace' then n.rank
        else coalesce(moved_deadline, n.run_at + p.target_latency_ms * interval '1 millisecond')
      end,
      deadline_at = moved_deadline,
      -- Behind a gate it stays where it is, and refill decides. One of a limit or a name whose time has come goes behind it.
      state = case
        when j.state = 'blocked' then 'blocked'
        when n.run_at > clock then 'scheduled'
        when j.gate is not null and j.ordering_key is null and j.state = 'scheduled' then 'blocked'
        else 'ready'
      end
    from pgclaim.kind p
    where j.id = holder_id and p.name = j.kind;
    if conflict = 'replace' then
      update pgclaim.job j
      set
        queue = n.queue,
        priority = n.priority,
        revision = n.revision,
        payload = n.payload,
        locks = n.locks,
        shared_locks = n.shared_locks,
        limit_names = n.limit_names,
        limit_maxes = n.limit_maxes,
        gate_width = n.gate_width,
        when_dead = n.when_dead,
        deadline_at = n.deadline_at,
        when_missed = n.when_missed,
        failures = 0,
        last_error = null
      where j.id = holder_id;
    end if;
  end if;
  if h.gate is not null then
    insert into pgclaim.recheck (gate) values (h.gate);
  end if;
  return case when conflict = 'reschedule' then 'rescheduled' when h.gate is distinct from n.gate then 'moved' else 'replaced' end;
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
    using errcode = 'PC003', hint = 'The payload is a JSON value within the size limit; instants lie in the years 1 to 9999, delays within ten years.';
end $$;
