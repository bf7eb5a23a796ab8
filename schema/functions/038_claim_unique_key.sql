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
-- replace: payload, due time, deadline, priority, where it comes from and everything else the kind derives from them, with all attempts before it;
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
  will_miss := is_late and pgclaim.in_tick();
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
    when conflict = 'replace' or job ->> 'deadlineAt' is not null
      or h.deadline_at is null or h.deadline_at = h.run_at + k.deadline_ms * interval '1 millisecond'
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
      job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, last_error, payload, ordering_key, place, deadline_at,
      trace, source
    )
    select g.id, g.kind, g.queue, 'cancelled', g.attempt, g.failures, g.run_at, g.enqueued_at, g.last_error, g.payload,
      g.ordering_key, g.place, g.deadline_at, g.trace, g.source
    from gone g;
    update pgclaim.unique_key k set job_id = new_id where k.kind = job_kind and k.key = wanted;
  else
    update pgclaim.job j
    set
      run_at = n.run_at,
      rank = coalesce(moved_deadline, n.run_at + p.target_latency_ms * interval '1 millisecond'),
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
        when_missed = n.when_missed,
        trace = n.trace,
        source = n.source,
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
