-- Gives a dead letter a fresh set of attempts. Its number of attempts goes on counting; a job that killed its invocation
-- stays a suspect and runs in quarantine first.
-- Answers: {"type": 'retried' | 'busy' | 'not-found' | 'not-dead', "state"?: text}. Own short transaction, never inside a
-- caller's. Locks: tries the job's. Raises: PC001.
create or replace function pgclaim.retry_v1(id bigint)
returns jsonb
language plpgsql volatile
as $$
declare
  j record;
begin
  perform pgclaim.require_read_committed();
  select o.kind into j from pgclaim.job o where o.id = retry_v1.id;
  if not found then
    select h.outcome into j from pgclaim.history h where h.job_id = retry_v1.id;
    if found then
      return jsonb_build_object('type', 'not-dead', 'state', j.outcome);
    end if;
    return jsonb_build_object('type', 'not-found');
  end if;
  if not pgclaim.try_job_lock(j.kind, retry_v1.id) then
    return jsonb_build_object('type', 'busy');
  end if;
  update pgclaim.job o
  set
    state = 'ready',
    failures = 0,
    crash_base = o.attempt,
    run_at = clock_timestamp(),
    rank = clock_timestamp() + k.target_latency_ms * interval '1 millisecond',
    dead_at = null,
    dead_reason = null
  from pgclaim.kind k
  where o.id = retry_v1.id and o.state = 'dead' and k.name = o.kind;
  if found then
    return jsonb_build_object('type', 'retried', 'state', 'ready');
  end if;
  select o.state into j from pgclaim.job o where o.id = retry_v1.id;
  if not found then
    return jsonb_build_object('type', 'not-found');
  end if;
  return jsonb_build_object('type', 'not-dead', 'state', j.state);
end $$;
