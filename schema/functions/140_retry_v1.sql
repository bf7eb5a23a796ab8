-- Gives a dead letter a fresh set of attempts. Its number of attempts goes on counting; a job that killed its invocation
-- stays a suspect and runs in quarantine first.
-- Of an ordering key: where dead letters halt it, the job keeps its place and is the head again; where they let others pass,
-- it gets a new place at the end, because with its old one it would stand before jobs that are already running.
-- Answers: {"type": 'retried' | 'busy' | 'not-found' | 'not-dead', "state"?: text}. Own short transaction, never inside a
-- caller's. Locks: tries the job's, then waits for its gate's. Raises: PC001.
create or replace function pgclaim.retry_v1(id bigint)
returns jsonb
language plpgsql volatile
as $$
declare
  j record;
begin
  perform pgclaim.require_read_committed();
  select * into j from pgclaim.lock_dead_letter(retry_v1.id);
  if j.answer is not null then
    return j.answer;
  end if;
  perform pgclaim.revive(array[retry_v1.id], array[clock_timestamp()]);
  if j.gate is not null then
    perform pgclaim.refill(j.gate);
  end if;
  return jsonb_build_object('type', 'retried');
end $$;

-- Dead letters back to work, each due at its instant. The caller has the jobs' locks and their gates', and refills the gates.
create or replace function pgclaim.revive(ids bigint[], dues timestamptz[])
returns void
language plpgsql volatile
as $$
declare
  clock constant timestamptz := clock_timestamp();
begin
  with wanted as materialized (
    -- New places in the order of the old ones.
    select w.id, w.due, case when w.passed then nextval('pgclaim.place_seq') end as place
    from (
      select o.id, u.due, o.ordering_key is not null and o.when_dead = 'skip' as passed
      from unnest(ids, dues) u(id, due)
      join pgclaim.job o on o.id = u.id
      order by o.place, o.id
    ) w
  )
  update pgclaim.job o
  set
    -- Behind a gate refill decides, but of a limit or a name one that is not due yet waits for its time first.
    state = case
      when w.due > clock and o.ordering_key is null then 'scheduled'
      when o.gate is null then 'ready'
      else 'blocked'
    end,
    place = coalesce(w.place, o.place),
    when_dead = k.when_dead,  -- whoever skipped it meant the dead letter, not what it does next
    failures = 0,
    crash_base = o.attempt,
    run_at = w.due,
    -- A missed deadline cannot be met any more; who retries it wants it run all the same.
    when_missed = case o.dead_reason when 'missed' then 'run' else o.when_missed end,
    rank = coalesce(o.deadline_at, w.due + k.target_latency_ms * interval '1 millisecond'),
    dead_at = null,
    dead_reason = null
  from wanted w
  cross join pgclaim.kind k
  where o.id = w.id and k.name = o.kind;
end $$;

-- The locks of an operator verb: the job's, tried, and its gate's, waited for. Then the row as it stands under them.
-- Answers: the verb's answer where there is nothing to do, else null, and the row's facts.
create or replace function pgclaim.lock_for_operator(job_id bigint, out answer jsonb, out state text, out gate text)
language plpgsql volatile
as $$
declare
  job_kind text;
begin
  select o.kind, o.gate into job_kind, gate from pgclaim.job o where o.id = job_id;
  if not found then
    select jsonb_build_object('type', 'not-dead', 'state', h.outcome) into answer
    from pgclaim.history h
    where h.job_id = lock_for_operator.job_id;
    answer := coalesce(answer, jsonb_build_object('type', 'not-found'));
    return;
  end if;
  if not pgclaim.try_job_lock(job_kind, job_id) then
    answer := jsonb_build_object('type', 'busy');
    return;
  end if;
  if gate is not null then
    perform pgclaim.lock_gates(array[gate]);
  end if;
  select o.state into state from pgclaim.job o where o.id = job_id;
  if not found then
    answer := jsonb_build_object('type', 'not-found');
  end if;
end $$;

-- The same, for the verbs that are for dead letters only: any other job's answer is not-dead and its state.
create or replace function pgclaim.lock_dead_letter(job_id bigint, out answer jsonb, out gate text)
language plpgsql volatile
as $$
declare
  state text;
begin
  select o.answer, o.state, o.gate into answer, state, gate from pgclaim.lock_for_operator(lock_dead_letter.job_id) o;
  if answer is null and state <> 'dead' then
    answer := jsonb_build_object('type', 'not-dead', 'state', state);
  end if;
end $$;
