-- Takes a dead letter out of the queue for good; it stays in history as discarded.
-- Answers: {"type": 'discarded' | 'busy' | 'not-found' | 'not-dead', "state"?: text}. Own short transaction.
-- Locks: tries the job's. Raises: PC001.
create or replace function pgclaim.discard_v1(id bigint)
returns jsonb
language plpgsql volatile
as $$
declare
  j record;
begin
  perform pgclaim.require_read_committed();
  select o.kind into j from pgclaim.job o where o.id = discard_v1.id;
  if not found then
    select h.outcome into j from pgclaim.history h where h.job_id = discard_v1.id;
    if found then
      return jsonb_build_object('type', 'not-dead', 'state', j.outcome);
    end if;
    return jsonb_build_object('type', 'not-found');
  end if;
  if not pgclaim.try_job_lock(j.kind, discard_v1.id) then
    return jsonb_build_object('type', 'busy');
  end if;
  select o.state into j from pgclaim.job o where o.id = discard_v1.id;
  if not found then
    return jsonb_build_object('type', 'not-found');
  elsif j.state <> 'dead' then
    return jsonb_build_object('type', 'not-dead', 'state', j.state);
  end if;
  update pgclaim.attempt a
  set outcome = 'released', ended_at = clock_timestamp()
  where a.job_id = discard_v1.id and a.outcome is null;
  with gone as (
    delete from pgclaim.job o where o.id = discard_v1.id returning o.*
  )
  insert into pgclaim.history (
    job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, last_error, payload
  )
  select g.id, g.kind, g.queue, 'discarded', g.attempt, g.failures, g.run_at, g.enqueued_at, g.last_error, g.payload
  from gone g;
  return jsonb_build_object('type', 'discarded');
end $$;
